"""
ofa's engine in this process, without queue and HTTP; and what its steps take.

Steps are seen by timing the `next` of mlx-lm's batch generator, which every engine
here is built on: the sizes of its prefill chunks are what the engine chose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ofa.chat import Chat, End, Message, Sampling, Text

from .lines import Asked, given, serve

_READY_S = 300.0
_LET_RUN = 6  # tokens of the running answer before another prompt joins it


@dataclass
class Steps:
    """Each step of the batch generator: how long, tokens prefilled, tokens written."""

    seen: list[tuple[float, int, int]] = field(default_factory=list)

    def watch(self) -> None:
        """Time every step from now on."""
        from mlx_lm.generate import BatchGenerator

        step = BatchGenerator.next
        read: dict[tuple[int, int], int] = {}

        def timed(generator: Any) -> tuple[list[Any], list[Any]]:
            began = time.perf_counter()
            prompts, answers = step(generator)
            took, new = time.perf_counter() - began, 0
            for part in prompts:
                before = read.get((id(generator), part.uid), 0)
                new += max(0, part.progress[0] - before)
                read[id(generator), part.uid] = part.progress[0]
            self.seen.append((took, new, len(answers)))
            return prompts, answers

        BatchGenerator.next = timed


class Asking:
    """Puts chats to an engine and times what comes."""

    def __init__(self, engine: Any, steps: Steps) -> None:
        self._engine = engine
        self._steps = steps

    def ask(self, asked: Asked) -> Mapping[str, Any]:
        """Have one chat answered."""
        return self._answer(asked["messages"], asked["tokens"], lambda count: None)

    def join(self, asked: Asked) -> Mapping[str, Any]:
        """Let *joiner* join the answer to *running*; return the gaps in that one."""
        under_way, joined = threading.Event(), threading.Event()
        result: dict[str, Any] = {}

        def look(count: int) -> None:
            if count >= _LET_RUN:
                under_way.set()
            if joined.is_set():
                raise _Enough

        def run() -> None:
            result.update(self._answer(asked["running"], asked["tokens"], look))
            under_way.set()

        thread = threading.Thread(target=run)
        thread.start()
        under_way.wait(_READY_S)
        steps = len(self._steps.seen)
        began = time.perf_counter()
        other = self._answer(asked["joiner"], 1, lambda count: None)
        ended = time.perf_counter()
        joined.set()
        thread.join()
        times = result["pieces"]
        return {
            "gaps": [b - a for a, b in pairwise(times) if b > began and a < ended],
            "before": self._steps.seen[:steps],
            "steps": self._steps.seen[steps:],
            "outlasted": bool(times) and times[-1] > ended,
            "joiner_ttft_s": other["ttft_s"],
            "joiner_prefilled": other["prompt_tokens"] - other["cached_tokens"],
        }

    def _answer(
        self, messages: Any, tokens: int, look: Callable[[int], None]
    ) -> dict[str, Any]:
        chat = Chat(
            "bench",
            tuple(Message(m["role"], m["content"]) for m in messages),
            sampling=Sampling(temperature=0.0, max_tokens=tokens),
            caller="bench",
        )
        pieces: list[tuple[float, str]] = []
        end = End("stop")
        began = time.perf_counter()
        reply = self._engine.reply(chat)
        try:
            for event in reply:
                if isinstance(event, Text) and event.text:
                    pieces.append((time.perf_counter(), event.text))
                    look(len(pieces))
                if isinstance(event, End):
                    end = event
        except _Enough:
            pass
        finally:
            reply.close()
        usage = end.usage
        return {
            "ttft_s": pieces[0][0] - began if pieces else None,
            "pieces": [at for at, _ in pieces],
            "text": "".join(text for _, text in pieces),
            "reason": end.reason,
            "prompt_tokens": usage.prompt_tokens if usage else 0,
            "completion_tokens": usage.completion_tokens if usage else 0,
            "cached_tokens": usage.cached_tokens if usage else 0,
        }


class _Enough(Exception):
    """The running answer has shown what it was wanted for."""


def main() -> None:
    """Make the engine, wait for its model, answer questions."""
    values = given()
    steps = Steps()
    if values.get("script") is not None:
        from ofa.engine.scripted import ScriptedEngine

        engine: Any = ScriptedEngine(values["script"])
        blas = ""
    else:
        from ofa.engine.mlx.blas import load_blas

        blas = str(load_blas())
        from ofa.engine.mlx.engine import MlxEngine

        engine = MlxEngine(values["model"])
        status = engine.wait(_READY_S)
        if not status.ready:
            raise SystemExit(f"the engine is not ready: {status.reason}")
        steps.watch()
    asking = Asking(engine, steps)
    serve({"blas": blas}, {"ask": asking.ask, "join": asking.join})
    engine.close()


if __name__ == "__main__":
    main()
