"""Answers held to a schema: valid whenever they end, free of it beside and before."""

from __future__ import annotations

import json
import random
import threading
import time

import llguidance
import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ofa.chat import Output, Sampling, Text, Thought
from ofa.engine.mlx.grammar import Grammars
from ofa.engine.text import CHANNEL, THINK, Channels
from ofa.errors import BadRequest, EngineError, Overloaded

from . import tiny
from .caches import prompt
from .grammars import (
    ENDS,
    INTEGER,
    SCHEMAS,
    STRING,
    WORD,
    Asked,
    Held,
    Maker,
    allowed,
    answer,
    check,
    is_beginning,
    obj,
    walk,
)

PERSON = SCHEMAS["person"]
SLOW = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def makers(folders):
    """What makes grammars for each tiny model."""
    return {name: Maker(folder, ENDS[name]) for name, folder in folders.items()}


@pytest.fixture
def maker(makers):
    """The Gemma 4's: it can think."""
    return makers["gemma4"]


def spell(maker, text):
    """Return the ids of *text*'s characters, as no tokenizer would join them."""
    return [maker.vocabulary.ids[char] for char in text.replace(" ", "\u2581")]


def tidy(maker, seed, **more):
    """Return a sampling that likes to close strings, arrays and objects."""
    liked = tuple((maker.vocabulary.ids[char], 5.0) for char in '"}]')
    return Sampling(temperature=1.0, seed=seed, logit_bias=liked, **more)


# -- in a batch --------------------------------------------------------------------


@SLOW
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_what_ends_is_valid_and_what_is_cut_began_well(models, makers, name, schema):
    """Random models, several seeds: 100 % of both kinds."""
    maker = makers[name]
    grammar = maker.grammar(schema)
    rows = [
        Asked(ids, grammar.processor(len(ids)), tidy(maker, seed))
        for seed in range(6)
        for ids in [prompt(seed, 5 + 9 * seed)]
    ]

    answer(models[name], maker, rows)

    assert not [row.fault for row in rows if row.fault]
    assert any(row.finish == "stop" for row in rows)
    for row in rows:
        if row.finish == "stop":
            assert row.tokens[-1] in maker.ends
            check(schema, maker.text(row.tokens))
        else:
            assert is_beginning(maker, schema, row.tokens)


@SLOW
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_a_mixed_batch_is_as_each_row_alone(models, makers, name):
    """Two schemas, any object and two free rows: all of them as without company."""
    maker, model = makers[name], models[name]

    def asked():
        masks = [
            maker.mask(PERSON, prompt=30),
            maker.mask(SCHEMAS["tree"], prompt=40),
            maker.mask(prompt=50),
            None,
            None,
        ]
        kinds = [tidy(maker, seed) for seed in range(4)] + [Sampling(temperature=0.0)]
        return [
            Asked(prompt(at, 30 + 10 * at), mask, kind, max_tokens=40)
            for at, (mask, kind) in enumerate(zip(masks, kinds, strict=True))
        ]

    together = answer(model, maker, asked())
    alone = [answer(model, maker, [row])[0] for row in asked()]

    assert [row.tokens for row in together] == [row.tokens for row in alone]
    free = together[3]
    assert not is_beginning(maker, None, free.tokens)


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_json_object_is_an_object(models, makers, name):
    """Whatever the model likes, the value is an object."""
    maker = makers[name]
    rows = [
        Asked(ids, maker.mask(prompt=len(ids)), tidy(maker, seed))
        for seed in range(6)
        for ids in [prompt(seed, 7)]
    ]

    answer(models[name], maker, rows)

    ended = [row for row in rows if row.finish == "stop"]
    assert ended
    assert all(isinstance(json.loads(maker.text(r.tokens)), dict) for r in ended)
    assert all(is_beginning(maker, None, row.tokens) for row in rows)


def test_no_bias_and_no_penalty_allows_what_is_forbidden(models, makers):
    """The mask comes last: a hundred for a letter does not put it before the brace."""
    maker = makers["gemma3"]
    letter, end = maker.vocabulary.ids["x"], 1
    sampling = Sampling(
        temperature=2.0,
        seed=1,
        logit_bias=((letter, 100.0), (end, 100.0)),
        presence_penalty=2.0,
        repetition_penalty=0.5,
    )
    ids = prompt(1, 9)

    (row,) = answer(
        models["gemma3"],
        maker,
        [Asked(ids, maker.mask(PERSON, prompt=len(ids)), sampling)],
    )

    assert row.finish == "length" or check(PERSON, maker.text(row.tokens))
    assert is_beginning(maker, PERSON, row.tokens)


def test_the_limit_cuts_and_says_so(models, makers):
    """Ten characters are not to be had in five tokens: "length", and a beginning."""
    maker = makers["gemma3"]
    schema = {"type": "string", "pattern": "^[0-9]{10}$"}
    ids = prompt(3, 9)

    rows = [
        Asked(ids, maker.mask(schema, prompt=len(ids)), max_tokens=most)
        for most in (1, 5, 12, 40)
    ]
    answer(models["gemma3"], maker, rows)

    assert [row.finish for row in rows] == ["length", "length", "length", "stop"]
    assert [len(row.tokens) for row in rows] == [1, 5, 12, 13]
    check(schema, maker.text(rows[-1].tokens))


def test_a_failed_grammar_fails_its_row_alone(models, makers):
    """Nothing unheld gets out of the row, its neighbour is as ever, and the next
    request gets a new grammar."""
    maker, model = makers["gemma3"], models["gemma3"]
    schema = {"type": "string", "pattern": "^((.{0,1000}){0,1000}){0,1000}x$"}
    grammar = maker.grammar(schema)
    ids = prompt(1, 20)
    free = [Asked(ids, None, max_tokens=30), Asked(ids, None, max_tokens=30)]
    held = Asked(ids, grammar.processor(len(ids)), tidy(maker, 1))

    answer(model, maker, [held, free[0]])
    answer(model, maker, [free[1]])

    assert isinstance(held.fault, EngineError)
    assert "too many" in str(held.fault)
    assert held.finish == ""
    assert is_beginning(maker, STRING, held.tokens)
    assert free[0].tokens == free[1].tokens
    assert grammar.worn
    assert maker.grammar(schema) is not grammar


# -- thoughts ----------------------------------------------------------------------


def read(maker, tokens, **how):
    """Return (answer, thought) as a reply shows *tokens*."""
    decoder = maker.vocabulary.decoder(frozenset(maker.ends))
    channels = Channels(CHANNEL, final=True, **how)
    pieces = [part for t in tokens for part in channels.feed(decoder.feed(t))]
    pieces += channels.flush()
    return tuple(
        "".join(part.text for part in pieces if isinstance(part, kind))
        for kind in (Text, Thought)
    )


@SLOW
@pytest.mark.parametrize("opened", [False, True])
def test_json_follows_a_thought(models, maker, opened):
    """The thought is free, has its one label, and what comes after it is held."""
    ids = maker.vocabulary.ids
    liked = ((ids[CHANNEL.open], 60.0), (ids[CHANNEL.close], 4.0))
    rows = [
        Asked(
            start,
            maker.mask(PERSON, prompt=len(start), thinking=True, opened=opened),
            Sampling(
                temperature=1.0,
                seed=seed,
                logit_bias=(*liked, *tidy(maker, 0).logit_bias),
            ),
            max_tokens=150,
        )
        for seed in range(8)
        for start in [prompt(seed, 9)]
    ]

    answer(models["gemma4"], maker, rows)

    ended = [row for row in rows if row.finish == "stop"]
    assert ended
    marks = [ids[CHANNEL.close]] if opened else [ids[CHANNEL.open], ids[CHANNEL.close]]
    control = set(maker.vocabulary.control.values())
    thoughts = []
    for row in ended:
        assert [token for token in row.tokens[:-1] if token in control] == marks
        text, thought = read(maker, row.tokens, thinking=opened)
        check(PERSON, text)
        thoughts.append(thought)
    assert any(thoughts)
    for row in rows:
        assert is_beginning(maker, PERSON, row.tokens, thinking=True, opened=opened)


def test_a_thought_is_optional_and_comes_once(maker):
    """With thinking on the model may answer at once; behind a thought or an answer's
    beginning it can't open another."""
    ids = maker.vocabulary.ids
    opening, closing = ids[CHANNEL.open], ids[CHANNEL.close]
    begun = [opening, *spell(maker, "thought"), ids["\n"]]

    mask = maker.mask(PERSON, thinking=True)
    first = allowed(mask)
    assert opening in first
    assert ids["{"] in first
    assert not maker.ends & first
    assert ids["x"] not in first

    inside = allowed(mask, begun)
    assert {closing, ids["x"], ids["\n"], ids["{"]} <= inside
    assert not inside & (maker.ends | {opening})

    after = allowed(mask, [*begun, ids["x"], closing])
    assert after < first
    assert first - after == {opening}


def test_a_thought_has_the_label_that_hides_it(maker):
    """A channel called "final" would be shown as part of the answer."""
    ids = maker.vocabulary.ids
    mask = maker.mask(PERSON, thinking=True)

    after = allowed(mask, [ids[CHANNEL.open]])

    assert {maker.vocabulary.raw(token) for token in after} <= {
        b"thought"[:length] for length in range(1, 8)
    }


@pytest.mark.parametrize("mark", [CHANNEL.open, CHANNEL.close])
def test_a_thought_can_not_spell_a_marker(maker, mark):
    """In plain letters it would end the thought for its reader, not for the mask."""
    ids = maker.vocabulary.ids
    mask = maker.mask(PERSON, opened=True)

    inside = allowed(mask, spell(maker, "so " + mark[:-1]))

    assert ids[mark[-1]] not in inside
    assert ids["x"] in inside


def test_without_thinking_no_thought_can_be_opened(maker):
    """The grammar starts at once; also for a model that has no markers."""
    assert maker.vocabulary.ids[CHANNEL.open] not in allowed(maker.mask(PERSON))


def test_markers_without_a_label(folders):
    """As Qwen writes them: no name to be kept to, a slash in the marker."""
    plan = tiny.spm_plan({**tiny.GEMMA_3, THINK.open: 98, THINK.close: 99})
    folder = tiny.save_tokenizer(folders["gemma3"].parent / "thinking", plan)
    maker = Maker(folder, ENDS["gemma3"], thinking=THINK)
    ids = maker.vocabulary.ids
    mask = maker.mask(PERSON, thinking=True)

    assert ids[THINK.open] in allowed(mask)
    inside = allowed(mask, [ids[THINK.open], *spell(maker, "hm </think")])
    assert ids[">"] not in inside
    assert {ids[THINK.close], ids["x"]} <= inside
    assert ids["{"] in allowed(
        mask, [ids[THINK.open], *spell(maker, "hm </think"), ids[THINK.close]]
    )


# -- the mask ----------------------------------------------------------------------


def test_behind_the_answer_only_ends_are_left(maker):
    """All of them, and nothing breaks where the batch looks past the last token."""
    mask = maker.mask(PERSON)
    done = spell(maker, '{"name":"x","age":7')

    assert not maker.ends & allowed(mask, done)
    done += spell(maker, "}")
    assert allowed(mask, done) == maker.ends
    assert allowed(mask, [*done, 106]) == maker.ends
    assert allowed(mask, [*done, 106, 106]) == maker.ends


def test_where_more_may_follow_the_end_is_one_of_several(maker):
    """A number can go on, or be all."""
    mask = maker.mask(INTEGER)

    after = allowed(mask, spell(maker, "12"))

    assert maker.ends < after
    assert maker.vocabulary.ids["3"] in after
    assert allowed(mask, [*spell(maker, "12"), 1]) == maker.ends


def test_strings_hold_no_control_tokens(maker):
    """Whole control tokens never; their letters, blanks and HTML tags like any text."""
    ids = maker.vocabulary.ids
    mask = maker.mask(STRING)

    inside = allowed(mask, spell(maker, '"<|turn'))

    assert not inside & set(maker.vocabulary.control.values())
    assert {ids[">"], ids["|"], ids["<table>"], ids["\u2581\u2581"]} <= inside
    assert ids["\n"] not in inside  # JSON writes it as an escape


def test_the_answer_is_compact_and_in_the_order_of_the_schema(maker):
    """Without blanks a weak model can't write blanks for ever."""
    ids = maker.vocabulary.ids
    mask = maker.mask(SCHEMAS["order"])

    assert {maker.vocabulary.raw(t)[:1] for t in allowed(mask)} == {b"{"}
    assert {maker.vocabulary.raw(t)[:1] for t in allowed(mask, [ids["{"]])} == {b'"'}
    after = allowed(mask, spell(maker, '{"'))
    assert {maker.vocabulary.raw(token) for token in after} == {b"z"}
    assert ids["\u2581"] not in allowed(mask, spell(maker, '{"z":"","a":1,'))


def test_what_fails_is_told_without_a_word_of_the_answer(maker):
    """It ends up in a log. Here the batch breaks its word and draws the forbidden."""
    mask = maker.mask(PERSON)

    with pytest.raises(EngineError, match="held to its schema") as caught:
        allowed(mask, spell(maker, "secret"))

    assert str(caught.value).endswith(": InternalError")


def test_a_prompt_is_not_read(maker):
    """Only what was generated counts, also where a prompt looks like an answer."""
    start = spell(maker, '{"name":"')
    mask = maker.mask(PERSON, prompt=len(start))

    assert maker.vocabulary.ids["{"] in allowed(mask, start)
    assert maker.vocabulary.ids["{"] not in allowed(mask, [*start, *start[:1]])


@pytest.mark.parametrize("kind", [mx.float32, mx.float16, mx.bfloat16])
def test_the_numbers_keep_their_kind(maker, kind):
    """What is allowed stays as it was, the rest is minus infinity."""
    logits = mx.arange(maker.size).astype(kind)[None]

    out = maker.mask(PERSON)(mx.array([], dtype=mx.int32), logits)

    assert out.dtype == kind
    left = {
        token: value for token, value in enumerate(out[0].tolist()) if value != -mx.inf
    }
    assert left == {t: logits[0, t].item() for t in allowed(maker.mask(PERSON))}


@pytest.mark.parametrize("off", [-33, -32, -31, -2, -1, 0, 1, 2, 31, 32, 33, 1000])
def test_a_model_may_tell_more_or_fewer_ids_than_its_tokenizer(folders, off):
    """No bit is one off: what both know is masked alike, what is too much never
    allowed, and the last id as any other."""
    plan = tiny.spm_plan(tiny.GEMMA_3, {"Hi": 700})  # the last of all
    folder = tiny.save_tokenizer(folders["gemma3"].parent / "last", plan)
    exact = Maker(folder, ENDS["gemma3"])
    assert exact.size == 701
    other = Maker(folder, ENDS["gemma3"], logits=exact.size + off)

    for text in ("", '"', '"\\', '"x"'):
        tokens = spell(exact, text)
        known = allowed(exact.mask(STRING), tokens)
        assert allowed(other.mask(STRING), tokens) == {
            token for token in known if token < exact.size + off
        }
    assert 700 in allowed(exact.mask(STRING), spell(exact, '"'))


# -- any schema --------------------------------------------------------------------

leaves = st.one_of(
    st.sampled_from([STRING, WORD, INTEGER, {"type": "boolean"}, {"type": "null"}]),
    st.builds(lambda v: {"const": v}, st.text(max_size=5) | st.integers(-99, 99)),
    st.builds(lambda v: {"enum": v}, st.lists(st.text(max_size=3), min_size=1)),
    st.builds(
        lambda low, room: {"type": "integer", "minimum": low, "maximum": low + room},
        st.integers(-1000, 1000),
        st.integers(0, 1000),
    ),
    st.builds(
        lambda low, room: {"type": "number", "minimum": low, "maximum": low + room},
        st.floats(-1000, 1000).map(lambda x: round(x, 3)),
        st.integers(1, 50),
    ),
    st.builds(
        lambda low, room: {"type": "string", "minLength": low, "maxLength": low + room},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)


def inner(schemas):
    """Return schemas made of *schemas*."""
    named = st.dictionaries(st.text(max_size=3), schemas, max_size=4)
    return st.one_of(
        named.map(obj),
        named.map(lambda some: {"type": "object", "properties": some}),
        st.builds(
            lambda items, low, room: {
                "type": "array",
                "items": items,
                "minItems": low,
                "maxItems": low + room,
            },
            schemas,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.lists(schemas, min_size=1, max_size=3).map(lambda some: {"anyOf": some}),
    )


@SLOW
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=st.recursive(leaves, inner, max_leaves=6), seed=st.integers(0, 2**16))
def test_any_walk_that_ends_fits(maker, schema, seed):
    """Small schemas of all sorts, and walks with no model's sense at all."""
    rnd = random.Random(seed)
    for neat in (0.9, 0.5):
        tokens, ended = walk(maker, maker.mask(schema), rnd, steps=150, tidy=neat)
        if ended:
            check(schema, maker.text(tokens))


# -- compiling ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "named", "code"),
    [
        ({"not": STRING}, "not", "unsupported_value"),
        ({"if": STRING, "then": WORD}, '"if", "then"', "unsupported_value"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems", "unsupported_value"),
        ({"type": "array", "contains": STRING}, "contains", "unsupported_value"),
        (obj({"a": {"propertyNames": WORD}}), "propertyNames", "unsupported_value"),
        ({"type": "string", "format": "iri"}, '"iri"', "unsupported_value"),
        ({"oneOf": [STRING, WORD]}, "oneOf", "unsupported_value"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around", "unsupported_value"),
        ({"$ref": "https://example.org/a"}, "example.org", "unsupported_value"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not", "unsupported_value"),
        ({"type": "string", "pattern": "("}, "pattern", "invalid_value"),
        ({"type": "strin"}, "strin", "invalid_value"),
        ({"type": "object", "properties": []}, "properties", "invalid_value"),
        ({"type": "integer", "minimum": "1"}, "minimum", "invalid_value"),
        ({"$ref": "#/$defs/none"}, "#/$defs/none|/$defs/none", "invalid_value"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no value", "invalid_value"),
        (obj({"a": False}), "no value", "invalid_value"),
        ({"enum": []}, "no value", "invalid_value"),
        ({"const": "\ud800"}, "schema", "invalid_value"),
    ],
)
def test_what_can_not_be_held_is_refused_by_name(maker, schema, named, code):
    """A 400 with the field and the keyword, never an answer that breaks the schema."""
    output = Output("json_schema", schema, "response_format.json_schema.schema")

    with pytest.raises(BadRequest) as caught:
        maker.grammars.compile(output)

    assert caught.value.param == "response_format.json_schema.schema"
    assert caught.value.code == code
    assert str(caught.value).startswith("response_format.json_schema.schema: ")
    assert any(part in str(caught.value) for part in named.split("|"))
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_extra_is_told(folders):
    """What to install, and nothing breaks in the background before."""
    calls = []

    def missing():
        calls.append(1)
        raise ImportError("No module named 'llguidance'")

    maker = Maker(folders["gemma3"], ENDS["gemma3"], load=missing)
    maker.grammars.prepare()

    with pytest.raises(BadRequest, match=r"install ofa\[structured\]") as caught:
        maker.grammar(PERSON)

    assert caught.value.code == "unsupported_value"
    assert calls == [1, 1]


def test_a_tokenizer_of_unknown_make_is_told(folders):
    """Without each token's bytes, or an end, no answer can be held to anything."""
    plan = tiny.spm_plan(tiny.GEMMA_3)
    folder = folders["gemma3"].parent / "odd"
    odd = tiny.save_tokenizer(folder, {**plan, "decoder": {"type": "Fuse"}})

    for maker in (Maker(odd, ENDS["gemma3"]), Maker(folders["gemma3"], frozenset())):
        with pytest.raises(BadRequest, match="use another model"):
            maker.grammar(PERSON)


def test_grammars_are_kept_by_their_text(maker):
    """One object for one text; another order of properties is another answer."""
    turned = {**PERSON, "properties": dict(reversed(PERSON["properties"].items()))}

    first = maker.grammar(PERSON)

    assert maker.grammar(json.loads(json.dumps(PERSON))) is first
    assert maker.grammar(turned) is not first
    assert maker.grammar(PERSON, thinking=True) is not first


def test_rows_do_not_meet(maker):
    """Each row has its own place in the grammar they share."""
    grammar = maker.grammar(PERSON)
    one, other = grammar.processor(0), grammar.processor(0)

    allowed(one, spell(maker, '{"name":"x"'))

    assert maker.vocabulary.ids["{"] in allowed(other)
    assert maker.vocabulary.ids["{"] in allowed(grammar.processor(0))


def test_a_grammar_wears_out(maker):
    """What its rows have taught it is never given back, so it is made anew at times."""
    grammar = maker.grammar(schema := obj({"worn": INTEGER}))

    for _ in range(300):
        grammar.processor(0)

    assert grammar.worn
    assert not maker.grammar(schema).worn


def test_racing_threads_build_once(folders):
    """All of them wait for the one build, however they come."""
    loads = []

    def load():
        loads.append(1)
        return llguidance

    maker = Maker(folders["gemma3"], ENDS["gemma3"], load=load)
    start = threading.Barrier(6)
    done = []

    def work(at):
        start.wait()
        if at % 2:
            maker.grammars.prepare()
        done.append(maker.grammar(PERSON))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 6
    assert loads == [1]


def test_a_schema_that_takes_too_long_is_given_up(folders):
    """Its request is refused in time, the next one told to wait, and all is well
    again once the work has ended."""
    held = Held()
    maker = Maker(folders["gemma3"], ENDS["gemma3"], load=lambda: held, limit_s=0.05)

    with pytest.raises(BadRequest, match="too complex"):
        maker.grammar(PERSON)
    with pytest.raises(Overloaded):
        maker.grammar(INTEGER)

    held.go.set()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            found = maker.grammar(INTEGER)
        except (Overloaded, BadRequest):
            continue
        break
    assert allowed(found.processor(0))


def nest(depth, wrap, schema):
    """Return *schema* wrapped so many times."""
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def chained(count, make):
    """Return definitions, each made of references to the one before."""
    defs = {"n0": obj({"x": STRING})}
    for at in range(1, count):
        defs[f"n{at}"] = make({"$ref": f"#/$defs/n{at - 1}"})
    return {"$defs": defs, "$ref": f"#/$defs/n{count - 1}"}


NASTY = {
    "deep objects": nest(5000, lambda s: obj({"a": s}), STRING),
    "deep arrays": nest(60, lambda s: {"type": "array", "items": s}, STRING),
    "doubling properties": chained(200, lambda ref: obj({"a": ref, "b": ref})),
    "doubling allOf": chained(40, lambda ref: {"allOf": [ref, ref]}),
    "doubling anyOf": chained(40, lambda ref: {"anyOf": [ref, ref]}),
    "product of anyOf": {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": STRING}}
                       for j in range(5)]}
            for i in range(5)
        ]
    },
    "10,000 values": {"enum": [f"v{n}" for n in range(10_000)]},
    "60,000 values": {"enum": [f"value-{n}" for n in range(60_000)]},
    "1,900 objects": {"enum": [{"a": n} for n in range(1900)]},
    "1,900 optional": {"type": "object", "properties": {f"p{n}": INTEGER
                                                       for n in range(1900)}},
    "20,000 optional": {"type": "object", "properties": {f"p{n}": INTEGER
                                                        for n in range(20_000)}},
    "a megabyte": {"type": "string", "description": "x" * 1_000_000},
    "a megabyte to write": {"const": "x" * 1_000_000},
    "a long constant": {"const": "x" * 100_000},
    "1e9 items": {"type": "array", "items": {"const": 1}, "minItems": 10**9},
    "1e9 letters": {"type": "string", "minLength": 10**9},
    "a large step": {"type": "integer", "multipleOf": 999_983},
    "steps that meet": {"allOf": [{"type": "integer", "multipleOf": step}
                                  for step in (9973, 9967, 9949)]},
    "steps elsewhere": {"x": {"allOf": [{"type": "integer", "multipleOf": step}
                                        for step in (9973, 9967)]}, "$ref": "#/x"},
    "repeats of repeats": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    "states": {"type": "string", "pattern": "^(.*a.{30}|.*b.{29}|.*c.{28})$"},
    "parentheses": {"type": "string", "pattern": "(" * 20_000 + ")" * 20_000},
    "200 patterns": {"type": "object", "patternProperties": {f"^p{n}_": STRING
                                                            for n in range(200)}},
    "without an end": obj({"a": {"$ref": "#"}}),
    "a loop": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
               "$ref": "#/$defs/a"},
}  # fmt: skip


@pytest.mark.parametrize("schema", NASTY.values(), ids=NASTY)
def test_a_nasty_schema_costs_two_seconds_at_most(maker, schema):
    """It is refused, or it is ready and its first steps are quick."""
    start = time.monotonic()
    try:
        mask = maker.mask(schema)
    except BadRequest as error:
        assert len(str(error)) < 400
        assert "backtrace" not in str(error)
    else:
        walk(maker, mask, random.Random(1), steps=5)
    assert time.monotonic() - start < 4  # two, on a machine that has other work


def test_ends_beyond_the_model_are_left_out(folders):
    """An id that the model does not tell apart can't be drawn."""
    maker = Maker(folders["gemma3"], frozenset({106, 10**6}))

    after = allowed(maker.mask(INTEGER), spell(maker, "1"))

    assert 106 in after
    assert max(after) < maker.size


def test_a_model_without_the_letters_is_told(maker):
    """Where no token begins any answer it is the request that fails, at once."""
    grammars = Grammars(maker.vocabulary, logits=8, ends=frozenset({1}), thinking=None)

    with pytest.raises(BadRequest, match="no value fits"):
        grammars.compile(Output())
