"""
The connection block: what a person needs to reach this server from a laptop.

A pure function of facts. It never holds the key, only where the key file is; its
``-L`` form and its last line are read by launchers, which wait for `SENTINEL`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

SENTINEL = "[ofa-serve] Ctrl+C to stop."
WIDTH = 72
_CYAN, _YELLOW, _BOLD, _OFF = "\033[36m", "\033[33m", "\033[1m", "\033[0m"


@dataclass(frozen=True)
class Connection:
    """Where the server listens and how one gets there."""

    node: str  # this machine's name, as the login node knows it
    host: str  # the address bound
    port: int  # here (REMOTE)
    local_port: int  # on the laptop (LOCAL)
    user: str
    login_host: str = ""  # empty: not configured
    tunnel: bool = True  # False: people sit at this machine
    key_file: str = ""  # empty: no key is asked for
    models: Sequence[str] = ()
    model: str = ""  # what answers: name, source, licence
    notes: Sequence[str] = field(default_factory=tuple)  # said, one line each

    @property
    def base_url(self) -> str:
        """The URL of the API, at the laptop's end."""
        return f"http://127.0.0.1:{self.local_port}/v1"


def tunnel_lines(connection: Connection) -> tuple[str, str]:
    """
    Return the ``ssh`` command through the login node, and the one-hop form.

    The second (``-J``) ends at the node itself, so that no other user of the login
    node's loopback is in between; it needs sshd on the node.
    """
    c = connection
    login = c.login_host or "LOGIN_HOST"
    options = "ssh -N -o ExitOnForwardFailure=yes"
    # A server bound to the node's loopback is reached from the node itself only.
    loopback = c.host.startswith("127.") or c.host == "localhost"
    hop = f"{options} -J {c.user}@{login} -L {c.local_port}:127.0.0.1:{c.port}"
    direct = f"{options} -L {c.local_port}:{c.node}:{c.port} {c.user}@{login}"
    if loopback:
        direct = f"{options} -L {c.local_port}:127.0.0.1:{c.port} {c.user}@{c.node}"
    return direct, f"{hop} {c.user}@{c.node}"


def render(connection: Connection, *, colour: bool = False) -> str:
    """Return the block for a terminal, `SENTINEL` as its last line."""
    c = connection
    rule = "=" * WIDTH
    lines = [rule, "CONNECT FROM YOUR LAPTOP" if c.tunnel else "CONNECT", rule]
    lines += [
        f"  compute node : {c.node}",
        f"  REMOTE port  : {c.port}   (this server)",
    ]
    if c.tunnel:
        lines += [f"  LOCAL port   : {c.local_port}   (your laptop)"]
    lines += [f"  models       : {', '.join(c.models)}"]
    lines += [f"  answered by  : {c.model}"] if c.model else []
    lines += ["", *_steps(c)]
    lines += [rule, *(f"note: {note}" for note in c.notes), SENTINEL]
    return (
        "\n".join(_painted(line, rule) for line in lines)
        if colour
        else "\n".join(lines)
    )


def as_json(connection: Connection) -> str:
    """Return the same facts as one line of JSON, for launchers and scripts."""
    facts = asdict(connection)
    facts["base_url"] = connection.base_url
    facts["ssh"], facts["ssh_one_hop"] = tunnel_lines(connection)
    return json.dumps(facts, ensure_ascii=False)


def _steps(c: Connection) -> list[str]:
    lines, number = [], 1
    if c.tunnel:
        direct, hop = tunnel_lines(c)
        lines += [f"{number}. In a new terminal on the laptop, and leave it open:"]
        lines += [f"     {direct}", "   or, where the node has sshd, in one hop:"]
        lines += [f"     {hop}", ""]
        number += 1
    where = "from the laptop" if c.tunnel else "from here"
    lines += [f'{number}. Check {where}; it answers {{"status":"ok"}}:']
    lines += [f"     curl http://127.0.0.1:{c.local_port}/healthz"]
    lines += ["   In a browser there, documents, queue and a search are at:"]
    lines += [f"     http://127.0.0.1:{c.local_port}/ofa", ""]
    lines += [f"{number + 1}. VS Code: where it runs on this machine:"]
    lines += ["     ofa byok write"]
    lines += ["   elsewhere (Remote-SSH too), there, as its chatLanguageModels.json:"]
    keyed = "-H @- " if c.key_file else ""
    fetch = f"curl -s {keyed}{c.base_url}/ofa/byok -o chatLanguageModels.json"
    lines += [f"     {_with_key(c, fetch)}"]
    lines += ["", f"   url    = {c.base_url}/chat/completions"]
    lines += [f"   apiKey = in {c.key_file} (ofa key show)"] if c.key_file else []
    return lines


def _with_key(c: Connection, command: str) -> str:
    """Return *command* with the key on its standard input: argv is world-readable."""
    if not c.key_file:
        return command
    read = f"cat {shlex.quote(c.key_file)}"
    if c.tunnel:
        read = f"ssh {c.user}@{c.login_host or 'LOGIN_HOST'} {read}"
    return f"(printf 'Authorization: Bearer '; {read}) | {command}"


def _painted(line: str, rule: str) -> str:
    if line == rule:
        return f"{_CYAN}{line}{_OFF}"
    if line.startswith("note: "):
        return f"{_YELLOW}{line}{_OFF}"
    if line.startswith("CONNECT"):
        return f"{_BOLD}{line}{_OFF}"
    return line
