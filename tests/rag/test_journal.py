"""What outlives a server of the passages it gave: a file that may break anywhere."""

import json
import logging
import os
import stat
import threading

import pytest

from ofa.rag.journal import Journal
from ofa.rag.memory import Block, Memory

ONE, TWO = (Block(name, "tag", ("a.md", "é\ud83d"), 7, 1, "foot") for name in "ab")
LIMIT = 1 << 20


def filled(path, *links, limit=LIMIT):
    """Leave a file behind in which *links* have blocks."""
    memory = Memory(limit, path)
    for link in links:
        memory.remember(link, ONE)
    memory.close()


def test_what_was_remembered_is_known_again(tmp_path):
    """Blocks with all that belongs to them, swapped ones, what goes bare; in order."""
    path = tmp_path / "turns" / "turns"
    memory = Memory(LIMIT, path)
    memory.remember(b"one", ONE)
    memory.remember(b"two", ONE)
    memory.swap(b"two", ONE, TWO)
    memory.remember(b"gone", ONE)
    memory.swap(b"gone", ONE, None)
    memory.leave_out(b"three", 4)
    memory.close()

    again = Memory(LIMIT, path)

    assert again.recall(b"one") == ONE
    assert again.recall(b"two") == TWO
    assert again.recall(b"gone") is None
    assert again.left_out([b"three"]) == 4
    assert again.held == memory.held
    again.close()


def test_only_its_owner_can_read_it(tmp_path):
    """From the first byte, and after it was written anew."""
    path = tmp_path / "turns" / "turns"
    before = os.umask(0)
    try:
        filled(path, b"one")
        filled(path, b"two")
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["turns"]


def test_without_a_file_nothing_reaches_a_disk(tmp_path, monkeypatch):
    """The default."""
    monkeypatch.chdir(tmp_path)
    memory = Memory(LIMIT)
    memory.remember(b"one", ONE)
    memory.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_cut_file_loses_its_last_line_alone(tmp_path, cut):
    """A worker that was killed in the midst of writing."""
    path = tmp_path / "turns"
    filled(path, b"one", b"two")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - min(cut, len(whole))])

    again = Memory(LIMIT, path)
    again.remember(b"three", TWO)
    again.close()

    last = Memory(LIMIT, path)
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    left = sum(end <= len(whole) - cut for end in ends) - 1
    known = [last.recall(b"one"), last.recall(b"two")]
    assert [bool(block) for block in known] == [left >= 1, left >= 2]
    assert last.recall(b"three") == TWO
    last.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 5000,
        b"ofa turns 2\nmore\n",
        b"ofa turns 1\n0123456789abcdef {}\n",
        b"ofa turns 1\n" + b"\xff" * 300 + b"\n",
    ],
)
def test_a_foreign_or_damaged_file_is_none(tmp_path, raw):
    """It is replaced, and nobody is told more than that there is nothing."""
    path = tmp_path / "turns"
    path.write_bytes(raw)

    filled(path, b"one")

    assert Memory(LIMIT, path).recall(b"one") == ONE


def test_lines_of_another_shape_are_left_out(tmp_path):
    """As a later version may write them."""
    path = tmp_path / "turns"
    lines = [b"{}", b'{"link": "zz"}', b"[1]", json.dumps({"link": "00"}).encode()]
    journal = Journal(path, LIMIT, lambda: lines)
    journal.start()
    journal.close()
    assert len(journal.read()) == len(lines)

    assert Memory(LIMIT, path).held == (0, 0)


def test_a_place_that_cannot_be_written_costs_the_file_alone(tmp_path, caplog):
    """One line for each in the log, without a word of what was said."""
    (tmp_path / "file").write_text("")
    memory = Memory(LIMIT, tmp_path / "file" / "turns")
    memory.remember(b"one", ONE)
    memory.close()

    assert memory.recall(b"one") == ONE
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(": ")[0].split("turns ")[1] for line in said] == [
        "is not read",
        "is not written",
    ]


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_what_is_no_file_of_ours_is_let_be(tmp_path, caplog, kind):
    """Neither followed nor waited for; the memory works without."""
    caplog.set_level(logging.WARNING)
    path = tmp_path / "turns"
    secret = tmp_path / "secret"
    secret.write_text("ofa turns 1\n")
    make = {
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(secret),
        "fifo": lambda: os.mkfifo(path),
    }
    make[kind]()

    memory = Memory(LIMIT, path)
    memory.remember(b"one", ONE)
    memory.close()

    assert memory.recall(b"one") == ONE
    assert "is not read" in caplog.text
    assert secret.read_text() == "ofa turns 1\n"


def test_the_file_stays_within_its_limit(tmp_path):
    """What counts no more goes when it is full; the newest are there."""
    path = tmp_path / "turns"
    memory = Memory(20_000, path)
    for number in range(500):
        memory.remember(b"%d" % number, ONE)
        memory.swap(b"%d" % number, ONE, TWO)
    memory.close()

    assert path.stat().st_size <= 20_000
    again = Memory(20_000, path)
    assert again.recall(b"499") == TWO
    assert again.held == memory.held
    again.close()


def test_two_servers_on_one_file_harm_nobody(tmp_path):
    """A user may start a second one; what one of them loses is looked up again."""
    path = tmp_path / "turns"
    pair = [Memory(LIMIT, path), Memory(LIMIT, path)]

    def work(number):
        for turn in range(200):
            pair[number].remember(b"%d-%d" % (number, turn), ONE)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for memory in pair:
        memory.close()

    again = Memory(LIMIT, path)
    assert all(block in (None, ONE) for block in map(again.recall, (b"0-0", b"1-199")))
    assert 0 < again.held[0] <= 400
    again.close()


def test_a_disk_that_hangs_holds_nobody_up(tmp_path, monkeypatch):
    """Neither a request nor the end of the server."""
    hold = threading.Event()
    monkeypatch.setattr("ofa.rag.journal.write_file", lambda *_: hold.wait(60))
    monkeypatch.setattr("ofa.rag.journal._CLOSE_S", 0.2)
    memory = Memory(LIMIT, tmp_path / "turns")
    try:
        assert memory.remember(b"one", ONE) is ONE
        assert memory.recall(b"one") is ONE
        memory.close()
    finally:
        hold.set()
