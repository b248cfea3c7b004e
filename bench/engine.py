"""Our engine against mlx_lm.stream_generate: same weights, same prompt, alternating."""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ofa.chat import Chat, End, Message, Sampling, Text
from ofa.engine.mlx.blas import load_blas

ROUNDS, TOKENS = 3, 24
PROMPT = "The scheduler gives nodes to jobs in the order of their priority. " * 24


def ours(engine, chat) -> tuple[float, float]:
    """Return seconds to the first text and tokens a second after it."""
    began, first, usage = time.perf_counter(), 0.0, None
    for event in engine.reply(chat):
        if isinstance(event, Text) and not first:
            first = time.perf_counter() - began
        if isinstance(event, End):
            usage = event.usage
    rest = time.perf_counter() - began - first
    return first, (usage.completion_tokens - 1) / rest


def theirs(model, tokenizer, ids) -> tuple[float, float]:
    """Return the same of mlx-lm's own loop."""
    from mlx_lm import stream_generate

    began, first, count = time.perf_counter(), 0.0, 0
    for _ in stream_generate(model, tokenizer, ids, max_tokens=TOKENS):
        first = first or time.perf_counter() - began
        count += 1
    rest = time.perf_counter() - began - first
    return first, (count - 1) / rest


def main(folder: str) -> None:
    """Measure and print the ratios of medians; over 1 is in our favour."""
    blas = load_blas()
    import mlx_lm

    from ofa.engine.mlx.engine import MlxEngine

    engine = MlxEngine(folder)
    assert engine.wait(600).ready, engine.status()
    sampling = Sampling(temperature=0.0, max_tokens=TOKENS)
    chat = Chat("m", (Message("user", PROMPT),), sampling=sampling)
    ids = list(engine._scheduler.ready.prompts.render(chat.messages).ids)
    model, tokenizer = mlx_lm.load(folder)
    rows = [(ours(engine, chat), theirs(model, tokenizer, ids)) for _ in range(ROUNDS)]
    engine.close()

    def median(who: int, what: int) -> float:
        return statistics.median(row[who][what] for row in rows)

    print(
        json.dumps(
            {
                "blas": str(blas),
                "prompt_tokens": len(ids),
                "first_text_s": [round(median(0, 0), 2), round(median(1, 0), 2)],
                "tokens_per_s": [round(median(0, 1), 2), round(median(1, 1), 2)],
                "ttft_ratio": round(median(1, 0) / median(0, 0), 2),
                "decode_ratio": round(median(0, 1) / median(1, 1), 2),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
