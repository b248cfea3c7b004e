"""
Grammars of the tool calls in an answer, for one model.

A tool's schema is never a reason to refuse a request, unless the tool is strict: what
a grammar can't say of it is left to the check when the call is read, and the tool is
named in `CallGrammar.loose`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ...chat import Tool, ToolChoice
from ...errors import BadRequest, Overloaded
from ...toolcalls.grammar import SYNTAXES, CallRules, Hold, call_rules
from ..text import Markers
from .kept import Kept, Wearing
from .masks import CallMask, Mask, Matcher
from .openers import Watch
from .schema import check_finite, check_schema, check_size, refusal
from .vocabulary import Vocabulary

# An answer that is held to a schema, or calls in its place: the first token tells.
_EITHER = "(calls | @answer)"

log = logging.getLogger("ofa.engine.mlx")


T = TypeVar("T")


class Grammars(Protocol):
    """What is used of `grammar.Grammars`."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def thinking(self) -> Markers | None:
        """The markers of its thoughts, where they are tokens."""

    @property
    def logits(self) -> int:
        """How many ids it tells apart."""

    def able(self) -> bool:
        """Return whether grammars can be made at all."""

    def timed(self, work: Callable[[], T]) -> T:
        """Return what *work* does, or raise `TooLate`."""

    def frame(self, *, thinking: bool, opened: bool, answer: str) -> str:
        """Return the rules of what stands around *answer*."""

    def matcher(self, rules: Sequence[Mapping[str, Any]]) -> Matcher:
        """Return a matcher of *rules*."""


@dataclass(frozen=True)
class Asked:
    """What a grammar of calls is made of."""

    format: str
    tools: tuple[Tool, ...]
    free: bool = True  # whether text may come instead, and before
    parallel: bool = True
    thinking: bool = False
    opened: bool = False
    param: str = "tools"
    schema: str = ""  # as JSON: what the answer fits if it is no call

    @property
    def key(self) -> str:
        """Return what tells it from others."""
        tools = [(tool.name, tool.parameters, tool.strict) for tool in self.tools]
        how = (self.format, self.free, self.parallel, self.thinking, self.opened)
        return json.dumps([how, tools, self.schema])


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Return those of *tools* that may be called, in an order that is always theirs."""
    if choice.kind == "none":
        return ()
    by_name = {tool.name: tool for tool in reversed(tools)}
    return tuple(
        by_name[name]
        for name in sorted(by_name)
        if choice.kind != "named" or name == choice.name
    )


class CallGrammar(Wearing):
    """What the calls in an answer have to be; any number of rows may be held to it."""

    def __init__(
        self,
        matcher: Matcher | None,  # None: there is no grammar
        loose: tuple[str, ...],
        *,
        logits: int,
        watch: Watch | None,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.loose = loose  # tools whose schema is checked only afterwards, in part
        self._matcher = matcher
        self._logits = logits
        self._watch = watch
        self._whole = whole  # what is no call is held to a schema

    def processor(self, prompt: int) -> Mask | None:
        """Return what holds one row to it, whose prompt has so many tokens."""
        if self._matcher is None:
            return None
        self._use()
        if self._whole:  # not one token without it: nobody checks the answer later
            return Mask(
                self._matcher.deep_copy(),
                prompt=prompt,
                logits=self._logits,
                failed=self._fail,
            )
        return CallMask(
            self._matcher.deep_copy(),
            self._watch.fresh() if self._watch else None,
            prompt=prompt,
            logits=self._logits,
            failed=self._fail,
        )


class Calls:
    """Makes and keeps grammars of calls; safe to use from many threads."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._kept: Kept[str, CallGrammar] = Kept()

    def compile(self, asked: Asked) -> CallGrammar | None:
        """Return the grammar for what is *asked*; None where there is none."""
        if not asked.tools or asked.format not in SYNTAXES:
            return None
        return self._find(asked) if self._grammars.able() else None

    def _find(self, asked: Asked) -> CallGrammar:
        key = asked.key
        matcher: Matcher | None
        if (kept := self._kept.get(key)) is not None:
            return kept
        try:
            matcher, loose = self._grammars.timed(lambda: self._made(asked))
        except (TooLate, Overloaded) as error:
            _refuse_strict(asked, "the schema is too complex to be enforced")
            if asked.schema and isinstance(error, TooLate):
                raise _too_complex() from None
            if asked.schema:
                raise
            matcher = None
            loose = tuple(tool.name for tool in asked.tools)
            log.warning("no grammar of %d tools: too late", len(loose))
            if isinstance(error, Overloaded):
                return self._grammar(None, loose, asked)
        grammar = self._grammar(matcher, loose, asked)
        self._kept.put(key, grammar)
        return grammar

    def _grammar(
        self,
        matcher: Matcher | None,
        loose: tuple[str, ...],
        asked: Asked,
    ) -> CallGrammar:
        watch = None
        if asked.free:
            watch = Watch(
                self._grammars.vocabulary,
                SYNTAXES[asked.format].opener,
                thinking=self._grammars.thinking,
                opened=asked.opened,
            )
        return CallGrammar(
            matcher,
            loose,
            logits=self._grammars.logits,
            watch=watch,
            whole=bool(asked.schema),
        )

    # -- making one ----------------------------------------------------------------

    def _made(self, asked: Asked) -> tuple[Matcher, tuple[str, ...]]:
        """Return a matcher, and the tools whose schema it does not hold as a whole."""
        holds = self._first_holds(asked)
        while True:
            rules = self._rules(asked, holds)
            matcher = self._matcher(asked, rules)
            guilty = self._guilty(matcher, asked, rules, holds)
            if not guilty:
                break
            for name, said in guilty.items():
                holds[name] = Hold(holds.get(name, Hold.ALL) + 1)
                _refuse_strict(asked, said, name)
        if asked.schema and matcher.is_error():
            raise _too_complex()
        loose = tuple(name for name, left in rules.left.items() if left)
        for name in loose:
            told = ", ".join(rules.left[name])
            _refuse_strict(asked, f"{told} can't be enforced; leave it out", name)
        return matcher, loose

    def _first_holds(self, asked: Asked) -> dict[str, Hold]:
        """Return which schemas can't even be tried."""
        is_json = SYNTAXES[asked.format].quoted is None
        holds = {}
        for tool in asked.tools:
            where = f"{asked.param}: {tool.name}"
            try:
                if is_json:
                    check_schema(tool.parameters, where)
                else:
                    check_size(tool.parameters, where)
                    check_finite(tool.parameters, where)
            except BadRequest as error:
                if tool.strict:
                    raise BadRequest(
                        str(error), param=asked.param, code=error.code
                    ) from None
                holds[tool.name] = Hold.NAME
        return holds

    def _guilty(
        self,
        matcher: Matcher,
        asked: Asked,
        rules: CallRules,
        holds: Mapping[str, Hold],
    ) -> dict[str, str]:
        """Return the tools for which less has to be held, and why."""
        said = _said(matcher)
        if not said:
            return self._broken(matcher, asked, rules, holds)
        left = [tool for tool in asked.tools if holds.get(tool.name) != Hold.NAME]
        if len(left) == 1:
            return {left[0].name: said}
        found = {}
        for tool in left:
            one = replace(asked, tools=(tool,))
            alone = self._matcher(one, self._rules(one, holds))
            if why := _said(alone):
                found[tool.name] = why
        if found or not left:
            return found
        # Each would do, all of them are too much: the larger half goes.
        left.sort(key=lambda tool: -len(json.dumps(tool.parameters)))
        return dict.fromkeys((tool.name for tool in left[: len(left) // 2 + 1]), said)

    def _broken(
        self,
        matcher: Matcher,
        asked: Asked,
        rules: CallRules,
        holds: Mapping[str, Hold],
    ) -> dict[str, str]:
        """
        Return the tools whose arguments *matcher* fails in.

        As one too complex does: better now than in an answer.
        """
        found = {}
        for tool in asked.tools:
            start = self._start(asked, rules.starts[tool.name])
            inside = matcher.deep_copy()
            if inside.try_consume_tokens(start) == len(start):
                inside.compute_bitmask()
            if inside.is_error() and holds.get(tool.name) != Hold.NAME:
                found[tool.name] = str(inside.get_error())
        return found

    def _start(self, asked: Asked, text: str) -> list[int]:
        """Return tokens from the grammar's start to within a tool's arguments."""
        vocabulary, marks = self._grammars.vocabulary, self._grammars.thinking
        begin: list[int] = []
        if not asked.free:
            if asked.opened and marks is not None:
                begin.append(vocabulary.ids[marks.close])
            opener = SYNTAXES[asked.format].opener
            known = vocabulary.control.get(opener)
            begin += vocabulary.encode(opener) if known is None else [known]
        return [*begin, *vocabulary.encode(text)]

    def _rules(self, asked: Asked, holds: Mapping[str, Hold]) -> CallRules:
        return call_rules(
            asked.format,
            asked.tools,
            self._token,
            parallel=asked.parallel,
            holds=holds,
        )

    def _token(self, spelled: str) -> str:
        """Return how a rule names a control token, or the text that it is here."""
        known = self._grammars.vocabulary.control.get(spelled)
        return json.dumps(spelled) if known is None else f"<[{known}]>"

    def _matcher(self, asked: Asked, rules: CallRules) -> Matcher:
        frame = self._grammars.frame(
            thinking=asked.thinking and not asked.free,
            opened=asked.opened and not asked.free,
            answer="behind" if asked.free else _EITHER if asked.schema else "calls",
        )
        named = [
            {"name": name, "json_schema": schema}
            for name, schema in rules.schemas.items()
        ]
        if asked.schema:
            named.append({"name": "answer", "json_schema": json.loads(asked.schema)})
        lark = {"lark_grammar": f"{frame}\n{rules.lark}"}
        return self._grammars.matcher([lark, *named])


def _too_complex() -> BadRequest:
    said = "too complex together with the tools; leave one of them out"
    return refusal(said, "response_format")


def _said(matcher: Matcher) -> str:
    return str(matcher.get_error()) if matcher.is_error() else ""


def _refuse_strict(asked: Asked, said: str, name: str = "") -> None:
    """Raise `BadRequest` if the tool of that *name*, or any, is strict."""
    for tool in asked.tools:
        if tool.strict and name in ("", tool.name):
            raise refusal(said, asked.param, f"{tool.name}: ")
