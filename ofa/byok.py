"""
VS Code's side: the entry that makes it list our modes, and the file that it goes into.

A pure function of facts, like the banner: text in, text out. The shapes are those of
VS Code 1.139's `customendpoint` vendor; what it does with them was tried, not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Protocol

from .config_schema import SiteSection
from .engine.base import Limits
from .errors import ConfigError
from .jsonc import Element, JsoncError, appended, line_of, parse, replaced

FILE_NAME = "chatLanguageModels.json"
VENDOR = "customendpoint"
MASK = "(masked)"

# Measured: at 14,000 tokens of input VS Code drops its own system prompt without a
# word, 16,000 is the first that fits, and a few files and turns want as much again.
_PREAMBLE_TOKENS = 16_000
_ADVISED_TOKENS = 32_000
_SECRET = "${input:"  # how VS Code refers to a key in its own store


class Listed(Protocol):
    """What is told of a mode: a row of `Modes`, or what a server says of itself."""

    @property
    def id(self) -> str:
        """What is sent as `model`."""

    @property
    def title(self) -> str:
        """What the model picker shows."""


def group_name(site: SiteSection) -> str:
    """Return the group's name, with the site's own where one is configured."""
    return "OFA" if site.name == SiteSection().name else f"OFA ({site.name})"


def entry(
    models: Iterable[tuple[Listed, Limits]],
    base_url: str,
    *,
    name: str,
    key: str | None,
) -> dict[str, Any]:
    """
    Return one group of chatLanguageModels.json with *models* and what each can take.

    *base_url* ends in /v1. *key* goes into a header of each model: VS Code sends that
    one, and an empty key for whatever stands as plain text in "apiKey". None leaves it
    to be entered in VS Code.
    """
    shared: dict[str, Any] = {
        "url": f"{base_url}/chat/completions",
        # Always: VS Code hides a model without it, in Ask mode too. Where tools have
        # no effect, the server drops them.
        "toolCalling": True,
    }
    headers = {"Authorization": f"Bearer {key}"}
    more = {} if key is None else {"requestHeaders": headers}
    return {
        "name": name,
        "vendor": VENDOR,
        "apiType": "chat-completions",
        "models": [
            {"id": m.id, "name": m.title, **shared, **_sizes(limits), **more}
            for m, limits in models
        ],
    }


def _sizes(limits: Limits) -> dict[str, Any]:
    output = _output_tokens(limits)
    return {
        "vision": bool(limits.vision),  # as /v1/models has it
        "maxInputTokens": limits.context_tokens - output,
        "maxOutputTokens": output,
    }


def warnings(limits: Limits) -> tuple[str, ...]:
    """Return what a person should know of *limits* before chatting in VS Code."""
    room = limits.context_tokens - _output_tokens(limits)
    if room < _PREAMBLE_TOKENS:
        return (
            f"VS Code may send {room} tokens: below {_PREAMBLE_TOKENS} it drops its "
            "own instructions without a word, and Agent mode fails; use Ask mode, or a "
            f"context of {_ADVISED_TOKENS} and more ([engine] context_tokens)",
        )
    if limits.context_tokens < _ADVISED_TOKENS:
        return (
            f"the context of {limits.context_tokens} tokens is little for VS Code, "
            f"whose Agent mode opens with {_PREAMBLE_TOKENS}; {_ADVISED_TOKENS} and "
            "more are better ([engine] context_tokens)",
        )
    return ()


def merge(text: str, group: Mapping[str, Any], *, where: str = FILE_NAME) -> str:
    """
    Return *text*, an existing file's, with *group* in place of the one of its name.

    Every other byte is kept, comments too. Of the old group stay the settings that VS
    Code wrote there and its reference to a stored key. Raises `ConfigError` naming
    *where* and the line for a text that can't be changed safely.
    """
    if not text.strip(" \t\r\n\ufeff"):
        return json.dumps([group], indent="\t", ensure_ascii=False) + "\n"
    array = _array(text, where)
    mine = [e for e in array.elements if _name(e) == group["name"]]
    if len(mine) > 1:
        lines = ", ".join(str(line_of(text, e.start)) for e in mine)
        raise ConfigError(
            f"{where}: several groups are called {group['name']} (lines {lines}): "
            "remove all but one, or choose another --name"
        )
    if not mine:
        return appended(text, array, group)
    whole = {**group, **_kept(mine[0].value, group)}
    return text if whole == mine[0].value else replaced(text, mine[0], whole)


def masked(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return *group* as it may be shown on a screen: without the key."""
    models = [dict(model) for model in group["models"]]
    for model in models:
        if "requestHeaders" in model:
            model["requestHeaders"] = {"Authorization": f"Bearer {MASK}"}
    return {**group, "models": models}


@dataclass(frozen=True)
class Editor:
    """One product and where it keeps its user's settings."""

    name: str
    user: PurePath  # its User folder

    @property
    def file(self) -> PurePath:
        """The default profile's file."""
        return self.user / FILE_NAME

    def of_profile(self, profile: str) -> PurePath:
        """Return the file of another profile, by its id."""
        return self.user / "profiles" / profile / FILE_NAME


_PRODUCTS = (
    ("VS Code", "Code"),
    ("VS Code Insiders", "Code - Insiders"),
    ("VSCodium", "VSCodium"),
)


def paths(env: Mapping[str, str], platform: str, home: str) -> tuple[Editor, ...]:
    """
    Return where each editor looks on *platform* (as `sys.platform`), there or not.

    The likeliest first. Nothing is looked up on this machine, so that one may ask for
    another's.
    """
    if platform == "win32":
        windows = PureWindowsPath(home)
        base: PurePath = (
            PureWindowsPath(env["APPDATA"])
            if env.get("APPDATA")
            else windows / "AppData" / "Roaming"
        )
    elif platform == "darwin":
        base = PurePosixPath(home) / "Library" / "Application Support"
    else:
        base = _xdg(env, "XDG_CONFIG_HOME", PurePosixPath(home) / ".config")
    found = [Editor(name, base / folder / "User") for name, folder in _PRODUCTS]
    if platform != "win32":
        # VS Code in a browser, served from this machine: its settings are here.
        share = PurePosixPath(home) / ".local" / "share"
        served = _xdg(env, "XDG_DATA_HOME", share) / "code-server" / "User"
        found.append(Editor("code-server", served))
    return tuple(found)


def _output_tokens(limits: Limits) -> int:
    # Where the answer's limit leaves nothing of a small context, half of it is asked.
    return min(limits.output_tokens, limits.context_tokens // 2)


def _array(text: str, where: str) -> Element:
    try:
        array = parse(text)
    except JsoncError as exc:
        raise ConfigError(f"{where}: {exc}; nothing was written") from None
    if not isinstance(array.value, list):
        raise ConfigError(
            f"{where}: line {line_of(text, array.start)}: expected an array of groups; "
            "nothing was written"
        )
    return array


def _name(element: Element) -> object:
    return element.value.get("name") if isinstance(element.value, dict) else None


def _kept(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return what VS Code added to *old*; a key in plain text is of no use to it."""
    kept = {name: value for name, value in old.items() if name not in new}
    if not str(kept.get("apiKey", _SECRET)).startswith(_SECRET):
        del kept["apiKey"]
    return kept


def _xdg(env: Mapping[str, str], name: str, default: PurePosixPath) -> PurePosixPath:
    # The XDG specification: a relative path here is to be ignored.
    chosen = env.get(name, "")
    return PurePosixPath(chosen) if chosen.startswith("/") else default
