"""
Finds the calls in an answer as it is written: text out at once, calls when complete.

Knows one family's format, the foreign forms that are rescued and what is offered;
nothing of tokens or engines. Text arrives in pieces cut anywhere; what leaves is the
same for every cut, and text waits only as long as it could still become a call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from ..chat import Tool, ToolCall
from . import repair, written
from .bare import FENCE, OPENINGS, Bare
from .base import Failed, Format, Found, Unreadable
from .code import Code
from .forms import HEAD_CHARS, Forms, any_of, starts_of
from .tally import Tally

Piece = str | ToolCall | Failed
_Reading = Generator[Piece, None, str]  # returns the text that is left
Settle = Callable[[Found, Sequence[Tool]], repair.Settled | repair.Refused]

# A block with one of these tags, written although tools are in force, is most likely
# a call that went the wrong way.
TOOL_LIKE = frozenset(
    ("bash", "console", "edit", "fetch", "python", "read", "replace", "run", "search",
     "sh", "shell", "terminal", "tool", "tool_call", "tool_code", "write", "zsh")
)  # fmt: skip

_LOOKS = 64  # how often, on average, a character of a call is looked at before its end
_FREE_LOOKS = 1 << 20  # characters
_CHUNK_CHARS = 1024
_TELLING_CHARS = 3  # of an opener at an answer's cut end: less may be anything


class Reader:
    """
    Reads one answer: pieces of text, calls that may go out, and calls that may not.

    Of a call that the limit cuts nothing is left. Blanks beside a call are dropped.
    *first*: calls are all of an answer, or none is among it.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        format: Format,
        tools: Sequence[Tool],
        *,
        parallel: bool = True,
        rescue: bool = True,
        first: bool = False,
        settle: Settle = repair.settle,
        tally: Tally | None = None,
    ) -> None:
        self.tally = tally or Tally()
        self.calls = 0  # given out
        self.repeats = False  # a call came twice in a row: nothing new is to come
        self._last: ToolCall | None = None
        self._tools = tuple(tools)
        self._parallel = parallel
        self._first, self._settle = first, settle
        self._forms = Forms(format, self._tools, rescues=rescue)
        self._whole_forms = rescue  # also JSON without any mark, as the whole answer
        self._code = Code()
        self._begun = False  # anything but blanks was written
        self._openings: tuple[str, ...] = (
            OPENINGS  # of calls without a mark, at the answer's start
        )
        self._behind_call = False  # the last thing given out was one
        self._blanks: list[str] = []  # given out once text follows
        self._tail = ""  # text that may be the start of an opener
        self._held: list[str] = []  # a call that is being written
        self._held_chars = 0
        self._foreign = False  # what is held may be a call in a foreign form only
        self._near = ""  # the last of what is held then
        self._looks = _FREE_LOOKS  # how many characters may still be looked at again
        self._bare: Bare | None = None  # set while what is held may be one
        self._marks = any_of((*self._forms.openers, FENCE))
        self._starts = starts_of((*self._forms.openers, FENCE))

    def feed(self, text: str) -> list[Piece]:
        """Return what *text* completes; no piece of text is empty."""
        pieces: list[Piece] = []
        for at in range(0, len(text), _CHUNK_CHARS):  # what is left is copied often
            pieces += self._read(text[at : at + _CHUNK_CHARS])
        return _joined(pieces)

    def take(self, found: Found, identity: str = "") -> list[Piece]:
        """Return what a call that the engine itself has read at this place becomes."""
        return _joined(self._take(found, identity))

    def finish(self, *, cut: bool) -> list[Piece]:
        """Return what was held back; *cut* says that the limit ended the answer."""
        return _joined(self._finish(cut=cut))

    # What comes in

    def _read(self, text: str) -> Iterator[Piece]:
        while text:
            if self._bare is not None:
                text = yield from self._hold_bare(self._bare, text)
            elif self._held:
                text = yield from self._hold(text)
            else:
                text = yield from self._scan(self._tail + text)

    def _take(self, found: Found, identity: str) -> Iterator[Piece]:
        yield from self._end_held(cut=False)
        yield from self._given([found], _as_json(found), identity)

    def _finish(self, *, cut: bool) -> Iterator[Piece]:
        yield from self._end_held(cut=cut)
        if not self._behind_call and self._blanks:
            yield "".join(self._blanks)
        self._blanks.clear()
        for tag in self._code.tags:
            if tag in TOOL_LIKE:
                self.tally.fenced[tag] += 1

    def _end_held(self, *, cut: bool) -> Iterator[Piece]:
        while self._held or self._bare:
            foreign, raw = self._foreign, self._release()
            if self._bare is not None:
                bare, self._bare = self._bare, None
                yield from self._ended_bare(bare, raw, cut=cut)
            elif foreign:
                yield from self._ended_foreign(raw, cut=cut)
            elif cut:
                self._drop_cut()
            else:
                yield from self._called(raw)
        tail, self._tail = self._tail, ""
        if cut and len(tail) >= _TELLING_CHARS and tail[0] in "<[":
            self._drop_cut()
        else:
            yield from self._say(tail)

    # Text

    def _scan(self, text: str) -> _Reading:
        """Give out text up to where something must be held; return what is left."""
        self._tail, at = "", 0
        if not self._begun and self._may_be_whole():
            at = len(text) - len(text.lstrip())
            if text[at : at + 1] in self._openings:
                yield from self._say(text[:at])
                self._bare = Bare()
                return text[at:]
            at = 0
        while at < len(text):
            mark = self._marks.search(text, at)
            end = mark.start() if mark else len(text) - self._pending(text, at)
            yield from self._say(text[at:end])
            if not self._opens(text[end:]):
                at = end + 1
                yield from self._say(text[end:at])
                continue
            if mark is None or self._forms.is_unfinished(text[end:]):
                self._tail = text[end:]
                return ""
            if mark[0] == FENCE:
                self._bare = Bare()
            else:
                self._held = [""]
            return text[end:]
        return ""

    def _opens(self, text: str) -> bool:
        """Return whether *text*, which begins as an opener does, may be one here."""
        if not text or (self._first and self._begun and not self.calls):
            return False
        if text[0] == FENCE[0] and self._forms.may_be_own(text):
            return self._code.is_line_start
        if text[0] == FENCE[0]:
            first = self._code.is_line_start and not self._code.tags
            return first and self._may_be_whole()
        if self._forms.is_certain(text):
            return True  # a control token: nobody writes it as text
        if not self._forms.may_be_own(text) and not self._may_be_foreign(text):
            return False
        in_word = text[0].isalnum() and self._code.is_in_word()
        return self._code.is_plain() and not in_word

    def _may_be_foreign(self, text: str) -> bool:
        """Return whether a foreign form could open here; never within a sentence."""
        if self._forms.is_at_line(text):
            return self._code.is_line_start
        return Forms.may_start(self._code.line)

    def _may_be_whole(self) -> bool:
        return self._whole_forms and not self.calls

    def _pending(self, text: str, at: int) -> int:
        """Return how many last characters may be the start of an opener."""
        longest = min(self._forms.longest - 1, len(text) - at)
        for length in range(longest, 0, -1):
            if text[len(text) - length :] in self._starts:
                return length
        return 0

    def _say(self, text: str) -> Iterator[Piece]:
        """Give out *text*, but hold blanks at its end: a call may follow."""
        if not text:
            return
        self._code.feed(text)
        said = kept = text.rstrip()
        if said:
            if self._behind_call:
                self._blanks.clear()
                said = said.lstrip()
            yield "".join((*self._blanks, said))
            self._blanks.clear()
            self._begun, self._behind_call = True, False
        if blanks := text[len(kept) :]:
            self._blanks.append(blanks)

    # Calls

    def _hold(self, text: str) -> _Reading:
        """Hold *text* until it is known where the call ends; return what is left."""
        self._held.append(text)
        self._held_chars += len(text)
        if self._foreign:
            return (yield from self._hold_foreign(text))
        self._looks += _LOOKS * len(text)
        if self._looks < self._held_chars:
            return ""
        self._looks -= self._held_chars
        held = "".join(self._held)
        self._held = [held]
        length = self._forms.length(held)
        if length is None:
            return ""
        if length:
            self._release()
            yield from self._called(held[:length])
            return held[length:]
        self._foreign, self._near = True, ""
        return (yield from self._hold_foreign(held))

    def _hold_foreign(self, text: str) -> _Reading:
        """
        Hold what ends with *text* to the answer's end, unless it can't be a call.

        A call in the family's own form behind it shows that it was none, as foreign
        ones stand at the end.
        """
        near = self._near + text
        self._near = near[-self._forms.longest :]
        place = self._forms.find_own(near, 1 if len(near) == self._held_chars else 0)
        seen = self._held_chars - len(text) >= HEAD_CHARS
        if place < 0 and (seen or self._forms.may_be_foreign("".join(self._held))):
            return ""
        said = 1 if place < 0 else self._held_chars - len(near) + place
        held = self._release()
        yield from self._say(held[:said])
        return held[said:]

    def _release(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        self._held_chars = 0
        self._foreign = False
        return held

    def _called(self, raw: str) -> Iterator[Piece]:
        """Give out what *raw*, all of a call, comes to."""
        try:
            founds, form = self._forms.read(raw)
        except Unreadable as why:
            yield from self._fail(raw, str(why))
            return
        self._count_form(form)
        yield from self._given(founds, raw)

    def _ended_foreign(self, raw: str, *, cut: bool) -> Iterator[Piece]:
        """Give out what *raw* comes to, the answer's end: a foreign call, or text."""
        line = self._code.line
        if cut:
            may_start = self._forms.may_start(line)
            if may_start and self._forms.is_attempt(raw, unfinished=True):
                self._drop_cut()
            else:
                yield from self._say(raw)
            return
        rescued = self._forms.rescue(raw, line)
        if rescued is not None:
            start, founds, form = rescued
            yield from self._say(raw[:start])
            self._count_form(form)
            yield from self._given(founds, raw[start:])
        elif not line.strip() and self._forms.is_attempt(raw):
            yield from self._fail(raw, "it could not be read")
        else:
            yield from self._say(raw)

    def _given(
        self, founds: Sequence[Found], raw: str, identity: str = ""
    ) -> Iterator[Piece]:
        for found in founds:
            if self.calls and not self._parallel:
                self.tally.dropped["extra"] += 1
                self._behind_call = True
                continue
            settled = self._settle(found, self._tools)
            if isinstance(settled, repair.Refused):
                own = raw if len(founds) == 1 else _as_json(found)
                yield from self._fail(own, settled.why)
                continue
            self.tally.repaired.update(settled.repairs)
            yield from self._give(settled.call, identity)

    def _give(self, call: ToolCall, identity: str = "") -> Iterator[Piece]:
        self._blanks.clear()
        done, self._last = self._last, replace(call, id="")
        if done == self._last:
            self.repeats = True
            self.tally.dropped["repeated"] += 1
            return
        self.calls += 1
        self._begun = self._behind_call = True
        yield replace(call, id=identity) if identity else call

    def _drop_cut(self) -> None:
        self._blanks.clear()
        self.tally.dropped["cut"] += 1

    def _fail(self, raw: str, why: str) -> Iterator[Piece]:
        if not self._behind_call and self._blanks:
            yield "".join(self._blanks)
        self._blanks.clear()
        self._begun, self._behind_call = True, False
        self.tally.failed += 1
        yield Failed(raw, why)

    # Calls without any mark

    def _hold_bare(self, bare: Bare, text: str) -> _Reading:
        self._held.append(text)
        if bare.feed(text):
            return ""
        self._bare = None
        return (yield from self._no_bare(self._release()))

    def _no_bare(self, raw: str) -> _Reading:
        """Give out as text what made *raw* look like a call; return what is left."""
        self._openings = ()
        if not raw.startswith(FENCE):
            return raw
        yield from self._say(FENCE)
        return raw[len(FENCE) :]

    def _ended_bare(self, bare: Bare, raw: str, *, cut: bool) -> Iterator[Piece]:
        calls = () if cut else self._exact(bare)
        if not calls:
            yield from self._read((yield from self._no_bare(raw)))
            return
        self.tally.rescued["json"] += 1
        for call in calls:
            if self.calls and not self._parallel:
                self.tally.dropped["extra"] += 1
            else:
                yield from self._give(call)

    def _exact(self, bare: Bare) -> list[ToolCall]:
        """Return the calls of *bare*: none if any is not exactly what is offered."""
        names = {tool.name for tool in self._tools}
        try:
            founds = bare.read()
        except Unreadable:
            return []
        calls = []
        for found in founds:
            settled = self._settle(found, self._tools) if found.name in names else None
            if not isinstance(settled, repair.Settled) or settled.repairs:
                return []
            calls.append(settled.call)
        return calls

    def _count_form(self, form: str) -> None:
        if form:
            self.tally.rescued[form] += 1


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return *pieces* with neighbouring text in one."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _as_json(found: Found) -> str:
    return written.dump({"name": found.name, "arguments": found.arguments})
