"""Masks of one row: its place in a grammar, and what may not come next there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...errors import EngineError
from .schema import first_line

if TYPE_CHECKING:
    import mlx.core as mx

    from .openers import Watch

log = logging.getLogger("ofa.engine.mlx")


class Matcher(Protocol):
    """What is used of llguidance's; its methods never raise, `is_error` says it."""

    def deep_copy(self) -> Matcher:
        """Return another one at the same place, that shares what was learnt."""

    def consume_token(self, token: int) -> bool:
        """Go on by one token."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Go on by *tokens* as long as they fit; return how many did."""

    def compute_bitmask(self) -> bytes:
        """Return a bit for each token, set if it may come next."""

    def is_error(self) -> bool:
        """Return whether it has failed; then it stays so."""

    def get_error(self) -> str:
        """Return what it failed of."""

    def stop_reason(self) -> str:
        """Return the same in one word."""


class Mask:
    """
    Forbids the tokens that can't come next in one row; the last of its processors.

    Behind the answer only end tokens are left. It raises `EngineError` where the
    grammar got too complex underway: the row has to fail then, as without the mask
    anything could follow.
    """

    def __init__(
        self,
        matcher: Matcher,
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
            self._take(token)
        self._read = max(self._read, context.shape[0])
        bits = self._allowed()
        return logits if bits is None else mx.where(mx.array(bits), logits, -mx.inf)

    def _take(self, token: int) -> None:
        self._matcher.consume_token(token)

    def _allowed(self) -> Any:  # noqa: ANN401 - a NumPy array of booleans, or None
        """Return for each id whether it may come next; None where any may."""
        bits = self._bits()
        # A failed matcher allows the end: a cut answer would pass for a whole one.
        if bits is None:
            self._failed()
            raise EngineError(
                f"the answer can't be held to its schema any more: {self._why()}"
            )
        return bits

    def _bits(self) -> Any:  # noqa: ANN401 - a NumPy array of booleans, or None
        """Return what the matcher allows; None if it has failed."""
        import numpy as np

        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            return None
        return np.unpackbits(bits, count=self._logits, bitorder="little").view(np.bool_)

    def _why(self) -> str:
        """Return what the matcher failed of; logged, so it may not quote the answer."""
        said = first_line(self._matcher.get_error())
        return str(self._matcher.stop_reason()) if '"' in said else said


class CallMask(Mask):
    """
    Lets all pass until a call opens, and from there on only calls.

    *watch* looks for openers; without one the grammar is in force from the first token.
    Where the grammar got too complex underway all may pass again: calls are checked
    once more when they are read.
    """

    def __init__(
        self,
        matcher: Matcher,
        watch: Watch | None,
        *,
        prompt: int,
        logits: int,
        failed: Callable[[], None],
    ) -> None:
        super().__init__(matcher, prompt=prompt, logits=logits, failed=failed)
        self._watch = watch
        self._held = watch is None

    def _take(self, token: int) -> None:
        if self._held:
            self._matcher.consume_token(token)
        elif self._watch is not None:
            behind = self._watch.feed(token)
            self._held = behind is not None and self._enter(behind)

    def _enter(self, behind: tuple[int, ...]) -> bool:
        """Return whether a call may begin with *behind*, and go on from there."""
        matcher = self._matcher.deep_copy()
        if matcher.try_consume_tokens(list(behind)) < len(behind):
            return False
        self._matcher = matcher
        return True

    def _allowed(self) -> Any:  # noqa: ANN401 - as above
        if not self._held:
            return None
        bits = self._bits()
        if bits is None:
            self._failed()
            self._held, self._watch = False, None
            log.warning("a call is checked only when it is read: %s", self._why())
        return bits
