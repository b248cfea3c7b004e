"""
Other clients' settings for this server: one row each, a pure function of facts.

Each shape was tried with the real client (docs/decisions.md says which version). The
key stands in none of them: they name its file or a variable where the client can.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .byok import Listed
from .engine.base import Limits
from .errors import ConfigError

KEY_VARIABLE = "OFA_API_KEY"
_GATEWAY = "http://127.0.0.1:4000"


@dataclass(frozen=True)
class Facts:
    """What every client has to be told."""

    base_url: str  # ends in /v1
    models: Sequence[Listed]
    limits: Limits
    key_file: str = ""  # empty: no key is asked for

    @property
    def model(self) -> str:
        """The id of the model to start with: the one for code, where there is one."""
        ids = [model.id for model in self.models]
        return next((id_ for id_ in ids if id_.endswith("-code")), ids[0])

    @property
    def input_tokens(self) -> int:
        """What is left of the context beside the longest answer."""
        return max(1, self.limits.context_tokens - self.limits.output_tokens)


@dataclass(frozen=True)
class File:
    """A settings file as the client reads it."""

    path: str
    content: str


@dataclass(frozen=True)
class Setup:
    """All that makes one client use this server."""

    files: tuple[File, ...]
    commands: tuple[str, ...]
    notes: tuple[str, ...] = ()
    lacks: str = ""  # what the client needs and this server has not


def names() -> tuple[str, ...]:
    """Return the clients that are known."""
    return tuple(_CLIENTS)


def setup(client: str, facts: Facts) -> Setup:
    """Return the settings of *client*. Raises `ConfigError` for an unknown one."""
    if client not in _CLIENTS:
        raise ConfigError(f"no such client; known are {', '.join(_CLIENTS)}")
    return _CLIENTS[client](facts)


def _opencode(facts: Facts) -> Setup:
    options: dict[str, Any] = {"baseURL": facts.base_url}
    if facts.key_file:
        options["apiKey"] = f"{{file:{facts.key_file}}}"
    limit = {
        "context": facts.limits.context_tokens,
        "output": facts.limits.output_tokens,
    }
    able = {"tool_call": facts.limits.tools, "attachment": facts.limits.vision}
    models = {m.id: {"name": m.title, "limit": limit, **able} for m in facts.models}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "OFA",
        "options": options,
        "models": models,
    }
    content = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"ofa": provider},
        "model": f"ofa/{facts.model}",
        # Titles of chats are asked of a small model, which would else be elsewhere.
        "small_model": f"ofa/{facts.model}",
    }
    return Setup(
        (File("~/.config/opencode/opencode.json", _json(content)),),
        (f"opencode run -m ofa/{facts.model} 'your question'",),
        ("merge it into an existing opencode.json",),
    )


def _pi(facts: Facts) -> Setup:
    models = [
        {
            "id": model.id,
            "name": model.title,
            "reasoning": False,
            "input": ["text", "image"] if facts.limits.vision else ["text"],
            "contextWindow": facts.limits.context_tokens,
            "maxTokens": facts.limits.output_tokens,
        }
        for model in facts.models
    ]
    # It wants some key in any case; one after ! is a command that prints it.
    key = f"!cat {shlex.quote(facts.key_file)}" if facts.key_file else "none"
    provider = {
        "baseUrl": facts.base_url,
        "api": "openai-completions",
        "apiKey": key,
        "models": models,
    }
    return Setup(
        (File("~/.pi/agent/models.json", _json({"providers": {"ofa": provider}})),),
        (f"pi --provider ofa --model {facts.model} -p 'your question'",),
        ("merge it into an existing models.json",),
    )


def _continue(facts: Facts) -> Setup:
    lines = ["name: OFA", "version: 0.0.1", "schema: v1", "models:"]
    for model in facts.models:
        lines += [
            f"  - name: {_quoted(model.title)}",
            "    provider: openai",
            f"    model: {model.id}",
            f"    apiBase: {facts.base_url}",
            *_lines(facts, f"    apiKey: ${{{{ secrets.{KEY_VARIABLE} }}}}"),
            "    roles: [chat, edit, apply]",
            f"    capabilities: [{', '.join(_continue_able(facts.limits))}]",
            "    defaultCompletionOptions:",
            f"      contextLength: {facts.limits.context_tokens}",
            f"      maxTokens: {facts.limits.output_tokens}",
        ]
    keep = (
        f"(umask 077; printf '{KEY_VARIABLE}=%s\\n' {_key(facts)} > ~/.continue/.env)"
    )
    return Setup(
        (File("~/.continue/config.yaml", _text(lines)),),
        (*_lines(facts, keep), "cn -p 'your question'"),
        (
            "merge the models into an existing config.yaml",
            *_lines(facts, "that first command replaces an existing ~/.continue/.env"),
        ),
    )


def _continue_able(limits: Limits) -> Iterable[str]:
    if limits.tools:
        yield "tool_use"
    if limits.vision:
        yield "image_input"


def _aider(facts: Facts) -> Setup:
    settings = [
        f"openai-api-base: {facts.base_url}",
        f"model: openai/{facts.model}",
        "check-update: false",
    ]
    about = {
        "max_input_tokens": facts.input_tokens,
        "max_output_tokens": facts.limits.output_tokens,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
        "supports_vision": facts.limits.vision,
    }
    known = {f"openai/{model.id}": about for model in facts.models}
    key = _key(facts) if facts.key_file else "none"
    return Setup(
        (
            File("~/.aider.conf.yml", _text(settings)),
            File("~/.aider.model.metadata.json", _json(known)),
        ),
        (f"OPENAI_API_KEY={key} aider",),
        (f"another mode: aider --model openai/{facts.models[0].id}",),
    )


def _llm(facts: Facts) -> Setup:
    lines: list[str] = []
    for model in facts.models:
        lines += [
            f"- model_id: {model.id}",
            f"  model_name: {model.id}",
            f"  api_base: {facts.base_url}",
            *_lines(facts, "  api_key_name: ofa"),
        ]
        lines += ["  vision: true"] if facts.limits.vision else []
        lines += ["  supports_tools: true"] if facts.limits.tools else []
    store = "llm keys set ofa   # asks for it: paste what `ofa key show` prints"
    return Setup(
        (
            File(
                "~/.config/io.datasette.llm/extra-openai-models.yaml",
                _text(lines),
            ),
        ),
        (*_lines(facts, store), f"llm -m {facts.model} 'your question'"),
        (
            "on macOS the folder is ~/Library/Application Support/io.datasette.llm; "
            "`llm logs path` names a file in it",
        ),
    )


def _claude_code(facts: Facts) -> Setup:
    token = _key(facts) if facts.key_file else "none"
    return _through_gateway(
        facts,
        "Claude Code speaks Anthropic's messages (POST /v1/messages), and this version "
        "of ofa serves chat completions only: it can't connect directly",
        f"ANTHROPIC_BASE_URL={_GATEWAY} ANTHROPIC_AUTH_TOKEN={token} "
        f"claude --model {facts.model}",
    )


def _codex(facts: Facts) -> Setup:
    settings = [
        f"model = {_quoted(facts.model)}",
        'model_provider = "ofa"',
        f"model_context_window = {facts.limits.context_tokens}",
        "",
        "[model_providers.ofa]",
        'name = "OFA"',
        f'base_url = "{_GATEWAY}/v1"',
        'wire_api = "responses"',
        *_lines(facts, f'env_key = "{KEY_VARIABLE}"'),
    ]
    return _through_gateway(
        facts,
        "Codex speaks OpenAI's responses (POST /v1/responses), and this version of ofa "
        "serves chat completions only: it can't connect directly",
        f"{_with_key(facts)}codex",
        File("~/.codex/config.toml", _text(settings)),
    )


def _through_gateway(facts: Facts, lacks: str, command: str, *files: File) -> Setup:
    """
    Return how LiteLLM's proxy translates for a client of another dialect.

    Its provider is lm_studio: for those of its that serve the other dialects too
    (openai, hosted_vllm) it passes them on untranslated. It asks for our own key, as
    it is in reach of all users of its machine.
    """
    lines = ["model_list:"]
    for model in facts.models:
        lines += [
            f"  - model_name: {model.id}",
            "    litellm_params:",
            f"      model: lm_studio/{model.id}",
            f"      api_base: {facts.base_url}",
            "      api_key: "
            + (f"os.environ/{KEY_VARIABLE}" if facts.key_file else "none"),
            "      additional_drop_params: [web_search_options]",
        ]
    lines += ["litellm_settings:", "  drop_params: true"]
    lines += _lines(
        facts, "general_settings:", f"  master_key: os.environ/{KEY_VARIABLE}"
    )
    gateway = "litellm --config litellm.yaml --host 127.0.0.1 --port 4000"
    return Setup(
        (File("litellm.yaml", _text(lines)), *files),
        (
            "pip install 'litellm[proxy]==1.82.6'",
            f"LITELLM_LOCAL_MODEL_COST_MAP=True {_with_key(facts)}{gateway}",
            command,
        ),
        ("the gateway is LiteLLM's proxy; leave it running in a terminal of its own",),
        lacks,
    )


def _with_key(facts: Facts) -> str:
    return f"{KEY_VARIABLE}={_key(facts)} " if facts.key_file else ""


def _key(facts: Facts) -> str:
    """Return the shell's words that put the key into a variable, not into argv."""
    return f'"$(cat {shlex.quote(facts.key_file)})"'


def _lines(facts: Facts, *lines: str) -> tuple[str, ...]:
    """Return *lines* where a key is asked for."""
    return lines if facts.key_file else ()


def _quoted(text: str) -> str:
    # JSON's strings are YAML's too.
    return json.dumps(text, ensure_ascii=False)


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


_CLIENTS: dict[str, Callable[[Facts], Setup]] = {
    "opencode": _opencode,
    "pi": _pi,
    "continue": _continue,
    "aider": _aider,
    "claude-code": _claude_code,
    "codex": _codex,
    "llm": _llm,
}
