"""
Batch scripts and the scheduler's own files taken apart.

Knows `#SBATCH` and its relatives, and slurm.conf's lines; nothing of their options.
"""

from __future__ import annotations

import re

from .chunk_code import code
from .chunk_pack import Outline, Piece

_DIRECTIVE = re.compile(r"^[ \t]*#(SBATCH|PBS|BSUB|FLUX:|COBALT)\b.*$", re.M)
_SCHEDULERS = {"SBATCH": "Slurm", "BSUB": "LSF", "FLUX:": "Flux", "COBALT": "Cobalt"}
_NAME = re.compile(r"(?:--job-name[= ]|-J\s+|-N\s+)[\"']?([\w.-]+)")
_CONFIGURATION = frozenset(
    f"{name}.conf"
    for name in ("slurm", "slurmdbd", "gres", "cgroup", "topology", "burst_buffer")
    + ("acct_gather", "job_container", "oci", "plugstack", "mpi")
)
# A password is nothing to be found, whoever made the file readable.
_SECRET = re.compile(
    r"^(\s*\w*(?:Pass|Password|AuthInfo|AuthAltParameters)\s*=).*$", re.I | re.M
)
_HEADING = re.compile(r"#+[ \t]*([A-Z][\w ,/&-]{2,60}?)[ \t:]*#*$")
_DEFINES = re.compile(r"^\s*(\w+Name)\s*=\s*(\S+)", re.I)


def is_job(text: str) -> bool:
    """Tell whether *text* is a batch script, by its directives."""
    return text.startswith("#!") and _DIRECTIVE.search(text, 0, 20_000) is not None


def job(text: str) -> Outline:
    """Take a batch script apart; its directives stay in one piece."""
    lines = text.split("\n")
    told = [n for n, line in enumerate(lines) if _DIRECTIVE.match(line)]
    found = _DIRECTIVE.search(text)
    kind = _SCHEDULERS.get(found[1], found[1]) if found else ""
    named = next((m[1] for n in told if (m := _NAME.search(lines[n]))), "")
    last = told[-1] + 1 if told else 0
    rest = code("\n".join(lines[last:])).pieces
    head = Piece("\n".join(lines[:last]).strip("\n"))
    return Outline(f"{kind} batch script {named}".strip(), (head, *rest))


def is_configuration(path: str) -> bool:
    """Tell whether a file is one of Slurm's, by its name."""
    return path.rpartition("/")[2].removesuffix(".example") in _CONFIGURATION


def configuration(text: str) -> Outline:
    """Take slurm.conf or a file beside it apart: by its remarks that are headings."""
    shown = _SECRET.sub(r"\1(left out)", text)
    chain: tuple[str, ...] = ()
    pieces: list[Piece] = []
    for block in re.split(r"\n(?:[ \t]*\n)+", shown):
        words = [line.strip("# \t") for line in block.split("\n")]
        only = [word for word in words if word]
        heading = len(only) == 1 and _HEADING.match(f"# {only[0]}")
        if heading and block.lstrip().startswith("#") and "=" not in block:
            chain = (heading[1],)
        first = _DEFINES.match(block)
        pieces.append(Piece(block, (*chain, first[2]) if first else chain))
    return Outline("", tuple(pieces))
