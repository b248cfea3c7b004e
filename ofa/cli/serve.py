"""`ofa serve`: run the server until it is told to stop."""

from __future__ import annotations

import argparse
import os
import sys

from .common import Subparsers, add_site_option, load_config, state_of

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
    parser.set_defaults(func=_serve)


def _serve(args: argparse.Namespace) -> int:
    from .. import banner, serve

    config = load_config(args)
    _leave_no_core()
    serve.set_up_logging(quiet=config.server.quiet)
    running = serve.build(config, state_of(), os.environ)
    if args.json:
        print(banner.as_json(running.connection), flush=True)
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(banner.render(running.connection, colour=colour), flush=True)
        print(f"[ofa-serve] {banner.as_json(running.connection)}", file=sys.stderr)
    code = serve.run(running)
    # Everything of ours is closed by now. Native threads of MLX and torch, one that
    # loads a model too, abort the process if the interpreter goes away under them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_no_core() -> None:
    """Have a crash leave no core file: it would hold the key and all prompts."""
    try:
        import resource
    except ImportError:  # Windows has no core files
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
