"""
An engine that forwards to other servers: vLLM, Ollama, llama-server, LM Studio, ofa.

Knows one upstream or several that serve the same, and which of them a chat goes to:
the one whose prefix cache has seen its beginning, as long as that one can take it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ..chat import Chat
from ..errors import NotReady
from ..toolcalls.hermes import Hermes
from ..toolcalls.reader import Reader
from ..toolcalls.tally import Tally
from .base import Limits, Reply, Status, refuse_unable
from .careful import Careful
from .text_calls import TextCalls, offered
from .upstream_body import estimated_tokens, refuse_unasked
from .upstream_reply import UpstreamReply
from .upstream_server import PROBE_S, Server, UpstreamSettings, base_url


class UpstreamEngine:
    """Forward chats to the servers at *urls*, each to the one that knows it best."""

    def __init__(
        self, urls: Sequence[str], settings: UpstreamSettings | None = None
    ) -> None:
        settings = settings or UpstreamSettings()
        bases = dict.fromkeys(str(base_url(url)) for url in urls)
        self._servers = [Server(base, settings) for base in bases]

    def reply(self, chat: Chat) -> Reply:
        """Return the reply of an upstream; `NotReady` while all are known to fail."""
        until_s = time.monotonic() + PROBE_S
        for server in self._servers:
            server.wait_until_probed(max(0.0, until_s - time.monotonic()))
        limits = self.limits()
        refuse_unable(chat, limits)
        able = frozenset.intersection(*(s.features() for s in self._told()))
        refuse_unasked(chat, able, vision=limits.vision)
        if not offered(chat):
            return UpstreamReply(chat, self._chosen(chat))
        tally = Tally()
        return Careful(chat, partial(self._with_calls, tally), tally)

    def limits(self, weights: str = "") -> Limits:
        """Return what all can do; those that never told of themselves do not count."""
        each = [server.limits() for server in self._told()]
        tops = [limits.logprobs for limits in each if limits.logprobs is not None]
        eyes = {limits.vision for limits in each}
        return replace(
            each[0],
            context_tokens=min(limits.context_tokens for limits in each),
            output_tokens=min(limits.output_tokens for limits in each),
            tools=all(limits.tools for limits in each),
            vision=False if False in eyes else None if None in eyes else True,
            structured=all(limits.structured for limits in each),
            choices=min(limits.choices for limits in each),
            logprobs=min(tops) if len(tops) == len(each) else None,
            description="; ".join(limits.description for limits in each),
        )

    def status(self) -> Status:
        """Return whether one of them can answer, and how each is."""
        each = {str(server.base): server.status() for server in self._servers}
        details = {url: one.reason or "up" for url, one in each.items()}
        if any(one.ready for one in each.values()):
            return Status(True, details=details)
        reasons = dict.fromkeys(one.reason for one in each.values())
        return Status(False, "; ".join(reasons), details=details)

    def warm(self, beginnings: Sequence[Chat]) -> None:
        """Do nothing: what the upstream keeps ready is its own matter."""

    def count_tokens(self, text: str) -> int:
        """Return an estimate on the high side: the tokenizer is the upstream's."""
        return estimated_tokens(text)

    def close(self) -> None:
        """Stop looking after the upstreams; running replies end by their readers."""
        for server in self._servers:
            server.close()

    def _with_calls(self, tally: Tally, chat: Chat) -> Reply:
        """Return a reply whose calls are read and checked here: servers without a
        parser for their model give them as text, and few check them."""

        def reader() -> Reader:
            parallel = chat.parallel_calls
            return Reader(Hermes(str), offered(chat), parallel=parallel, tally=tally)

        reply = UpstreamReply(chat, self._chosen(chat))
        return TextCalls(reply, reader, texts=chat.output is None)

    def _told(self) -> list[Server]:
        return [server for server in self._servers if server.is_known] or self._servers

    def _chosen(self, chat: Chat) -> list[Server]:
        """Return the servers to ask for *chat*, best first; raise if there is none."""
        ranked = rank(affinity(chat), self._servers)
        refused = {s: s.breaker.refusal() for s in ranked}
        open_ = [s for s in ranked if refused[s] is None]
        if not open_:
            told = [one for one in refused.values() if one is not None]
            raise min(told, key=lambda one: one.retry_after_s)
        able = [s for s in open_ if s.model_for(chat)]
        if not able:
            raise NotReady(
                f"no model is known of the upstream ({open_[0].status().reason}); name "
                "one with [engine] upstream_model"
            )
        well = [s for s in able if s.status().ready]
        # Sorting keeps the order of equals: affinity decides among those with room.
        return sorted(
            well or able,
            key=lambda s: (s.is_resting, s.is_busy, s.lines.lent if s.is_busy else 0),
        )


def affinity(chat: Chat) -> bytes:
    """
    Return what tells *chat*'s conversation from others: all up to its first question.

    The whole of it, so that a conversation stays where its turns are in the prefix
    cache. Not the instructions alone, though they are what most chats share: every
    chat of a mode would go to one server. They are soon in the caches of all.
    """
    first = next((m for m in chat.messages if m.role != "system"), None)
    briefs = [m.text for m in chat.messages if m.role == "system"]
    tools = [(tool.name, tool.description, tool.parameters) for tool in chat.tools]
    turn = [first.text, [image.url for image in first.images]] if first else []
    said = json.dumps([briefs, tools, turn], sort_keys=True, default=str)
    return hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=16).digest()


def rank(key: bytes, servers: Iterable[Server]) -> list[Server]:
    """
    Return *servers* in the order in which they are best for *key*.

    Rendezvous hashing: a server that leaves or comes back moves its own chats only.
    """

    def weight(server: Server) -> bytes:
        where = str(server.base).encode()
        return hashlib.blake2b(where, key=key, digest_size=16).digest()

    return sorted(servers, key=weight, reverse=True)
