"""Which format of tool calls a model was trained on: by its tokens and its template."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...toolcalls.base import Format, Mark
from ...toolcalls.functiongemma import FunctionGemma
from ...toolcalls.gemma4 import Gemma4
from ...toolcalls.generic import Generic
from ...toolcalls.hermes import Hermes
from .vocabulary import Tokenizer, Vocabulary

_BY_NAME: Mapping[str, Callable[[Mark], Format]] = {
    "gemma4": Gemma4,
    "functiongemma": FunctionGemma,
    "hermes": Hermes,
    "generic": lambda _: Generic(),
}
_SIGNS = {  # the first whose sign is a token
    "<|tool_call>": "gemma4",
    "<start_function_call>": "functiongemma",
    "<tool_call>": "hermes",
}


def find_format(tokenizer: Tokenizer, vocabulary: Vocabulary, name: str) -> Format:
    """Return the format called *name*, or for "auto" the one a model was trained on."""
    if name == "auto":
        found = (_SIGNS[sign] for sign in _SIGNS if sign in vocabulary.ids)
        # Hermes's tags are plain letters to some tokenizers; the template knows them.
        told = str(getattr(tokenizer, "chat_template", "") or "")
        name = next(found, "hermes" if "<tool_call>" in told else "generic")
    return _BY_NAME[name](vocabulary.mark)
