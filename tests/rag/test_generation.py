"""Generations: what is written comes back, and damage never passes for text."""

import hashlib
import json
import math
import os
import random
import shutil
import stat
from contextlib import contextmanager

import numpy as np
import pytest

from ofa.rag.chance import Chance
from ofa.rag.generation import (
    CURRENT,
    SCHEMA,
    IndexDamaged,
    Manifest,
    SourceNote,
    current_folder,
    is_retired,
    open_generation,
    retire,
    write_generation,
)
from ofa.rag.glossary import NONE, Glossary
from ofa.rag.lexical import Lexical
from ofa.rag.passage import Passage

TEXTS = [f"passage {n} about solver{n % 7} and turbulence\u2028{n}" for n in range(40)]


def listing(folder):
    """Return every file below *folder* with its content's sum and its times."""
    return {
        path.relative_to(folder).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }


def opened(folder):
    """Return the current generation of a collection's folder."""
    at = current_folder(folder)
    assert at is not None
    return open_generation(at)


def test_what_is_written_comes_back(tmp_path):
    """Passages, vectors, words, glossary and the manifest survive the disk."""
    folder = tmp_path / "hpc"
    passages = [
        Passage("hpc", "a.md", "A", "x > y", "first\ntext", pinned=True),
        Passage("hpc", "b.md", "B", "", "line\u2028separator \U0001f600", private=True),
    ]
    vectors = np.eye(2, 3, dtype=np.float32)
    about = Manifest(
        collection="hpc",
        created="2026-01-31T12:00:00+00:00",
        embedder="minilm",
        fingerprint="f",
        dimension=3,
        chunker="1",
        chromadb="1.5.9",
        passages=2,
        content="c",
        sources=(SourceNote("notes", 2, "s"),),
        chance=Chance(mean=0.21, spread=0.043),
    )
    rules = Glossary.parse("stirred tank => MRF  # \u2028\U0001f600\r\nfan, blower\n")

    name = write_generation(
        folder,
        about,
        passages=passages,
        vectors=vectors,
        lexical=Lexical.build(p.text for p in passages),
        glossary=rules,
    )
    found = opened(folder)

    assert found.name == name
    assert found.collection == "hpc"
    assert list(found.passages) == passages
    np.testing.assert_array_equal(found.vectors, vectors)
    assert found.vectors.dtype == np.float32
    assert int(found.lexical.scores("separator").argmax()) == 1
    assert found.glossary == rules
    assert found.glossary.added("two stirred tanks") == ("MRF",)
    assert found.manifest.sources == about.sources
    assert found.manifest.chance == about.chance
    assert found.manifest.schema == SCHEMA


def test_without_a_glossary_none_is_written(tmp_path, export):
    """A collection that has none has no file of it, and adds nothing."""
    export(tmp_path / "hpc", TEXTS)

    assert opened(tmp_path / "hpc").glossary == NONE
    assert list(tmp_path.rglob("glossary.txt")) == []


def test_half_precision_keeps_the_ranking(tmp_path, export):
    """Vectors come back within a thousandth of a cosine."""
    export(tmp_path / "hpc", TEXTS)
    found = opened(tmp_path / "hpc")

    lengths = np.linalg.norm(found.vectors, axis=1)

    np.testing.assert_allclose(lengths, 1, atol=1e-3)


def test_everything_is_the_owners_alone(tmp_path, export):
    """Folders are 0700 and files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        export(tmp_path / "rag" / "hpc", TEXTS)
    finally:
        os.umask(before)

    for path in (tmp_path / "rag").rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_the_one_before_is_kept_and_older_ones_go(tmp_path, export):
    """A process that is reading the previous generation still can."""
    folder = tmp_path / "hpc"
    names = [export(folder, TEXTS[: n + 1]) for n in range(4)]

    left = {path.name for path in folder.iterdir()}

    assert left == {CURRENT, *names[-2:]}
    assert opened(folder).name == names[-1]


def test_leavings_of_a_dead_builder_are_swept(tmp_path, export):
    """A temporary folder that a killed builder left is gone after the next build."""
    folder = tmp_path / "hpc"
    (folder / "tmp-dead").mkdir(parents=True)
    (folder / "tmp-dead" / "vectors.f16.npy").write_bytes(b"half")

    export(folder, TEXTS)

    assert not (folder / "tmp-dead").exists()


@pytest.mark.parametrize(
    "changes", [{"passages": 3}, {"dimension": 9}], ids=["count", "dimension"]
)
def test_parts_that_disagree_are_refused(tmp_path, export, changes):
    """Numbers that do not fit are found when writing, or else when reading."""
    folder = tmp_path / "hpc"

    with pytest.raises((ValueError, IndexDamaged)):
        export(folder, TEXTS, **changes)
        opened(folder)


def test_a_vector_that_is_no_number_is_refused(tmp_path):
    """NaN would make every comparison false: it is never written."""
    about = Manifest("hpc", "", "", "", 2, "", "", 1)

    with pytest.raises(ValueError, match="number"):
        write_generation(
            tmp_path / "hpc",
            about,
            passages=[Passage("hpc", "a", "", "", "t")],
            vectors=np.array([[np.nan, 1]], dtype=np.float32),
            lexical=Lexical.build(["t"]),
        )


def test_R050_reading_writes_nothing(tmp_path, export):
    """A read-only folder is served, and nothing in or beside it changes."""
    folder = tmp_path / "hpc"
    export(folder, TEXTS)
    for path in [*tmp_path.rglob("*"), tmp_path]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = listing(tmp_path)

    try:
        found = opened(folder)
        found.lexical.scores("turbulence")
        found.lexical.nearest("turbulnce")
        after = listing(tmp_path)
    finally:
        for path in [tmp_path, *tmp_path.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o700)

    assert len(found.passages) == len(TEXTS)
    assert before == after


def test_another_version_is_told_apart_from_damage(tmp_path, export):
    """A folder that another version wrote says so, and how to go on."""
    folder = tmp_path / "hpc"
    export(folder, TEXTS, schema=SCHEMA + 1)

    with pytest.raises(
        IndexDamaged, match=rf"of version {SCHEMA + 1}.*ofa index build"
    ):
        opened(folder)


@contextmanager
def resealed(folder):
    """Give a generation's manifest to change, then seal what it says."""
    path = folder / "manifest.json"
    about = json.loads(path.read_bytes())["manifest"]
    yield about
    told = json.dumps(about, sort_keys=True).encode()
    seal = hashlib.sha256(told).hexdigest()
    path.write_text(json.dumps({"manifest": about, "sha256": seal}))


def damage(folder, rng):
    """Damage one file of a generation at random; return what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "cut", "gone", "zero", "empty", "more", "swap"])
    at = rng.randrange(len(content))
    if kind == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "zero":
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    elif kind == "empty":
        content.clear()
    elif kind == "more":
        content += rng.randbytes(7)
    elif kind == "swap":
        content = bytearray(rng.choice(files).read_bytes())
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    return f"{kind} {path.name} at {at}"


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_refused_or_harmless(tmp_path, export, seed):
    """Of 25 random damages each opens to the very same index or to a reason."""
    rng = random.Random(seed)
    rules = Glossary.parse("stirred tank => MRFProperties\nfan, blower\n" * 20)
    export(tmp_path / "whole" / "hpc", TEXTS, glossary=rules)
    whole = opened(tmp_path / "whole" / "hpc")
    refused = 0

    for number in range(25):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(current_folder(tmp_path / "whole" / "hpc"), copy)
        done = damage(copy, rng)
        try:
            found = open_generation(copy)
        except IndexDamaged as exc:
            refused += 1
            assert str(copy) in str(exc), done
            assert "ofa index build" in str(exc), done
            continue
        # Blanks in the manifest, or one file put in its own place: nothing is lost.
        assert list(found.passages) == list(whole.passages), done
        np.testing.assert_array_equal(found.vectors, whole.vectors)
        assert found.manifest == whole.manifest, done
        assert found.glossary == whole.glossary, done

    assert refused >= 20


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"manifest": null, "sha256": ""}',
        b'{"manifest": {"schema": "1"}, "sha256": ""}',
        b'{"manifest": {"schema": 1}, "sha256": ""}',
        b"[" * 200_000,
        b"\xff\xfe\x00",
        b"9" * 100_000,
    ],
    ids=range(10),
)
def test_any_manifest_is_survived(tmp_path, export, content):
    """A manifest of any shape is a reason, not a crash."""
    export(tmp_path / "hpc", TEXTS)
    at = current_folder(tmp_path / "hpc")
    (at / "manifest.json").write_bytes(content)

    with pytest.raises(IndexDamaged):
        open_generation(at)


def test_a_manifest_cannot_lead_elsewhere(tmp_path, export):
    """Names of files are taken below the folder only, whoever wrote the manifest."""
    export(tmp_path / "hpc", TEXTS)
    at = current_folder(tmp_path / "hpc")
    secret = tmp_path / "secret"
    secret.write_bytes(b"key")
    with resealed(at) as about:
        about["files"]["../../secret"] = hashlib.sha256(b"key").hexdigest()

    with pytest.raises(IndexDamaged):
        open_generation(at)


@pytest.mark.parametrize(
    "chance",
    [
        {"mean": math.nan, "spread": 0.05},
        {"mean": math.inf, "spread": 0.05},
        {"mean": 0.3, "spread": math.nan},
        {"mean": 0.3, "spread": 0},
        {"mean": 0.3, "spread": -0.05},
        {"mean": 10**400, "spread": 0.05},
        {"mean": 0.3, "spread": math.inf},
        {"mean": 0.3, "spread": 10**400},
        {"mean": "0.3", "spread": 0.05},
        {"mean": 0.3, "spread": "0.05"},
        {"mean": None, "spread": 0.05},
        {"mean": 0.3, "spread": 0.05, "median": 0.3},
        [0.3, 0.05],
        "0.3",
        None,
    ],
    ids=lambda chance: str(chance)[:40],
)
def test_a_chance_that_is_none_is_damage(tmp_path, export, chance):
    """Every question would pass it, or none, or each would fail."""
    export(tmp_path / "hpc", TEXTS)
    at = current_folder(tmp_path / "hpc")
    with resealed(at) as about:
        about["chance"] = chance

    with pytest.raises(IndexDamaged, match="ofa index build"):
        open_generation(at)


def test_a_manifest_without_a_chance_is_damage(tmp_path, export):
    """A scale that nobody measured is not made up."""
    export(tmp_path / "hpc", TEXTS)
    at = current_folder(tmp_path / "hpc")
    with resealed(at) as about:
        del about["chance"]

    with pytest.raises(IndexDamaged, match="ofa index build"):
        open_generation(at)


@pytest.mark.parametrize("seal", [False, True], ids=["changed", "changed and sealed"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"stirred tank",
        b"the => MRF",
        b"a => b => c",
        b"fan, \xfcbel",
        b"\x00" * 99,
    ],
    ids=["empty", "no rule", "small words", "two arrows", "Latin-1", "zeros"],
)
def test_a_damaged_glossary_is_damage(tmp_path, export, content, seal):
    """Whether it is not what was written, or what was written is no glossary."""
    export(tmp_path / "hpc", TEXTS, glossary=Glossary.parse("fan, blower"))
    at = current_folder(tmp_path / "hpc")
    (at / "glossary.txt").write_bytes(content)
    if seal:
        with resealed(at) as about:
            about["files"]["glossary.txt"] = hashlib.sha256(content).hexdigest()

    if seal and not content:
        assert open_generation(at).glossary == NONE
    else:
        with pytest.raises(IndexDamaged, match="ofa index build"):
            open_generation(at)


def test_a_lost_glossary_is_damage(tmp_path, export):
    """Without it questions would find less, in silence."""
    export(tmp_path / "hpc", TEXTS, glossary=Glossary.parse("fan, blower"))
    at = current_folder(tmp_path / "hpc")
    (at / "glossary.txt").unlink()

    with pytest.raises(IndexDamaged, match=r"glossary\.txt is missing"):
        open_generation(at)


@pytest.mark.parametrize(
    "text", ["", "../elsewhere", "gen-../x", "gen-\n", "\xff", "x"]
)
def test_a_pointer_to_no_generation_is_damage(tmp_path, export, text):
    """The pointer names a folder beside it, or it is damaged."""
    export(tmp_path / "hpc", TEXTS)
    (tmp_path / "hpc" / CURRENT).write_bytes(text.encode("latin-1"))

    with pytest.raises(IndexDamaged):
        opened(tmp_path / "hpc")


def test_no_pointer_is_no_generation(tmp_path):
    """Before the first build there is nothing, and that is no error."""
    assert current_folder(tmp_path / "hpc") is None
    assert not is_retired(tmp_path / "hpc")


def test_retired_is_remembered_and_leaves_no_text(tmp_path, export):
    """A retired collection has no generation, says so, and can be built again."""
    folder = tmp_path / "hpc"
    export(folder, TEXTS)

    retire(folder)

    assert is_retired(folder)
    assert current_folder(folder) is None
    assert [path.name for path in folder.iterdir()] == [CURRENT]
    export(folder, TEXTS)
    assert not is_retired(folder)
    assert len(opened(folder).passages) == len(TEXTS)
