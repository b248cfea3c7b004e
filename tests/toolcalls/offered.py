"""The tools that tests of formats and of rescues offer."""

from ofa.chat import Tool


def _tool(name, required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name, f"Does {name}.", schema)


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}

TOOLS = (
    _tool("read_file", ["path"], path=TEXT, start=WHOLE, end=WHOLE),
    _tool("write_file", ["path", "content"], path=TEXT, content=TEXT),
    _tool("run-command", ["command"], command=TEXT, background={"type": "boolean"}),
    _tool(
        "search",
        ["query"],
        query=TEXT,
        filters={
            "type": "object",
            "properties": {
                "kind": {"enum": ["file", "symbol"]},
                "tags": {"type": "array", "items": TEXT},
            },
        },
        limit={"type": ["integer", "null"]},
    ),
    Tool("get_time", "Tells the time."),
)
