"""What the tests of grammars share: schemas, walks through masks, tiny batches."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field

import jsonschema
import llguidance
import mlx.core as mx
import numpy as np

from ofa.chat import Output, Sampling
from ofa.engine.mlx.grammar import Grammars
from ofa.engine.mlx.lm_batch import make_generator
from ofa.engine.mlx.sampling import Samplers, Trap, make_processors
from ofa.engine.mlx.vocabulary import Vocabulary
from ofa.engine.text import CHANNEL

from . import tiny

ENDS = {"gemma3": frozenset({1, 106}), "gemma4": frozenset({1, 50, 106})}


def obj(properties, required=None, **more):
    """Return the schema of an object with just these *properties*."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


STRING, INTEGER, WORD = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "string", "maxLength": 4},
)
TREE = obj(
    {"v": {"type": "boolean"}, "c": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
    ["v"],
)
SCHEMAS = {
    "string": STRING,
    "number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 20},
    "integers": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
    "enum": {
        "enum": ["a", 'b"c\\', 1.5, None, True, [1, "x"], {"y": 2}, "\u00e9\u2028"]
    },
    "const": {"const": {"hello": ["w\u00f6rld", 1e-7]}},
    "types": {"type": ["string", "null", "integer"], "maxLength": 3},
    "person": obj({"name": WORD, "age": {"type": "integer", "minimum": 0}}),
    "order": obj({"z": WORD, "a": INTEGER, "m": {"type": "null"}}),
    "optional": obj({"a": INTEGER, "b": WORD, "c": INTEGER}, ["b"]),
    "names": obj({'q"\\\n\u00fc\U0001f600': {"type": "boolean"}, "": {"const": 0}}),
    "map": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    "patterns": {
        "type": "object",
        "patternProperties": {"^a": INTEGER, "^b": {"type": "null"}},
        "additionalProperties": False,
    },
    "any of": {"anyOf": [obj({"k": {"const": "a"}, "v": INTEGER}), INTEGER, WORD]},
    "one of": {"oneOf": [obj({"k": {"const": "a"}}), obj({"k": {"const": "b"}})]},
    "all of": {
        "allOf": [obj({"a": INTEGER}, additionalProperties=True), {"required": ["b"]}]
    },
    "tree": {"$defs": {"t": TREE}, "$ref": "#/$defs/t"},
    "list": obj({"n": INTEGER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "tuple": {"type": "array", "prefixItems": [INTEGER, WORD], "items": False},
    "pattern": {"type": "string", "pattern": r"^\d{2}-[a-c]+(x|yz)?$"},
    "date": {"type": "string", "format": "date"},
    "steps": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 50},
}


class Maker:
    """Grammars for one tiny model, and what tells tokens from text there."""

    def __init__(self, folder, ends, **more):
        self.vocabulary = Vocabulary(tiny.load_tokenizer(folder))
        self.size = 1 + max(self.vocabulary.ids.values())
        self.ends = ends
        labelled = CHANNEL if CHANNEL.open in self.vocabulary.ids else None
        more = {"thinking": labelled, "logits": self.size, **more}
        self.grammars = Grammars(self.vocabulary, ends=ends, **more)

    def mask(self, schema=None, *, prompt=0, **thought):
        """Return a fresh mask for *schema*, or for any object."""
        return self.grammar(schema, **thought).processor(prompt)

    def grammar(self, schema=None, **thought):
        """Return the grammar of *schema*, or of any object."""
        output = Output() if schema is None else Output("json_schema", schema)
        return self.grammars.compile(output, **thought)

    def text(self, tokens):
        """Return the bytes of *tokens* without the end."""
        return b"".join(map(self.vocabulary.raw, without_end(tokens, self.ends)))


def without_end(tokens, ends):
    """Return *tokens* up to the one that ends the answer, if one does."""
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


def allowed(mask, tokens=(), size=None):
    """Return the ids that *mask* lets follow *tokens*, a prompt included."""
    logits = mx.zeros((1, size or mask._logits))
    out = mask(mx.array(list(tokens), dtype=mx.int32), logits)
    assert out.dtype == logits.dtype and out.shape == logits.shape
    return set(np.flatnonzero(np.array(out[0]) == 0).tolist())


def walk(maker, mask, rnd, *, steps=300, tidy=0.0):
    """
    Return (tokens, whether an end came) of a random walk through *mask*.

    *tidy* is how often what closes something is preferred.
    """
    closing = {maker.vocabulary.ids[char] for char in '"}],'} | maker.ends
    tokens = []
    for _ in range(steps):
        choice = allowed(mask, tokens)
        neat = choice & closing
        choice = neat if neat and rnd.random() < tidy else choice
        tokens.append(rnd.choice(sorted(choice)))
        if tokens[-1] in maker.ends:
            return tokens, True
    return tokens, False


def is_beginning(maker, schema, tokens, **thought):
    """Return whether *tokens* may begin an answer that fits *schema*."""
    mask = maker.mask(schema, **thought)
    return all(token in allowed(mask, tokens[:at]) for at, token in enumerate(tokens))


def check(schema, text):
    """Fail unless *text* is JSON that fits *schema*; return its value."""
    value = json.loads(text)
    kind = jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator
    )
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    return value


@dataclass
class Asked:
    """One row of a batch, and what came of it."""

    ids: list[int]
    mask: object = None
    sampling: Sampling = Sampling(temperature=0.0)
    max_tokens: int = 80
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    fault: Exception | None = None


def answer(model, maker, rows):
    """Have *model* answer *rows* in one batch, as the engine sets it up."""
    samplers = Samplers(maker.size)
    traps = [
        (
            samplers.pick(row.sampling),
            [
                *make_processors(row.sampling, prompt=len(row.ids), size=maker.size),
                *([Trap(row.mask, lambda _, logits: logits)] if row.mask else []),
            ],
        )
        for row in rows
    ]
    stream = mx.new_thread_local_stream(mx.default_device())
    generator = make_generator(model, ends=maker.ends, rows=len(rows), stream=stream)
    uids = generator.insert_segments(
        [[row.ids] for row in rows],
        [row.max_tokens for row in rows],
        [None] * len(rows),
        [[] for _ in rows],
        [sampler for sampler, _ in traps],
        [processors for _, processors in traps],
    )
    running = dict(zip(uids, rows, strict=True))
    faulty = dict(zip(uids, (processors for _, processors in traps), strict=True))
    while running:
        for told in generator.next()[1]:
            row = running[told.uid]
            row.fault = next(
                (trap.fault for trap in faulty[told.uid] if trap.fault), None
            )
            if row.fault is None:
                row.tokens.append(told.token)
                row.finish = told.finish_reason or ""
            if row.fault or row.finish:
                del running[told.uid]
                generator.remove([told.uid])
    return rows


class Held:
    """llguidance, with matchers that wait until they may."""

    def __init__(self):
        self.go = threading.Event()

    def __getattr__(self, name):
        return getattr(llguidance, name)

    def LLMatcher(self, *args, **how):
        """Return a matcher, once that is allowed."""
        self.go.wait(30)
        return llguidance.LLMatcher(*args, **how)
