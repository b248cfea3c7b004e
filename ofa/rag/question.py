"""
The user's own question, out of what an editor or an agent wraps around it.

Knows the wrappings of VS Code, Cline, OpenCode, Copilot and their kin; nothing of
indexes. Pure, and linear in the length of the text: a paste of a megabyte costs
milliseconds, because search only ever sees the first and the last of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..chat import Chat, Message
from .courtesy import is_empty_turn

# What search gets to see. MiniLM reads 256 tokens, about 1,000 characters; words
# beyond that still count for the lexical side. People ask first or last, not amid.
HEAD_CHARS, TAIL_CHARS = 1_200, 800
# What is looked at to find it.
_SEEN_HEAD, _SEEN_TAIL = 150_000, 50_000

# An error line or a few keywords are worth searching for, a pasted program is not.
_IDENTIFIERS_KEPT = 30
_BLOCKS = 64  # marks that are looked at; the rest counts as text

# A question under this many words may lean on the one before it: people who go on
# are brief, and rarely name their subject twice.
_SHORT_WORDS = 14


@dataclass(frozen=True)
class Question:
    """What the user asks now, and asked before where this one leans on it."""

    text: str
    previous: str = ""
    place: int = 0  # which of the chat's messages holds it


def asked(chat: Chat) -> Question | None:
    """
    Return the question that *chat* waits to have answered.

    None if the newest message isn't the user's (a tool round, a prefilled answer), or
    if there are none of the user's own words in it.
    """
    newest, *older = _turns(chat) or [()]
    place = _place(chat, newest)
    if place is None:
        return None
    text = own_words(chat.messages[place].text)
    if not text:
        return None
    previous = ""
    if leans_on_previous(text):
        spots = (_place(chat, turn) for turn in older)
        words = (
            own_words(chat.messages[spot].text) for spot in spots if spot is not None
        )
        # The last one that says something: "thanks" and "go on" name no subject.
        previous = next((w for w in words if not is_empty_turn(w)), "")
    return Question(text, previous, place)


def wants_retrieval(chat: Chat) -> bool:
    """Tell whether there is a question of the user's own to look something up for."""
    question = asked(chat)
    return question is not None and not is_empty_turn(question.text)


def _turns(chat: Chat) -> list[tuple[int, ...]]:
    """
    Return the user's turns, newest first; empty where the newest message isn't theirs.

    A turn is a run of user messages: VS Code sends the environment and the question as
    two, and an image makes three. System messages count as no turn of anybody.
    """
    turns: list[tuple[int, ...]] = []
    run: list[int] = []
    for place in range(len(chat.messages) - 1, -1, -1):
        role = chat.messages[place].role
        if role == "user":
            run.append(place)
        elif role != "system":
            turns.append(tuple(run))
            run = []
    turns.append(tuple(run))
    return turns if turns[0] else []


def _place(chat: Chat, turn: tuple[int, ...]) -> int | None:
    """Return which message of *turn* holds the question: a marked one, or the last."""
    texts = [(place, chat.messages[place].text) for place in turn]
    for place, text in texts:
        if _marked(text):
            return place
    return next((place for place, text in texts if own_words(text)), None)


_LEANING = re.compile(
    r"^(?:and|but|or|also|so|then|what about|how about|what if|same|instead)\b"
    r"|\b(?:it|its|that|this|those|these|them|they|there|ones?|same|instead|above"
    r"|previous|former|latter|again)\b",
    re.IGNORECASE,
)
_LEANING_WORDS = 30  # in a longer question "it" refers to the question itself


def leans_on_previous(question: str) -> bool:
    """Tell whether *question* is short or points back, so that its subject may be
    named in the question before."""
    words = len(question.split())
    if words < _SHORT_WORDS:
        return True
    return words < _LEANING_WORDS and bool(_LEANING.search(question))


# --- one message -------------------------------------------------------------------

_REQUEST = "userRequest"  # VS Code
# Others that mark the user's words, where they begin the text: VS Code's inline chat,
# Cursor, Cline and Roo.
_ASKING = ("prompt", "user_query", "user_message", "task", "feedback")
_CONTEXT = (
    "attachments|attachment|attached_files|context|editorContext|environment_info|"
    "environment_context|ide_selection|ide_opened_file|workspace_info|"
    "environment_details|userMemory|sessionMemory|repoMemory|reminderInstructions|"
    "reminder|system-reminder|system_reminder|conversation-summary|file|"
    "file-cursor-context|file-selection|selection|file_content|folder_content|"
    "current_datetime|current_time|toolReferences|instructions|custom_instructions|"
    "user_instructions|available_skills|notification|user_info|rules|git_status|"
    "project_layout|additional_data|todoList|open_and_recently_viewed_files|"
    "task_progress"
)
_TAGS = re.compile(rf"<(/?)({_CONTEXT})(?:\s[^<>]{{0,300}})?>")
_REMINDER = "reminderInstructions"


def own_words(text: str) -> str:
    """Return what the user typed, on one line, cut to a bounded length."""
    marked = _marked(text)
    if marked is None:
        marked = _asked_in(_without_context(_ends(text, _SEEN_HEAD, _SEEN_TAIL)))
    folded = _fold_code(_ends(marked, _SEEN_HEAD, _SEEN_TAIL))
    return _ends(" ".join(folded.split()), HEAD_CHARS, TAIL_CHARS)


def trimmed(text: str) -> str:
    """
    Return a user message without the editor's reminders, for when tools are dropped.

    They tell the model to use tools that it doesn't have. The same text always gives
    the same bytes: this is part of a cached prompt.
    """
    opening, closing = f"<{_REMINDER}>", f"</{_REMINDER}>"
    kept: list[str] = []
    done = 0
    while (start := text.find(opening, done)) >= 0:
        end = text.find(closing, start)
        if end < 0:
            break
        kept.append(text[done:start])
        done = end + len(closing)
        # VS Code puts each block on lines of its own: no empty line is left behind.
        done += text.startswith("\n", done)
    return "".join([*kept, text[done:]])


def _marked(text: str) -> str | None:
    """Return what stands in the last ``<userRequest>``; searches only, no pattern."""
    end = text.rfind(f"</{_REQUEST}>")
    start = text.rfind(f"<{_REQUEST}>", 0, end) if end >= 0 else -1
    return text[start + len(_REQUEST) + 2 : end] if start >= 0 else None


def _without_context(text: str) -> str:
    """Return *text* without its context blocks; one that never closes stays."""
    kept: list[str] = []
    done = 0
    inside = ""
    last_close: dict[str, int] = {}
    for found in _TAGS.finditer(text):
        close, name = found.groups()
        if inside:
            if close and name == inside:
                inside, done = "", found.end()
            continue
        # A lone tag goes by itself: its other half is in a neighbouring message.
        kept.append(text[done : found.start()])
        done = found.end()
        if name not in last_close:
            last_close[name] = text.rfind(f"</{name}>")
        if not close and last_close[name] >= done:
            inside = name
    return "".join([*kept, text[done:]])


def _asked_in(text: str) -> str:
    text = text.strip()
    for name in _ASKING:
        if text.startswith(f"<{name}>"):
            end = text.rfind(f"</{name}>")
            return text[len(name) + 2 : end if end >= 0 else None]
    return text


_WORD = re.compile(r"[A-Za-z_][\w.:+-]{2,60}")


def _fold_code(text: str) -> str:
    """Return *text* with each pasted block of code reduced to the words in it."""
    parts = text.split("```", _BLOCKS)
    for place in range(1, len(parts), 2):
        _, _, code = parts[place].partition("\n")  # the language's name is no code
        seen = _ends(code or parts[place], 1_500, 500)  # a traceback's news is last
        words = dict.fromkeys(_WORD.findall(seen))
        parts[place] = f" {' '.join(list(words)[:_IDENTIFIERS_KEPT])} "
    return "".join(parts)


def _ends(text: str, head: int, tail: int) -> str:
    """Return *text*, or its first and last characters where it is longer."""
    if len(text) <= head + tail:
        return text
    return f"{text[:head]} {text[-tail:]}"


# --- what an editor asks for itself --------------------------------------------------

_VSCODE, _OPENCODE = "githubcopilotchat/", "opencode/"


def is_side_request(chat: Chat, user_agent: str) -> bool:
    """
    Tell whether an editor asks for itself: a title, a progress line, a summary.

    VS Code and OpenCode offer tools in every turn of a person's, so a request without
    them is the editor's; VS Code's compaction keeps the tools and is told by its last
    message, the only unmarked one in a chat whose questions are marked. *chat* is the
    client's own, before tools are dropped.
    """
    agent = user_agent.strip().lower()
    if not agent.startswith((_VSCODE, _OPENCODE)):
        return False
    if not chat.tools:
        return True
    return agent.startswith(_VSCODE) and _is_compaction(chat.messages)


def _is_compaction(messages: tuple[Message, ...]) -> bool:
    *older, last = messages or (Message("system"),)
    return (
        last.role == "user"
        and _marked(last.text) is None
        and any(m.role == "user" and _marked(m.text) is not None for m in older)
    )
