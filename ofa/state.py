"""
The state folder: what ofa remembers between starts, for its owner alone.

A folder that can't be written is no reason to refuse service: what isn't
remembered is kept in memory and said in `StateFolder.problems`.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from .files import UnsafeFile, make_folder, read_own, reason, trusted_owners, write_file

# What is kept is small (ports, lessons, manifests); the limit keeps a planted
# file from filling memory.
LIMIT_BYTES = 16 * 1024 * 1024
SCRATCHES = Path("/scratch")


def find_state_folder(env: Mapping[str, str], *, scratches: Path = SCRATCHES) -> Path:
    """
    Return where state belongs in this environment; nothing is made or checked.

    $OFA_SCRATCH, $USER's own in *scratches* where that is a folder,
    $XDG_STATE_HOME/ofa, ~/.local/state/ofa, and without a HOME one folder a user under
    the temporary one.
    """
    if chosen := env.get("OFA_SCRATCH"):
        return _absolute(chosen, env)
    user = env.get("USER", "")
    if user and "/" not in user and user not in (".", ".."):
        scratch = scratches / user
        if scratch.is_dir():
            return scratch
    # The XDG specification: a relative path here is to be ignored.
    if (base := env.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(base) / "ofa"
    if (home := env.get("HOME", "")).startswith("/"):
        return Path(home) / ".local/state/ofa"
    return Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"ofa-{os.getuid()}"


class StateFolder:
    """
    Small files by name, each 0600 and replaced whole; safe for threads.

    The folder is made 0700. One that exists and carries ofa's name is narrowed to
    0700; any other (your whole /scratch/$USER) keeps its mode.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._memory: dict[str, bytes] = {}
        self._problems: dict[str, str] = {}
        self._usable = self._open()

    def __repr__(self) -> str:
        return f"StateFolder({str(self.path)!r})"

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each thing that is not remembered, and why."""
        with self._lock:
            return tuple(self._problems.values())

    def path_of(self, name: str) -> Path:
        """Return where *name* is kept, for a reader that needs a path."""
        return self.path / _plain(name)

    def write(self, name: str, content: bytes) -> bool:
        """Remember *content* as *name*; False if only until this process ends."""
        target = self.path_of(name)
        with self._lock:
            if not self._usable:
                self._memory[name] = content
                return False
            try:
                write_file(target, content)
            except OSError as error:
                self._memory[name] = content
                self._problems[name] = f"{target} is not remembered: {reason(error)}"
                return False
            self._memory.pop(name, None)
            self._problems.pop(name, None)
            return True

    def read(self, name: str) -> bytes | None:
        """Return what was written as *name*; None if nothing, or nothing readable."""
        target = self.path_of(name)
        with self._lock:
            if name in self._memory or not self._usable:
                return self._memory.get(name)
            try:
                return read_own(target, limit_bytes=LIMIT_BYTES)[0]
            except FileNotFoundError:
                return None
            except OSError as error:
                self._problems[name] = f"{target} is not read: {reason(error)}"
                return None

    def remove(self, name: str) -> None:
        """Forget *name*, whether or not it is there."""
        target = self.path_of(name)
        with self._lock:
            self._memory.pop(name, None)
            if not self._usable:
                return
            try:
                target.unlink(missing_ok=True)
            except OSError as error:
                self._problems[name] = f"{target} is not removed: {reason(error)}"

    def folder(self, name: str) -> Path:
        """
        Return the sub-folder *name*, made 0700 where that is possible.

        Where it is not, a line is added to `problems` and writing there fails.
        """
        target = self.path_of(name)
        with self._lock:
            try:
                make_folder(target)
                _narrow(target)
            except OSError as error:
                self._problems[name] = f"{target} can't be used: {reason(error)}"
        return target

    def _open(self) -> bool:
        try:
            existed = self.path.is_dir()
            make_folder(self.path)
            _check_owner(self.path)
            if not existed or self.path.name in ("ofa", f"ofa-{os.getuid()}"):
                _narrow(self.path)
        except OSError as error:
            self._problems[""] = (
                f"{self.path} can't be used, so nothing is remembered: {reason(error)};"
                " set OFA_SCRATCH to a folder of your own"
            )
            return False
        return True


def _plain(name: str) -> str:
    """Return *name* if it can only be a file right in the folder."""
    if not name or "/" in name or "\0" in name or ".." in name or name == ".":
        raise ValueError(f"not a name for a state file: {name!r}")
    return name


def _absolute(chosen: str, env: Mapping[str, str]) -> Path:
    if chosen.startswith("~/") and env.get("HOME"):
        return Path(env["HOME"]) / chosen[2:]
    return Path(chosen).absolute()


def _check_owner(folder: Path) -> None:
    # In /tmp anybody could have made it, or a link of that name, before us.
    for owner in {folder.lstat().st_uid, folder.stat().st_uid}:
        if owner not in trusted_owners():
            raise UnsafeFile(f"it belongs to uid {owner}")


def _narrow(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
