"""Other clients' settings: well formed, complete, and without the key."""

import json
import re
import subprocess

import pytest
import yaml

from ofa.clients import Facts, names, setup
from ofa.engine.base import Limits
from ofa.errors import ConfigError
from ofa.modes import Modes

URL = "http://127.0.0.1:40123/v1"
LIMITS = Limits(65536, 4096, tools=True)
IDS = [mode.id for mode in Modes()]
DIRECT = ("opencode", "pi", "continue", "aider", "llm")


def facts(**parts):
    """Return the facts of a usual server."""
    usual = {
        "base_url": URL,
        "models": tuple(Modes()),
        "limits": LIMITS,
        "key_file": "/home/ann lee/.ofa_api_key",
    }
    return Facts(**{**usual, **parts})


def read(file):
    """Return a file's content, parsed by its format."""
    if file.path.endswith(".json"):
        return json.loads(file.content)
    if file.path.endswith(".toml"):
        import tomllib

        return tomllib.loads(file.content)
    return yaml.safe_load(file.content)


def everything(made):
    """Return all text of a setup."""
    files = (f"{file.path}\n{file.content}" for file in made.files)
    return "\n".join((*files, *made.commands, *made.notes, made.lacks))


@pytest.mark.parametrize("client", names())
def test_every_file_is_well_formed_and_names_the_server(client):
    """One typing mistake, and the client shows nothing at all."""
    made = setup(client, facts())

    assert made.files and made.commands
    for file in made.files:
        assert read(file)
    assert URL in everything(made)


@pytest.mark.parametrize("client", names())
def test_every_mode_can_be_chosen(client):
    """All of them are in the client's list."""
    text = everything(setup(client, facts()))

    assert [id_ for id_ in IDS if id_ not in text] == []


@pytest.mark.parametrize("client", names())
def test_a_server_without_keys_needs_none(client):
    """No step about a key that does not exist."""
    text = everything(setup(client, facts(key_file="")))

    assert "OFA_API_KEY" not in text
    assert "$(cat" not in text
    assert "{file:" not in text


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_what_can_not_connect_is_said(client):
    """With the path that the client would ask for, and a way around."""
    made = setup(client, facts())

    assert "it can't connect directly" in made.lacks
    assert re.search("/v1/(messages|responses)", made.lacks)
    assert any("litellm" in command for command in made.commands)


@pytest.mark.parametrize("client", DIRECT)
def test_what_connects_lacks_nothing(client):
    """They speak chat completions."""
    assert setup(client, facts()).lacks == ""


def test_opencode_reads_the_key_file_itself():
    """And knows the limits, by which it compacts a chat in time."""
    config = read(setup("opencode", facts()).files[0])

    provider = config["provider"]["ofa"]
    assert provider["options"] == {
        "baseURL": URL,
        "apiKey": "{file:/home/ann lee/.ofa_api_key}",
    }
    assert list(provider["models"]) == IDS
    model = provider["models"]["ofa-hpc"]
    assert model["limit"] == {"context": 65536, "output": 4096}
    assert config["model"] == config["small_model"] == "ofa/ofa-code"


def test_pi_runs_a_command_for_the_key():
    """The command is the shell's, so the path is quoted."""
    provider = read(setup("pi", facts()).files[0])["providers"]["ofa"]

    assert provider["apiKey"] == "!cat '/home/ann lee/.ofa_api_key'"
    assert [model["id"] for model in provider["models"]] == IDS
    assert provider["models"][0]["contextWindow"] == 65536


@pytest.mark.parametrize("vision", [True, False])
def test_images_are_offered_where_the_model_sees(vision):
    """Each client has a word of its own for that."""
    some = facts(limits=Limits(65536, 4096, vision=vision))

    def config(client, number=0):
        return read(setup(client, some).files[number])

    told = [
        config("opencode")["provider"]["ofa"]["models"]["ofa-hpc"]["attachment"],
        "image" in config("pi")["providers"]["ofa"]["models"][0]["input"],
        "image_input" in config("continue")["models"][0]["capabilities"],
        config("aider", 1)["openai/ofa-hpc"]["supports_vision"],
        config("llm")[0].get("vision", False),
    ]
    assert told == [vision] * 5


def test_continue_takes_the_key_from_its_secrets(tmp_path):
    """The command that puts it there runs, and the file is private."""
    key_file = tmp_path / "a key"
    key_file.write_text("ofa-123\n")
    (tmp_path / ".continue").mkdir()
    made = setup("continue", facts(key_file=str(key_file)))

    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", made.commands[0]], env=env, check=True)

    kept = tmp_path / ".continue" / ".env"
    assert kept.read_text() == "OFA_API_KEY=ofa-123\n"
    assert kept.stat().st_mode & 0o077 == 0
    (model, *_) = read(made.files[0])["models"]
    assert model["apiKey"] == "${{ secrets.OFA_API_KEY }}"
    assert model["defaultCompletionOptions"]["contextLength"] == 65536


def test_aider_is_told_what_fits():
    """Else it warns of an unknown model, and guesses."""
    about = read(setup("aider", facts()).files[1])

    assert about["openai/ofa-code"]["max_input_tokens"] == 65536 - 4096


def test_a_site_without_the_code_mode_starts_with_its_first():
    """Any mode may be hidden."""
    hpc = tuple(mode for mode in Modes() if mode.name == "hpc")

    assert facts(models=hpc).model == "ofa-hpc"


def test_an_unknown_client_is_refused():
    """Those known are named."""
    with pytest.raises(ConfigError, match="opencode, pi"):
        setup("emacs", facts())
