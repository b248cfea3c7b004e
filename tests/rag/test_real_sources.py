"""Real documents, where they are installed: OpenFOAM's examples and Slurm's pages."""

from pathlib import Path

import pytest

from ofa.rag.build import Workshop, build
from ofa.rag.retrieve import Retriever, Settings
from ofa.rag.shelf import Shelf
from ofa.rag.sources import load_sources, packaged_sources

EXAMPLES = Path("/usr/share/doc/openfoam-examples/examples")
SLURM = Path("/usr/share/doc/slurm-wlm/html")

# A part of each, so that a test takes seconds; all of it takes minutes.
SOURCES = f"""
[openfoam]
[[openfoam.places]]
label = "tutorials"
roots = ["{EXAMPLES}"]
globs = [
    "incompressible/simpleFoam/pitzDaily/**", "basic/potentialFoam/cylinder/**",
    "incompressible/icoFoam/cavity/cavity/system/*",
]
exclude = ["**/*.dat", "**/*.csv"]

[hpc]
[[hpc.places]]
label = "Slurm"
roots = ["{SLURM}"]
globs = ["job_array.html", "job_exit_code.html", "preempt.html", "mpi_guide.html"]
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, embedder):
    """Build the part of both, through the same sources.toml that a site writes."""
    for at, package in ((EXAMPLES, "openfoam-examples"), (SLURM, "slurm-wlm-doc")):
        if not at.is_dir():
            pytest.skip(f"Debian's {package} is not installed")
    folder = tmp_path_factory.mktemp("real")
    (folder / "sources.toml").write_text(SOURCES)
    sources = load_sources(folder / "sources.toml")
    workshop = Workshop(folder / "chroma", folder, embedder, env={})
    made = build(tuple(sources.values()), workshop)
    assert all(one.generation for one in made)
    return Shelf(folder)


@pytest.mark.parametrize(
    ("collection", "question", "path", "told"),
    [
        (
            "openfoam",
            "simpleFoam pitzDaily fvSolution residualControl",
            "incompressible/simpleFoam/pitzDaily/system/fvSolution",
            "residualControl",
        ),
        (
            "openfoam",
            "Which turbulence model does the pitzDaily case of simpleFoam use?",
            "incompressible/simpleFoam/pitzDaily/constant/turbulenceProperties",
            "kEpsilon",
        ),
        (
            "hpc",
            "sbatch --array: how many tasks of a job array run at the same time?",
            "job_array.html",
            "%",
        ),
        (
            "hpc",
            "What is the exit code of a job killed by a signal?",
            "job_exit_code.html",
            "signal",
        ),
    ],
)
def test_a_question_finds_its_page(shelf, embedder, collection, question, path, told):
    """Real questions find the file, and the answer's words, among the first three."""
    retriever = Retriever(shelf, lambda: embedder, settings=Settings(deadline_s=60))

    found = retriever.find([collection], question)

    first = [hit.passage for hit in found.hits[:3]]
    assert path in {passage.path for passage in first}, found.reason
    assert any(told in p.text for p in first if p.path == path)


def test_pages_have_no_chrome(shelf):
    """Slurm's menus and footers, which are the same on each page, are in no passage."""
    passages = shelf.generation("hpc").passages

    assert passages
    for passage in passages:
        assert "Privacy Policy" not in passage.text
        assert "Mailing Lists" not in passage.text


def test_dictionaries_are_whole_entries(shelf):
    """No passage of a dictionary opens a brace and does not close it."""
    for passage in shelf.generation("openfoam").passages:
        if passage.path.endswith(("fvSchemes", "fvSolution")):
            assert passage.text.count("{") == passage.text.count("}"), passage.path


def test_the_packaged_places_find_them():
    """What sources.toml declares leads to the installed documents by itself."""
    if not (EXAMPLES.is_dir() and SLURM.is_dir()):
        pytest.skip("Debian's openfoam-examples or slurm-wlm-doc is not installed")
    sources = load_sources(packaged_sources())
    roots = {p.root({}) for name in ("openfoam", "hpc") for p in sources[name].places}

    assert {EXAMPLES, SLURM} <= roots
