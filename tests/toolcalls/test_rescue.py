"""Calls in the forms of other families, and prose that only looks like them."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ofa.chat import Tool
from ofa.toolcalls.repair import resolve_name
from ofa.toolcalls.rescue import FIRST_OPENERS, LINE_OPENERS, OPENERS, find

from .offered import TOOLS

READ = ("read_file", {"path": "a.py"})
TIME = ("get_time", {})
INVOKE = '<invoke name="read_file"><parameter name="path">a.py</parameter></invoke>'
FUNCTION = "<function=read_file>\n<parameter=path>\na.py\n</parameter>\n</function>"
JSON = '{"name": "read_file", "arguments": {"path": "a.py"}}'
GLM = "read_file\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>"
KIMI = (
    "<|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>"
    '{"path": "a.py"}<|tool_call_end|>'
)
CONTENT = "def f():\n    return {'a': \"b\"}\n"

# fmt: off
RESCUES = {  # an answer, the text before the call, the calls
    # GLM
    "glm": (f"<tool_call>{GLM}\n</tool_call>", "", [READ]),
    "glm, no wrapper": (GLM, "", [READ]),
    "glm behind text": (
        f"I look.\n<tool_call>{GLM}</tool_call>\n", "I look.\n", [READ]),
    "glm, typed": (
        "<tool_call>read_file<arg_key>path</arg_key><arg_value>7</arg_value>"
        "<arg_key>start</arg_key><arg_value>3</arg_value></tool_call>",
        "", [("read_file", {"path": "7", "start": 3})]),
    "glm, nothing to pass": ("<tool_call>get_time\n</tool_call>", "", [TIME]),
    "glm, nested JSON": (
        "search\n<arg_key>query</arg_key><arg_value>x</arg_value>"
        '<arg_key>filters</arg_key><arg_value>{"tags": ["a", "b"]}</arg_value>',
        "", [("search", {"query": "x", "filters": {"tags": ["a", "b"]}})]),
    "glm, two": (
        f"<tool_call>{GLM}</tool_call>\n<tool_call>{GLM}</tool_call>",
        "", [READ, READ]),
    # Anthropic, MiniMax
    "invoke": (INVOKE, "", [READ]),
    "invoke, wrapped": (
        f"<function_calls>\n{INVOKE}\n</function_calls>", "", [READ]),
    "invoke, minimax": (
        f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>", "", [READ]),
    "invoke, two": (f"Both.\n\n{INVOKE}\n{INVOKE}", "Both.\n\n", [READ, READ]),
    "invoke, without parameters": ('<invoke name="get_time"></invoke>', "", [TIME]),
    "invoke, code in it": (
        '<invoke name="write_file">\n<parameter name="path">a.py</parameter>\n'
        f'<parameter name="content">\n```python\n{CONTENT}```\n</parameter>\n</invoke>',
        "", [("write_file",
              {"path": "a.py", "content": f"```python\n{CONTENT}```"})]),
    "invoke behind a sentence": (f"Let me see. {INVOKE}", "Let me see. ", [READ]),
    "invoke, text that is JSON": (
        '<invoke name="write_file"><parameter name="path">p</parameter>'
        '<parameter name="content">{"a": 1}</parameter></invoke>',
        "", [("write_file", {"path": "p", "content": '{"a": 1}'})]),
    # Qwen's XML
    "function": (FUNCTION, "", [READ]),
    "function, wrapped": (f"<tool_call>\n{FUNCTION}\n</tool_call>", "", [READ]),
    "function, JSON": (
        '<function=read_file>{"path": "a.py"}</function>', "", [READ]),
    "function, JSON, open": ('<function=read_file>{"path": "a.py"}', "", [READ]),
    "function, open parameter": (
        "<function=read_file>\n<parameter=path>\na.py\n</function>", "", [READ]),
    "function, two open parameters": (
        "<function=read_file>\n<parameter=path>\na.py\n<parameter=start>\n3\n</function>",
        "", [("read_file", {"path": "a.py", "start": 3})]),
    "function, all but the wrapper open": (
        "<tool_call>\n<function=read_file>\n<parameter=path>\na.py\n</tool_call>",
        "", [READ]),
    "function, lines kept": (
        f"<function=write_file><parameter=path>a</parameter><parameter=content>\n{CONTENT}"
        "\n</parameter></function>",
        "", [("write_file", {"path": "a", "content": CONTENT})]),
    "function, boolean": (
        "<function=run-command><parameter=command>ls</parameter>"
        "<parameter=background>true</parameter></function>",
        "", [("run-command", {"command": "ls", "background": True})]),
    "function, no parameters": ("<function=get_time>\n</function>", "", [TIME]),
    # Gemma's braces
    "braces": ("call:read_file{path:<|\"|>a.py<|\"|>}", "", [READ]),
    "braces, in tags": (
        "<|tool_call>call:read_file{path:<|\"|>a.py<|\"|>}<tool_call|>", "", [READ]),
    "braces, JSON": ('call:read_file{"path": "a.py"}', "", [READ]),
    "braces, single quotes": (
        "call:google:mcp:read_file{path:'a, b.txt'}",
        "", [("google:mcp:read_file", {"path": "a, b.txt"})]),
    "braces, nested": (
        "call:search{query:<|\"|>a}b<|\"|>,filters:{tags:[<|\"|>x<|\"|>]},limit:null}",
        "", [("search", {"query": "a}b", "filters": {"tags": ["x"]}, "limit": None})]),
    "braces, escape": (
        "call:read_file{path:<escape>a.py<escape>,start:3}",
        "", [("read_file", {"path": "a.py", "start": 3})]),
    "braces, nothing": ("call:get_time{}", "", [TIME]),
    # Kimi
    "kimi": (KIMI, "", [READ]),
    "kimi, section": (
        f"<|tool_calls_section_begin|>{KIMI}{KIMI}<|tool_calls_section_end|>",
        "", [READ, READ]),
    # JSON in tags
    "json": (f"<tool_call>\n{JSON}\n</tool_call>", "", [READ]),
    "json, not closed": (f"<tool_call>\n{JSON}", "", [READ]),
    "json, longcat": (f"<longcat_tool_call>{JSON}</longcat_tool_call>", "", [READ]),
    "json, function_call": (f"<function_call>{JSON}</function_call>", "", [READ]),
    "json, gemma's tags": (f"<|tool_call>{JSON}<tool_call|>", "", [READ]),
    "json, llama": (
        '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.py"}}',
        "", [READ]),
    "json, a list": (f"<tool_calls>[{JSON}, {JSON}]</tool_calls>", "", [READ, READ]),
    "json, openai": (
        '<tool_call>{"type": "function", "function": ' + JSON + "}</tool_call>",
        "", [READ]),
    "json, twice encoded": (
        '<tool_call>{"name": "read_file", "arguments": "{\\"path\\": \\"a.py\\"}"}'
        "</tool_call>", "", [READ]),
    "json, tool and args": (
        '<tool_call>{"tool": "read_file", "args": {"path": "a.py"}}</tool_call>',
        "", [READ]),
    # [ARGS], Mistral
    "args": ('read_file[ARGS]{"path": "a.py"}', "", [READ]),
    "mistral": ('[TOOL_CALLS]read_file{"path": "a.py"}', "", [READ]),
    "mistral, args": ('[TOOL_CALLS]read_file[ARGS]{"path": "a.py"}', "", [READ]),
    "mistral, id": (
        '[TOOL_CALLS]read_file[CALL_ID]abc123def[ARGS]{"path": "a.py"}', "", [READ]),
    "mistral, a list": (f"Now.\n[TOOL_CALLS] [{JSON}]", "Now.\n", [READ]),
    "mistral, two": (
        '[TOOL_CALLS]read_file[ARGS]{"path": "a.py"}[TOOL_CALLS]get_time[ARGS]{}',
        "", [READ, TIME]),
    # a log's brackets
    "brackets": ('[Calling tool: read_file({"path": "a.py"})]', "", [READ]),
    "brackets, bare": ("[Tool call: get_time]", "", [TIME]),
    # behind what is no call
    "behind thoughts": (
        f"<think>I could {INVOKE}</think>\n{FUNCTION}",
        f"<think>I could {INVOKE}</think>\n", [READ]),
    "behind code": (
        f"As in `{INVOKE}`:\n\n```\n{FUNCTION}\n```\n\n{INVOKE}",
        f"As in `{INVOKE}`:\n\n```\n{FUNCTION}\n```\n\n", [READ]),
    "behind a lone backtick": (
        f"A ` stands here.\n\n{INVOKE}", "A ` stands here.\n\n", [READ]),
}

EXACT = {
    "whole": (JSON, ""),
    "whole, blanks": (f"\n {JSON}\n", ""),
    "whole, a list": (f"[{JSON}]", ""),
    "json block": (f"```json\n{JSON}\n```", ""),
    "tool_call block": (f"```tool_call\n{JSON}\n```\n", ""),
    "tool_code block": (f"I look.\n```tool_code\n{JSON}\n```", "I look.\n"),
    "block without a tag": (f"I look.\n\n```\n{JSON}\n```", "I look.\n\n"),
    "other keys": ('{"tool": "read_file", "args": {"path": "a.py"}}', ""),
    "a tag without its fence": (f"tool_call\n{JSON}\n", ""),
    "input": ('{"function": "read_file", "input": {"path": "a.py"}}', ""),
}

PROSE = {
    "explained behind": f"To call it, write:\n\n{INVOKE}\n\nThen wait for the file.",
    "explained beside": f"Use {INVOKE} to read.",
    "mid-sentence": f"The form is {INVOKE}",
    "behind a colon": f"For example: {FUNCTION}",
    "inline code": f"Write `{INVOKE}`",
    "inline code, two ticks": f"Write ``{INVOKE}``",
    "inline code alone": f"`{INVOKE}`",
    "block": f"Like so:\n```\n{INVOKE}\n```",
    "block, xml": f"```xml\n{INVOKE}\n```",
    "block, never closed": f"```xml\n{INVOKE}\n",
    "block, tildes": f"~~~\n{FUNCTION}\n~~~",
    "block, four ticks": f"````\n```\n{FUNCTION}\n```\n````",
    "block, indented": f"So:\n\n    {INVOKE}\n",
    "block, tab": f"So:\n\n\t{INVOKE}\n",
    "block in a list": f"1. So:\n   ```\n   {INVOKE}\n   ```",
    "block, hermes": f"```\n<tool_call>\n{JSON}\n</tool_call>\n```",
    "block, then text": f"```json\n{JSON}\n```\nThat would read the file.",
    "two blocks": f"```json\n{JSON}\n```\nor\n```json\n{JSON}\n```",
    "block, python": f"```python\n{JSON}\n```",
    "block, bash": "```bash\ncat a.py\n```",
    "block, other keys too": (
        '```json\n{"name": "read_file", "arguments": {"path": "a"}, "note": 1}\n```'),
    "block, name only": '```json\n{"name": "read_file"}\n```',
    "block, unknown": '```json\n{"name": "rm", "arguments": {}}\n```',
    "block, name nearly": (
        '```json\n{"name": "Read_File", "arguments": {"path": "a"}}\n```'),
    "block, twice encoded": (
        '```json\n{"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}\n```'),
    "block, a person": '```json\n{"name": "Ada", "arguments": {"age": 36}}\n```',
    "block, two objects": f"```json\n{JSON}\n{JSON}\n```",
    "block, empty list": "```json\n[]\n```",
    "JSON in a sentence": f"Answer with {JSON}",
    "JSON line in prose": f"The request is\n{JSON}\nand then it ends.",
    "JSON line at the end": f"The request is\n{JSON}",
    "quoted line": f"> {INVOKE}",
    "quoted lines": f"> He wrote\n> {FUNCTION.replace(chr(10), ' ')}",
    "quotes": f'"{INVOKE}"',
    "quotes behind a sentence": f'He wrote it. "{INVOKE}"',
    "typographic quotes": f"He wrote it. “{INVOKE}”",
    "guillemets": f"C'est écrit. «{INVOKE}»",
    "German quotes": f"Es steht da. „{INVOKE}“",
    "thought": f"<think>\n{INVOKE}\n</think>\nIt is not needed.",
    "thought, never closed": f"<think>\n{INVOKE}",
    "bullet": f"- {INVOKE}",
    "numbered": f"1. {INVOKE}",
    "e.g.": f"Some markup, e.g. {INVOKE}",
    "unknown, invoke": INVOKE.replace("read_file", "delete_all"),
    "unknown, function": FUNCTION.replace("read_file", "delete_all"),
    "unknown, json": f"<tool_call>{JSON.replace('read_file', 'rm')}</tool_call>",
    "unknown, glm": GLM.replace("read_file", "delete_all"),
    "unknown, kimi": KIMI.replace("read_file", "delete_all"),
    "unknown, braces": "call:delete_all{}",
    "unknown, mistral": '[TOOL_CALLS]delete_all{"path": "a.py"}',
    "unknown among known": f"<tool_calls>[{JSON}, {JSON.replace('read_', 'rm_')}]",
    "cut, invoke": INVOKE[:-20],
    "cut, json": f"<tool_call>{JSON[:-2]}",
    "cut, braces": "call:read_file{path:<|\"|>a.py",
    "cut, function": FUNCTION[:40],
    "cut, glm": GLM[:40],
    "cut, kimi": KIMI[:80],
    "tag only": "The <tool_call> tag opens a call.",
    "tags only": "<tool_call></tool_call>",
    "call in prose": "Then call:read_file{path} is what the manual says.",
    "recall": "recall:read_file{}",
    "emergency call": "In an emergency call: get_time or 112.",
    "brackets mid-line": 'I wrote [Calling tool: read_file({"path": "a.py"})]',
    "brackets, past": "[Called tool: get_time]",
    "brackets, words": "[Tool call: get_time was used]",
    "generic in C++": "std::function<int> f; vector<function=read_file> g;",
    "markdown link": "[read_file](docs/read_file.md)",
    "name only": "read_file",
    "name at the end": "You want get_time",
    "python": 'read_file(path="a.py")',
    "empty": "",
    "blank": " \n",
}
# fmt: on


@pytest.mark.parametrize("case", RESCUES)
def test_foreign_call_is_found(case):
    """Its name, its arguments and where it begins, wrappers included."""
    text, before, calls = RESCUES[case]

    found = find(text, TOOLS)

    assert found is not None
    assert [(call.name, call.arguments) for call in found.calls] == calls
    assert text[: found.start] == before
    assert found.end == len(text)
    assert not found.exact
    assert all(call.repairs for call in found.calls)


@pytest.mark.parametrize("case", EXACT)
def test_plain_json_is_found_but_must_be_exact(case):
    """The whole answer, or its only block at its end; the caller checks it as it is."""
    text, before = EXACT[case]

    found = find(text, TOOLS)

    assert found is not None
    assert [(call.name, call.arguments) for call in found.calls] == [READ]
    assert text[: found.start] == before
    assert found.exact


@pytest.mark.parametrize("case", PROSE)
def test_prose_stays_prose(case):
    """What is shown, quoted, unknown, cut or followed by words is no call."""
    assert find(PROSE[case], TOOLS) is None


@pytest.mark.parametrize("case", RESCUES)
def test_nothing_is_rescued_that_was_not_offered(case):
    """Neither without tools nor with others."""
    text = RESCUES[case][0]

    assert find(text, ()) is None
    assert find(text, [Tool("another")]) is None


@pytest.mark.parametrize("case", RESCUES)
def test_words_behind_a_call_make_it_an_example(case):
    """What explains a call does not become one."""
    text = RESCUES[case][0]

    assert find(f"{text}\n\nThis is how the form looks.", TOOLS) is None


@pytest.mark.parametrize("case", RESCUES)
def test_every_rescue_begins_with_an_opener(case):
    """So a reader that holds back from the openers on never shows part of a call."""
    text, before, _ = RESCUES[case]
    rest = text[len(before) :].lstrip()
    first = min(
        (at for at in map(rest.find, (*OPENERS, *LINE_OPENERS)) if at >= 0), default=-1
    )

    assert first >= 0
    assert rest[:first].strip() in ("", "read_file", "search")


@pytest.mark.parametrize("case", EXACT)
def test_plain_json_begins_with_an_opener_of_its_own(case):
    """A brace or bracket at the start, or a fence at a line's start."""
    text, before = EXACT[case]

    assert text[len(before) :].lstrip().startswith(("```", *FIRST_OPENERS))


@given(
    st.lists(
        st.sampled_from(
            (INVOKE, FUNCTION, JSON, GLM, KIMI, "`", "```", "\n", "\n\n", "> ", '"',
             "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "{",
             "}", " ", "a word", ".", "call:get_time{}", "<parameter=x>", "\\", "[")
        ),
        max_size=12,
    )
)  # fmt: skip
@example(["[TOOL_CALLS]", "call:get_time{}"])
@settings(max_examples=300, deadline=None)
def test_any_mixture_is_read_without_error(parts):
    """Whatever is found means offered tools and lies within the text, at its end."""
    text = "".join(parts)

    found = find(text, TOOLS)

    if found is not None:
        assert 0 <= found.start < found.end == len(text)
        assert all(resolve_name(call.name, TOOLS) for call in found.calls)


@pytest.mark.parametrize(
    "piece",
    [
        "`", "a", "a_", "read_file", "<tool_call>", "<tool_call>read_file", '"', "“",
        '<invoke name="read_file">', "<function=read_file>", "<parameter=x>",
        "<function=read_file><parameter=x>", "call:read_file{", "call:read_file{'",
        "[TOOL_CALLS]", "[TOOL_CALLS]read_file{", "<think>", "`` `", "```\n", "> ",
        "<arg_key>", "read_file<arg_key>", "{", "[", '{"name":', "(", "\n", " ", "\\",
    ],
)  # fmt: skip
def test_long_repetition_costs_little(piece):
    """No text of a model's longest answer keeps a core busy."""
    text = piece * (40_000 // len(piece))
    begun = time.process_time()

    find(text, TOOLS)

    assert time.process_time() - begun < 2
