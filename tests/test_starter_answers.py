"""
The starter model, real weights on a CPU, answering from documents over HTTP.

The pages are of a cluster that does not exist, so nothing in them can be known from
training: who answers right has read them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from ofa.engine.mlx.starter import PACKAGED, cache_folder, find

from .running import Client, Site, in_background

ROOT = Path(__file__).parent.parent

PAGES = {
    "partitions.md": """# Partitions of Larkspur

## Long jobs
Jobs over two days go to the partition tortoise, which allows up to fourteen days.

## Short tests
Tests of up to one hour go to the partition sparrow, at most two nodes a job.
""",
    "storage.md": """# Storage on Larkspur

## Scratch
Scratch is at /lark/scratch/$USER. Files there are deleted 45 days after their last use.

## Home
The home quota is 30 GB. The command larkquota shows how much of it is used.
""",
    "gpus.md": """# GPUs on Larkspur

## Asking for a GPU
GPU nodes are in the partition kestrelgpu. Ask for one card with --gres=gpu:h200:1.

## Loading CUDA
Load it with `module load larkcuda/12.9` before compiling.
""",
    "support.md": """# Help on Larkspur

## Opening a ticket
Write to larkspur-help@example.org and give the job id and the project's code.
""",
    "login.md": """# Logging in to Larkspur

## Host names
Connect to lark-login.example.org with ssh. Port 2222 is used, not 22.
""",
}

QUESTIONS = (
    ("Which partition is for jobs that take longer than two days?", "tortoise"),
    ("After how many days are files on scratch deleted?", "45"),
    ("Which command shows how much of my home quota is used?", "larkquota"),
    ("Which ssh port do I use to log in?", "2222"),
    ("Which module do I load for CUDA?", "larkcuda"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a client of a server with the starter and an index of the pages."""
    if find(PACKAGED["starter"], cache_folder()) is None:
        pytest.fail("the starter is not fetched: run scripts/test, which does it")
    folder = tmp_path_factory.mktemp("starter")
    documents = folder / "larkspur"
    documents.mkdir()
    for name, text in PAGES.items():
        (documents / name).write_text(text)
    sources = folder / "sources.toml"
    sources.write_text(
        f'[hpc]\ntitle = "HPC"\n[[hpc.places]]\nlabel = "d"\nroots = ["{documents}"]\n'
    )
    (folder / "state").mkdir(mode=0o700)
    env = {"OFA_SCRATCH": str(folder / "state"), "OFA_RAG_SOURCES": str(sources)}
    subprocess.run(
        [sys.executable, "-m", "ofa", "index", "build", "hpc"],
        cwd=ROOT,
        env={**os.environ, **env},
        check=True,
        capture_output=True,
        timeout=120,
    )
    running = Site(folder, {"rag.sources": str(sources)}).build(dict(os.environ))
    with in_background(running.run):
        try:
            client = Client(running, folder)
            _wait_for_embedder(client)
            yield client
        finally:
            running.stop()


def _wait_for_embedder(client: Client) -> None:
    from threading import Event

    for _ in range(600):
        if not client.running.retrieval.problems():
            return
        Event().wait(0.1)
    pytest.fail(f"{client.running.retrieval.problems()}")


@pytest.mark.timeout(600)
def test_four_of_five_answers_are_right(server):
    """Streamed and whole by turns, by the openai client with strict validation."""
    api = openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1",
        api_key=server.key,
        max_retries=0,
        timeout=280,
        _strict_response_validation=True,
    )
    right = []
    with api:
        for number, (question, wanted) in enumerate(QUESTIONS):
            answer, sources = _ask(api, question, stream=number % 2 == 0)
            right.append(wanted in answer and bool(sources))

    assert sum(right) >= 4, right


def _ask(api: openai.OpenAI, question: str, *, stream: bool) -> tuple[str, list[str]]:
    asked = {
        "model": "ofa-hpc",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 60,
    }
    if stream:
        raw = api.chat.completions.with_raw_response.create(**asked, stream=True)
        pieces = [
            choice.delta.content or "" for c in raw.parse() for choice in c.choices
        ]
        text = "".join(pieces)
    else:
        raw = api.chat.completions.with_raw_response.create(**asked)
        text = raw.parse().choices[0].message.content
    told = raw.headers["x-ofa-rag"]
    assert told.startswith("hit"), told
    return text, json.dumps(told).split("sources=")[1:]
