"""
What the engine and retrieval share of the heavy libraries they load: turns and threads.

Transformers' modules fill themselves in on first use. Two threads that do so at once,
one with the engine's model and one with the embedding model, find each other's half
made: "cannot import name 'AutoTokenizer' from 'transformers'", and the server has no
engine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_TURN = threading.RLock()


@contextmanager
def loading() -> Iterator[None]:
    """Wait for one's turn: for who loads a model with transformers, from the import
    to the tokenizer, and for who measures at a start how fast it is."""
    with _TURN:
        keep_single()
        yield


def keep_single() -> None:
    """
    Keep tokenizers and tqdm from threads of their own; call it before their first use.

    Those of tokenizers do not survive a fork; tqdm's looks after progress bars, which
    are not shown, for as long as the process lives.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tqdm import tqdm

    tqdm.monitor_interval = 0


def allotted_threads(environ: Mapping[str, str] | None = None) -> int:
    """
    Return how many threads this process was given, not how many the machine has.

    An OMP_NUM_THREADS the user set, else the job's SLURM_CPUS_PER_TASK, and never
    more than the cores the process may run on.
    """
    environ = os.environ if environ is None else environ
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        # OMP_NUM_THREADS may be a list, one number a nesting level.
        given = environ.get(name, "").split(",")[0].strip()
        if given.isdecimal() and int(given) > 0:
            return min(int(given), cores)
    return cores
