"""Load from a process of its own, so that the bench's probes do not wait for it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import wire
from ..servers import MODE, user
from .lines import Asked, given, serve

_CALLERS = 8


class Load:
    """Asks one server, with its key."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key

    def streams(self, asked: Asked) -> Mapping[str, Any]:
        """
        Open so many streams at once, each of which is to get its own word back, again
        and again; count what was lost and what was another stream's.
        """
        names = [f"CANARY-{asked['round']}-{n:03}" for n in range(asked["streams"])]
        heard = wire.ask_all(self._port, [self._chat(name) for name in names])
        lost = foreign = 0
        for name, one in zip(names, heard, strict=True):
            own = sum(content == name for _, content in one.pieces)
            foreign += len(one.pieces) - own
            lost += max(0, asked["chunks"] - own) + (not one.is_whole)
        return {"lost": lost, "foreign": foreign, "streams": len(heard)}

    def mixed(self, asked: Asked) -> Mapping[str, Any]:
        """Ask so many requests of all kinds on a few threads; count the outcomes."""
        numbers = iter(range(asked["requests"]))
        counts: Counter[str] = Counter()
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                name, kind = _KINDS[number % len(_KINDS)]
                outcome = kind(self, number)
                with lock:
                    counts[f"{name}: {outcome}"] += 1

        threads = [threading.Thread(target=work) for _ in range(_CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"counts": dict(sorted(counts.items()))}

    def _chat(
        self, text: str, *, stream: bool = True, key: str = "", **more: object
    ) -> bytes:
        body = {"model": MODE, "messages": [user(text)], "stream": stream, **more}
        return wire.request("/v1/chat/completions", body, key=key or self._key)

    def stream(self, number: int) -> str:
        """Read a stream to its end."""
        heard = wire.ask(self._port, self._chat(f"word {number}"))
        return f"{heard.status} {'whole' if heard.is_whole else 'cut'}"

    def whole(self, number: int) -> str:
        """Ask for a whole answer."""
        heard = wire.ask(self._port, self._chat(f"word {number}", stream=False))
        return str(heard.status)

    def bad_field(self, number: int) -> str:
        """Send a field that is out of range."""
        heard = wire.ask(self._port, self._chat("word", temperature=9 + number))
        return str(heard.status)

    def bad_json(self, number: int) -> str:
        """Send a body that is no JSON."""
        sent = wire.request("/v1/chat/completions", b'{"model":', key=self._key)
        return str(wire.ask(self._port, sent).status)

    def wrong_key(self, number: int) -> str:
        """Come with another key each time."""
        heard = wire.ask(self._port, self._chat("word", key=f"sk-wrong-{number}"))
        return str(heard.status)

    def hang_up(self, number: int) -> str:
        """Leave a stream after its first bytes."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as sock:
            sock.sendall(self._chat(f"word {number}"))
            return "heard" if sock.recv(200) else "nothing"


_KINDS: Sequence[tuple[str, Callable[[Load, int], str]]] = tuple(
    itertools.chain(
        [("stream", Load.stream)] * 6,
        [("whole", Load.whole)] * 6,
        [("bad field", Load.bad_field)] * 2,
        [("bad JSON", Load.bad_json)] * 1,
        [("wrong key", Load.wrong_key)] * 3,
        [("hang-up", Load.hang_up)] * 2,
    )
)


def main() -> None:
    """Answer the bench's questions."""
    values = given()
    load = Load(values["port"], values["key"])
    serve({}, {"streams": load.streams, "mixed": load.mixed})


if __name__ == "__main__":
    main()
