"""JSON with comments: read as editors do, changed without touching other bytes."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.jsonc import JsoncError, appended, line_of, parse, replaced

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
# What may stand between two tokens; a line comment carries its own end.
GAPS = st.lists(
    st.sampled_from(
        (" ", "\t", "\n", "\r\n", '// , ] } "\n', '/* , ] " \n // */', "/**/")
    ),
    max_size=3,
).map("".join)


@st.composite
def arrays(draw):
    """Return an array's text with gaps everywhere, its values, and their texts."""
    values = draw(st.lists(VALUES, max_size=4))
    written = [json.dumps(value, ensure_ascii=draw(st.booleans())) for value in values]
    parts = [draw(st.sampled_from(("", "\ufeff"))) + draw(GAPS), "["]
    for number, text in enumerate(written):
        comma = "," if number + 1 < len(written) or draw(st.booleans()) else ""
        parts += [draw(GAPS), text, draw(GAPS), comma]
    parts += [draw(GAPS), "]", draw(GAPS)]
    return "".join(parts), values, written


@given(arrays())
def test_values_and_their_places_are_found(made):
    """Each element's span is its own text, whatever stands around it."""
    text, values, written = made

    array = parse(text)

    assert array.value == values
    assert [text[e.start : e.end] for e in array.elements] == written


@given(arrays(), VALUES, st.data())
def test_a_replacement_keeps_every_other_byte(made, value, data):
    """What stands before and behind an element is the same afterwards."""
    text, values, _ = made
    if not values:
        return
    number = data.draw(st.integers(0, len(values) - 1))
    element = parse(text).elements[number]

    new = replaced(text, element, value)

    assert new.startswith(text[: element.start])
    assert new.endswith(text[element.end :])
    assert parse(new).value == [*values[:number], value, *values[number + 1 :]]


@given(arrays(), VALUES)
def test_an_added_element_takes_nothing_away(made, value):
    """Only a comma, the new text and white space before the bracket are added."""
    text, values, _ = made
    array = parse(text)

    new = appended(text, array, value)

    assert parse(new).value == [*values, value]
    assert new.endswith(text[array.end - 1 :])
    rest = iter(new)
    kept = text[: array.end - 1].rstrip()
    assert all(character in rest for character in kept), "a subsequence of the new"


@given(arrays(), VALUES)
def test_changing_back_gives_the_first_bytes(made, value):
    """An element that is replaced by its own text again leaves no trace elsewhere."""
    text, values, written = made
    if not values:
        return
    first = parse(text).elements[0]

    new = replaced(text, first, value)
    at = parse(new).elements[0]

    assert new[: at.start] + written[0] + new[at.end :] == text


@given(arrays(), VALUES)
def test_writing_twice_is_writing_once(made, value):
    """The second run finds what the first wrote and makes the same bytes."""
    text, values, _ = made
    once = appended(text, parse(text), value)

    again = replaced(once, parse(once).elements[-1], value)

    assert again == once


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_text_cut_anywhere_is_refused(newline):
    """A file that was half written is never taken for a shorter one."""
    text = newline.join(
        (
            "// head",
            "[",
            '  {"name": "a \\" ] b", "n": [-1.5e3, true, null, {}], /* c */ },',
            '  {"name": "é"}, // last',
            "]",
        )
    )
    assert len(parse(text).elements) == 2

    for length in range(len(text)):
        with pytest.raises(JsoncError):
            parse(text[:length])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("// only a comment", 1),
        ("[1,\n 2 3]", 2),
        ("[1,\r\n\r\n,]", 3),
        ("[,]", 1),
        ('{"a" 1}', 1),
        ('{"a": 1,, }', 1),
        ("{a: 1}", 1),
        ("{'a': 1}", 1),
        ("[1]\n[2]", 2),
        ("[1] x", 1),
        ("[01]", 1),
        ("[1e999]", 1),
        ("[NaN]", 1),
        ("[.5]", 1),
        ('["a\nb"]', 1),
        ('\n["a\\x"]', 2),
        ("[tru]", 1),
        ("[/* open ]", 1),
        ("[1}", 1),
        ("[" * 5000, 1),
        ("[" + "9" * 5000 + "]", 1),
    ],
)
def test_what_is_no_json_is_refused_with_its_line(text, line):
    """The line is what a person needs to repair the file."""
    with pytest.raises(JsoncError, match=re.escape(f"line {line}: ")) as caught:
        parse(text)
    assert caught.value.line == line


def test_the_last_of_two_equal_names_counts():
    """As in every JSON reader of editors."""
    assert parse('{"a": 1, "a": 2}').value == {"a": 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[]", '[\n\t{\n\t\t"a": 1\n\t}\n]'),
        ("[ // none yet\n]\n", '[ // none yet\n\t{\n\t\t"a": 1\n\t}\n]\n'),
        ("[\n  1\n]", '[\n  1,\n  {\n    "a": 1\n  }\n]'),
        ("[\n  1, // one\n]", '[\n  1, // one\n  {\n    "a": 1\n  }\n]'),
        ("[\n  1 // one\n]", '[\n  1, // one\n  {\n    "a": 1\n  }\n]'),
        ("[1]", '[1,\n\t{\n\t\t"a": 1\n\t}\n]'),
        ("[\r\n  1\r\n]", '[\r\n  1,\r\n  {\r\n    "a": 1\r\n  }\r\n]'),
    ],
)
def test_an_added_element_looks_like_its_neighbours(before, after):
    """Indentation and line ends are those of the file."""
    assert appended(before, parse(before), {"a": 1}) == after


def test_lines_are_counted_in_every_convention():
    """CR LF is one line's end."""
    assert [line_of("a\nb\r\nc\rd", at) for at in (0, 2, 5, 7)] == [1, 2, 3, 4]
