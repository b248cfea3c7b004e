"""A way to have a real model say what a test wants: a mask that allows one token."""

from __future__ import annotations

from dataclasses import replace


class Script:
    """
    Grammars that hold answers with tools to what was told last.

    An answer is text in which control tokens are spelled, with *quoted* ones between
    braces: these stay the characters they are. Its end token comes behind it.
    """

    def __init__(self, ready, end=106):
        self._vocabulary = ready.vocabulary
        self._end = end
        self._answers = [[end]]
        self.asked = []  # what each grammar was made for

    def says(self, *answers, end=None):
        """Let the next answers be these, and the last of them all that come then."""
        end = self._end if end is None else end
        self._answers = [[*self.ids(answer), end] for answer in answers]

    def ids(self, answer):
        """Return the tokens of *answer*."""
        parts = answer.replace("{{", "\0{{").replace("}}", "}}\0").split("\0")
        return self._vocabulary.encode(
            "".join(
                part[2:-2] if part.startswith("{{") else self._vocabulary.mark(part)
                for part in parts
            )
        )

    def compile_calls(self, how, tools, choice, **more):
        """Return what holds rows to the next answer."""
        self.asked.append((how, tools, choice, more))
        ids = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return _Line(ids)

    def prepare(self):
        """Do nothing: there is nothing to build."""


class _Line:
    def __init__(self, ids):
        self._ids = ids

    def processor(self, prompt):
        """Return what forbids all but the token in turn."""
        import mlx.core as mx

        def mask(context, logits):
            turn = context.shape[0] - prompt
            token = self._ids[min(turn, len(self._ids) - 1)]
            allowed = mx.arange(logits.shape[-1]) == token
            return mx.where(allowed, mx.zeros_like(logits), -mx.inf)

        return mask


def scripted(engine):
    """Give *engine*'s first model a script, and return that."""
    weights = engine._first.weights
    script = Script(weights.ready)
    weights.ready = replace(weights.ready, grammars=script)
    return script
