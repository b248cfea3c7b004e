"""Making the engine that was configured; each kind is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .config_schema import EngineSection
from .engine.base import Engine
from .errors import ConfigError


def make_engine(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    """Return the engine of the configured kind; raises `ConfigError` if it can't be."""
    makers = {"mlx": _mlx, "upstream": _upstream, "scripted": _scripted}
    return makers[engine.kind](engine, env)


def _scripted(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    from .engine.scripted import ScriptedEngine

    return ScriptedEngine.load(Path(engine.script))


def _upstream(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    raise ConfigError("engine.kind: upstream is not built yet")


def _mlx(engine: EngineSection, env: Mapping[str, str]) -> Engine:
    raise ConfigError("engine.kind: mlx is not built yet")
