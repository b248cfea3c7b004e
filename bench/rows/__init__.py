"""The rows of the table, by name: each measures one or a few figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from ..context import Run
from ..figures import Figure


@dataclass(frozen=True)
class Row:
    """A name on the command line, and where its figures are measured."""

    name: str
    module: str
    function: str
    about: str
    usual: bool = True  # measured where no row is named

    def measure(self, run: Run) -> Sequence[Figure]:
        """Measure its figures."""
        module = import_module(f"{__package__}.{self.module}")
        measure: Callable[[Run], Sequence[Figure]] = getattr(module, self.function)
        return measure(run)


ROWS = (
    Row("single", "speed", "single", "one stream over HTTP ÷ stream_generate"),
    Row("batch8", "speed", "batch8", "8 streams over HTTP ÷ BatchGenerator"),
    Row("server", "peers", "same_blas", "1, 4, 8 streams ÷ mlx_lm.server, same BLAS"),
    Row("installed", "peers", "as_installed", "the same, the peer as installed"),
    Row("prefix", "prefix", "memory", "warm ÷ cold TTFT, from memory"),
    Row("disk", "prefix", "disk", "warm ÷ cold TTFT, from disk after a restart"),
    Row("chat8", "chat", "chat8", "tokens prefilled in the 8-turn retrieval chat"),
    Row("gap", "gap", "gap", "worst gap while a long prompt joins ÷ one chunk"),
    Row("ttft", "overhead", "ttft", "TTFT over HTTP − in process"),
    Row("cost", "overhead", "cost", "our time per chunk and per request"),
    Row("streams", "load", "streams", "64 scripted streams, /healthz meanwhile"),
    Row("mixed", "load", "mixed", "20,000 mixed requests: memory, descriptors"),
    Row("retrieve", "retrieve", "retrieve", "a look-up among 30,000 passages"),
    Row("hangup", "hangup", "hangup", "hang-up to idle engine"),
    Row("killed", "killed", "killed", "worker killed or stalled: noticed, answering"),
    Row("tools-gemma", "tools", "of_gemma", "valid calls of 100 demanded", False),
    Row("tools-starter", "tools", "of_starter", "the same, 50 of the starter", False),
    Row(
        "tools-tiny4", "tools", "of_tiny_4", "the same, 350 of a random Gemma 4", False
    ),
    Row("fences", "tools", "fences", "fences in place of calls", False),
    Row("forms", "forms", "forms", "how tools are told where no format is", False),
    Row("blas", "blas", "blas", "prefill and decode with each BLAS"),
)
