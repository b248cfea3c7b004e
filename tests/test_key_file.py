"""The key file: made private, refused when others had a hand in it, read leniently."""

import codecs
import os
import re
import socket
import stat
import threading
from pathlib import Path

import pytest

from ofa.auth import LIMIT_BYTES, KeyFile, KeyFileError
from ofa.errors import ConfigError

from .children import NOBODY, as_nobody, as_root_only, in_child

KEY = "ofa-" + "Ab1-_" * 8 + "xyz"
OTHER = "ofa-" + "Zz9-_" * 8 + "xyz"


def put(path, content, mode=0o600):
    """Write *content* as a key file."""
    path.write_bytes(content)
    path.chmod(mode)
    return KeyFile(path)


def refusal(key_file):
    """Return the text with which *key_file* is refused, once it names path and tool."""
    with pytest.raises(KeyFileError) as caught:
        key_file.read()
    text = str(caught.value)
    assert str(key_file.path) in text
    assert "\n" not in text
    return text


# Making one


def test_a_new_key_is_ofa_and_43_random_characters(tmp_path):
    """256 bits, in a form that editors and headers take."""
    key_file = KeyFile(tmp_path / "key")

    assert key_file.ensure()
    (key,) = key_file.read()
    assert re.fullmatch(r"ofa-[A-Za-z0-9_-]{43}", key)


def test_a_key_is_made_once(tmp_path):
    """A second start keeps the key that editors already have."""
    key_file = KeyFile(tmp_path / "key")
    key_file.ensure()
    first = key_file.read()

    assert not key_file.ensure()
    assert key_file.read() == first


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
def test_N13_no_umask_makes_the_key_wider_or_narrower(tmp_path, umask):
    """The file is 0600 whatever the shell's umask is."""
    before = os.umask(umask)
    try:
        KeyFile(tmp_path / "state" / "key").ensure()
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "state" / "key").stat().st_mode) == 0o600
    assert [one.name for one in (tmp_path / "state").iterdir()] == ["key"]


def test_N12_fifty_racing_threads_get_one_key(tmp_path):
    """Whoever loses the race reads the winner's key."""
    start = threading.Barrier(50)
    seen, failures = [], []

    def run():
        start.wait()
        try:
            key_file = KeyFile(tmp_path / "key")
            key_file.ensure()
            seen.append(key_file.read())
        except ConfigError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(seen) == 50
    assert len(set(seen)) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


def test_N12_fifty_racing_processes_get_one_key(tmp_path):
    """The same between processes, which share no lock."""
    go_reader, go_writer = os.pipe()
    reader, writer = os.pipe()
    children = []
    for _ in range(50):
        if (pid := os.fork()) == 0:
            try:
                os.close(go_writer)
                os.read(go_reader, 1)  # ends when the parent closes its side
                key_file = KeyFile(tmp_path / "key")
                key_file.ensure()
                os.write(writer, key_file.read()[0].encode() + b"\n")
            except ConfigError as error:
                os.write(writer, str(error).encode() + b"\n")
            finally:
                os._exit(0)
        children.append(pid)
    for descriptor in (go_reader, go_writer, writer):
        os.close(descriptor)
    with os.fdopen(reader, "rb") as opened:
        lines = opened.read().split()
    for pid in children:
        os.waitpid(pid, 0)

    assert len(lines) == 50
    assert set(lines) == {KeyFile(tmp_path / "key").read()[0].encode()}


def test_a_start_killed_between_its_two_steps_does_no_harm(tmp_path):
    """The second name that it left is removed; the key is the one it made."""
    key_file = put(tmp_path / "key", KEY.encode())
    os.link(tmp_path / "key", tmp_path / ".key.0123456789abcdef.new")

    assert key_file.read() == (KEY,)
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


def test_a_folder_that_cannot_be_made_is_said_with_the_remedy(tmp_path):
    """One line names the path and OFA_SCRATCH."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(KeyFileError, match="OFA_SCRATCH") as caught:
        KeyFile(tmp_path / "file" / "state" / "key").ensure()
    assert "\n" not in str(caught.value)


@as_root_only
def test_S2_a_read_only_folder_serves_the_key_it_has():
    """Nothing is written where the key is there already."""
    folder = Path("/tmp") / f"ofa-test-{os.getpid()}-ro"
    folder.mkdir(mode=0o700)
    try:
        put(folder / "key", KEY.encode())
        for path in (folder, folder / "key"):
            os.chown(path, NOBODY, NOBODY)
        folder.chmod(0o500)

        def start():
            assert not KeyFile(folder / "key").ensure()
            assert KeyFile(folder / "key").read() == (KEY,)
            with pytest.raises(KeyFileError, match="can't be made"):
                KeyFile(folder / "none").ensure()
            with pytest.raises(KeyFileError, match="can't be replaced"):
                KeyFile(folder / "key").rotate()

        assert as_nobody(start) == 0
    finally:
        (folder / "key").unlink()
        folder.rmdir()


# What is refused


def test_a_missing_file_is_said(tmp_path):
    """No file is not an empty key."""
    assert "is missing: `ofa key rotate`" in refusal(KeyFile(tmp_path / "key"))
    assert "is missing" in refusal(KeyFile(tmp_path / "no" / "folder" / "key"))


def test_N7_a_link_is_refused_and_its_target_untouched(tmp_path):
    """A planted link gets no key written through it, and gives none."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    victim.chmod(0o600)
    (tmp_path / "key").symlink_to(victim)
    key_file = KeyFile(tmp_path / "key")

    assert "a symbolic link" in refusal(key_file)
    with pytest.raises(KeyFileError):
        key_file.ensure()
    assert victim.read_bytes() == b"untouched"


def test_N7_a_dangling_link_is_refused(tmp_path):
    """A link to nothing does not make the key appear elsewhere."""
    (tmp_path / "key").symlink_to(tmp_path / "nowhere")

    with pytest.raises(KeyFileError, match="a symbolic link"):
        KeyFile(tmp_path / "key").ensure()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.timeout(5)
def test_N8_a_fifo_is_refused_at_once(tmp_path):
    """A planted FIFO would hang a plain open for ever."""
    os.mkfifo(tmp_path / "key", 0o600)

    assert "is a FIFO" in refusal(KeyFile(tmp_path / "key"))
    with pytest.raises(KeyFileError):
        KeyFile(tmp_path / "key").ensure()


def test_N8_a_folder_is_refused(tmp_path):
    """A folder is no key file."""
    (tmp_path / "key").mkdir()

    assert "is a folder" in refusal(KeyFile(tmp_path / "key"))


def test_N8_a_socket_is_refused(tmp_path, monkeypatch):
    """A socket is no key file."""
    monkeypatch.chdir(tmp_path)  # a socket's path has 100 bytes at most
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("key")

        assert "is a socket" in refusal(KeyFile(tmp_path / "key"))


@as_root_only
def test_N8_a_device_is_refused(tmp_path):
    """A device is no key file, even one that reads as endless zeros."""
    os.mknod(tmp_path / "key", 0o600 | stat.S_IFCHR, os.makedev(1, 5))

    assert "is a device" in refusal(KeyFile(tmp_path / "key"))


@as_root_only
def test_N9_somebody_elses_file_is_refused(tmp_path):
    """Its owner knows the key."""
    key_file = put(tmp_path / "key", KEY.encode())
    os.chown(tmp_path / "key", NOBODY, NOBODY)

    assert f"belongs to uid {NOBODY}, not to uid 0" in refusal(key_file)


@as_root_only
def test_N9_roots_file_is_refused_to_others():
    """A key that root made is not this user's own, though root could read any."""
    folder = Path("/tmp") / f"ofa-test-{os.getpid()}-own"
    folder.mkdir(mode=0o755)
    try:
        put(folder / "key", KEY.encode(), 0o604)

        def start():
            assert f"belongs to uid 0, not to uid {NOBODY}" in refusal(
                KeyFile(folder / "key")
            )

        assert as_nobody(start) == 0
    finally:
        (folder / "key").unlink()
        folder.rmdir()


@as_root_only
def test_a_file_that_cannot_be_opened_is_said():
    """Its own owner may have locked it, or the way to it; the remedy is in the line."""
    folder = Path("/tmp") / f"ofa-test-{os.getpid()}-locked"
    folder.mkdir(mode=0o700)
    try:
        put(folder / "key", KEY.encode(), 0o000)
        for path in (folder, folder / "key"):
            os.chown(path, NOBODY, NOBODY)

        def start():
            said = refusal(KeyFile(folder / "key"))
            assert "can't be read: Permission denied; chmod 600" in said
            folder.chmod(0o000)
            said = refusal(KeyFile(folder / "sub" / "key"))
            assert "can't be reached: Permission denied" in said

        assert as_nobody(start) == 0
    finally:
        (folder / "key").unlink()
        folder.rmdir()


@pytest.mark.parametrize(
    "mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666, 0o777, 0o660]
)
def test_N9_a_mode_with_any_bit_for_others_is_refused(tmp_path, mode):
    """Others may have read or written it; the line has the chmod to run."""
    key_file = put(tmp_path / "key", KEY.encode(), mode)

    text = refusal(key_file)

    assert f"mode {mode:04o}" in text
    assert f"chmod 600 {tmp_path / 'key'}" in text


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_N9_a_mode_for_the_owner_alone_is_fine(tmp_path, mode):
    """What only the owner may do is the owner's business."""
    assert put(tmp_path / "key", KEY.encode(), mode).read() == (KEY,)


def test_N9_a_hard_link_is_refused(tmp_path):
    """Under the other name somebody may keep the file past a rotation."""
    key_file = put(tmp_path / "key", KEY.encode())
    os.link(tmp_path / "key", tmp_path / "other")

    assert "2 names (hard links)" in refusal(key_file)
    assert (tmp_path / "other").exists()


def test_N10_an_empty_file_made_ahead_never_gets_a_key(tmp_path):
    """A watcher of a planted 0644 file waits in vain."""
    (tmp_path / "key").touch(mode=0o644)
    with (tmp_path / "key").open("rb") as watcher:
        with pytest.raises(KeyFileError, match="chmod 600"):
            KeyFile(tmp_path / "key").ensure()

        KeyFile(tmp_path / "key").rotate()

        assert watcher.read() == b""
    assert KeyFile(tmp_path / "key").read()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_N11_a_folder_that_others_can_write_to_is_refused(tmp_path, mode):
    """They could put a file of their own in its place; no key is made there."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)

    with pytest.raises(KeyFileError, match="chmod go-w"):
        KeyFile(folder / "key").ensure()
    assert list(folder.iterdir()) == []
    assert "chmod go-w" in refusal(put(folder / "key", KEY.encode()))


def test_N11_every_folder_up_to_the_root_counts(tmp_path):
    """A private folder inside a shared one can be swapped as a whole."""
    shared = tmp_path / "shared"
    (shared / "private").mkdir(parents=True)
    shared.chmod(0o777)
    (shared / "private").chmod(0o700)

    assert f"chmod go-w {shared}" in refusal(
        put(shared / "private" / "key", KEY.encode())
    )


def test_N11_a_sticky_folder_of_ours_is_fine(tmp_path):
    """There, others can't rename or remove what is ours."""
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)

    assert KeyFile(folder / "key").ensure()


@as_root_only
def test_N11_a_strangers_folder_is_refused(tmp_path):
    """Its owner can do as they like in it, sticky or not."""
    folder = tmp_path / "strange"
    folder.mkdir()
    folder.chmod(0o1777)
    os.chown(folder, NOBODY, NOBODY)

    with pytest.raises(KeyFileError, match=f"uid {NOBODY}"):
        KeyFile(folder / "key").ensure()


# What is read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain", b"%s\n"),
        ("no newline", b"%s"),
        ("crlf", b"%s\r\n"),
        ("cr", b"%s\r"),
        ("bom", codecs.BOM_UTF8 + b"%s\n"),
        ("bom and crlf", codecs.BOM_UTF8 + b"%s\r\n"),
        ("blank lines first", b"\n\n%s"),
        ("blanks around", b"  \t%s \t\n"),
        ("comment first", b"# laptop\n%s\n"),
        ("comment with umlaut", "# größer\n%s\n".encode()),
        ("comment last", b"%s\n# the end"),
    ],
)
def test_R058_editors_traces_do_not_count(tmp_path, name, content):
    """A key saved by any editor is the key itself."""
    key_file = put(tmp_path / "key", content.replace(b"%s", KEY.encode()))

    assert key_file.read() == (KEY,)


def test_R058_several_keys_with_comments_and_blank_lines(tmp_path):
    """One file may serve several people or editors."""
    key_file = put(
        tmp_path / "key", f"# one\r\n{KEY}\r\n\r\n# two\r\n{OTHER}\r\n".encode()
    )

    assert key_file.read() == (KEY, OTHER)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no key"),
        (b"\n\r\n \n", "holds no key"),
        (b"# only a comment\n", "holds no key"),
        (codecs.BOM_UTF8, "holds no key"),
        (KEY.encode("utf-16"), "UTF-16"),
        (codecs.BOM_UTF16_BE + KEY.encode("utf-16-be"), "UTF-16"),
        (KEY.encode("utf-16-le"), "NUL"),
        (KEY.encode() + b"\0", "NUL"),
        (b"\0" * 48, "NUL"),
        (KEY.encode() + b" " + OTHER.encode(), "line 1"),
        (KEY.encode() + b"," + OTHER.encode(), "line 1"),
        (b"\n# c\n" + "schlüssel-schlüssel".encode(), "line 3"),
        (b"\xff\xfeofa", "UTF-16"),
        (b"\x80\x81\x82", "non-ASCII"),
        (b"x" * (LIMIT_BYTES + 1), "larger than"),
        (b"y\n" * 1024 * 1024, "larger than"),
    ],
)
def test_R058_what_cannot_be_a_key_is_refused_in_one_line(tmp_path, content, words):
    """Never an empty key, never auth off; the file's content is not in the line."""
    text = refusal(put(tmp_path / "key", content))

    assert words in text
    assert KEY not in text
    assert "schl" not in text
    assert "ofa key rotate" in text


def test_a_file_of_the_largest_size_is_read(tmp_path):
    """More than a thousand keys fit."""
    keys = [f"{KEY}{number:05}" for number in range(1_200)]
    key_file = put(tmp_path / "key", "\n".join(keys).encode())

    assert key_file.read() == tuple(keys)


def test_a_short_key_is_warned_of_once_at_start(tmp_path, caplog):
    """A key of a person's own choice works, and its weakness is said, not shown."""
    key_file = put(tmp_path / "key", b"hunter2\n")

    key_file.ensure()
    key_file.read()

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "short" in caplog.text
    assert "hunter2" not in caplog.text


# Rotation


def test_rotation_replaces_the_file_whole(tmp_path):
    """The new key is a new file, 0600, and nothing else is left."""
    key_file = put(tmp_path / "key", f"{KEY}\n{OTHER}\n".encode())
    before = (tmp_path / "key").stat().st_ino

    key_file.rotate()

    (key,) = key_file.read()
    assert key not in (KEY, OTHER)
    assert (tmp_path / "key").stat().st_ino != before
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


def test_rotation_makes_the_first_key_too(tmp_path):
    """Whoever is told to rotate has a key afterwards."""
    KeyFile(tmp_path / "state" / "key").rotate()

    assert KeyFile(tmp_path / "state" / "key").read()


def test_rotation_heals_a_refused_file(tmp_path):
    """A link is replaced, its target left as it was."""
    (tmp_path / "victim").write_bytes(b"untouched")
    (tmp_path / "key").symlink_to(tmp_path / "victim")

    KeyFile(tmp_path / "key").rotate()

    assert KeyFile(tmp_path / "key").read()
    assert (tmp_path / "victim").read_bytes() == b"untouched"


def test_rotation_in_a_weak_folder_is_refused(tmp_path):
    """No key is written where others could swap it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(KeyFileError, match="chmod go-w"):
        KeyFile(folder / "key").rotate()
    assert list(folder.iterdir()) == []


def test_rotation_onto_a_folder_is_refused(tmp_path):
    """What can't be replaced is said."""
    (tmp_path / "key").mkdir()

    with pytest.raises(KeyFileError, match="can't be replaced"):
        KeyFile(tmp_path / "key").rotate()


def test_a_full_disk_keeps_the_old_key(tmp_path):
    """A rotation that can't be written changes nothing."""
    import resource

    key_file = put(tmp_path / "key", KEY.encode())

    def on_a_full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with pytest.raises(KeyFileError, match="can't be replaced"):
            key_file.rotate()

    assert in_child(on_a_full_disk) == 0
    assert key_file.read() == (KEY,)
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


def test_the_key_is_in_no_repr(tmp_path):
    """What shows in a traceback is the path."""
    key_file = put(tmp_path / "key", KEY.encode())
    key_file.read()

    assert KEY[:12] not in repr(key_file) + repr(vars(key_file))
