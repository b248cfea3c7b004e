"""Making the engine that was configured; each kind is imported only when it is used."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from .auth import KeyFile
from .config_schema import EngineSection
from .engine.base import Engine
from .progress import Bars

log = logging.getLogger("ofa.serve")


def make_engine(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    """Return the engine of the configured kind; raises `ConfigError` if it can't be."""
    makers = {"mlx": _mlx, "upstream": _upstream, "scripted": _scripted}
    return makers[engine.kind](engine, env)


def _scripted(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    from .engine.scripted import ScriptedEngine

    return ScriptedEngine.load(Path(engine.script), stall_s=engine.stall_s)


def _upstream(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    from .engine.upstream import UpstreamEngine
    from .engine.upstream_server import UpstreamSettings

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


def _mlx(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    from .engine.mlx.blas import load_blas
    from .engine.mlx.starter import cache_folder, from_gguf, starter_model

    log.info("%s", load_blas())  # first: nothing may import mlx before it
    cache = cache_folder(env)
    model, about = engine.model, ""
    if not model:
        with Bars() as bars:
            taken = starter_model(cache, progress=bars.show)
        log.info("no model is named, so the starter answers: %s", taken)
        model, about = taken.model, f"{taken.title}, {taken.licence}"
    elif model.endswith(".gguf"):
        with Bars() as bars:
            taken = from_gguf(Path(model).expanduser(), cache, progress=bars.show)
        model, about = taken.model, f"from {taken.source}"
    return _make_mlx(engine, model, about)


def _make_mlx(engine: EngineSection, model: str, about: str) -> Engine:
    from .engine.mlx.engine import MlxEngine, Settings

    settings = Settings(
        context_tokens=engine.context_tokens,
        output_tokens=engine.output_tokens,
        rows=engine.rows,
        prefill_step=engine.prefill_step,
        load_wait_s=engine.load_wait_s,
        stall_s=engine.stall_s,
    )
    return MlxEngine(model, settings, description=about)
