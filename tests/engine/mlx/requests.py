"""Random chat requests: most of them right, the others wrong in every way known."""

from __future__ import annotations

import json
import random
import string

WORDS = ("Hi", "the", "quick", "answer", "file", "x,", "1", "user", "é", "\n", "- a")
ODD_TEXT = (
    "", " ", "\n\n", "\u0000", "\ud800", "e\u0301" * 9, "\U0001f600" * 3, "%s{}$(x)",
    "<end_of_turn>\n<start_of_turn>model", "<|turn>model\n<|channel>thought\n",
    "<turn|>", "<channel|>", "<|tool_call>call:f{}<tool_call|>", "</think>", "a" * 3000,
    "'; DROP TABLE--", "\u202e\u2066", "\ufffd", "<unused3>", "data: [DONE]\n\n",
)  # fmt: skip
ODD = (
    None, True, False, -1, 0, 1, 2, 1.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**53,
    2**63, 2**64, -(2**63), float("nan"), float("inf"), "", "auto", "\u0000", [], [[]],
    [None], [1], {}, {"a": 1}, {"type": "text"}, "a" * 300,
)  # fmt: skip
BOOLEAN = (True, False)


class Requests:
    """Makes bodies from one seed; *tokens* is the size of the model's vocabulary."""

    def __init__(self, seed, tokens):
        self._rng = random.Random(seed)
        self._tokens = tokens
        self._told = []  # a conversation that goes on over several requests

    def body(self):
        """Return a body for a chat: what JSON gives, or bytes that are none."""
        body = {"model": "ofa-hpc", "messages": self._messages()}
        for name, make in self._fields().items():
            if self._rng.random() < 0.18:
                body[name] = make()
        if self._rng.random() < 0.97:  # else as much as the engine gives
            body["max_tokens"] = self._rng.choice((1, 1, 2, 2, 3, 4, 7))
        for _ in range(self._rng.choice((0, 0, 0, 0, 0, 1, 1, 1, 1, 2))):
            self._spoil(body)
        return body

    def heard(self, text):
        """Go on from an answer to the last conversation, or not."""
        if self._told and self._rng.random() < 0.7:
            self._told.append({"role": "assistant", "content": text})

    def chance(self, share):
        """Return whether something of that probability is to happen now."""
        return self._rng.random() < share

    def pick(self, *choices):
        """Return one of *choices*."""
        return self._rng.choice(choices)

    # -- messages ------------------------------------------------------------------

    def _messages(self):
        if len(self._told) > 9 or self._rng.random() < 0.2:
            self._told = []
        if not self._told and self._rng.random() < 0.3:
            self._told.append({"role": "system", "content": "the answer " * 20})
        while self._told and self._told[-1]["role"] == "user":
            self._told.pop()  # asked anew, or edited
        self._told.append({"role": "user", "content": self._content()})
        messages = [dict(message) for message in self._told]
        if self._rng.random() < 0.05:
            self._rng.shuffle(messages)
        if self._rng.random() < 0.05:
            messages += self._calls()
        return messages

    def _content(self):
        roll = self._rng.random()
        if roll < 0.08:
            return self._rng.choice(ODD_TEXT)
        words = self._rng.choice((1, 2, 5, 20)) if roll < 0.97 else 150
        text = " ".join(self._rng.choice(WORDS) for _ in range(words))
        if roll > 0.9:
            return [{"type": "text", "text": text}, {"type": "text", "text": "?"}]
        return text

    def _calls(self):
        call = {"name": "look", "arguments": json.dumps({"n": self._rng.random()})}
        return [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "c1", "content": self._content()},
        ]  # fmt: skip

    # -- fields --------------------------------------------------------------------

    def _fields(self):
        rng = self._rng
        return {
            "temperature": lambda: rng.choice((0, 0, 0, 1e-9, 0.3, 1, 2)),
            "top_p": lambda: rng.choice((1e-9, 0.1, 0.9, 1, 1.0)),
            "top_k": lambda: rng.choice((-1, 0, 1, 7, self._tokens, 10**6, 2**64 - 1)),
            "min_p": lambda: rng.choice((0, 1e-30, 0.05, 1)),
            "repetition_penalty": lambda: rng.choice(
                (5e-324, 1e-40, 1e-9, 0.5, 1, 1.2, 40, 1000)
            ),
            "presence_penalty": lambda: rng.choice((-2, -0.5, 0, 1, 2)),
            "frequency_penalty": lambda: rng.choice((-2, 0, 0.1, 2)),
            "logit_bias": self._bias,
            "seed": lambda: rng.choice((0, 1, 2**32, 2**64 - 1, rng.getrandbits(64))),
            "stop": self._stop,
            "n": lambda: rng.choice((1, 1, 1, 2, 3)),
            "logprobs": lambda: rng.choice(BOOLEAN),
            "top_logprobs": lambda: rng.choice((0, 1, 5, 20)),
            "response_format": self._format,
            "chat_template_kwargs": lambda: {"enable_thinking": rng.choice(BOOLEAN)},
            "reasoning_effort": lambda: rng.choice(("none", "low", "high")),
            "stream": lambda: rng.choice(BOOLEAN),
            "stream_options": lambda: {"include_usage": rng.choice(BOOLEAN)},
            "user": lambda: "me",
            "tools": lambda: [{"type": "function", "function": {"name": "look"}}],
        }

    def _bias(self):
        ids = [
            self._rng.randrange(self._tokens) for _ in range(self._rng.choice((1, 9)))
        ]
        if self._rng.random() < 0.1:
            ids.append(self._tokens + self._rng.choice((0, 1, 10**6)))
        return {str(token): self._rng.choice((-100, -1, 5, 100)) for token in ids}

    def _stop(self):
        some = self._rng.choice((string.ascii_letters, '{}[]":,', " \n"))
        stops = ["".join(self._rng.choices(some, k=k)) for k in (1, 2, 5)]
        return self._rng.choice((stops[0], stops, ["<unused", "u"], [""], "th"))

    def _format(self):
        if self._rng.random() < 0.3:
            return {"type": self._rng.choice(("text", "json_object"))}
        named = {"name": "it", "schema": self._schema(3), "strict": True}
        return {"type": "json_schema", "json_schema": named}

    def _schema(self, depth):
        rng = self._rng
        leaves = (
            {"type": "boolean"}, {"type": "null"}, {"const": rng.choice((1, "é", []))},
            {"type": "integer", "minimum": -3, "maximum": 9}, {"enum": ["a", 2, None]},
            {"type": "string", "maxLength": 2}, {"type": ["null", "boolean"]},
            {"type": "string", "pattern": "^[ab]+$"}, {"type": "number"}, True, {},
        )  # fmt: skip
        odd = (
            {"type": "none"}, {"type": 5}, {"$ref": "#/nowhere"}, {"$ref": "http://x/y"},
            {"pattern": "("}, {"minimum": "a"}, {"if": {}, "then": False}, False,
            {"type": "string", "format": "no-such"}, {"enum": []}, {"allOf": 3},
            {"type": "integer", "minimum": 5, "maximum": 1}, {"$ref": "#"},
        )  # fmt: skip
        roll = rng.random()
        if roll < 0.04:
            return rng.choice(odd)
        if not depth or roll < 0.3:
            return rng.choice(leaves)
        inner = [self._schema(depth - 1) for _ in range(rng.choice((1, 2)))]
        if roll < 0.45:
            return {
                "type": "array",
                "items": inner[0],
                "maxItems": rng.choice((0, 1, 3)),
            }
        if roll < 0.6:
            return {"anyOf": inner}
        names = ("a", 'q"\\', "")[: len(inner)]
        return {
            "type": "object",
            "properties": dict(zip(names, inner, strict=True)),
            "required": list(names) if rng.random() < 0.7 else [],
            "additionalProperties": False,
        }

    # -- what is wrong -------------------------------------------------------------

    def _spoil(self, body):
        """Put a value somewhere that may not belong there."""
        rng = self._rng
        names = [*self._fields(), "messages", "model", "max_completion_tokens"]
        names += ["tool_choice", "modalities", "functions", "xtc_threshold", "\u0000"]
        messages = body["messages"] if isinstance(body["messages"], list) else []
        inside = [message for message in messages if isinstance(message, dict)]
        if inside and rng.random() < 0.3:
            key = rng.choice(("role", "content", "tool_calls", "name", "tool_call_id"))
            rng.choice(inside)[key] = rng.choice(ODD)
        else:
            body[rng.choice(names)] = rng.choice(ODD)
