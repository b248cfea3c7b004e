"""What the engine and retrieval share: they load at once, on the cores of the job."""

import os
import subprocess
import sys

import pytest

from ofa.heavy import allotted_threads

from .engine.mlx import tiny

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="a Linux matter")

PROGRAM = """
import sys, threading
from ofa.engine.mlx import lm
from ofa.engine.mlx.scheduler import _await_gone
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
    _await_gone(thread, 5)  # as the engine does: MLX tidies up as its thread ends
left = [thread.name for thread in threading.enumerate()][1:]
sys.exit("; ".join(wrong) or ", ".join(left) or 0)
"""

MEASURED = """
import sys, threading
from ofa.engine.mlx import few_rows, scheduler
from ofa.engine.mlx.engine import MlxEngine
from ofa.heavy import loading

free, told = [], threading.Event()

def seen(measure):
    def watched(*given):
        other = threading.Thread(target=look)
        other.start()
        told.wait(0.3)
        free.append(told.is_set())
        return measure(*given)
    return watched

def look():
    with loading():  # as the embedding model's load does
        told.set()

few_rows.hasten = seen(few_rows.hasten)
scheduler.warm_up = seen(scheduler.warm_up)
engine = MlxEngine(sys.argv[1])
ready = engine.wait(60).ready
loaded = told.wait(5)
engine.close()
sys.exit(0 if ready and loaded and free and not any(free) else f"{free} {loaded}")
"""


def run_with_model(program, folder):
    """Run *program* on a tiny model of its own and return how it ended."""
    model = tiny.save_model(folder, tiny.GEMMA_3_MODEL, tiny.spm_plan(tiny.GEMMA_3))
    return subprocess.run(
        [sys.executable, "-c", program, str(model)],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_both_models_may_be_loaded_at_once(tmp_path):
    """Neither finds what the other's thread has imported half; no thread is left."""
    done = run_with_model(PROGRAM, tmp_path)

    assert done.returncode == 0, done.stderr[-2000:]


def test_how_fast_a_model_is_is_not_measured_while_another_loads(tmp_path):
    """On two cores half of it was measured, and half as much was looked up for it."""
    done = run_with_model(MEASURED, tmp_path)

    assert done.returncode == 0, done.stderr[-2000:]


@linux_only
@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"SLURM_CPUS_PER_TASK": "1"}, 1),
        ({"OMP_NUM_THREADS": "1", "SLURM_CPUS_PER_TASK": "2"}, 1),
        ({"OMP_NUM_THREADS": "1,4"}, 1),
    ],
)
def test_threads_are_those_of_the_job(env, wanted):
    """The job's allotment decides, and the user's own wish before it."""
    assert allotted_threads(env) == wanted


@linux_only
@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_CPUS_PER_TASK": "4096"},
        {"OMP_NUM_THREADS": "0"},
        {"SLURM_CPUS_PER_TASK": "many"},
    ],
)
def test_threads_never_pass_the_cores_allowed(env):
    """What can't be right counts as not given: the allowed cores are the limit."""
    assert allotted_threads(env) == len(os.sched_getaffinity(0))


@linux_only
def test_a_process_bound_to_one_core_gets_one_thread():
    """The binding counts, however many cores the machine has."""
    code = """
import os
from ofa.heavy import allotted_threads
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(allotted_threads({}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.stdout.strip(), done.stderr) == ("1", "")
