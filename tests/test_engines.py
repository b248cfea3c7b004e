"""Making the configured engine: what of the configuration reaches it."""

from contextlib import closing

import pytest

from ofa.config import load
from ofa.engines import make_engine
from ofa.state import StateFolder

from .engine.mlx import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random model."""
    folder = tmp_path_factory.mktemp("model")
    return tiny.save_model(folder, tiny.GEMMA_3_MODEL, tiny.spm_plan(tiny.GEMMA_3))


@pytest.mark.parametrize("kept", [True, False])
def test_kept_prompts_go_to_the_state_folder_if_the_site_says_so(model, tmp_path, kept):
    """[engine] prefix_disk: in `prefixes` there, as many bytes as it says; else none
    are written."""
    told = {"engine.model": str(model), "engine.prefix_disk": kept}
    env = {"HOME": str(tmp_path)}
    config = load(None, env, {**told, "engine.prefix_disk_gib": 0.5})
    state = StateFolder(tmp_path / "ofa")

    with closing(make_engine(config, state, env)) as engine:
        details = engine.wait(60).details

    assert (state.path / "prefixes").is_dir() is kept
    assert details.get("kept_on_disk") == (f"0 of {1 << 29}" if kept else None)
