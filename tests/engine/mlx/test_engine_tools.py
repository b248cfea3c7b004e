"""Tools on real engines with tiny models: what is written comes out as calls."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import (
    Call,
    Chat,
    Message,
    Output,
    Sampling,
    Text,
    Tool,
    ToolChoice,
    Waiting,
    gather,
    gather_choices,
)
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.model import _writer
from ofa.engine.mlx.rows import Sampled
from ofa.engine.mlx.template import Prompt
from ofa.toolcalls.base import Failed
from ofa.toolcalls.tally import Tally

from .odd import idle
from .scripts import Script, scripted

GREEDY = Sampling(temperature=0.0, max_tokens=200)
READ_NOTE = Tool(
    "read_note",
    "Read one note",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    },
)
CALL = '<|tool_call>call:read_note{path:<|"|>a.txt<|"|>}<tool_call|>'
FENCED = '```tool_call\n{"name": "read_note", "arguments": {"path": "a.txt"}}\n```'
HALT = 50  # <|tool_response>
STEPS = {"gemma3": (f"the\n{FENCED}", 106), "gemma4": (f"the {CALL}", HALT)}


@pytest.fixture(scope="module")
def engine(folders):
    """The tiny Gemma 4."""
    made = MlxEngine(folders["gemma4"], Settings(rows=4))
    made.wait(60)
    yield made
    made.close()


@pytest.fixture
def script(engine):
    """What it says."""
    return scripted(engine)


def chat(*messages, sampling=GREEDY, tools=(READ_NOTE,), **more):
    """Return a chat with tools."""
    messages = messages or (Message("user", "Hi"),)
    return Chat("ofa-hpc", messages, sampling, tools=tools, **more)


def asked(engine, *messages, **more):
    """Return the whole answer."""
    return gather(engine.reply(chat(*messages, **more)))


def first_try(engine, *messages, **more):
    """Return the events of an answer that nobody asks for again."""
    model = engine._first
    return read(model._reply(model.weights.ready, Tally(), chat(*messages, **more)))


def read(reply):
    """Return the events of *reply*, less those of waiting."""
    return [event for event in reply if not isinstance(event, Waiting)]


def test_a_call_comes_out_as_one(engine, script):
    """Name and arguments, an id of its own, and the reason why the answer ends."""
    script.says(CALL, end=HALT)

    answer = asked(engine)

    assert [call.name for call in answer.calls] == ["read_note"]
    assert answer.calls[0].arguments == {"path": "a.txt"}
    assert re.fullmatch("call_[0-9a-f]{24}", answer.calls[0].id)
    assert (answer.text, answer.end.reason) == ("", "tools")
    assert answer.end.usage.completion_tokens == len(script.ids(CALL)) + 1


def test_text_and_several_calls(engine, script):
    """Text comes at once and before the calls, which keep their order."""
    script.says(f"the quick answer {CALL}{CALL.replace('a.txt', 'b.txt')}")

    events = read(engine.reply(chat()))

    texts = [event.text for event in events if isinstance(event, Text)]
    assert "".join(texts).rstrip() == "the quick answer"
    assert len(texts) > 1
    assert [type(event) for event in events[-3:-1]] == [Call, Call]
    paths = [e.call.arguments["path"] for e in events if isinstance(e, Call)]
    assert paths == ["a.txt", "b.txt"]
    assert len({e.call.id for e in events if isinstance(e, Call)}) == 2


def test_at_most_one_call_if_so_asked(engine, script):
    """Of several calls the first comes out."""
    script.says("".join(CALL.replace("a.txt", f"{n}.txt") for n in "abc"))

    assert len(asked(engine, parallel_calls=False).calls) == 1
    assert len(asked(engine).calls) == 3


def test_a_call_that_repeats_itself_ends_the_answer(engine, script):
    """What comes again and again is one call, and not waited for to the limit."""
    script.says(CALL * 6)

    answer = asked(engine)

    assert len(answer.calls) == 1 and answer.end.reason == "tools"
    assert answer.end.usage.completion_tokens == len(script.ids(CALL * 2))


def test_the_halt_token_leaves_nothing(engine, script):
    """Where a result is due the answer ends, also without a call before it."""
    script.says("the answer", end=HALT)

    answer = asked(engine)

    assert (answer.text, answer.end.reason) == ("the answer", "stop")


def test_R022_quoted_markers_are_text(engine, script):
    """The same characters in plain letters are what the model says about them."""
    script.says(f"say `{{{{{CALL}}}}}` or {{{{<|channel>thought}}}} x")

    answer = asked(engine)

    assert answer.text == f"say `{CALL}` or <|channel>thought x"
    assert (answer.calls, answer.end.reason) == ((), "stop")


def test_a_string_may_quote_its_own_markers(engine, script):
    """In plain letters they are part of an argument."""
    said = '{{<|"|>}} and {{<tool_call|>}}'
    script.says(CALL.replace("a.txt", said))

    answer = asked(engine)

    assert answer.calls[0].arguments == {"path": '<|"|> and <tool_call|>'}


@pytest.mark.parametrize("after", [0, 1, 3, 8, 20])
def test_66_a_call_cut_by_the_limit_is_dropped_whole(engine, script, after):
    """No part of it shows, the text before it does, and the reason is the limit."""
    script.says(f"the {CALL}")
    least = len(script.ids("the ")) + 1
    most = len(script.ids(f"the {CALL}")) - 1

    answer = asked(
        engine, sampling=replace(GREEDY, max_tokens=min(least + after, most))
    )

    assert (answer.text.rstrip(), answer.calls) == ("the", ())
    assert answer.end.reason == "length"


def test_70_stop_strings_never_look_into_calls(engine, script):
    """They end an answer by its text alone, also by one around a call."""
    stops = replace(GREEDY, stop=("a.txt", "read", "quick"))
    script.says(f"the {CALL} quick answer")

    answer = asked(engine, sampling=stops)

    assert answer.calls[0].arguments == {"path": "a.txt"}
    assert "quick" not in answer.text
    assert answer.end.reason == "tools"


def test_stop_strings_before_a_call_end_the_answer(engine, script):
    """What stands behind is not said any more, calls included."""
    script.says(f"the quick answer {CALL}")

    answer = asked(engine, sampling=replace(GREEDY, stop=("quick",)))

    assert (answer.text, answer.calls, answer.end.reason) == ("the ", (), "stop")


def test_tokens_of_calls_have_no_logprobs(engine, script):
    """Those of the text are told, in its order, and no others."""
    script.says(f"the quick {CALL}")

    answer = asked(engine, logprobs=0)

    told = "".join(one.token for one in answer.logprobs)
    assert told.rstrip() == "the quick"
    assert answer.text == "the quick"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (CALL.replace("read_note", "rm"), "rm"),
        (CALL.replace("path", "file"), ""),
        ("<|tool_call>call:read_note{path:", ""),
    ],
)
def test_63_what_is_no_call_of_ours_comes_out_as_failed(engine, script, said, why):
    """Another's name, wrong arguments, a broken end: told, with what was written."""
    script.says(f"the {said}")

    *events, end = first_try(engine)

    failed = next(event for event in events if isinstance(event, Failed))
    assert failed.raw == said
    assert why in failed.why
    assert not any(isinstance(event, Call) for event in events)
    assert end.reason == "stop"


def test_a_failed_call_is_asked_for_once_more(engine, script):
    """Inside the same reply: who reads it sees the call that came then, and a count."""
    script.says(CALL.replace("read_note", "rm"), CALL)
    reply = engine.reply(chat())

    answer = gather(reply)

    assert [call.arguments for call in answer.calls] == [{"path": "a.txt"}]
    assert (answer.text, answer.end.reason) == ("", "tools")
    assert "asked again" in reply.told["x-ofa-tools"]
    assert "x-ofa-cache" in reply.told


def test_every_choice_has_calls_of_its_own(engine, script):
    """Each with its index, id and end."""
    script.says(f"the {CALL}")

    answers = gather_choices(engine.reply(chat(choices=3)))

    assert [answer.text.rstrip() for answer in answers] == ["the"] * 3
    assert len({answer.calls[0].id for answer in answers}) == 3
    assert [answer.end.reason for answer in answers] == ["tools"] * 3


def test_the_grammar_is_told_what_the_request_says(engine, script):
    """The tools and the choice, and how the answer begins; nothing without tools."""
    script.says(CALL)
    tools, named = (READ_NOTE, Tool("other")), ToolChoice("named", "read_note")
    short = replace(GREEDY, max_tokens=2)

    asked(engine, tools=tools, parallel_calls=False, thinking=True)
    asked(engine, tools=tools, tool_choice=named)
    asked(engine, tools=tools, tool_choice=ToolChoice("none"), sampling=short)

    (how, offered, choice, more), (_, _, second, _) = script.asked
    assert (how.name, offered, choice.kind) == ("gemma4", tools, "auto")
    assert more == {
        "parallel": False,
        "thinking": True,
        "opened": False,
        "output": None,
    }
    assert second == named


def test_of_several_tools_the_one_that_is_named(engine, script):
    """A call of another one is none."""
    script.says("<|tool_call>call:other{}<tool_call|>")
    tools, named = (READ_NOTE, Tool("other")), ToolChoice("named", "read_note")

    events = first_try(engine, tools=tools, tool_choice=named)

    assert any(isinstance(event, Failed) for event in events)
    assert not any(isinstance(event, Call) for event in events)
    assert asked(engine, tools=tools).calls[0].name == "other"


def test_without_tools_a_call_is_text(engine):
    """And R035's thought is none of the answer, which is all there is of it."""
    said = f"<|channel>thought\nsimple sum\n<channel|>4 {CALL}"
    reply = engine.reply(chat(tools=()))
    line = Script(engine.ready)
    line.says(said)
    reply._rows[0].mask = line.compile_calls(None, (), None).processor(
        len(reply._rows[0].ids)
    )

    answer = gather(reply)

    assert answer.text == f"4 {CALL}"
    assert answer.thought == "simple sum\n"


def test_R034_R035_thoughts_beside_calls(engine, script):
    """What was thought is apart, and a marker in it opens nothing."""
    script.says(f"<|channel>thought\nI could {CALL}\n<channel|>the {CALL}")

    answer = asked(engine, thinking=True)

    assert answer.thought == f"I could {CALL}\n"
    assert (answer.text.rstrip(), len(answer.calls)) == ("the", 1)


def test_R025_the_answer_behind_a_result_is_not_empty(engine, script):
    """It goes on in the model's turn, and comes out without a marker."""
    answer = asked(engine)
    call = '<|tool_call>call:read_note{path:<|"|>a.txt<|"|>}<tool_call|>'
    script.says(call, "the word is HERON.")
    first = asked(engine)

    answer = asked(
        engine,
        Message("user", "Hi"),
        Message("assistant", "", first.calls),
        Message("tool", "The word is HERON.", answers=first.calls[0].id),
    )

    assert (answer.text, answer.end.reason) == ("the word is HERON.", "stop")


def test_limits_and_details_tell_of_tools(engine):
    """Clients see that tools work, people in which format."""
    assert engine.limits().tools
    assert engine.status().details["tools"] == "gemma4"


def test_a_site_may_choose_the_format(folders):
    """Then it is that, whatever the tokens say."""
    engine = MlxEngine(folders["gemma4"], Settings(tool_format="generic"))
    try:
        engine.wait(60)
        script = scripted(engine)
        script.says(FENCED)
        assert engine.status().details["tools"] == "generic"
        assert asked(engine).calls[0].arguments == {"path": "a.txt"}
    finally:
        engine.close()


PICK = Tool(
    "pick",
    "Pick one",
    {
        "type": "object",
        "properties": {
            "which": {"enum": ["a.txt", "b.txt"]},
            "sure": {"type": "boolean"},
            "depth": {"type": ["null", "boolean"]},
        },
        "required": ["which", "sure", "depth"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", range(4))
def test_a_random_model_held_to_its_tools_calls_them(name, seed, engines):
    """Whatever it would rather say: where a call is demanded, one comes, and fits."""
    hot = Sampling(temperature=1.5, seed=seed, max_tokens=200)
    demanded = ToolChoice("required")

    answer = asked(engines[name], sampling=hot, tools=(PICK,), tool_choice=demanded,
                   parallel_calls=False)  # fmt: skip

    (call,) = answer.calls
    assert call.name == "pick"
    assert set(call.arguments) == {"which", "sure", "depth"}
    assert call.arguments["which"] in ("a.txt", "b.txt")
    assert call.arguments["depth"] in (None, True, False)
    assert (answer.text, answer.end.reason) == ("", "tools")


VERDICT = Output(
    "json_schema",
    {
        "type": "object",
        "properties": {"done": {"type": "boolean"}, "why": {"enum": ["a", "b"]}},
        "required": ["done", "why"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("constrain", [True, False], ids=["held", "calls not held"])
@pytest.mark.parametrize("name", STEPS)
def test_with_a_schema_and_tools_an_answer_is_either(name, constrain, folders):
    """An agent that wants JSON at the end still gets its tools called before that."""
    engine = MlxEngine(folders[name], Settings(rows=4, constrain=constrain))
    try:
        engine.wait(60)
        begin = {"gemma3": "```", "gemma4": "<|tool_call>"}[name]
        for seed, first in enumerate((begin, "{", begin, "{", "the", "note")):
            (bias, *_) = Script(engine.ready).ids(first)
            hot = Sampling(
                temperature=1.5, seed=seed, max_tokens=200, logit_bias=((bias, 100.0),)
            )
            answer = asked(
                engine,
                sampling=hot,
                tools=(PICK,),
                output=VERDICT,
                parallel_calls=False,
            )
            if answer.calls:
                assert set(answer.calls[0].arguments) == {"which", "sure", "depth"}
                assert (answer.text, answer.end.reason) == ("", "tools")
            else:
                assert set(json.loads(answer.text)) == {"done", "why"}
                assert answer.end.reason == "stop"
            assert bool(answer.calls) == (first == begin) or first in ("the", "note")
    finally:
        engine.close()


@pytest.mark.parametrize("said", [CALL, FENCED, "<tool_call>{}</tool_call>"])
def test_json_that_quotes_a_call_is_the_answer(engine, script, said):
    """What a schema holds is no place for calls, nor is a string in it."""
    wanted = json.dumps({"name": "read_note", "arguments": {"path": said}})
    wanted = wanted.replace("}}", "} }")  # the script's own marks
    script.says(f"{{{{{wanted}}}}}")

    answer = asked(engine, output=Output("json_schema", {"type": "object"}))

    assert json.loads(answer.text) == json.loads(wanted)
    assert (answer.calls, answer.end.reason) == ((), "stop")


def test_with_a_schema_a_call_may_stand_behind_a_thought(engine, script):
    """What was thought is apart, as ever, and then a call is one."""
    script.says(f"<|channel>thought\nlook it up\n<channel|>{CALL}", end=HALT)

    answer = asked(engine, output=VERDICT, thinking=True)

    assert [call.name for call in answer.calls] == ["read_note"]
    assert (answer.text, answer.thought) == ("", "look it up\n")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("thinking", [False, True])
def test_each_step_of_a_tool_loop_reads_its_result_alone(name, thinking, folders):
    """Of prompt, call and what stands around them, nothing is read again."""
    engine = MlxEngine(folders[name])
    try:
        engine.wait(60)
        script = scripted(engine)
        said, end = STEPS[name]
        messages = [Message("system", "the answer " * 20), Message("user", "which?")]
        least = 0
        for step in range(3):
            script.says(said.replace("a.txt", f"{step}.txt"), end=end)
            answer = asked(engine, *messages, thinking=thinking)
            assert answer.end.usage.cached_tokens >= least
            assert idle(engine)
            messages += [
                Message("assistant", answer.text, answer.calls),
                Message("tool", "the answer " * 20, answers=answer.calls[0].id),
            ]
            prompt = engine.ready.prompts.render(
                messages, tools=(READ_NOTE,), thinking=thinking
            )
            # A result has a few tokens around it, and the tool's name.
            result = engine.count_tokens(messages[-1].text) + 45
            least = len(prompt.ids) - result
            assert least > answer.end.usage.prompt_tokens
    finally:
        engine.close()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_alias_ever_leaves(data, engine):
    """Whatever control tokens a model writes, in whatever order: what leaves is text
    without our spelling of them, thoughts, arguments and failures included."""
    ready = engine.ready
    vocabulary = ready.vocabulary
    pieces = st.one_of(
        st.sampled_from(sorted(vocabulary.control.values())),
        st.sampled_from(
            ["call:read_note{path:", "a.txt", "}", "the ", "\n", "```", "{"]
        ),
    )
    ids = []
    for piece in data.draw(st.lists(pieces, max_size=20)):
        ids += [piece] if isinstance(piece, int) else vocabulary.encode(piece)
    finish = data.draw(st.sampled_from(["stop", "length"]))
    tools = data.draw(st.sampled_from([(), (READ_NOTE,)]))
    writer = _writer(ready, Prompt(()), chat(tools=tools), 0, Tally(), 0)

    parts = [
        part
        for n, token in enumerate([*ids, 106])
        for part in writer.feed(Sampled(0, token, finish if n == len(ids) else ""))
    ]

    assert "\ue000" not in repr(parts)
    if not tools:
        shown = "".join(part.text for part in parts if isinstance(part, Text))
        assert not re.search("[\ue000\ue001]", shown)
