"""
What a site's pages all repeat: menus, banners and footers, taken off each.

Knows lines and how many pages have them; nothing of HTML, where such parts are called
differently by every generator of sites.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_FEWEST = 8  # pages before "on each of them" means anything
_SHARE = 0.4  # of the pages: a menu stands on all, an option's usual words do not


def without_repeated(pages: Sequence[str]) -> list[str]:
    """Return *pages* (Markdown) without the lines that most have; code stays."""
    if len(pages) < _FEWEST:
        return list(pages)
    counts = Counter(line for page in pages for line in set(_lines(page)))
    most = max(_FEWEST - 1, _SHARE * len(pages))
    repeated = {line for line, count in counts.items() if count > most}
    return [_without(page, repeated) for page in pages] if repeated else list(pages)


def _lines(page: str) -> list[str]:
    """Return the lines of a page that may be a menu's: no code, no headings."""
    found, code = [], False
    for line in page.split("\n"):
        if line.startswith("```"):
            code = not code
        elif not code and line.strip() and not line.startswith("#"):
            found.append(line.strip())
    return found


def _without(page: str, repeated: set[str]) -> str:
    kept, code = [], False
    for line in page.split("\n"):
        if line.startswith("```"):
            code = not code
        if code or line.strip() not in repeated:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")
