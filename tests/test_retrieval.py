"""Retrieval as a server runs it: how much a model is given to read."""

from dataclasses import replace

from ofa.config_schema import RagSection
from ofa.engine.base import Limits
from ofa.engine.scripted import ScriptedEngine
from ofa.modes import SEED_MODES
from ofa.retrieval import PASSAGES_WAIT_S, Retrieval
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
