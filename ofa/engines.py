"""Making the engine that was configured; each kind is imported only when it is used."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from .auth import KeyFile
from .config import Config
from .engine.base import Engine
from .errors import ConfigError
from .progress import Bars
from .state import StateFolder

log = logging.getLogger("ofa.serve")


def make_engine(config: Config, state: StateFolder, env: Mapping[str, str]) -> Engine:
    """Return the engine of the configured kind; raises `ConfigError` if it can't be."""
    if config.models and config.engine.kind != "mlx":
        name, model = next(iter(config.models.items()))
        raise ConfigError(
            f'{model.where}: models.{name}: only [engine] kind = "mlx" has models of '
            "its own; an upstream's is named by upstream_model"
        )
    makers = {"mlx": _mlx, "upstream": _upstream, "scripted": _scripted}
    return makers[config.engine.kind](config, state, env)


def _scripted(config: Config, state: StateFolder, env: Mapping[str, str]) -> Engine:
    from .engine.scripted import ScriptedEngine

    engine = config.engine
    return ScriptedEngine.load(Path(engine.script), stall_s=engine.stall_s)


def _upstream(config: Config, state: StateFolder, env: Mapping[str, str]) -> Engine:
    from .engine.upstream import UpstreamEngine
    from .engine.upstream_server import UpstreamSettings

    engine = config.engine
    settings = UpstreamSettings(
        key=_upstream_key(engine.upstream_key_file),
        model=engine.upstream_model,
        context_tokens=engine.context_tokens,
        output_tokens=engine.output_tokens,
        silence_s=engine.upstream_silence_s,
        features=engine.upstream_features,
        running=engine.upstream_running,
    )
    one = (engine.upstream_url,) if engine.upstream_url else ()
    return UpstreamEngine((*one, *engine.upstream_urls), settings)


def _upstream_key(path: str) -> str:
    """Return the first line of the file that holds the upstream's key; "" without."""
    if not path:
        return ""
    return KeyFile(Path(path).expanduser()).read()[0]


def _mlx(config: Config, state: StateFolder, env: Mapping[str, str]) -> Engine:
    from .engine.mlx.blas import load_blas
    from .engine.mlx.engine import MlxEngine, Named, Settings

    log.info("%s", load_blas())  # first: nothing may import mlx before it
    engine = config.engine
    path, about = _model_folder(engine.model, env)
    others = [
        Named(name, *_model_folder(other.path or "", env), other.context_tokens)
        for name, other in config.models.items()
    ]
    settings = Settings(
        context_tokens=engine.context_tokens,
        output_tokens=engine.output_tokens,
        repeated_tokens=engine.repeated_tokens,
        rows=engine.rows,
        prefill_step=engine.prefill_step,
        load_wait_s=engine.load_wait_s,
        lazy=engine.load == "first use",
        unload_s=engine.unload_s,
        stall_s=engine.stall_s,
        memory_gib=engine.memory_gib,
        prefix_memory_gib=engine.prefix_memory_gib,
        prefix_disk=state.path / "prefixes" if engine.prefix_disk else None,
        prefix_disk_gib=engine.prefix_disk_gib,
        tool_format=config.tools.format,
        constrain=config.tools.constrain,
    )
    return MlxEngine(path, settings, description=about, others=others)


def _model_folder(model: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return an MLX folder or hub id for *model*, and what to tell of its origin."""
    from .engine.mlx.starter import cache_folder, from_gguf, starter_model

    cache = cache_folder(env)
    if not model:
        with Bars() as bars:
            taken = starter_model(cache, progress=bars.show)
        log.info("no model is named, so the starter answers: %s", taken)
        return str(taken.model), f"{taken.title}, {taken.licence}"
    if model.endswith(".gguf"):
        with Bars() as bars:
            taken = from_gguf(Path(model).expanduser(), cache, progress=bars.show)
        return str(taken.model), f"from {taken.source}"
    return model, ""
