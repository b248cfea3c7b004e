"""Three hundred damaged indexes: each answers truly, or is off and says why."""

import json
import shutil
import time
import tracemalloc

import numpy as np
import pytest

from ofa.modes import SEED_MODES
from ofa.rag.arrays import pack, unpack
from ofa.rag.generation import current_folder
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.retrieve import Retriever, Settings
from ofa.rag.shelf import LOOK_EVERY_S, Shelf

from ..running import serving
from . import damage, shelves
from .wrapped import chat, user

FOAM = """
cavity/system/controlDict | controlDict
`application icoFoam; endTime 0.5; deltaT 0.005;` runs the lid-driven cavity.
---
cavity/system/fvSchemes | fvSchemes
`div(phi,U) Gauss linear;` is the convection scheme of the cavity.
---
motor/system/snappyHexMeshDict | snappyHexMeshDict
`castellatedMesh true; snap true; addLayers false;` meshes the motor's surface.
"""
ASKED = {
    "hpc": "How do I ask for GPUs with sbatch --gpus?",
    "reframe": "Which decorator does a ReFrame check have?",
    "openfoam": "Which convection scheme has the cavity in fvSchemes?",
}
TEXTS = {"hpc": shelves.HPC, "reframe": shelves.REFRAME, "openfoam": FOAM}
MODES = {mode.name: mode for mode in SEED_MODES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Give a shelf of three sound collections."""
    shelf = tmp_path_factory.mktemp("whole")
    for name, text in TEXTS.items():
        shelves.put(shelf, shelves.parsed(name, text), shelves.Letters())
    return shelf


@pytest.fixture(scope="module")
def truth(whole):
    """Give the texts of each sound collection, and what each question finds in it."""
    shelf, retriever = opened(whole)
    texts = {n: {p.text for p in shelf.generation(n).passages} for n in TEXTS}
    return texts, {name: found(retriever, name) for name in TEXTS}


def opened(folder):
    """Return a shelf over *folder* and what searches it."""
    shelf = Shelf(folder)
    settings = Settings(floor=None, deadline_s=20)
    return shelf, Retriever(shelf, shelves.Letters, settings=settings)


def found(retriever, *names):
    """Return the passages that are found in the collections *names*."""
    return [hit.passage for hit in retriever.find(names, ASKED[names[0]]).hits]


def looked_up(retriever, mode):
    """Return what a chat of *mode* becomes, and what is said of it."""
    lookup = Lookup(
        retriever,
        Memory(1 << 20),
        count_tokens=len,
        budget=lambda mode: Budget(10_000, 6),
    )
    return next(lookup.augment(chat(user(ASKED[mode])), MODES[mode], "k", 10_000))[:2]


def spoilt(whole, folder, what):
    """Copy the shelf and do one damage to one of its collections; return which."""
    name, deed, rng = what
    shutil.copytree(whole, folder)
    hit = rng.choice(sorted(TEXTS))
    deed(damage.Site(folder, hit, rng))
    return name, hit


@pytest.mark.parametrize("kind", damage.KINDS)
def test_a_damaged_index_answers_truly_or_says_why_not(kind, whole, truth, tmp_path):
    """No crash, no wrong text, no search that fails; other collections as ever."""
    texts, right = truth

    for number, what in enumerate(damage.damages(kind)):
        folder = tmp_path / str(number)
        name, hit = spoilt(whole, folder, what)
        shelf, retriever = opened(folder)

        for collection in TEXTS:
            got = found(retriever, collection)
            assert {passage.text for passage in got} <= texts[collection], name
            if collection != hit:
                assert got == right[collection], name
            elif not got:
                assert str(folder / hit) in shelf.problems[hit], name
        together = found(retriever, *TEXTS)
        others = [p for p in found(retriever, *TEXTS) if p.collection != hit]
        assert {p.text for p in together} <= set().union(*texts.values()), name
        assert others, name
        for mode in ("hpc", "reframe", "openfoam"):
            augmented, told = looked_up(retriever, mode)
            assert told.isascii() and told.isprintable(), name
            assert augmented.messages[-1].text.endswith(ASKED[mode]), name
        assert set(retriever.counts) <= {"hit", "none"}, name
        assert set(shelf.problems) <= {hit}, name


def test_there_are_three_hundred_of_them():
    """The catalogue is as long as it says, and mostly refused, not mostly harmless."""
    assert sum(map(len, damage.KINDS.values())) == 300
    assert len(damage.KINDS["shaken and sealed"]) >= 20


@pytest.mark.parametrize("shape", [(10**12,), (10**11, 8), (2**62, 4), (0,), (3,)])
def test_room_is_made_for_what_is_there(shape):
    """A header's claim of terabytes costs nothing before it is refused."""
    sound = pack(np.ones(24, dtype=np.float32))
    claim = sound.replace(b"(24,)", str(shape).encode())
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="array"):
            unpack(claim, "float32", len(shape))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


@pytest.mark.parametrize(
    ("kind", "dimensions"), [("float32", 2), ("float64", 1), ("int32", 1)]
)
def test_an_array_of_another_kind_is_refused(kind, dimensions):
    """Numbers are never taken for numbers of another sort or shape."""
    with pytest.raises(ValueError, match="array"):
        unpack(pack(np.ones(4, dtype=np.float32)), kind, dimensions)


def ask(client, mode, more=""):
    """Ask a mode's question; return what the engine saw and what was said of it."""
    message = {"role": "user", "content": ASKED[mode] + more}
    body = {"model": f"ofa-{mode}", "messages": [message]}
    status, headers, answer = client.chat(body)
    assert status == 200
    said = json.loads(answer)["choices"][0]["message"]["content"]
    return said, headers["x-ofa-rag"]


def test_a_server_goes_on_and_names_what_is_damaged(whole, tmp_path):
    """One off from the start, one damaged later, one sound: all of it over HTTP."""
    rag = tmp_path / "state" / "rag"
    rag.parent.mkdir(mode=0o700)
    shutil.copytree(whole, rag)
    (current_folder(rag / "reframe") / "passages.jsonl").write_bytes(b"{}")
    script = [[{"echo": "last_user"}]]
    with serving(
        tmp_path,
        script,
        rag__enabled=True,
        rag__embedder=str(tmp_path / "none"),
    ) as client:
        said, told = ask(client, "openfoam")
        assert "div(phi,U) Gauss linear" in said and told.startswith("hit")
        shelves.put(rag, shelves.parsed("openfoam", FOAM), shelves.Letters())
        (current_folder(rag / "openfoam") / "manifest.json").write_bytes(b"")
        time.sleep(LOOK_EVERY_S)  # the server's clock is the real one

        again, _ = ask(client, "openfoam", " Tell me.")
        assert "div(phi,U) Gauss linear" in again
        said, told = ask(client, "reframe")
        assert "simple_test" not in said and "sbatch" not in told
        said, told = ask(client, "hpc")
        assert "#SBATCH --gpus=2" in said and told.startswith("hit")
        status, _, ready = client.ask("GET", "/readyz")

    assert status == 200
    named = json.loads(ready)["retrieval"]
    assert "reframe" in named and "openfoam" in named and "ofa index build" in named
    assert "hpc:" not in named
