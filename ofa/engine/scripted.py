"""
A deterministic engine that plays a script: for tests of protocols, load and faults.

A script is a JSON list of answers, played in turn and over again. An answer is a
list of steps, or a string (one text step):

    {"text": "…"} | {"thought": "…"} | {"call": {"name": "…", "arguments": {…}}}
    {"echo": "last_user" | "all"}           text taken from the chat itself
    {"wait_s": 0.5} | {"fail": "message"} | {"end": "stop" | "length"}
    {"die": "SIGKILL" | 3} | {"hang": "gil" | "step"}      faults of the whole process
    any step with "times": N is played N times

A chat with several choices gets as many answers, step by step in turn. Log
probabilities are made up of the words alone. A chat that wants JSON gets what the
script says: who writes it writes JSON.

Knows nothing of HTTP; counts "tokens" as white-space separated words.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..chat import (
    Call,
    Chat,
    End,
    Event,
    FinishReason,
    Logprob,
    Text,
    Thought,
    ToolCall,
    Usage,
    Waiting,
)
from ..errors import BadRequest, Cancelled, ConfigError, EngineError
from .base import SILENCE_S, Limits, Reply, Status, refuse_unable
from .faults import Faults, check_fault

Step = Mapping[str, Any]
_KINDS = ("text", "thought", "call", "echo", "wait_s", "fail", "end", "die", "hang")
_BLOCKS = frozenset(("die", "hang"))


class ScriptedEngine:
    """Play *answers* in turn; `asked` keeps the last chats it was given."""

    def __init__(
        self,
        answers: Sequence[str | Sequence[Step]] = ("ok",),
        *,
        limits: Limits | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self._answers = [_steps(answer) for answer in answers]
        self._turn = itertools.count()
        self._limits = limits or Limits(
            context_tokens=131072,
            output_tokens=8192,
            tools=True,
            structured=True,
            choices=128,
            logprobs=20,
            description="scripted engine: no model",
        )
        self.asked: deque[Chat] = deque(maxlen=2048)  # the last of them
        self.closed_replies = 0
        self.call_numbers = itertools.count(1)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path, *, stall_s: float = 60.0) -> ScriptedEngine:
        """
        Read a script file; raises `ConfigError` naming the file and the step.

        A step that hangs for *stall_s* makes the engine broken.
        """
        try:
            answers = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{path}: cannot read the script: {exc}") from exc
        if not isinstance(answers, list) or not answers:
            raise ConfigError(f"{path}: a script is a non-empty list of answers")
        try:
            return cls(answers, faults=Faults(stall_s=stall_s))
        except ValueError as exc:
            raise ConfigError(f"{path}: {exc}") from exc

    def reply(self, chat: Chat) -> Reply:
        """Return the script's next answers; images are refused, as by a text model."""
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
            scripts = [
                self._answers[next(self._turn) % len(self._answers)]
                for _ in range(chat.choices)
            ]
        return _ScriptedReply(self, chat, scripts)

    def limits(self, weights: str = "") -> Limits:
        """Return what it was made with."""
        return self._limits

    def status(self) -> Status:
        """Return ready, unless a step hangs."""
        return self.faults.status()

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Do nothing: a script is as quick as it says."""

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _ScriptedReply:
    def __init__(
        self, engine: ScriptedEngine, chat: Chat, scripts: Sequence[Sequence[Step]]
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._gone = threading.Event()
        self._choices = [
            _Choice(engine, chat, steps, index, self._gone)
            for index, steps in enumerate(scripts)
        ]

    @property
    def patient(self) -> bool:
        return not any(choice.may_block for choice in self._choices)

    @property
    def told(self) -> Mapping[str, str]:
        return {"x-ofa-cache": "miss; the scripted engine keeps nothing"}

    def __iter__(self) -> Iterator[Event]:
        playing = {choice: choice.events() for choice in self._choices}
        while playing:
            for choice, events in tuple(playing.items()):
                event = next(events, None)
                if event is not None:
                    yield event
                    continue
                del playing[choice]
                last = not playing
                usage = self._usage() if last else None
                yield End(choice.reason, usage, choice.index, last)

    def close(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._engine.closed_replies += 1

    def _usage(self) -> Usage:
        prompt = sum(len(m.text.split()) for m in self._chat.messages)
        return Usage(prompt, sum(choice.words for choice in self._choices))


class _Choice:
    """One answer of a reply as it is played."""

    def __init__(
        self,
        engine: ScriptedEngine,
        chat: Chat,
        steps: Sequence[Step],
        index: int,
        gone: threading.Event,
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._steps = steps
        self._gone = gone
        self.index = index
        self.words = 0
        self.reason: FinishReason = "stop"

    @property
    def may_block(self) -> bool:
        """Whether a step of it does not come back."""
        return any(not _BLOCKS.isdisjoint(step) for step in self._steps)

    def events(self) -> Iterator[Event]:
        """Play the steps; how it ends is `reason` then."""
        called = False
        for step in self._steps:
            for _ in range(int(step.get("times", 1))):
                if self._gone.is_set():
                    raise Cancelled("the reader left")
                if "end" in step:
                    self.reason = step["end"]
                    break
                called = called or "call" in step
                yield from self._play(step)
        if called:
            self.reason = "tools"

    def _play(self, step: Step) -> Iterator[Event]:
        match step:
            case {"text": text}:  # first, as most steps are
                yield self._said(str(text))
            case {"wait_s": seconds}:
                yield from self._silence(float(seconds))
            case {"fail": message}:
                raise EngineError(str(message))
            case {"die": how}:
                self._engine.faults.die(how)
            case {"hang": what}:
                self._engine.faults.hang(what)
            case {"call": {"name": name, "arguments": arguments}}:
                self.words += 1
                number = next(self._engine.call_numbers)
                call = ToolCall(f"call_{number:024x}", name, arguments)
                yield Call(call, self.index)
            case {"thought": text}:
                yield Thought(str(text), self.index)
            case {"echo": what}:
                yield self._said(_echo(self._chat, what))

    def _silence(self, seconds: float) -> Iterator[Event]:
        """Let *seconds* pass, looking up as `Reply.patient` promises."""
        while seconds > SILENCE_S and not self._gone.wait(SILENCE_S):
            seconds -= SILENCE_S
            yield Waiting()
        self._gone.wait(seconds)

    def _said(self, text: str) -> Text:
        self.words += len(text.split())
        wanted = self._chat.logprobs
        return Text(text, self.index, () if wanted is None else _logprobs(text, wanted))


def _logprobs(text: str, alternatives: int) -> tuple[Logprob, ...]:
    """Make up a log probability for each word of *text*, its spaces included."""
    return tuple(
        replace(one, top=tuple(_unlikelier(one, by) for by in range(alternatives)))
        for one in map(_logprob, re.findall(r"\s*\S+|\s+\Z", text))
    )


def _logprob(word: str) -> Logprob:
    raw = word.encode("utf-8", "surrogatepass")
    return Logprob(word, -(zlib.crc32(raw) % 4096) / 1024, raw)


def _unlikelier(one: Logprob, by: int) -> Logprob:
    word = f"{one.token}{'~' * by}"
    return Logprob(word, one.logprob - by, word.encode("utf-8", "surrogatepass"))


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
        if fault := check_fault(step):
            raise ValueError(f"step {number}: {fault}")
    return tuple(answer)
