"""What a model of Gemma's tool syntax writes, with its control tokens under alias."""

from ofa.chat import ToolCall
from ofa.toolcalls.base import Mark, Markup
from ofa.toolcalls.dsl import Dsl, Tokens
from ofa.toolcalls.functiongemma import FunctionGemma
from ofa.toolcalls.gemma4 import Gemma4

FAMILIES = (Gemma4, FunctionGemma)
_ALIASED = tuple(
    token
    for family in FAMILIES
    for token in vars(family.tokens).values()
    if isinstance(token, str)
)


def alias(token: str) -> str:
    """Spell *token* as no author and no model can."""
    return f"\ue0005f1e-{_ALIASED.index(token)}\ue001"


def spelled(markup: Markup, mark: Mark) -> str:
    """Return *markup* as the model's own output would be spelled."""
    text = ""
    for piece in markup:
        part = piece.text
        for token in _ALIASED if piece.ours else ():
            part = part.replace(token, mark(token))
        text += part
    return text


def written(form: Dsl, mark: Mark, *calls: tuple[str, dict]) -> str:
    """Return *calls* as *form* writes them."""
    past = [ToolCall(f"call_{n}", *call) for n, call in enumerate(calls)]
    return spelled(form.calls(past), mark)


def block(tokens: Tokens, body: str, mark: Mark = str) -> str:
    """Return a call block of *body*, in which ~ stands for the quote token."""
    inner = body.replace("~", mark(tokens.quote))
    return mark(tokens.call) + inner + mark(tokens.called)
