"""The engine's model and the embedding model are loaded at once, as a server does."""

import subprocess
import sys

from .engine.mlx import tiny

PROGRAM = """
import sys, threading
from ofa.engine.mlx import lm
from ofa.rag.embed import Embedder, packaged_model

start, wrong = threading.Barrier(2), []

def run(load):
    start.wait()
    try:
        load()
    except BaseException as error:
        wrong.append(repr(error))

embedder = Embedder(packaged_model(), threads=1)
loads = (embedder.load, lambda: lm.load(sys.argv[1]))
threads = [threading.Thread(target=run, args=(load,)) for load in loads]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("; ".join(wrong) or 0)
"""


def test_both_models_may_be_loaded_at_once(tmp_path):
    """Neither finds what the other's thread has imported half."""
    folder = tiny.save_model(tmp_path, tiny.GEMMA_3_MODEL, tiny.spm_plan(tiny.GEMMA_3))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr[-2000:]
