"""The Answerer: the program in one page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .chat import Chat
from .engine.base import Reply


@dataclass(frozen=True)
class Caller:
    """Who asks: enough to key a conversation and spot an editor's side request."""

    key_id: str = ""  # a fingerprint of the key, never the key; empty: no auth
    user_agent: str = ""


@dataclass(frozen=True)
class Answered:
    """A reply that is about to start, and what to tell the client beside it."""

    reply: Reply
    headers: Mapping[str, str] = field(default_factory=dict)  # x-ofa-…


class Answering(Protocol):
    """What a web route needs of the `Answerer`."""

    def reply(self, chat: Chat, caller: Caller) -> Answered:
        """Check *chat*, take a place, retrieve, and return the reply to read."""
