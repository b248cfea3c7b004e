"""
The vocabulary every part of ofa speaks: one request, one stream of events.

Dialects turn JSON into a `Chat` and events into JSON; engines turn a `Chat`
into events. Nothing here knows about HTTP, models or files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .errors import EngineError

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A finished call: *arguments* is a parsed object, never a string."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Image:
    """An image as the client sent it: a data URL, never fetched, never decoded here."""

    url: str
    param: str = ""  # where it stood in the request, for errors


@dataclass(frozen=True)
class Message:
    """One turn of the conversation, in the words of no dialect in particular."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""  # id of the call that a tool message answers
    name: str = ""  # of the tool that answered, where the client says
    thought: str = ""  # an assistant's own reasoning, where the client sends it back
    images: tuple[Image, ...] = ()


@dataclass(frozen=True)
class Tool:
    """A function the model may call; *parameters* is its JSON Schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True)
class ToolChoice:
    """How free the model is to call: *name* is set for ``named`` only."""

    kind: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


@dataclass(frozen=True)
class Sampling:
    """
    How tokens are drawn. None means "not given": a mode's default applies, then
    the engine's. Ranges are those of the OpenAI and vLLM references.
    """

    temperature: float | None = None  # 0 (greedy) to 2
    top_p: float | None = None  # over 0, up to 1
    top_k: int | None = None  # 1 or more; 0 or -1 from a client means "off"
    min_p: float | None = None  # 0 to 1
    repetition_penalty: float | None = None  # over 0; 1 is none
    presence_penalty: float | None = None  # -2 to 2, over generated tokens
    frequency_penalty: float | None = None  # -2 to 2, over generated tokens
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, -100 to 100)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None  # of the answer; clamped to the room there is

    def over(self, defaults: Sampling) -> Sampling:
        """Return these values, with *defaults* where none was given."""
        gaps = {
            name: value
            for name, value in vars(defaults).items()
            if value not in (None, ()) and getattr(self, name) in (None, ())
        }
        return replace(self, **gaps) if gaps else self


@dataclass(frozen=True)
class Output:
    """The form an answer must have: some JSON object, or what a JSON Schema allows."""

    kind: Literal["json_object", "json_schema"] = "json_object"
    schema: dict[str, Any] = field(default_factory=dict)  # empty for json_object
    param: str = "response_format"  # where it stood in the request, for errors


@dataclass(frozen=True)
class Chat:
    """What an engine is asked to continue."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_calls: bool = True
    thinking: bool | None = None  # None: the client did not say; off
    reasoning_effort: str = ""  # as given, for engines that have levels
    output: Output | None = None  # None: free text
    choices: int = 1  # how many answers to draw for the one prompt
    logprobs: int | None = None  # None: not wanted; else how many alternatives a token
    weights: str = ""  # which of the engine's models; empty: its first
    caller: str = ""  # whose it is: a key's fingerprint, for fairness and separation
    priority: int = 0  # 0: a person's question; 1: an editor's side request
    ignored: tuple[str, ...] = ()  # request fields without effect, to be told

    def with_system(self, text: str) -> Chat:
        """Return a copy whose only system message is *text*, or none if empty."""
        rest = tuple(m for m in self.messages if m.role != "system")
        head = (Message("system", text),) if text else ()
        return replace(self, messages=(*head, *rest))

    def ignoring(self, *fields: str) -> Chat:
        """Return a copy that also tells *fields* had no effect."""
        return replace(self, ignored=(*self.ignored, *fields))


@dataclass(frozen=True)
class Usage:
    """Token counts of one answer, as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int  # every sampled token: thoughts and the end mark too
    # None: an upstream has not told.
    cached_tokens: int | None = 0  # of the prompt, taken from an earlier request
    reasoning_tokens: int | None = 0  # of the completion, spent on thoughts


@dataclass(frozen=True)
class Waiting:
    """Nothing new yet. Lets a reader look up; dialects send a keep-alive or nothing."""


@dataclass(frozen=True)
class Logprob:
    """A token and the natural logarithm of how likely the model held it to be."""

    token: str
    logprob: float  # before temperature and cuts, after penalties and biases
    raw: bytes  # the token's own bytes: half a character may have no text
    top: tuple[Logprob, ...] = ()  # the likeliest in its place, best first


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str
    index: int = 0  # of the choice it belongs to
    logprobs: tuple[Logprob, ...] = ()  # of the tokens since the last piece, if asked


@dataclass(frozen=True)
class Thought:
    """A piece of the model's reasoning; never part of the answer."""

    text: str
    index: int = 0


@dataclass(frozen=True)
class Call:
    """A complete tool call; engines repair before they emit."""

    call: ToolCall
    index: int = 0


FinishReason = Literal["stop", "length", "tools"]


@dataclass(frozen=True)
class End:
    """
    The end of one choice, exactly once for each; the last of them ends the stream.

    *usage* counts the whole request and stands in the last one only; None where the
    engine told no counts.
    """

    reason: FinishReason
    usage: Usage | None = None
    index: int = 0
    last: bool = True  # no other choice is still being written


Event = Waiting | Text | Thought | Call | End


@dataclass(frozen=True)
class Answer:
    """One whole answer: its parts in the order they came, neighbouring text joined."""

    parts: tuple[Text | Thought | Call, ...]
    end: End

    @property
    def text(self) -> str:
        """All text, for dialects that keep it apart from the calls."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def thought(self) -> str:
        """All reasoning, likewise."""
        return "".join(part.text for part in self.parts if isinstance(part, Thought))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls, likewise."""
        return tuple(part.call for part in self.parts if isinstance(part, Call))

    @property
    def logprobs(self) -> tuple[Logprob, ...]:
        """Those of its text's tokens, if they were asked for."""
        texts = (part for part in self.parts if isinstance(part, Text))
        return tuple(one for text in texts for one in text.logprobs)


def gather(events: Iterable[Event]) -> Answer:
    """Fold the *events* of a chat with one choice; see `gather_choices`."""
    return gather_choices(events)[0]


def gather_choices(events: Iterable[Event]) -> tuple[Answer, ...]:
    """
    Fold *events* into an `Answer` a choice; the only non-streaming path there is.

    Raises `EngineError` if the stream stops without its last `End`: a cut answer is
    never passed off as a whole one.
    """
    parts: dict[int, list[Text | Thought | Call]] = {}
    ends: dict[int, End] = {}
    for event in events:
        if isinstance(event, End):
            ends[event.index] = event
            if event.last:
                return tuple(
                    Answer(tuple(parts.get(index, ())), end)
                    for index, end in sorted(ends.items())
                )
        elif not isinstance(event, Waiting):
            _join(parts.setdefault(event.index, []), event)
    raise EngineError("the engine stopped before the end of its answer")


def _join(parts: list[Text | Thought | Call], new: Text | Thought | Call) -> None:
    """Add *new*, or let the last part grow by it if both are of one kind."""
    match parts, new:
        case [*_, Text() as before], Text():
            logprobs = (*before.logprobs, *new.logprobs)
            parts[-1] = Text(before.text + new.text, new.index, logprobs)
        case [*_, Thought() as before], Thought():
            parts[-1] = Thought(before.text + new.text, new.index)
        case _:
            parts.append(new)
