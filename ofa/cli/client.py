"""`ofa client`: another client's settings for this server, printed."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from .. import clients
from ..clients import Facts, Setup
from .common import Subparsers, add_site_option, key_file_of, load_config, state_of
from .running import (
    add_key_file_option,
    key_of,
    laptop_port,
    loopback_url,
    offer_of,
    port_to_ask,
)


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register `ofa client`."""
    parser = subparsers.add_parser(
        "client",
        help="print another client's configuration for this server",
        description="Print the files and commands that make a client use this server. "
        "The key is named by its file, never printed. Exit code 1: the client needs "
        "an API that this server does not have, and a way around is printed.",
    )
    parser.add_argument("client", choices=clients.names(), metavar="CLIENT")
    parser.add_argument(
        "--json", action="store_true", help="as one JSON object, for scripts"
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="the port in its URL (the laptop's)"
    )
    add_key_file_option(parser)
    add_site_option(parser)
    parser.epilog = f"CLIENT is one of {', '.join(clients.names())}"
    parser.set_defaults(func=_client)


def _client(args: argparse.Namespace) -> int:
    config, state = load_config(args), state_of()
    port = laptop_port(config, state, args.port)
    asked = port_to_ask(config, state, port)
    offer = offer_of(config, asked, key_of(config, state))
    facts = Facts(
        loopback_url(port),
        offer.models,
        offer.limits,
        str(key_file_of(config, state).path) if config.server.auth else "",
    )
    made = clients.setup(args.client, facts)
    for doubt in offer.doubts:
        print(f"ofa: {doubt}", file=sys.stderr)
    print(json.dumps(asdict(made), ensure_ascii=False) if args.json else render(made))
    if made.lacks:
        print(f"ofa: {made.lacks}; above is the way through a gateway", file=sys.stderr)
    return 1 if made.lacks else 0


def render(setup: Setup) -> str:
    """Return *setup* for people: each file with its path, then what to run."""
    lines = []
    for file in setup.files:
        lines += [f"--- {file.path} ---", file.content]
    lines += ["--- run ---", *setup.commands]
    lines += ["", *(f"note: {note}" for note in setup.notes)] if setup.notes else []
    return "\n".join(lines)
