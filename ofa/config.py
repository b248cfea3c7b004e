"""
The configuration: site.toml, OFA_* variables and flags become one frozen `Config`.

A flag beats the environment, which beats the file, which beats the defaults of
`config_schema`. Whatever can't be used stops the start and says where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from .config_file import SiteFile, find_site_file, read_site_file
from .config_schema import (
    NAMED,
    PATHS,
    SECTIONS,
    ApiSection,
    EngineSection,
    ModeChange,
    ModelChange,
    ModulesSection,
    RagSection,
    Row,
    SchedulerSection,
    ServerSection,
    SiteSection,
    ToolsSection,
    rows,
    rows_of,
)
from .config_values import (
    accept,
    accept_text,
    check_features,
    check_hosts,
    check_origins,
    check_url,
    check_urls,
    choices,
    nearest,
)
from .errors import ConfigError

DEFAULT = "default"

# What a type and a range can't say.
_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "engine.upstream_features": check_features,
    "engine.upstream_url": check_url,
    "engine.upstream_urls": check_urls,
    "server.allowed_hosts": check_hosts,
    "server.allowed_origins": check_origins,
}
# What a kind of engine can't do without.
_NEEDED = {"upstream": ("upstream_url", "upstream_urls"), "scripted": ("script",)}
# Of the form OFA_<SECTION>_…, but no key.
_NO_KEYS = frozenset({"OFA_SITE_TOML"})


@dataclass(frozen=True)
class Config:
    """Everything that was configured, complete and checked."""

    site: SiteSection = SiteSection()
    server: ServerSection = ServerSection()
    api: ApiSection = ApiSection()
    engine: EngineSection = EngineSection()
    rag: RagSection = RagSection()
    tools: ToolsSection = ToolsSection()
    modes: Mapping[str, ModeChange] = field(default_factory=dict)
    models: Mapping[str, ModelChange] = field(default_factory=dict)
    scheduler: SchedulerSection = SchedulerSection()
    modules: ModulesSection = ModulesSection()
    path: Path | None = None  # the file that was read
    origins: Mapping[str, str] = field(default_factory=dict)  # else "default"
    warnings: tuple[str, ...] = ()  # one line each, for people

    def values(self) -> Iterator[tuple[str, Any, str]]:
        """Yield dotted key, value and origin of all there is, as `config show` does."""
        for name in rows():
            section, leaf = name.split(".")
            value = getattr(getattr(self, section), leaf)
            yield name, value, self.origins.get(name, DEFAULT)
        for section, shape in NAMED.items():
            for name, change in getattr(self, section).items():
                for row in rows_of(f"{section}.{name}", shape):
                    if row.name in self.origins:
                        leaf = row.name.rpartition(".")[2]
                        yield row.name, getattr(change, leaf), self.origins[row.name]


@dataclass
class _Chosen:
    """Values by dotted key, and where each came from; later ones replace earlier."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, row: Row, value: Any, origin: str) -> None:  # noqa: ANN401 - any type
        self.values[row.name] = value
        self.origins[row.name] = origin


def load(
    path: str | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> Config:
    """
    Return the configuration of this start. Raises `ConfigError`, naming the place.

    *overrides* are flags by dotted key (``server.port``); None is a flag not given.
    """
    chosen = _Chosen()
    found = find_site_file(path, env)
    site_file = read_site_file(found) if found else None
    named = _take_file(site_file, chosen) if site_file else {}
    _take_env(env, chosen)
    _take_flags(overrides, chosen)
    _expand_home(chosen, env)
    _check_needs(chosen)
    _check_models(named)
    return Config(
        **{section: _section(section, chosen) for section in SECTIONS},
        modes=MappingProxyType(named.get("modes", {})),
        models=MappingProxyType(named.get("models", {})),
        path=found,
        origins=MappingProxyType(chosen.origins),
        warnings=tuple(_strange_variables(env)),
    )


def _section(section: str, chosen: _Chosen) -> Any:  # noqa: ANN401 - its own dataclass
    named = rows_of(section, SECTIONS[section])
    given = {
        row.name.rpartition(".")[2]: chosen.values[row.name]
        for row in named
        if row.name in chosen.values
    }
    return SECTIONS[section](**given)


def _take_file(site_file: SiteFile, chosen: _Chosen) -> dict[str, dict[str, Any]]:
    """Take the file's values; return the tables that carry names, by section."""
    named: dict[str, dict[str, Any]] = {}
    for section, table in site_file.tables.items():
        if section not in SECTIONS and section not in NAMED:
            _refuse(
                site_file.where(section),
                f"{section}: no such section",
                nearest(section, (*SECTIONS, *NAMED)),
            )
        if not isinstance(table, dict):
            _refuse(
                site_file.where(section), f"{section}: expected [{section}], a table"
            )
        if section in NAMED:
            named[section] = _take_named(site_file, section, table, chosen)
        else:
            _take_table(site_file, (section,), table, chosen)
    return named


def _take_named(
    site_file: SiteFile, section: str, tables: Mapping[str, Any], chosen: _Chosen
) -> dict[str, Any]:
    made = {}
    for name, table in tables.items():
        where = site_file.where(section, name)
        if not isinstance(table, dict):
            _refuse(where, f"{section}.{name}: expected [{section}.{name}], a table")
        given = _take_table(site_file, (section, name), table, chosen)
        made[name] = NAMED[section](**given, where=where)
    return made


def _take_table(
    site_file: SiteFile, at: tuple[str, ...], table: Mapping[str, Any], chosen: _Chosen
) -> dict[str, Any]:
    shape = NAMED.get(at[0]) or SECTIONS[at[0]]
    known = {row.name: row for row in rows_of(".".join(at), shape)}
    given = {}
    for leaf, value in table.items():
        name = ".".join((*at, leaf))
        where = site_file.where(*at, leaf)
        if name not in known:
            _refuse(where, f"{name}: unknown key", _nearest_key(name, leaf, known))
        given[leaf] = _checked(accept, known[name], value, where)
        chosen.put(known[name], given[leaf], where)
    return given


def _nearest_key(name: str, leaf: str, known: Mapping[str, Row]) -> str:
    everywhere = rows()
    elsewhere = [other for other in everywhere if other.endswith(f".{leaf}")]
    return (
        nearest(name, known)
        or (f"; did you mean {elsewhere[0]}?" if elsewhere else "")
        or nearest(name, everywhere)
    )


def _take_env(env: Mapping[str, str], chosen: _Chosen) -> None:
    for row in rows().values():
        # Empty is "not set": launchers export every name, also without a value.
        variable = next((one for one in row.env if env.get(one)), None)
        if variable is not None:
            value = _checked(accept_text, row, env[variable], f"${variable}")
            chosen.put(row, value, f"${variable}")


def _take_flags(overrides: Mapping[str, Any], chosen: _Chosen) -> None:
    known = rows()
    for name, value in overrides.items():
        if name not in known:
            _refuse("command line", f"{name}: unknown key", nearest(name, known))
        if value is not None:
            is_text = isinstance(value, str)
            take = accept_text if is_text else accept
            taken = _checked(take, known[name], value, "command line")
            chosen.put(known[name], taken, "command line")


def _checked(
    take: Callable[[Row, Any], Any],
    row: Row,
    value: Any,  # noqa: ANN401 - a row's type is its own
    where: str,
) -> Any:  # noqa: ANN401 - likewise
    try:
        taken = take(row, value)
        if row.name in _CHECKS and taken:
            _CHECKS[row.name](taken)
    except ValueError as error:
        hint = nearest(value, choices(row.kind)) if isinstance(value, str) else ""
        _refuse(where, f"{row.name}: {error}", hint)
    return taken


def _expand_home(chosen: _Chosen, env: Mapping[str, str]) -> None:
    home = env.get("HOME", "")
    for name in PATHS & chosen.values.keys():
        if chosen.values[name].startswith("~/") and home:
            chosen.values[name] = str(Path(home, chosen.values[name][2:]))


def _check_needs(chosen: _Chosen) -> None:
    kind = chosen.values.get("engine.kind")
    needed = [f"engine.{leaf}" for leaf in _NEEDED.get(kind or "", ())]
    if needed and not any(chosen.values.get(name) for name in needed):
        where = chosen.origins["engine.kind"]
        _refuse(where, f'{needed[0]}: needed where engine.kind is "{kind}"')


def _check_models(named: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a model without a path, and a mode whose model is not there."""
    models = named.get("models", {})
    for name, model in models.items():
        if not model.path:
            _refuse(model.where, f"models.{name}.path: needed, the model's folder")
    for name, mode in named.get("modes", {}).items():
        if mode.model and mode.model not in models:
            what = f"modes.{name}.model: there is no [models.{mode.model}]"
            _refuse(mode.where, what, nearest(mode.model, models))


def _strange_variables(env: Mapping[str, str]) -> Iterator[str]:
    known = {variable for row in rows().values() for variable in row.env} | _NO_KEYS
    prefixes = tuple(f"OFA_{section.upper()}_" for section in SECTIONS)
    for variable in sorted(env):
        if variable.startswith(prefixes) and variable not in known:
            yield f"${variable} sets nothing{nearest(variable, known)}"


def _refuse(where: str, what: str, hint: str = "") -> NoReturn:
    raise ConfigError(f"{where}: {what}{hint}")
