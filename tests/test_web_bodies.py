"""Bad bodies over a real server: each is a named 400, and the next one is served."""

import http.client
import json
import math

import pytest

from .protocols.test_body import INVALID
from .protocols.test_openai_chat import UNSUPPORTED_VALUES, WRONG_VALUES
from .protocols.test_openai_messages import WRONG_MESSAGES, WRONG_TOOLS
from .web_fakes import AUTH, Site, chat_body


def is_for_the_wire(field, value):
    """Leave out what JSON can't hold, and names of models, which are 404."""
    is_number = isinstance(value, float)
    is_name = field == "model" and isinstance(value, str) and value
    return not is_name and not (is_number and not math.isfinite(value))


WRONG_FIELDS = [
    *((f, v) for f, v, _ in WRONG_VALUES if is_for_the_wire(f, v)),
    *UNSUPPORTED_VALUES,
    *(("messages", [message]) for message, _, _ in WRONG_MESSAGES),
    *(("tools", [tool]) for tool, _, _ in WRONG_TOOLS),
    *(("messages", value) for value in (None, [], {}, "hi", 5, True)),
    *(("tools", value) for value in ("x", {}, 5, True)),
]


@pytest.fixture(scope="module")
def site():
    """A server that would answer any good request."""
    opened = Site()
    yield opened
    opened.close()


def ask_all(site, bodies):
    """Post *bodies* on one connection; yield status, headers and error of each."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    headers = {**AUTH, "Content-Type": "application/json"}
    for body in bodies:
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        yield answer.status, answer.headers, json.loads(answer.read())
    connection.close()


def test_J1_to_J8_bodies_that_are_no_json_object(site):
    """Every one is 400 invalid_json in OpenAI's form, on a connection that lives on."""
    bodies = [raw for raw, _ in INVALID]

    for raw, (status, headers, answer) in zip(
        bodies, ask_all(site, bodies), strict=True
    ):
        assert status == 400, raw[:80]
        assert headers["Content-Type"] == "application/json"
        assert answer["error"]["code"] == "invalid_json"
        assert answer["error"]["type"] == "invalid_request_error"
    assert site.chat().status == 200


@pytest.mark.parametrize("streaming", [True, False])
def test_J9_wrong_fields(site, streaming):
    """Every one is a 400 that names its field, before any stream opens."""
    bodies = [
        json.dumps(chat_body(**{"stream": streaming, field: value}))
        for field, value in WRONG_FIELDS
    ]

    for asked, (status, headers, answer) in zip(
        WRONG_FIELDS, ask_all(site, bodies), strict=True
    ):
        assert status == 400, asked
        assert headers["Content-Type"] == "application/json"
        assert answer["error"]["param"], asked
        assert answer["error"]["message"].startswith(answer["error"]["param"])
    assert site.chat().status == 200


def test_there_are_enough_bodies():
    """The tables only grow."""
    assert len(INVALID) + len(WRONG_FIELDS) >= 150
