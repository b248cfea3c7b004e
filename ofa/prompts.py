"""
Composing a mode's system prompt from text files.

Knows files and placeholders; nothing of requests, models or retrieval. What it
returns is the same for every request until a file changes: it is the prefix that
an engine keeps computed, so no clock and no id ever enters it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError
from .modes import Mode
from .shipped import shipped

# An opening line may say more after these words, as upstream's did.
_FENCE_TOOLS = re.compile(
    r"^===== BEGIN OFA FENCE-TOOL PROTOCOL.*?"
    r"^===== END OFA FENCE-TOOL PROTOCOL =====$\n?",
    re.DOTALL | re.MULTILINE,
)
_PLACEHOLDER = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")

# Of each memory file; upstream's own cap. Older lines are at the top and go first.
MEMORY_LIMIT_BYTES = 16 * 1024

_MEMORIES = (  # (file in the state folder, what it is), the later wins
    (
        ".ofa_lessons.txt",
        "site lessons",
        "Lessons learnt at this site; treat as priors",
    ),
    (".ofa_prefs.txt", "user preferences", "The user's preferences; these win"),
)


def packaged_folder() -> Path:
    """Return the folder of prompt files that comes with ofa."""
    return shipped("prompts")


@dataclass(frozen=True)
class _Rendered:
    text: str
    state: object  # of the files it was made from
    looked_s: float


class Prompts:
    """
    The system prompts of all modes; a changed file counts from the next request on,
    or once *look_every_s* seconds have passed since it was last looked at.

    *values* are the placeholders by name (``SITE_NAME`` …); *remembered* returns
    the text of a file in the state folder, or "" where there is none; *protected* are
    folders that no suggested command may change.
    """

    def __init__(
        self,
        folder: Path,
        values: Mapping[str, str],
        remembered: Callable[[str], str] = lambda name: "",
        *,
        protected: Sequence[str] = (),
        look_every_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._values = dict(values)
        self._remembered = remembered
        self._protected = tuple(protected)
        self._look_every_s = look_every_s
        self._clock = clock
        self._rendered: dict[tuple[str, bool], _Rendered] = {}

    def check(self, mode: Mode) -> None:
        """Raise `ConfigError` naming the file unless *mode* can be rendered."""
        for tools in (False, True):
            self.render(mode, tools=tools)

    def render(self, mode: Mode, *, tools: bool) -> str:
        """
        Return the system prompt of *mode*: mode, common, site lessons, preferences.

        With *tools* in force the block on fenced commands is cut out and the
        directive on tool calls stands first: Gemma follows the form it sees in
        examples, and either measure alone was not enough upstream.
        """
        now_s = self._clock()
        known = self._rendered.get((mode.prompt, tools))
        if known is not None and now_s - known.looked_s < self._look_every_s:
            return known.text
        names = (mode.prompt, "common.txt", *(["openai_tools.txt"] if tools else []))
        memories = [self._remembered(row[0]) for row in _MEMORIES]
        state = ([_stamp(self._folder / name) for name in names], memories)
        if known is not None and known.state == state:
            text = known.text
        else:
            text = self._compose(names, memories, tools=tools)
        self._rendered[mode.prompt, tools] = _Rendered(text, state, now_s)
        return text

    def _compose(
        self, names: Sequence[str], memories: Sequence[str], *, tools: bool
    ) -> str:
        files = [self._file(name) for name in names]
        if tools:
            parts = [files[-1], *(_FENCE_TOOLS.sub("", part) for part in files[:-1])]
        else:
            parts = [_without_markers(part) for part in files]
        parts.append(self._protection())
        for row, text in zip(_MEMORIES, memories, strict=True):
            parts.append(_memory(text, *row[1:]))
        return "\n\n".join(text for part in parts if (text := part.strip()))

    def _file(self, name: str) -> str:
        path = self._folder / name
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: cannot read the prompt: {exc}") from exc
        return self._fill(text, path)

    def _fill(self, text: str, path: Path) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self._values:
                known = ", ".join(sorted(self._values))
                raise ConfigError(
                    f"{path}: unknown placeholder {{{name}}}; known are {known}"
                )
            return self._values[name]

        return _PLACEHOLDER.sub(value, text)

    def _protection(self) -> str:
        if not self._protected:
            return ""
        roots = ", ".join(self._protected)
        return f"Never suggest a command that changes anything below {roots}."


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when the file at *path* does; nothing where there is none."""
    try:
        facts = path.stat()
    except OSError:  # reading it says more
        return ()
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


def _memory(text: str, kind: str, heading: str) -> str:
    """Return a memory file's *text* fenced as what it is: notes, written by others."""
    data = text.encode("utf-8")[-MEMORY_LIMIT_BYTES:]
    text = data.decode("utf-8", errors="ignore").strip()
    if not text:
        return ""
    text = text.replace(f"[end of {kind}]", f"(end of {kind})")
    return f"[{kind}]\n{heading}:\n{text}\n[end of {kind}]"


def _without_markers(text: str) -> str:
    return re.sub(
        r"^===== (?:BEGIN|END) OFA FENCE-TOOL PROTOCOL.*\n?", "", text, flags=re.M
    )
