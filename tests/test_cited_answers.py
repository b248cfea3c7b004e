"""`[rag] cite` over HTTP: a list of sources, streamed and whole, and gone again."""

from __future__ import annotations

from typing import Any

import pytest

from .rag.shelves import HPC, Letters, parsed, put
from .running import frames, serving, text_of

QUESTION = "How do I start a job after another ended without error?"
SCRIPT = [
    "Use afterok.",
    [{"text": "cut"}, {"end": "length"}],
    [{"text": "I look."}, {"call": {"name": "look", "arguments": {}}}],
    [{"echo": "all"}],
]
LISTED = "\n\nSources looked up: [1] `hpc/slurm/after.md`"
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.fixture
def client(tmp_path):
    """Run a whole server with an index, searched by words; its answers play SCRIPT."""
    put(tmp_path / "state" / "rag", parsed("hpc", HPC), Letters())
    with serving(tmp_path, SCRIPT, rag__enabled=True, rag__cite=True) as client:
        yield client


def body(*more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a request with the question and *more* messages."""
    messages = [{"role": "user", "content": QUESTION}, *more]
    return {"model": "ofa-hpc", "messages": messages, **fields}


def whole(client, request):
    """Return the choices and usage of an answer in one piece."""
    told = frames(b"data: " + client.chat(request)[2])[0]
    return told["choices"], told["usage"]


def test_whole_and_streamed_answers_have_it_alike(client):
    """Behind the text, before the finish; none for a cut one and for calls."""
    seen = []
    for fields in ({}, {}, {"tools": [TOOL]}):
        (choice,), usage = whole(client, body(**fields))
        seen.append((choice["message"]["content"], choice["finish_reason"], usage))
    client.chat(body())  # the script's last answer: from here on it is played again
    streamed = []
    for fields in ({}, {}, {"tools": [TOOL]}):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = client.chat(body(**fields, **options))[2]
        *_, last, counted, done = frames(stream)
        finish = last["choices"][0]["finish_reason"]
        streamed.append((text_of(stream), finish, counted["usage"]))
        assert done == "[DONE]"

    texts = [text for text, _, _ in seen]
    assert texts[0].startswith(f"Use afterok.{LISTED}")
    assert texts[1:] == ["cut", "I look."]
    assert [finish for _, finish, _ in seen] == ["stop", "length", "tool_calls"]
    assert seen[0][2]["completion_tokens"] == 2, "what the engine wrote, no more"
    assert streamed == seen


def test_each_of_several_answers_has_its_own(client):
    """The one that is cut has none."""
    choices, _ = whole(client, body(n=2))

    first, second = (choice["message"]["content"] for choice in choices)
    assert first.startswith(f"Use afterok.{LISTED}") and second == "cut"


def test_it_does_not_come_back_to_the_model(client):
    """The engine is asked with the answer as it wrote it."""
    (first,), _ = whole(client, body())
    for _ in range(2):
        client.chat(body())
    history = [
        {"role": "assistant", "content": first["message"]["content"]},
        {"role": "user", "content": "zzzz qqqq"},
    ]

    (echoed,), _ = whole(client, body(*history))

    assert "Use afterok." in echoed["message"]["content"]
    assert "Sources looked up" not in echoed["message"]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"stop": ["END"]},
        {"logprobs": True},
    ],
    ids=str,
)
def test_what_programs_read_has_none(client, fields):
    """Nothing stands behind JSON, a text cut to measure, or counted tokens."""
    (choice,), _ = whole(client, body(**fields))

    assert choice["message"]["content"] == "Use afterok."
