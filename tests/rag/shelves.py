"""Small real indexes: generations of a few passages, and stand-ins that fail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ofa.rag.chance import measure
from ofa.rag.generation import Manifest, write_generation
from ofa.rag.glossary import NONE, Glossary
from ofa.rag.lexical import Lexical
from ofa.rag.passage import Passage

HPC = """
slurm/gpu.md | Asking for GPUs
In an sbatch script, `#SBATCH --gpus=2` asks for two graphics cards for the whole job;
`--gpus-per-node` gives the number on each node.
---
slurm/time.md | Wall time
`#SBATCH --time=01:00:00` sets the limit after which Slurm kills a running job.
---
slurm/array.md | Job arrays
A job array runs one script many times: `sbatch --array=0-99%10` keeps ten running.
---
slurm/after.md | Dependencies
`sbatch --dependency=afterok:JOBID` starts a job only when another ended without error.
---
mpi/bind.md | Binding
`mpirun --bind-to core --map-by socket` pins each MPI rank to a core of its own.
---
modules.md | Modules
`module load gcc/12` puts a compiler on the PATH; `module list` shows what is loaded.
"""

REFRAME = """
tests.md | Writing a test
A ReFrame check is a class with the decorator `@rfm.simple_test`; `valid_systems` and
`valid_prog_environs` say where it may run.
---
gpu.md | GPUs on the new nodes
On the RHEL 9 nodes a ReFrame test asks for GPUs with `num_gpus_per_node`, which becomes
the scheduler's `--gpus-per-node`.
---
policy.md | Site policy
Every test of this site names its maintainers.
"""


def parsed(collection: str, text: str, *, private: bool = False) -> list[Passage]:
    """Return the passages written down in *text*."""
    found = []
    for entry in text.split("---\n"):
        head, _, body = entry.strip().partition("\n")
        path, _, section = head.partition(" | ")
        found.append(Passage(collection, path, section, section, body, private=private))
    return found


def put(
    folder: Path,
    passages: Sequence[Passage],
    embedder,
    *,
    fingerprint: str = "",
    glossary: Glossary = NONE,
) -> str:
    """Write *passages*, all of one collection, as a generation under *folder*."""
    texts = [f"{p.path} {p.section}\n{p.text}" for p in passages]
    name = passages[0].collection
    vectors = embedder.passages(texts)
    manifest = Manifest(
        collection=name,
        created=datetime.now(UTC).isoformat(),
        embedder=embedder.name,
        fingerprint=fingerprint or embedder.fingerprint,
        dimension=embedder.dimension,
        chunker="test",
        chromadb="test",
        passages=len(passages),
        chance=measure(vectors, embedder),
    )
    return write_generation(
        folder / name,
        manifest,
        passages=passages,
        vectors=vectors,
        lexical=Lexical.build(texts),
        glossary=glossary,
    )


class Letters:
    """An embedder of nothing but letter pairs: quick, and the same everywhere."""

    name = "letters"
    fingerprint = "letters"
    dimension = 64

    def query(self, text):
        """Return the unit vector of *text*'s letter pairs."""
        vector = np.zeros(self.dimension, dtype=np.float32)
        letters = re.sub(r"[^a-z]", "", text.lower())
        for pair in zip(letters, letters[1:], strict=False):
            vector[(31 * ord(pair[0]) + ord(pair[1])) % self.dimension] += 1
        return vector / (np.linalg.norm(vector) or 1)

    def passages(self, texts):
        """Return a row each."""
        return np.stack([self.query(text) for text in texts])


class Raises:
    """A shelf on which every look fails with *error*."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def generation(self, collection):
        """Fail."""
        raise self._error

    def collections(self):
        """Fail."""
        raise self._error
