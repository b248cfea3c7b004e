"""The packaged models, real weights: what they say, and how their text is cut.

scripts/test fetches them once; each runs in a process of its own, which frees its
gigabytes when it ends.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ofa.engine.mlx.starter import PACKAGED, cache_folder, find

ROOT = Path(__file__).parents[3]

RUN = """
import json, sys
from ofa.engine.mlx import lm
loaded = lm.load(sys.argv[1])  # as float32 with a BLAS: eight times as fast
model, tokenizer = loaded.model, loaded.tokenizer
from mlx_lm import stream_generate
prompt = sys.argv[2]
if tokenizer.has_chat_template:
    chat = [{"role": "user", "content": prompt}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
text, last = "", None
for last in stream_generate(model, tokenizer, prompt, max_tokens=int(sys.argv[3])):
    text += last.text
ids = tokenizer.encode("Hello world, 2025!", add_special_tokens=False)
print(json.dumps([text, last.finish_reason, ids, sorted(tokenizer.eos_token_ids)]))
"""


def said(name: str, prompt: str, tokens: int) -> list:
    """Return the model's greedy text, why it ended, and facts of its tokenizer."""
    taken = find(PACKAGED[name], cache_folder())
    option = "" if name == "starter" else f" --{name}"
    if taken is None:
        pytest.fail(f"run scripts/test, or: ofa model starter --no-hub{option}")
    done = subprocess.run(
        [sys.executable, "-c", RUN, taken.model, prompt, str(tokens)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_starter_answers_through_its_template():
    """Qwen2.5-Coder 0.5B says the fact and stops at its end of turn."""
    text, ended, ids, ends = said("starter", "What is the capital of France?", 20)

    assert text == "The capital of France is Paris."
    assert ended == "stop"
    assert ids == [9707, 1879, 11, 220, 17, 15, 17, 20, 0]
    assert ends == [151643, 151645]


def test_the_small_model_answers_through_its_template():
    """SmolLM2 135M says the fact, which it can't with q and k rows interleaved."""
    text, ended, ids, ends = said("small", "What is the capital of France?", 20)

    assert text == "The capital of France is Paris."
    assert ended == "stop"
    assert ids == [19556, 905, 28, 216, 34, 32, 34, 37, 17]
    assert ends == [0, 2]


def test_gemma_continues_text():
    """Gemma 3 270M knows the year, which it can't with its norms off by one."""
    text, _, ids, ends = said("gemma", "The Battle of Hastings was fought in", 6)

    assert text.startswith(" 1066")
    assert ids == [9259, 1902, 236764, 236743, 236778, 236771, 236778, 236810, 236888]
    assert ends == [1, 106]
