"""
Every key of site.toml: one row each, with its type, default, range and reason.

The rows are the fields of the sections' dataclasses, so that code and type checker
see the same table. Nothing here reads a file or the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

MiB = 1024 * 1024

# What a request may want that not every upstream honours.
UPSTREAM_FEATURES = (
    "tools",
    "tool_choice",
    "vision",
    "response_format",
    "n",
    "logprobs",
    "logit_bias",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
)


def key(
    default: Any,  # noqa: ANN401 - each row has a type of its own
    why: str,
    *,
    low: float | None = None,
    high: float | None = None,
    also: tuple[str, ...] = (),
) -> Any:  # noqa: ANN401 - what dataclasses.field returns, too
    """
    Describe one row: *why* is the reason for its default, in one line.

    *also* are environment variables that set it besides OFA_<SECTION>_<KEY>: the
    seed's names, and those of `ofa config shell-export`.
    """
    return field(
        default=default, metadata={"why": why, "low": low, "high": high, "also": also}
    )


@dataclass(frozen=True)
class SiteSection:
    """[site]: who runs this, for prompts and for the connection block."""

    name: str = key("this system", "fills {SITE_NAME} in prompts")
    org: str = key("the site's operator", "fills {SITE_ORG}")
    long_name: str = key("this computing system", "fills {SITE_LONG_NAME}")
    description: str = key("", "fills {SITE_DESCRIPTION}, such as its GPUs")
    login_host: str = key(
        "", "the host in the ssh line; empty: a placeholder is printed"
    )
    protected_roots: tuple[str, ...] = key(
        (), "folders that no suggested command may touch"
    )


@dataclass(frozen=True)
class ServerSection:
    """[server]: the socket, who may use it and how much at once."""

    host: str = key(
        "", 'empty: 127.0.0.1, and 0.0.0.0 inside a job, for the login node\'s "ssh -L"'
    )
    port: int = key(
        0, "0: a remembered one of your own in 40000-49999", low=0, high=65535
    )
    local_port: int = key(
        0, "the laptop's port; 0: the same number as port", low=0, high=65535
    )
    auth: bool = key(True, "false lets in everybody who reaches the port")
    key_file: str = key("", "empty: .ofa_api_key in the state folder")
    running: int = key(4, "answers written at once", low=1, high=256)
    waiting: int = key(
        16, "requests that may wait beyond those; more get 429", low=0, high=10_000
    )
    drain_s: float = key(
        15.0, "for running answers on SIGTERM; Slurm kills after 30 s", low=0, high=3600
    )
    keep_alive_s: float = key(
        10.0,
        "between comments in a silent stream; proxies cut at 60 s",
        low=0.1,
        high=300,
    )
    allowed_hosts: tuple[str, ...] = key(
        (), "Host names besides localhost, against DNS rebinding"
    )
    allowed_origins: tuple[str, ...] = key(
        (), "web pages that may call, as https://name:port; none by default"
    )
    max_body_bytes: int = key(
        32 * MiB, "a long chat with a few images", low=1024, high=1024 * MiB
    )
    quiet: bool = key(False, "true: no log line for each request")


@dataclass(frozen=True)
class ApiSection:
    """[api]: how requests are read."""

    unknown_fields: Literal["ignore", "refuse"] = key(
        "ignore", "fields nobody knows: told in x-ofa-ignored, or status 400"
    )
    client_system: Literal["auto", "replace", "append"] = key(
        "auto", "the client's system text: kept with tools or JSON, never, always"
    )
    default_max_tokens: int = key(
        0,
        "of an answer whose request names no limit; 0: all the engine gives",
        low=0,
        high=10_000_000,
    )


@dataclass(frozen=True)
class EngineSection:
    """[engine]: what produces the tokens."""

    kind: Literal["mlx", "upstream", "scripted"] = key(
        "mlx", "mlx in this process, another server, or a script for tests"
    )
    model: str = key(
        "",
        "an MLX folder, a GGUF file or a hub id; empty: the starter",
        also=("OFA_MODEL",),
    )
    context_tokens: int = key(
        0, "0: the model's own", low=0, high=10_000_000, also=("OFA_NUM_CTX",)
    )
    output_tokens: int = key(
        4096,
        "the most one answer may have",
        low=1,
        high=10_000_000,
        also=("OFA_NUM_PREDICT",),
    )
    repeated_tokens: int = key(
        1024, "of one piece over and over end an answer; 0: none do", low=0, high=10**7
    )
    temperature: float | None = key(
        None, "unset: each mode's own", low=0, high=2, also=("OFA_TEMPERATURE",)
    )
    top_p: float | None = key(
        None, "unset: each mode's own", low=0.000001, high=1, also=("OFA_TOP_P",)
    )
    top_k: int | None = key(
        None, "unset: each mode's own", low=1, high=1_000_000, also=("OFA_TOP_K",)
    )
    rows: int = key(4, "answers decoded together in one batch", low=1, high=256)
    prefill_step: int = key(
        512, "prompt tokens read before other answers go on", low=1, high=65536
    )
    memory_gib: float = key(
        0.0,
        "for answers and kept prompts, no more than is free; 0: most of that",
        low=0,
        high=100_000,
    )
    prefix_memory_gib: float | None = key(
        None,
        "of it, for kept beginnings of prompts; unset: a quarter; 0: none are kept",
        low=0,
        high=100_000,
    )
    prefix_disk: bool = key(
        False, "true: kept in the state folder too; chats can be read out of them"
    )
    prefix_disk_gib: float = key(
        10.0, "the most they take there", low=0.01, high=100_000
    )
    load: Literal["start", "first use"] = key(
        "start", "when the model is loaded; the first question waits for it or not"
    )
    unload_s: float = key(
        0.0, "without a request until it is unloaded; 0: never", low=0, high=1_000_000
    )
    load_wait_s: float = key(
        240.0,
        "a request waits for loading; VS Code gives up at 300 s",
        low=0,
        high=3600,
    )
    stall_s: float = key(
        60.0,
        "a step that lasts longer hangs, and the server's worker starts again",
        low=1,
        high=3600,
    )
    upstream_url: str = key("", 'for kind = "upstream": http://host:port/v1')
    upstream_urls: tuple[str, ...] = key(
        (), "more of them, all serving the same; chats stay where they are cached"
    )
    upstream_key_file: str = key("", "holds the key for them, never written here")
    upstream_model: str = key("", "its model's name; empty: the first it lists")
    upstream_silence_s: float = key(
        600.0,
        "without a byte from it until 504: a long prefill is silent",
        low=1,
        high=86_400,
    )
    upstream_running: int = key(
        4,
        "answers of one upstream at once, while others have room",
        low=1,
        high=10_000,
    )
    upstream_features: tuple[str, ...] = key(
        ("auto",), "what may be asked of it; auto: what its kind is known to do"
    )
    script: str = key("", 'for kind = "scripted": a file of events')


@dataclass(frozen=True)
class ToolsSection:
    """[tools]: whether models may call the client's tools."""

    enabled: bool | Literal["auto"] = key(
        "auto", "off for more of them than fit the context or are read in a minute"
    )
    format: Literal["auto", "gemma4", "functiongemma", "hermes", "generic"] = key(
        "auto", "how models are told of them; auto: the one a model was trained on"
    )
    schema: Literal["faithful", "strict"] = key(
        "faithful", "strict: schemas that a model can't be told exactly are refused"
    )
    constrain: bool = key(
        True, "false: calls are checked and mended, but not held to their schema"
    )


@dataclass(frozen=True)
class RagSection:
    """[rag]: what is looked up for a question."""

    enabled: bool = key(True, "false: the models answer from what they know")
    sources: str = key("", "a sources.toml of your own; empty: the packaged one")
    index: str = key(
        "", "a site's index (ofa index build --out); one's own goes before it"
    )
    embedder: str = key(
        "", "a SentenceTransformer's folder or name; empty: the packaged MiniLM"
    )
    max_passages: int = key(6, "more dilute small models' answers", low=1, high=100)
    max_tokens: int = key(2400, "of all passages together", low=1, high=1_000_000)
    floor: float | None = key(
        None, "how well a question must fit, 0 to 1; unset: 0.56", low=-1, high=2
    )
    dense_weight: float = key(
        0.4, "of meaning against words: 0 words only, 1 meaning only", low=0, high=1
    )
    private: bool = key(True, "your own indexed folders are searched as well")
    deadline_s: float = key(
        2.0, "a lookup past this is dropped; the answer goes on", low=0.01, high=300
    )
    cite: bool = key(
        False, "true: answers end with the files that were looked up for them"
    )


@dataclass(frozen=True)
class SchedulerSection:
    """[scheduler]: how `ofa` asks for a node; exported for launchers."""

    kind: Literal["none", "slurm", "pbs", "lsf"] = key(
        "none", "no scheduler is assumed"
    )
    partition: str = key(
        "",
        "queue to ask for",
        also=("OFA_PARTITION", "OFA_SCHEDULER_PARTITION_DEFAULT"),
    )
    gres: str = key("", "such as gpu:1", also=("OFA_GRES",))
    mem: str = key("", "such as 80G")
    ntasks_per_node: int = key(1, "CPU cores to ask for", low=1, high=4096)
    walltime: str = key(
        "", "such as 01:00:00", also=("OFA_WALLTIME", "OFA_SCHEDULER_WALLTIME_DEFAULT")
    )
    account_discovery: str = key("", "shell command that prints the account, one line")


@dataclass(frozen=True)
class ModulesSection:
    """[modules]: what a launcher loads; empty loads nothing."""

    cuda_rhel8: str = key("", "on RHEL 8", also=("OFA_MODULE_CUDA_RHEL8",))
    cuda_rhel9: str = key("", "on RHEL 9", also=("OFA_MODULE_CUDA_RHEL9",))


@dataclass(frozen=True)
class ModeChange:
    """
    [modes.NAME]: what a site changes of one mode, or says of a new one.

    None leaves the built-in value; a new mode needs a title at least.
    """

    title: str | None = key(None, "what the model picker shows")
    prompt: str | None = key(None, "file in prompts/; a new mode: NAME.txt")
    collections: tuple[str, ...] | None = key(None, "searched in this order")
    label: str | None = key(None, "names the fence around passages")
    lead_in: str | None = key(None, "the sentence before them")
    hidden: bool | None = key(None, "true: not listed, still answers")
    model: str | None = key(None, "NAME of a [models.NAME]; unset: [engine] model")
    temperature: float | None = key(None, "over [engine] temperature", low=0, high=2)
    top_p: float | None = key(None, "over [engine] top_p", low=0.000001, high=1)
    top_k: int | None = key(None, "over [engine] top_k", low=1, high=1_000_000)
    where: str = ""  # file and line of its table, for errors; no key


@dataclass(frozen=True)
class ModelChange:
    """
    [models.NAME]: another model for modes to choose.

    One at a time is in memory: a question for another one has it loaded first.
    """

    path: str | None = key(None, "an MLX folder, a GGUF file or a hub id")
    context_tokens: int | None = key(
        None, "unset: [engine] context_tokens", low=0, high=10_000_000
    )
    where: str = ""  # file and line of its table, for errors; no key


# Sections of which there may be any number, each under a name of the site's.
NAMED: Mapping[str, type] = {"modes": ModeChange, "models": ModelChange}

SECTIONS: Mapping[str, type] = {
    "site": SiteSection,
    "server": ServerSection,
    "api": ApiSection,
    "engine": EngineSection,
    "rag": RagSection,
    "tools": ToolsSection,
    "scheduler": SchedulerSection,
    "modules": ModulesSection,
}

# Values that name a file: "~/" in front is the user's home.
PATHS = frozenset(
    {
        "server.key_file",
        "engine.model",
        "engine.upstream_key_file",
        "engine.script",
        "rag.sources",
        "rag.index",
        "rag.embedder",
    }
)


@dataclass(frozen=True)
class Row:
    """One key, by its dotted name."""

    name: str
    kind: Any  # its annotation: int, float | None, Literal[...]
    default: Any
    why: str
    low: float | None
    high: float | None
    env: tuple[str, ...]  # variables that set it, the first wins


def rows_of(section: str, shape: type) -> tuple[Row, ...]:
    """Return the rows of one section's dataclass, in their order."""
    kinds = get_type_hints(shape)
    return tuple(
        Row(
            name=f"{section}.{one.name}",
            kind=kinds[one.name],
            default=one.default,
            why=one.metadata["why"],
            low=one.metadata["low"],
            high=one.metadata["high"],
            env=(f"OFA_{section}_{one.name}".upper(), *one.metadata["also"]),
        )
        for one in fields(shape)
        if one.metadata
    )


def rows() -> dict[str, Row]:
    """Return every row but those of modes, by dotted name."""
    return {
        row.name: row
        for section, shape in SECTIONS.items()
        for row in rows_of(section, shape)
    }
