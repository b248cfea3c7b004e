"""
A person's own folders, indexed for nobody else.

    <state>/private/layers.json          what was added, from where, when
    <state>/private/priv-<slug>/         its generations
    <state>/private/chroma/priv-<slug>/  chromadb's files of it alone

Knows layers and their names. Everything is 0700 and 0600; a forgotten layer leaves
no text behind, which is why each has a chromadb folder of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import ConfigError, OfaError
from ..files import make_folder, read_own, write_file
from .build import STORE, Built, Progress, Workshop, build
from .embed import Embedder
from .generation import retire
from .shelf import Shelf
from .sources import Collection, Place, one_folder

PREFIX = "priv-"
MAX_FILE_KB = 1024

_LAYERS = "layers.json"
_MAX_LAYERS_BYTES = 1 << 20


@dataclass(frozen=True)
class Layer:
    """One folder that its owner added."""

    name: str  # as given, or the folder's own
    collection: str
    folder: str
    added: str  # UTC, ISO 8601
    documents: int
    passages: int
    skipped: Mapping[str, int]  # files by reason


class PrivateLayers:
    """The layers kept in *folder*, ``<state>/private``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def layers(self) -> tuple[Layer, ...]:
        """Return what was added, by name; raises `OfaError` if that can't be read."""
        path = self.folder / _LAYERS
        try:
            rows = json.loads(read_own(path, limit_bytes=_MAX_LAYERS_BYTES)[0])
            layers = [Layer(**row) for row in rows]
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError) as exc:
            raise OfaError(
                f"{path}: not readable ({type(exc).__name__}); `ofa index "
                "forget-private all` clears what is there"
            ) from exc
        return tuple(sorted(layers, key=lambda layer: layer.name))

    def add(
        self, folder: Path, name: str, embedder: Embedder, progress: Progress
    ) -> tuple[Layer, Built]:
        """
        Index *folder* as a layer called *name*, or its own name if that is empty.

        The same folder again replaces what there was, and so does a name that is given
        again. Raises `ConfigError` for a folder that is none, and for a name in use.
        """
        root = folder.expanduser()
        if not root.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        root = root.resolve()
        called = name or root.name or "root"
        collection = PREFIX + _slug(called)
        before = self.layers()
        self._refuse_taken(before, root, collection, name)
        made = build(
            [_as_collection(collection, root)],
            self._workshop(collection, embedder, progress),
        )[0]
        layer = Layer(
            called,
            collection,
            str(root),
            datetime.now(UTC).isoformat(timespec="seconds"),
            made.documents,
            made.passages,
            dict(made.skipped),
        )
        if made.passages:
            for old in before:
                if old.folder == str(root) and old.collection != collection:
                    self._remove(old.collection)
            others = [at for at in before if at.collection != collection]
            self._write([*(at for at in others if at.folder != str(root)), layer])
        return layer, made

    def forget(self, name: str) -> Layer:
        """Remove the layer called *name*; a running server drops it in seconds."""
        for layer in self.layers():
            if name in (layer.name, layer.collection):
                self._remove(layer.collection)
                self._write([at for at in self.layers() if at != layer])
                return layer
        names = ", ".join(layer.name for layer in self.layers()) or "none"
        raise ConfigError(f"no private layer {name!r}; there are: {names}")

    def forget_all(self) -> int:
        """Remove all, unreadable ones included; return how many there were."""
        found = [path.name for path in self.folder.glob(f"{PREFIX}*") if path.is_dir()]
        there = set(Shelf(self.folder).collections())
        for name in found:
            self._remove(name)
        shutil.rmtree(self.folder / STORE, ignore_errors=True)
        (self.folder / _LAYERS).unlink(missing_ok=True)
        return len(there)

    def _remove(self, collection: str) -> None:
        retire(self.folder / collection)
        shutil.rmtree(self.folder / STORE / collection, ignore_errors=True)

    def _workshop(
        self, collection: str, embedder: Embedder, progress: Progress
    ) -> Workshop:
        make_folder(self.folder)
        self.folder.chmod(0o700)
        return Workshop(
            store=self.folder / STORE / collection,
            shelf=self.folder,
            embedder=embedder,
            progress=progress,
            private=True,
        )

    @staticmethod
    def _refuse_taken(
        layers: Iterable[Layer], root: Path, collection: str, name: str
    ) -> None:
        for layer in layers:
            same = layer.folder == str(root) or (name and layer.name == name)
            if layer.collection == collection and not same:
                raise ConfigError(
                    f"there is a private layer {layer.name!r} already, of "
                    f"{layer.folder}; give this one another --name"
                )

    def _write(self, layers: list[Layer]) -> None:
        rows: list[dict[str, Any]] = [asdict(layer) for layer in layers]
        write_file(self.folder / _LAYERS, json.dumps(rows, indent=1).encode())


def _as_collection(collection: str, root: Path) -> Collection:
    made = one_folder(collection, root)
    place = made.places[0]
    own = Place(place.label, place.roots, max_file_kb=MAX_FILE_KB, under=root.name)
    return Collection(collection, made.title, (own,))


def _slug(name: str) -> str:
    """Return what of *name* can stand in a collection's name; never empty."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:40]
    if slug:
        return slug
    # Of a script that has no Latin letters: its code points tell it from others.
    return "x" + "".join(f"{ord(letter):x}" for letter in name[:8])
