"""
Between text and token ids, with control tokens out of every author's reach.

A tokenizer turns the characters ``<end_of_turn>`` into the token that ends a turn,
whoever wrote them: a user, a document, a tool's output. Here a copy of the tokenizer
knows each control token only by an alias drawn at random in this process. The chat
template's own markers are written as aliases; the same characters in content are
plain text, and everything else is encoded exactly as by the original.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ConfigError

if TYPE_CHECKING:
    import tokenizers

# Added tokens that carry no control: Gemma keeps runs of blanks and HTML tags as
# single tokens, and documents full of them must be encoded as in training.
_BLANK = re.compile(r"[\s\u2581]+")
_HTML = re.compile(
    "</?(?:a|b|blockquote|br|caption|code|em|h[1-6]|hr|i|img|li|ol|p|pre|s|strong|sub|sup"
    "|table|tbody|td|tfoot|th|thead|tr|u|ul)/?>"
)
_SPACE = "\u2581"  # SentencePiece's visible blank
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """What is used of mlx-lm's streaming detokenizers."""

    last_segment: str

    def add_token(self, token: int) -> None:
        """Take one more token."""

    def finalize(self) -> None:
        """Show what was held back, as the text ends here."""

    def reset(self) -> None:
        """Begin another text."""


class Tokenizer(Protocol):
    """What is used of transformers' tokenizers, as mlx-lm wraps them."""

    bos_token_id: int | None
    has_chat_template: bool

    @property
    def detokenizer(self) -> Detokenizer:
        """A fresh streaming detokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of *text*, with the begin token where the model wants it."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], **options: object
    ) -> str:
        """Render *conversation*."""


class Vocabulary:
    """The ids of one model's tokens; safe to use from many threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                "the model's tokenizer has no tokenizer.json; convert it to a fast one"
            )
        plan = json.loads(backend.to_str())
        self.ids: Mapping[str, int] = _ids(plan)
        self.control = _control_tokens(plan)
        nonce = secrets.token_hex(8)
        self._aliases = {
            token: f"\ue000{nonce}-{number}\ue001"
            for token, number in self.control.items()
        }
        self._marked = re.compile(f"\ue000{nonce}-([0-9]+)\ue001")
        self._lengths = sorted({len(token) for token in self.control}, reverse=True)
        self._starts = _any_of(token[0] for token in self.control)
        self._tokens = _byte_table(plan)
        self._names = {number: token for token, number in self.ids.items()}
        self._strips = _has(plan.get("decoder"), "Strip")
        self._tokenizer = tokenizer
        self._encoder = _renamed(plan, self._aliases)
        self.mark = lru_cache(maxsize=4096)(self._mark)

    def plain(self, text: str) -> str:
        """Return *text* with each token that is under alias as its own characters."""
        if "\ue000" not in text:
            return text
        return self._marked.sub(lambda found: self._names[int(found[1])], text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of *text*; only what `mark` wrote becomes a control token."""
        return self.encode_spans(text)[0]

    def count(self, text: str) -> int:
        """Return how many ids `encode` returns, in less time."""
        many = self._encoder.encode_batch_fast([text], add_special_tokens=False)
        return len(many[0])

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of *text*, and where in it each starts and ends."""
        # As a batch of one: `encode` would hold all other threads up meanwhile, for
        # eight seconds where a request is as long as one may be.
        (encoding,) = self._encoder.encode_batch([text], add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _mark(self, text: str) -> str:
        """Return a template's own *text* with its control tokens put under alias."""
        out: list[str] = []
        done = 0
        for start in self._starts.finditer(text):
            at = start.start()
            if at < done:
                continue
            token = self._token_at(text, at)
            if token:
                out += text[done:at], self._aliases[token]
                done = at + len(token)
        return "".join((*out, text[done:]))

    def _token_at(self, text: str, at: int) -> str:
        for length in self._lengths:
            token = text[at : at + length]
            if token in self._aliases:
                return token
        return ""

    @property
    def knows_bytes(self) -> bool:
        """Whether `raw` is what a decoder shows, to the byte."""
        return self._tokens is not None

    def raw(self, token: int) -> bytes:
        """Return the bytes that *token* stands for; none for one without text."""
        if self._tokens is not None:
            return self._tokens[token] if token < len(self._tokens) else b""
        return self._names.get(token, "").encode()

    def decoder(
        self,
        silent: frozenset[int] = frozenset(),
        marked: frozenset[int] = frozenset(),
    ) -> Decoder:
        """
        Return a fresh decoder that shows nothing for the tokens in *silent*.

        Control tokens in *marked* are shown under alias, as `mark` writes them: so they
        can be told from the same characters in plain letters. `plain` undoes that.
        """
        shown: dict[int, str] = dict.fromkeys(silent, "")
        shown |= {
            number: self._aliases[token]
            for token, number in self.control.items()
            if number in marked
        }
        if self._tokens is None:
            return _Borrowed(self._tokenizer.detokenizer, shown)
        return Decoder(self._tokens, shown, strips=self._strips)


class Decoder:
    """
    Turns ids into text as they come, in linear time; those in *shown* into that.

    Characters spread over several tokens appear when they are whole; what is left
    incomplete at the end was cut by a limit and is dropped, not shown as U+FFFD.
    """

    def __init__(
        self,
        tokens: Sequence[bytes] = (),
        shown: Mapping[int, str] | None = None,
        *,
        strips: bool = False,
    ) -> None:
        self._tokens = tokens
        self._shown = shown or {}
        self._strips = strips  # the format writes one blank before the first word
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the text that *token* completes."""
        instead = self._shown.get(token)
        if instead is not None:
            return self._before() + instead if instead else ""
        if token >= len(self._tokens):
            return ""  # models pad their output beyond the tokenizer's last id
        text = self._utf8.decode(self._tokens[token])
        if self._strips and text:
            self._strips = False
            text = text.removeprefix(" ")
        return text

    def _before(self) -> str:
        """Return what is left of the text, as it ends at a control token."""
        self._strips = False
        return self._utf8.decode(b"", final=True)


class _Borrowed(Decoder):
    """mlx-lm's own detokenizer, for tokenizers whose bytes are not known here."""

    def __init__(self, detokenizer: Detokenizer, shown: Mapping[int, str]) -> None:
        super().__init__((), shown)
        self._detokenizer = detokenizer

    def feed(self, token: int) -> str:
        """Return the text that *token* completes."""
        instead = self._shown.get(token)
        if instead is not None:
            return self._before() + instead if instead else ""
        self._detokenizer.add_token(token)
        return str(self._detokenizer.last_segment)

    def _before(self) -> str:
        self._detokenizer.finalize()
        rest = str(self._detokenizer.last_segment)
        self._detokenizer.reset()
        return rest


def _ids(plan: Mapping[str, Any]) -> dict[str, int]:
    vocab = plan["model"].get("vocab", {})
    if isinstance(vocab, list):  # Unigram: [piece, score] in the order of ids
        vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
    added = {token["content"]: token["id"] for token in plan["added_tokens"]}
    return {**vocab, **added}


def _control_tokens(plan: Mapping[str, Any]) -> dict[str, int]:
    return {
        token["content"]: token["id"]
        for token in plan["added_tokens"]
        if len(token["content"]) > 1 and not _is_harmless(token)
    }


def _is_harmless(token: Mapping[str, Any]) -> bool:
    text = token["content"]
    return not token["special"] and bool(
        _BLANK.fullmatch(text) or _HTML.fullmatch(text)
    )


def _any_of(chars: Iterable[str]) -> re.Pattern[str]:
    firsts = "".join(sorted(set(chars)))
    return re.compile(f"[{re.escape(firsts)}]" if firsts else "(?!)")


def _renamed(plan: dict[str, Any], names: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return a tokenizer after *plan* in which *names* has renamed tokens."""
    from tokenizers import Tokenizer

    model = dict(plan["model"])
    vocab = model.get("vocab", {})
    if isinstance(vocab, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {names.get(piece, piece): n for piece, n in vocab.items()}
    if "merges" in model:  # no way may lead from plain pieces to a control token
        model["merges"] = [pair for pair in model["merges"] if not _makes(pair, names)]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [
        {**token, "content": names[token["content"]], "normalized": False}
        if token["content"] in names
        else token
        for token in plan["added_tokens"]
    ]
    copy = {
        **plan,
        "model": model,
        "added_tokens": added,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return Tokenizer.from_str(json.dumps(copy))


def _makes(pair: str | Sequence[str], names: Mapping[str, str]) -> bool:
    left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
    return left + right in names or left in names or right in names


def _byte_table(plan: Mapping[str, Any]) -> list[bytes] | None:
    """Return each id's bytes, or None where the decoder is of no known kind."""
    decoder = plan.get("decoder")
    added = {token["id"] for token in plan["added_tokens"]}
    if _has(decoder, "ByteLevel"):
        chars = _byte_level_chars()

        def render(token: str, number: int) -> bytes:
            if number in added or any(char not in chars for char in token):
                return token.encode()
            return bytes(chars[char] for char in token)

    elif _has(decoder, "ByteFallback") or _has(decoder, "Metaspace"):

        def render(token: str, number: int) -> bytes:
            byte = _BYTE.fullmatch(token)
            if byte and number not in added:
                return bytes([int(byte[1], 16)])
            return token.replace(_SPACE, " ").encode()

    else:
        return None
    ids = _ids(plan)
    table = [b""] * (max(ids.values(), default=-1) + 1)
    for token, number in ids.items():
        table[number] = render(token, number)
    return table


def _has(decoder: Mapping[str, Any] | None, kind: str) -> bool:
    if not decoder:
        return False
    return decoder["type"] == kind or any(
        _has(inner, kind) for inner in decoder.get("decoders", ())
    )


def _byte_level_chars() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, as every byte-level BPE uses it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}
