"""Three hundred ways to spoil an index on disk, the same ones in every run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ofa.rag.arrays import pack
from ofa.rag.generation import CURRENT, current_folder

FILES = (
    "manifest.json",
    "passages.jsonl",
    "vectors.f16.npy",
    "lexical/words.json",
    "lexical/weights.npy",
    "lexical/rows.npy",
    "lexical/starts.npy",
)
ARRAYS = FILES[2:3] + FILES[4:]


@dataclass(frozen=True)
class Site:
    """A shelf of which *name* is about to be spoilt; *at* is its generation."""

    shelf: Path
    name: str
    rng: random.Random

    @property
    def folder(self) -> Path:
        """The collection's folder."""
        return self.shelf / self.name

    @property
    def at(self) -> Path:
        """The generation's folder."""
        found = current_folder(self.folder)
        assert found is not None
        return found

    @property
    def pointer(self) -> Path:
        """The file that says which generation counts."""
        return self.folder / CURRENT

    def other(self) -> Path:
        """Return another collection's generation."""
        names = sorted(p.name for p in self.shelf.iterdir() if p.name != self.name)
        found = current_folder(self.shelf / self.rng.choice(names))
        assert found is not None
        return found


Damage = Callable[[Site], object]


# --- files that are not what was written --------------------------------------------


def files(site: Site) -> list[Path]:
    """Return the generation's files and the pointer."""
    return [*(site.at / name for name in FILES), site.pointer]


def cut(site: Site) -> None:
    """End a file anywhere."""
    path = site.rng.choice(files(site))
    content = path.read_bytes()
    path.write_bytes(content[: site.rng.randrange(len(content))])


def flip(name: str) -> Damage:
    """Turn one to three bits of a file around."""

    def deed(site: Site) -> None:
        path = site.pointer if name == CURRENT else site.at / name
        content = bytearray(path.read_bytes())
        for _ in range(site.rng.randint(1, 3)):
            content[site.rng.randrange(len(content))] ^= 1 << site.rng.randrange(8)
        path.write_bytes(content)

    return deed


def blot(site: Site) -> None:
    """Fill a stretch of a file with zeros, as a lost block reads."""
    path = site.rng.choice(files(site))
    content = bytearray(path.read_bytes())
    start = site.rng.randrange(len(content))
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content)


def grow(site: Site) -> None:
    """Write something behind a file's end."""
    path = site.rng.choice(files(site))
    path.write_bytes(path.read_bytes() + site.rng.randbytes(site.rng.randint(1, 99)))


def swap(site: Site) -> None:
    """Put another collection's file in the place of this one's."""
    name = site.rng.choice(FILES)
    shutil.copy(site.other() / name, site.at / name)


def whole_swap(site: Site) -> None:
    """Put another collection's generation in the place of this one's."""
    at, other = site.at, site.other()
    shutil.rmtree(at)
    shutil.copytree(other, at)


def instead(make: Callable[[Path], object]) -> Callable[[str], Damage]:
    """Return damages that put what *make* makes in a file's place."""

    def of(name: str) -> Damage:
        def deed(site: Site) -> None:
            path = site.pointer if name == CURRENT else site.at / name
            path.unlink()
            make(path)

        return deed

    return of


def locked(path: Path) -> None:
    """Make a file that nobody but root can read."""
    path.touch(mode=0o000)


def endless(path: Path) -> None:
    """Make a file of a terabyte that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


PUT = {
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a FIFO": os.mkfifo,
    "a locked file": locked,
    "an endless file": endless,
}


def pointing(content: bytes) -> Damage:
    """Let the pointer say something else."""
    return lambda site: site.pointer.write_bytes(content)


POINTERS = (
    b"gen-20200101T000000Z-abcdef\n",
    b"../other/gen-1\n",
    b"/etc/passwd\n",
    b"gen-\xff\xfe\n",
    b"gen-" + b"a" * 300,
    b"\0" * 28,
    b"\n",
    b"NONE\n",
    "gen-\u00e9\n".encode(),
    b"gen-20200101T000000Z-abcdef\0\n",
)


def odd_names(site: Site) -> None:
    """Strew files whose names are not UTF-8 over the shelf."""
    for folder in (site.at, site.at / "lexical", site.folder):
        (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.md"))).write_bytes(b"x")
    stray = os.fsencode(site.shelf) + b"/\xe9tudes"
    os.mkdir(stray)  # noqa: PTH102 - a name of bytes
    Path(os.fsdecode(stray), CURRENT).write_bytes(b"gen-1\n")


# --- files whose checksums are right, as a bad writer or a stranger would have it -----


def sealed(change: Callable[[Site, dict[str, bytes], dict], object]) -> Damage:
    """Let *change* alter files and manifest, then make all sums right again."""

    def deed(site: Site) -> None:
        at = site.at
        parts = {name: (at / name).read_bytes() for name in FILES[1:]}
        about = json.loads((at / FILES[0]).read_bytes())["manifest"]
        change(site, parts, about)
        if isinstance(about.get("files"), dict) and about["files"]:
            sums = {n: hashlib.sha256(part).hexdigest() for n, part in parts.items()}
            about["files"] = sums
        for name, part in parts.items():
            (at / name).write_bytes(part)
        told = json.dumps(about, sort_keys=True).encode()
        seal = {"manifest": about, "sha256": hashlib.sha256(told).hexdigest()}
        (at / FILES[0]).write_text(json.dumps(seal))

    return deed


def said(key: str, value: object) -> Damage:
    """Let the manifest say *value* of *key*."""
    return sealed(lambda site, parts, about: about.update({key: value}))


def array(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """Let an array hold other numbers."""

    def change(site: Site, parts: dict[str, bytes], about: dict) -> None:
        kind = {"vectors": "f2", "weights": "f4", "rows": "i4", "starts": "i8"}
        stem = name.rpartition("/")[2].partition(".")[0]
        start = parts[name].index(b"\n") + 1
        numbers = np.frombuffer(parts[name][start:], kind[stem]).copy()
        parts[name] = pack(make(numbers))

    return sealed(change)


def claiming(name: str, shape: str) -> Damage:
    """Let an array's header claim another *shape* for the same few bytes."""

    def change(site: Site, parts: dict[str, bytes], about: dict) -> None:
        content = parts[name]
        begin = content.index(b"'shape': (") + len(b"'shape': (")
        body = content[content.index(b"\n") :]
        head = content[10:begin] + shape.encode() + b"), }"
        parts[name] = content[:8] + len(head + b"\n").to_bytes(2, "little") + head
        parts[name] += body

    return sealed(change)


CLAIMS = ("1000000000000,", "99999999999999999999,", "-1,", "(" * 2000, "1, " * 40, "")
CLAIMS_2 = ("1000000000, 64", "4611686018427387904, 4", "-1, 64", "0, 64")


def shaken(site: Site, parts: dict[str, bytes], about: dict) -> None:
    """Turn bits of anything but the passages around, and seal it."""
    name = site.rng.choice([name for name in parts if name != "passages.jsonl"])
    content = bytearray(parts[name])
    for _ in range(site.rng.randint(1, 4)):
        content[site.rng.randrange(len(content))] ^= 1 << site.rng.randrange(8)
    parts[name] = bytes(content)


def lines(change: Callable[[list[dict]], object]) -> Damage:
    """Let the passages be other ones; their texts stay, or they are none."""

    def deed(site: Site, parts: dict[str, bytes], about: dict) -> None:
        kept = [json.loads(line) for line in parts["passages.jsonl"].splitlines()]
        change(kept)
        told = "".join(f"{json.dumps(line)}\n" for line in kept)
        parts["passages.jsonl"] = told.encode()

    return sealed(deed)


def raw_lines(content: bytes) -> Damage:
    """Let the passages' file hold *content*."""

    def deed(site: Site, parts: dict[str, bytes], about: dict) -> None:
        parts["passages.jsonl"] = content

    return sealed(deed)


def words(**changes: object) -> Damage:
    """Let the list of words say something else."""

    def deed(site: Site, parts: dict[str, bytes], about: dict) -> None:
        told = {**json.loads(parts["lexical/words.json"]), **changes}
        parts["lexical/words.json"] = json.dumps(told).encode()

    return sealed(deed)


def each(field: str, value: object) -> Damage:
    """Let *field* of every passage be *value*."""
    return lines(lambda kept: [line.update({field: value}) for line in kept])


def nan(numbers: np.ndarray) -> np.ndarray:
    """Return vectors of which one number is none."""
    numbers[7] = np.nan
    return numbers.reshape(-1, 64)


SEALED: tuple[Damage, ...] = (
    *(said("schema", value) for value in (0, 2, 99, "1", None, [], 1.5, -1)),
    *(said("dimension", value) for value in (0, 63, 65, -64, 10**30, "64", None)),
    *(said("passages", value) for value in (0, 1, 10**12, -6, "6", None)),
    *(said("collection", value) for value in ("other", "", None, 7, "../hpc")),
    *(said("files", value) for value in ({}, [], None, "x", 3)),
    *(said("sources", value) for value in (None, 3, [{}], [1], "x")),
    *(said("embedder", value) for value in (None, 3, [])),
    *(said("fingerprint", value) for value in (None, 3, {})),
    *(said("created", value) for value in (None, 3)),
    said("unheard_of", 1),
    *(claiming(name, shape) for name in ARRAYS[1:] for shape in CLAIMS),
    *(claiming(ARRAYS[0], shape) for shape in CLAIMS_2),
    array(ARRAYS[0], nan),
    array(ARRAYS[0], lambda v: np.full((len(v) // 64, 64), np.inf, v.dtype)),
    array(ARRAYS[0], lambda v: (v * 1000).reshape(-1, 64)),
    array(ARRAYS[0], lambda v: v),
    array(ARRAYS[0], lambda v: v.reshape(-1, 64).astype("f8")),
    array(ARRAYS[0], lambda v: v.reshape(64, -1)),
    array(ARRAYS[1], lambda v: v * np.nan),
    array(ARRAYS[1], lambda v: v[:-1]),
    array(ARRAYS[2], lambda v: v + 1000),
    array(ARRAYS[2], lambda v: v - 1000),
    array(ARRAYS[2], lambda v: v.astype("i8")),
    array(ARRAYS[3], lambda v: v[::-1]),
    array(ARRAYS[3], lambda v: v + 5),
    array(ARRAYS[3], lambda v: v * 3),
    array(ARRAYS[3], lambda v: v[:2]),
    array(ARRAYS[3], lambda v: v - 2**62),
    *(words(ids=value) for value in (None, 3, {}, [1, 2], ["a"] * 9999)),
    *(words(texts=value) for value in (None, "6", 0, 5, -1, 10**12, 6.0)),
    *(words(spellings=value) for value in (None, 3, [None], [[]])),
    *(each("text", value) for value in (None, 5, [], {})),
    *(each("path", value) for value in (None, 5, ["a"])),
    *(each("section", value) for value in (None, 5)),
    *(each("private", value) for value in (None, 5, "yes")),
    each("path", "\ud800/\udfff.md"),
    each("section", "\ud800 > \udcff"),
    each("path", "x" * 100_000),
    each("path", "a\r\nx-evil: 1\r\n\r\n"),
    each("collection", "other"),
    each("unheard_of", 1),
    lines(lambda kept: [line.pop("text") for line in kept]),
    lines(lambda kept: kept.pop()),
    lines(lambda kept: kept.append(kept[0])),
    *map(raw_lines, (b"", b"\n" * 6, b"null\n" * 6, b"[" * 100_000, b"\xff\n" * 6)),
)

KINDS: dict[str, tuple[Damage, ...]] = {
    "cut": (cut,) * 24,
    "flip": tuple(flip(name) for name in (*FILES, CURRENT)) * 3,
    "blot": (blot,) * 8,
    "grow": (grow,) * 4,
    "swap": (swap,) * 8,
    "whole swap": (whole_swap,) * 2,
    **{
        what: tuple(instead(make)(name) for name in (*FILES, CURRENT))
        for what, make in PUT.items()
    },
    "pointer": tuple(map(pointing, POINTERS)),
    "odd names": (odd_names,),
    "sealed": SEALED,
}
SHAKEN = 300 - sum(map(len, KINDS.values()))
KINDS["shaken and sealed"] = (sealed(shaken),) * SHAKEN


def damages(kind: str) -> Iterator[tuple[str, Damage, random.Random]]:
    """Yield each damage of a kind, with a name and chance of its own."""
    for number, damage in enumerate(KINDS[kind]):
        name = f"{kind} {number}"
        yield name, damage, random.Random(name)
