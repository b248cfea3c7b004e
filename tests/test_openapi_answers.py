"""Real answers of a whole server are those that docs/openapi.yaml has."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ofa.engine.base import Status

from .running import Client, frames, serving
from .spec import SPEC, resolved, valid
from .web_fakes import Site

# Of HTTP itself, on any answer.
_TRANSPORT = {
    *("content-length", "content-type", "connection", "date"),
    *("transfer-encoding", "vary"),
}
_CHAT = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}
_TOOL = {"type": "function", "function": {"name": "look"}}


def operation_of(method: str, path: str) -> Mapping[str, Any]:
    """Return the document's operation that answers a request, {} if there is none."""
    plain = path.partition("?")[0]
    for template, operations in SPEC["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), plain):
            return operations.get(method.lower(), {})
    return {}


def check(method: str, path: str, got: tuple[int, Mapping[str, str], bytes]) -> None:
    """Raise unless an answer is one that the document has: status, headers, body."""
    status, headers, body = got
    responses = operation_of(method, path).get("responses", {})
    refused = {"$ref": "#/components/responses/Refused"}
    response = resolved(responses.get(str(status), responses.get("default", refused)))
    _check_headers(response["headers"], headers)
    media = headers["content-type"].partition(";")[0]
    if media == "application/json":
        valid(json.loads(body), response["content"][media]["schema"])
        return
    assert media in response["content"]
    if media == "text/html":
        return
    *events, done = frames(body)
    assert done == "[DONE]"
    for event in events:
        valid(event, "Error" if "error" in event else "ChatChunk")


def _check_headers(documented: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    known = {name.lower(): resolved(row) for name, row in documented.items()}
    for name, value in headers.items():
        if name not in _TRANSPORT:
            assert name in known, f"{name} is not documented"
            valid(value, known[name]["schema"])


SCRIPT = [
    "Hello.",
    [{"thought": "hm"}, {"text": "one"}, {"call": {"name": "f", "arguments": {}}}],
    [{"call": {"name": "f", "arguments": {"a": [1, "é"]}}}],
    [{"text": "cut"}, {"end": "length"}],
    [{"text": "part"}, {"fail": "broken"}],
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Client]:
    """Yield a client of a whole server whose answers are `SCRIPT`, over and over."""
    with serving(tmp_path_factory.mktemp("spec"), SCRIPT) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/ofa-vasp", 200),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/ofa/byok", 200),
        ("GET", "/v1/ofa/byok?key=ui&port=40123", 200),
        ("GET", "/v1/ofa/byok?port=0", 400),
        ("GET", "/v1/ofa/byok?key=both", 400),
        ("GET", "/v1/ofa/status", 200),
        ("GET", "/v1/ofa/retrieve?model=hpc&q=x", 404),
        ("GET", "/v1/ofa/retrieve?model=hpc", 400),
        ("GET", "/ofa", 200),
        ("GET", "/v1/none", 404),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
    ],
)
def test_pages_are_as_documented(site, method, path, status):
    """Status, headers and body of what takes no body fit the document."""
    got = site.ask(method, path)

    assert got[0] == status
    check(method, path, got)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_answers_are_as_documented(site, stream, usage):
    """Text, thoughts, calls, cuts and failures fit the document, whole and streamed."""
    options = {"stream_options": {"include_usage": usage}} if stream else {}
    statuses = []
    for _ in SCRIPT:
        got = site.chat(
            {**_CHAT, "stream": stream, "foo": 1, "verbosity": "low"} | options
        )
        statuses.append(got[0])
        check("POST", "/v1/chat/completions", got)
        if got[0] == 200:
            assert got[1]["x-ofa-ignored"] == "foo, verbosity"

    assert sorted(set(statuses)) == ([200] if stream else [200, 502])


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({**_CHAT, "model": "none"}, {}, 404),
        ({**_CHAT, "temperature": 3}, {}, 400),
        ({**_CHAT, "n": 129}, {}, 400),
        ({**_CHAT, "top_logprobs": 2}, {}, 400),
        ({**_CHAT, "response_format": {"type": "json_schema"}}, {}, 400),
        (
            {**_CHAT, "messages": [{"role": "user", "content": [{"type": "file"}]}]},
            {},
            400,
        ),
        ([], {}, 400),
        (_CHAT, {"Content-Type": "text/plain"}, 415),
        (_CHAT, {"Host": "elsewhere.example"}, 403),
        (_CHAT, {"Origin": "https://elsewhere.example"}, 403),
        (_CHAT, {"Authorization": "Bearer wrong"}, 401),
        (_CHAT, {"Authorization": "Bearer"}, 401),
        (_CHAT, {"Expect": "a miracle"}, 417),
    ],
    ids=repr,
)
def test_refusals_are_as_documented(site, body, headers, status):
    """Whatever refuses a chat, the app or the socket's side, it is in the document."""
    got = site.chat(body, headers)

    assert got[0] == status
    check("POST", "/v1/chat/completions", got)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_with_logprobs_are_as_documented(site, stream):
    """Every answer of the script beside the one after it, token by token."""
    fields = {"n": 2, "logprobs": True, "top_logprobs": 3, "stream": stream}
    for _ in SCRIPT:
        got = site.chat({**_CHAT, **fields, "response_format": {"type": "json_object"}})
        check("POST", "/v1/chat/completions", got)
        assert b'"index":1' in got[2] or got[0] == 502


def test_dropped_tools_are_as_documented(tmp_path):
    """`x-ofa-tools` says why tools had no effect."""
    with serving(tmp_path, tools__enabled=False) as client:
        for choice in ("auto", "none"):
            got = client.chat({**_CHAT, "tools": [_TOOL], "tool_choice": choice})
            assert got[1]["x-ofa-tools"]
            check("POST", "/v1/chat/completions", got)


def test_a_full_queue_is_as_documented(tmp_path):
    """429 comes with Retry-After."""
    script = [[{"text": "first"}, {"wait_s": 60}]]
    with serving(tmp_path, script, server__running=1, server__waiting=0) as client:
        holder = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
        sent = {
            "Authorization": f"Bearer {client.key}",
            "Content-Type": "application/json",
        }
        body = json.dumps({**_CHAT, "stream": True})
        holder.request("POST", "/v1/chat/completions", body, sent)
        answer = holder.getresponse()

        got = client.chat(_CHAT)

        answer.close()
        holder.close()
    assert got[0] == 429
    assert got[1]["retry-after"]
    check("POST", "/v1/chat/completions", got)


def test_a_server_that_loads_is_as_documented():
    """/readyz gives its reason and Retry-After."""
    site = Site(status=lambda: Status(False, "loading the model"))
    try:
        got = site.ask("GET", "/readyz")
    finally:
        site.close()

    assert got.json["reasons"] == ["loading the model"]
    assert got.headers["retry-after"]
    check("GET", "/readyz", (got.status, got.headers, got.body))
