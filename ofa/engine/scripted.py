"""
A deterministic engine that plays a script: for tests of protocols, load and faults.

A script is a JSON list of answers, played in turn and over again. An answer is a
list of steps, or a string (one text step):

    {"text": "…"} | {"thought": "…"} | {"call": {"name": "…", "arguments": {…}}}
    {"echo": "last_user" | "all"}           text taken from the chat itself
    {"wait_s": 0.5} | {"fail": "message"} | {"end": "stop" | "length"}
    any step with "times": N is played N times

Knows nothing of HTTP; counts "tokens" as white-space separated words.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..chat import Call, Chat, End, Event, Text, Thought, ToolCall, Usage
from ..errors import BadRequest, Cancelled, ConfigError, EngineError
from .base import Limits, Reply, Status, refuse_unable

Step = Mapping[str, Any]
_KINDS = ("text", "thought", "call", "echo", "wait_s", "fail", "end")


class ScriptedEngine:
    """Play *answers* in turn; `asked` keeps every chat it was given."""

    def __init__(
        self,
        answers: Sequence[str | Sequence[Step]] = ("ok",),
        *,
        limits: Limits | None = None,
    ) -> None:
        self._answers = [_steps(answer) for answer in answers]
        self._turn = itertools.count()
        self._limits = limits or Limits(
            context_tokens=131072,
            output_tokens=8192,
            tools=True,
            description="scripted engine: no model",
        )
        self.asked: list[Chat] = []
        self.closed_replies = 0
        self.call_numbers = itertools.count(1)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path) -> ScriptedEngine:
        """Read a script file; raises `ConfigError` naming the file and the step."""
        try:
            answers = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{path}: cannot read the script: {exc}") from exc
        if not isinstance(answers, list) or not answers:
            raise ConfigError(f"{path}: a script is a non-empty list of answers")
        try:
            return cls(answers)
        except ValueError as exc:
            raise ConfigError(f"{path}: {exc}") from exc

    def reply(self, chat: Chat) -> Reply:
        """Return the script's next answer; images are refused, as by a text model."""
        for message in chat.messages:
            for image in message.images:
                raise BadRequest(
                    f"{image.param}: the scripted engine reads text only",
                    param=image.param,
                    code="image_not_supported",
                )
        refuse_unable(chat, self._limits)
        with self._lock:
            self.asked.append(chat)
            steps = self._answers[next(self._turn) % len(self._answers)]
        return _ScriptedReply(self, chat, steps)

    def limits(self) -> Limits:
        """Return what it was made with."""
        return self._limits

    def status(self) -> Status:
        """Return ready, always."""
        return Status(True)

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Do nothing: a script is as quick as it says."""

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _ScriptedReply:
    def __init__(
        self, engine: ScriptedEngine, chat: Chat, steps: Sequence[Step]
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._steps = steps
        self._gone = threading.Event()
        self._words = 0
        self._called = False

    @property
    def told(self) -> Mapping[str, str]:
        return {}

    def __iter__(self) -> Iterator[Event]:
        reason = "stop"
        for step in self._steps:
            for _ in range(int(step.get("times", 1))):
                if self._gone.is_set():
                    raise Cancelled("the reader left")
                if "end" in step:
                    reason = str(step["end"])
                    break
                yield from self._play(step)
        prompt = sum(len(m.text.split()) for m in self._chat.messages)
        finish = "tools" if self._called else reason
        usage = Usage(prompt, self._words)
        yield End(finish, usage)  # type: ignore[arg-type]  # checked in _steps

    def close(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._engine.closed_replies += 1

    def _play(self, step: Step) -> Iterator[Event]:
        match step:
            case {"wait_s": seconds}:
                self._gone.wait(float(seconds))
            case {"fail": message}:
                raise EngineError(str(message))
            case {"call": {"name": name, "arguments": arguments}}:
                self._called = True
                self._words += 1
                number = next(self._engine.call_numbers)
                yield Call(ToolCall(f"call_{number:024x}", name, arguments))
            case {"thought": text}:
                yield Thought(str(text))
            case {"echo": what}:
                yield self._said(_echo(self._chat, what))
            case {"text": text}:
                yield self._said(str(text))

    def _said(self, text: str) -> Text:
        self._words += len(text.split())
        return Text(text)


def _echo(chat: Chat, what: str) -> str:
    if what == "all":
        return "\n".join(f"{m.role}: {m.text}" for m in chat.messages)
    return next((m.text for m in reversed(chat.messages) if m.role == "user"), "")


def _steps(answer: str | Sequence[Step]) -> tuple[Step, ...]:
    if isinstance(answer, str):
        return ({"text": answer},)
    for number, step in enumerate(answer):
        kinds = [kind for kind in _KINDS if kind in step]
        if len(kinds) != 1:
            raise ValueError(f"step {number}: needs exactly one of {', '.join(_KINDS)}")
        if "end" in step and step["end"] not in ("stop", "length"):
            raise ValueError(f"step {number}: end is 'stop' or 'length'")
        if "call" in step and not {"name", "arguments"} <= set(step["call"]):
            raise ValueError(f"step {number}: a call has a name and arguments")
    return tuple(answer)
