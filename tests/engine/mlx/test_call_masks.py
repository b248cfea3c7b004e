"""Calls held to their tools: right whenever they end, and text as free as ever."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from ofa.chat import Sampling, Tool, ToolChoice
from ofa.engine.mlx.vocabulary import Vocabulary
from ofa.errors import BadRequest
from ofa.toolcalls.check import problems
from ofa.toolcalls.functiongemma import FunctionGemma
from ofa.toolcalls.gemma4 import Gemma4
from ofa.toolcalls.generic import Generic
from ofa.toolcalls.hermes import Hermes

from . import tiny
from .caches import prompt
from .grammars import (
    ENDS,
    INTEGER,
    STRING,
    WORD,
    Asked,
    Held,
    Maker,
    allowed,
    answer,
    obj,
)

SLOW = pytest.mark.timeout(300)
CAPTURED = Path(__file__).parents[2] / "captures" / "tools"

TREE = obj(
    {"v": {"type": "boolean"}, "c": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
    ["v"],
)
SCHEMAS = {
    "nothing said": {},
    "no properties": {"type": "object", "properties": {}},
    "free keys": {"type": "object", "additionalProperties": True},
    "keys of integers": {"type": "object", "additionalProperties": INTEGER},
    "one string": obj({"text": STRING}),
    "short": obj({"w": {"type": "string", "minLength": 2, "maxLength": 4}}),
    "pattern": obj({"p": {"type": "string", "pattern": r"^[a-f\d]{2,3}(-x|\.y)?$"}}),
    "found pattern": obj({"p": {"type": "string", "pattern": "ab"}}),
    "capitals": obj({"b": INTEGER, "A": INTEGER, "a": INTEGER, "B2": INTEGER}),
    "optional": obj({"a": INTEGER, "b": WORD, "c": INTEGER, "d": WORD}, ["c"]),
    "all optional": obj({"x": INTEGER, "y": {"type": "boolean"}}, []),
    "odd keys": obj({"a b": INTEGER, "\u00e9": INTEGER, "x.y-$z": INTEGER, "": WORD}),
    "enum": obj({"e": {"enum": ["a", 'b"c\\', 1.5, None, True, [1, "x"], {"y": 2}]}}),
    "marks": obj({"e": {"enum": ['<|"|>', "<tool_call|>", "", "\u00e9\u2028", "}"]}}),
    "const": obj({"c": {"const": {"B": ["w\u00f6"], "a": None}}}),
    "nullable": obj({"n": {"type": "integer", "nullable": True}}),
    "types": obj({"t": {"type": ["string", "null", "integer"], "maxLength": 3}}),
    "range": obj({"i": {"type": "integer", "minimum": -3, "maximum": 12}}),
    "number": obj({"f": {"type": ["number", "null"]}}),
    "array": obj({"l": {"type": "array", "items": WORD, "minItems": 2, "maxItems": 3}}),
    "tuple": obj(
        {
            "t": {
                "type": "array",
                "prefixItems": [INTEGER, {"type": "null"}],
                "items": False,
            }
        }
    ),
    "anything": obj({"a": {}, "l": {"type": "array", "maxItems": 1}}),
    "nested": obj({"o": obj({"i": obj({"x": INTEGER}, []), "k": INTEGER}, ["k"])}),
    "any of": obj(
        {"a": {"anyOf": [obj({"k": {"const": "a"}, "v": INTEGER}), INTEGER, WORD]}}
    ),
    "options of a whole": {
        "type": "object",
        "properties": {"id": INTEGER, "name": WORD},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "all of": obj({"a": {"allOf": [obj({"x": INTEGER}), {"required": ["x"]}]}}),
    "tree": {"$defs": {"t": TREE}, **obj({"t": {"$ref": "#/$defs/t"}})},
}


@pytest.fixture(scope="session")
def makers(folders):
    """What makes grammars for each tiny model."""
    return {name: Maker(folder, ENDS[name]) for name, folder in folders.items()}


@pytest.fixture
def maker(makers):
    """The Gemma 4's: it has tokens for calls."""
    return makers["gemma4"]


def form(maker):
    """Return the format of *maker*'s model."""
    mark = maker.vocabulary.mark
    return Gemma4(mark) if "<|tool_call>" in maker.vocabulary.ids else Generic()


def grammar(maker, tools, kind="required", name="", **how):
    """Return the grammar of calls of *tools*."""
    return maker.grammars.compile_calls(
        form(maker), tools, ToolChoice(kind, name), **how
    )


def tidy(maker, seed, **more):
    """Return a sampling that likes to close what is open."""
    closing = ['"', "}", "]", '<|"|>']
    liked = tuple(
        (maker.vocabulary.ids[mark], 5.0)
        for mark in closing
        if mark in maker.vocabulary.ids
    )
    return Sampling(**{"temperature": 1.0, "seed": seed, "logit_bias": liked, **more})


def shown(maker, tokens):
    """Return *tokens* as the reader of calls gets them: control tokens under alias."""
    control = frozenset(maker.vocabulary.control.values()) - maker.ends
    decoder = maker.vocabulary.decoder(maker.ends, control)
    return "".join(map(decoder.feed, tokens))


def calls_in(maker, text, own=None):
    """Return (text before, calls) of an answer, cut by its format alone."""
    own = own or form(maker)
    at = text.find(own.openers[0])
    if at < 0:
        return text, []
    before, rest, found = text[:at], text[at:], []
    while rest.startswith(own.openers[0]):
        length = own.length(rest)
        assert length, rest
        found += own.read(rest[:length])
        rest = rest[length:].lstrip()
    assert not rest
    return before, found


def check_call(call, tools):
    """Fail unless *call* is one of *tools* and fits it, with nothing mended."""
    (tool,) = [tool for tool in tools if tool.name == call.name]
    assert not call.repairs
    assert not problems(call.arguments, tool.parameters), (call, tool)


def rows_of(maker, grammar, count, *, first=0, most=120, **sampling):
    """Return rows of random prompts held to *grammar*."""
    return [
        Asked(ids, grammar.processor(len(ids)), tidy(maker, seed, **sampling), most)
        for seed in range(first, first + count)
        for ids in [prompt(seed, 5 + seed % 7)]
    ]


# -- in a batch --------------------------------------------------------------------


@SLOW
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_call_that_ends_reads_back_and_fits(models, makers, name, schema):
    """Random models at temperature 1 and more: 100 % of the calls that end."""
    maker, tools = makers[name], [Tool("one", "", schema), Tool("one_more")]
    made = grammar(maker, tools, name="one", kind="named", parallel=False)
    rows = rows_of(maker, made, 4) + rows_of(maker, made, 2, first=4, temperature=1.5)

    answer(models[name], maker, rows)

    assert not [row.fault for row in rows if row.fault]
    ended = [row for row in rows if row.finish == "stop"]
    assert ended
    for row in ended:
        if has_vast_number(maker, row):
            continue
        before, calls = calls_in(maker, shown(maker, row.tokens))
        assert before == ""
        (call,) = calls
        assert call.name == "one"
        check_call(call, tools)


def has_vast_number(maker, row):
    """
    Return whether a call in JSON has an exponent of three digits.

    The one thing that no grammar of llguidance's keeps out: it is read as no call.
    """
    text = maker.text(row.tokens)
    return form(maker).name == "generic" and re.search(rb"[eE][+-]?\d{3}", text)


@SLOW
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_forty_tools_of_an_editor_at_once(models, makers, name):
    """What VS Code's agent sends: each call is one of them and fits, and none of the
    schemas is left to the check."""
    maker, tools = makers[name], captured("vscode-agent-tool-40")
    made = grammar(maker, tools, parallel=False)
    rows = rows_of(maker, made, 12, most=250, temperature=1.2)

    answer(models[name], maker, rows)

    assert made.loose == ()
    assert not [row.fault for row in rows if row.fault]
    called = set()
    for row in rows:
        before, calls = calls_in(maker, shown(maker, without_cut(row)))
        assert before == ""
        for call in calls:
            check_call(call, tools)
            called.add(call.name)
    assert len(called) > 1


def captured(name):
    """Return the tools that a client sent."""
    sent = json.loads((CAPTURED / f"{name}.json").read_text("utf-8"))
    functions = [tool.get("function", tool) for tool in sent]
    return [Tool(f["name"], "", f.get("parameters") or {}) for f in functions]


def without_cut(row):
    """Return a row's tokens, none if the limit cut it."""
    return row.tokens if row.finish == "stop" else []


@SLOW
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_a_mixed_batch_is_as_each_row_alone(models, makers, name):
    """Rows that must call, rows that may, and free ones: all as without company, and
    text that opens no call as if no tool were there."""
    maker, model = makers[name], models[name]
    tools = [Tool("one", "", SCHEMAS["nested"]), Tool("two", "", SCHEMAS["optional"])]
    must, may = grammar(maker, tools), grammar(maker, tools, "auto")
    kinds = [must, must, may, may, None, None]

    def asked():
        return [
            Asked(
                prompt(at // 2, 30),
                made and made.processor(30),
                Sampling(temperature=1.0, seed=at // 2),
                max_tokens=40,
            )
            for at, made in zip([0, 2, 4, 6, 4, 6], kinds, strict=True)
        ]

    together = answer(model, maker, asked())
    alone = [answer(model, maker, [row])[0] for row in asked()]

    assert [row.tokens for row in together] == [row.tokens for row in alone]
    assert [row.fault for row in together] == [None] * 6
    opener = maker.vocabulary.ids.get("<|tool_call>")
    for held, free in ((together[2], together[4]), (together[3], together[5])):
        at = free.tokens.index(opener) + 1 if opener in free.tokens else None
        assert held.tokens[:at] == free.tokens[:at]
    assert together[0].tokens != alone[4].tokens


def test_one_seed_draws_one_call(models, maker):
    """The same seed gives the same call, others give others."""
    tools = [Tool("one", "", SCHEMAS["optional"]), Tool("two", "", SCHEMAS["enum"])]
    made = grammar(maker, tools)

    def drawn(seed):
        ids = prompt(1, 12)
        mask = made.processor(len(ids))
        (row,) = answer(
            models["gemma4"], maker, [Asked(ids, mask, tidy(maker, seed), 60)]
        )
        return tuple(row.tokens)

    assert drawn(5) == drawn(5)
    assert len({drawn(seed) for seed in range(4)}) > 1


def test_the_limit_cuts_a_call_and_says_so(models, maker):
    """Whatever the limit, what is there is the beginning of a call."""
    tools = [Tool("one", "", obj({"p": {"type": "string", "pattern": "^[0-9]{10}$"}}))]
    made = grammar(maker, tools, parallel=False)
    ids = prompt(3, 9)
    rows = [Asked(ids, made.processor(len(ids)), max_tokens=n) for n in (1, 3, 9, 60)]

    answer(models["gemma4"], maker, rows)

    assert [row.finish for row in rows] == ["length", "length", "length", "stop"]
    whole = rows[-1].tokens
    assert [row.tokens for row in rows[:3]] == [whole[:n] for n in (1, 3, 9)]
    (call,) = calls_in(maker, shown(maker, whole))[1]
    check_call(call, tools)


# -- when it is in force -----------------------------------------------------------

PAIR = [Tool("one", "", obj({"a": INTEGER})), Tool("other", "", {})]


def spell(maker, text):
    """Return *text* as tokens of a character each, control tokens as themselves."""
    tokens, at = [], 0
    marks = sorted(maker.vocabulary.control, key=len, reverse=True)
    while at < len(text):
        mark = next((m for m in marks if text.startswith(m, at)), text[at])
        at += len(mark)
        tokens.append(maker.vocabulary.ids["\u2581" if mark == " " else mark])
    return tokens


def follows(maker, mask, text):
    """Return what *mask* lets follow on *text*, as bytes and control tokens."""
    names = {number: token for token, number in maker.vocabulary.control.items()}
    return {
        names.get(token) or maker.vocabulary.raw(token).decode("utf-8", "replace")
        for token in allowed(mask, spell(maker, text))
    }


def firsts(maker, mask, text):
    """Return the first characters of what *mask* lets follow on *text*."""
    return {token[0] for token in follows(maker, mask, text)}


def is_free(maker, mask, text):
    """Return whether anything may follow on *text*."""
    return len(allowed(mask, spell(maker, text))) == maker.size


ENDS_4 = {"<eos>", "<|tool_response>", "<turn|>"}


def test_auto_is_free_until_a_call_opens(maker):
    """Text and even the opener's letters change nothing; the token does at once."""
    made = grammar(maker, PAIR, "auto")

    for text in ("", "Hi ", "call:one{", "```tool_call\n", "a<turn|>"):
        assert is_free(maker, made.processor(0), text)
    # Spelled in letters it is no opener.
    letters = [maker.vocabulary.ids[char] for char in "<|tool_call>"]
    assert len(allowed(made.processor(0), letters)) == maker.size
    assert follows(maker, made.processor(0), "Hi <|tool_call>") == {"c"}
    assert follows(maker, made.processor(0), "<|tool_call>call:") == {"o"}
    assert follows(maker, made.processor(0), "<|tool_call>call:other{") == {"}"}
    assert "1" in follows(maker, made.processor(0), "<|tool_call>call:one{a:")


def test_what_follows_a_call(maker):
    """Another one or the end; only the end where one is all that is asked for."""
    call = "<|tool_call>call:one{a:1}<tool_call|>"

    several = grammar(maker, PAIR, "auto").processor(0)
    assert follows(maker, several, call) == {"<|tool_call>", *ENDS_4}
    one = grammar(maker, PAIR, "auto", parallel=False).processor(0)
    assert follows(maker, one, f"Hi {call}") == ENDS_4
    again = grammar(maker, PAIR).processor(0)
    assert "{" in follows(maker, again, f"{call}<|tool_call>call:other")


def test_calls_come_to_an_end(maker):
    """Sixteen in an answer, and not one more: a weak model would go on for ever."""
    mask = grammar(maker, PAIR).processor(0)

    assert follows(maker, mask, "<|tool_call>call:other{}<tool_call|>" * 16) == ENDS_4


def test_a_choice_decides_what_may_be_called(maker):
    """Required: any of them, at once; named: that one; none and no tools: no mask."""
    assert follows(maker, grammar(maker, PAIR).processor(0), "") == {"<|tool_call>"}
    both = grammar(maker, PAIR).processor(0)
    assert firsts(maker, both, "<|tool_call>call:o") == {"n", "t"}
    named = grammar(maker, PAIR, "named", "other").processor(0)
    assert firsts(maker, named, "<|tool_call>call:o") == {"t"}
    assert grammar(maker, PAIR, "none") is None
    assert grammar(maker, [], "auto") is None


def test_prompts_tokens_open_nothing(maker):
    """A call in the prompt is history; the mask begins behind it."""
    history = spell(maker, "<|tool_call>call:one{")
    mask = grammar(maker, PAIR, "auto").processor(len(history))

    assert len(allowed(mask, history)) == maker.size


def test_thoughts_are_free(maker):
    """What opens within a thought is none; a demanded call may have one before it."""
    made = grammar(maker, PAIR, "auto", thinking=True)
    thought = "<|channel>thought\nWell<|tool_call>call"
    assert is_free(maker, made.processor(0), thought)
    assert is_free(maker, made.processor(0), f"{thought}<channel|>")
    behind = follows(maker, made.processor(0), f"{thought}<channel|><|tool_call>")
    assert behind == {"c"}
    opened = grammar(maker, PAIR, "auto", thinking=True, opened=True)
    assert is_free(maker, opened.processor(0), "Well<|tool_call>")
    assert follows(maker, opened.processor(0), "<channel|>Hi<|tool_call>") == {"c"}

    must = grammar(maker, PAIR, thinking=True)
    assert follows(maker, must.processor(0), "") == {"<|channel>", "<|tool_call>"}
    must = grammar(maker, PAIR, thinking=True, opened=True)
    assert "x" in follows(maker, must.processor(0), "Well, ")
    assert follows(maker, must.processor(0), "Well<channel|>") == {"<|tool_call>"}


# -- openers that are text -----------------------------------------------------------

FENCE = "```tool_call\n"


@pytest.mark.parametrize("before", ["", "Hi\n", "Hi\n\n  ", "```sh\nls\n```\n"])
def test_a_fence_at_the_start_of_a_line_opens_a_call(makers, before):
    """As its reader sees it: from its line's end on only a call follows."""
    maker = makers["gemma3"]
    mask = grammar(maker, PAIR, "auto").processor(0)

    assert is_free(maker, mask, before + FENCE[:-1])
    assert follows(maker, mask, before + FENCE) == {"{"}
    call = '{"name": "one", "arguments": {"a": 1}}\n```'
    assert follows(maker, mask, before + FENCE + call) == {
        "\n",
        "<eos>",
        "<end_of_turn>",
    }


@pytest.mark.parametrize(
    "text", ["a ```tool_call\n", "```sh\n```tool_call\n", "`tool_call\n", "\n```json\n"]
)
def test_other_fences_open_nothing(makers, text):
    """Within a line, within a block, under another name."""
    maker = makers["gemma3"]

    assert is_free(maker, grammar(maker, PAIR, "auto").processor(0), text)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 14])
def test_a_token_may_reach_beyond_an_opener(folders, size):
    """Its rest is the call's beginning, or there is none."""
    words = {FENCE + '{"name"'[:size]: 900, FENCE + "\n": 901, FENCE + "\u00e9": 902}
    plan = tiny.spm_plan(tiny.GEMMA_3, words)
    folder = folders["gemma3"].parent / f"reach{size}"
    maker = Maker(tiny.save_tokenizer(folder, plan), ENDS["gemma3"])
    made = grammar(maker, PAIR, "auto")

    (begun, blank, odd) = (maker.vocabulary.ids[word] for word in words)

    rest = '{"name"'[size : size + 1] or ":"
    assert {
        maker.vocabulary.raw(token)[:1] for token in allowed(made.processor(0), [begun])
    } == {rest.encode()}
    assert len(allowed(made.processor(0), [blank])) == maker.size
    assert len(allowed(made.processor(0), [odd])) == maker.size


# -- other families ------------------------------------------------------------------

FUNCTION_GEMMA = {
    **tiny.GEMMA_3, "<start_function_call>": 48, "<end_function_call>": 49,
    "<start_function_response>": 50, "<escape>": 52,
}  # fmt: skip


def other(folders, name):
    """Return (maker, format) of a family for which there is no tiny model."""
    plan, ends = tiny.chatml_plan(), None
    if name == "functiongemma":
        plan, ends = tiny.spm_plan(FUNCTION_GEMMA), frozenset({1, 50, 106})
    folder = tiny.save_tokenizer(folders["gemma3"].parent / name, plan)
    vocabulary = Vocabulary(tiny.load_tokenizer(folder))
    ends = ends or frozenset({vocabulary.ids["<|im_end|>"]})
    kind = FunctionGemma if name == "functiongemma" else Hermes
    maker = Maker(folder, ends)
    return maker, kind(maker.vocabulary.mark)


@SLOW
@pytest.mark.parametrize("name", ["functiongemma", "hermes"])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_walks_in_other_families_fit(folders, name, schema):
    """Walks with no model's sense at all, that like to close what is open."""
    maker, own = other(folders, name)
    tools = [Tool("one", "", schema), Tool("one_more", "", {})]
    made = maker.grammars.compile_calls(own, tools, ToolChoice("required"))
    ended = 0
    for seed in range(6):
        tokens, is_whole = wander(maker, made.processor(0), random.Random(seed))
        if not is_whole:
            continue
        ended += 1
        _, calls = calls_in(maker, shown(maker, tokens), own)
        assert calls
        for call in calls:
            check_call(call, tools)
    assert ended


def wander(maker, mask, rnd, steps=200):
    """Return (tokens, whether an end came) of a walk that closes things soon."""
    raw, tokens = maker.vocabulary.raw, []
    for _ in range(steps):
        choice = sorted(allowed(mask, tokens))
        if maker.ends & {*choice} and rnd.random() < 0.7:
            return [*tokens, min(maker.ends & {*choice})], True
        neat = [t for t in choice if raw(t)[:1] in (b'"', b"}", b"]", b"<")]
        tokens.append(rnd.choice(neat if neat and rnd.random() < 0.8 else choice))
    return tokens, False


def test_tags_that_are_no_tokens(makers):
    """A Hermes model without a token for the tag spells it."""
    maker = makers["gemma3"]
    made = maker.grammars.compile_calls(
        Hermes(maker.vocabulary.mark), PAIR, ToolChoice("auto")
    )

    mask = made.processor(0)

    assert is_free(maker, mask, "Hi\n<tool_call")
    assert follows(maker, made.processor(0), "Hi\n<tool_call>") == {"\n"}
    call = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
    assert follows(maker, made.processor(0), call) == {"\n", "<eos>", "<end_of_turn>"}
    assert follows(maker, made.processor(0), f"{call}\n") == {"<"}


# -- what can't be held --------------------------------------------------------------

UNHELD = {
    "not": obj({"a": {"not": {"type": "null"}}}),
    "contains": obj({"a": {"type": "array", "contains": INTEGER}}),
    "names": {"type": "object", "propertyNames": {"maxLength": 2}},
    "look-around": obj({"a": {"type": "string", "pattern": "(?=a)b"}}),
    "overlap": obj({"a": {"oneOf": [{"type": "array"}, {"type": ["array", "null"]}]}}),
    "endless": {"$defs": {"n": obj({"n": {"$ref": "#/$defs/n"}})}, "$ref": "#/$defs/n"},
    "large": obj({f"p{n}": WORD for n in range(2500)}),
    "deep": json.loads('{"properties":{"a":' * 120 + "{}" + "}}" * 120),
    "impossible": obj({"a": False}),
}


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("key", UNHELD)
def test_a_schema_is_no_reason_to_refuse(makers, name, key):
    """The other tools are held, this one is named as loose and may still be called."""
    if (name, key) == ("gemma4", "overlap"):
        pytest.skip("options may overlap in a grammar of ours")
    maker = makers[name]
    made = grammar(maker, [*PAIR, Tool("odd", "", UNHELD[key])])

    assert made.loose == ("odd",)
    start = "<|tool_call>call:o" if name == "gemma4" else FENCE + '{"name": "o'
    assert firsts(maker, made.processor(0), start) == {"n", "t", "d"}


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("key", ["not", "contains", "look-around", "large"])
def test_a_strict_tool_is_refused_by_name(makers, name, key):
    """Who asks for all of it is told what there is not."""
    tools = [*PAIR, Tool("odd", "", UNHELD[key], strict=True)]

    with pytest.raises(BadRequest, match="odd: ") as caught:
        grammar(makers[name], tools, "auto")

    assert caught.value.param == "tools"
    words = {"large": "2000", "look-around": "look-around|pattern"}.get(key, key)
    assert any(word in str(caught.value) for word in words.split("|"))


def test_strict_tools_that_can_be_held_are(makers):
    """Then nothing is loose."""
    for maker in makers.values():
        tools = [Tool("one", "", SCHEMAS["nested"], strict=True)]
        assert grammar(maker, tools).loose == ()


def test_without_llguidance_calls_are_only_read(folders):
    """No mask, and no error either; for none that can't be made at all as well."""

    def missing():
        raise ImportError("No module named 'llguidance'")

    for maker in (
        Maker(folders["gemma3"], ENDS["gemma3"], load=missing),
        Maker(folders["gemma3"], frozenset()),
    ):
        assert grammar(maker, PAIR, "auto") is None
        assert grammar(maker, PAIR) is None


def test_tools_that_take_too_long_are_only_read(folders):
    """No request waits for long, the next one with other tools neither; strict ones
    are refused."""
    held = Held()
    maker = Maker(folders["gemma3"], ENDS["gemma3"], load=lambda: held, limit_s=0.05)

    late = grammar(maker, PAIR)
    assert late.processor(0) is None
    assert late.loose == ("one", "other")
    assert grammar(maker, PAIR) is late
    busy = grammar(maker, PAIR[:1])
    assert busy.processor(0) is None
    with pytest.raises(BadRequest, match="one: .*too complex"):
        grammar(maker, [Tool("one", "", obj({"a": INTEGER}), strict=True)])

    held.go.set()


def test_a_grammar_that_fails_underway_lets_go(models, makers):
    """The row goes on unheld, its neighbour as ever; the next gets a new grammar."""
    maker, model = makers["gemma3"], models["gemma3"]
    worst = {"type": "string", "pattern": "^((.{0,1000}){0,1000}){0,1000}x$"}
    tools = [Tool("one", "", obj({"a": worst}))]
    made = grammar(maker, tools)
    ids = prompt(1, 20)
    free = [Asked(ids, None, max_tokens=30), Asked(ids, None, max_tokens=30)]
    mask = made.processor(len(ids))
    held = Asked(ids, mask, tidy(maker, 1), max_tokens=90)

    answer(model, maker, [held, free[0]])
    answer(model, maker, [free[1]])

    assert held.fault is None
    assert len(held.tokens) == 90 or held.finish == "stop"
    assert free[0].tokens == free[1].tokens
    if made.worn:
        assert len(allowed(mask, [*ids, *held.tokens])) == maker.size
        assert grammar(maker, tools) is not made


# -- what is kept --------------------------------------------------------------------


def test_grammars_are_kept_by_their_tools(maker):
    """Whatever the order they come in; another choice or schema is another grammar."""
    first = grammar(maker, PAIR)

    assert grammar(maker, PAIR[::-1]) is first
    assert grammar(maker, PAIR, "auto") is not first
    assert grammar(maker, PAIR, parallel=False) is not first
    assert grammar(maker, [Tool("one", "", obj({"a": STRING})), PAIR[1]]) is not first


def test_a_grammar_wears_out(maker):
    """What its rows have taught it is never given back, so it is made anew at times."""
    tools = [Tool("worn", "", obj({"a": INTEGER}))]
    made = grammar(maker, tools)

    for _ in range(300):
        made.processor(0)

    assert made.worn
    assert not grammar(maker, tools).worn


def test_rows_do_not_meet(maker):
    """Each row has its own place, and its own look-out for an opener."""
    made = grammar(maker, PAIR, "auto")
    one, two = made.processor(0), made.processor(0)

    assert follows(maker, one, "<|tool_call>call:") == {"o"}
    assert is_free(maker, two, "call:")


def test_a_free_row_gets_its_logits_back(maker):
    """Not a copy: text costs nothing but a look at each token."""
    mask = grammar(maker, PAIR, "auto").processor(0)
    logits = mx.zeros((1, maker.size))

    assert mask(mx.array([200, 201]), logits) is logits
    assert np.isinf(np.array(mask(mx.array([200, 201, 48]), logits))).any()
