"""Questions and answers between the bench and a child: one line of JSON each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ofa.engine.mlx.pages import with_huge_pages

from ..servers import ROOT, SILENT, CannotMeasure, stop

Asked = Mapping[str, Any]
Handler = Callable[[Asked], Mapping[str, Any]]


class Child:
    """A child that was started; `told` is what it said when it was ready."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.told = self._read()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        """Have it do something; return what it answers."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A library may print a word of its own.
            if line.startswith('{"answer":'):
                answer: dict[str, Any] = json.loads(line)["answer"]
                return answer
        raise self._failed()

    def _failed(self) -> CannotMeasure:
        words = self._log.read_text(errors="replace").strip().splitlines()
        return CannotMeasure(f"a child ended: {(words or ['without a word'])[-1]}")


@contextmanager
def child(
    folder: Path,
    module: str,
    values: Mapping[str, object],
    *,
    python: str = "",
    huge_pages: bool = False,
) -> Iterator[Child]:
    """
    Yield a child that runs `bench.children.<module>` with *values*.

    With *huge_pages* its memory is as that of ofa's worker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{module}.log"
    command = [python or sys.executable, "-m", f"bench.children.{module}"]
    # Another environment's python finds ofa and the bench in this checkout.
    env = {**os.environ, **SILENT, "PYTHONPATH": str(ROOT)}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, json.dumps(dict(values))],
            cwd=ROOT,
            env=with_huge_pages(env) if huge_pages else env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    try:
        yield Child(process, log)
    finally:
        stop(process)


def given(argv: Sequence[str] | None = None) -> Asked:
    """Return, in a child, the values it was started with."""
    values: Asked = json.loads((sys.argv[1:] if argv is None else argv)[0])
    return values


def serve(ready: Asked, handlers: Mapping[str, Handler]) -> None:
    """Say *ready*, then answer questions until the bench closes the pipe."""
    _say(ready)
    for line in sys.stdin:
        asked = json.loads(line)
        _say(handlers[asked["do"]](asked))


def _say(answer: Asked) -> None:
    sys.stdout.write(json.dumps({"answer": answer}) + "\n")
    sys.stdout.flush()
