"""The reply to a chat with as many of its passages as the engine has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .chat import Chat, Event, Waiting
from .engine.base import InHand, Reply
from .errors import ContextLengthExceeded
from .rag.cite import Cited
from .rag.lookup import Looked

RAG_TOLD = "x-ofa-rag"

Ask = Callable[[Chat], Reply]


class Fitted:
    """
    The reply to the first of *sets* that fits, which *ask* gives, and then *again*.

    Passages must never make a chat fail that fits without them. How long a prompt is
    the engine alone knows, once it has put it together: ours mostly when it is asked,
    other servers, and a model that is still loading, only when the reply is read. Until
    the first event another set may take the place of one that is refused. Raises
    `ContextLengthExceeded` where none fits.
    """

    def __init__(
        self, sets: Iterator[Looked], ask: Ask, again: Ask, *, cite: bool
    ) -> None:
        self._sets = sets
        self._again = again
        self._cite = cite
        self._rag = ""
        looked = next(sets)
        self.chat = looked.chat  # as it was asked first
        self._reply = self._fit(looked, ask)
        self._hand = InHand(self._reply)

    @property
    def patient(self) -> bool:
        """Whether the engine's replies are."""
        return self._reply.patient

    @property
    def told(self) -> Mapping[str, str]:
        """What the reply tells, and which passages went with it."""
        return {**self._reply.told, RAG_TOLD: self._rag}

    def __iter__(self) -> Iterator[Event]:
        begun = False
        while True:
            try:
                for event in self._reply:
                    begun = begun or not isinstance(event, Waiting)
                    yield event
            except ContextLengthExceeded as refused:
                if begun:
                    raise
                self._next(refused)
            else:
                return

    def close(self) -> None:
        """Stop the reply that is read, and ask for no other."""
        self._hand.close()

    def _next(self, refused: ContextLengthExceeded) -> None:
        """Let the next set take the place of the one that was *refused*."""
        looked = next(self._sets, None)
        if looked is None:
            raise refused
        self._hand.check()
        self._reply = self._hand.take(self._fit(looked, self._again))

    def _fit(self, looked: Looked | None, ask: Ask) -> Reply:
        """Return the reply to *looked*, or else to the first behind it that fits."""
        refused: ContextLengthExceeded | None = None
        while looked is not None:
            try:
                reply = ask(looked.chat)
            except ContextLengthExceeded as exc:
                refused, looked = exc, next(self._sets, None)
                continue
            self._rag = looked.told
            cited = self._cite and bool(looked.footer)
            return Cited(reply, looked.footer) if cited else reply
        assert refused is not None
        raise refused
