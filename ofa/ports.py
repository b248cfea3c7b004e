"""
Where the server listens: the address, a port of the user's own, the laptop's port.

A port is bound first and remembered afterwards: only what is held can't be taken
by a neighbour in between. Knows sockets and the state folder; nothing of HTTP.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import pwd
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError
from .state import StateFolder

PORT_NAME = ".ofa_serve_port"
LOCAL_PORT_NAME = ".ofa_serve_local_port"
LOW, HIGH = 40000, 49999  # four users share a node: 10,000 ports for them

_FIRST, _LAST = 1024, 65535  # what is believed in a file
_TRIES = 200
_BACKLOG = 1024
_LOOPBACK = "127.0.0.1"
_JOBS = (("SLURM_JOB_ID", "Slurm"), ("PBS_JOBID", "PBS"), ("LSB_JOBID", "LSF"))
_LISTENING = "0A"  # state column of /proc/net/tcp
# As written there: 127.0.0.1, 0.0.0.0, and IPv6's forms of both.
_REACHED = ("0100007F", "0" * 8, "0" * 16 + "FFFF00000100007F", "0" * 32)


@dataclass(frozen=True)
class Place:
    """A socket that listens already, and the number that it got."""

    socket: socket.socket
    host: str
    port: int


def choose_host(configured: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the address to listen on, and the reason in words for the start's log."""
    if configured:
        return configured, "as configured"
    for variable, scheduler in _JOBS:
        if job := env.get(variable):
            name = re.sub(r"[^\w.\-\[\]]", "", job)[:40]
            return "0.0.0.0", (
                f"{scheduler} job {name}: a login node's `ssh -L` can't reach a "
                "compute node's loopback"
            )
    return _LOOPBACK, "not in a scheduler's job: only this machine can connect"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach *host*."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def choose_port(
    state: StateFolder,
    host: str,
    requested: int,
    *,
    low: int = LOW,
    high: int = HIGH,
) -> Place:
    """
    Return a listening socket: on *requested*, or on a port of the user's own.

    0 takes the remembered port, or another one at random where that is taken.
    Raises `ConfigError` where *requested* is taken, naming by whom.
    """
    family, address = _address(host)
    for port in (requested,) if requested else _candidates(state, low, high):
        listening = _listen(family, address, port)
        if listening is not None:
            _remember(state, PORT_NAME, port)
            return Place(listening, host, port)
    if requested:
        raise ConfigError(
            f"server.port: {requested} on {host} is taken{_holder(requested)}; choose "
            "another with --port, or leave it out to get a free one"
        )
    raise ConfigError(f"server.port: no free port on {host} in {low}-{high}")


def remembered_port(state: StateFolder, name: str = PORT_NAME) -> int | None:
    """Return the port of the last start: here, or the laptop's (`LOCAL_PORT_NAME`)."""
    text = (state.read(name) or b"").strip()
    if not re.fullmatch(rb"[0-9]{1,5}", text):
        return None
    return port if _FIRST <= (port := int(text)) <= _LAST else None


def choose_local_port(state: StateFolder, requested: int, remote: int) -> int:
    """
    Return the port for the laptop's end of the tunnel: text only, nothing is bound.

    It is the *remote* number unless another was asked for, now or at an earlier
    start; asking for the remote number itself forgets that.
    """
    if requested == remote:
        state.remove(LOCAL_PORT_NAME)
        return remote
    if requested:
        _remember(state, LOCAL_PORT_NAME, requested)
        return requested
    return remembered_port(state, LOCAL_PORT_NAME) or remote


def stranger_on(port: int) -> str:
    """
    Return who answers on 127.0.0.1's *port*, if it is neither this user nor root.

    A remembered port may be a neighbour's by now, who would be sent our key. Empty
    where nobody listens, or where the system doesn't tell.
    """
    uids: dict[str, int] = {}
    for line in _tcp_lines():
        columns = line.split()
        address, _, number = columns[1].partition(":")
        if columns[3] == _LISTENING and int(number, 16) == port:
            uids[address] = int(columns[7])
    # The nearest address gets the connection; that is the kernel's order.
    uid = next((uids[address] for address in _REACHED if address in uids), os.getuid())
    return "" if uid in (os.getuid(), 0) else _user(uid)


def _address(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for a label that is no host name
        raise ConfigError(
            f"server.host: {host} is no address of this machine; 127.0.0.1 always is"
        ) from None
    family, _, _, _, address = found[0]
    return family, str(address[0])


def _candidates(state: StateFolder, low: int, high: int) -> Iterator[int]:
    remembered = remembered_port(state)
    if remembered:
        yield remembered
    for _ in range(_TRIES):
        yield low + secrets.randbelow(high - low + 1)


def _listen(
    family: socket.AddressFamily, address: str, port: int
) -> socket.socket | None:
    """Return a socket that holds *port*, or None if it is taken."""
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart waits a minute for the last start's connections; on
        # Linux it lets nobody bind beside a socket that listens. Never SO_REUSEPORT,
        # with which a neighbour could.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise ConfigError(
            f"server.host, server.port: can't listen on {address} port {port}: "
            f"{error.strerror}"
        ) from None
    return opened


def _remember(state: StateFolder, name: str, port: int) -> None:
    if remembered_port(state, name) != port:
        state.write(name, f"{port}\n".encode())


def _holder(port: int) -> str:
    """Return by whom *port* is held, as far as this user may know; else ""."""
    for line in _tcp_lines():
        columns = line.split()
        if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
            return f" by {_user(int(columns[7]))}{_process(columns[9])}"
    return ""


def _tcp_lines() -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            yield from Path(table).read_text().splitlines()[1:]
        except OSError:  # not Linux, or without IPv6
            continue


def _user(uid: int) -> str:
    if uid == os.getuid():
        return "you"
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _process(inode: str) -> str:
    """Return the process with the socket *inode*, if it is one that we may look at."""
    if not sys.platform.startswith("linux"):
        return ""
    wanted = Path(f"socket:[{inode}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(one.readlink() == wanted for one in (process / "fd").iterdir()):
                name = (process / "comm").read_text().strip()
                return f", process {process.name} ({name})"
        except OSError:  # somebody else's, or gone
            continue
    return ""


def own_names(host: str) -> set[str]:
    """Return what other machines of the site call this one, without asking a DNS."""
    node = os.uname().nodename.lower()
    names = {node, node.partition(".")[0]}
    if host != "0.0.0.0":
        return names | {host}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only picks an interface
            names.add(probe.getsockname()[0])
        except OSError:
            pass  # no route at all: then nobody calls us by an address either
    return names
