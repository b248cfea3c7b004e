"""The disk tier: warm after a restart, and a miss whatever happened to its files."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import resource
import stat
import struct
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest

from ofa.engine.mlx.prefix import Match, PrefixStore
from ofa.engine.mlx.prefix_disk import PrefixDisk
from ofa.engine.mlx.snapshot import Snapshot

from .caches import (
    caches,
    cold,
    contents,
    make_generator,
    numbers,
    prompt,
    read,
    run,
    told,
    warm,
)

MANY = 1 << 30
LONG = numbers(1, 300)


@pytest.fixture
def folder(tmp_path):
    """Where prefixes are kept."""
    return tmp_path / "state" / "prefixes"


@contextmanager
def opened(folder, *, limit=MANY, identity="model 1", memory=MANY, **settings):
    """A store with a disk, as one run of the server has; written out at its end."""
    disk = PrefixDisk(folder, limit, identity, **settings)
    yield PrefixStore(memory, disk=disk)
    disk.close(10)


def put(store, ids=LONG, owner="ann", *, kind="answer", window=32, width=1):
    """Have *store* keep *ids*."""
    layers = caches(ids, window=window, width=width)
    return store.put(ids, owner, layers, kind=kind, saved_s=1.0)


def files(folder):
    """Return what is kept, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".prefix")


@pytest.fixture
def written(folder):
    """One file, as it should be."""
    with opened(folder) as store:
        put(store)
    (path,) = files(folder)
    return path


# -- the way there and back --------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "llama"])
def test_a_restarted_server_continues_as_a_cold_run_does(models, name, folder):
    """Other process, same model: the first turn reads only what is new."""
    model, ids = models[name], prompt(1, 330)
    with opened(folder) as store:
        layers = read(model, ids[:300])
        assert store.put(ids[:300], "ann", layers, kind="answer", saved_s=1.0)

    with opened(folder) as store:
        assert store.match(ids, "ann") == Match(300, "300 of 330 tokens from disk")
        hit = store.take(ids, "ann")

        assert hit.tokens == 300
        assert warm(model, ids, (300, hit.layers)) == [cold(model, ids)]
        assert store.held().disk.loaded == 1
        # And from then on it is in memory.
        assert store.match(ids, "ann") == Match(300, "300 of 330 tokens")
        assert store.take(ids, "ann").tokens == 300
        assert store.held().disk.loaded == 1


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_every_bit_comes_back(models, folder, kind):
    """bfloat16 has no counterpart in Python: its bytes go as they are."""
    import mlx.core as mx

    layers = read(models["gemma3"], prompt(1, 300))
    for layer in layers:
        layer.keys = layer.keys.astype(getattr(mx, kind))
        layer.values = layer.values.astype(getattr(mx, kind))
    before = contents(Snapshot.of(layers).restore())
    with opened(folder) as store:
        store.put(prompt(1, 300), "ann", layers, kind="prompt", saved_s=1.0)

    with opened(folder) as store:
        hit = store.take([*prompt(1, 300), 7], "ann")

    assert contents(hit.layers) == before
    assert {str(layer.keys.dtype) for layer in hit.layers} == {f"mlx.core.{kind}"}


def test_the_payload_is_what_others_read_too(written, tmp_path):
    """Behind our head it is safetensors: a person can look into it."""
    import mlx.core as mx

    content = written.read_bytes()
    *_, facts, tokens, _, _ = struct.unpack("<8sIIIII", content[:28])
    other = tmp_path / "other.safetensors"
    other.write_bytes(content[28 + facts + 4 * tokens :])

    arrays = mx.load(str(other))

    assert arrays["0.keys"].flatten().tolist() == LONG
    assert arrays["1.values"].flatten().tolist() == [-n for n in LONG[-32:]]


def test_a_generator_goes_on_while_it_is_written(models, folder):
    """The writer reads what the engine's thread keeps in its hands as well."""
    model, ids = models["gemma4"], prompt(1, 300)
    expected = cold(model, ids)
    with opened(folder, settle_s=0) as store:
        for n in range(8):
            generator = make_generator(model)
            uids = generator.insert([ids])
            layers = read(model, [*ids, *prompt(n, 9)])
            store.put([*ids, *prompt(n, 9)], "ann", layers, kind="answer", saved_s=1)
            assert run(generator, uids) == [expected]

    with opened(folder) as store:
        assert store.held().disk.files == 8
        for n in range(8):
            longer = [*ids, *prompt(n, 9), *prompt(20, 9)]
            hit = store.take(longer, "ann")
            assert warm(model, longer, (309, hit.layers)) == [cold(model, longer)]


def test_only_its_owner_can_enter(written):
    """What was said to the model is in there."""
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700
    assert list(written.parent.iterdir()) == [written]


def test_a_wider_folder_is_narrowed(folder):
    """An older one, or one made by hand."""
    folder.mkdir(parents=True, mode=0o755)
    with opened(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# -- what is written ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tokens", "worth"),
    [
        ("system", 256, True),
        ("prompt", 256, True),
        ("answer", 300, True),
        ("history", 300, False),  # the next prompt begins with it, and is written
        ("system", 255, False),
    ],
)
def test_only_what_is_worth_it_is_written(folder, kind, tokens, worth):
    """Short ones are read again sooner than a file."""
    with opened(folder) as store:
        put(store, numbers(1, tokens), kind=kind)

    assert len(files(folder)) == worth


def test_the_newest_of_a_conversation_is_written_once(folder):
    """A prompt waits for its answer, which then takes its place."""
    with opened(folder, settle_s=3600) as store:
        for tokens in (300, 340, 400, 460):
            put(store, numbers(1, tokens), kind="prompt" if tokens % 3 else "answer")
        put(store, numbers(1, 460))
        put(store, numbers(2, 300))
        put(store, numbers(1, 260), kind="system")

    with opened(folder) as store:
        assert store.held().disk.files == 3
        assert store.match(numbers(1, 500), "ann").tokens == 460
        assert store.match(numbers(1, 400), "ann").tokens == 260


def test_a_successor_takes_the_place_of_its_file(folder):
    """Turn by turn one file a conversation; the system text's stays."""
    for tokens in (300, 340, 400):
        with opened(folder) as store:
            put(store, numbers(1, 260), kind="system")
            put(store, numbers(1, tokens), "bob")
            put(store, numbers(1, tokens))

    with opened(folder) as store:
        assert store.held().disk.files == 3
        assert store.match(numbers(1, 500), "ann").tokens == 400
        assert store.match(numbers(1, 500), "bob").tokens == 400
        assert store.match(numbers(1, 400), "ann").tokens == 260


def test_what_is_there_already_is_not_written_again(written):
    """Each once: a mode's prefix is the same at every start."""
    before = written.stat().st_ino

    with opened(written.parent) as store:
        put(store)

    assert written.stat().st_ino == before


def test_what_left_memory_meanwhile_is_not_written(folder):
    """The budget holds for what waits for a slow disk as well."""
    with opened(folder, settle_s=3600) as store:
        put(store)
        store.clear()
        gc.collect()

    assert files(folder) == []


def test_what_left_memory_later_is_on_disk(folder):
    """More conversations than memory holds: the disk has the others."""
    memory = 2 * 4 * 2 * 332
    for n in range(3):
        with opened(folder, memory=memory) as store:
            put(store, numbers(n, 300))

    with opened(folder, memory=memory) as store:
        for n in (0, 1, 2, 0):
            hit = store.take(numbers(n, 310), "ann")
            assert told(hit.layers)[0] == numbers(n, 300)
        assert store.held().disk.loaded == 4
        assert store.held().nbytes <= memory


def test_what_memory_can_not_hold_is_read_each_time(written):
    """A large request in flight leaves no room to keep: the disk still serves."""
    with opened(written.parent, memory=100) as store:
        for times in (1, 2):
            assert store.take([*LONG, 7], "ann").tokens == 300
            assert store.held().disk.loaded == times
        assert store.held().nbytes == 0


def test_nothing_is_taken_after_the_end(folder):
    """Closing twice is no error; what comes later is not kept on disk."""
    disk = PrefixDisk(folder, MANY, "model 1")
    store = PrefixStore(MANY, disk=disk)
    disk.close(10)

    assert put(store)
    disk.close(10)

    assert files(folder) == []


# -- who may read it ---------------------------------------------------------------


def test_another_owner_finds_nothing(written):
    """Neither its tokens nor that there are any."""
    with opened(written.parent) as store:
        none = PrefixStore(MANY).match(LONG, "bob")

        assert store.match([*LONG, 7], "bob").reason == none.reason
        assert store.take([*LONG, 7], "bob") is None
        assert store.take([*LONG, 7], "ann").tokens == 300


def test_everybody_reads_the_servers_own(folder):
    """A mode's prefix is everybody's on disk too."""
    with opened(folder) as store:
        put(store, owner="", kind="system")

    with opened(folder) as store:
        assert store.take([*LONG, 7], "bob").tokens == 300


def test_memory_goes_first_unless_the_disk_has_much_more(folder):
    """A file is not read for a few tokens."""
    with opened(folder) as store:
        put(store, numbers(1, 300))
    with opened(folder) as store:
        put(store, numbers(1, 240), kind="history")
        assert store.take(numbers(1, 310), "ann").tokens == 240
        put(store, numbers(1, 236), kind="history")
        assert store.take([*numbers(1, 236), 7], "ann").tokens == 236
    with opened(folder) as store:
        put(store, numbers(1, 236), kind="history")
        assert store.take(numbers(1, 310), "ann").tokens == 300


# -- how much ----------------------------------------------------------------------


def fill(folder, numbered, **settings):
    """Write a file for each number, the first one used longest ago; return sizes."""
    for age, n in enumerate(numbered):
        with opened(folder, **settings) as store:
            before = set(files(folder))
            put(store, numbers(n, 300))
        (path,) = set(files(folder)) - before
        os.utime(path, (1000 + age, 1000 + age))
    return [path.stat().st_size for path in files(folder)]


def kept(folder, numbered, **settings):
    """Return the numbers for which there is a file."""
    with opened(folder, **settings) as store:
        return [n for n in numbered if store.match(numbers(n, 301), "ann").tokens]


def test_the_longest_unused_make_room(folder):
    """Within the limit at any time, whoever comes last."""
    size = max(fill(folder, [1, 2, 3]))
    with opened(folder) as store:
        store.take(numbers(1, 301), "ann")  # the oldest is of use

    limit = 3 * size + size // 2
    with opened(folder, limit=limit) as store:
        put(store, numbers(4, 300))
    assert sum(path.stat().st_size for path in files(folder)) <= limit
    assert kept(folder, range(6)) == [1, 3, 4]

    with opened(folder, limit=size) as store:
        put(store, numbers(5, 300))
    assert kept(folder, range(6)) == [5]


def test_another_models_files_are_misses_and_go_first(folder):
    """They may be wanted again, but not before what is wanted now."""
    size = max(fill(folder, [1, 2]))
    ours = files(folder)
    fill(folder, [3], identity="model 2")
    (other,) = set(files(folder)) - set(ours)
    os.utime(other, (9000, 9000))  # used later than both of ours

    assert kept(folder, range(6), identity="model 2") == [3]
    with opened(folder, limit=3 * size + size // 2) as store:
        put(store, numbers(4, 300))

    assert kept(folder, range(6)) == [1, 2, 4]
    assert kept(folder, range(6), identity="model 2") == []


def test_what_its_successor_replaces_goes_before_others(folder):
    """The file that is deleted anyway makes room for its own successor."""
    size = max(fill(folder, [1, 2]))

    with opened(folder, limit=2 * size + size // 2) as store:
        put(store, numbers(2, 330))

    with opened(folder) as store:
        assert store.match(numbers(1, 340), "ann").tokens == 300
        assert store.match(numbers(2, 340), "ann").tokens == 330


def test_what_is_larger_than_all_is_not_written(written):
    """It would delete everything for nothing."""
    with opened(written.parent, limit=written.stat().st_size + 10) as store:
        put(store, numbers(2, 300), width=64)

    assert files(written.parent) == [written]


# -- damage ------------------------------------------------------------------------


def damaged(path):
    """Return bytes to put in the place of *path*'s, by what is wrong with them."""
    whole = path.read_bytes()
    *_, length, tokens, _, _ = struct.unpack("<8sIIIII", whole[:28])
    payload = 28 + length + 4 * tokens
    inner = payload + 8 + struct.unpack("<Q", whole[payload : payload + 8])[0]
    edges = [*range(29), 28 + length, payload, payload + 8, inner, len(whole)]
    draw = random.Random(5)
    flips = [*range(28), *(draw.randrange(28, len(whole)) for _ in range(60))]
    cuts = {at + by for at in edges for by in (-1, 0, 1)}
    yield from ((f"cut at {at}", whole[:at]) for at in cuts if 0 <= at < len(whole))
    for at in [*flips, 28, 28 + length, payload, payload + 8, inner, len(whole) - 1]:
        changed = bytearray(whole)
        changed[at] ^= 1 << draw.randrange(8)
        yield f"flipped at {at}", bytes(changed)
    yield "one byte more", whole + b"\0"
    yield "of format 2", whole[:8] + struct.pack("<I", 2) + whole[12:]
    yield "zeros", bytes(len(whole))
    yield "twice", whole + whole
    yield "text", b"not one of ours\n"
    yield "huge counts", whole[:12] + b"\xff" * 8 + whole[20:]


@pytest.mark.parametrize("late", [False, True])
def test_any_damage_is_a_miss_and_the_file_is_gone(written, caplog, late):
    """At the start or when it is read: one line in the log, and the prompt is read."""
    whole, wrong = written.read_bytes(), []
    cases = dict(damaged(written))
    for what, content in cases.items():
        caplog.clear()
        written.write_bytes(whole if late else content)
        with opened(written.parent) as store:
            if late:
                written.write_bytes(content)
            hit = store.take([*LONG, 7], "ann")
            held = store.held()
        lines = len([r for r in caplog.records if r.name == "ofa.engine.mlx"])
        counted = (held.misses, held.disk.damaged, held.disk.problem)
        if hit or counted != (1, 1, "") or lines != 1 or written.exists():
            wrong.append((what, hit, counted, lines))
    assert wrong == []
    assert len(cases) > 140


def test_every_byte_counts(written):
    """No byte can change without notice: all of the file is under a checksum."""
    whole = written.read_bytes()
    for at in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        written.write_bytes(bytes(changed))
        with opened(written.parent) as store:
            assert store.take([*LONG, 7], "ann") is None, at
        assert not written.exists()


def keep(facts):
    """Change nothing."""
    return facts


def reseal(path, change_facts=keep, change_payload=keep):
    """Change what a file says of itself, and make its checksums right again."""
    whole = path.read_bytes()
    magic, version, length, tokens, *_ = struct.unpack("<8sIIIII", whole[:28])
    facts = json.loads(whole[28 : 28 + length])
    at = 28 + length + 4 * tokens
    packed, payload = whole[at - 4 * tokens : at], whole[at:]
    inner = struct.unpack("<Q", payload[:8])[0]
    rows = change_payload(json.loads(payload[8 : 8 + inner]))
    told = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
    payload = struct.pack("<Q", len(told)) + told + payload[8 + inner :]
    facts = change_facts(facts | {"payload_bytes": len(payload)})
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    head = zlib.crc32(packed, zlib.crc32(text))
    sums = (head, zlib.crc32(payload))
    start = struct.pack("<8sIIIII", magic, version, len(text), tokens, *sums)
    path.write_bytes(start + text + packed + payload)


FORGED = {
    "another model": lambda facts: facts | {"identity": "model 2"},
    "another owner": lambda facts: facts | {"owner": "bob"},
    "an unknown kind": lambda facts: facts | {"kind": "other"},
    "no kind": lambda facts: {k: v for k, v in facts.items() if k != "kind"},
    "a new fact": lambda facts: facts | {"new": 1},
    "a number as text": lambda facts: facts | {"saved_s": "1"},
    "another window": lambda facts: (
        facts | {"meta": {"tokens": 300, "windows": [0, 9]}}
    ),
    "less tokens": lambda facts: facts | {"meta": {"tokens": 299, "windows": [0, 32]}},
    "no meta": lambda facts: facts | {"meta": {}},
    "to be cut back": lambda facts: facts | {"trimmable": True},
    "more payload": lambda facts: facts | {"payload_bytes": 10**12},
    "no payload": lambda facts: facts | {"payload_bytes": 0},
    "a list": lambda facts: [facts],
    "no json": lambda facts: b"{",
    "a pit": lambda facts: b"[" * 100_000,
    "nested": lambda facts: facts | {"meta": {"windows": [[0], [32]], "tokens": 300}},
}


FORGED_PAYLOAD = {
    "an unknown kind": lambda rows: (
        rows | {"0.keys": rows["0.keys"] | {"dtype": "I32"}}
    ),
    "of no width": lambda rows: rows | {"0.keys": rows["0.keys"] | {"shape": [0]}},
    "of no shape": lambda rows: rows | {"0.keys": rows["0.keys"] | {"shape": []}},
    "endless": lambda rows: rows | {"0.keys": rows["0.keys"] | {"shape": [2**62] * 4}},
    "one less": lambda rows: {k: v for k, v in rows.items() if k != "0.keys"},
    "another name": lambda rows: {k.replace("0", "7"): v for k, v in rows.items()},
    "nothing": lambda rows: {},
    "a list": lambda rows: [rows],
    "rows of text": lambda rows: dict.fromkeys(rows, "text"),
    "no json": lambda rows: b"{",
    "a pit": lambda rows: b"[" * 100_000,
}


@pytest.mark.parametrize(
    ("part", "what"),
    [
        *(("facts", what) for what in FORGED),
        *(("payload", what) for what in FORGED_PAYLOAD),
    ],
)
def test_facts_that_are_wrong_are_a_miss(written, part, what):
    """Whole, with the right checksums, and still not what belongs there."""
    forge = {"facts": FORGED, "payload": FORGED_PAYLOAD}[part][what]
    reseal(written)
    with opened(written.parent) as store:
        assert store.take([*LONG, 7], "ann").tokens == 300
    reseal(written, **{f"change_{part}": forge})

    with opened(written.parent) as store:
        assert store.take([*LONG, 7], "ann") is None
        assert store.take([*LONG, 7], "bob") is None
        assert store.held().disk.damaged == 1
    assert not written.exists()


def test_a_file_under_another_name_is_a_miss(written):
    """Its name tells whose it is and of what."""
    copy = written.with_name(written.name.replace(".prefix", "0.prefix"))
    copy.write_bytes(written.read_bytes())
    copy.chmod(0o600)

    with opened(written.parent) as store:
        assert store.held().disk.files == 1
        assert store.held().disk.damaged == 1
    assert not copy.exists()


@pytest.mark.parametrize("thing", ["folder", "fifo", "link"])
def test_something_else_in_the_way_is_a_miss(written, thing, tmp_path):
    """It is neither followed nor waited for; a folder stays, and does no harm."""
    kept_elsewhere = tmp_path / "elsewhere"
    written.rename(kept_elsewhere)
    if thing == "folder":
        written.mkdir()
    elif thing == "fifo":
        os.mkfifo(written)
    else:
        written.symlink_to(kept_elsewhere)

    with opened(written.parent, limit=kept_elsewhere.stat().st_size + 99) as store:
        assert store.take([*LONG, 7], "ann") is None
        assert put(store, numbers(2, 300))
        assert store.held().disk.damaged == 1
    assert kept(written.parent, [2]) == [2]
    assert kept_elsewhere.exists()


def test_a_file_that_is_gone_is_a_quiet_miss(written, caplog):
    """Another server on the same folder made room: nothing is wrong."""
    with opened(written.parent) as store:
        put(store, LONG[:100], kind="history")
        written.unlink()

        assert store.take([*LONG, 7], "ann").tokens == 100
        assert store.match([*LONG, 7], "ann").tokens == 100
    assert caplog.records == []


def test_strangers_files_are_left_alone(written):
    """What has not our name is not ours to delete."""
    other = written.with_name("notes.txt")
    other.write_text("mine")
    fresh = written.with_name(".a.prefix.0011.new")  # another server is writing it
    fresh.write_bytes(b"half")
    old = written.with_name(".b.prefix.0011.new")  # another server died over it
    old.write_bytes(b"half")
    os.utime(old, (time.time() - 4000, time.time() - 4000))

    with opened(written.parent, limit=1) as store:
        assert store.held().disk.files == 1

    assert other.exists()
    assert fresh.exists()
    assert not old.exists()


# -- when the disk fails -----------------------------------------------------------


def warnings(caplog):
    """Return what was warned of."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_folder_that_can_not_be_is_said_once(tmp_path, caplog):
    """A file in its place, say: the server works on without."""
    (tmp_path / "state").write_text("a file")

    with opened(tmp_path / "state" / "prefixes") as store:
        assert put(store)
        assert store.take([*LONG, 7], "ann").tokens == 300
        assert store.held().disk.problem

    assert len(warnings(caplog)) == 1
    assert "no prefixes are kept in" in warnings(caplog)[0]


def test_a_read_only_folder_turns_the_tier_off(written, caplog):
    """EACCES: one warning, then memory alone."""
    try:
        with opened(written.parent) as store:
            written.parent.chmod(0o500)  # after the start, which narrows it to 0700
            if os.access(written.parent, os.W_OK):
                pytest.skip("this user may write anywhere")
            put(store, numbers(2, 300))
        assert store.held().disk.problem
        assert store.take(numbers(2, 301), "ann").tokens == 300
    finally:
        written.parent.chmod(0o700)
    assert len(warnings(caplog)) == 1


def test_anothers_folder_is_not_used(tmp_path, caplog):
    """Who made it could read and replace what is in it."""
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
    else:
        theirs = Path("/")

    with opened(theirs) as store:
        put(store)

    assert "belongs to uid" in store.held().disk.problem
    assert len(warnings(caplog)) == 1


def test_a_folder_that_vanishes_turns_the_tier_off(written, caplog):
    """Somebody tidied up: one warning, no exception, memory serves on."""
    import shutil

    with opened(written.parent) as store:
        shutil.rmtree(written.parent)
        put(store, numbers(2, 300))
        put(store, numbers(3, 300))
    assert store.held().disk.problem
    assert store.held().disk.files == 0
    assert store.take([*LONG, 7], "ann") is None
    assert store.take(numbers(2, 301), "ann").tokens == 300
    assert put(store, numbers(4, 300))

    assert len(warnings(caplog)) == 1


def test_a_full_disk_turns_the_tier_off(folder, caplog):
    """What can't be written whole is not there at all; a limit stands for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(folder, settle_s=3600) as store:
        put(store, width=512)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
        try:
            store.close(10)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(folder.iterdir()) == []
    assert "too large" in store.held().disk.problem.lower()
    assert len(warnings(caplog)) == 1
    assert store.take([*LONG, 7], "ann").tokens == 300


def test_caches_that_no_file_can_hold_stay_in_memory(folder, caplog):
    """Numbers of another kind: nothing is written, and nothing is turned off."""
    import mlx.core as mx

    layers = caches(LONG)
    for layer in layers:
        layer.keys = layer.keys.astype(mx.int32)
        layer.values = layer.values.astype(mx.int32)
    with opened(folder) as store:
        assert store.put(LONG, "ann", layers, kind="answer", saved_s=1.0)
        put(store, numbers(2, 300))

    assert len(files(folder)) == 1
    assert not store.held().disk.problem
