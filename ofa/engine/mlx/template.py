"""
From the messages of a `Chat` to the token ids a model was trained on.

Knows model families, chat templates and what they cannot bear; nothing of engines.
A conversation is folded first, so that any order of roles fits any template, and the
template is rendered over stand-ins for the texts. So what an author wrote can neither
be taken for the template's own markers nor trip its logic. Tools, calls and results are
part of those texts: no template's own way with them is used.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from os.path import commonprefix

from ...chat import Message, Tool
from ...errors import BadRequest, ConfigError
from ...toolcalls.base import Markup
from ..text import CHANNEL, THINK, Markers
from .formats import find_format
from .turns import Folded, fold
from .vocabulary import Tokenizer, Vocabulary

_GEMMA_3 = """{{ bos_token }}{% for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n'
    + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

_GEMMA_4 = """{{ bos_token }}
{%- if enable_thinking and (not messages or messages[0].role != 'system') %}
{{- '<|turn>system\\n<|think|>\\n<turn|>\\n' }}{% endif %}{% for m in messages %}
{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n'
    + ('<|think|>\\n' if enable_thinking and loop.first and m.role == 'system' else '')
    + m.content | trim + '<turn|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\\n' }}
{%- if not enable_thinking %}{{ '<|channel>thought\\n<channel|>' }}{% endif %}
{%- endif %}"""

_FUNCTION_GEMMA = """{{ bos_token }}{% for m in messages %}
{{- '<start_of_turn>'
    + {'system': 'developer', 'assistant': 'model'}.get(m.role, m.role) + '\\n'
    + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

_CHATML = """{% for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_PLAIN = """{{ bos_token }}{% for m in messages %}
{{- m.role | capitalize + ': ' + m.content + '\\n\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """
    What models of one line share.

    *sign* is the token that tells it apart; *ends* are tokens that end an answer,
    beside the tokenizer's own; *shown* are control tokens that may stay in the text
    for a later reader; *template* is used where the model brings none.
    """

    name: str
    sign: str
    ends: tuple[str, ...] = ()
    thinking: Markers | None = None
    shown: tuple[str, ...] = ()
    template: str = _PLAIN
    stop_strings: tuple[str, ...] = ()


# fmt: off
FAMILIES: tuple[Family, ...] = (  # the first whose sign is a token
    # <|tool_response> is where a server has to halt and answer; Gemma 4's own list
    # of end tokens lacks it in several published conversions.
    Family("gemma4", "<|turn>", ("<eos>", "<turn|>", "<|tool_response>"), CHANNEL,
           ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
           _GEMMA_4),
    Family("functiongemma", "<start_function_call>",
           ("<eos>", "<end_of_turn>", "<start_function_response>"), None,
           ("<start_function_call>", "<end_function_call>", "<escape>"),
           _FUNCTION_GEMMA),
    Family("gemma3", "<start_of_turn>", ("<eos>", "<end_of_turn>"), None, (), _GEMMA_3),
    Family("chatml", "<|im_start|>", ("<|im_end|>",), THINK,
           ("<think>", "</think>", "<tool_call>", "</tool_call>"), _CHATML),
    # Nothing ends a turn here: a base model would go on with both roles.
    Family("plain", "", stop_strings=("\n\nUser:", "\n\nSystem:")),
)
# fmt: on


def find_family(vocabulary: Vocabulary) -> Family:
    """Return the family that *vocabulary* belongs to; refuse a maimed one."""
    family = next(f for f in FAMILIES if not f.sign or f.sign in vocabulary.ids)
    missing = [token for token in family.ends if token not in vocabulary.ids]
    if missing:
        raise ConfigError(
            f"the model's tokenizer looks like {family.name} but lacks "
            f"{', '.join(missing)}; answers would not end: get another conversion"
        )
    return family


@dataclass(frozen=True)
class Prompt:
    """
    What the model reads, and whether it starts inside an opened thought.

    The other numbers are tokens from the start, at which other prompts may part from
    this one: behind the system text and the tools (0 without them), before the last
    user turn's content, and up to where a later prompt repeats this one with the answer
    in it.
    """

    ids: tuple[int, ...]
    thinking: bool = False
    system: int = 0
    history: int = 0
    stable: int = 0


class Prompts:
    """Renders conversations for one model; safe to use from many threads."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: Vocabulary, format: str = "auto"
    ) -> None:
        self.family = find_family(vocabulary)
        self.format = find_format(tokenizer, vocabulary, format)
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._own = None if tokenizer.has_chat_template else self.family.template
        self._bos = tokenizer.bos_token_id
        self._adds_bos = _adds_bos(tokenizer)
        nonce = secrets.token_hex(8)
        self._stand_in = f"\ue000{nonce}:{{}}\ue001"
        self._stand_ins = re.compile(f"\ue000{nonce}:([0-9]+)\ue001")
        self._takes_system = self._bears_system()

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        tools: Sequence[Tool] = (),
    ) -> Prompt:
        """
        Return the prompt for the assistant's next turn after *messages*.

        Where results are part of the model's own turn and come last, it ends right
        behind them, and the answer goes on in that turn.
        """
        folded = fold(
            messages, self.format, tools=tools, takes_system=self._takes_system
        )
        turns = [(turn.role, self._written(turn.markup)) for turn in folded.turns]
        parts = self._stand_ins.split(self._fill(turns, thinking))
        order = [int(number) for number in parts[1::2]]
        wanted = [n for n, (_, said) in enumerate(turns) if said.strip()]
        if sorted(order) != wanted:
            raise BadRequest(
                "messages: this model's chat template does not show each message "
                "exactly once; send fewer roles or use another model",
                param="messages",
            )
        if folded.is_open:
            parts[-1] = ""
        pieces = [
            turns[int(part)][1].strip() if n % 2 else self._vocabulary.mark(part)
            for n, part in enumerate(parts)
        ]
        encoded, spans = self._vocabulary.encode_spans("".join(pieces))
        ids = self._start(encoded)
        shift = len(ids) - len(encoded)
        cuts = [
            max(0, _tokens_before(at, spans) + shift) if at else 0
            for at in self._cuts(folded, order, pieces, thinking)
        ]
        marks = self.family.thinking
        return Prompt(
            tuple(ids),
            marks is not None and parts[-1].rstrip().endswith(marks.open),
            *cuts,
        )

    def _written(self, markup: Markup) -> str:
        """Return *markup* as it is encoded, with the control tokens that are ours under
        alias."""
        mark = self._vocabulary.mark
        return "".join(
            mark(piece.text) if piece.ours else piece.text for piece in markup
        )

    def _cuts(
        self,
        folded: Folded,
        order: list[int],
        pieces: list[str],
        thinking: bool,
    ) -> tuple[int, int, int]:
        """Return system, history and stable of `Prompt`, in characters of *pieces*."""
        turns = folded.turns
        starts: dict[int, int] = {}  # of each turn's content
        at = 0
        for n, piece in enumerate(pieces):
            if n % 2:
                starts[order[n // 2]] = at
            at += len(piece)
        head = self._written(folded.head)
        if not head:
            behind_head = 0
        elif turns[0].role == "system":
            behind_head = starts.get(1, 0)
        else:  # it stands before the first user's own text
            behind_head = starts.get(0, 0) + len(f"{head}\n\n".lstrip())
        last = max(n for n, turn in enumerate(turns) if turn.role == "user")
        tail = pieces[-1]
        stable = at - len(tail)
        if turns[-1].role == "user" and order and order[-1] == len(turns) - 1:
            stable += len(commonprefix([tail, self._opening(thinking)]))
        return behind_head, starts.get(last, 0), stable

    @cache  # noqa: B019 - one of these a model, two entries each
    def _opening(self, thinking: bool) -> str:
        """Return what stands between a user's turn and the answer to it, marked, in a
        conversation that went on: models may start an answer with more than that."""
        turns = [("user", "a"), ("assistant", "b"), ("user", "c")]
        parts = self._stand_ins.split(self._fill(turns, thinking))
        return self._vocabulary.mark(parts[2]) if len(parts) > 2 else ""

    def _fill(self, turns: Sequence[tuple[str, str]], thinking: bool) -> str:
        from jinja2 import TemplateError

        spoken = [
            {"role": role, "content": self._mask(text, n)}
            for n, (role, text) in enumerate(turns)
        ]
        more = {"chat_template": self._own} if self._own else {}
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    spoken,
                    tokenize=False,
                    add_generation_prompt=True,
                    enable_thinking=thinking,
                    **more,
                )
            )
        # Templates are programs of the model's makers: besides their own refusals
        # they stumble over types and missing fields.
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise BadRequest(
                f"messages: this model's chat template refuses them: {reason}",
                param="messages",
            ) from error

    def _mask(self, text: str, number: int) -> str:
        """Return a stand-in for *text* between its own outer blanks, which the
        template may trim or keep."""
        core = text.strip()
        if not core:
            return text
        before, _, after = text.partition(core)
        return before + self._stand_in.format(number) + after

    def _start(self, ids: list[int]) -> list[int]:
        """Return *ids* with the begin token once if it is wanted, else without."""
        if self._bos is None:
            return ids
        first = next((n for n, token in enumerate(ids) if token != self._bos), len(ids))
        wanted = first > 0 or self._adds_bos
        return [self._bos, *ids[first:]] if wanted else ids

    def _bears_system(self) -> bool:
        turns = [("system", "a"), ("user", "b")]
        try:
            found = self._stand_ins.findall(self._fill(turns, False))
        except BadRequest:
            return False
        return sorted(found) == ["0", "1"]


def _tokens_before(at: int, spans: Sequence[tuple[int, int]]) -> int:
    """Return how many tokens end at character *at* or before it."""
    count = bisect_left(spans, at, key=lambda span: span[0])
    while count and spans[count - 1][1] > at:
        count -= 1
    return count


def _adds_bos(tokenizer: Tokenizer) -> bool:
    start = tokenizer.encode("")
    return bool(start) and start[0] == tokenizer.bos_token_id
