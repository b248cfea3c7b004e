"""`ofa serve` as a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ofa.banner import SENTINEL

ROOT = Path(__file__).parent.parent
SLOW = [[{"text": "one "}, {"wait_s": 0.4}, {"text": "two "}, {"wait_s": 0.4}]]


class Process:
    """A started `ofa serve`; its output is collected line by line."""

    def __init__(self, child: subprocess.Popen, folder: Path) -> None:
        self.child = child
        self.folder = folder
        self.lines: list[str] = []
        self.listening = threading.Event()
        self._connections: list[http.client.HTTPConnection] = []
        self._worker = 0  # the last that was looked for
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.child.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith((SENTINEL, '{"node"')):
                self.listening.set()

    @property
    def text(self) -> str:
        """Everything it has printed."""
        return "\n".join(self.lines)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int((self.folder / "state" / ".ofa_serve_port").read_text())

    @property
    def key(self) -> str:
        """Its key."""
        return (self.folder / "state" / ".ofa_api_key").read_text().strip()

    def open(self, method: str, path: str, body: object = None, key: str | None = None):
        """Send a request; return the response, its body not yet read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self._connections.append(connection)
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        data = json.dumps(body).encode() if body is not None else None
        if data:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def stream(self, model: str = "ofa-hpc", text: str = "go", **more: object):
        """Start a streamed chat."""
        message = {"role": "user", "content": text}
        body = {"model": model, "stream": True, "messages": [message], **more}
        return self.open("POST", "/v1/chat/completions", body)

    def ready(self) -> tuple[int, str]:
        """Return what /readyz says: its status, and why."""
        answer = self.open("GET", "/readyz")
        reasons = json.loads(answer.read()).get("reasons", [""])
        return answer.status, reasons[0]

    def wait_ready(self, limit_s: float = 60) -> list[str]:
        """Wait until it is ready; return the reasons why it was not, in order."""
        until = time.monotonic() + limit_s
        reasons: list[str] = []
        while (now := self.ready())[0] != 200:
            assert time.monotonic() < until, self.text
            reasons += [now[1]] if now[1] not in reasons else []
            time.sleep(0.05)
        return reasons

    @property
    def worker(self) -> int:
        """The process that serves: the one child of the supervisor, or itself."""
        pid = self.child.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._worker = int(children[0]) if children else 0
        return self._worker or pid

    def say(self, script: object) -> None:
        """Let the next worker play *script*."""
        (self.folder / "script.json").write_text(json.dumps(script))

    def kill(self) -> None:
        """Kill the worker; return when it is gone."""
        worker = self.worker
        os.kill(worker, signal.SIGKILL)
        wait_gone(worker, 5)

    def close(self) -> None:
        """End the process and everything that was opened."""
        for connection in self._connections:
            connection.close()
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(10)
        with contextlib.suppress(OSError):  # it is gone, as it ought to be
            words = Path(f"/proc/{self._worker}/cmdline").read_text()
            if str(self.folder) in words:
                os.kill(self._worker, signal.SIGKILL)
        self._reader.join(5)
        self.child.stdout.close()

    def wait(self, limit_s: float = 30) -> int:
        """Return its exit code."""
        code = self.child.wait(limit_s)
        self._reader.join(5)
        return code


@contextmanager
def process(
    folder: Path, *arguments: str, script=SLOW, start_new_session=False, **env: str
) -> Iterator[Process]:
    """Run `ofa serve` with a scripted engine; it has ended when this is left."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OFA_SCRATCH": str(folder / "state"),
        "PYTHONUNBUFFERED": "1",
        **env,
    }
    command = [sys.executable, "-m", "ofa", "serve", "--engine", "scripted"]
    child = subprocess.Popen(
        [*command, "--script", str(path), *arguments],
        cwd=ROOT,
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=start_new_session,
    )
    started = Process(child, folder)
    try:
        until = time.monotonic() + 90
        while not started.listening.wait(0.1) and child.poll() is None:
            assert time.monotonic() < until, started.text
        yield started
    finally:
        started.close()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that is only not yet buried does not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except FileNotFoundError:
        return False


def wait_gone(pid: int, limit_s: float) -> None:
    """Wait until a process is gone."""
    until = time.monotonic() + limit_s
    while is_alive(pid):
        assert time.monotonic() < until, f"process {pid} lives"
        time.sleep(0.02)
