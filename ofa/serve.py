"""
The composition root: configuration in, a server out.

Everything is made here and handed to what needs it; nothing below knows the
`Config`. Read `build` for the shape of the program.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from . import byok, web_ofa, web_page
from .answer import Answerer, AnswerSettings, tools_off_reason
from .auth import KeyFile, Keys, NoAuth, key_file_in
from .banner import Connection
from .chat import Chat, Sampling
from .config import Config
from .engine.base import Limits, Status
from .engine.pace import Paced
from .engine.queue import Queued
from .engines import make_engine
from .errors import ConfigError
from .first_index import FirstIndex
from .modes import SEED_MODES, Modes, with_changes
from .ports import (
    Place,
    choose_host,
    choose_local_port,
    choose_port,
    is_loopback,
    own_names,
)
from .prompts import Prompts, packaged_folder
from .retrieval import Retrieval, has_private
from .state import StateFolder
from .supervisor_link import Link
from .web import Route, Services, WebSettings, create_app
from .web_chat import ChatRules
from .wsgi import Gate, Server, make_server

log = logging.getLogger("ofa.serve")

WATCH_S = 0.5  # how often the engine's state is looked at
BROKEN = 75  # EX_TEMPFAIL of sysexits.h: whoever started this may start it again

# Beside one thread for each reply that runs or waits: probes, lists, refusals.
SPARE_THREADS = 8


@dataclass
class Running:
    """A server that listens; `run` it, `stop` it from anywhere."""

    server: Server
    queue: Queued
    retrieval: Retrieval | None
    modes: Modes
    connection: Connection
    drain_s: float
    beginnings: Sequence[Chat] = ()  # of chats, for the engine to read ahead
    exit_code: int = 0

    def run(self) -> None:
        """Serve until stopped; then everything is closed."""
        if self.retrieval is not None:
            self.retrieval.start(self.modes)
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        watch.start()
        self.queue.warm(self.beginnings)
        try:
            self.server.run()
        finally:
            ended.set()
            if self.retrieval is not None:
                self.retrieval.close()
            if self.exit_code != BROKEN:  # else there is no end to wait for
                self.queue.close()

    def _watch(self, ended: threading.Event) -> None:
        """Stop where the engine says that it will never be ready, or never again."""
        while not ended.wait(WATCH_S):
            status = self.queue.status()
            if status.final or status.broken:
                log.error("%s", status.reason)
                self._leave(status)
                return

    def _leave(self, status: Status) -> None:
        if status.final:
            self.exit_code = ConfigError.exit_code
            self.stop()
        else:
            self.exit_code = BROKEN
            self.queue.give_up(status.reason)
            self.server.stop()

    def drain(self) -> None:
        """Let running answers end, tell the others, and stop."""
        if not self.queue.drain(self.drain_s):
            log.warning("answers were cut after %g s", self.drain_s)
        self.server.stop()

    def stop(self) -> None:
        """Stop at once; readers of running answers are told."""
        self.queue.drain(0)
        self.server.stop()


def build(
    config: Config, state: StateFolder, env: Mapping[str, str], link: Link | None = None
) -> Running:
    """
    Make and connect everything, and listen; models and indexes load behind it.

    A supervisor's *link* has a socket that listens already. Raises `ConfigError` for
    whatever was configured and can't be used.
    """
    host, why = choose_host(config.server.host, env)
    key_file = _key_file(config, state, host)
    keys = Keys(key_file) if key_file else NoAuth()
    modes = _modes(config)
    prompts = _prompts(config, state, modes)
    place = link.place if link else choose_port(state, host, config.server.port)
    engine = Paced(make_engine(config, state, env))
    queue = Queued(engine, running=config.server.running, waiting=config.server.waiting)
    retrieval = _retrieval(config, state, queue)
    lookup = retrieval.lookup if retrieval else None
    settings = _answer_settings(config)
    answerer = Answerer(queue, modes, prompts, lookup=lookup, settings=settings)
    status = partial(_status, queue, retrieval, link.restarted if link else "")
    services = Services(answerer, modes, queue.limits, status, keys.check)
    live = _live(config, services, queue, engine, retrieval)
    own = _own_routes(config, live, retrieval)
    server = make_server(
        create_app(services, _web_settings(config, host), own),
        [place.socket],
        threads=config.server.running + config.server.waiting + SPARE_THREADS,
        gate=Gate(keys.check, config.server.max_body_bytes),
    )
    connection = replace(
        _connection(config, state, env, place, key_file),
        models=tuple(mode.id for mode in modes),
        model=engine.limits("").description,
        notes=_notes(config, state, f"listening on {host}: {why}", engine.limits("")),
    )
    return Running(
        server,
        queue,
        retrieval,
        modes,
        connection,
        config.server.drain_s,
        answerer.beginnings(),
    )


def run(
    running: Running, announce: Callable[[], None], link: Link | None = None
) -> int:
    """
    Serve until told to stop; return 0, 78 for a model that can't load, or `BROKEN`.

    *announce* is called once, when whoever it tells will be answered. SIGTERM and
    SIGINT drain, a second one ends it at once; with a *link* its supervisor decides on
    that, and signals only drain. Called on the main thread, where signals arrive.
    """
    stops = _Stops(running)
    act = stops.next if link is None else stops.drain
    before = {
        number: signal.signal(number, lambda *_: act())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        if link is not None:
            orders = {"drain": stops.drain, "stop": stops.cut}
            link.attach(running.queue.status, orders)
        announce()
        running.run()
        if link is not None:
            link.beat()  # the last word: what its engine died of
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return running.exit_code


class _Stops:
    """Stops a server on threads of its own: handlers of signals must not wait."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._draining = False

    def next(self) -> None:
        """Drain; the next time, cut."""
        if self._draining:
            self.cut()
        else:
            self.drain()

    def drain(self) -> None:
        """Let running answers end, however often this is called."""
        if not self._draining:
            self._draining = True
            self._start(self._running.drain)

    def cut(self) -> None:
        """End running answers at once."""
        self._start(self._running.stop)

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="ofa-stop", daemon=True).start()


def _status(queue: Queued, retrieval: Retrieval | None, restarted: str) -> Status:
    """Return the engine's status, with why it is not ready again, or not all there."""
    status = queue.status()
    problems = retrieval.problems() if retrieval else ()
    if problems:  # chats are answered all the same: it stays ready
        told = {**status.details, "retrieval": "; ".join(problems)}
        status = replace(status, details=told)
    if status.ready or not restarted:
        return status
    why = f"{status.reason} (restarted: the last one {restarted})"
    return replace(status, reason=why)


def _key_file(config: Config, state: StateFolder, host: str) -> KeyFile | None:
    """Return the key file, made if there was none; None for a server without a key."""
    if not config.server.auth:
        _refuse_open_server(config, state, host)
        return None
    file = key_file_in(state, config.server.key_file)
    if file.ensure():
        log.info("made a new key in %s", file.path)
    return file


def _retrieval(config: Config, state: StateFolder, queue: Queued) -> Retrieval | None:
    if not config.rag.enabled:
        return None
    site = ["--site", str(config.path)] if config.path else []
    env = {"OFA_SCRATCH": str(state.path)}
    if config.rag.sources:
        env["OFA_RAG_SOURCES"] = config.rag.sources
    if config.rag.embedder:
        env["OFA_RAG_EMBEDDER"] = config.rag.embedder
    outlives = config.engine.kind == "mlx" and config.engine.prefix_disk
    build = FirstIndex(site, env)
    return Retrieval(config.rag, state, queue, build, outlives=outlives)


def _refuse_open_server(config: Config, state: StateFolder, host: str) -> None:
    """Without a key, neither another machine nor a private document may be in reach."""
    if not is_loopback(host):
        raise ConfigError(
            "server.auth: without a key only 127.0.0.1 may be listened on, not "
            f"{host}: any user of the node could use it; drop --no-auth"
        )
    if config.rag.enabled and config.rag.private and has_private(state):
        raise ConfigError(
            "server.auth: there are private documents in the index (ofa index "
            "list-private), and without a key anybody on this machine could ask for "
            "them; drop --no-auth, or set [rag] private = false"
        )


def _modes(config: Config) -> Modes:
    engine = config.engine
    site = Sampling(
        temperature=engine.temperature, top_p=engine.top_p, top_k=engine.top_k
    )
    return Modes(with_changes(SEED_MODES, config.modes, site))


def _prompts(config: Config, state: StateFolder, modes: Modes) -> Prompts:
    site = config.site
    values = {
        "SITE_NAME": site.name,
        "SITE_ORG": site.org,
        "SITE_LONG_NAME": site.long_name,
        "SITE_DESCRIPTION": site.description,
        "OFA_SCRATCH": str(state.path),
    }

    def remembered(name: str) -> str:
        return (state.read(name) or b"").decode("utf-8", errors="replace")

    prompts = Prompts(
        packaged_folder(),
        values,
        remembered,
        protected=site.protected_roots,
        # On a shared file system to look at five files is a wait of its own.
        look_every_s=1.0,
    )
    for mode in modes:
        prompts.check(mode)
    return prompts


def _answer_settings(config: Config) -> AnswerSettings:
    return AnswerSettings(
        client_system=config.api.client_system,
        tools=config.tools.enabled,
        strict_tools=config.tools.schema == "strict",
        max_tokens=config.api.default_max_tokens,
        cite=config.rag.cite,
    )


def _web_settings(config: Config, host: str) -> WebSettings:
    server = config.server
    own = {name.lower() for name in server.allowed_hosts}
    if not is_loopback(host):
        own |= own_names(host)
    rules = ChatRules(
        refuse_unknown=config.api.unknown_fields == "refuse",
        keep_alive_s=server.keep_alive_s,
    )
    return WebSettings(
        allowed_hosts=frozenset(own),
        allowed_origins=frozenset(server.allowed_origins),
        max_body_bytes=server.max_body_bytes,
        chat=rules,
    )


def _live(
    config: Config,
    services: Services,
    queue: Queued,
    engine: Paced,
    retrieval: Retrieval | None,
) -> web_page.Live:
    return web_page.Live(
        services.modes,
        services.limits,
        services.status,
        queue.depth,
        (config.server.running, config.server.waiting),
        lambda: engine.decode_per_s,
        lambda: retrieval.documents(services.modes) if retrieval else None,
    )


def _own_routes(
    config: Config, live: web_page.Live, retrieval: Retrieval | None
) -> tuple[Route, ...]:
    own = web_ofa.routes(
        live.modes,
        live.limits,
        name=byok.group_name(config.site),
        keyed=config.server.auth,
        inspector=retrieval.inspector if retrieval else None,
    )
    return (*own, *web_page.routes(live))


def _notes(
    config: Config, state: StateFolder, listening: str, limits: Limits
) -> tuple[str, ...]:
    """Return what people should know of this start, a line each."""
    reason = tools_off_reason(config.tools.enabled, limits)
    tools = [f"the tools that clients send are ignored: {reason}"] if reason else []
    return (listening, *tools, *config.warnings, *state.problems)


def _connection(
    config: Config,
    state: StateFolder,
    env: Mapping[str, str],
    place: Place,
    key_file: KeyFile | None,
) -> Connection:
    in_job = not is_loopback(place.host)
    return Connection(
        node=os.uname().nodename,
        host=place.host,
        port=place.port,
        local_port=choose_local_port(state, config.server.local_port, place.port),
        user=env.get("USER") or env.get("LOGNAME") or "USER",
        login_host=config.site.login_host,
        # Who came by ssh sits elsewhere; who did not, at this machine.
        tunnel=in_job or "SSH_CONNECTION" in env,
        key_file=str(key_file.path) if key_file else "",
    )
