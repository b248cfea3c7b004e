"""
Files of formats that are programs to read (PDF, office files), in a process of its own.

Knows time, memory and how to end a reader that hangs; nothing of the formats. A file
made to hurt, or merely broken, costs its time limit and one reason among the skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

from .unread import Unread

LIMIT_S = 60.0  # for one file: a manual of 1,000 pages takes some 40 s
_MEMORY_BYTES = 4 << 30  # of address space, where the system can limit it
MOST_LETTERS = 8_000_000  # of one file's text

KINDS = frozenset({".pdf", ".docx", ".pptx", ".odt", ".odp"})


class Apart:
    """Reads files in a child that is started when first needed, and closed with it."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def read(self, path: Path, kind: str) -> str:
        """Return the text of the file at *path*, of one of `KINDS`; raises `Unread`."""
        child = self._child
        if child is None or child.poll() is not None:
            child = self._child = _started()
        late = threading.Event()

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self._limit_s, stop)
        timer.start()
        try:
            answer = _asked(child, {"path": os.fspath(path), "kind": kind})
        finally:
            timer.cancel()
        if answer is None:
            self._end()
            took = f"not read within {self._limit_s:g} s"
            raise Unread(took if late.is_set() else "its reader failed")
        if why := answer.get("why"):
            raise Unread(why)
        # Half a letter, as broken fonts give: it can't be written to a file.
        return answer["text"].encode("utf-8", "replace").decode()

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            for stream in (self._child.stdin, self._child.stdout):
                if stream:
                    with contextlib.suppress(OSError):  # it went away by itself
                        stream.close()
            self._child.wait()
            self._child = None


def _started() -> subprocess.Popen[bytes]:
    # -P: the folder one stands in is not to shadow a module.
    root = Path(__file__).resolve().parent.parent.parent
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(root), before]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what libraries think of a broken file
        env={**os.environ, "PYTHONPATH": path},
    )


def _asked(
    child: subprocess.Popen[bytes], question: dict[str, str]
) -> dict[str, str] | None:
    assert child.stdin and child.stdout
    try:
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None


def _serve(asked: IO[bytes], told: IO[bytes]) -> None:
    """Answer each line of *asked* with a line of *told*, until there are no more."""
    for line in asked:
        question = json.loads(line)
        try:
            answer = {"text": _read(question["path"], question["kind"])}
        except Unread as exc:
            answer = {"why": str(exc)}
        except MemoryError:
            answer = {"why": "too large to read"}
        told.write(json.dumps(answer).encode() + b"\n")
        told.flush()


def _read(path: str, kind: str) -> str:
    from . import read_office, read_pdf

    readers = {
        ".pdf": read_pdf.pdf,
        ".docx": read_office.docx,
        ".pptx": read_office.pptx,
        ".odt": read_office.opendocument,
        ".odp": read_office.opendocument,
    }
    text = readers[kind](path)
    if len(text) > MOST_LETTERS:
        raise Unread("more text than a book")
    return text


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on each system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


if __name__ == "__main__":
    _limit_memory()
    _serve(sys.stdin.buffer, sys.stdout.buffer)
