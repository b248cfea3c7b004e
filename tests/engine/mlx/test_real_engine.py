"""Gemma 3 270M, real weights: our engine writes what mlx-lm itself writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ofa.engine.mlx.starter import PACKAGED, cache_folder, find

ROOT = Path(__file__).parents[3]

# In a process of its own, which frees its gigabytes when it ends. The engine first,
# alone and in a batch; then mlx-lm on the same token ids.
RUN = """
import json, sys, threading
from ofa.engine.mlx.blas import load_blas
load_blas()
from ofa.chat import Chat, Message, Sampling, gather
from ofa.engine.mlx.engine import MlxEngine

folder = sys.argv[1]
texts = ["The Battle of Hastings was fought in", "A list of planets: Mercury, Venus,",
         "Water boils at a temperature of " * 12]
greedy = Sampling(temperature=0.0, max_tokens=16)
chats = [Chat("m", (Message("user", text),), sampling=greedy) for text in texts]

engine = MlxEngine(folder)
assert engine.wait(300).ready
alone = [gather(engine.reply(chat)).text for chat in chats]
batch = [""] * len(chats)
def run(n):
    batch[n] = gather(engine.reply(chats[n])).text
threads = [threading.Thread(target=run, args=(n,)) for n in range(len(chats))]
for thread in threads: thread.start()
for thread in threads: thread.join()
ids = [list(engine.ready.prompts.render(c.messages).ids) for c in chats]
engine.close()

import mlx_lm
from ofa.engine.mlx import lm
loaded = lm.load(folder)
model, tokenizer = loaded.model, loaded.tokenizer
theirs = []
for prompt in ids:
    parts = mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=16)
    theirs.append("".join(part.text for part in parts))
print(json.dumps({"alone": alone, "batch": batch, "theirs": theirs}))
"""


@pytest.mark.timeout(400)
def test_greedy_text_equals_mlx_lm_alone_and_in_a_batch():
    """Three prompts of different lengths, 16 tokens each: not a letter differs."""
    taken = find(PACKAGED["gemma"], cache_folder())
    if taken is None:
        pytest.fail("run scripts/test, or: ofa model starter --no-hub --gemma")
    done = subprocess.run(
        [sys.executable, "-c", RUN, taken.model],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    said = json.loads(done.stdout.splitlines()[-1])
    assert said["alone"] == said["theirs"]
    assert said["batch"] == said["theirs"]
    assert all(len(text) > 20 for text in said["theirs"])
