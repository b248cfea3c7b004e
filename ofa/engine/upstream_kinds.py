"""
What kind of server an upstream is, as far as it tells, and what such a kind can do.

A kind is a row: what it honours of a request, what it calls things, where it tells
more of itself than in its model list. Nothing here asks anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..config_schema import UPSTREAM_FEATURES
from .base import Limits

# Where the upstream does not tell: what most local servers are started with.
DEFAULT_CONTEXT_TOKENS = 32768
# Ollama cuts a longer prompt off at its beginning, without a word (its FAQ, "How can I
# specify the context window size?"): rather too little than no instructions.
OLLAMA_CONTEXT_TOKENS = 4096

MOST_CHOICES = 8  # as many as a slip of `n` may cost; vLLM itself takes thousands
MOST_LOGPROBS = 20  # OpenAI's limit, and vLLM's without --max-logprobs

# As much of it as a server has told: the context in tokens, whether it reads images.
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of server; *features* are names of `[engine] upstream_features`."""

    name: str
    features: frozenset[str]
    renamed: Mapping[str, str] = field(default_factory=dict)  # our field -> its own
    # How thinking is switched: a variable of the chat template, an effort of "none".
    thinking: Literal["template", "effort", ""] = ""
    json_object: bool = True  # response_format json_object is known, not schemas only
    least_logprobs: int = 0  # that must be asked for to be told any
    top_k_off: int = 0  # what says that there is no limit of this kind
    unknown_context_tokens: int = DEFAULT_CONTEXT_TOKENS
    more_at: str = ""  # a path beside /v1 that tells more of a model
    more: Callable[[Any, str], Facts] = lambda told, model: {}


@dataclass(frozen=True)
class Served:
    """What an upstream serves, as it was last seen."""

    model: str  # the one that is asked; empty: nothing was seen yet
    kind: Kind
    all: frozenset[str] = frozenset()  # the names of all models
    context_tokens: int = 0  # 0: not told
    output_tokens: int = 0  # 0: not told
    vision: bool | None = None  # None: not told
    tools: bool | None = None  # None: not told


def _running_in_ollama(told: Any, model: str) -> Facts:  # noqa: ANN401 - foreign JSON
    """Read GET /api/ps: the context that a loaded model has been given."""
    for row in _rows(told, "models"):
        if model in (row.get("name"), row.get("model")):
            return {"context_tokens": row.get("context_length")}
    return {}


def _listed_in_lm_studio(told: Any, model: str) -> Facts:  # noqa: ANN401 - likewise
    """Read GET /api/v0/models: the context as loaded, and whether it has eyes."""
    for row in _rows(told, "data"):
        if row.get("id") == model:
            loaded = row.get("loaded_context_length")
            return {
                "context_tokens": loaded or row.get("max_context_length"),
                "vision": row.get("type") == "vlm",
            }
    return {}


def _props_of_llama_server(told: Any, model: str) -> Facts:  # noqa: ANN401 - likewise
    """Read GET /props: the context of one slot, and the modalities."""
    if not isinstance(told, dict):
        return {}
    settings, senses = told.get("default_generation_settings"), told.get("modalities")
    return {
        "context_tokens": settings.get("n_ctx") if isinstance(settings, dict) else None,
        "vision": senses.get("vision") if isinstance(senses, dict) else None,
    }


_ALL = frozenset(UPSTREAM_FEATURES)
_OPENAIS_OWN = _ALL - {"top_k", "min_p", "repetition_penalty"}

# fmt: off
# docs.vllm.ai, "OpenAI-Compatible Server", Chat API and its extra parameters. Tools
# need --enable-auto-tool-choice there, and are refused by vLLM itself without it.
VLLM = Kind("vLLM", _ALL, thinking="template", top_k_off=-1)
# docs.ollama.com/api/openai-compatibility: the list for /v1/chat/completions leaves
# out n, tool_choice and logit_bias, and has no top_k, min_p or repeat_penalty.
OLLAMA = Kind(
    "Ollama",
    frozenset({"tools", "vision", "response_format", "logprobs", "seed"}),
    thinking="effort",
    unknown_context_tokens=OLLAMA_CONTEXT_TOKENS,
    more_at="/api/ps", more=_running_in_ollama,
)
# llama.cpp, tools/server/README.md. `n` was refused for long and is held to the number
# of slots since; penalties have llama.cpp's names; n_probs 0 would tell no logprobs.
LLAMA_SERVER = Kind(
    "llama-server",
    _ALL - {"n"},
    renamed={"repetition_penalty": "repeat_penalty"},
    thinking="template", least_logprobs=1,
    more_at="/props", more=_props_of_llama_server,
)
# lmstudio.ai/docs/developer/openai-compat: "Supported payload parameters", "Structured
# Output" (json_schema only), "Tool Use".
LM_STUDIO = Kind(
    "LM Studio",
    _ALL - {"n", "logprobs", "min_p"},
    renamed={"repetition_penalty": "repeat_penalty"},
    json_object=False,
    more_at="/api/v0/models", more=_listed_in_lm_studio,
)
# platform.openai.com, API reference of chat completions; unknown fields are refused.
OPENAI = Kind("OpenAI", _OPENAIS_OWN)
# Refuses by name whatever it can't do, so that nothing need be held back here.
OFA = Kind("ofa", _ALL, thinking="template")
# exo, LocalAI, mlx_lm.server, gateways: they ignore what they don't know. What changes
# the shape of an answer, so that its absence breaks the caller, isn't left to luck.
UNKNOWN = Kind("unknown", _ALL - {"n", "logprobs", "response_format"})
# fmt: on

# By `owned_by` in the model list. Ollama says a model's namespace, "library" for all
# that bear no user's name.
OWNERS: Mapping[str, Kind] = {
    "vllm": VLLM,
    "library": OLLAMA,
    "llamacpp": LLAMA_SERVER,
    "organization_owner": LM_STUDIO,
    "openai": OPENAI,
    "system": OPENAI,
    "ofa": OFA,
}
# vLLM, then ofa itself, then gateways.
_CONTEXT_NAMES = ("max_model_len", "context_window", "context_length")


def kind_of(rows: Sequence[Mapping[str, Any]], host: str) -> Kind:
    """Return the kind of the server at *host* whose model list has *rows*."""
    if host == "api.openai.com":
        return OPENAI
    owners = [str(row.get("owned_by")) for row in rows]
    return next((OWNERS[one] for one in owners if one in OWNERS), UNKNOWN)


def served(kind: Kind, row: Mapping[str, Any], listed: Mapping[str, Any]) -> Served:
    """Return what the *row* of a model says, in a list that is *listed* as a whole."""
    names = frozenset(str(other.get("id")) for other in _rows(listed, "data"))
    meta = row.get("meta")
    sizes = [row.get(name) for name in _CONTEXT_NAMES]
    sizes.append(meta.get("n_ctx") if isinstance(meta, dict) else None)
    able = _words(row.get("capabilities"))
    if kind is LLAMA_SERVER:
        # Beside OpenAI's list stands one in Ollama's form, with the capabilities.
        twins = [r for r in _rows(listed, "models") if r.get("name") == row.get("id")]
        able = _words(twins[0].get("capabilities")) if twins else frozenset()
    return Served(
        model=str(row.get("id")),
        kind=kind,
        all=names,
        context_tokens=next(filter(None, map(_size, sizes)), 0),
        output_tokens=_size(row.get("max_output_tokens")),
        vision=bool(able & {"image", "vision", "multimodal"}) if able else None,
        tools="tools" in able if able and kind is OFA else None,
    )


def with_more(known: Served, told: Any) -> Served:  # noqa: ANN401 - foreign JSON
    """Return *known* with what its kind's other page has *told*, where it knew less."""
    facts = known.kind.more(told, known.model)
    vision = facts.get("vision")
    return replace(
        known,
        context_tokens=known.context_tokens or _size(facts.get("context_tokens")),
        vision=vision if isinstance(vision, bool) else known.vision,
    )


def features_of(known: Served, chosen: Sequence[str]) -> frozenset[str]:
    """
    Return what may be asked of *known*: what a site has *chosen*, and with ``auto``
    what its kind can do.
    """
    own = known.kind.features if "auto" in chosen else frozenset()
    if known.tools is False:
        own -= {"tools", "tool_choice"}
    if known.vision is False:
        own -= {"vision"}
    return own | (frozenset(chosen) - {"auto"})


def vision_of(known: Served, chosen: Sequence[str]) -> bool | None:
    """Return whether images are read; None where nobody has said so."""
    if "vision" in chosen:
        return True
    return known.vision if "vision" in features_of(known, chosen) else False


def limits_of(
    known: Served, chosen: Sequence[str], *, context: int, output: int, where: str
) -> Limits:
    """
    Return the limits of *known*, of which a site has *chosen* features.

    *context* is what the site says of it, 0 for nothing; *output* the most that an
    answer may have; *where* it is, for people.
    """
    able = features_of(known, chosen)
    tokens = context or known.context_tokens or known.kind.unknown_context_tokens
    kind = "" if known.kind is UNKNOWN else f" ({known.kind.name})"
    return Limits(
        context_tokens=tokens,
        output_tokens=min(output, known.output_tokens or output, tokens),
        tools="tools" in able,
        vision=vision_of(known, chosen),
        structured="response_format" in able,
        choices=MOST_CHOICES if "n" in able else 1,
        logprobs=MOST_LOGPROBS if "logprobs" in able else None,
        description=f"{known.model or 'its model'} at {where}{kind}",
    )


def _rows(told: object, name: str) -> list[Mapping[str, Any]]:
    listed = told.get(name) if isinstance(told, dict) else None
    return (
        [r for r in listed if isinstance(r, dict)] if isinstance(listed, list) else []
    )


def _words(told: object) -> frozenset[str]:
    return frozenset(map(str, told)) if isinstance(told, list) else frozenset()


def _size(told: object) -> int:
    """Return *told* as a number of tokens, 0 if it is none."""
    right = isinstance(told, int) and not isinstance(told, bool) and told > 0
    return int(told) if right and isinstance(told, int) else 0
