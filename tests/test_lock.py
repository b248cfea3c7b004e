"""The lock: exact, complete for what is declared, and without surprises."""

import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in LOCK if line and not line.startswith("#"))


def canonical(name: str) -> str:
    """Return a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Return the names of all that *requirements* install here."""
    found: set[tuple[str, str]] = set()
    left = [(one, "") for one in requirements]
    while left:
        wanted, asked = left.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": asked}):
            continue
        for extra in {
            (canonical(wanted.name), e) for e in ("", *wanted.extras)
        } - found:
            found.add(extra)
            with suppress(PackageNotFoundError):
                told = requires(wanted.name) or ()
                left += [(Requirement(text), extra[1]) for text in told]
    return {name for name, _ in found}


LOCKED = {canonical(name): version for name, version in PINS.items()}


def test_R074_every_line_is_one_exact_version():
    """No range, no URL, no path: what was tested is what is installed."""
    for line in LOCK:
        if not line.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


def test_R074_everything_declared_is_locked():
    """A new dependency without a line in the lock stops here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["cpu"], *extras["test"]]
    declared += extras["structured"]

    for requirement in declared:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        assert canonical(name) in LOCKED, requirement


def test_R074_no_proxy_framework_is_pulled_in():
    """Few dependencies: none that would sit between client and engine."""
    assert not {"litellm", "langchain", "fastapi"} & set(LOCKED)


def test_R074_what_only_tests_use_reaches_no_server():
    """An agent's framework is a client here: nothing that is served pulls it in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    served = [*project["dependencies"], *extras["cpu"], *extras["structured"]]

    pulled = closure(Requirement(text) for text in served)

    assert {"flask", "waitress", "mlx-lm", "werkzeug"} <= pulled
    assert not {"langchain-core", "langgraph", "langsmith", "bfcl-eval"} & pulled


def test_known_bad_versions_are_not_locked():
    """mlx-lm below 0.32 runs code from model folders; waitress below 3.0.1 smuggles."""

    def version(name: str) -> tuple[int, ...]:
        return tuple(int(part) for part in LOCKED[name].split(".")[:3])

    assert version("mlx-lm") >= (0, 32)
    assert version("waitress") >= (3, 0, 1)
    assert version("transformers") >= (5, 7)
