"""The scripted engine: what a script may say, and what it plays."""

import json

import pytest

from ofa.chat import Chat, Message, Text, Thought, ToolCall, Usage, gather
from ofa.engine.scripted import ScriptedEngine
from ofa.errors import ConfigError, EngineError

CHAT = Chat("m", (Message("user", "two words"),))


def test_steps_become_events_and_words_are_counted():
    """Text, thoughts, calls and echoes in their order; usage is in words."""
    steps = [
        {"thought": "hm"},
        {"text": "a ", "times": 2},
        {"echo": "last_user"},
        {"call": {"name": "read", "arguments": {"n": 1}}},
    ]

    answer = gather(ScriptedEngine([steps]).reply(CHAT))

    call = ToolCall(f"call_{1:024x}", "read", {"n": 1})
    assert answer.parts[:2] == (Thought("hm"), Text("a a two words"))
    assert answer.calls == (call,)
    assert answer.end.reason == "tools"
    assert answer.end.usage == Usage(2, 5)


def test_answers_are_played_in_turn_and_over_again():
    """The third chat gets the first answer."""
    engine = ScriptedEngine(["one", "two"])

    said = [gather(engine.reply(CHAT)).text for _ in range(3)]

    assert said == ["one", "two", "one"]


def test_a_failure_comes_where_it_stands():
    """What was said before it has been said."""
    events = []
    with pytest.raises(EngineError, match="boom"):
        for event in ScriptedEngine([[{"text": "a"}, {"fail": "boom"}]]).reply(CHAT):
            events.append(event)

    assert events == [Text("a")]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "cannot read"),
        ("{}", "non-empty list"),
        ("[]", "non-empty list"),
        ('[[{"txt": "a"}]]', "step 0: needs exactly one of"),
        ('[[{"text": "a", "fail": "b"}]]', "step 0: needs exactly one of"),
        ('[[{"end": "never"}]]', "step 0: end is"),
        ('[[{"text": "a"}, {"call": {"name": "f"}}]]', "step 1: a call has"),
    ],
)
def test_a_wrong_script_names_file_and_step(tmp_path, content, told):
    """A typo in a script is found at start."""
    path = tmp_path / "script.json"
    path.write_text(content)

    with pytest.raises(ConfigError, match=told) as caught:
        ScriptedEngine.load(path)

    assert "script.json" in str(caught.value)


def test_a_good_script_is_loaded(tmp_path):
    """From a file, as --script does."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps([[{"text": "from a file"}, {"end": "length"}]]))

    answer = gather(ScriptedEngine.load(path).reply(CHAT))

    assert (answer.text, answer.end.reason) == ("from a file", "length")
