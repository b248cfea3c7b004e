"""What outlives a server of the passages it gave: a file that may break anywhere."""

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from ofa.rag import journal as journal_module
from ofa.rag.journal import Journal
from ofa.rag.memory import Block, Memory, chain

from .wrapped import user

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
def test_a_foreign_or_damaged_file_is_none(tmp_path, caplog, raw):
    """It is replaced, and one line in the log says so."""
    path = tmp_path / "turns"
    path.write_bytes(raw)

    filled(path, b"one")

    assert len(caplog.records) == 1
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


def test_what_was_of_use_stays_so(tmp_path):
    """A restart drops no turn of a long conversation for younger ones of others."""
    path = tmp_path / "turns"
    block = Block("a" * 2000, "tag")
    before = Memory(100_000, path)
    before.remember(b"old", block)
    for number in range(40):  # the file has room for all of them, the memory has not
        before.remember(b"%d" % number, block)
        before.recall(b"old")
    before.close()

    after = Memory(100_000, path)

    assert after.knows(b"old") and after.knows(b"39") and not after.knows(b"0")
    assert after.held == before.held
    after.close()


@pytest.mark.parametrize("char", ["a", "\n", "é", "漢", "😀", "\ud83d"], ids=ascii)
def test_what_fits_into_the_memory_fits_into_the_file(tmp_path, char):
    """In any script: it is not written over and over, and is read again."""
    path = tmp_path / "turns"
    before = Memory(200_000, path)
    for number in range(100):
        before.remember(b"%d" % number, Block(char * 2000, "tag"))
    before.close()

    after = Memory(200_000, path)

    assert path.stat().st_size <= 200_000
    assert after.held == before.held and after.recall(b"99") == before.recall(b"99")
    after.close()


def test_another_key_has_none_of_it(tmp_path):
    """Nor another mode: what was given to one is found by the very same alone."""
    path, messages = tmp_path / "turns", (user("How do I request two GPUs?"),)
    links = [
        next(chain(messages, scope))[1]
        for scope in (("hpc", "key-1"), ("hpc", "key-2"), ("code", "key-1"))
    ]
    filled(path, links[0])

    after = Memory(LIMIT, path)

    assert [bool(after.recall(link)) for link in links] == [True, False, False]
    after.close()


KILLED = """
import sys
import time
from pathlib import Path
from ofa.rag.memory import Block, Memory

path = Path(sys.argv[1])
memory = Memory(1 << 18, path)
for number in range(10**9):
    memory.remember(b"%d" % number, Block("x" * 5000, "tag"))
    time.sleep(0.0005)
    if number > 100 and path.exists() and path.stat().st_size > 20_000:
        print("writes", flush=True)
"""


def test_a_worker_killed_in_the_midst_of_writing_leaves_whole_blocks(tmp_path):
    """SIGKILL, again and again: the next one knows what was written, as it was."""
    path = tmp_path / "turns"
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE
        ) as worker:
            assert worker.stdout.readline() == b"writes\n"
            worker.send_signal(signal.SIGKILL)

        after = Memory(1 << 18, path)

        assert after.held[0] > 0
        known = filter(None, (after.recall(b"%d" % n) for n in range(50_000)))
        assert {block.text for block in known} == {"x" * 5000}
        after.close()


def test_what_waits_for_a_disk_that_hangs_is_bounded(tmp_path, monkeypatch):
    """And once it goes on, all is written that the memory holds."""
    hold, write = threading.Event(), journal_module.write_file

    def slow(*args):
        assert hold.wait(60)
        write(*args)

    monkeypatch.setattr(journal_module, "write_file", slow)
    monkeypatch.setattr(journal_module, "_MOST_WAITING", 5)
    path = tmp_path / "turns"
    before = Memory(LIMIT, path)
    for number in range(200):
        before.remember(b"%d" % number, ONE)

    assert before._journal._lines.qsize() == 5
    hold.set()
    before.close()
    after = Memory(LIMIT, path)
    assert after.held == before.held == (200, before.held[1])
    after.close()


def test_nothing_waits_for_a_writer_that_gave_up(tmp_path, caplog):
    """A full quota, say: the server may run for months after that."""
    (tmp_path / "file").write_text("")
    memory = Memory(LIMIT, tmp_path / "file" / "turns")
    memory._journal._thread.join(20)
    memory.remember(b"one", ONE)

    assert "is not written" in caplog.text
    assert memory.recall(b"one") == ONE
    assert memory._journal._lines.empty()
    memory.close()
