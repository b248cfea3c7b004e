"""The reply of a model that is still loading: a reader may leave while it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from ...chat import Event, Waiting
from ..base import SILENCE_S, InHand, Reply


class Loading:
    """
    The reply that *ask* gives once *settled* is set, or *limit_s* from now.

    What the model has to check is refused only then, as a prompt can't be put together
    before: by *ask*, which also says why there is no model.
    """

    def __init__(
        self, settled: threading.Event, limit_s: float, ask: Callable[[], Reply]
    ) -> None:
        self._settled = settled
        self._until_s = time.monotonic() + limit_s
        self._ask = ask
        self._hand = InHand()

    @property
    def patient(self) -> bool:
        """Yes: it waits in short steps, and so do the replies of this engine."""
        return True

    @property
    def told(self) -> Mapping[str, str]:
        """What the reply tells, once there is one."""
        if self._hand.reply is not None:
            return self._hand.reply.told
        return {"x-ofa-cache": "miss; the model is loading"}

    def __iter__(self) -> Iterator[Event]:
        while (left_s := self._until_s - time.monotonic()) > 0:
            if self._hand.closed or self._settled.wait(min(left_s, SILENCE_S)):
                break
            yield Waiting()
        self._hand.check()
        yield from self._hand.take(self._ask())

    def close(self) -> None:
        """Wait no more, or stop the reply that has begun."""
        self._hand.close()
