"""
The engine on MLX: a local model behind the `Engine` seam.

Everything that costs no MLX runs on the caller's threads: rendering and tokenising
in `reply`, text in the reply's iterator. The scheduler's thread only turns token ids
into more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...chat import Chat
from ...errors import (
    BadRequest,
    ConfigError,
    ContextLengthExceeded,
    NotReady,
    ShuttingDown,
)
from ..base import Limits, Status, refuse_unable
from ..text import Channels, StopStrings
from . import lm
from .reply import MlxReply
from .rows import Row
from .sampling import DEFAULTS, check_bias
from .scheduler import Ready, Scheduler

_STALL_S = 60.0  # a step takes seconds at most; longer is a wedge
_FAULTS, _FAULTS_S = 3, 60.0  # so many failed steps so close together are no accident


class MlxEngine:
    """
    Answers with *model*, a folder or a hub id, loaded in the background.

    *context_tokens* 0 means the model's own. *rows* answers are generated at once;
    while one is, prompts are read *prefill_step* tokens at a time. `reply` waits up
    to *load_wait_s* for the model. Raises `ConfigError` at once for a broken folder.
    """

    def __init__(  # noqa: PLR0913 - each is one key of site.toml
        self,
        model: str | Path,
        *,
        context_tokens: int = 0,
        output_tokens: int = 4096,
        rows: int = 4,
        prefill_step: int = 512,
        load_wait_s: float = 240.0,
        name: str = "",
        description: str = "",
        load: lm.Loader | None = None,
    ) -> None:
        self._context_tokens = context_tokens
        self._output_tokens = output_tokens
        self._load_wait_s = load_wait_s
        self._name = name or Path(model).name
        self._description = description
        self._native_tokens = 0
        if load is None:
            load = partial(lm.load, str(model))
            if not lm.is_hub_id(str(model)):
                config = lm.check_folder(Path(model).expanduser())
                self._native_tokens = lm.context_of(config)
        self._scheduler = Scheduler(load, rows=rows, prefill_step=prefill_step)

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
        most = min(self._output_tokens, self._room(ready, len(prompt.ids)))
        return MlxReply(
            Row(
                prompt.ids,
                max_tokens=min(sampling.max_tokens or most, most),
                sampling=sampling,
            ),
            self._scheduler,
            decoder=ready.vocabulary.decoder(ready.silent),
            channels=Channels(ready.thinking, thinking=prompt.thinking),
            stops=StopStrings((*sampling.stop, *ready.prompts.family.stop_strings)),
        )

    def limits(self) -> Limits:
        """Return what the model can take; before it is loaded, what its files say."""
        ready = self._scheduler.ready
        context = self._context(ready)
        kind = f"{self._name} ({ready.kind})" if ready else self._name
        return Limits(
            context_tokens=context,
            output_tokens=min(self._output_tokens, context),
            prefill_per_s=self._scheduler.speed.per_s or None,
            description=", ".join(part for part in (kind, self._description) if part),
        )

    def status(self) -> Status:
        """Return whether the model is loaded and the engine's thread moves."""
        scheduler = self._scheduler
        if scheduler.failure:
            final = isinstance(scheduler.failure, ConfigError)
            return Status(False, str(scheduler.failure), final)
        if not scheduler.is_open:
            return Status(False, "the engine is stopped")
        if not scheduler.ready:
            return Status(False, "loading the model")
        if scheduler.stalled_s() > _STALL_S:
            return Status(False, f"the engine has not moved for {_STALL_S:.0f} s")
        if scheduler.faults(_FAULTS_S) >= _FAULTS:
            return Status(False, f"{_FAULTS} steps failed within {_FAULTS_S:.0f} s")
        return Status(True)

    def wait(self, limit_s: float | None = None) -> Status:
        """Wait for the model, up to *limit_s*; raise `ConfigError` if it won't load."""
        self._scheduler.settled.wait(limit_s)
        if isinstance(self._scheduler.failure, ConfigError):
            raise self._scheduler.failure
        return self.status()

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Do nothing yet."""

    def count_tokens(self, text: str) -> int:
        """Return the length of *text* in tokens; an estimate until it is loaded."""
        ready = self._scheduler.ready
        if ready:
            return len(ready.vocabulary.encode(text))
        return (len(text.encode("utf-8", "replace")) + 1) // 2

    def close(self) -> None:
        """End all replies with an error, and the thread; safe to call twice."""
        self._scheduler.close()

    def _wait(self) -> Ready:
        self._scheduler.settled.wait(self._load_wait_s)
        ready = self._scheduler.ready
        if ready is None:
            raise NotReady(f"{self.status().reason}; try again in a while")
        if not self._scheduler.is_open:
            raise ShuttingDown("the engine is stopped; ask again in a minute")
        return ready

    def _context(self, ready: Ready | None) -> int:
        native = ready.context_tokens if ready else self._native_tokens
        asked = self._context_tokens
        # Beyond what it was trained for a model talks nonsense, slowly.
        return min(asked or native, native) if native else asked or 8192

    def _room(self, ready: Ready, prompt: int) -> int:
        """Return how many tokens an answer may have; raise if there is no room."""
        context = self._context(ready)
        if prompt >= context:
            raise ContextLengthExceeded(
                f"messages: the prompt has {prompt} tokens and this model's context "
                f"is {context}, prompt and answer together: send less",
                param="messages",
            )
        return context - prompt


def _refuse_images(chat: Chat) -> None:
    for message in chat.messages:
        for image in message.images:
            raise BadRequest(
                "this model reads text only; send no images",
                param=image.param or "messages",
                code="image_not_supported",
            )
