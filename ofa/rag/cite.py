"""
The list of files behind an answer, and the same list taken off again.

A site may let answers end with the files that were looked up for them. They come back
as history with the next question: then the list goes before anything is made of it,
since the engine never wrote it (what it keeps of a conversation would not fit any
more), and a model that reads such lists learns to invent them. So the form is one that
people do not write by chance, and whatever of it there is in a chat is ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..chat import Chat, End, Event, Text
from ..engine.base import Around, Reply
from .fence import LABEL_CHARS, PATH_CHARS, one_line
from .passage import Passage

_HEAD = "\n\nSources looked up: "
# One line of entries, the last of the text; clients may add an end of line, or trim.
_ENTRY = r"\[\d{1,4}\](?:\[\d{1,4}\])* `[^`\n]+`"
_FOOTER = re.compile(rf"{re.escape(_HEAD)}{_ENTRY}(?:; {_ENTRY})*\s*\Z")
_CODE = re.compile(r"^\s{0,3}(`{3,}|~{3,})", re.MULTILINE)


def footer(passages: Sequence[Passage]) -> str:
    """
    Return what names the files of *passages*, with the numbers they have in the fence.

    Paths stand as code: what documents are called must be no link and no image.
    """
    numbers: dict[str, list[int]] = {}
    in_fences = sorted(passages, key=lambda passage: passage.private)
    for number, passage in enumerate(in_fences, 1):
        numbers.setdefault(_place(passage), []).append(number)
    entries = (
        f"{''.join(f'[{number}]' for number in listed)} `{place}`"
        for place, listed in numbers.items()
    )
    listed = "; ".join(entries)
    return f"{_HEAD}{listed}" if listed else ""


def _place(passage: Passage) -> str:
    place = one_line(passage.path, PATH_CHARS)
    if passage.collection:
        place = f"{one_line(passage.collection, LABEL_CHARS)}/{place}"
    return place.replace("`", "'")


def without_footer(text: str) -> str:
    """Return *text* without a footer of ours at its end, the rest byte for byte."""
    at = text.rfind(_HEAD)
    if at < 0 or not _FOOTER.match(text, at):
        return text
    return text[:at]


def without_footers(chat: Chat) -> Chat:
    """Return *chat* with its answers as the engine wrote them."""
    messages = list(chat.messages)
    for place, message in enumerate(messages):
        if message.role == "assistant" and _HEAD in message.text:
            text = without_footer(message.text)
            messages[place] = replace(message, text=text)
    return replace(chat, messages=tuple(messages))


def takes_footer(chat: Chat) -> bool:
    """
    Tell whether a footer harms nothing that reads the answer to *chat*.

    A program does that reads JSON, adds up log probabilities, or has stop strings: they
    cut the answer where its next part is to begin.
    """
    return chat.output is None and chat.logprobs is None and not chat.sampling.stop


class Cited(Around):
    """A reply whose every complete answer ends with *footer*."""

    def __init__(self, reply: Reply, footer: str) -> None:
        super().__init__(reply)
        self._footer = footer

    def __iter__(self) -> Iterator[Event]:
        said: dict[int, list[str]] = {}
        for event in self._reply:
            if isinstance(event, Text):
                said.setdefault(event.index, []).append(event.text)
            elif isinstance(event, End) and _is_whole(event, said):
                yield Text(self._footer, event.index)
            yield event


def _is_whole(end: End, said: Mapping[int, Sequence[str]]) -> bool:
    """Tell whether an answer has text, and its end is not within code."""
    text = "".join(said.get(end.index, ()))
    ended = end.reason == "stop" and bool(text.strip())
    return ended and not _in_code(_CODE.findall(text))


def _in_code(marks: Iterable[str]) -> bool:
    """Tell whether a block of code is open behind these marks, as CommonMark has it."""
    opened = ""
    for mark in marks:
        if not opened:
            opened = mark
        elif mark[0] == opened[0] and len(mark) >= len(opened):
            opened = ""
    return bool(opened)
