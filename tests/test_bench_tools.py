"""The bench's tools, its demands, and what it calls a valid call."""

import json

import pytest
from jsonschema import Draft202012Validator

from bench import toolset
from bench.rows import ROWS
from bench.toolset import Demand, Offer

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "description": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}
COUNT, OTHER = Offer("count", SCHEMA), Offer("other", {"type": "object"})


def test_a_hundred_tools_are_offered_and_all_of_vscodes():
    """Each name once, every schema valid, and no sentence to read."""
    tools = toolset.offers()

    assert len(tools) == len({tool.name for tool in tools}) == 100
    assert {"run_in_terminal", "vscode_askQuestions", "memory"} <= {
        t.name for t in tools
    }
    for tool in tools:
        Draft202012Validator.check_schema(tool.schema)
        assert "alpha zeta" not in json.dumps(tool.entry)


def test_descriptions_go_and_properties_of_that_name_stay():
    """`description` is a keyword in a schema and a name among its properties."""
    told = {**SCHEMA, "description": "long", "properties": {**SCHEMA["properties"]}}
    told["properties"]["n"] = {"type": "integer", "description": "how many"}

    assert toolset._bare(told) == SCHEMA


def test_500_demands_go_round_all_tools_in_both_ways():
    """Five for each tool: some name it, some require one of three."""
    asked = toolset.demands(500)

    assert len({one.offered[0].name for one in asked}) == 100
    assert sum(bool(one.named) for one in asked) == 250
    for one in asked[::7]:
        body = one.body(64, {"temperature": 0})
        assert body["tool_choice"] == "required" or len(body["tools"]) == 1


def said(name, arguments, finish="tool_calls"):
    """Return an answer with one call."""
    call = {"function": {"name": name, "arguments": arguments}}
    message = {"content": None, "tool_calls": [call]}
    return json.dumps(
        {"choices": [{"message": message, "finish_reason": finish}]}
    ).encode()


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (said("count", '{"n": 3}'), "valid"),
        (said("count", '{"n": 3.5}'), "arguments do not fit"),
        (said("count", '{"n": 3, "m": 1}'), "arguments do not fit"),
        (said("count", '{"n": 3'), "no JSON"),
        (said("count", "[]"), "no object"),
        (said("other", "{}"), "another name"),
        (said("unknown", "{}"), "another name"),
    ],
)
def test_only_a_call_that_fits_is_valid(body, outcome):
    """The name that was demanded, a JSON object, and the schema."""
    demand = Demand(0, (COUNT, OTHER), "count")

    assert toolset.verdict(demand, 200, body) == outcome


def test_an_answer_without_a_call_is_told_by_its_reason():
    """Nothing is held to be a call that is none."""
    demand = Demand(0, (COUNT,), "")

    def without(finish):
        choice = {"message": {"content": "3"}, "finish_reason": finish}
        return json.dumps({"choices": [choice]}).encode()

    assert toolset.verdict(demand, 200, without("length")) == "cut by the limit"
    assert toolset.verdict(demand, 200, without("stop")) == "no call"
    assert toolset.verdict(demand, 500, b"") == "status 500"


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ("Done.", "text"),
        ("Do this:\n```bash\nls\n```\n", "fence"),
        ("```write notes.md\nhello\n```", "fence"),
        ("So:\n~~~sh\nls\n~~~", "fence"),
        ("Like\n```cpp\nint a;\n```\nit is.", "block"),
        ("Use `ls` and ```not a fence```.", "text"),
    ],
)
def test_fences_in_place_of_calls_are_told_from_code_that_is_shown(content, outcome):
    """A block with a command or a file in it, by its tag."""
    body = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}

    assert toolset.answered_with(200, json.dumps(body).encode()) == outcome


def test_tempting_requests_differ():
    """No two are the same, so that no answer is counted twice."""
    asked = toolset.tempting(36)

    assert len({one["messages"][0]["content"] for one in asked}) == 36


def test_long_rows_are_measured_only_when_named():
    """An hour more in a run of all would keep people from running it."""
    assert [row.name for row in ROWS if not row.usual] == [
        *("tools-gemma", "tools-starter", "tools-tiny4", "fences", "forms")
    ]
