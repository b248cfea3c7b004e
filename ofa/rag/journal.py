"""
A file of what a memory holds, so that a restarted server begins where it stopped.

One line for each change, appended, and all of it written anew when it has grown: no
locks, which the file systems of clusters often lack, and a line that was cut, by
whatever, costs that line alone. Knows bytes and files; what a line says is its owner's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from queue import Empty, SimpleQueue

from ..files import make_folder, read_own, reason, write_file

_HEAD = b"ofa turns 1\n"  # another format is begun anew
_SUM_CHARS = 16
_CLOSE_S = 5.0  # a file system that hangs must not keep a server from stopping
# Some 10 MB of blocks: what waits for a file system that hangs is bounded.
_MOST_WAITING = 1000

log = logging.getLogger("ofa.rag")


class Journal:
    """
    Lines in the file *path* of at most *limit_bytes*, written by a thread of its own.

    *everything* returns all lines that count, oldest first: they take the place of the
    file when it is full. A file that can't be read is none, one that can't be written
    is let be, with one line in the log: nobody waits for it, or fails by it.
    """

    def __init__(
        self, path: Path, limit_bytes: int, everything: Callable[[], Iterable[bytes]]
    ) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._everything = everything
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._size = 0
        self._missed = False  # lines that found no place in the queue
        self._is_off = False  # nobody writes any more
        self._thread = threading.Thread(target=self._run, name="ofa-turns", daemon=True)

    def read(self) -> list[bytes]:
        """Return the lines of before, oldest first."""
        try:
            make_folder(self._path.parent)
            raw, _ = read_own(self._path, limit_bytes=2 * self._limit_bytes)
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("%s is not read: %s", self._path, reason(error))
            return []
        if not raw.startswith(_HEAD):
            log.warning("%s is of another format, and begun anew", self._path)
            return []
        written = raw[len(_HEAD) :].splitlines()
        lines = [line for one in written if (line := _good(one))]
        if damaged := len(written) - len(lines):
            log.warning("%s: %d lines are damaged, and left out", self._path, damaged)
        return lines

    def start(self) -> None:
        """Begin to write, with all that counts by now."""
        self._thread.start()

    def add(self, line: bytes) -> None:
        """
        Have *line*, without an end of line in it, written soon.

        One that finds the queue full is in `everything`, which is written then.
        """
        if self._lines.qsize() >= _MOST_WAITING:
            self._missed = True
        elif not self._is_off:
            self._lines.put(line)

    def close(self) -> None:
        """Write what is left, and end the thread; wait some seconds at most."""
        self._lines.put(None)
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            self._begin()
            while (line := self._lines.get()) is not None:
                lines, ends = self._those_that_follow(line)
                self._append(lines)
                if ends:
                    return
        except OSError as error:
            log.warning("%s is not written: %s", self._path, reason(error))
        finally:
            self._is_off = True

    def _those_that_follow(self, line: bytes) -> tuple[list[bytes], bool]:
        """Return *line* and all that wait behind it, and whether the end does."""
        lines = [line]
        while True:
            try:
                more = self._lines.get_nowait()
            except Empty:
                return lines, False
            if more is None:
                return lines, True
            lines.append(more)

    def _begin(self) -> None:
        """Write all that counts anew: what is gone by now, or was cut, goes."""
        self._missed = False  # before it is asked: what is missed from here on counts
        lines = b"".join(map(_summed, self._everything()))
        write_file(self._path, _HEAD, lines)
        self._size = len(_HEAD) + len(lines)

    def _append(self, lines: Iterable[bytes]) -> None:
        raw = b"".join(map(_summed, lines))
        if self._missed or self._size + len(raw) > self._limit_bytes:
            self._begin()
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags)
        with os.fdopen(descriptor, "ab") as file:
            file.write(raw)
        self._size += len(raw)


def _summed(line: bytes) -> bytes:
    return b"%s %s\n" % (_sum(line), line)


def _good(line: bytes) -> bytes:
    """Return what *line* says; nothing if it is not as it was written."""
    said = line[_SUM_CHARS + 1 :]
    return said if line[:_SUM_CHARS] == _sum(said) and said else b""


def _sum(line: bytes) -> bytes:
    return blake2b(line, digest_size=_SUM_CHARS // 2).hexdigest().encode()
