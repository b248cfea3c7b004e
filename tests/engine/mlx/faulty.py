"""An engine of real parts, each of which fails where and when a test says so."""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field, replace

from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.memory import GiB
from ofa.engine.mlx.prefix import PrefixStore
from ofa.engine.mlx.prefix_disk import PrefixDisk
from ofa.engine.mlx.ready import prepare
from ofa.engine.mlx.template import Prompts

from .odd import Odd

SECRET = "what-the-user-wrote"  # no client may see an exception's own words

# One of each kind that Python, MLX and the system have been seen to raise.
KINDS = {
    "runtime": lambda: RuntimeError(f"[eval] {SECRET}"),
    "metal": lambda: RuntimeError(
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008:"
        f"kIOGPUCommandBufferCallbackErrorOutOfMemory) {SECRET}"
    ),
    "bad_alloc": lambda: RuntimeError(f"std::bad_alloc {SECRET}"),
    "memory": lambda: MemoryError(SECRET),
    "value": lambda: ValueError(f"[broadcast_shapes] {SECRET}"),
    "type": lambda: TypeError(SECRET),
    "index": lambda: IndexError(SECRET),
    "key": lambda: KeyError(SECRET),
    "disk_full": lambda: OSError(errno.ENOSPC, SECRET),
    "attribute": lambda: AttributeError(SECRET),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, SECRET),
    "exit": lambda: SystemExit(SECRET),
}
OUT_OF_MEMORY = ("metal", "bad_alloc", "memory")


@dataclass
class Fault:
    """
    Raises what *make* makes at *places*, there at the *at*-th call once it is armed.

    With *times* 0 it goes on raising. `happened` is set by the first one.
    """

    places: frozenset[str] = frozenset()
    make: object = None
    at: int = 1
    times: int = 1
    calls: int = 0
    happened: threading.Event = field(default_factory=threading.Event)

    def arm(self, make, *places, at=1, times=1):
        """Fail at *places* from now on."""
        self.make, self.at, self.times, self.calls = make, at, times, 0
        self.happened.clear()
        self.places = frozenset(places)

    def disarm(self):
        """Fail no more."""
        self.places = frozenset()

    def at_place(self, *places):
        """Raise if it is time and one of *places* is where it is to happen."""
        if not self.places.intersection(places):
            return
        self.calls += 1
        past = self.calls - self.at
        if past >= 0 and (not self.times or past < self.times):
            self.happened.set()
            raise self.make()


class FaultyStore(PrefixStore):
    """A store that may fail whatever it is asked."""

    def __init__(self, fault, limit_bytes, disk):
        super().__init__(limit_bytes, disk=disk)
        self._fault = fault

    def match(self, ids, owner):
        """Fail, or as ever."""
        self._fault.at_place("store", "match")
        return super().match(ids, owner)

    def take(self, ids, owner):
        """Fail, or as ever."""
        self._fault.at_place("store", "take")
        return super().take(ids, owner)

    def put(self, ids, owner, layers, **more):
        """Fail, or as ever."""
        self._fault.at_place("store", "put")
        return super().put(ids, owner, layers, **more)

    def clear(self):
        """Fail, or as ever."""
        self._fault.at_place("clear")
        super().clear()

    @property
    def limit_bytes(self):
        """What it may hold."""
        return super().limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes):
        self._fault.at_place("limit")
        PrefixStore.limit_bytes.fset(self, limit_bytes)


class FaultyDisk(PrefixDisk):
    """A disk tier that may fail whatever it is asked."""

    def __init__(self, fault, *more, **options):
        super().__init__(*more, **options)
        self._fault = fault

    def find(self, chain, owner):
        """Fail, or as ever."""
        self._fault.at_place("disk", "find")
        return super().find(chain, owner)

    def load(self, stored):
        """Fail, or as ever."""
        self._fault.at_place("disk", "load")
        return super().load(stored)

    def offer(self, snapshot, packed, **more):
        """Fail, or as ever."""
        self._fault.at_place("disk", "offer")
        super().offer(snapshot, packed, **more)


class FaultyWords:
    """A vocabulary that may fail, and its decoders; used as a vocabulary otherwise."""

    def __init__(self, vocabulary, fault):
        self._vocabulary = vocabulary
        self._fault = fault

    def encode_spans(self, text):
        """Fail, or as ever."""
        self._fault.at_place("tokenizer")
        return self._vocabulary.encode_spans(text)

    def decoder(self, *tokens):
        """Return a decoder that fails if it was asked for while that is armed."""
        decoder = self._vocabulary.decoder(*tokens)
        if "detokenizer" in self._fault.places:
            feed = decoder.feed

            def fail_or_feed(token):
                self._fault.at_place("detokenizer")
                return feed(token)

            decoder.feed = fail_or_feed
        return decoder

    def __getattr__(self, name):
        return getattr(self._vocabulary, name)


class FaultyGrammars:
    """Grammars that allow everything and may fail in each step."""

    def __init__(self, fault):
        self._fault = fault

    def prepare(self):
        """Do nothing: there is nothing to build."""

    def compile(self, output, *, thinking=False, opened=False):
        """Return a grammar of whatever was asked."""
        return self

    def compile_calls(self, how, tools, choice, **more):
        """Return the same for calls."""
        return self

    def processor(self, prompt):
        """Return what fails, or lets pass."""

        def mask(context, logits):
            self._fault.at_place("mask")
            return logits

        return mask


def faulty_engine(folder, fault, *, disk=None, **settings):
    """
    Return an engine on the model in *folder* whose parts fail as *fault* says.

    The model fails at the places "prefill", "step" and "joint step", which is one of
    several rows. *disk* is the folder of a disk tier.
    """
    built = threading.Event()

    def watch(tokens):
        rows, width = tokens.shape
        steps = ("step", "joint step") if rows > 1 else ("step",)
        fault.at_place(*(("prefill",) if width > 1 else steps))

    def load():
        built.wait(10)
        fault.at_place("load")
        loaded = lm.load(str(folder))
        weights = engine._first.weights
        if weights.ready is None:
            weights.ready = with_faults(prepare(loaded, weights.wish), loaded.tokenizer)
        return replace(loaded, model=Odd(loaded.model, watch))

    def with_faults(ready, tokenizer):
        words = FaultyWords(ready.vocabulary, fault)
        tier = FaultyDisk(fault, disk, GiB, "tiny", settle_s=0) if disk else None
        return replace(
            ready,
            vocabulary=words,
            prompts=Prompts(tokenizer, words),
            store=FaultyStore(fault, ready.room.kept, tier),
            grammars=FaultyGrammars(fault),
        )

    engine = MlxEngine(folder, Settings(**settings), load=load)
    built.set()
    return engine
