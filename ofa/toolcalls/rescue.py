"""
Finds calls that a model wrote in another family's form.

Knows where in an answer a call may stand: outside of code, quotes and reasoning, at
the answer's very end, and by a name that was offered. How a form is read is
`foreign`'s, and whether the arguments fit is checked by whoever asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..chat import Tool
from . import foreign, written
from .bare import LOOSE_TAG
from .base import Found, Unreadable
from .code import Code
from .foreign import NAME, Read
from .repair import resolve_name

# What a rescued call may begin with: anywhere, at a line's start, at the answer's.
OPENERS: tuple[str, ...] = (
    "<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>",
    "<minimax:tool_call>", "<longcat_tool_call>", "<function=", "<invoke ",
    "<|tool_call", "<|python_tag|>", "<arg_key>", "[TOOL_CALLS]", "[ARGS]",
)  # fmt: skip
LINE_OPENERS: tuple[str, ...] = ("```", "call:", "[Calling tool", "[Tool call")
FIRST_OPENERS: tuple[str, ...] = ("{", "[", LOOSE_TAG)


@dataclass(frozen=True)
class Rescued:
    """
    Calls in a foreign form, and the part of the text they take.

    *exact* ones stand where examples stand as well: they are calls only if the names
    are spelled as offered and the arguments pass the check as they are.
    """

    start: int
    end: int
    calls: tuple[Found, ...]
    exact: bool = False


@dataclass(frozen=True)
class Form:
    """A foreign form: its *word* in reports, how it opens, and how the rest reads."""

    word: str
    opener: str  # a pattern; NAME in it stands for the tool's
    read: Callable[[str, int, str, Tool | None], Read | None]


# Tags that models put around calls; they go with them.
_WRAPPER = (
    r"(?:</?(?:tool_calls?|function_calls?|minimax:tool_call|longcat_tool_call)>"
    r"|<\|/?tool_calls?(?:_section)?(?:_begin|_end)?\|?>|<tool_call\|>|<\|python_tag\|>)"
)
_OPENS_JSON = (
    r"(?:<(?:tool_calls?|function_calls?|longcat_tool_call)>|<\|tool_call\|?>"
    r"|<\|tool_call_begin\|>|<\|python_tag\|>|\[TOOL_CALLS\])"
)
_ALONE = r"(?<![\w.:/-])"  # a name begins here; keeps the search from trying inside

# fmt: off
FORMS: tuple[Form, ...] = (  # at one place the first that opens there is read
    Form("glm", rf"(?:<tool_call>\s*)?{_ALONE}NAME\s{{0,8}}(?=<arg_key>)", foreign.glm),
    Form("glm_bare", r"<tool_call>\s*NAME\s*</tool_call>", foreign.nothing),
    Form("invoke", r'<invoke name="NAME"[^>\n]*>', foreign.invoke),
    Form("function", r"""<function=["']?NAME["']?>""", foreign.function),
    Form("braces", rf"{_ALONE}call:\s?NAME\s?(?=\{{)", foreign.braces),
    Form("kimi", r"<\|tool_call_begin\|>\s*(?:functions\.)?"
         r"(?P<kimi_name>[A-Za-z_][\w./-]{0,127})(?::\d+)?\s*"
         r"<\|tool_call_argument_begin\|>\s*(?=\{)", foreign.body),
    Form("args", rf"(?:\[TOOL_CALLS\]\s*)?{_ALONE}NAME(?:\[CALL_ID\][\w-]{{1,64}})?"
         r"\[ARGS\]\s*(?=\{)", foreign.body),
    Form("mistral", r"\[TOOL_CALLS\]\s*NAME\s*(?=\{)", foreign.body),
    Form("json", rf"{_OPENS_JSON}\s*(?=[{{\[])", foreign.objects),
    Form("brackets", r"^\[(?:Calling tool|Tool call): ?NAME(?=[\](])",
         foreign.bracketed),
)
# fmt: on


def _alternative(form: Form) -> str:
    name = f"(?P<{form.word}_name>{NAME})"
    return f"(?P<{form.word}>{form.opener.replace('NAME', name)})"


# Reasoning that a server left in the text is passed over: it weighs, it does not call.
_THOUGHT = r"(?P<thought><think>.*?(?:</think>|\Z)|\[think\].*?(?:\[/think\]|\Z))"
_OPENER = re.compile(
    "|".join((_THOUGHT, *map(_alternative, FORMS))), re.MULTILINE | re.DOTALL
)
_BETWEEN = re.compile(rf"(?:[\s,]|{_WRAPPER})*")
_WRAPPED = re.compile(rf"(?:{_WRAPPER}\s*)+\Z")

_MOST_FAILURES = 64  # reads that came to nothing, each up to the text's end
_SAID = re.compile(r"[.!?…)]\s*\Z")  # a sentence is over
_LISTED = re.compile(  # a point that ends no sentence
    r"(?:^\s*\d+[.)]|\b(?:e\.g|i\.e|z\. ?B|etc|ex)\.)\s*\Z", re.IGNORECASE
)
_FENCED = re.compile(
    r"^```(?:json|tool_call|tool_code)?[ \t]*\n(?P<body>.*?)\n?```\s*\Z",
    re.DOTALL | re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_LOOSE = re.compile(rf"\A{LOOSE_TAG}[ \t]*\r?\n\s*(?=[{{\[])")


def find(text: str, tools: Sequence[Tool]) -> Rescued | None:
    """
    Return the calls at the end of *text*, a complete answer, if there are any.

    What follows a call must be a call: models that say something behind an example
    explain it, and an explanation must stay one.
    """
    if not tools:
        return None
    return _last_run(text, tools) or _only_json(text, tools)


def _last_run(text: str, tools: Sequence[Tool]) -> Rescued | None:
    run: list[Rescued] = []
    for call in _calls(text, tools):
        if run and not _BETWEEN.fullmatch(text, run[-1].end, call.start):
            run = []
        if run or _may_start(text, call.start):
            run.append(call)
    if not run or not _BETWEEN.fullmatch(text, run[-1].end):
        return None
    calls = tuple(found for call in run for found in call.calls)
    return Rescued(run[0].start, len(text), calls)


def _calls(text: str, tools: Sequence[Tool]) -> Iterator[Rescued]:
    """Yield what reads as calls to *tools* where *text* is neither code nor quote."""
    code = Code()
    at = failures = 0
    while failures < _MOST_FAILURES and (opener := _OPENER.search(text, at)):
        code.feed(text[at : opener.start()])
        at = opener.start()
        call = _read(text, opener, tools) if code.is_plain() else None
        if call:
            yield call
            at = call.end
            continue
        failures += call is None and opener["thought"] is None
        end = opener.end() if opener["thought"] is not None else at + 1
        code.feed(text[at:end])
        at = end


def _read(text: str, opener: re.Match[str], tools: Sequence[Tool]) -> Rescued | None:
    form = next((form for form in FORMS if opener[form.word] is not None), None)
    if form is None:
        return None
    name = opener.groupdict().get(f"{form.word}_name") or ""
    tool = _offered(name, tools) if name else None
    if name and tool is None:
        return None
    read = form.read(text, opener.end(), name, tool)
    if read is None or not all(_offered(call.name, tools) for call in read[0]):
        return None
    calls = tuple(replace(call, repairs=(form.word, *call.repairs)) for call in read[0])
    start = _wrapped_start(text, opener.start())
    return Rescued(start, read[1], calls)


def _offered(name: str, tools: Sequence[Tool]) -> Tool | None:
    """Return the tool that *name* means, be it spelled as models do."""
    meant = resolve_name(name, tools)
    return next((tool for tool in tools if meant and tool.name == meant[0]), None)


def _wrapped_start(text: str, start: int) -> int:
    """Return where the tags around what begins at *start* begin."""
    window = text[max(0, start - 200) : start]
    tags = _WRAPPED.search(window)
    return start - len(window) + tags.start() if tags else start


def _may_start(text: str, start: int) -> bool:
    """Tell whether *start* is where one says something new, not in mid-sentence."""
    line = text[text.rfind("\n", 0, start) + 1 : start]
    if not line.strip():
        return len(line) < 4 and "\t" not in line  # deeper is a code block
    return bool(_SAID.search(line)) and not _LISTED.search(line)


def _only_json(text: str, tools: Sequence[Tool]) -> Rescued | None:
    """Return calls that are the whole answer, or its only code block at its end."""
    body = _LOOSE.sub("", text.strip())
    if body[:1] in ("{", "["):
        return _exact(body, 0, len(text), tools)
    fenced = _FENCED.search(text)
    if fenced is None or len(_FENCE.findall(text)) > 2:
        return None
    return _exact(fenced["body"], fenced.start(), len(text), tools)


def _exact(body: str, start: int, end: int, tools: Sequence[Tool]) -> Rescued | None:
    try:
        value = written.parse(body)
    except Unreadable:
        return None
    items = value if isinstance(value, list) else [value]
    names = {tool.name for tool in tools}
    if not items or not all(_is_call(item, names) for item in items):
        return None
    calls = tuple(replace(call, repairs=("block",)) for call in written.founds(value))
    return Rescued(start, end, calls, exact=True)


def _is_call(item: object, names: set[str]) -> bool:
    """Tell whether *item* has an offered name and arguments, and nothing else."""
    if not isinstance(item, dict) or len(item) != 2:
        return False
    name = [item[key] for key in written.NAMES if key in item]
    arguments = [item[key] for key in written.ARGUMENTS if key in item]
    return (
        len(name) == len(arguments) == 1
        and isinstance(name[0], str)
        and name[0] in names
        and isinstance(arguments[0], dict)
    )
