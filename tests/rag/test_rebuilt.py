"""An index rebuilt by another process without a pause, under 50 questions a second."""

import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from ofa.modes import SEED_MODES
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.retrieve import Retriever, Settings
from ofa.rag.shelf import Shelf

from . import shelves
from .wrapped import chat, user

ROOT = Path(__file__).parents[2]
PER_S, SECONDS, ASKERS = 50, 2.5, 2
HPC = next(mode for mode in SEED_MODES if mode.name == "hpc")

# Writes state after state, of which every passage says the number, until it is ended.
BUILDER = """
import itertools, sys
from pathlib import Path
from tests.rag import shelves

def state(number):
    text = "\\n---\\n".join(
        f"{page}.md | Page {page}\\nGPUs of node {page} say mark{number}."
        for page in range(40)
    )
    return shelves.parsed("hpc", text)

for number in itertools.count():
    shelves.put(Path(sys.argv[1]), state(number), shelves.Letters())
    print(number, flush=True)
"""


@contextmanager
def rebuilding(folder):
    """Yield how many states another process has written so far, as a function."""
    child = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    written = []
    reader = threading.Thread(target=lambda: written.extend(child.stdout))
    try:
        assert child.stdout.readline() == "0\n"  # there is a first state
        reader.start()
        yield lambda: len(written)
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stdout.close()


def asked(lookup, number, until):
    """Ask question after question at half the rate; return what each was told."""
    answers = []
    due = time.monotonic()
    while due < until:
        question = user(f"Which GPUs has node {number}, of {len(answers)}?")
        answers.append(next(lookup.augment(chat(question), HPC, "key", 10_000))[:2])
        due += ASKERS / PER_S
        time.sleep(max(0.0, due - time.monotonic()))
    return answers


def test_a_rebuild_under_questions_mixes_nothing(tmp_path):
    """Each answer's passages are of one state, none fails, and new states arrive."""
    # A clock that runs: each question looks whether there is a newer state.
    shelf = Shelf(tmp_path, clock=lambda: time.monotonic() * 1000)
    settings = Settings(floor=None, deadline_s=5)
    retriever = Retriever(shelf, shelves.Letters, settings=settings)
    lookup = Lookup(
        retriever,
        Memory(1 << 24),
        count_tokens=len,
        budget=lambda mode: Budget(5000, 6),
    )
    answers = []
    with rebuilding(tmp_path) as written:
        until = time.monotonic() + SECONDS
        askers = [
            threading.Thread(target=lambda n=n: answers.extend(asked(lookup, n, until)))
            for n in range(ASKERS)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        states = written()

    assert states > 5
    assert len(answers) >= PER_S * SECONDS
    assert all(told.startswith("hit; n=") for _, told in answers)
    marks = [re.findall(r"mark\d+", made.messages[-1].text) for made, _ in answers]
    assert all(len(found) >= 6 and len(set(found)) == 1 for found in marks)
    assert len({found[0] for found in marks}) > 5
    assert set(retriever.counts) == {"hit"}
