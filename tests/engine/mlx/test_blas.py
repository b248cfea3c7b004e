"""The optimised BLAS: found without importing, loaded once, right, and its threads."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ofa.engine.mlx.blas import load_blas

ROOT = Path(__file__).parents[3]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="a Linux matter")
REPORT = "import dataclasses, json; from ofa.engine.mlx.blas import load_blas;"
SHOW = "print(json.dumps(dataclasses.asdict(load_blas())))"


def child(code: str, *options: str, path: tuple[Path, ...] = (), **env: str) -> dict:
    """Run *code* in a Python of its own; return the JSON it printed last."""
    where = os.pathsep.join(map(str, (ROOT, *path)))
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": where, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def has_mkl() -> bool:
    """Return whether this environment brings MKL for a CPU-only mlx."""
    try:
        metadata.version("mkl")
        metadata.version("mlx-cpu")
    except metadata.PackageNotFoundError:
        return False
    return sys.platform == "linux" and platform.machine() == "x86_64"


def install(folder: Path, name: str, *files: str) -> None:
    """Put into *folder* what pip leaves of a package: its metadata and file list."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.mark.skipif(not has_mkl(), reason="mkl is not installed")
def test_products_in_float32_are_right_and_made_by_mkl():
    """MLX's own product goes through the library that the report names."""
    code = f"""
{REPORT}
report = load_blas()
import mlx.core as mx
import numpy as np
a, b = (np.random.default_rng(seed).standard_normal((300, 300)) for seed in (1, 2))
product = np.array(mx.array(a.astype("f4")) @ mx.array(b.astype("f4")))
error = float(np.abs(product - a @ b).max())
used = [line.split()[-1] for line in open("/proc/self/maps") if "libmkl_" in line]
print(json.dumps([dataclasses.asdict(report), error, used]))
"""

    report, error, used = child(code)

    assert report["library"] == "mkl"
    assert report["version"] == metadata.version("mkl")
    assert report["threads"] >= 1
    assert report["reason"] == ""
    assert error < 1e-3
    # Beside the dispatcher, the kernels: they are loaded by the first product.
    assert any("libmkl_core" in name for name in used)


@pytest.mark.skipif(not has_mkl(), reason="mkl is not installed")
@pytest.mark.parametrize(
    ("given", "policy", "spins"),
    [
        ({}, "ACTIVE", "1000"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "PASSIVE", None),
        ({"GOMP_SPINCOUNT": "5"}, None, "5"),
    ],
)
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(given, policy, spins):
    """Spinning threads would starve the server's others on the same cores."""
    code = f"{REPORT} load_blas(); import os; env = os.environ.get;"
    show = 'print(json.dumps([env("OMP_WAIT_POLICY"), env("GOMP_SPINCOUNT")]))'

    assert child(code + show, **given) == [policy, spins]


@pytest.mark.skipif(not has_mkl(), reason="mkl is not installed")
def test_idle_threads_take_no_time():
    """Awake between two products, they are asleep soon after the last one."""
    code = f"""
{REPORT}
load_blas()
import mlx.core as mx, time
mx.eval(mx.ones((512, 512)) @ mx.ones((512, 512)))
time.sleep(0.1)
before = time.process_time()
time.sleep(1)
print(json.dumps(time.process_time() - before))
"""

    assert child(code) < 0.2


@pytest.mark.skipif(not has_mkl(), reason="mkl is not installed")
@pytest.mark.parametrize(
    ("given", "branch"), [({}, 2), ({"MKL_CBWR": "COMPATIBLE"}, 3)]
)
def test_one_code_path_for_all_products_on_amd(given, branch):
    """There MKL's own choice shares few rows out badly; what the user chose stands."""
    code = f"{REPORT} import ctypes; path = load_blas().path;"
    show = "print(json.dumps(ctypes.CDLL(path).MKL_CBWR_Get(1)))"
    is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()

    assert child(code + show, **given) == (branch if is_amd or given else 1)


@pytest.mark.skipif(not has_mkl(), reason="mkl is not installed")
def test_torch_in_the_same_process_stays_right():
    """The embedder's torch, imported later, computes as before."""
    code = f"""
{REPORT}
load_blas()
import mlx.core as mx, torch
a = torch.arange(10000, dtype=torch.float32).reshape(100, 100) / 1e4
mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))
print(json.dumps(float((a @ a - (a.double() @ a.double()).float()).abs().max())))
"""

    assert child(code) < 1e-4


@linux_only
def test_too_late_is_said():
    """After mlx, nothing can be done, and the report says so."""
    report = child("import mlx.core;" + REPORT + SHOW)

    assert report["library"] == ""
    assert "mlx was imported first" in report["reason"]


def test_the_first_answer_stands():
    """A second call loads nothing again and repeats the report."""
    assert load_blas() is load_blas()


@linux_only
def test_nothing_installed_is_said(tmp_path):
    """Without a library the report names the packages to install."""
    report = child(REPORT + SHOW, "-S")

    assert report["library"] == ""
    assert "pip install mkl" in report["reason"]


@linux_only
@pytest.mark.parametrize("name", ["mlx-cuda-12", "mlx_cuda", "mlx-cuda-13"])
def test_a_build_for_cuda_is_left_alone(tmp_path, name):
    """On a GPU products don't come here; the CPU's threads are left to others."""
    install(tmp_path, name)

    report = child(REPORT + SHOW, "-S", path=(tmp_path,))

    assert report["reason"] == "not needed: mlx is built for CUDA"


@linux_only
def test_a_library_that_does_not_load_is_said(tmp_path):
    """A damaged library is a reason with its name, not a crash."""
    install(tmp_path, "mkl", "libmkl_rt.so.3")
    (tmp_path / "libmkl_rt.so.3").write_text("no library")

    report = child(REPORT + SHOW, "-S", path=(tmp_path,))

    assert report["library"] == ""
    assert report["reason"].startswith("mkl 1.0: ")


@linux_only
def test_a_file_that_is_gone_is_passed_over(tmp_path):
    """A package whose file was removed counts as not installed."""
    install(tmp_path, "mkl", "libmkl_rt.so.3")

    report = child(REPORT + SHOW, "-S", path=(tmp_path,))

    assert "is installed" in report["reason"]


@linux_only
def test_importing_the_module_loads_nothing():
    """Import is free: no library, no mlx, no numpy."""
    code = "import json, sys, ofa.engine.mlx.blas; print(json.dumps(list(sys.modules)))"

    modules = child(code)

    assert not {"mlx", "numpy", "mkl", "torch"} & set(modules)
