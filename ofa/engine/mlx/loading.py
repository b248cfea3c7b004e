"""The reply of a model that is still loading: a reader may leave while it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from ...chat import Event, Waiting
from ...errors import Cancelled
from ..base import SILENCE_S, Reply


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
        self._lock = threading.Lock()
        self._gone = False
        self._reply: Reply | None = None

    @property
    def patient(self) -> bool:
        """Yes: it waits in short steps, and so do the replies of this engine."""
        return True

    @property
    def told(self) -> Mapping[str, str]:
        """What the reply tells, once there is one."""
        if self._reply is not None:
            return self._reply.told
        return {"x-ofa-cache": "miss; the model is loading"}

    def __iter__(self) -> Iterator[Event]:
        while (left_s := self._until_s - time.monotonic()) > 0:
            if self._gone or self._settled.wait(min(left_s, SILENCE_S)):
                break
            yield Waiting()
        if self._gone:
            raise Cancelled("the reader left")
        reply = self._ask()
        with self._lock:
            gone, self._reply = self._gone, reply
        if gone:
            reply.close()
            raise Cancelled("the reader left")
        yield from reply

    def close(self) -> None:
        """Wait no more, or stop the reply that has begun."""
        with self._lock:
            self._gone = True
            reply = self._reply
        if reply is not None:
            reply.close()
