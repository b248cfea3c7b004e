"""Tiny models, made once a run, and engines on them."""

from __future__ import annotations

import pytest

from ofa.modes import SEED_MODES
from ofa.prompts import Prompts

from . import tiny


@pytest.fixture(scope="session")
def brief(tmp_path_factory):
    """Prompts of a few words a mode."""
    folder = tmp_path_factory.mktemp("prompts")
    for mode in SEED_MODES:
        (folder / mode.prompt).write_text("the answer " * 10)
    (folder / "common.txt").write_text("quick")
    (folder / "openai_tools.txt").write_text("TOOLS")
    return Prompts(folder, {})


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A random Gemma 3 and a random Gemma 4, as folders on disk."""
    root = tmp_path_factory.mktemp("models")
    return {
        "gemma3": tiny.save_model(
            root / "gemma3", tiny.GEMMA_3_MODEL, tiny.spm_plan(tiny.GEMMA_3)
        ),
        "gemma4": tiny.save_model(
            root / "gemma4", tiny.GEMMA_4_MODEL, tiny.spm_plan(tiny.GEMMA_4)
        ),
    }


@pytest.fixture(scope="session")
def smaller(tmp_path_factory):
    """Half as much of each, for tests that ask a great deal."""
    root = tmp_path_factory.mktemp("smaller")
    kinds = {
        "gemma3": (tiny.SMALLER_3, tiny.GEMMA_3),
        "gemma4": (tiny.SMALLER_4, tiny.GEMMA_4),
    }
    return {
        name: tiny.save_model(root / name, config, tiny.spm_plan(control))
        for name, (config, control) in kinds.items()
    }


@pytest.fixture(scope="session")
def models(folders, tmp_path_factory):
    """The tiny models on the tests' own thread, and a Llama, which has no windows."""
    import mlx_lm

    folder = tmp_path_factory.mktemp("llama")
    llama = tiny.save_model(folder, tiny.LLAMA_MODEL, tiny.spm_plan(tiny.GEMMA_3))
    return {
        name: mlx_lm.load(str(path))[0]
        for name, path in (*folders.items(), ("llama", llama))
    }


@pytest.fixture(scope="session")
def engines(folders):
    """One engine on each, for the tests that do not break theirs."""
    from ofa.engine.mlx.engine import MlxEngine, Settings

    made = {
        name: MlxEngine(folder, Settings(rows=8)) for name, folder in folders.items()
    }
    for engine in made.values():
        engine.wait(100)
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture
def engine(engines):
    """The Gemma 3."""
    return engines["gemma3"]
