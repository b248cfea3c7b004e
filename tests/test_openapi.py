"""docs/openapi.yaml and the server agree: routes, fields, codes, ranges, requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ofa.config import Config
from ofa.engine.base import Limits
from ofa.errors import BadRequest
from ofa.modes import Modes
from ofa.protocols.openai_chat import parse
from ofa.protocols.openai_fields import (
    BOOKKEEPING,
    ELSEWHERE,
    FIELDS,
    UNSUPPORTED,
    read_fields,
    refuse_unsupported,
)
from ofa.serve import _own_routes
from ofa.web import create_app

from . import test_captures, test_docs
from .spec import SPEC, fits, nodes, resolved, valid
from .web_fakes import chat_body, services

REQUEST = SPEC["components"]["schemas"]["ChatRequest"]["properties"]


# --------------------------------------------------------------------------------------
# The document itself


def test_schemas_are_sound_and_references_lead_somewhere():
    """Every schema is JSON Schema 2020-12; every component is there and used."""
    references = {n["$ref"] for n in nodes(SPEC) if isinstance(n.get("$ref"), str)}

    for reference in references:
        assert resolved({"$ref": reference}), reference
    for schema in SPEC["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for kind in ("headers", "responses", "schemas"):
        for name in SPEC["components"][kind]:
            # A stream's frames are text to OpenAPI: named in words, tested below.
            used = f"#/components/{kind}/{name}" in references
            assert used or name == "ChatChunk", name
    schemes = {name for row in SPEC["security"] for name in row}
    assert schemes == set(SPEC["components"]["securitySchemes"])


def test_operations_have_names_of_their_own():
    """Generators of clients make a function of each operationId."""
    names = [
        operation["operationId"]
        for path in SPEC["paths"].values()
        for operation in path.values()
    ]

    assert len(names) == len(set(names))


# --------------------------------------------------------------------------------------
# What the code has, the document has


def test_routes_are_the_documents_paths():
    """Each route with its methods is in the document, and no other."""
    live = SimpleNamespace(modes=Modes(), limits=lambda _: Limits(1000, 100))
    app = create_app(services(), None, _own_routes(Config(), live, None))
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }

    documented = {
        (path, method.upper())
        for path, operations in SPEC["paths"].items()
        for method in operations
    }
    assert documented == routes


def test_request_fields_are_the_documents_properties():
    """Each field of the table is in the document, and no other."""
    assert set(REQUEST) == set(FIELDS) | set(UNSUPPORTED) | BOOKKEEPING | ELSEWHERE


def test_error_codes_are_the_documents():
    """Each code that a client can see is in the document's list, and no other."""
    listed = SPEC["components"]["schemas"]["ErrorCode"]["enum"]

    assert listed == sorted(test_docs.codes_in_code())


def test_own_headers_are_documented():
    """Each x-ofa- header that code names is on the chat's answer."""
    named = {
        text
        for path in test_docs.MODULES
        for text in test_docs.literals(path)
        if re.fullmatch(r"x-ofa-[a-z-]+", text)
    }
    answer = SPEC["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]

    assert named
    assert {name for name in answer["headers"] if name.startswith("x-ofa-")} == named


# --------------------------------------------------------------------------------------
# Ranges


def edges(schema: Mapping[str, Any]) -> Iterator[tuple[object, bool]]:
    """Yield values at and just beyond a field's limits, and whether they are taken."""
    step = 1 if "integer" in schema["type"] else 0.001
    for name, sign in (("minimum", -1), ("maximum", 1)):
        if name in schema:
            yield schema[name], True
            yield schema[name] + sign * step, False
    if "exclusiveMinimum" in schema:
        yield schema["exclusiveMinimum"], False
        yield schema["exclusiveMinimum"] + step, True


def cases() -> Iterator[tuple[str, object, bool]]:
    """Yield field, value and whether the document takes it."""
    for name in FIELDS:
        schema = resolved(REQUEST[name])
        yield name, None, True
        if isinstance(schema.get("type"), list) and {"integer", "number"} & {
            *schema["type"]
        }:
            yield from ((name, value, taken) for value, taken in edges(schema))
        for value in schema.get("enum", ()):
            yield name, value, True
        yield name, {"no": "such value"}, "object" in schema.get("type", ())
    yield from LISTED


# What a schema says in other words than a range.
LISTED: list[tuple[str, object, bool]] = [
    ("stop", "a" * 4096, True),
    ("stop", "a" * 4097, False),
    ("stop", ["a"] * 16, True),
    ("stop", ["a"] * 17, False),
    ("logit_bias", {"1": 100}, True),
    ("logit_bias", {"1": 101}, False),
    ("logit_bias", {"x": 1}, False),
    ("logit_bias", {str(i): 0 for i in range(1025)}, False),
    ("response_format", {"type": "text"}, True),
    ("response_format", {"type": "json_object", "other": 1}, True),
    ("response_format", {"type": "xml"}, False),
    ("response_format", {"type": "json_schema"}, False),
    *(
        ("response_format", {"type": "json_schema", "json_schema": given}, taken)
        for given, taken in (
            ({"name": "a-Z_9"}, True),
            ({"name": "a" * 64, "schema": {}, "strict": False}, True),
            ({"name": "a", "schema": {"type": "object"}, "strict": True}, True),
            ({"name": "a", "description": None, "schema": None}, True),
            ({"name": "a", "other": 1}, True),
            ({}, False),
            ({"name": ""}, False),
            ({"name": "a" * 65}, False),
            ({"name": "a b"}, False),
            ({"name": 5}, False),
            ({"name": "a", "description": 5}, False),
            ({"name": "a", "schema": True}, False),
            ({"name": "a", "strict": "yes"}, False),
            ({"name": "a", "strict": True}, False),
            ({"name": "a", "schema": {}, "strict": True}, False),
        )
    ),
    ("modalities", ["text"], True),
    ("modalities", ["audio"], False),
    ("stream_options", {"include_usage": True, "other": 1}, True),
    ("stream_options", {"include_usage": 1}, False),
    ("reasoning_effort", "most", False),
    ("logprobs", True, True),
    ("logprobs", 1, False),
]


@pytest.mark.parametrize(("name", "value", "taken"), [*cases()], ids=repr)
def test_document_and_reader_take_the_same_values(name, value, taken):
    """A value at a limit is taken, one beyond it is not: by both."""
    if (name, value) == ("logit_bias", {"no": "such value"}):
        taken = False
    schema = {**resolved(REQUEST[name]), "components": SPEC["components"]}

    assert Draft202012Validator(schema).is_valid(value) is taken
    if taken:
        read_fields({name: value})
    else:
        with pytest.raises(BadRequest):
            read_fields({name: value})


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"logprobs": True, "top_logprobs": 5}, True),
        ({"top_logprobs": 0}, True),
        ({"top_logprobs": None}, True),
        ({"top_logprobs": 5}, False),
        ({"logprobs": False, "top_logprobs": 1}, False),
        ({"logprobs": None, "top_logprobs": 1}, False),
    ],
    ids=repr,
)
def test_document_and_reader_want_logprobs_with_top_logprobs(fields, taken):
    """Neither takes alternatives to tokens that are not told."""
    body = chat_body(**fields)

    assert fits(body, "ChatRequest") is taken
    if taken:
        parse(body)
    else:
        with pytest.raises(BadRequest):
            parse(body)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_document_and_reader_refuse_the_same_fields(name):
    """What is refused whatever its value has none in the document but null."""
    assert REQUEST[name]["type"] == "null"
    with pytest.raises(BadRequest):
        refuse_unsupported({name: {}})


@pytest.mark.parametrize("name", test_captures.NAMES)
def test_what_clients_send_fits_the_document(name):
    """Requests captured of real clients are requests of this API."""
    valid(test_captures.load(name)["body"], "ChatRequest")
