"""One model of the MLX engine: chats in, rows out; all that costs no MLX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from ...chat import Chat, Message, Tool
from ...errors import BadRequest, ContextLengthExceeded, OfaError
from ...toolcalls.reader import Reader
from ...toolcalls.tally import Tally
from ..base import Limits, Reply
from ..careful import Careful
from ..text import Channels, Markers, StopStrings
from . import lm
from .calls import CallGrammar
from .foreign import FOREIGN, note, note_place
from .grammar import Grammar
from .prefix import Match
from .ready import Ready, Wish
from .repetition import Repetition
from .reply import MlxReply, Writer
from .rows import Mailbox, Row, marks_of, warm_row
from .sampling import DEFAULTS, check_bias
from .template import Prompt
from .weights import Weights

MOST_LOGPROBS = 20  # OpenAI's
_USUAL_CONTEXT = 8192  # until a model's files could be read
_MOST_NAMED = 8  # tools in a header
_FEW = 16  # tokens not worth reading ahead: a turn's own opening has some

Submit = Callable[[Weights, Row], None]


@dataclass(frozen=True)
class Settings:
    """What a site chooses about every model of the engine; see site.toml.example."""

    context_tokens: int = 0  # 0: the model's own
    output_tokens: int = 4096
    repeated_tokens: int = 1024  # of one piece over and over: the answer ends; 0: never
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
    tool_format: str = "auto"  # or one of `formats`, for every model
    constrain: bool = True  # whether a grammar holds calls to the tools' schemas


@dataclass(frozen=True)
class Named:
    """A further model of an engine's, loaded when a chat asks for it by *name*."""

    name: str
    model: str
    description: str = ""
    context_tokens: int | None = None  # None: as the engine's settings say


class Model:
    """
    A model by its folder or hub id, loaded or not; safe to use from many threads.

    *submit* sends its rows to the engine's thread. Raises `ConfigError` at once for a
    broken folder. *load* takes the place of loading what *named* says.
    """

    def __init__(
        self,
        named: Named,
        settings: Settings,
        *,
        submit: Submit,
        load: lm.Loader | None = None,
    ) -> None:
        self.title = Path(named.model).name
        self._settings = settings
        self._description = named.description
        self._submit = submit
        asked = named.context_tokens
        self._asked_tokens = settings.context_tokens if asked is None else asked
        self._native_tokens = 0
        if load is None:
            load = partial(lm.load, named.model)
            if not lm.is_hub_id(named.model):
                config = lm.check_folder(Path(named.model).expanduser())
                self._native_tokens = lm.context_of(config)
        wish = Wish(
            self._asked_tokens,
            settings.memory_gib,
            settings.prefix_memory_gib,
            settings.prefix_disk,
            settings.prefix_disk_gib,
            settings.tool_format,
        )
        self.weights = Weights(named.name, load, wish)

    def reply(self, chat: Chat, ready: Ready) -> Reply:
        """Check and tokenise *chat*, and return its reply, not yet started."""
        tally = Tally()
        ask = partial(self._reply, ready, tally)
        return Careful(chat, ask, tally) if _reads_calls(chat) else ask(chat)

    def _reply(self, ready: Ready, tally: Tally, chat: Chat) -> Reply:
        """Return a reply in which calls that are none come out as `Failed`."""
        sampling = chat.sampling.over(DEFAULTS)
        check_bias(sampling, ready.logits)
        prompt = _prompt(ready, chat)
        most = min(self._settings.output_tokens, _room(ready, len(prompt.ids)))
        grammar = self._grammar(ready, chat, prompt)
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
                mask=grammar.processor(len(prompt.ids)) if grammar else None,
                mailbox=mailbox,
            )
            for index in range(chat.choices)
        ]
        match = _match(ready, prompt.ids, chat.caller)
        found = "hit" if match.tokens else "miss"
        writers = [
            _writer(ready, prompt, chat, index, tally, self._settings.repeated_tokens)
            for index in range(chat.choices)
        ]
        reply = MlxReply(
            rows,
            writers,
            submit=partial(self._submit, self.weights),
            finished=partial(self._read_on, ready, chat),
            told={"x-ofa-cache": f"{found}; {match.reason}", **_told_loose(grammar)},
        )
        return cast(Reply, reply)  # only where it is `Careful` that reads can one fail

    def _grammar(
        self, ready: Ready, chat: Chat, prompt: Prompt
    ) -> Grammar | CallGrammar | None:
        """Return what the answer to *chat* is held to, if to anything."""
        thinking = bool(chat.thinking)
        if _reads_calls(chat):
            if not self._settings.constrain and not _is_either(chat):
                return None
            return ready.grammars.compile_calls(
                ready.prompts.format,
                chat.tools,
                chat.tool_choice,
                parallel=chat.parallel_calls,
                thinking=thinking,
                opened=prompt.thinking,
                output=chat.output,
            )
        if chat.output is None:
            return None
        return ready.grammars.compile(
            chat.output, thinking=thinking, opened=prompt.thinking
        )

    def limits(self) -> Limits:
        """Return what the model can take; before it is loaded, what its files say."""
        ready = self.weights.ready
        asked, native = self._asked_tokens, self._native_tokens
        guess = min(asked or native, native) if native else asked or _USUAL_CONTEXT
        context = ready.context_tokens if ready else guess
        kind = f"{self.title} ({ready.kind})" if ready else self.title
        return Limits(
            context_tokens=context,
            output_tokens=min(self._settings.output_tokens, context),
            tools=True,
            structured=True,
            choices=self._settings.rows,
            logprobs=MOST_LOGPROBS,
            prefill_per_s=self.weights.speed.per_s or None,
            description=", ".join(part for part in (kind, self._description) if part),
        )

    def details(self) -> dict[str, str]:
        """Return what people and probes may want to know of it."""
        ready = self.weights.ready
        if ready is None:
            return {"model": f"{self.title}, {self.weights.state}"}
        held = ready.store.held()
        told = {
            "model": f"{self.title} ({ready.kind}), {self.weights.state}",
            "context": f"{ready.context_tokens} tokens",
            "tools": ready.prompts.format.name,
            "kept_prompts": f"{held.entries}",
            "kept_bytes": f"{held.nbytes} of {held.limit_bytes}",
            "cache_hits": f"{held.hits}, {held.reused_tokens} tokens",
        }
        if held.disk is not None:
            told["kept_on_disk"] = f"{held.disk.nbytes} of {held.disk.limit_bytes}"
        return told

    def read_ahead(self, chats: Sequence[Chat]) -> None:
        """Have the system texts of *chats* read for everyone, when there is time."""
        ready = self.weights.ready
        if ready is None:
            return
        for chat in chats:
            # Any question will do: what is read ahead stands before it.
            messages = (*chat.messages, Message("user", "?"))
            try:
                prompt = _prompt(ready, replace(chat, messages=messages))
            except OfaError:
                continue  # a request will be told the same, with a reason
            except FOREIGN as error:  # others may be read, and this one another time
                note_place("a mode's beginning could not be read ahead", error)
                continue
            if prompt.system:
                ids = prompt.ids[: prompt.system]
                self._submit(self.weights, warm_row(ids, "", "system"))

    def _read_on(self, ready: Ready, chat: Chat, answer: Message) -> None:
        """
        Have *chat* with its *answer* read as a next turn will begin, if it is not yet.

        The caches of an answer hold what was generated. Rendered as history it may
        differ: Gemma 4 drops its empty thought, a stop string is cut off, tokens are
        chosen otherwise. Then it is read again while nothing else is to do, and not
        when somebody waits for an answer.
        """
        if chat.priority:
            return
        try:
            ids = _next_begins(ready, chat, answer)
        except OfaError:
            return
        except FOREIGN as error:  # the answer is complete, and right without
            note_place("an answer could not be read ahead", error)
            return
        missing = len(ids) - _match(ready, (*ids, 0), chat.caller).tokens
        if ids and missing > _FEW:
            self._submit(self.weights, warm_row(ids, chat.caller, "answer"))


def _next_begins(ready: Ready, chat: Chat, answer: Message) -> tuple[int, ...]:
    """Return what the next prompt has in common whatever follows on *answer*: results
    of its calls, or somebody's question."""
    if answer.calls:
        prompt = _prompt(ready, replace(chat, messages=(*chat.messages, answer)))
        return prompt.ids[: prompt.stable]
    messages = (*chat.messages, answer, Message("user", "?"))
    prompt = _prompt(ready, replace(chat, messages=messages))
    return prompt.ids[: prompt.history]


def _prompt(ready: Ready, chat: Chat) -> Prompt:
    return ready.prompts.render(
        chat.messages, thinking=bool(chat.thinking), tools=_declared(chat)
    )


def _declared(chat: Chat) -> tuple[Tool, ...]:
    """Return the tools that the model is told of."""
    return () if chat.tool_choice.kind == "none" else chat.tools


def _offered(chat: Chat) -> tuple[Tool, ...]:
    """Return the tools that may be called: all that are declared, or the one named."""
    named = chat.tool_choice.name if chat.tool_choice.kind == "named" else ""
    return tuple(tool for tool in _declared(chat) if named in ("", tool.name))


def _reads_calls(chat: Chat) -> bool:
    """Return whether calls are read from the answer to *chat*."""
    return bool(_declared(chat))


def _is_either(chat: Chat) -> bool:
    """
    Return whether the answer to *chat* is a call, or else what its schema says.

    Where a call is demanded there is nothing else that a schema could hold.
    """
    return chat.output is not None and chat.tool_choice.kind == "auto"


def _told_loose(grammar: Grammar | CallGrammar | None) -> dict[str, str]:
    """Return the header that names the tools which no grammar holds as a whole."""
    if not isinstance(grammar, CallGrammar) or not grammar.loose:
        return {}
    names = ", ".join(grammar.loose[:_MOST_NAMED])
    more = ", ..." if len(grammar.loose) > _MOST_NAMED else ""
    return {"x-ofa-tools": f"checked, not enforced: {names}{more}"}


def _writer(
    ready: Ready, prompt: Prompt, chat: Chat, index: int, tally: Tally, repeated: int
) -> Writer:
    stops = (*chat.sampling.stop, *ready.prompts.family.stop_strings)
    mark, marks = ready.vocabulary.mark, ready.thinking
    if marks is not None:
        marks = Markers(mark(marks.open), mark(marks.close), marks.labelled)
    reader = None
    if _reads_calls(chat):
        reader = Reader(
            ready.prompts.format,
            _offered(chat),
            parallel=chat.parallel_calls,
            # A grammar holds calls to their own form then, and JSON is the answer.
            rescue=not _is_either(chat),
            first=_is_either(chat),
            tally=tally,
        )
    return Writer(
        decoder=ready.vocabulary.decoder(ready.silent, ready.marked),
        # What an answer's JSON holds is its own: no marker of thoughts.
        channels=Channels(
            marks,
            thinking=prompt.thinking,
            final=bool(chat.output) and (reader is None or _is_either(chat)),
        ),
        stops=StopStrings(stops),
        vocabulary=ready.vocabulary,
        repetition=Repetition(repeated),
        reader=reader,
        index=index,
    )


def _match(ready: Ready, ids: Sequence[int], caller: str) -> Match:
    """Return how much of a prompt is kept; a look at it never ends a request."""
    try:
        return ready.store.match(ids, caller)
    except FOREIGN as error:
        note("what is kept could not be looked at", error)
        return Match(0, "what is kept could not be looked at")


def _room(ready: Ready, prompt: int) -> int:
    """Return how many tokens an answer may have; raise if there is no room."""
    context = ready.context_tokens
    if prompt >= context:
        raise ContextLengthExceeded(
            f"messages: the prompt has {prompt} tokens and this model's context "
            f"is {context}, prompt and answer together: send less",
            param="messages",
        )
    return context - prompt


def refuse_images(chat: Chat) -> None:
    """Raise `BadRequest` for the first image in *chat*."""
    for message in chat.messages:
        for image in message.images:
            raise BadRequest(
                "this model reads text only; send no images",
                param=image.param or "messages",
                code="image_not_supported",
            )
