"""The fixtures themselves: enough schemas, all of them valid, all of them fillable."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from .catalogue import catalogue, of_client
from .strategies import conforming, schemas

TOOLS = catalogue()
KEYWORDS = {
    "$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "enum", "const",
    "pattern", "format", "nullable", "additionalProperties", "prefixItems", "minItems",
    "maxItems", "uniqueItems", "multipleOf", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "default", "examples", "title",
}  # fmt: skip


def words(schema) -> set[str]:
    """Return every key of *schema*, at whatever depth."""
    if isinstance(schema, list):
        return set().union(*map(words, schema))
    if isinstance(schema, dict):
        return set(schema).union(*map(words, schema.values()))
    return set()


def test_there_are_over_a_hundred_schemas_and_every_tool_of_vscode():
    """What clients send and what MCP servers offer, no schema twice."""
    distinct = {json.dumps(t.parameters, sort_keys=True) for t in TOOLS.values()}

    assert len(distinct) > 100
    assert len(of_client("vscode-agent-tool")) == 40
    for client in ("opencode", "cline", "continue-cli", "pi", "codex", "claude-code"):
        assert of_client(client), client
    assert set().union(*(words(t.parameters) for t in TOOLS.values())) >= KEYWORDS


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_has_a_valid_schema(name):
    """That it can be filled as well, test_round_trip shows with calls of it."""
    Draft202012Validator.check_schema(TOOLS[name].parameters)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas().flatmap(lambda s: st.tuples(st.just(s), conforming(s))))
def test_random_schemas_are_valid_and_can_be_filled(pair):
    """Whatever is drawn is an object's schema, with an object that fits it."""
    schema, arguments = pair

    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(arguments)
    assert isinstance(arguments, dict)
