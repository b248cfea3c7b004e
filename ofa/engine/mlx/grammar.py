"""
Answers held to a JSON Schema: which tokens may come next, as a mask on the logits.

The one module that imports llguidance, an optional extra. Its tokenizer is made of our
own table of bytes, so control tokens can't stand inside a JSON string, and what the
grammar reads is what the decoder will show. Its forcing is off: it would write a
schema's fixed parts without a look at the model, a constant of a million characters in
one go, and call back into Python for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from typing import TYPE_CHECKING, Any, TypeVar

from ...chat import Output, Tool, ToolChoice
from ...errors import BadRequest, Overloaded
from ...toolcalls.base import Format
from ..text import Markers
from .calls import Asked, CallGrammar, Calls, callable_tools
from .kept import Kept, Wearing
from .masks import Mask, Matcher
from .schema import check_schema, refusal
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    pass

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# Compact, as a weak model may write blanks for ever. What a schema says itself under
# this name is replaced: it could switch refusals off.
_OPTIONS = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
# Fixed, as a channel of another name would be shown as part of the answer.
_LABEL = "thought\n"
_LIMITS = {
    "max_grammar_size": 50_000,
    "max_lexer_states": 100_000,  # about 0.7 kB each
    # Where a property may come that is not required it takes four of them. All rows
    # wait for a step: 2000 such properties take 40 ms, the worst schema found 150 ms.
    "max_items_in_row": 10_000,
    "step_max_items": 20_000,
    "verbose_errors": False,  # they would quote the schema and the answer
}
_COMPILE_S = 2.0

log = logging.getLogger("ofa.engine.mlx")

T = TypeVar("T")


def _import() -> Any:  # noqa: ANN401 - a module
    import llguidance

    return llguidance


class Grammars:
    """
    Makes grammars for the answers of one model; safe to use from many threads.

    *logits* is how many ids the model tells apart, *ends* those that end an answer;
    *thinking* are the markers of its thoughts, where they are tokens.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        logits: int,
        ends: frozenset[int],
        thinking: Markers | None,
        load: Callable[[], Any] = _import,
        limit_s: float = _COMPILE_S,
    ) -> None:
        self.vocabulary = vocabulary
        self.logits = logits
        self._ends = sorted(token for token in ends if token < logits)
        self._is_able = bool(self._ends) and vocabulary.knows_bytes
        self.thinking = thinking
        self._load = load
        self._limit_s = limit_s
        self._building = threading.Lock()
        self._library: Any = None
        self._tokenizer: Any = None
        self._kept: Kept[tuple[str, str], Grammar] = Kept()
        self._compiling = threading.Lock()  # one at a time: it costs a whole core
        self._calls = Calls(self)

    def prepare(self) -> None:
        """
        Build what all grammars of the model share, unless that is done or under way.

        Takes 1.5 s for 262144 tokens, in two pieces during which no other thread runs.
        Does nothing where llguidance is not installed; `compile` says so.
        """
        with self._building:
            if self._tokenizer is None and self._is_able:
                try:
                    self._library = self._load()
                except ImportError:
                    return
                self._tokenizer = self._make_tokenizer()

    def compile(
        self, output: Output, *, thinking: bool = False, opened: bool = False
    ) -> Grammar:
        """
        Return the grammar of *output*; waits for `prepare`.

        It begins behind a thought if the prompt *opened* one, or if with *thinking*
        the model opens one itself. Raises `BadRequest` naming what can't be enforced.
        """
        frame = self.frame(thinking=thinking, opened=opened)
        return self._compiled(frame, _text_of(output), param=output.param)

    def compile_calls(  # noqa: PLR0913 - all that a request says of its calls
        self,
        format_: Format,
        tools: Sequence[Tool],
        choice: ToolChoice,
        *,
        parallel: bool = True,
        thinking: bool = False,
        opened: bool = False,
        output: Output | None = None,
        param: str = "tools",
    ) -> CallGrammar | None:
        """
        Return the grammar of calls of *tools*; waits for `prepare`.

        With a *choice* of "auto" it is in force once a call has opened, else from the
        answer's start, or behind its thought. With *output* what is no call has to
        fit that, from the start. None where there is none: nothing may be called, the
        format has no rules, or llguidance is not installed. Raises `BadRequest` for a
        strict tool whose schema can't be enforced as a whole, and for such an *output*.
        """
        schema = ""
        if output is not None and choice.kind == "auto":
            # Alone first: what is wrong with it is no fault of the tools.
            text, frame = _text_of(output), self.frame(thinking=thinking, opened=opened)
            self._compiled(frame, text, param=output.param)
            schema = json.dumps(_as_enforced(text))
        asked = Asked(
            format_.name,
            callable_tools(tools, choice),
            free=choice.kind == "auto" and not schema,
            parallel=parallel,
            thinking=thinking,
            opened=opened,
            param=param,
            schema=schema,
        )
        return self._calls.compile(asked)

    def able(self) -> bool:
        """Return whether grammars can be made at all; waits for `prepare`."""
        self.prepare()
        return self._tokenizer is not None

    def _require(self, param: str) -> None:
        if self.able():
            return
        why = "this model's tokenizer does not allow it; use another model"
        if self._is_able:
            why = "this server lacks what enforces it: install ofa[structured]"
        raise BadRequest(f"{param}: {why}", param=param, code="unsupported_value")

    def _make_tokenizer(self) -> Any:  # noqa: ANN401 - llguidance's
        start = time.perf_counter()
        library = self._library
        words = _Words(self.vocabulary, self.logits, self._ends)
        bare = library.LLTokenizer(
            library.TokenizerWrapper(words), eos_token=self._ends, slices=[]
        )
        # Apart from the rest, so that other threads get a turn in between.
        made = bare.with_slices(library.LLTokenizer.general_slices())
        log.info("grammars are ready after %.1f s", time.perf_counter() - start)
        return made

    def frame(
        self, *, thinking: bool, opened: bool = False, answer: str = "@answer"
    ) -> str:
        """Return the rules, in llguidance's Lark, of what stands around *answer*."""
        rules = ['%llguidance {"no_forcing": true}']
        marks, ids = self.thinking, self.vocabulary.ids
        if marks is None or not (thinking or opened):
            return "\n".join((*rules, f"start: {answer}"))
        label = json.dumps(_LABEL) if marks.labelled else ""
        close = f"<[{ids[marks.close]}]>"
        if opened:
            rules.append(f"start: THOUGHT {close} {answer}")
        else:
            begin = f"<[{ids[marks.open]}]> {label}"
            rules.append(f"start: ({begin} THOUGHT {close})? {answer}")
        # Spelled in plain letters, a marker would end the thought for its reader.
        spelled = "|".join(_literal(mark) for mark in (marks.open, marks.close))
        rules.append(f"THOUGHT: /(?s:.*)/ & ~/(?s:.*)({spelled})(?s:.*)/")
        return "\n".join(rules)

    def _compiled(self, frame: str, text: str, *, param: str) -> Grammar:
        """Return the grammar that is kept, or a new one."""
        self._require(param)
        grammar = self._kept.get((frame, text))
        if grammar is None:
            grammar = self._compile(frame, text, param=param)
            self._kept.put((frame, text), grammar)
        return grammar

    def _compile(self, frame: str, text: str, *, param: str) -> Grammar:
        """Return a new grammar; one that takes too long is given up."""
        try:
            matcher = self.timed(lambda: self._matcher(frame, text))
        except TooLate:
            raise refusal("too complex", param) from None
        if matcher.is_error():
            raise refusal(matcher.get_error(), param)
        return Grammar(matcher, logits=self.logits)

    def timed(self, work: Callable[[], T]) -> T:
        """
        Return what *work* does, which makes grammars, on a thread of its own.

        Raises `TooLate` when it takes too long; its end is waited for by nobody.
        """
        if not self._compiling.acquire(timeout=self._limit_s):
            raise Overloaded("another request's schema is being read; try again")
        made: Future[T] = Future()

        def run() -> None:
            try:
                made.set_result(work())
            except Exception as error:  # noqa: BLE001 - handed to who waits
                made.set_exception(error)
            finally:
                self._compiling.release()

        threading.Thread(target=run, name="ofa-grammar", daemon=True).start()
        return made.result(self._limit_s)

    def matcher(self, rules: Sequence[Mapping[str, Any]]) -> Matcher:
        """Return llguidance's matcher of *rules*; whether it has failed, it says."""
        matcher: Matcher = self._library.LLMatcher(
            self._tokenizer,
            json.dumps({"grammars": rules}),
            log_level=0,
            limits=self._library.LLParserLimits(**_LIMITS),
        )
        matcher.compute_bitmask()  # a grammar without a first token fails here
        return matcher

    def _matcher(self, frame: str, text: str) -> Matcher:
        rules: list[dict[str, object]] = [
            {"lark_grammar": frame},
            {"name": "answer", "json_schema": _as_enforced(text)},
        ]
        matcher = self.matcher(rules)
        # As one too complex does inside of its object: better now than in an answer.
        inside = matcher.deep_copy()
        inside.try_consume_tokens([self.vocabulary.ids.get("{", 0)])
        inside.compute_bitmask()
        return inside if inside.is_error() else matcher


def _text_of(output: Output) -> str:
    """Return the schema of *output* as JSON; `BadRequest` where it is none for us."""
    plain = output.kind == "json_object"
    return check_schema(_ANY_OBJECT if plain else output.schema, output.param)


def _as_enforced(schema: str) -> dict[str, Any]:
    return {**json.loads(schema), "x-guidance": _OPTIONS}


class Grammar(Wearing):
    """What an answer has to be; any number of rows may be held to it."""

    def __init__(self, matcher: Matcher, *, logits: int) -> None:
        super().__init__()
        self._matcher = matcher
        self._logits = logits

    def processor(self, prompt: int) -> Mask:
        """Return what holds one row to it, whose prompt has so many tokens."""
        self._use()
        return Mask(
            self._matcher.deep_copy(),
            prompt=prompt,
            logits=self._logits,
            failed=self._fail,
        )


class _Words:
    """A vocabulary as llguidance's tokenizer wants to see it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, logits: int, ends: list[int]) -> None:
        self.eos_token_id = ends[0]
        # Models may tell fewer ids apart than their tokenizer has, or more.
        self.tokens = [vocabulary.raw(token) for token in range(logits)]
        control = {token for token in vocabulary.control.values() if token < logits}
        self.special_token_ids = sorted(control.union(ends))
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _literal(text: str) -> str:
    """Return a regular expression for *text* that Lark reads as such."""
    return "".join(f"\\x{{{ord(char):x}}}" for char in text)
