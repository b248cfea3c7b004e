"""
A hundred tools of real clients, requests that demand a call of them, and the verdict.

All of VS Code's, and others' by turns. Their descriptions are left out: those of the
captures are filler, and a small model reads 56 KB of them in minutes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from .servers import MODE, user

_TOPICS = (
    "the input files of a simulation",
    "a batch job that has been waiting for two days",
    "notes on the last meeting",
    'Überschriften, "quotes" and C:\\paths\\in\\text',
    "whatever seems useful",
)
# A block with one of these tags is a command or a file that a tool should have got.
FENCES = ("bash", "sh", "shell", "console", "write", "edit", "python", "json", "tool")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)([\w-]*)", re.MULTILINE)

_SENTENCES = ("description", "enumDescriptions")
_NAMED = ("properties", "$defs", "definitions")

_TASKS = (
    "Create the file {name} with one line that says hello.",
    "Which files are in the folder {name}? Find out.",
    "Run the command `make -C {name}` and tell me whether it works.",
    "Show me what is in {name}.",
    "Replace the word alpha with beta in {name}.",
    "Search all files below {name} for TODO.",
)
_NAMES = ("run.sh", "src/main.cpp", "case/system", "notes.md", "data.csv", "build")


@dataclass(frozen=True)
class Offer:
    """A tool as it is offered, in the API's form."""

    name: str
    schema: Mapping[str, Any]

    @property
    def entry(self) -> dict[str, Any]:
        """What stands in a request's `tools`."""
        words = re.sub(r"[_.-]+", " ", self.name).strip()
        function = {"name": self.name, "description": words, "parameters": self.schema}
        return {"type": "function", "function": function}


@cache
def offers(count: int = 100) -> tuple[Offer, ...]:
    """Return *count* tools with names that the API allows and schemas of their own."""
    from tests.toolcalls.catalogue import catalogue

    by_client: dict[str, list[Offer]] = {}
    seen: set[str] = set()
    for key, tool in catalogue().items():
        if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name) and tool.name not in seen:
            seen.add(tool.name)
            offer = Offer(tool.name, _bare(tool.parameters))
            by_client.setdefault(key.split("/")[0], []).append(offer)
    first = by_client.pop("vscode-agent-tool")
    return tuple([*first, *_by_turns(list(by_client.values()))][:count])


def _by_turns(groups: Sequence[list[Offer]]) -> Iterator[Offer]:
    for number in range(max(map(len, groups))):
        yield from (group[number] for group in groups if number < len(group))


def _bare(schema: Any, *, names: bool = False) -> Any:
    """Return *schema* without descriptions; in *names*, keys are properties."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value, names=not names and key in _NAMED)
        for key, value in schema.items()
        if names or key not in _SENTENCES
    }


# --- demanded calls -----------------------------------------------------------------


@dataclass(frozen=True)
class Demand:
    """A request that is only answered rightly by a valid call."""

    number: int
    offered: tuple[Offer, ...]
    named: str  # the one that is demanded; empty: any

    def body(self, tokens: int, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request."""
        topic = _TOPICS[self.number % len(_TOPICS)]
        asked = f"Request {self.number}: use {self.offered[0].name} for {topic}."
        function = {"name": self.named}
        choice = (
            {"type": "function", "function": function} if self.named else "required"
        )
        return {
            "model": MODE,
            "messages": [user(asked)],
            "tools": [one.entry for one in self.offered],
            "tool_choice": choice,
            "max_tokens": tokens,
            "seed": self.number,
            **more,
        }


def demands(count: int) -> list[Demand]:
    """Return *count* requests over all tools: one named, or one of three required."""
    tools = offers()
    made = []
    for number in range(count):
        at = number % len(tools)
        round_ = number // len(tools)
        if (at + round_) % 2:
            made.append(Demand(number, (tools[at],), tools[at].name))
        else:
            three = tuple(tools[(at + step) % len(tools)] for step in (0, 17, 43))
            made.append(Demand(number, three, ""))
    return made


def verdict(demand: Demand, status: int, body: bytes) -> str:
    """Return "valid", or in a word or two why what came is no valid call."""
    if status != 200:
        return f"status {status}"
    choice = json.loads(body)["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if not calls:
        cut = choice["finish_reason"] == "length"
        return "cut by the limit" if cut else "no call"
    schemas = {one.name: one.schema for one in demand.offered}
    return next(
        filter(None, (_fault(call, schemas, demand) for call in calls)), "valid"
    )


def _fault(
    call: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]], demand: Demand
) -> str:
    name = call["function"]["name"]
    if name not in schemas or name != (demand.named or name):
        return "another name"
    try:
        arguments = json.loads(call["function"]["arguments"])
    except ValueError:
        return "no JSON"
    if not isinstance(arguments, dict):
        return "no object"
    fits = Draft202012Validator(schemas[name]).is_valid(arguments)
    return "" if fits else "arguments do not fit"


# --- free answers -------------------------------------------------------------------


def tempting(count: int) -> list[dict[str, Any]]:
    """Return requests that tools can do, and that models like to answer in fences."""
    from tests.toolcalls.catalogue import of_client

    tools = [Offer(t.name, _bare(t.parameters)).entry for t in of_client("opencode")]
    return [
        {
            "model": MODE,
            "messages": [user(_TASKS[n % len(_TASKS)].format(name=_name(n)))],
            "tools": tools,
            "max_tokens": 192,
            "seed": n,
        }
        for n in range(count)
    ]


def _name(number: int) -> str:
    folder, name = divmod(number // len(_TASKS), len(_NAMES))
    return f"part{folder}/{_NAMES[name]}" if folder else _NAMES[name]


def answered_with(status: int, body: bytes) -> str:
    """Return how a free request was answered: "call", "fence", "block", "text"."""
    if status != 200:
        return f"status {status}"
    message = json.loads(body)["choices"][0]["message"]
    if message.get("tool_calls"):
        return "call"
    tags = _FENCE.findall(message.get("content") or "")[::2]
    if any(tag.lower() in FENCES for tag in tags):
        return "fence"
    return "block" if tags else "text"


def counted(outcomes: Sequence[str]) -> str:
    """Return outcomes with their counts, the most frequent first."""
    return ", ".join(f"{n} {what}" for what, n in Counter(outcomes).most_common())
