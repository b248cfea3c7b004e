"""The syntax that Gemma's tool-trained models share, with either one's tokens."""

import contextlib
import json
import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ofa.chat import Tool
from ofa.toolcalls.base import Found, Unreadable, plain
from ofa.toolcalls.dsl import LIMIT

from .dsl_texts import FAMILIES, alias, block, written
from .strategies import ANYTHING, STRINGS, TOOL_NAMES, schemas

EXAMPLES = 150
OBJECTS = st.dictionaries(
    st.one_of(STRINGS, st.just("file-path")), ANYTHING, max_size=4
)

both = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def read(family, body, mark=alias):
    """Return the calls in a block of *body*, in which ~ is the quote token."""
    return family(mark).read(block(family.tokens, body, mark))


def arguments(family, body):
    """Return the arguments of the one call ``call:f{body}``, and its repairs."""
    (found,) = read(family, f"call:f{{{body}}}")
    return found.arguments, found.repairs


@both
@settings(max_examples=EXAMPLES, deadline=None)
@given(name=TOOL_NAMES, given=OBJECTS)
@example(name="f", given={"n": 2**200, "f": 1e300, "e": "", "": {"": []}, "-": -0.5})
@example(name="f", given={'<|"|>': '<tool_call|> <|"|>}', "<escape>": "<escape>"})
@example(name="f", given={"n": None, "t": True, "s": "None\\n\n'\""})
def test_a_call_written_is_read_back_at_every_cut(family, name, given):
    """Any JSON object survives, and where the call ends is known at its end alone."""
    form = family(alias)
    text = written(form, alias, (name, given))

    assert text.startswith(form.openers[0])
    cuts = range(len(form.openers[0]), len(text))
    assert {form.length(text[:cut]) for cut in cuts} <= {None}
    assert form.length(text) == form.length(text + "} more") == len(text)
    assert form.read(text) == [Found(name, given)]
    (found,) = form.read(text)  # 1 is 1.0 and True to Python, but not in JSON
    assert json.dumps(found.arguments, sort_keys=True) == json.dumps(
        given, sort_keys=True
    )


@both
@pytest.mark.parametrize("mark", [alias, str], ids=["alias", "spelled"])
def test_calls_in_a_row_end_one_by_one(family, mark):
    """Each block is cut off alone; the next begins behind it."""
    form = family(mark)
    calls = [("a", {"x": "1}"}), ("b-c", {}), ("d", {"y": [{"z": "{"}]})]
    text = written(form, mark, *calls)

    found = []
    while text:
        length = form.length(text)
        found += form.read(text[:length])
        text = text[length:]

    assert [(call.name, call.arguments) for call in found] == calls


@both
def test_several_calls_in_one_block(family):
    """A model that forgets to close between two calls has still written both."""
    found = read(family, "call:a{x:1}\n call:b{}")

    assert [(call.name, call.arguments) for call in found] == [
        ("a", {"x": 1}),
        ("b", {}),
    ]


@both
def test_a_control_token_in_a_string_is_text(family):
    """Written as the token itself, between quotes, it is given back as characters."""
    tokens = family.tokens
    body = f"call:f{{s:~see {alias(tokens.call)}call:x and {alias(tokens.called)}~}}"
    text = block(tokens, body, alias)
    form = family(alias)

    assert {form.length(text[:cut]) for cut in range(len(text))} <= {None, 0}
    assert form.length(text) == len(text)
    assert form.read(text) == [
        Found("f", {"s": f"see {tokens.call}call:x and {tokens.called}"})
    ]


@both
def test_a_string_left_open_does_not_swallow_the_next_call(family):
    """The broken call ends where it was closed; the next one is whole."""
    form = family(alias)
    broken = block(family.tokens, "call:f{a:~x}", alias)
    whole = block(family.tokens, "call:g{b:~y~}", alias)

    assert form.length(broken) is None
    assert form.length(broken + whole) == len(broken)
    with pytest.raises(Unreadable, match="not closed"):
        form.read(broken)
    assert form.read(whole) == [Found("g", {"b": "y"})]


@both
def test_a_second_opener_within_a_call_is_unreadable(family):
    """Nothing is guessed about where the first should have ended."""
    with pytest.raises(Unreadable):
        read(family, f"call:f{{a:1{alias(family.tokens.call)}call:f{{a:1}}")


@both
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", {}),
        (" ", {}),
        ("a:1, b : 2,\n c:\t3 ", {"a": 1, "b": 2, "c": 3}),
        ('"a":1,~b~:2,"":3', {"a": 1, "b": 2, "": 3}),
        ("a-b:1,$id:2,x.y:3,größe:4", {"a-b": 1, "$id": 2, "x.y": 3, "größe": 4}),
        ('a:"x, y:\\n\\u00e9\\ud83d\\ude00"', {"a": "x, y:\né😀"}),
        ('a:"one\ntwo"', {"a": "one\ntwo"}),
        (r"a:~C:\d\U\n~", {"a": r"C:\d\U\n"}),
        ("a:~{}[],:~", {"a": "{}[],:"}),
        ("a:~~", {"a": ""}),
        ("a:[],b:[[1],{}],c:{d:{e:[~x~]}}", {"a": [], "b": [[1], {}],
                                             "c": {"d": {"e": ["x"]}}}),
        ("a:true,b:false,c:null", {"a": True, "b": False, "c": None}),
        ("a:-0,b:1.50,c:-2e-3,d:1E+2", {"a": 0, "b": 1.5, "c": -0.002, "d": 100.0}),
        ("a:9007199254740993,b:-18446744073709551617",
         {"a": 9007199254740993, "b": -18446744073709551617}),
        ("a:1,b:2,a:3", {"a": 3, "b": 2}),
    ],
)  # fmt: skip
def test_what_the_grammar_allows(family, body, expected):
    """It is read as it stands; nothing had to be mended."""
    assert arguments(family, body) == (expected, ())


@both
@pytest.mark.parametrize(
    ("body", "expected", "repair"),
    [
        ("a=1", {"a": 1}, "syntax"),
        ("a='x y', b = 'z'", {"a": "x y", "b": "z"}, "syntax quotes"),
        ("a:'it\\'s'", {"a": "it's"}, "quotes"),
        ("'a':1", {"a": 1}, "quotes"),
        ("a:1,", {"a": 1}, "commas"),
        ("a:[1,2,],", {"a": [1, 2]}, "commas"),
        ("a:True,b:None", {"a": True, "b": None}, "syntax"),
    ],
)
def test_drift_with_one_meaning_is_read_and_told(family, body, expected, repair):
    """What small models write instead is taken where it can mean nothing else."""
    assert arguments(family, body) == (expected, tuple(repair.split()))


@both
def test_a_whole_call_without_its_closing_token(family):
    """A model that just stops behind the last brace has said all there is."""
    form = family(alias)
    text = block(family.tokens, "call:f{a:1}", alias)
    text = text.removesuffix(alias(family.tokens.called))

    assert form.length(text) is None
    assert form.read(text) == [Found("f", {"a": 1}, ("closing",))]


@both
@pytest.mark.parametrize(
    "value",
    ["+1", "01", "1.", ".1", "1e", "--1", "0x1", "1_0", "NaN", "-Infinity", "1e999",
     "9" * 5000, "word", "a b", "", "undefined", "tru", "truefalse", "1 2", "~x", '"x',
     "'x", "'C:\\new'", "'it's'", '"\\ud800"', '"\\x"', "{", "[1", "[1,,2]", "{a}",
     "{a:}", "{:1}", "{,}", "(1)", "~a~~b~", "1}", "\u0661"],
)  # fmt: skip
def test_what_is_no_value_is_refused(family, value):
    """Numbers as JSON has them, words in quotes, nothing half or doubled."""
    with pytest.raises(Unreadable):
        read(family, f"call:f{{a:{value}}}")


@both
@pytest.mark.parametrize(
    "body",
    ["", "call:", "call:f", "call:f{", "call:{}", "call:f g{}", "f{}", "call:f{}x",
     "call:f{}}", "call:f{} and more", "call:f{},call:g{}", "call:f()", "call:f{a b:1}",
     "call:f{a/b:1}", "call:f{a:1 b:2}", "call:f{a:1;b:2}", '{"name":"f"}', "~f~{}",
     "call:~f~{}"],
)  # fmt: skip
def test_what_is_no_call_is_refused(family, body):
    """The message is one line and quotes nothing of what was written."""
    with pytest.raises(Unreadable) as caught:
        read(family, body)

    assert "\n" not in str(caught.value)
    assert "\ue000" not in str(caught.value)


@both
def test_nesting_is_bounded(family):
    """64 deep is read, 65 and any number more is refused."""

    def nested(depth):
        return "call:f{a:" + "[" * (depth - 1) + "]" * (depth - 1) + "}"

    assert read(family, nested(64))[0].name == "f"
    for depth in (65, 100_000):
        with pytest.raises(Unreadable, match="deep"):
            read(family, nested(depth))


@both
def test_size_is_bounded(family):
    """A call that won't end is cut at 256 KiB, and is none."""
    form = family(alias)
    text = block(family.tokens, "call:f{a:~" + "x" * LIMIT, alias)

    assert form.length(text[:LIMIT]) is None
    assert form.length(text[: LIMIT + 1]) == LIMIT
    assert form.length(text) == LIMIT
    with pytest.raises(Unreadable, match="too long"):
        form.read(text[:LIMIT])


@both
@pytest.mark.parametrize("mark", [alias, str], ids=["alias", "spelled"])
@pytest.mark.parametrize(
    "prose",
    [" opens a call.", "`: the opener", "s are tokens", ", then", "\n\nIt is {a}"],
)
def test_the_opener_in_prose_is_no_call(family, mark, prose):
    """A model that explains its syntax is let speak, at every cut."""
    form = family(mark)
    text = mark(family.tokens.call) + prose

    lengths = [form.length(text[:cut]) for cut in _cuts(form, text)]

    assert lengths[-1] == 0
    assert set(lengths) <= {None, 0}
    assert lengths == sorted(lengths, key=lambda length: length is not None)


def _cuts(form, text):
    return range(len(form.openers[0]), len(text) + 1)


@both
@pytest.mark.parametrize("mark", [alias, str], ids=["alias", "spelled"])
def test_where_a_call_ends_does_not_depend_on_the_cut(family, mark):
    """What is said of a beginning, once it isn't "not yet", is said of the whole."""
    pieces = ["call:", "f", " ", "{", "}", "a:1", "x", mark(family.tokens.quote),
              mark(family.tokens.called), mark(family.tokens.call)]  # fmt: skip
    form = family(mark)
    choose = random.Random(7)
    for _ in range(1500):
        some = "".join(choose.choices(pieces, k=choose.randint(1, 14)))
        text = mark(family.tokens.call) + some
        whole = form.length(text)
        said = [form.length(text[:cut]) for cut in _cuts(form, text)]
        first = next((n for n, length in enumerate(said) if length is not None), None)

        assert said[-1] == whole
        assert first is None or set(said[first:]) == {whole}


@both
def test_mutated_calls_are_read_or_refused(family):
    """2,000 broken calls: `Unreadable` and nothing else, and soon."""
    form = family(alias)
    sound = written(
        form, alias,
        ("f-1", {"a": "x\n{}", "b": [1, -2.5e3, None, {"c": [True, ""]}], "d e": "'"}),
    )  # fmt: skip
    quote, close = alias(family.tokens.quote), alias(family.tokens.called)
    noise = [
        *"{}[]:,='\"\\ \n0-.e",
        quote,
        close,
        form.openers[0],
        "call:",
        "NaN",
        "\0",
    ]
    choose = random.Random(11)
    started = time.process_time()
    for _ in range(2000):
        text = sound
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(text))
            gone = choose.choice((0, 1, 1, 5, 30))
            text = text[:at] + choose.choice(noise) + text[at + gone :]
        length = form.length(text)
        assert length is None or 0 <= length <= len(text)
        try:
            for found in form.read(text):
                json.dumps(found.arguments, allow_nan=False).encode()
        except Unreadable:
            pass
    assert time.process_time() - started < 20


@both
@pytest.mark.parametrize(
    "unit", ["~", "'", '"', "{", "[", "a:", "\\'", " ", "call:f{}", "9", "~a~,", "tru"]
)
def test_time_grows_as_the_text_does(family, unit):
    """A call of the largest size, whatever it is made of, is done with in a moment."""
    form = family(alias)
    inner = unit * ((LIMIT - 200) // len(unit.replace("~", alias(family.tokens.quote))))
    started = time.process_time()
    for body in (f"call:f{{a:{inner}", f"call:f{{a:'{inner}", f"call:f{{a:[{inner}]}}"):
        text = block(family.tokens, body, alias)
        form.length(text)
        with contextlib.suppress(Unreadable):
            form.read(text)
    assert time.process_time() - started < 5


@both
@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(name=TOOL_NAMES, told=STRINGS, schema=schemas())
def test_declarations_hold_what_authors_wrote_apart(family, name, told, schema):
    """A name, a description, a key: never within our syntax; one order for all."""
    form = family(alias)
    tools = [Tool(name, told, schema), Tool("zz", told, schema)]

    markup = form.declare(tools)

    assert markup == form.declare(tools[::-1])
    ours = "".join(piece.text for piece in markup if piece.ours)
    assert ours.count(family.tokens.declare) == ours.count(family.tokens.declared) == 2
    assert ours.count(family.tokens.quote) % 2 == 0
    assert ours.count("{") == ours.count("}")
    assert told in plain(markup)
    assert "$ref" not in ours


@both
def test_no_tools_no_declaration(family):
    """Without tools not a character is added."""
    assert family(alias).declare([]) == ()
