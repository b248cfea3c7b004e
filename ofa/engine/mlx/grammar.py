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
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from typing import TYPE_CHECKING, Any, cast

from ...chat import Output
from ...errors import BadRequest, EngineError, Overloaded
from ..text import Markers
from .schema import check_schema
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import mlx.core as mx

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
_KEPT = 32
_ROWS = 256  # rows share what their lexer has learnt, and that is never given back

# What llguidance says of a schema, and what is wrong with the request then.
_REFUSALS = (
    (r"Unimplemented keys: \[(.*)\]", "{0} can't be enforced; leave it out", True),
    (r"Unknown format: (.*)", 'the string format "{0}" can\'t be enforced', True),
    (r"oneOf constraints", "oneOf can't be enforced where its options may overlap; "
     "use anyOf", True),
    (r"look-around", "pattern: look-around can't be enforced", True),
    (r"Resource '(.*?)' is not present", "{0} is not within the schema, and nothing "
     "is fetched", True),
    (r"only supported|not supported|too many digits|not disjoint|Unable to determine"
     r"|Failed to generate regex", "{line}", True),
    (r"Unsatisfiable schema: (.*)", "no value fits the schema: {0}", False),
    (r"NoExtension", "no value fits the schema", False),
    (r"too (?:big|large|complex|many)|fuel|Too many|symbols\.len", "the schema is too "
     "complex to be enforced; make it smaller", False),
    (r"regex parse error(?:.|\n)*error: (.*)", "pattern: {0}", False),
)  # fmt: skip

log = logging.getLogger("ofa.engine.mlx")


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
        self._vocabulary = vocabulary
        self._logits = logits
        self._ends = sorted(token for token in ends if token < logits)
        self._is_able = bool(self._ends) and vocabulary.knows_bytes
        self._thinking = thinking
        self._load = load
        self._limit_s = limit_s
        self._building = threading.Lock()
        self._library: Any = None
        self._tokenizer: Any = None
        self._lock = threading.Lock()  # of the kept ones
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._compiling = threading.Lock()  # one at a time: it costs a whole core

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
        plain = output.kind == "json_object"
        text = check_schema(_ANY_OBJECT if plain else output.schema, output.param)
        self._require(output.param)
        key = (self._frame(thinking=thinking, opened=opened), text)
        with self._lock:
            grammar = self._kept.get(key)
            if grammar is not None and not grammar.worn:
                self._kept.move_to_end(key)
                return grammar
        grammar = self._compile(*key, param=output.param)
        with self._lock:
            self._kept[key] = grammar
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _require(self, param: str) -> None:
        self.prepare()
        if self._tokenizer is not None:
            return
        why = "this model's tokenizer does not allow it; use another model"
        if self._is_able:
            why = "this server lacks what enforces it: install ofa[structured]"
        raise BadRequest(f"{param}: {why}", param=param, code="unsupported_value")

    def _make_tokenizer(self) -> Any:  # noqa: ANN401 - llguidance's
        start = time.perf_counter()
        library = self._library
        words = _Words(self._vocabulary, self._logits, self._ends)
        bare = library.LLTokenizer(
            library.TokenizerWrapper(words), eos_token=self._ends, slices=[]
        )
        # Apart from the rest, so that other threads get a turn in between.
        made = bare.with_slices(library.LLTokenizer.general_slices())
        log.info("grammars are ready after %.1f s", time.perf_counter() - start)
        return made

    def _frame(self, *, thinking: bool, opened: bool) -> str:
        """Return the rules, in llguidance's Lark, of what stands around the answer."""
        rules = ['%llguidance {"no_forcing": true}']
        marks, ids = self._thinking, self._vocabulary.ids
        if marks is None or not (thinking or opened):
            return "\n".join((*rules, "start: @answer"))
        label = json.dumps(_LABEL) if marks.labelled else ""
        close = f"<[{ids[marks.close]}]>"
        if opened:
            rules.append(f"start: THOUGHT {close} @answer")
        else:
            begin = f"<[{ids[marks.open]}]> {label}"
            rules.append(f"start: ({begin} THOUGHT {close})? @answer")
        # Spelled in plain letters, a marker would end the thought for its reader.
        spelled = "|".join(_literal(mark) for mark in (marks.open, marks.close))
        rules.append(f"THOUGHT: /(?s:.*)/ & ~/(?s:.*)({spelled})(?s:.*)/")
        return "\n".join(rules)

    def _compile(self, frame: str, text: str, *, param: str) -> Grammar:
        """Return a new grammar; one that takes too long is given up."""
        if not self._compiling.acquire(timeout=self._limit_s):
            raise Overloaded("another request's schema is being read; try again")
        made: Future[Any] = Future()

        def work() -> None:
            try:
                made.set_result(self._matcher(frame, text))
            except Exception as error:  # noqa: BLE001 - handed to who waits
                made.set_exception(error)
            finally:
                self._compiling.release()

        threading.Thread(target=work, name="ofa-grammar", daemon=True).start()
        try:
            matcher = made.result(self._limit_s)
        except TooLate:
            raise _refusal("too complex", param) from None
        if matcher.is_error():
            raise _refusal(matcher.get_error(), param)
        return Grammar(matcher, logits=self._logits)

    def _matcher(self, frame: str, text: str) -> Any:  # noqa: ANN401 - llguidance's
        """Return a matcher at the answer's start; whether it has failed, it says."""
        schema = {**json.loads(text), "x-guidance": _OPTIONS}
        rules = [{"lark_grammar": frame}, {"name": "answer", "json_schema": schema}]
        matcher = self._library.LLMatcher(
            self._tokenizer,
            json.dumps({"grammars": rules}),
            log_level=0,
            limits=self._library.LLParserLimits(**_LIMITS),
        )
        matcher.compute_bitmask()  # a grammar without a first token fails here
        # As one too complex does inside of its object: better now than in an answer.
        inside = matcher.deep_copy()
        inside.try_consume_tokens([self._vocabulary.ids.get("{", 0)])
        inside.compute_bitmask()
        return inside if inside.is_error() else matcher


class Grammar:
    """What an answer has to be; any number of rows may be held to it."""

    def __init__(self, matcher: Any, *, logits: int) -> None:  # noqa: ANN401
        self._matcher = matcher
        self._logits = logits
        self._rows = 0
        self._failed = False

    @property
    def worn(self) -> bool:
        """Whether the next row should be held to a new one of the same text."""
        return self._failed or self._rows >= _ROWS

    def processor(self, prompt: int) -> Mask:
        """Return what holds one row to it, whose prompt has so many tokens."""
        self._rows += 1
        return Mask(
            self._matcher.deep_copy(),
            prompt=prompt,
            logits=self._logits,
            failed=self._fail,
        )

    def _fail(self) -> None:
        self._failed = True


class Mask:
    """
    Forbids the tokens that can't come next in one row; the last of its processors.

    Behind the answer only end tokens are left. It raises `EngineError` where the
    grammar got too complex underway: the row has to fail then, as without the mask
    anything could follow.
    """

    def __init__(
        self,
        matcher: Any,  # noqa: ANN401 - llguidance's
        *,
        prompt: int,
        logits: int,
        failed: Callable[[], None],
    ) -> None:
        self._matcher = matcher
        self._read = prompt  # tokens of the row that the grammar is past
        self._logits = logits
        self._failed = failed

    def __call__(self, context: mx.array, logits: mx.array) -> mx.array:
        """Return *logits* with what may not follow *context* at minus infinity."""
        import mlx.core as mx

        new = context[self._read :]
        # First the newest token, which was drawn in the step before, then the step
        # under way: the mask is made while the device is at work on that.
        mx.async_eval(new)  # type: ignore[no-untyped-call]
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        for token in cast(list[int], new.tolist()):
            self._matcher.consume_token(token)
        self._read = max(self._read, context.shape[0])
        return mx.where(mx.array(self._allowed()), logits, -mx.inf)

    def _allowed(self) -> Any:  # noqa: ANN401 - a NumPy array of booleans
        """Return for each id whether it may come next."""
        import numpy as np

        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        # A failed matcher allows the end: a cut answer would pass for a whole one.
        if self._matcher.is_error():
            self._failed()
            said = _line(self._matcher.get_error())
            # Logged as well, so it may not quote the answer.
            why = self._matcher.stop_reason() if '"' in said else said
            raise EngineError(f"the answer can't be held to its schema any more: {why}")
        return np.unpackbits(bits, count=self._logits, bitorder="little").view(np.bool_)


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


def _refusal(said: str, param: str) -> BadRequest:
    """Return what to tell a client of llguidance's words on its schema."""
    message, unable = f"the schema can't be used: {_line(said)}", False
    for pattern, told, known in _REFUSALS:
        found = re.search(pattern, said)
        if found:
            message = told.format(*found.groups(), line=_line(said))
            unable = known
            break
    code = "unsupported_value" if unable else "invalid_value"
    return BadRequest(f"{param}: {message[:300]}", param=param, code=code)


def _line(said: str) -> str:
    return (said.strip().splitlines() or ["unknown"])[0][:200]
