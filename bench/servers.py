"""
The servers that are measured, each a child process as its users start it.

`ofa serve` is started without retrieval, so that its peers get the same prompts; it
keeps its state in a folder of the run. Peers come from the same environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import proc, wire

ROOT = Path(__file__).parent.parent
START_S = 180.0  # loading a model on a busy machine
SETTLE_S = 120.0  # what a server does for itself once it is up
_STOP_S = 20.0
MODE = "ofa-hpc"
SILENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}


class CannotMeasure(Exception):
    """A figure can't be had here and now; the message says why."""


@dataclass
class Ofa:
    """A running `ofa serve`."""

    process: subprocess.Popen[str]
    port: int
    key: str
    folder: Path
    start_s: float = 0.0  # from the command until it was ready

    @property
    def pid(self) -> int:
        """The process that was started; others may stand below it."""
        return self.process.pid

    @property
    def worker(self) -> int:
        """The process that holds the engine."""
        return proc.worker_of(self.pid)

    def body(
        self, messages: Sequence[Mapping[str, str]], tokens: int, *, stream: bool = True
    ) -> dict[str, Any]:
        """Return a greedy request for *tokens* tokens."""
        return chat_body(MODE, messages, tokens, stream=stream)

    def request(
        self, messages: Sequence[Mapping[str, str]], tokens: int, *, stream: bool = True
    ) -> bytes:
        """Return the bytes of that request, with the server's key."""
        return self.post(self.body(messages, tokens, stream=stream))

    def post(self, body: object) -> bytes:
        """Return the bytes of a chat request."""
        return wire.request("/v1/chat/completions", body, key=self.key)

    def get(self, path: str) -> wire.Heard:
        """Ask for *path*."""
        return wire.ask(self.port, wire.request(path, key=self.key, method="GET"))

    def is_ready(self) -> bool:
        """Return whether it says so."""
        return wire.is_up(self.port, "/readyz", key=self.key)

    def settle(self) -> None:
        """Wait until it has done what it does for itself after its start."""
        proc.wait_idle(self.pid, SETTLE_S)

    @property
    def log(self) -> str:
        """What it said on standard error."""
        return (self.folder / "serve.log").read_text(errors="replace")


@dataclass
class Peer:
    """A running `mlx_lm.server`."""

    process: subprocess.Popen[str]
    port: int

    def request(self, messages: Sequence[Mapping[str, str]], tokens: int) -> bytes:
        """Return the bytes of a greedy streamed request for *tokens* tokens."""
        body = chat_body("default_model", messages, tokens)
        return wire.request("/v1/chat/completions", body)


def chat_body(
    model: str,
    messages: Sequence[Mapping[str, str]],
    tokens: int,
    *,
    stream: bool = True,
) -> dict[str, Any]:
    """Return a greedy request for *tokens* tokens, which tells its counts."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


def user(text: str) -> dict[str, str]:
    """Return a user's message."""
    return {"role": "user", "content": text}


@contextmanager
def ofa(
    folder: Path,
    *,
    flags: Sequence[str] = (),
    keys: Mapping[str, object] | None = None,
    root: Path = ROOT,
) -> Iterator[Ofa]:
    """
    Yield a ready `ofa serve` with its state in *folder*, settled.

    *keys* are configuration keys (``engine.rows``), *root* is the checkout it is of.
    Raises `CannotMeasure` with the server's own last words if it does not come up.
    """
    began = time.perf_counter()
    with started(folder, flags=flags, keys=keys, root=root) as server:
        if not proc.wait_until(lambda: _is_up(server), START_S):
            raise CannotMeasure(f"ofa serve was not ready in {START_S:g} s")
        server.start_s = time.perf_counter() - began
        server.settle()
        yield server


@contextmanager
def started(
    folder: Path,
    *,
    flags: Sequence[str] = (),
    keys: Mapping[str, object] | None = None,
    root: Path = ROOT,
) -> Iterator[Ofa]:
    """Yield an `ofa serve` that listens; its model may still load."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ofa", "serve", "--json", "--no-rag"]
    command += ["--port", str(wire.free_port()), *flags]
    with (folder / "serve.log").open("a") as log:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=_environment(folder, keys or {}),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        yield _connected(process, folder)
    finally:
        stop(process)


def scripted(folder: Path, script: object) -> list[str]:
    """Return the flags of a server that plays *script*."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return ["--engine", "scripted", "--script", str(path), "--quiet"]


@contextmanager
def mlx_lm_server(
    folder: Path, model: Path, *, template: str = "", blas: bool = True
) -> Iterator[Peer]:
    """
    Yield a running `mlx_lm.server` with *model*.

    With *blas* a launcher loads ofa's BLAS into it first; without, it is started as
    it is installed. *template* is given where the model brings none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = wire.free_port()
    command = [
        sys.executable,
        "-m",
        *(("bench.children.peer",) if blas else ("mlx_lm", "server")),
    ]
    command += ["--model", str(model), "--port", str(port), "--log-level", "WARNING"]
    command += ["--chat-template", template] if template else []
    with (folder / "peer.log").open("a") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **SILENT},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        if not proc.wait_until(lambda: _answers(process, port, "/health"), START_S):
            raise CannotMeasure(f"mlx_lm.server was not up in {START_S:g} s")
        yield Peer(process, port)
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End *process* and whatever it has started; politely first."""
    family = proc.tree(process.pid) if process.poll() is None else []
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    for pid in family:
        with suppress(ProcessLookupError):
            if proc.is_alive(pid):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _environment(folder: Path, keys: Mapping[str, object]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OFA_")}
    named = {
        f"OFA_{name.replace('.', '_').upper()}": str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for name, value in keys.items()
    }
    own = {
        "OFA_SCRATCH": str(folder / "state"),
        "OFA_SERVER_HOST": "127.0.0.1",
        "XDG_CONFIG_HOME": str(folder),  # no site.toml of the person who measures
    }
    return {**kept, **SILENT, **own, **named}


def _connected(process: subprocess.Popen[str], folder: Path) -> Ofa:
    """Read where the server is from the line of JSON it prints."""
    told: dict[str, Any] = {}
    reader = threading.Thread(target=_take_line, args=(process, told), daemon=True)
    reader.start()
    reader.join(START_S)
    if not told:
        log = (folder / "serve.log").read_text(errors="replace").strip()
        raise CannotMeasure(f"ofa serve: {(log.splitlines() or ['no word'])[-1]}")
    key_file = told.get("key_file") or ""
    key = Path(key_file).read_text().strip() if key_file else ""
    return Ofa(process, int(told["port"]), key, folder)


def _take_line(process: subprocess.Popen[str], told: dict[str, Any]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            told.update(json.loads(line))
            return


def _is_up(server: Ofa) -> bool:
    return _answers(server.process, server.port, "/readyz", server.key)


def _answers(
    process: subprocess.Popen[str], port: int, path: str, key: str = ""
) -> bool:
    if process.poll() is not None:
        raise CannotMeasure(f"the server ended with status {process.returncode}")
    if wire.is_up(port, path, key=key):
        return True
    time.sleep(0.2)
    return False
