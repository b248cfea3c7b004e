"""Sixteen streams at once: is anything lost or mixed, and how fast is /healthz?"""

import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.running import Client, serving, text_of

STREAMS, CHUNKS, PROBES = 16, 200, 400


def probe(port: int, times: int) -> list[float]:
    """Return how long each of *times* probes took, in milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        taken.append((time.perf_counter() - began) * 1000)
        time.sleep(0.005)
    return taken


def stream(client: Client, word: str, into: dict[str, str]) -> None:
    """Ask for *word* back, and keep what came."""
    message = {"role": "user", "content": word}
    body = {"model": "ofa-hpc", "stream": True, "messages": [message]}
    into[word] = text_of(client.chat(body)[2])


def percentile(values: list[float], share: float) -> float:
    """Return the value below which *share* of *values* lies."""
    return round(sorted(values)[int(share * (len(values) - 1))], 2)


def main() -> None:
    """Measure and print."""
    # 50 tokens a second a stream, as a small Gemma on a laptop.
    script = [[{"echo": "last_user"}, *([{"wait_s": 0.02}, {"text": " x"}] * CHUNKS)]]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), script, server__running=STREAMS) as client,
    ):
        idle = probe(client.port, 100)
        got: dict[str, str] = {}
        threads = [
            threading.Thread(target=stream, args=(client, f"CANARY-{n:02}", got))
            for n in range(STREAMS)
        ]
        for thread in threads:
            thread.start()
        loaded = probe(client.port, PROBES)
        for thread in threads:
            thread.join()
    wrong = [w for w, text in got.items() if text != w + " x" * CHUNKS]
    print(
        json.dumps(
            {
                "streams": len(got),
                "lost_or_mixed": len(wrong),
                "healthz_idle_p50_ms": round(statistics.median(idle), 2),
                "healthz_loaded_p50_ms": percentile(loaded, 0.5),
                "healthz_loaded_p99_ms": percentile(loaded, 0.99),
                "healthz_loaded_max_ms": round(max(loaded), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
