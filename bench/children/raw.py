"""
mlx-lm itself, without a server: `stream_generate`, `BatchGenerator`, bare speed.

Prompts are rendered by ofa's own templates, so that both sides read the same ids.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .lines import Asked, given, serve


class Raw:
    """A model in this process, on its main thread."""

    def __init__(self, folder: str) -> None:
        import mlx_lm

        from ofa.engine.mlx.template import Prompts
        from ofa.engine.mlx.vocabulary import Vocabulary

        self._model, self._tokenizer = mlx_lm.load(folder)
        self._prompts = Prompts(self._tokenizer, Vocabulary(self._tokenizer))

    def ids(self, messages: list[Mapping[str, Any]]) -> list[int]:
        """Return the prompt of a chat."""
        from ofa.chat import Message

        turns = [Message(m["role"], m["content"]) for m in messages]
        return list(self._prompts.render(turns).ids)

    def single(self, asked: Asked) -> Mapping[str, Any]:
        """Answer one chat with `stream_generate`; return the time of each token."""
        from mlx_lm import stream_generate

        ids = self.ids(asked["messages"])
        began, shown, count = time.perf_counter(), [], 0
        for part in stream_generate(
            self._model, self._tokenizer, ids, max_tokens=asked["tokens"]
        ):
            count += 1
            if part.text:
                shown.append(time.perf_counter())
        return {
            "prompt_tokens": len(ids),
            "tokens": count,
            "ttft_s": shown[0] - began,
            "decode_per_s": (count - 1) / (shown[-1] - shown[0]),
        }

    def batch(self, asked: Asked) -> Mapping[str, Any]:
        """Answer all chats at once with `BatchGenerator`; return its speed."""
        from mlx_lm.generate import BatchGenerator

        prompts = [self.ids(messages) for messages in asked["chats"]]
        rows = len(prompts)
        generator = BatchGenerator(
            self._model,
            stop_tokens=[[token] for token in self._tokenizer.eos_token_ids],
            completion_batch_size=rows,
        )
        began, full, tokens = time.perf_counter(), [], 0
        generator.insert(prompts, [asked["tokens"]] * rows)
        left = rows
        while left:
            _, answers = generator.next()
            tokens += len(answers)
            left -= sum(answer.finish_reason is not None for answer in answers)
            if len(answers) == rows:
                full.append(time.perf_counter())
        wall = time.perf_counter() - began
        generator.close()
        return {
            "prompt_tokens": [len(ids) for ids in prompts],
            "tokens": tokens,
            "wall_per_s": tokens / wall,
            "together_per_s": rows * (len(full) - 1) / (full[-1] - full[0]),
        }

    def texts(self, asked: Asked) -> Mapping[str, Any]:
        """Answer all chats at once, greedily; return the texts, and prompts' tokens."""
        from mlx_lm import batch_generate

        prompts = [self.ids(messages) for messages in asked["chats"]]
        answers = batch_generate(
            self._model, self._tokenizer, prompts, max_tokens=asked["tokens"]
        )
        lengths = [len(ids) for ids in prompts]
        return {"texts": answers.texts, "prompt_tokens": lengths}

    def speed(self, asked: Asked) -> Mapping[str, Any]:
        """Return how fast a prompt of so many tokens is read, and tokens written."""
        from mlx_lm import stream_generate

        ids = [100 + n % 5000 for n in range(asked["prompt"])]
        began, times = time.perf_counter(), []
        for _ in stream_generate(
            self._model, self._tokenizer, ids, max_tokens=asked["tokens"]
        ):
            times.append(time.perf_counter())
        return {
            "prefill_per_s": len(ids) / (times[0] - began),
            "decode_per_s": (len(times) - 1) / (times[-1] - times[0]),
        }


def main() -> None:
    """Load the BLAS that was asked for, then the model; answer questions."""
    values = given()
    blas = "none: the reference BLAS of MLX's wheel"
    if values["blas"]:
        from ofa.engine.mlx.blas import load_blas

        blas = str(load_blas())
    raw = Raw(values["model"])
    handlers = (raw.single, raw.batch, raw.texts, raw.speed)
    serve({"blas": blas}, {handler.__name__: handler for handler in handlers})


if __name__ == "__main__":
    main()
