"""
Tools as clients offer them: what the captures hold, and `tools.json`.

`tools.json` has the schemas of clients that speak another dialect (Codex, Claude Code;
their structure, the sentences are ours), and tools of our own in the manner of MCP
servers, one for each thing that a schema can hold.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ofa.chat import Tool

_HERE = Path(__file__).parent
_CAPTURED = _HERE.parent / "captures" / "tools"


@cache
def catalogue() -> dict[str, Tool]:
    """Return every tool whose schema no other has, by "client/name"."""
    found: dict[str, Tool] = {}
    seen: set[tuple[str, str]] = set()
    for client, tool in _all():
        schema = json.dumps(tool.parameters, sort_keys=True)
        if (tool.name, schema) in seen:
            continue
        seen.add((tool.name, schema))
        found[f"{client}/{tool.name}"] = tool
    return found


def of_client(client: str) -> tuple[Tool, ...]:
    """Return the tools of one client, as far as no other client brought them."""
    return tuple(t for name, t in catalogue().items() if name.startswith(f"{client}/"))


def _all() -> list[tuple[str, Tool]]:
    captured = [
        (path.stem.rpartition("-")[0], entry["function"])
        for path in sorted(_CAPTURED.glob("*.json"), key=_most_first)
        for entry in json.loads(path.read_text(encoding="utf-8"))
    ]
    told = json.loads((_HERE / "tools.json").read_text(encoding="utf-8"))
    own = [(client, entry) for client, entries in told.items() for entry in entries]
    return [(client, _tool(entry)) for client, entry in captured + own]


def _most_first(path: Path) -> tuple[int, str]:
    return -int(path.stem.rpartition("-")[2]), path.stem


def _tool(entry: dict[str, Any]) -> Tool:
    return Tool(
        entry["name"], entry.get("description", ""), entry.get("parameters") or {}
    )
