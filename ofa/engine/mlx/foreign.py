"""
Exceptions that other people's code raises: which to stop, and what is made of them.

Knows how MLX's back ends word that memory ran out; nothing of rows and steps.
"""

from __future__ import annotations

import logging
import re
import traceback

from ...errors import EngineError, OutOfMemory

# What may not end a thread on which others wait. A library that calls sys.exit() is
# among it; a user's Ctrl-C is not, and comes to the main thread only.
FOREIGN = (Exception, SystemExit)

# There is no class for it: MLX's allocator, Metal, its driver and CUDA in turn.
_NO_MEMORY = re.compile(
    r"unable to allocate|bad_alloc|malloc|insufficient ?memory|out ?of ?memory|\boom\b"
)

log = logging.getLogger("ofa.engine.mlx")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether *error* says that there was not enough memory."""
    said = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(said))


def as_ours(error: BaseException, message: str) -> EngineError:
    """Return what a request that *error* ended is told: *message*, or that it was
    too large. The error's own words are for the log."""
    if is_out_of_memory(error):
        return OutOfMemory("there was not enough memory for this request; send less")
    return EngineError(message)


def note(message: str, error: BaseException) -> None:
    """Log *message*, and what *error* says."""
    log.error("%s", message, exc_info=error)


def note_place(message: str, error: BaseException) -> None:
    """Log *message*, and where *error* came from, not what it says: where texts are
    handled that may be a piece of one."""
    where = "".join(traceback.format_tb(error.__traceback__)[-3:])
    log.error("%s: %s\n%s", message, type(error).__name__, where)
