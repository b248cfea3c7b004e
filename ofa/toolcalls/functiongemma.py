"""FunctionGemma's tool format: Gemma 3's tokens for calls, in the syntax of `dsl`."""

from __future__ import annotations

from collections.abc import Sequence

from ..chat import Tool
from .base import Markup, Piece
from .dsl import Dsl, Tokens

# Part of the trained form, word for word: without it the model answers in prose.
_SENTENCE = "You are a model that can do function calling with the following functions"


class FunctionGemma(Dsl):
    """
    ``<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>``.

    Declarations stand in the developer's turn, the model line's name for the system's.
    """

    name = "functiongemma"
    tokens = Tokens(
        declare="<start_function_declaration>",
        declared="<end_function_declaration>",
        call="<start_function_call>",
        called="<end_function_call>",
        answer="<start_function_response>",
        answered="<end_function_response>",
        quote="<escape>",
    )

    def declare(self, tools: Sequence[Tool]) -> Markup:
        """Return what tells a model of *tools*, behind the sentence it waits for."""
        told = super().declare(tools)
        return (Piece(f"\n\n{_SENTENCE}"), *told) if told else ()
