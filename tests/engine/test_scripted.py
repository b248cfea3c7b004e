"""The scripted engine: what a script may say, and what it plays."""

import json
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import (
    Chat,
    End,
    Message,
    Output,
    Text,
    Thought,
    ToolCall,
    Usage,
    gather,
    gather_choices,
)
from ofa.engine.base import Limits
from ofa.engine.faults import Faults
from ofa.engine.scripted import ScriptedEngine
from ofa.errors import BadRequest, ConfigError, EngineError

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


def test_choices_are_the_next_answers_step_by_step():
    """Each is an answer of its own; the last End of all has the counts."""
    engine = ScriptedEngine(
        [
            [{"text": "a"}, {"text": "b"}],
            [{"call": {"name": "f", "arguments": {}}}],
            [{"text": "x"}, {"end": "length"}],
        ]
    )

    events = list(engine.reply(replace(CHAT, choices=3)))

    call = ToolCall(f"call_{1:024x}", "f", {})
    assert [answer.calls for answer in gather_choices(events)] == [(), (call,), ()]
    assert [e for e in events if isinstance(e, Text)] == [
        Text("a", 0),
        Text("x", 2),
        Text("b", 0),
    ]
    assert [e for e in events if isinstance(e, End)] == [
        End("tools", None, 1, last=False),
        End("length", None, 2, last=False),
        End("stop", Usage(2, 4), 0, last=True),
    ]
    assert gather(engine.reply(CHAT)).text == "ab"


def test_a_choice_that_fails_fails_the_request():
    """There is one reply, and it has one end."""
    engine = ScriptedEngine(["fine", [{"fail": "boom"}]])

    with pytest.raises(EngineError, match="boom"):
        gather_choices(engine.reply(replace(CHAT, choices=2)))


@settings(deadline=None)
@given(st.text(), st.integers(0, 20))
def test_logprobs_are_of_the_very_words(text, alternatives):
    """Their tokens make up the text; of the alternatives the likeliest come first."""
    engine = ScriptedEngine([text])

    said = gather(engine.reply(replace(CHAT, logprobs=alternatives)))
    again = gather(engine.reply(replace(CHAT, logprobs=alternatives)))

    assert said.logprobs == again.logprobs
    assert "".join(one.token for one in said.logprobs) == text
    assert b"".join(one.raw for one in said.logprobs) == text.encode()
    for one in said.logprobs:
        assert one.logprob <= 0
        assert len(one.top) == alternatives
        assert all(a.logprob > b.logprob for a, b in pairwise(one.top))
        assert [top.token for top in one.top[:1]] == [one.token][:alternatives]


def test_logprobs_come_only_if_asked():
    """None wanted, none told."""
    assert gather(ScriptedEngine(["a b"]).reply(CHAT)).logprobs == ()


def test_who_wants_json_gets_the_script():
    """The chat is kept as it was asked, and the text is what was written."""
    engine = ScriptedEngine(['{"a": 1}'])
    chat = replace(CHAT, output=Output("json_schema", {"type": "object"}))

    assert gather(engine.reply(chat)).text == '{"a": 1}'
    assert list(engine.asked) == [chat]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"choices": 2}, "n"),
        ({"logprobs": 0}, "logprobs"),
        ({"output": Output(param="format")}, "format"),
    ],
)
def test_limits_it_was_made_with_are_kept(fields, param):
    """An engine that can do less refuses by name."""
    engine = ScriptedEngine(limits=Limits(1000, 100))

    with pytest.raises(BadRequest) as caught:
        engine.reply(replace(CHAT, **fields))

    assert (caught.value.param, caught.value.code) == (param, "unsupported_value")


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
        ('[[{"die": "SIGNONE"}]]', "step 0: die names a signal or an exit code"),
        ('[[{"die": true}]]', "step 0: die names a signal or an exit code"),
        ('[[{"die": 256}]]', "step 0: die names a signal or an exit code"),
        ('[[{"hang": "up"}]]', "step 0: hang is one of gil, step"),
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


def test_a_step_that_hangs_makes_the_engine_broken_after_its_limit():
    """Not before, and not ready again after: its process is to be replaced."""
    now_s = [100.0]
    faults = Faults(stall_s=5, clock=lambda: now_s[0])
    engine = ScriptedEngine([[{"hang": "step"}]], faults=faults)
    reply = engine.reply(CHAT)
    threading.Thread(target=lambda: gather(reply), daemon=True).start()
    statuses = []

    while not faults.hangs:
        time.sleep(0.01)
    for now_s[0] in (105.0, 105.1):
        statuses.append(engine.status())

    assert [status.ready for status in statuses] == [True, False]
    assert statuses[1].broken and not statuses[1].final
    assert statuses[1].reason == "the engine's step has not returned for 5 s"
