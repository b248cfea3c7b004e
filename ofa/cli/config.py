"""`ofa config`: the configuration in force, for people, programs and launchers."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..config import Config
from .common import Subparsers, add_site_option, load_config

# What launchers of the seed evaluate: eleven names, in its order.
_EXPORTS = (
    ("OFA_SITE_NAME", "site.name"),
    ("OFA_SITE_LOGIN_HOST", "site.login_host"),
    ("OFA_SCHEDULER_KIND", "scheduler.kind"),
    ("OFA_SCHEDULER_PARTITION_DEFAULT", "scheduler.partition"),
    ("OFA_SCHEDULER_GRES", "scheduler.gres"),
    ("OFA_SCHEDULER_MEM", "scheduler.mem"),
    ("OFA_SCHEDULER_NTASKS_PER_NODE", "scheduler.ntasks_per_node"),
    ("OFA_SCHEDULER_WALLTIME_DEFAULT", "scheduler.walltime"),
    ("OFA_SCHEDULER_ACCOUNT_DISCOVERY", "scheduler.account_discovery"),
    ("OFA_MODULE_CUDA_RHEL8", "modules.cuda_rhel8"),
    ("OFA_MODULE_CUDA_RHEL9", "modules.cuda_rhel9"),
)


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa config show` and `ofa config shell-export`."""
    parser = subparsers.add_parser(
        "config", help="show the configuration and where each value comes from"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="print every key, its value and its origin")
    add_site_option(show)
    show.add_argument("--json", action="store_true", help="as one JSON object")
    show.set_defaults(func=_show)
    export = commands.add_parser(
        "shell-export", help="print lines for a launcher's `eval`"
    )
    add_site_option(export)
    export.set_defaults(func=_export)


def render_table(config: Config) -> str:
    """Return *config* as lines of TOML-like assignments with their origins."""
    lines = [f"# {config.path or 'no site.toml: built-in defaults'}"]
    lines += [
        f"{name} = {_toml(value)}  # {origin}"
        for name, value, origin in config.values()
    ]
    return "\n".join(lines)


def render_json(config: Config) -> str:
    """Return *config* as JSON: the file, and by dotted key the value and its origin."""
    values = {
        name: {"value": value, "origin": origin}
        for name, value, origin in config.values()
    }
    path = str(config.path) if config.path else None
    return json.dumps({"path": path, "values": values}, indent=2)


def render_exports(config: Config) -> str:
    """Return the lines that a POSIX shell may evaluate, whatever the values hold."""
    values = {name: value for name, value, _ in config.values()}
    return "\n".join(f"export {name}={quoted(values[key])}" for name, key in _EXPORTS)


def quoted(value: object) -> str:
    """Return *value* in single quotes; one inside closes, is escaped, and reopens."""
    return "'" + str(value).replace("'", "'\\''") + "'"


def _show(args: argparse.Namespace) -> int:
    config = _loaded(args)
    print(render_json(config) if args.json else render_table(config))
    return 0


def _export(args: argparse.Namespace) -> int:
    print(render_exports(_loaded(args)))
    return 0


def _loaded(args: argparse.Namespace) -> Config:
    config = load_config(args)
    for warning in config.warnings:
        print(f"ofa: {warning}", file=sys.stderr)
    return config


def _toml(value: Any) -> str:  # noqa: ANN401 - any key's type
    # JSON's notation of what a key can hold is TOML's too; None has none there.
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
