"""An installation has what the checkout has: a wheel misses no page, prompt or note."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from ofa.shipped import shipped

ROOT = Path(__file__).parent.parent
FOLDERS = ("page", "prompts", "rag_index")


def data_files():
    """Return the files of the data-files table, by where they are installed."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = tables["tool"]["setuptools"]["data-files"]
    return {
        Path(target) / path.name: path
        for target, globs in rows.items()
        for glob in globs
        for path in ROOT.glob(glob)
        if path.is_file()
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_in_a_wheel(folder):
    """Also what would be missed in silence: a glossary, a note, a style sheet."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    here = {ROOT / name for name in listed if (ROOT / name).is_file()}
    packed = {Path("share/ofa") / path.relative_to(ROOT) for path in here}

    assert here
    assert packed - set(data_files()) == set()


def test_every_file_is_where_it_is_looked_for():
    """`shipped` finds each under the name that it has in the checkout."""
    for target, path in data_files().items():
        assert shipped(str(target.relative_to("share/ofa"))) == path
