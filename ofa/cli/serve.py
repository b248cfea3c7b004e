"""`ofa serve`: run the server until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

from ..config import Config
from .common import Subparsers, add_site_option, load_config, state_of

if TYPE_CHECKING:
    from ..banner import Connection
    from ..supervisor_link import Link

# (flags, configuration key, what a value is, help); the second flag of a row is
# upstream's, kept so that its users' scripts go on working.
_VALUES = (
    (("--host", "--serve-host"), "server.host", "ADDR", "address to listen on"),
    (("--port", "--serve-port"), "server.port", "N", "port to listen on"),
    (
        ("--local-port", "--serve-local-port"),
        "server.local_port",
        "N",
        "the laptop's port, in the commands that are printed",
    ),
    (
        ("--key-file", "--serve-api-key-file"),
        "server.key_file",
        "FILE",
        "the key file, instead of the one in the state folder",
    ),
    (("--model", "-m"), "engine.model", "DIR|ID", "an MLX model: a folder or a hub id"),
    (("--engine",), "engine.kind", "KIND", "mlx (default), upstream or scripted"),
    (("--context",), "engine.context_tokens", "N", "context, in tokens"),
    (("--upstream-url",), "engine.upstream_url", "URL", "for --engine upstream"),
    (
        ("--upstream-key-file",),
        "engine.upstream_key_file",
        "FILE",
        "holds the key of the upstream",
    ),
    (
        ("--upstream-model",),
        "engine.upstream_model",
        "NAME",
        "the upstream's model; default: the first it lists",
    ),
    (("--script",), "engine.script", "FILE", "for --engine scripted: its answers"),
)
_SWITCHES = (
    (("--no-auth", "--serve-no-auth"), "server.auth", False, "ask for no key"),
    (
        ("--tools", "--serve-enable-tools"),
        "tools.enabled",
        True,
        "let models call the client's tools, however slow",
    ),
    (("--no-tools",), "tools.enabled", False, "never let models call tools"),
    (("--no-rag",), "rag.enabled", False, "answer without looking anything up"),
    (("--quiet", "--serve-quiet"), "server.quiet", True, "no log line a request"),
)


def add(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "serve",
        help="run the server",
        description="Serve the modes over an OpenAI-compatible API until stopped.",
    )
    add_site_option(parser)
    for flags, key, value, help_ in _VALUES:
        kind = int if value == "N" else str
        parser.add_argument(*flags, dest=key, metavar=value, type=kind, help=help_)
    for flags, key, constant, help_ in _SWITCHES:
        parser.add_argument(
            *flags, dest=key, action="store_const", const=constant, help=help_
        )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print only one line of JSON: where the server is and how to get there",
    )
    parser.add_argument(
        "--no-supervisor",
        action="store_true",
        help="run in one process, as debuggers need it; nothing starts it again",
    )
    parser.set_defaults(func=_serve)


def _serve(args: argparse.Namespace) -> int:
    from ..supervisor_link import find_link

    link = find_link(os.environ)
    if link is not None:
        link.start()
    config = load_config(args)
    _leave_no_core()
    _set_up_logging(quiet=config.server.quiet)
    if link is None and not args.no_supervisor:
        return _supervise(config)
    return _work(args, config, link)


def _supervise(config: Config) -> int:
    """Keep the port, and a worker that serves on it."""
    from ..engine.mlx.pages import with_huge_pages
    from ..ports import choose_host, choose_port
    from ..supervisor import Patience, Supervisor, silence_limit_s

    state = state_of()
    host, _ = choose_host(config.server.host, os.environ)
    place = choose_port(state, host, config.server.port)
    for problem in state.problems:
        logging.getLogger("ofa.serve").warning("%s", problem)
    # As this process was started, so that the same code is found by the same path.
    command = [sys.executable, *sys.orig_argv[1:]]
    silence_s = silence_limit_s(config.engine.stall_s)
    patience = Patience(silence_s, config.server.drain_s)
    env = with_huge_pages(os.environ)
    return Supervisor(command, env, place, patience).run()


def _work(args: argparse.Namespace, config: Config, link: Link | None) -> int:
    """Be the server: alone, or as a supervisor's worker."""
    from .. import serve

    running = serve.build(config, state_of(), os.environ, link)

    def announce() -> None:
        if link is None or link.first:
            _announce(running.connection, as_json=args.json)

    code = serve.run(running, announce, link)
    # Everything of ours is closed by now. Native threads of MLX and torch, one that
    # loads a model too, abort the process if the interpreter goes away under them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _announce(connection: Connection, *, as_json: bool) -> None:
    from .. import banner

    if as_json:
        print(banner.as_json(connection), flush=True)
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(banner.render(connection, colour=colour), flush=True)
    print(f"[ofa-serve] {banner.as_json(connection)}", file=sys.stderr)


def _leave_no_core() -> None:
    """Have a crash leave no core file: it would hold the key and all prompts."""
    try:
        import resource
    except ImportError:  # Windows has no core files
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _set_up_logging(*, quiet: bool) -> None:
    """Send one line an event to standard error, without any content of chats."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="[ofa-serve] %(message)s"
    )
    logging.getLogger("ofa").setLevel(logging.INFO)
    # A client that leaves is no news: the access log tells what became of its request.
    logging.getLogger("ofa.http").setLevel(logging.WARNING)
    if quiet:
        logging.getLogger("ofa.access").setLevel(logging.WARNING)
