"""
Files that only their owner can read: making, replacing and checking them.

Knows the traps of folders shared with strangers (links planted ahead, FIFOs,
folders swapped under us); knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

# A stale NFS handle or a passing I/O error is gone at the next open; twice is
# what an interactive start can afford.
_PASSING = frozenset({errno.ESTALE, errno.EIO})
_TRIES = 3
SPARE = ".new"  # what a file is called until it is whole
# What opening a link or a socket says, the last one on macOS.
_NO_FILES = frozenset({errno.ELOOP, errno.ENXIO, errno.EOPNOTSUPP})
_MAX_LINKS = 40  # Linux's own limit on links in one path

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnsafeFile(OSError):
    """The file is not what its owner could have made; its text says what it is."""


def reason(error: OSError) -> str:
    """Return what went wrong in a few words, without the path."""
    return error.strerror or str(error)


def make_folder(path: Path) -> None:
    """Make *path* and its missing parents, each 0700; an existing one is left."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):  # another start was faster
                folder.mkdir(mode=0o700)
                folder.chmod(0o700)  # an odd umask may have taken our own bits
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def write_file(path: Path, *pieces: bytes | memoryview) -> None:
    """Replace *path* by rename, 0600 from its first byte: never half of it is seen."""
    spare = _write_spare(path, pieces)
    try:
        spare.replace(path)
    except OSError:
        _remove(spare)
        raise
    _sync_folder(path.parent)


def make_file(path: Path, content: bytes) -> bool:
    """
    Make *path* with *content*, 0600 from its first byte; return False if it was there.

    Of any number of racing callers, on any number of nodes, one gets True: link()
    is atomic on NFS as well, where O_EXCL was not always.
    """
    spare = _write_spare(path, (content,))
    try:
        os.link(spare, path, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        _remove(spare)
    _sync_folder(path.parent)
    return True


def finish_making(path: Path) -> None:
    """Remove the second name that a `make_file` cut short left beside *path*."""
    made = path.lstat()
    for spare in path.parent.iterdir():
        if spare.name.startswith(f".{path.name}.") and spare.suffix == SPARE:
            with contextlib.suppress(FileNotFoundError):  # its maker was faster
                if os.path.samestat(spare.lstat(), made):
                    spare.unlink()


def read_own(path: Path, *, limit_bytes: int) -> tuple[bytes, os.stat_result]:
    """
    Return the bytes of *path* and what fstat said of the very file they came from.

    Never follows a link at the end of *path* and never waits, on a FIFO say. Raises
    `UnsafeFile` unless it is a regular file of this user within *limit_bytes*.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read_own(path, limit_bytes)
        except OSError as error:
            if error.errno not in _PASSING:
                raise
    return _read_own(path, limit_bytes)


@contextlib.contextmanager
def open_own(path: Path) -> Iterator[BufferedReader]:
    """Open *path* on the terms of `read_own`, for what is read part by part."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in _NO_FILES:
            raise UnsafeFile(f"is {_kind(path.lstat())}, not a regular file") from None
        raise
    try:
        _check_own(os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            yield opened
    finally:
        os.close(descriptor)


def weakness(path: Path) -> str:
    """
    Return why others could replace something on the way to *path*, or "".

    Every folder up to / is looked at, and every link's way too: one that others can
    write to is enough to swap all that is below it.
    """
    owners = trusted_owners()
    for folder in _walk(path):
        found = folder.lstat()
        if found.st_uid not in owners:
            return f"{folder} belongs to uid {found.st_uid}, who could replace it"
        open_to_all = found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode)
        if open_to_all and not found.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(found.st_mode)
            return (
                f"others can write to {folder} (mode {mode:04o}): chmod go-w {folder}"
            )
    return ""


def trusted_owners() -> frozenset[int]:
    """Return the uids whose folders are safe to pass through: ours and root's."""
    try:
        uid_map = Path("/proc/self/uid_map").read_text()
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):  # macOS, or a sandbox without /proc
        return frozenset({0, os.geteuid()})
    return frozenset({os.geteuid(), *roots_as_seen(uid_map, overflow)})


def roots_as_seen(uid_map: str, overflow: int) -> tuple[int, ...]:
    """
    Return the uids under which the machine's root shows here.

    Apptainer and podman without setuid map their user alone: / and /scratch then seem
    to belong to the overflow uid ("nobody"), which is no reason to distrust them.
    """
    mapped = (line.split()[1] for line in uid_map.splitlines() if line.strip())
    return (0,) if "0" in mapped else (0, overflow)


def _write_spare(path: Path, pieces: Iterable[bytes | memoryview]) -> Path:
    spare = path.with_name(f".{path.name}.{secrets.token_hex(8)}{SPARE}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(spare, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            # Whatever the umask and the folder's default ACL made of it.
            os.fchmod(opened.fileno(), 0o600)
            for piece in pieces:
                opened.write(piece)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError:
        _remove(spare)
        raise
    return spare


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sync_folder(folder: Path) -> None:
    # Some network file systems refuse fsync on a folder; the rename stands anyway.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read_own(path: Path, limit_bytes: int) -> tuple[bytes, os.stat_result]:
    with open_own(path) as opened:
        found = os.fstat(opened.fileno())
        content = opened.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise UnsafeFile(f"is larger than {limit_bytes} bytes")
    return content, found


def _check_own(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(f"is {_kind(found)}, not a regular file")
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"belongs to uid {found.st_uid}, not to uid {os.geteuid()}")


def _kind(found: os.stat_result) -> str:
    return next((name for is_it, name in _KINDS if is_it(found.st_mode)), "special")


def _walk(path: Path) -> Iterator[Path]:
    """Yield every folder and link that the kernel passes on its way to *path*."""
    at = Path("/")
    todo = _steps(path.absolute().parts[1:])
    links = 0
    yield at
    while todo:
        part = todo.pop()
        if part == "..":
            at = at.parent
            continue
        step = at / part
        yield step
        if not step.is_symlink():
            at = step
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        if target.is_absolute():
            at = Path("/")
        todo += _steps(part for part in target.parts if part != "/")


def _steps(parts: Iterable[str]) -> list[str]:
    return list(reversed(tuple(parts)))
