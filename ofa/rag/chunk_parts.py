"""
A definition too long for a chunk to parts that each say what they are of.

Knows lines and blank lines; nothing of languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .chunk_pack import Fits

_BLANK = re.compile(r"\n[ \t]*\n")


def parts(whole: str, signature: str, fits: Fits) -> Iterator[str]:
    """Yield *whole* in parts that fit, *signature* above each but the first."""
    if fits(whole) or not fits(f"{signature}\n"):
        yield whole
        return
    held = ""
    first = True
    for block in _blocks(whole, lambda text: fits(f"{signature}\n{text}")):
        joined = f"{held}\n\n{block}" if held else block
        if not held or fits(joined if first else f"{signature}\n{joined}"):
            held = joined
            continue
        yield held if first else f"{signature}\n{held}"
        held, first = block, False
    if held.strip():
        yield held if first else f"{signature}\n{held}"


def _blocks(whole: str, fits: Fits) -> Iterator[str]:
    """Yield pieces between blank lines; one that does not fit, in runs of lines."""
    for block in _BLANK.split(whole):
        if fits(block):
            yield block.strip("\n")
            continue
        held: list[str] = []
        for line in block.split("\n"):
            if held and not fits("\n".join([*held, line])):
                yield "\n".join(held)
                held = []
            held.append(line)
        if held:
            yield "\n".join(held)
