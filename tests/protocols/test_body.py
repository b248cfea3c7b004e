"""Bodies: what is refused before anything looks at it, and how fast."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.errors import BadRequest, RequestTooLarge
from ofa.protocols.body import MAX_DEPTH, cut, read_object

# No deadline: the machine may be busy with other things.
QUICK = settings(deadline=None, max_examples=60)


def refusal(raw, **options):
    """Return the error that *raw* is refused with."""
    with pytest.raises(BadRequest) as caught:
        read_object(raw, **options)
    return caught.value


def nested(depth, inner=b"1"):
    """Return an object of *depth* containers."""
    return b'{"a":' + b"[" * (depth - 1) + inner + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"{}", {}),
        (b' \t\r\n{"a": 1} \n', {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ('{"ä": "ö😀"}'.encode(), {"ä": "ö😀"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "\\\\ud83d"}', {"a": "\\ud83d"}),
        (b'{"a": "\\u0000"}', {"a": "\0"}),
        (b'{"a": 9007199254740993}', {"a": 9007199254740993}),
        (b'{"a": [{"b": 1}, {"b": 2}]}', {"a": [{"b": 1}, {"b": 2}]}),
        (b'{"a": "[[[[{{{{", "b": "\\"[["}', {"a": "[[[[{{{{", "b": '"[['}),
        (b'{"a": 1e308, "b": -0.0, "c": 5e-324}', {"a": 1e308, "b": 0.0, "c": 5e-324}),
        (b'{"a": ' + b"7" * 4300 + b"}", {"a": int("7" * 4300)}),
    ],
)
def test_objects_are_read(raw, value):
    """Valid JSON objects in UTF-8 come through exactly."""
    assert read_object(raw) == value


INVALID = [
    (b"", "empty"),
    (b" " * 100_000, "empty"),
    (b"\xef\xbb\xbf", "empty"),
    (b"[]", "must be a JSON object"),
    (b'"text"', "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b"5", "must be a JSON object"),
    (b"{", "is not JSON"),
    (b'{"a"}', "is not JSON"),
    (b'{"a": 1,}', "is not JSON"),
    (b"{'a': 1}", "is not JSON"),
    (b"{a: 1}", "is not JSON"),
    (b'{"a": 01}', "is not JSON"),
    (b'{"a": +1}', "is not JSON"),
    (b'{"a": .5}', "is not JSON"),
    (b'{"a": 0x10}', "is not JSON"),
    (b'{"a": True}', "is not JSON"),
    (b'{"a": 1} {"b": 2}', "Extra data"),
    (b'{"a": 1} junk', "Extra data"),
    (b'{"a": 1}\0', "Extra data"),
    (b'{"a": "x\ny"}', "control character"),
    (b'{"a": "x\0y"}', "control character"),
    (b'{"a": "x\x1by"}', "control character"),
    (b'{"a": "\\x41"}', "is not JSON"),
    (b'{"a": "\\u12"}', "is not JSON"),
    (b'{"a": "never ends', "is not JSON"),
    (b'{"a": "\\', "is not JSON"),
    (b"// c\n{}", "is not JSON"),
    (b'{"a": NaN}', "NaN"),
    (b'{"a": Infinity}', "Infinity"),
    (b'{"a": [-Infinity]}', "-Infinity"),
    (b'{"a": 1e999}', "too large for a double"),
    (b'{"a": -1e999}', "too large for a double"),
    (b'{"a": ' + b"7" * 4301 + b"}", "4300 digits"),
    (b'{"a": ' + b"7" * 100_000 + b"}", "4300 digits"),
    (b'{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
    (b'{"x": [{"b": 1, "b": 1}]}', "'b' stands twice"),
    (b'{"a": 1, "\\u0061": 2}', "'a' stands twice"),
    (b'\xff\xfe{"a": 1}', "not UTF-8"),
    ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    ('{"a": 1}'.encode("utf-16-le"), "is not JSON"),
    ('{"a": 1}'.encode("utf-32"), "not UTF-8"),
    ('{"a": "é"}'.encode("latin-1"), "not UTF-8"),
    (b'{"a": "\xed\xa0\xbd"}', "not UTF-8"),
    (b'{"a": "\xc0\xaf"}', "not UTF-8"),
    (b"\x1f\x8b\x08\x00", "not UTF-8"),
    (nested(MAX_DEPTH + 1), "nests deeper"),
    (b'{"a":' * 100_000, "nests deeper"),
    (b"[" * 100_000, "nests deeper"),
]


@pytest.mark.parametrize(("raw", "words"), INVALID)
def test_everything_else_is_invalid_json(raw, words):
    """Each refusal says what is wrong, has the one code, and repeats no content."""
    error = refusal(raw)

    assert words in str(error)
    assert (error.status, error.code) == (400, "invalid_json")
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"a": "\\ud800"}', "a"),
        (b'{"a": "x\\udc00y"}', "a"),
        (b'{"a": ["", {"b": "\\ud83dx"}]}', "a[1].b"),
        (b'{"a": {"\\ud83d": 1}}', "a"),
        (b'{"\\udfff": 1}', None),
        (b'{"messages": [{"content": "\\ude00\\ud83d"}]}', "messages[0].content"),
    ],
)
def test_half_a_surrogate_pair_is_named(raw, param):
    """Text that could not be sent back out is refused where it stands."""
    error = refusal(raw)

    assert error.code == "invalid_json"
    assert error.param == param


def test_depth_at_the_limit_is_fine():
    """The limit is on containers within containers, and the last one still fits."""
    assert read_object(nested(MAX_DEPTH))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": [' + b"1," * 500_000 + b"1]}",
        b'{"a": "' + b'\\"' * 1_000_000,
        b'"' * 1_500_000,
        b"{" * 1_500_000,
        b'{"a": "' + b"\\ud83d\\ude00" * 100_000 + b'"}',
        b"{" + b",".join(b'"k%d": 1' % i for i in range(80_000)) + b"}",
    ],
    ids=["items", "unterminated", "quotes", "braces", "surrogates", "keys"],
)
def test_hostile_bodies_take_linear_time(raw):
    """Megabytes of the worst kinds are read or refused within seconds."""
    start_s = time.perf_counter()
    with suppress(BadRequest):
        read_object(raw)

    assert time.perf_counter() - start_s < 8


def test_the_limit_counts_what_is_no_image():
    """Pictures may be large; text over the limit is refused before it is parsed."""
    image = b'{"url": "data:image/png;base64,' + b"A" * 5000 + b'"}'

    assert read_object(image, limit_bytes=1000)
    with pytest.raises(RequestTooLarge, match="1000 are allowed"):
        read_object(b'{"text": "' + b"A" * 5000 + b'"}', limit_bytes=1000)


def test_messages_quote_bounded_names():
    """A name made long by combining marks is cut by bytes, at a character."""
    assert cut("short") == "short"
    assert cut("e" + "\u0301" * 1000) == "e" + "\u0301" * 31 + "..."
    assert cut("\ud800") == "?"


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False).filter(lambda value: abs(value) != float("inf"))
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)


@QUICK
@given(st.dictionaries(st.text(max_size=5), TREES, max_size=5))
def test_what_json_writes_is_read_back(value):
    """Every object that the standard library writes comes back equal."""
    assert read_object(json.dumps(value).encode()) == value
    assert read_object(json.dumps(value, ensure_ascii=False).encode()) == value


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_refusal(raw):
    """No bytes raise anything but a refusal."""
    try:
        assert isinstance(read_object(raw), dict)
    except BadRequest as exc:
        assert exc.code == "invalid_json"
