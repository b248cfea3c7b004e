"""Where the files lie that come with ofa but are not code: prompts, notes, sources."""

from __future__ import annotations

import sys
from pathlib import Path

from .errors import ConfigError


def shipped(name: str) -> Path:
    """
    Return the file or folder *name*, of the checkout or of the installation.

    Raises `ConfigError` when neither has it.
    """
    package = Path(__file__).resolve().parent
    for place in (
        package.parent,  # a checkout, or an editable installation: beside the package
        Path(sys.prefix) / "share" / "ofa",  # the data files of a wheel
    ):
        found = place / name
        if found.exists():
            return found
    raise ConfigError(f"{name} is missing beside {package}; install ofa again")
