"""JSON as models write it."""

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.toolcalls.base import Unreadable
from ofa.toolcalls.loose_json import read_json, read_object

from .strategies import ANYTHING


@pytest.mark.parametrize(
    ("text", "value", "repairs"),
    [
        (' {"a": [1, -2.5e3, true, null]} ', {"a": [1, -2500.0, True, None]}, ()),
        ('{"a": 1, "a": 2}', {"a": 2}, ()),
        (str(10**40), 10**40, ()),
        ('{"a": 1,}', {"a": 1}, ("comma",)),
        ("[1, 2, ]", [1, 2], ("comma",)),
        ("{'a': 'it\\'s \"b\"'}", {"a": 'it\'s "b"'}, ("quotes",)),
        ("{path: 1, a-b: 2, $id: 3}", {"path": 1, "a-b": 2, "$id": 3}, ("keys",)),
        ('{"a": True, "b": None}', {"a": True, "b": None}, ("literals",)),
        ('{"a": 1} // x', {"a": 1}, ("comments",)),
        ('# x\n{"a": /* , */ 1}', {"a": 1}, ("comments",)),
        ('{"a": "x\ny"}', {"a": "x\ny"}, ("newlines",)),
        ('```json\n{"a": 1}\n```', {"a": 1}, ("fence",)),
        ("```\n{a: 1,}\n```", {"a": 1}, ("fence", "keys", "comma")),
        (r'{"a": "\d+\'"}', {"a": "\\d+'"}, ("escapes",)),
        (r'{"a": "\u00e9\n",}', {"a": "é\n"}, ("comma",)),
        (r'{"a": "\ud83d\ude00",}', {"a": "😀"}, ("comma",)),
        ('{"a": "// no comment", }', {"a": "// no comment"}, ("comma",)),
        ("[]", [], ()),
        ("[[],{},]", [[], {}], ("comma",)),
    ],
)
def test_what_has_one_reading_is_read(text, value, repairs):
    """Strict JSON is read as it is; what is mended is named."""
    read, told = read_json(text)

    assert (read, sorted(told)) == (value, sorted(repairs))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ends before"),
        ('{"a": 1', "ends before"),
        ('{"a": [1, 2}', "missing"),
        ('{"a": "x', "ends before"),
        ('{"a": "x\\', "ends before"),
        ('{"a', "ends before"),
        ("{'a': 'it's'}", "missing"),
        ('{"a" 1}', "':' is missing"),
        ("[1 2]", "missing"),
        ("[,]", "a value is missing"),
        ("{,}", "a key is missing"),
        ("{a: b}", "neither quoted"),
        ('{"a": NaN}', "NaN"),
        ("{a: Infinity}", "neither quoted"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "too large"),
        ("{a: 1e999}", "too large"),
        ("1" * 5000, "too large"),
        ("{a: 01}", "no JSON number"),
        ("{a: 1.}", "no JSON number"),
        ("{a: 1x}", "no JSON number"),
        ("{a: +1}", "a value is missing"),
        ('{"a": 1} and so on', "more behind"),
        ('{"a": 1}{"a": 1}', "more behind"),
        ('```json\n{"a": 1}', "missing"),
        (r'{"a": "\u12"}', "four digits"),
        (r'{"a": "\ud800"}', "half a character"),
        (r'{"a": "\ud800\u0041",}', "half a character"),
        ('["\ud800",]', "half a character"),
        ("/* x", "missing"),
        ("[" * 65 + "]" * 65, "nested"),
        ("[" * 65 + "1," + "]" * 65, "nested"),
        ("[" * 100_000, "nested"),
        ("__import__('os')", "neither quoted"),
    ],
)
def test_what_has_no_reading_is_not_guessed(text, why):
    """What was cut, or isn't JSON in anyone's hand, is refused with a reason."""
    with pytest.raises(Unreadable, match=why):
        read_json(text)


@given(ANYTHING)
@settings(max_examples=150, deadline=None)
def test_strict_json_is_read_as_it_is(value):
    """What a serializer writes comes back equal, with nothing mended."""
    assert read_json(json.dumps(value)) == (value, ())
    assert read_json(json.dumps(value, ensure_ascii=False)) == (value, ())


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text("ab'\"{}[],:# é", max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("ab:", max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
@settings(max_examples=150, deadline=None)
def test_what_python_prints_is_read(value):
    """A dict in Python's own spelling is read as what it was."""
    assert read_json(repr(value))[0] == value


@given(st.text("{}[]\"'\\:,ab1-.eE#/*\n\tTNu`", max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    """There is a value that JSON can hold, or `Unreadable`; nothing else."""
    try:
        value, _ = read_json(text)
    except Unreadable as error:
        assert str(error)
    else:
        json.dumps(value, allow_nan=False)


@given(ANYTHING, st.data())
@settings(max_examples=100, deadline=None)
def test_what_was_cut_is_never_completed(value, data):
    """No beginning of an object or a list is read as one."""
    text = json.dumps({"k": value})
    cut = data.draw(st.integers(1, len(text) - 1))

    with pytest.raises(Unreadable):
        read_json(text[:cut])


@pytest.mark.parametrize(
    "text",
    [
        "[" + "'a'," * 100_000 + "]",
        "{'a': '" + "\\x" * 100_000 + "'}",
        "[" + "/*" * 100_000,
        "[1," + " " * 300_000 + "x]",
        "[" + "# c\n" * 100_000 + "1,]",
        "```" * 100_000,
    ],
    ids=["items", "escapes", "comment", "blanks", "comments", "fences"],
)
def test_reading_takes_time_in_proportion(text):
    """A quarter of a megabyte of the worst is read or refused within seconds."""
    began_s = time.thread_time()

    with contextlib.suppress(Unreadable):
        read_json(text)

    assert time.thread_time() - began_s < 10


@pytest.mark.parametrize(
    ("value", "expected", "repairs"),
    [
        ({"a": 1}, {"a": 1}, ()),
        ('{"a": 1}', {"a": 1}, ()),
        ("{a: 1}", {"a": 1}, ("keys",)),
        (json.dumps('{"a": 1}'), {"a": 1}, ("encoded",)),
        (json.dumps('{"a": 1,}'), {"a": 1}, ("encoded", "comma")),
    ],
)
def test_arguments_are_an_object_or_a_text_of_one(value, expected, repairs):
    """An object encoded twice is decoded twice, and said so."""
    assert read_object(value) == (expected, repairs)


@pytest.mark.parametrize("value", [None, 3, [], "[]", "3", '"\\"3\\""', "null", ""])
def test_what_holds_no_object_is_unreadable(value):
    """Nothing else stands for arguments, null included."""
    with pytest.raises(Unreadable):
        read_object(value)
