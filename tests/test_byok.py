"""VS Code's entry and its file: the shape it accepts, and nothing else touched."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.byok import (
    FILE_NAME,
    entry,
    group_name,
    masked,
    merge,
    paths,
    warnings,
)
from ofa.config_schema import SiteSection
from ofa.engine.base import Limits
from ofa.errors import ConfigError
from ofa.modes import Modes

KEY = "ofa-" + "k" * 43
URL = "http://127.0.0.1:40123/v1"
LIMITS = Limits(65536, 4096, tools=True)

# What VS Code 1.139.1's own schema asks of a model; one of the last two is enough.
REQUIRED = {"id", "name", "url", "toolCalling", "vision", "maxOutputTokens"}


def made(limits=LIMITS, name="OFA", key=KEY, url=URL):
    """Return the entry of the built-in modes."""
    return entry([(mode, limits) for mode in Modes()], url, name=name, key=key)


def test_each_mode_has_the_sizes_of_its_own_model():
    """[models.NAME]: VS Code fills what it is told of, and more is refused."""
    small, large = Limits(8192, 1024), LIMITS
    sizes = [(mode, small if mode.name == "code" else large) for mode in Modes()]

    models = {m["id"]: m for m in entry(sizes, URL, name="OFA", key=KEY)["models"]}

    assert models["ofa-code"]["maxInputTokens"] == 8192 - 1024
    assert models["ofa-hpc"]["maxInputTokens"] == 65536 - 4096


def test_every_mode_is_a_model_with_all_that_vscode_requires():
    """A missing field makes VS Code list nothing, without a word."""
    group = made()

    assert (group["vendor"], group["apiType"]) == ("customendpoint", "chat-completions")
    assert [model["id"] for model in group["models"]] == [mode.id for mode in Modes()]
    for model in group["models"]:
        assert model.keys() >= REQUIRED | {"maxInputTokens"}
        assert model["url"] == "http://127.0.0.1:40123/v1/chat/completions"


@pytest.mark.parametrize("tools", [True, False])
def test_tool_calling_is_always_declared(tools):
    """A model without it is hidden from the picker, in Ask mode too."""
    group = made(Limits(65536, 4096, tools=tools))

    assert {model["toolCalling"] for model in group["models"]} == {True}


@pytest.mark.parametrize("vision", [True, False])
def test_images_are_offered_where_the_model_sees(vision):
    """The paper clip appears only where it is of use."""
    group = made(Limits(65536, 4096, vision=vision))

    assert {model["vision"] for model in group["models"]} == {vision}


@given(st.integers(2, 10**6), st.integers(1, 10**6))
def test_input_and_output_share_the_context(context, output):
    """Their sum is the true context, and neither is ever nothing."""
    (model, *_) = made(Limits(context, output))["models"]

    assert model["maxInputTokens"] + model["maxOutputTokens"] == context
    assert model["maxInputTokens"] >= 1
    assert 1 <= model["maxOutputTokens"] <= output


def test_the_key_stands_where_vscode_reads_it():
    """Plain text in apiKey would be sent as an empty key."""
    group = made()

    assert "apiKey" not in group
    for model in group["models"]:
        assert model["requestHeaders"] == {"Authorization": f"Bearer {KEY}"}


def test_without_a_key_no_header_is_sent():
    """For a key entered in VS Code, and for a server without one."""
    assert not any("requestHeaders" in model for model in made(key=None)["models"])


def test_a_masked_entry_holds_no_part_of_the_key():
    """It may be on a shared screen; the entry itself keeps its key."""
    group = made()

    assert KEY[:12] not in json.dumps(masked(group))
    assert json.dumps(group).count(KEY) == 8


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (8192, "drops its own instructions"),
        (19_000, "drops its own instructions"),  # 19,000 less 4,096 is under 16,000
        (24_000, "is little for VS Code"),
        (32_768, None),
        (131_072, None),
    ],
)
def test_small_contexts_are_warned_of(context, words):
    """VS Code says nothing when it drops its own prompt."""
    lines = warnings(Limits(context, 4096))

    assert bool(lines) == bool(words)
    assert not words or words in lines[0]


def test_the_group_is_named_after_the_site():
    """Two clusters in one VS Code are told apart; an unnamed site adds nothing."""
    assert group_name(SiteSection()) == "OFA"
    assert group_name(SiteSection(name="Kestrel")) == "OFA (Kestrel)"


FOREIGN = """\
// my models
[
  { "name": "Ollama", "vendor": "ollama", "url": "http://127.0.0.1:11434" }, // keep
  /* the next one was made by hand */
  {
    "name": "OFA",
    "vendor": "customendpoint",
    "apiKey": "ofa-typed-in-by-hand",
    "models": [{ "id": "old" }],
    "settings": { "ofa-hpc": { "visible": false } },
  },
  { "name": "Später", "vendor": "openai", "apiKey": "${input:chat.lm.secret.1}" },
]
"""


def test_only_the_group_of_the_same_name_changes():
    """Every other byte stays, comments and odd spacing too."""
    new = merge(FOREIGN, made())

    before, after = FOREIGN.split('{\n    "name": "OFA"')[0], FOREIGN.split("  },\n")[1]
    assert new.startswith(before)
    assert new.endswith(",\n" + after)
    assert '"id": "ofa-hpc"' in new
    assert '"id": "old"' not in new


def test_what_vscode_wrote_into_the_group_is_kept():
    """Choices made in the picker survive; a key in plain text was never used."""
    new = merge(FOREIGN, made())

    assert '"visible": false' in new
    assert "typed-in-by-hand" not in new


def test_a_stored_keys_reference_is_kept():
    """Else a second `--key ui` would ask for the key again."""
    text = json.dumps([{**made(key=None), "apiKey": "${input:chat.lm.secret.7}"}])

    again = json.loads(merge(text, made(Limits(32768, 4096), key=None)))

    assert again[0]["apiKey"] == "${input:chat.lm.secret.7}"
    assert again[0]["models"][0]["maxOutputTokens"] == 4096


@pytest.mark.parametrize("text", ["", " \n", "\ufeff", "[]", "[\n]\n", FOREIGN, "[1]"])
def test_a_second_run_changes_no_byte(text):
    """Run it after each start, and nothing piles up."""
    once = merge(text, made())

    assert merge(once, made()) == once


def test_a_new_file_is_plain_json():
    """It is served to curl as well, and read by whatever reads it."""
    assert json.loads(merge("", made())) == [made()]


def test_another_group_goes_last():
    """The order of the others is theirs."""
    new = merge(FOREIGN, made(name="OFA (Kestrel)"))

    assert new.index('"Später"') < new.index('"OFA (Kestrel)"')
    assert new.startswith(FOREIGN.removesuffix("]\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"models": []}', "file.json: line 1: expected an array"),
        ('[\n  {"name": "x"\n', "file.json: line 3: a , or } is missing"),
        ("[\n  {name: 1}]", "file.json: line 2: this is no JSON"),
        (
            '[{"name": "OFA"},\n{"name": "OFA"}]',
            "several groups are called OFA .lines 1, 2.",
        ),
    ],
)
def test_a_file_that_is_not_understood_is_refused(text, words):
    """Better no entry than a spoiled file; the line says where to look."""
    with pytest.raises(ConfigError, match=words):
        merge(text, made(), where="file.json")


def test_a_damaged_file_is_never_taken_for_another():
    """Cut anywhere behind its bracket, it is refused."""
    start = FOREIGN.index("[") + 1
    for length in range(start, FOREIGN.rindex("]")):
        with pytest.raises(ConfigError):
            merge(FOREIGN[:length], made())


@pytest.mark.parametrize(
    ("platform", "home", "env", "expected"),
    [
        ("linux", "/home/ann", {}, "/home/ann/.config/Code/User"),
        ("linux", "/h", {"XDG_CONFIG_HOME": "/x"}, "/x/Code/User"),
        ("linux", "/h", {"XDG_CONFIG_HOME": "rel"}, "/h/.config/Code/User"),
        (
            "darwin",
            "/Users/ann",
            {},
            "/Users/ann/Library/Application Support/Code/User",
        ),
        (
            "win32",
            "C:\\Users\\ann",
            {"APPDATA": "D:\\Roaming"},
            "D:\\Roaming\\Code\\User",
        ),
        ("win32", "C:\\Users\\ann", {}, "C:\\Users\\ann\\AppData\\Roaming\\Code\\User"),
    ],
)
def test_each_system_has_its_user_folder(platform, home, env, expected):
    """The likeliest editor first, and its file and profiles in one folder."""
    first = paths(env, platform, home)[0]

    assert str(first.user) == expected
    assert first.file == first.user / FILE_NAME
    assert first.of_profile("1a2b") == first.user / "profiles" / "1a2b" / FILE_NAME


def test_all_products_are_looked_for():
    """Stable before the others; code-server keeps its settings as data."""
    found = {e.name: str(e.user) for e in paths({}, "linux", "/h")}

    assert found == {
        "VS Code": "/h/.config/Code/User",
        "VS Code Insiders": "/h/.config/Code - Insiders/User",
        "VSCodium": "/h/.config/VSCodium/User",
        "code-server": "/h/.local/share/code-server/User",
    }
