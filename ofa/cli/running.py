"""
What the commands know of this user's server: where it is, and what it offers.

Asked of the server itself where it runs; else the configuration's word, and said so.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from ..byok import Listed
from ..client import Client, ServerUnreachable
from ..config import Config
from ..engine.base import Limits
from ..errors import ConfigError, OfaError
from ..modes import SEED_MODES, Modes, with_changes
from ..ports import LOCAL_PORT_NAME, remembered_port, stranger_on
from ..state import StateFolder
from .common import key_file_of

# Of a model that nobody could be asked about: Gemma 3 1B's own.
_USUAL_CONTEXT = 32_768


@dataclass(frozen=True)
class Offer:
    """What a server offers; *doubts* say why that may be wrong."""

    each: Sequence[tuple[Listed, Limits]]
    doubts: tuple[str, ...] = ()

    @property
    def models(self) -> Sequence[Listed]:
        """The models alone."""
        return [model for model, _ in self.each]

    @property
    def limits(self) -> Limits:
        """What all of them can take: for clients that are told of one size."""
        return min((limits for _, limits in self.each), key=_size)


def add_key_file_option(parser: argparse.ArgumentParser) -> None:
    """Give *parser* the option that names another key file than the usual one."""
    parser.add_argument(
        "--key-file", dest="server.key_file", metavar="FILE", help="another key file"
    )


def server_port(config: Config, state: StateFolder, asked: int | None = None) -> int:
    """Return the port to ask on this machine. Raises `ConfigError` if none is known."""
    port = asked or remembered_port(state) or config.server.port
    if not port:
        raise ConfigError(
            "no port is known, as no server has run yet: start one with `ofa serve`, "
            "or name the port with --port"
        )
    return port


def url_here(port: int) -> str:
    """Return the URL of the server on *port* of this machine, if it can be ours."""
    if doubt := _not_ours(port):
        raise ConfigError(doubt)
    return loopback_url(port)


def laptop_port(config: Config, state: StateFolder, asked: int | None = None) -> int:
    """Return the port at the laptop's end of the tunnel, as the server prints it."""
    chosen = config.server.local_port or remembered_port(state, LOCAL_PORT_NAME)
    return asked or chosen or server_port(config, state)


def port_to_ask(config: Config, state: StateFolder, shown: int) -> int:
    """Return the server's port; *shown*, the URL's, where nothing is known of it."""
    return remembered_port(state) or config.server.port or shown


def loopback_url(port: int) -> str:
    """Return the URL for *port*, on this machine or on the laptop."""
    return f"http://127.0.0.1:{port}/v1"


def key_of(config: Config, state: StateFolder) -> str:
    """Return a good key; empty where none is asked for, or none was made yet."""
    key_file = key_file_of(config, state)
    if not config.server.auth or not key_file.path.exists():
        return ""
    return key_file.read()[0]


def offer_of(config: Config, port: int, key: str) -> Offer:
    """Return what the server on *port* offers, else what is configured."""
    if doubt := _not_ours(port):
        return _configured(config, doubt)
    base_url = loopback_url(port)
    try:
        with Client(base_url, key) as client:
            models = client.models()
    except ServerUnreachable as exc:
        return _configured(config, str(exc))
    if not models:
        raise OfaError(f"{base_url}: the server offers no models")
    return Offer([(model, model.limits) for model in models])


def _size(limits: Limits) -> tuple[int, int]:
    return limits.context_tokens, limits.output_tokens


def _not_ours(port: int) -> str:
    stranger = stranger_on(port)
    return stranger and (
        f"port {port} of this machine is held by {stranger}, not by you, and your key "
        "would be sent there: start your server, or name its port with --port"
    )


def _configured(config: Config, reason: str) -> Offer:
    engine = config.engine
    limits = Limits(
        engine.context_tokens or _USUAL_CONTEXT, engine.output_tokens, tools=True
    )
    return Offer(
        [(mode, limits) for mode in Modes(with_changes(SEED_MODES, config.modes))],
        (
            f"{reason}. Until it is asked, the limits are guessed "
            f"(context {limits.context_tokens}, answer {limits.output_tokens} tokens): "
            "run this again while the server runs",
        ),
    )
