"""`ofa byok`: the file of a VS Code on this machine, written safely, key and all."""

import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from ofa.byok import MASK
from ofa.cli.main import main

from ..children import NOBODY, as_root_only
from ..running import serving

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the paths are Linux's"
)

KEY = "ofa-" + "k" * 43
FILE = "chatLanguageModels.json"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give the command a home with VS Code in it, a key, and a port; no server runs."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "OFA_SITE_TOML", "OFA_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    key_file = state / ".ofa_api_key"
    key_file.touch(mode=0o600)
    key_file.write_text(KEY + "\n")
    (state / ".ofa_serve_port").write_text("1027\n")
    user_folder(tmp_path).mkdir(parents=True)
    return tmp_path


def user_folder(home: Path, product: str = "Code") -> Path:
    """Return a product's User folder on Linux."""
    return home / ".config" / product / "User"


def mode_of(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def groups(path: Path):
    """Return the file's groups."""
    return json.loads(path.read_text())


def write(*words: str) -> int:
    """Run `ofa byok write`."""
    return main(["byok", "write", *words])


def test_write_makes_the_file_for_its_owner_alone(home, capsys):
    """It holds the key, which no output does."""
    assert write() == 0

    path = user_folder(home) / FILE
    (group,) = groups(path)
    assert mode_of(path) == 0o600
    assert len(group["models"]) == 8
    assert group["models"][0]["url"] == "http://127.0.0.1:1027/v1/chat/completions"
    assert group["models"][0]["requestHeaders"] == {"Authorization": f"Bearer {KEY}"}
    out, err = capsys.readouterr()
    assert f"wrote 8 models as OFA into {path}" in out
    assert "Reload Window" in out
    assert "Manage Language Models" in out
    assert KEY[:12] not in out + err


def test_a_second_write_changes_nothing(home, capsys):
    """Neither the bytes nor the backup."""
    write()
    path = user_folder(home) / FILE
    before = path.read_bytes(), path.stat().st_mtime_ns

    assert write() == 0

    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert "nothing to change" in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir()] == [FILE]


def test_the_first_change_keeps_one_copy(home):
    """As it was before us, also after later changes; it may hold keys of others."""
    path = user_folder(home) / FILE
    theirs = b'\xef\xbb\xbf[\r\n  { "name": "mine" }, // by hand\r\n]\r\n'
    path.write_bytes(theirs)
    path.chmod(0o644)

    assert write() == 0
    assert write("--port", "41000") == 0

    backup = path.with_name(FILE + ".bak")
    assert backup.read_bytes() == theirs
    assert (mode_of(backup), mode_of(path)) == (0o600, 0o600)
    assert path.read_bytes().startswith(theirs.split(b"\r\n]")[0])
    assert path.read_bytes().count(b'OFA"') == 1


def test_a_file_open_to_others_is_narrowed_even_if_nothing_changes(home):
    """An earlier tool left it readable, with the key in it."""
    write()
    path = user_folder(home) / FILE
    path.chmod(0o644)

    write()

    assert mode_of(path) == 0o600


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "expected an array"),
        (b"[\n{,}]", "line 2"),
        (b"[\xff]", "is no UTF-8 text"),
    ],
)
def test_a_file_that_is_not_understood_stays_as_it_is(home, capsys, content, words):
    """Exit code 78, the file's name, and not a byte written."""
    path = user_folder(home) / FILE
    path.write_bytes(content)

    assert write() == 78

    err = capsys.readouterr().err
    assert str(path) in err
    assert words in err
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [FILE]


def test_a_link_is_followed_and_stays_one(home):
    """Settings are kept in folders of dotfiles."""
    real = home / "dotfiles.json"
    real.write_text("[]")
    path = user_folder(home) / FILE
    path.symlink_to(real)

    assert write() == 0

    assert path.is_symlink()
    assert len(groups(real)) == 1


@as_root_only
def test_somebody_elses_file_is_not_touched(home, capsys):
    """Our key must not go into a file that another user reads."""
    path = user_folder(home) / FILE
    path.write_text("[]")
    os.chown(path, NOBODY, -1)

    assert write() == 78

    assert "belongs to uid" in capsys.readouterr().err
    assert path.read_text() == "[]"


def test_a_fifo_is_not_waited_for(home, capsys):
    """Whatever stands there instead of a file."""
    os.mkfifo(user_folder(home) / FILE)

    assert write() == 78
    assert "a FIFO" in capsys.readouterr().err


def test_the_key_may_be_left_to_the_editor(home, capsys):
    """The clicks that remain are said."""
    assert write("--key", "ui") == 0

    path = user_folder(home) / FILE
    assert KEY not in path.read_text()
    out = capsys.readouterr().out
    assert "Update API Key" in out
    assert "ofa key show" in out


def test_changing_to_the_editors_store_takes_the_key_out(home):
    """It was in the header before."""
    write()
    write("--key", "ui")

    assert KEY not in (user_folder(home) / FILE).read_text()


def test_a_server_without_keys_has_none_in_its_entry(home, monkeypatch):
    """There is nothing to send."""
    monkeypatch.setenv("OFA_SERVER_AUTH", "false")

    assert write() == 0
    assert "requestHeaders" not in (user_folder(home) / FILE).read_text()


def test_a_missing_key_is_told(home, capsys):
    """Before anything is written."""
    (home / "state" / ".ofa_api_key").unlink()

    assert write() == 78
    assert "`ofa serve` makes one" in capsys.readouterr().err
    assert list(user_folder(home).iterdir()) == []


def test_the_running_servers_limits_are_written(tmp_path, home, capsys):
    """Its true ones, and its modes as it shows them."""
    (home / "state" / ".ofa_api_key").unlink()
    with serving(tmp_path):
        assert write() == 0

    (group,) = groups(user_folder(home) / FILE)
    assert group["models"][0]["maxInputTokens"] == 131072 - 8192
    assert capsys.readouterr().err == ""


def test_guessed_limits_are_said_to_be_guessed(home, capsys):
    """No server ran to be asked."""
    assert write() == 0

    err = capsys.readouterr().err
    assert "no server is running on port 1027" in err
    assert "guessed" in err


def test_small_contexts_are_warned_of(home, capsys, monkeypatch):
    """VS Code itself says nothing."""
    monkeypatch.setenv("OFA_ENGINE_CONTEXT_TOKENS", "8192")

    assert write() == 0
    assert "drops its own instructions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("products", "chosen"),
    [
        (["Code", "Code - Insiders"], "Code"),
        (["Code - Insiders", "VSCodium"], "Code - Insiders"),
        (["VSCodium"], "VSCodium"),
    ],
)
def test_the_likeliest_editor_is_taken(home, capsys, products, chosen):
    """And the others are named, with their files."""
    user_folder(home).rmdir()
    for product in products:
        user_folder(home, product).mkdir(parents=True)

    assert write() == 0

    written = [p for p in products if (user_folder(home, p) / FILE).exists()]
    assert written == [chosen]
    err = capsys.readouterr().err
    assert all(str(user_folder(home, p) / FILE) in err for p in products if p != chosen)


def test_a_machine_without_an_editor_is_told_apart(home, capsys):
    """On a compute node there is none; no folder is made for one."""
    user_folder(home).rmdir()

    assert write() == 78
    assert "--path" in capsys.readouterr().err
    assert not user_folder(home).exists()


def test_a_path_of_ones_own_is_taken(home):
    """For editors that are not known here; its folder is made."""
    path = home / "Other" / "User" / FILE

    assert write("--path", str(path)) == 0
    assert len(groups(path)) == 1


def test_a_profile_has_a_file_of_its_own(home):
    """VS Code reads only the open profile's."""
    (user_folder(home) / "profiles" / "-1a2b3c").mkdir(parents=True)

    assert write("--profile=-1a2b3c") == 0

    path = user_folder(home) / "profiles" / "-1a2b3c" / FILE
    assert len(groups(path)) == 1
    assert not (user_folder(home) / FILE).exists()


@pytest.mark.parametrize("profile", ["nope", "../..", "."])
def test_an_unknown_profile_is_refused(home, capsys, profile):
    """Those that exist are named; no folder is invented."""
    (user_folder(home) / "profiles" / "known").mkdir(parents=True)

    assert write("--profile", profile) == 78
    assert "known" in capsys.readouterr().err


def test_the_name_may_be_chosen(home):
    """Two servers are two groups."""
    write()
    write("--name", "Other", "--port", "41000")

    assert [g["name"] for g in groups(user_folder(home) / FILE)] == ["OFA", "Other"]


def test_print_masks_the_key(home, capsys):
    """A screen is shared more often than one thinks."""
    assert main(["byok", "print"]) == 0

    out, err = capsys.readouterr()
    (group,) = json.loads(out)
    assert KEY[:12] not in out + err
    assert group["models"][0]["requestHeaders"]["Authorization"] == f"Bearer {MASK}"
    assert "--show-key" in err


def test_print_shows_the_key_on_request(home, capsys):
    """The same file that `write` makes, for another machine."""
    assert main(["byok", "print", "--show-key"]) == 0
    printed = json.loads(capsys.readouterr().out)
    write()

    assert printed == groups(user_folder(home) / FILE)


def test_print_is_for_the_laptops_end_of_the_tunnel(home, capsys):
    """Its port is another one where `--local-port` was asked for."""
    (home / "state" / ".ofa_serve_local_port").write_text("45000\n")

    main(["byok", "print"])
    assert "127.0.0.1:45000/v1" in capsys.readouterr().out
    main(["byok", "print", "--port", "46000"])
    assert "127.0.0.1:46000/v1" in capsys.readouterr().out


def test_without_a_port_the_remedy_is_named(home, capsys):
    """No server has run yet."""
    (home / "state" / ".ofa_serve_port").unlink()

    assert write() == 78
    assert "--port" in capsys.readouterr().err
    assert write("--port", "40123") == 0


def test_where_names_what_is_here_and_what_is_usual(home, capsys):
    """Profiles by their ids; three systems for the machine one sits at."""
    (user_folder(home) / "profiles" / "1a2b").mkdir(parents=True)

    assert main(["byok", "where"]) == 0

    out = capsys.readouterr().out
    assert f"VS Code: {user_folder(home) / FILE}\n" in out
    assert f"profile 1a2b: {user_folder(home) / 'profiles' / '1a2b' / FILE}\n" in out
    assert "VSCodium" not in out
    assert "Library/Application Support/Code/User" in out
    assert "AppData\\Roaming\\Code\\User" in out


@as_root_only
def test_a_strangers_port_is_not_written(home, capsys):
    """VS Code would send the key there."""
    with socket.create_server(("127.0.0.1", 0)) as neighbour:
        os.fchown(neighbour.fileno(), NOBODY, -1)
        port = neighbour.getsockname()[1]

        assert write("--port", str(port)) == 78

    assert f"port {port} of this machine is held by" in capsys.readouterr().err
    assert list(user_folder(home).iterdir()) == []
