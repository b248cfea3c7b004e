"""Gemma 4's own tool format: its tokens, in the syntax of `dsl`."""

from __future__ import annotations

from .dsl import Dsl, Tokens


class Gemma4(Dsl):
    """
    ``<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>``.

    Declarations stand in the system turn behind its text, with nothing between; calls,
    results and the answer to them all stand in one assistant's turn.
    """

    name = "gemma4"
    tokens = Tokens(
        declare="<|tool>",
        declared="<tool|>",
        call="<|tool_call>",
        called="<tool_call|>",
        answer="<|tool_response>",
        answered="<tool_response|>",
        quote='<|"|>',
    )
