"""The state folder: where it is, how private it is, and what a bad disk does to it."""

import os
import resource
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from ofa.files import make_file, read_own, roots_as_seen, weakness, write_file
from ofa.state import StateFolder, find_state_folder

from .children import NOBODY, as_nobody, as_root_only, in_child


def mode_of(path):
    """Return the permission bits of *path*."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_place():
    """Make a folder that every user can reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        path.chmod(0o755)
        yield path


def test_the_scratch_variable_wins(tmp_path):
    """$OFA_SCRATCH names the folder, whatever else is set."""
    env = {"OFA_SCRATCH": str(tmp_path), "XDG_STATE_HOME": "/x", "HOME": "/h"}

    assert find_state_folder(env) == tmp_path


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"OFA_SCRATCH": "~/s", "HOME": "/h"}, "/h/s"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/ofa"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/ofa"),
        ({"HOME": "/h é"}, "/h é/.local/state/ofa"),
        ({"OFA_SCRATCH": "", "HOME": "/h"}, "/h/.local/state/ofa"),
        ({"TMPDIR": "/t"}, f"/t/ofa-{os.getuid()}"),
        ({"HOME": "", "TMPDIR": "/t"}, f"/t/ofa-{os.getuid()}"),
        ({"USER": "no-such-user-here", "HOME": "/h"}, "/h/.local/state/ofa"),
        ({"USER": "..", "HOME": "/h"}, "/h/.local/state/ofa"),
        ({"USER": "../tmp", "HOME": "/h"}, "/h/.local/state/ofa"),
    ],
)
def test_places_in_order(env, expected):
    """Without it: scratch of that user, XDG, the home, a folder a user in /tmp."""
    assert find_state_folder(env) == Path(expected)


def test_without_home_the_temporary_folder_is_a_users_own():
    """An empty environment still gives a folder that no two users share."""
    assert find_state_folder({}).name == f"ofa-{os.getuid()}"


def test_scratch_of_the_user_is_taken_where_it_is_a_folder(tmp_path):
    """/scratch/$USER comes before XDG and the home, and only if it exists."""
    (tmp_path / "alice").mkdir()
    (tmp_path / "bob").write_bytes(b"")
    env = {"HOME": "/h", "XDG_STATE_HOME": "/x"}

    assert find_state_folder({**env, "USER": "alice"}, scratches=tmp_path) == (
        tmp_path / "alice"
    )
    for other in ("bob", "carol", ""):
        found = find_state_folder({**env, "USER": other}, scratches=tmp_path)
        assert found == Path("/x/ofa")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_new_folders_are_0700_and_files_0600(tmp_path, umask):
    """No umask widens or spoils what is made."""
    before = os.umask(umask)
    try:
        state = StateFolder(tmp_path / "a" / "b")
        state.write("name", b"text")
        sub = state.folder("sub")
    finally:
        os.umask(before)

    assert state.problems == ()
    for folder in (tmp_path / "a", tmp_path / "a" / "b", sub):
        assert mode_of(folder) == 0o700
    assert mode_of(state.path_of("name")) == 0o600


def test_a_shared_folder_keeps_its_mode_and_files_are_private(tmp_path):
    """Somebody's whole scratch is not narrowed, what is put there is 0600."""
    shared = tmp_path / "alice"
    shared.mkdir(mode=0o755)

    state = StateFolder(shared)

    assert state.write("name", b"text")
    assert mode_of(shared) == 0o755
    assert mode_of(state.path_of("name")) == 0o600


def test_a_folder_of_our_own_name_is_narrowed(tmp_path):
    """A wide .../ofa of an older umask becomes 0700."""
    own = tmp_path / "ofa"
    own.mkdir(mode=0o755)

    StateFolder(own)

    assert mode_of(own) == 0o700


def test_what_is_written_is_read_by_the_next_start(tmp_path):
    """Content comes back whole, and the last one counts."""
    StateFolder(tmp_path).write("name", b"one")
    StateFolder(tmp_path).write("name", b"two\n\0")

    assert StateFolder(tmp_path).read("name") == b"two\n\0"
    assert [one.name for one in tmp_path.iterdir()] == ["name"]


def test_nothing_written_is_nothing_read(tmp_path):
    """A name never written, or removed, reads as None and is no problem."""
    state = StateFolder(tmp_path)
    state.write("name", b"text")
    state.remove("name")
    state.remove("name")

    assert state.read("name") is None
    assert state.problems == ()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    """Only a plain name reaches the disk."""
    state = StateFolder(tmp_path)

    for use in (state.read, state.remove, state.folder, state.path_of):
        with pytest.raises(ValueError, match="not a name"):
            use(name)
    with pytest.raises(ValueError, match="not a name"):
        state.write(name, b"")


def test_a_folder_that_cannot_be_made_costs_memory_only(tmp_path):
    """State lives in memory then, and one line says so and names the remedy."""
    (tmp_path / "file").write_bytes(b"")
    state = StateFolder(tmp_path / "file" / "state")

    assert not state.write("name", b"text")
    assert state.read("name") == b"text"
    assert state.read("other") is None
    state.remove("name")
    assert state.read("name") is None
    (problem,) = state.problems
    assert "nothing is remembered" in problem
    assert "OFA_SCRATCH" in problem


def test_a_sub_folder_that_cannot_be_made_is_a_problem_not_an_error(tmp_path):
    """The server goes on; whoever writes there finds out by its own error."""
    state = StateFolder(tmp_path)
    state.write("index", b"a file")

    assert state.folder("index") == tmp_path / "index"
    assert "index can't be used" in state.problems[0]


def test_a_full_disk_keeps_the_old_content_and_the_new_in_memory(tmp_path):
    """A write that fails half-way never shortens what was there."""
    state = StateFolder(tmp_path)
    state.write("name", b"old")

    def on_a_full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
        assert not state.write("name", b"new and longer")
        assert state.read("name") == b"new and longer"
        assert "is not remembered" in state.problems[0]
        assert state.write("name", b"fits")
        assert state.problems == ()

    assert in_child(on_a_full_disk) == 0
    assert StateFolder(tmp_path).read("name") == b"fits"
    assert len(list(tmp_path.iterdir())) == 1


@as_root_only
def test_a_read_only_folder_serves_what_it_has(open_place):
    """What can't be written is read all the same, and said once a name."""
    folder = open_place / "state"
    folder.mkdir(mode=0o700)
    (folder / "name").write_bytes(b"old")
    for path in (folder, folder / "name"):
        os.chown(path, NOBODY, NOBODY)
    folder.chmod(0o500)

    def without_writing():
        state = StateFolder(folder)
        assert state.read("name") == b"old"
        assert not state.write("port", b"1")
        assert not state.write("port", b"2")
        assert state.read("port") == b"2"
        assert len(state.problems) == 1

    assert as_nobody(without_writing) == 0


@as_root_only
def test_somebody_elses_folder_is_not_used(open_place):
    """In /tmp a neighbour may have made it first: nothing goes there."""
    planted = open_place / "ofa-0"
    planted.mkdir()
    os.chown(planted, NOBODY, NOBODY)

    state = StateFolder(planted)

    assert not state.write("name", b"text")
    assert list(planted.iterdir()) == []
    assert f"uid {NOBODY}" in state.problems[0]


@as_root_only
def test_somebody_elses_link_is_not_followed(open_place, tmp_path):
    """A planted link to a folder of ours does not count as ours."""
    planted = open_place / "ofa-0"
    planted.symlink_to(tmp_path)
    os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)

    assert not StateFolder(planted).write("name", b"text")
    assert list(tmp_path.iterdir()) == []


def test_a_link_or_fifo_in_place_of_a_file_is_not_read(tmp_path):
    """A planted name gives neither somebody's text nor a wait."""
    (tmp_path / "victim").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "fifo")
    state = StateFolder(tmp_path)

    assert state.read("link") is None
    assert state.read("fifo") is None
    assert "a symbolic link" in state.problems[0]
    assert "a FIFO" in state.problems[1]


def test_writing_replaces_a_link_not_its_target(tmp_path):
    """The victim of a planted link keeps its bytes."""
    (tmp_path / "victim").write_bytes(b"untouched")
    (tmp_path / "name").symlink_to(tmp_path / "victim")

    assert StateFolder(tmp_path).write("name", b"text")
    assert (tmp_path / "victim").read_bytes() == b"untouched"
    assert not (tmp_path / "name").is_symlink()


def test_readers_see_old_or_new_while_writers_write(tmp_path):
    """Four threads writing whole values never show a mixed one."""
    state = StateFolder(tmp_path)
    state.write("name", b"0" * 5000)
    seen = set()

    def write(digit):
        for _ in range(20):
            state.write("name", digit * 5000)
            seen.add(StateFolder(tmp_path).read("name"))

    threads = [threading.Thread(target=write, args=(d,)) for d in (b"1", b"2", b"3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {content[:1] * 5000 for content in seen} == seen
    assert state.problems == ()


def test_the_folders_name_is_all_that_its_repr_tells(tmp_path):
    """What is kept in memory does not show in a traceback."""
    state = StateFolder(tmp_path)
    state.write("name", b"text")

    assert repr(state) == f"StateFolder({str(tmp_path)!r})"


def test_a_file_is_made_once(tmp_path):
    """The second maker learns that it came late, and changes nothing."""
    assert make_file(tmp_path / "name", b"first")
    assert not make_file(tmp_path / "name", b"second")
    assert (tmp_path / "name").read_bytes() == b"first"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_no_spare_file(tmp_path):
    """A target that can't be replaced costs an error and nothing else."""
    (tmp_path / "name").mkdir()

    with pytest.raises(OSError):
        write_file(tmp_path / "name", b"text")
    assert [one.name for one in tmp_path.iterdir()] == ["name"]


def test_a_file_over_the_limit_is_not_read(tmp_path):
    """A planted gigabyte fills no memory; the limit itself is allowed."""
    (tmp_path / "name").write_bytes(b"x" * 10)

    assert read_own(tmp_path / "name", limit_bytes=10)[0] == b"x" * 10
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_own(tmp_path / "name", limit_bytes=9)


@pytest.mark.parametrize(
    ("mode", "safe"),
    [
        (0o700, True),
        (0o755, True),
        (0o1777, True),
        (0o777, False),
        (0o770, False),
        (0o707, False),
        (0o720, False),
        (0o702, False),
    ],
)
def test_folders_that_others_can_write_to_are_weak(tmp_path, mode, safe):
    """Every part of the way counts; a sticky one of ours or root's is safe."""
    weak = tmp_path / "weak"
    (weak / "below" / "deep").mkdir(parents=True)
    weak.chmod(mode)

    found = weakness(weak / "below" / "deep")

    assert (found == "") is safe
    assert safe or f"chmod go-w {weak}" in found


def test_the_way_of_a_link_counts_as_well(tmp_path):
    """A link through a weak folder is as weak as the folder."""
    weak = tmp_path / "weak"
    (weak / "below").mkdir(parents=True)
    weak.chmod(0o777)
    (tmp_path / "absolute").symlink_to(weak / "below")
    (tmp_path / "relative").symlink_to("weak/../weak/below")

    assert "weak" in weakness(tmp_path / "absolute")
    assert "weak" in weakness(tmp_path / "relative")
    (tmp_path / "safe").mkdir()
    assert weakness(tmp_path / "safe" / ".." / "safe") == ""


def test_links_in_a_circle_end(tmp_path):
    """A loop of links is an error, not a hang."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="symbolic links"):
        weakness(tmp_path / "a")


@as_root_only
def test_a_strangers_folder_on_the_way_is_weak(tmp_path):
    """Who owns a folder can replace all that is in it."""
    strange = tmp_path / "strange"
    (strange / "below").mkdir(parents=True)
    os.chown(strange, NOBODY, NOBODY)

    assert f"belongs to uid {NOBODY}" in weakness(strange / "below")


def test_a_container_that_maps_the_user_alone_shows_root_as_nobody():
    """Without setuid / belongs to "nobody" there: as good as root."""
    plain = "         0          0 4294967295\n"
    apptainer = "      1000       1000          1\n"
    fakeroot = "         0       1000          1\n         1     100000      65536\n"

    assert roots_as_seen(plain, 65534) == (0,)
    assert roots_as_seen(apptainer, 65534) == (0, 65534)
    assert roots_as_seen(fakeroot, 65534) == (0, 65534)
