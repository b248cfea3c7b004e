"""
Kept prefixes on disk, so that a restarted server needn't read them again.

Knows one folder of its own and how much may be in it; nothing of chats. What it can't
read is a miss, what it can't write turns it off: never an error to anybody's request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path

from ...files import SPARE, UnsafeFile, make_folder, open_own, reason, write_file
from .prefix_file import (
    FORMAT,
    Damaged,
    Facts,
    Head,
    Kind,
    read_head,
    read_snapshot,
    render,
)
from .prefix_index import Chain, Found, Index, count
from .snapshot import Snapshot

LEAST_TOKENS = 256  # fewer are soon read again
_WORTH = frozenset({"system", "prompt", "answer"})
_SUFFIX = ".prefix"
_ABANDONED_S = 3600.0  # what is still being written after so long never gets whole
# A prompt is followed by its answer, which serves in its place, and that by the next
# prompt: whoever writes at once writes everything two or three times.
_SETTLE_S = 20.0

log = logging.getLogger("ofa.engine.mlx")


@dataclass(frozen=True)
class DiskHeld:
    """What is on disk for this model, and what happened to it since the start."""

    files: int
    nbytes: int
    limit_bytes: int
    written: int
    loaded: int
    damaged: int
    evicted: int
    problem: str  # why the tier is off, or ""


@dataclass(eq=False)
class Stored:
    """A file that holds the caches of some tokens."""

    path: Path
    size: int
    head: Head

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.head.facts.owner

    @property
    def packed(self) -> bytes:
        """Its tokens."""
        return self.head.packed

    @property
    def trimmable(self) -> bool:
        """Whether it can be cut back."""
        return self.head.facts.trimmable


@dataclass(frozen=True)
class _Job:
    """A snapshot to be written, unless it has left memory by then."""

    packed: bytes
    owner: str
    kind: Kind
    saved_s: float
    # Weak, so that what waits for a slow disk does not count twice in memory.
    snapshot: weakref.ref[Snapshot]
    due: float


class PrefixDisk:
    """
    Snapshots as files in *folder*, of at most *limit_bytes* in all.

    *identity* names all that caches depend on beside tokens: the model, its tokenizer,
    versions. Files of another identity are never read, and go first.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        identity: str,
        *,
        settle_s: float = _SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._identity = identity
        self._mark = _digest(f"{FORMAT} {identity}".encode())[:16]
        self._settle_s = settle_s
        self._clock = clock
        self._changed = threading.Condition()  # and the lock of all that follows
        self._index: Index[Stored] = Index()
        self._stored: dict[Path, Stored] = {}
        self._jobs: dict[Path, _Job] = {}  # in the order in which they get due
        self._counts = dict.fromkeys(("written", "loaded", "damaged", "evicted"), 0)
        self._problem = ""
        self._closing = False
        self._writer: threading.Thread | None = None
        try:
            self._open()
        except OSError as error:
            self._turn_off(error)

    def find(self, chain: Chain, owner: str) -> Found[Stored]:
        """Return the file that serves the most of a prompt; any thread may ask."""
        with self._changed:
            return self._index.find(chain, owner)

    def load(self, stored: Stored) -> Snapshot | None:
        """Return what is in a file; None, and the file is gone, if it is damaged.

        To be called on the engine's thread.
        """
        try:
            with self._reading(stored.path) as (file, head):
                snapshot = read_snapshot(file, head)
        except (OSError, Damaged) as error:
            self._lose(stored.path, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(stored.path)  # when it was last of use
        with self._changed:
            self._counts["loaded"] += 1
        return snapshot

    def offer(
        self,
        snapshot: Snapshot,
        packed: bytes,
        *,
        owner: str,
        kind: Kind,
        saved_s: float,
    ) -> None:
        """Write *snapshot* later on, if it is worth it and not made needless before."""
        if kind not in _WORTH or count(packed) < LEAST_TOKENS:
            return
        path = self._path(owner, packed)
        due = self._clock() + self._settle_s
        job = _Job(packed, owner, kind, saved_s, weakref.ref(snapshot), due)
        with self._changed:
            if self._problem or self._closing or path in self._stored:
                return
            for other, waiting in tuple(self._jobs.items()):
                if waiting.kind != "system" and _continues(job, waiting):
                    del self._jobs[other]
            self._jobs.pop(path, None)  # its snapshot may have gone
            self._jobs[path] = job
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write_all, name="ofa-prefix-writer", daemon=True
                )
                self._writer.start()
            self._changed.notify_all()

    def held(self) -> DiskHeld:
        """Return what is there now, and the counts since the start."""
        with self._changed:
            return DiskHeld(
                files=len(self._stored),
                nbytes=sum(stored.size for stored in self._stored.values()),
                limit_bytes=self._limit_bytes,
                problem=self._problem,
                **self._counts,
            )

    def close(self, wait_s: float) -> None:
        """Write what still waits, for at most *wait_s*; nothing is taken after that."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._writer is not None:
            self._writer.join(wait_s)

    def _open(self) -> None:
        """Take the folder over, and index what its heads say."""
        make_folder(self._folder)
        found = self._folder.stat()
        if found.st_uid != os.geteuid():
            raise UnsafeFile(
                f"belongs to uid {found.st_uid}, not to uid {os.geteuid()}"
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            self._folder.chmod(0o700)
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(f"{self._mark}-") and path.suffix == _SUFFIX:
                self._take_in(path)
            elif path.name.startswith(".") and path.suffix == SPARE:
                _remove_abandoned(path)

    def _take_in(self, path: Path) -> None:
        try:
            with self._reading(path) as (file, head):
                stored = Stored(path, os.fstat(file.fileno()).st_size, head)
        except (OSError, Damaged) as error:
            self._lose(path, error)
            return
        self._stored[path] = stored
        self._index.add(stored)

    @contextlib.contextmanager
    def _reading(self, path: Path) -> Iterator[tuple[BufferedReader, Head]]:
        with open_own(path) as file:
            head = read_head(file, os.fstat(file.fileno()).st_size)
            if head.facts.identity != self._identity:
                raise Damaged("it is another model's")
            if path != self._path(head.facts.owner, head.packed):
                raise Damaged("it has another file's name")
            yield file, head

    def _path(self, owner: str, packed: bytes) -> Path:
        key = _digest(owner.encode() + b"\0" + packed)
        return self._folder / f"{self._mark}-{key}{_SUFFIX}"

    def _lose(self, path: Path, error: Exception) -> None:
        """Delete what is damaged, and say so; what is gone already was not damaged."""
        self._forget(path)
        if isinstance(error, FileNotFoundError):
            return
        why = reason(error) if isinstance(error, OSError) else str(error)
        log.warning("the kept prefix %s is of no use: %s", path.name, why)
        with self._changed:
            self._counts["damaged"] += 1
        with contextlib.suppress(OSError):  # a folder by its name, say
            path.unlink()

    def _forget(self, path: Path) -> None:
        with self._changed:
            stored = self._stored.pop(path, None)
            if stored is not None:
                self._index.discard(stored)

    def _turn_off(self, error: Exception) -> None:
        why = reason(error) if isinstance(error, OSError) else str(error)
        with self._changed:
            self._problem = self._problem or why
            self._jobs.clear()
            self._stored.clear()
            self._index = Index()
        log.warning("no prefixes are kept in %s any more: %s", self._folder, why)

    def _write_all(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                self._write(job)
        except Exception as error:  # noqa: BLE001 - a cache must not end a server
            self._turn_off(error)

    def _next_job(self) -> _Job | None:
        """Wait for a job to get due; return None when there will be none."""
        with self._changed:
            while True:
                first = next(iter(self._jobs), None)
                if first is None and self._closing:
                    return None
                wait_s = None
                if first is not None:
                    wait_s = self._jobs[first].due - self._clock()
                    if wait_s <= 0 or self._closing:
                        return self._jobs.pop(first)
                self._changed.wait(wait_s)

    def _write(self, job: _Job) -> None:
        snapshot = job.snapshot()
        if snapshot is None:
            return
        facts = Facts(
            identity=self._identity,
            owner=job.owner,
            kind=job.kind,
            saved_s=float(job.saved_s),
            trimmable=snapshot.trimmable,
            meta=snapshot.meta,
        )
        try:
            pieces = render(facts, job.packed, snapshot.arrays())
        except ValueError as error:
            log.info("a prefix is not written: %s", error)
            return
        size = sum(memoryview(piece).nbytes for piece in pieces)
        if size > self._limit_bytes:
            return
        path = self._path(job.owner, job.packed)
        needless = self._needless(job)
        self._make_room(size, needless)
        write_file(path, *pieces)
        self._take_in(path)
        for older in needless:
            self._remove(older)
        with self._changed:
            self._counts["written"] += 1

    def _needless(self, job: _Job) -> frozenset[Path]:
        """Return the files that *job* serves in the place of."""
        with self._changed:
            older = self._index.beginnings(Chain(job.packed), job.owner)
        return frozenset(
            stored.path for stored in older if stored.head.facts.kind != "system"
        )

    def _make_room(self, size: int, needless: Iterable[Path]) -> None:
        """Delete files until *size* more fit: others' models', *needless*, oldest."""
        files = []
        for path, found in self._regular_files():
            own = path.name.startswith(f"{self._mark}-")
            rank = (own, path not in needless, found.st_mtime)
            files.append((rank, found.st_size, path))
        left = sum(used for _, used, _ in files)
        for _, used, path in sorted(files):
            if left + size <= self._limit_bytes:
                return
            self._remove(path)
            left -= used
            with self._changed:
                self._counts["evicted"] += path not in needless

    def _regular_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another server's work
                found = path.lstat()
                if stat.S_ISREG(found.st_mode):
                    yield path, found

    def _remove(self, path: Path) -> None:
        self._forget(path)
        path.unlink(missing_ok=True)


def _continues(job: _Job, other: _Job) -> bool:
    return (
        job.owner == other.owner
        and len(job.packed) > len(other.packed)
        and job.packed.startswith(other.packed)
    )


def _remove_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime > _ABANDONED_S:
            path.unlink()


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
