"""One run of the bench: what was asked for, and where things are put."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from . import models, servers, wire
from .models import Model
from .servers import user


@dataclass
class Run:
    """What the rows share."""

    folder: Path
    model_name: str = "gemma"
    quick: bool = False
    pythons: Sequence[str] = ()  # of other environments, for the BLAS row
    began_s: float = field(default_factory=time.monotonic)

    def rounds(self, full: int, quick: int = 1) -> range:
        """Return the rounds to measure, the one that is dropped not among them."""
        return range(1, 1 + (quick if self.quick else full))

    def pick(self, full: int, quick: int) -> int:
        """Return a size: *full*, or *quick* in a quick run."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Tell who waits what is going on."""
        sys.stderr.write(f"[{time.monotonic() - self.began_s:5.0f} s] {text}\n")
        sys.stderr.flush()

    def place(self, name: str) -> Path:
        """Return a folder for one server or child."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @cached_property
    def model(self) -> Model:
        """The model that is measured."""
        return models.find(self.model_name, self.folder / "tiny")

    @cached_property
    def tiny(self) -> Model:
        """The tiny model, for rows that need a real engine and no real speed."""
        return models.find("tiny", self.folder / "tiny")

    @cached_property
    def system_text(self) -> str:
        """What `ofa serve` puts before a chat of the mode, as a scripted one echoes."""
        flags = servers.scripted(self.place("echo"), [[{"echo": "all"}]])
        with servers.ofa(self.place("echo"), flags=flags) as server:
            asked = server.request([user("Hello")], 16)
            text = wire.ask(server.port, asked).text
        return text.removeprefix("system: ").removesuffix("\nuser: Hello")

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return the chat that the engine of `ofa serve` sees for a user's *text*."""
        return [{"role": "system", "content": self.system_text}, user(text)]


def alternating(rounds: Iterable[int], *sides: Any) -> Iterator[tuple[int, Any]]:
    """Yield (round, side) by turns; who goes first changes from round to round."""
    for number in rounds:
        for side in sides if number % 2 else sides[::-1]:
            yield number, side


QUESTIONS = (
    "How does a batch scheduler decide which job starts next?",
    "What is the difference between a node, a socket and a core?",
    "Why do two runs of the same program differ in their last digits?",
    "How is a large array written by many processes into one file?",
    "What happens to a job whose time limit has passed?",
    "When is it worth while to run a solver on a graphics processor?",
    "How can the memory that a program needs be found out beforehand?",
    "Which files of a simulation should be kept, and for how long?",
)


def question(number: int, stream: int = 0) -> str:
    """Return a question that no other round and stream has asked."""
    asked = QUESTIONS[stream % len(QUESTIONS)]
    return f"Note {number * 100 + stream}. {asked} Explain it step by step."
