"""Frames: one line an event, whatever is in it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.protocols import frames

# No deadline: the machine may be busy with other things.
QUICK = settings(deadline=None, max_examples=60)
AWKWARD = "a\r\nb\nc\u2028d\u2029e\x85f\x0bg\x0ch\x1ci\ttail  "


def test_sse_is_one_data_line():
    """An event is one data line and an empty one, also for text full of line ends."""
    frame = frames.sse({"text": AWKWARD})

    assert len(frame.splitlines()) == 2
    assert json.loads(frame.removeprefix("data: ")) == {"text": AWKWARD}


def test_sse_sends_a_string_as_it_is():
    """The end mark of OpenAI's streams is no JSON."""
    assert frames.sse("[DONE]") == "data: [DONE]\n\n"


def test_sse_names_its_event_first():
    """Dialects with named events have the name on a line before the data."""
    assert frames.sse({}, event="ping") == "event: ping\ndata: {}\n\n"


def test_comment_cannot_become_data():
    """A comment stays one line starting with a colon."""
    assert frames.comment("keep-alive\ndata: x") == ": keep-alive data: x\n\n"


def test_ndjson_is_one_line():
    """A value is one line, its line ends escaped."""
    line = frames.ndjson({"text": AWKWARD})

    assert line.splitlines() == [line[:-1]]
    assert json.loads(line) == {"text": AWKWARD}


def test_half_a_surrogate_pair_becomes_the_replacement_character():
    """What can't be encoded never breaks a stream off."""
    assert frames.encode("a\ud83d") == '"a\ufffd"'
    frames.encode("a\udc00").encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_lacks_are_an_error(value):
    """Invalid JSON never goes out."""
    with pytest.raises(ValueError, match="JSON"):
        frames.sse({"value": value})


@QUICK
@given(st.text())
def test_every_text_survives(text):
    """Any text comes back the same from an event, and from one line of it."""
    frame = frames.sse({"t": text})

    assert frame.encode().count(b"\n") == 2
    assert json.loads(frame[len("data: ") :]) == {"t": text}
