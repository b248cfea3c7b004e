"""Retrieval as a server runs it: how much a model is given to read."""

from dataclasses import replace

import pytest

from ofa.config import load
from ofa.config_schema import RagSection
from ofa.engine.base import Limits
from ofa.engine.scripted import ScriptedEngine
from ofa.modes import SEED_MODES
from ofa.rag.memory import Block
from ofa.retrieval import PASSAGES_WAIT_S, Retrieval
from ofa.serve import _retrieval
from ofa.state import StateFolder


class Sized(ScriptedEngine):
    """An engine with models of several sizes."""

    def limits(self, weights=""):
        """Return each one's."""
        return {
            "": Limits(65_536, 4096),
            "small": Limits(4096, 1024),
            "slow": Limits(65_536, 4096, prefill_per_s=50.0),
        }[weights]


def test_passages_have_the_size_for_the_model_that_reads_them(tmp_path):
    """A mode's own model has its own context and speed, not the first one's."""
    retrieval = Retrieval(RagSection(), StateFolder(tmp_path), Sized(), None)
    mode = SEED_MODES[0]

    given = [
        retrieval.budget(replace(mode, weights=weights)).max_tokens
        for weights in ("", "small", "slow")
    ]

    assert given == [RagSection().max_tokens, 1024, int(50 * PASSAGES_WAIT_S)]


@pytest.mark.parametrize("kept", [True, False])
def test_passages_outlive_the_server_where_kept_prompts_do(tmp_path, kept):
    """[engine] prefix_disk: without it nothing of a conversation reaches a disk."""
    home = {"HOME": str(tmp_path)}
    config = load(None, home, {"engine.kind": "mlx", "engine.prefix_disk": kept})
    state = StateFolder(tmp_path / "ofa")
    block = Block("PASSAGE", "tag")
    before = _retrieval(config, state, Sized())
    before.lookup._memory.remember(b"link", block)
    before.close()

    after = _retrieval(config, state, Sized())
    found = after.lookup._memory.recall(b"link")
    after.close()

    assert found == (block if kept else None)
    assert (state.path / "turns").exists() is kept
