"""
Jupyter notebooks to Markdown: prose as it is, code fenced, results left out.

Knows the notebook format 3 and 4; nothing of what cells compute. Results are left out
because they are pictures, tables of numbers and messages of one machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .unread import Unread

_TICKS = re.compile(r"`{3,}")


def notebook(text: str) -> str:
    """Return the cells of the notebook *text* as Markdown; raises `Unread`."""
    try:
        told = json.loads(text)
        language = _language(told)
        cells = [_cell(cell, language) for cell in _cells(told)]
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise Unread("damaged") from exc
    return "\n\n".join(filter(None, cells))


def _cells(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from told.get("cells", ())
    for sheet in told.get("worksheets", ()):  # of format 3
        yield from sheet.get("cells", ())


def _cell(cell: dict[str, Any], language: str) -> str:
    kind = cell.get("cell_type", "")
    source = cell.get("source", cell.get("input", ""))
    text = ("".join(source) if isinstance(source, list) else str(source)).strip("\n")
    if not text.strip():
        return ""
    if kind == "markdown":
        return text
    if kind == "heading":
        return f"{'#' * int(cell.get('level', 1))} {text}"
    if kind != "code":
        return text
    longest = max(map(len, _TICKS.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _language(told: dict[str, Any]) -> str:
    about = told.get("metadata", {})
    name = about.get("kernelspec", {}).get("language", "")
    name = name or about.get("language_info", {}).get("name", "")
    return str(name) if re.fullmatch(r"[\w+#.-]{1,20}", str(name)) else ""
