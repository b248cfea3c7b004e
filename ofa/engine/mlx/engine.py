"""
The engine on MLX: local models behind the `Engine` seam.

Everything that costs no MLX runs on the caller's threads: rendering and tokenising
in `reply`, text in the reply's iterator. The scheduler's thread only turns token ids
into more of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...chat import Chat, Message
from ...errors import (
    BadRequest,
    ConfigError,
    ContextLengthExceeded,
    NotReady,
    OfaError,
    ShuttingDown,
)
from ..base import Limits, Status, refuse_unable
from ..text import Channels, StopStrings
from . import lm
from .blas import load_blas
from .ready import Ready, Wish
from .reply import MlxReply, Writer
from .rows import Mailbox, Row, marks_of, warm_row
from .sampling import DEFAULTS, check_bias
from .scheduler import Scheduler, Weights
from .template import Prompt

_FAULTS, _FAULTS_S = 3, 60.0  # so many failed steps so close together are no accident
MOST_LOGPROBS = 20  # OpenAI's
_FEW = 16  # tokens not worth reading ahead: a turn's own opening has some


@dataclass(frozen=True)
class Settings:
    """What a site chooses about every model of the engine; see site.toml.example."""

    context_tokens: int = 0  # 0: the model's own
    output_tokens: int = 4096
    rows: int = 4
    prefill_step: int = 512
    load_wait_s: float = 240.0
    lazy: bool = False
    unload_s: float = 0.0
    stall_s: float = 60.0
    memory_gib: float = 0.0
    prefix_memory_gib: float | None = None
    prefix_disk: Path | None = None  # a folder of their own
    prefix_disk_gib: float = 10.0


class MlxEngine:
    """
    Answers with *model*, a folder or a hub id, loaded in the background.

    `reply` waits for the model as long as *settings* say. Raises `ConfigError` at once
    for a broken folder.
    """

    def __init__(
        self,
        model: str | Path,
        settings: Settings | None = None,
        *,
        name: str = "",
        description: str = "",
        load: lm.Loader | None = None,
    ) -> None:
        self._settings = settings = settings or Settings()
        self._name = name or Path(model).name
        self._description = description
        self._native_tokens = 0
        if load is None:
            load = partial(lm.load, str(model))
            if not lm.is_hub_id(str(model)):
                config = lm.check_folder(Path(model).expanduser())
                self._native_tokens = lm.context_of(config)
        wish = Wish(
            settings.context_tokens,
            settings.memory_gib,
            settings.prefix_memory_gib,
            settings.prefix_disk,
            settings.prefix_disk_gib,
        )
        self._weights = Weights(self._name, load, wish)
        self._scheduler = Scheduler(
            [self._weights],
            rows=settings.rows,
            prefill_step=settings.prefill_step,
            lazy=settings.lazy,
            unload_s=settings.unload_s,
        )

    @property
    def ready(self) -> Ready | None:
        """What is known of the model once it was loaded."""
        return self._weights.ready

    def reply(self, chat: Chat) -> MlxReply:
        """
        Check and tokenise *chat*; see `Engine.reply`.

        Tools are not rendered: `limits` says so, and callers leave them out.
        """
        _refuse_images(chat)
        refuse_unable(chat, self.limits())
        ready = self._wait()
        sampling = chat.sampling.over(DEFAULTS)
        check_bias(sampling, ready.logits)
        prompt = ready.prompts.render(chat.messages, thinking=bool(chat.thinking))
        most = min(self._settings.output_tokens, self._room(ready, len(prompt.ids)))
        mailbox = Mailbox()
        rows = [
            Row(
                prompt.ids,
                max_tokens=min(sampling.max_tokens or most, most),
                sampling=sampling,
                marks=marks_of(prompt, rewinds=not ready.room.shape.windows),
                owner=chat.caller,
                priority=chat.priority,
                index=index,
                logprobs=chat.logprobs,
                mailbox=mailbox,
            )
            for index in range(chat.choices)
        ]
        match = ready.store.match(prompt.ids, chat.caller)
        found = "hit" if match.tokens else "miss"
        return MlxReply(
            rows,
            [self._writer(ready, prompt, chat, index) for index in range(chat.choices)],
            submit=partial(self._scheduler.submit, self._weights),
            finished=partial(self._read_on, ready, chat),
            told={"x-ofa-cache": f"{found}; {match.reason}"},
        )

    def limits(self) -> Limits:
        """Return what the model can take; before it is loaded, what its files say."""
        ready = self.ready
        asked, native = self._settings.context_tokens, self._native_tokens
        guess = min(asked or native, native) if native else asked or 8192
        context = ready.context_tokens if ready else guess
        kind = f"{self._name} ({ready.kind})" if ready else self._name
        return Limits(
            context_tokens=context,
            output_tokens=min(self._settings.output_tokens, context),
            choices=self._settings.rows,
            logprobs=MOST_LOGPROBS,
            prefill_per_s=self._weights.speed.per_s or None,
            description=", ".join(part for part in (kind, self._description) if part),
        )

    def status(self) -> Status:
        """Return whether the model is loaded and the engine's thread moves."""
        failure = self._weights.failure
        if failure:
            return Status(False, str(failure), final=isinstance(failure, ConfigError))
        if broken := self._broken():
            return Status(False, broken, broken=True)
        if not self._scheduler.is_open:
            return Status(False, "the engine is stopped")
        if self._weights.state == "loading" or not (self.ready or self._settings.lazy):
            return Status(False, "loading the model")
        return Status(True, details=self._details())

    def wait(self, limit_s: float | None = None) -> Status:
        """Wait for the model, up to *limit_s*; raise `ConfigError` if it won't load."""
        self._weights.settled.wait(limit_s)
        if isinstance(self._weights.failure, ConfigError):
            raise self._weights.failure
        return self.status()

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Read the system texts of *beginnings* for everyone, when there is time."""
        threading.Thread(
            target=self._warm, args=(tuple(beginnings),), name="ofa-warm", daemon=True
        ).start()

    def count_tokens(self, text: str) -> int:
        """Return the length of *text* in tokens; an estimate until it is loaded."""
        if self.ready:
            return len(self.ready.vocabulary.encode(text))
        return (len(text.encode("utf-8", "replace")) + 1) // 2

    def cut(self, error: OfaError) -> None:
        """End all replies with *error*, whatever the engine's thread is stuck in."""
        self._scheduler.fail_all(error)

    def close(self) -> None:
        """End all replies with an error, and the thread; safe to call twice."""
        self._scheduler.close()

    def _writer(self, ready: Ready, prompt: Prompt, chat: Chat, index: int) -> Writer:
        stops = (*chat.sampling.stop, *ready.prompts.family.stop_strings)
        return Writer(
            decoder=ready.vocabulary.decoder(ready.silent),
            channels=Channels(ready.thinking, thinking=prompt.thinking),
            stops=StopStrings(stops),
            vocabulary=ready.vocabulary,
            index=index,
        )

    def _broken(self) -> str:
        """Return what only a new process can mend; empty if nothing."""
        stall_s = self._settings.stall_s
        if self._scheduler.stalled_s() > stall_s:
            return f"a step of the engine has not come back for {stall_s:g} s"
        if self._scheduler.faults(_FAULTS_S) >= _FAULTS:
            return f"{_FAULTS} steps failed within {_FAULTS_S:.0f} s"
        return ""

    def _details(self) -> dict[str, str]:
        ready, weights = self.ready, self._weights
        if ready is None:
            return {"model": f"{self._name}, loads with the first request"}
        held = ready.store.held()
        return {
            "model": f"{self._name} ({ready.kind}), {weights.state}",
            "blas": str(load_blas()),
            "running": str(self._scheduler.running),
            "kept_prompts": f"{held.entries}",
            "kept_bytes": f"{held.nbytes} of {held.limit_bytes}",
            "cache_hits": f"{held.hits}, {held.reused_tokens} tokens",
        }

    def _wait(self) -> Ready:
        if self.ready is None:
            self._scheduler.call(self._weights)
            self._weights.settled.wait(self._settings.load_wait_s)
        if self.ready is None:
            raise NotReady(f"{self.status().reason}; try again in a while")
        if not self._scheduler.is_open:
            raise ShuttingDown("the engine is stopped; ask again in a minute")
        return self.ready

    def _room(self, ready: Ready, prompt: int) -> int:
        """Return how many tokens an answer may have; raise if there is no room."""
        context = ready.context_tokens
        if prompt >= context:
            raise ContextLengthExceeded(
                f"messages: the prompt has {prompt} tokens and this model's context "
                f"is {context}, prompt and answer together: send less",
                param="messages",
            )
        return context - prompt

    def _warm(self, beginnings: Sequence[Chat]) -> None:
        """Render once the model is there; its own thread does the reading."""
        self._weights.settled.wait()
        ready = self.ready
        if ready is None:
            return
        for chat in beginnings:
            # Any question will do: what is read ahead stands before it.
            messages = (*chat.messages, Message("user", "?"))
            try:
                prompt = ready.prompts.render(messages)
            except OfaError:
                continue  # a request will be told the same, with a reason
            if prompt.system:
                row = warm_row(prompt.ids[: prompt.system], "", "system")
                self._scheduler.submit(self._weights, row)

    def _read_on(self, ready: Ready, chat: Chat, answer: str) -> None:
        """
        Have *chat* with its *answer* read as a next turn will begin, if it is not yet.

        The caches of an answer hold what was generated. Rendered as history it may
        differ: Gemma 4 drops its empty thought, a stop string is cut off, tokens are
        chosen otherwise. Then it is read again while nothing else is to do, and not
        when somebody waits for an answer.
        """
        if chat.priority or not self._scheduler.is_open:
            return
        turns = (Message("assistant", answer), Message("user", "?"))
        try:
            prompt = ready.prompts.render((*chat.messages, *turns))
        except OfaError:
            return
        ids = prompt.ids[: prompt.history]
        missing = len(ids) - ready.store.match((*ids, 0), chat.caller).tokens
        if ids and missing > _FEW:
            row = warm_row(ids, chat.caller, "answer")
            self._scheduler.submit(self._weights, row)


def _refuse_images(chat: Chat) -> None:
    for message in chat.messages:
        for image in message.images:
            raise BadRequest(
                "this model reads text only; send no images",
                param=image.param or "messages",
                code="image_not_supported",
            )
