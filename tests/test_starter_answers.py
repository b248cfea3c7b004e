"""
The starter model, real weights on a CPU, answering from documents over HTTP.

The pages are of a cluster that does not exist, so nothing in them can be known from
training: who answers right has read them.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
import warnings
from pathlib import Path
from typing import Literal

import openai
import pydantic
import pytest

from ofa.engine.mlx.starter import PACKAGED, cache_folder, find

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
    """
    Yield URL and key of `ofa serve` with the starter and an index of the pages.

    A process of its own: a BLAS helps only where it is loaded before MLX, and other
    tests import MLX here.
    """
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
    env = {
        **os.environ,
        "OFA_SCRATCH": str(folder / "state"),
        "OFA_RAG_SOURCES": str(sources),
    }
    ofa = [sys.executable, "-m", "ofa"]
    build = [*ofa, "index", "build", "hpc"]
    subprocess.run(build, cwd=ROOT, env=env, check=True, capture_output=True)
    log = folder / "log"
    with log.open("w") as out:
        child = subprocess.Popen(
            [*ofa, "serve"], cwd=ROOT, env=env, stdout=out, stderr=out
        )
        try:
            yield _when_ready(folder / "state", child, log)
        finally:
            child.terminate()
            child.wait(30)


def _when_ready(state: Path, child: subprocess.Popen, log: Path) -> tuple[str, str]:
    """Return base URL and key once the model is loaded."""
    until = time.monotonic() + 240
    while time.monotonic() < until and child.poll() is None:
        time.sleep(0.5)
        try:
            port = (state / ".ofa_serve_port").read_text().strip()
            key = (state / ".ofa_api_key").read_text().strip()
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/readyz", headers={"x-api-key": key}
            )
            urllib.request.urlopen(asked, timeout=5).close()
        except OSError:  # not listening yet, or 503: loading
            continue
        return f"http://127.0.0.1:{port}/v1", key
    raise AssertionError(log.read_text()[-2000:])


@pytest.fixture(scope="module")
def api(server):
    """The openai client on it, which validates each answer strictly."""
    base_url, key = server
    with openai.OpenAI(
        base_url=base_url,
        api_key=key,
        max_retries=0,
        timeout=280,
        _strict_response_validation=True,
    ) as client:
        yield client


@pytest.mark.timeout(600)
def test_four_of_five_answers_are_right(api):
    """Streamed and whole by turns, from the pages."""
    right = []
    for number, (question, wanted) in enumerate(QUESTIONS):
        answer, sources = _ask(api, question, stream=number % 2 == 0)
        right.append(wanted in answer and bool(sources))

    assert sum(right) >= 4, right


class Partition(pydantic.BaseModel):
    """What a question about partitions is to be answered with."""

    name: str
    longest_days: int


@pytest.mark.timeout(600)
def test_a_next_turn_is_warm_and_holds_to_its_schema(api):
    """Prompt, passages and answer of the first turn are not read again; the second is
    valid JSON of the schema's shape, with the probability of each of its tokens."""
    messages = [{"role": "user", "content": QUESTIONS[0][0]}]
    first = api.chat.completions.create(
        model="ofa-hpc", messages=messages, temperature=0, max_tokens=40
    )
    messages.append({"role": "assistant", "content": first.choices[0].message.content})
    messages.append({"role": "user", "content": "Give me its name and limit as JSON."})

    raw = api.chat.completions.with_raw_response.parse(
        model="ofa-hpc",
        messages=messages,
        temperature=0,
        max_tokens=60,
        logprobs=True,
        top_logprobs=2,
        response_format=Partition,
    )

    second = raw.parse()
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens
    assert raw.headers["x-ofa-cache"].startswith("hit; ")
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.parsed.longest_days > 0
    content = second.choices[0].logprobs.content
    assert "".join(one.token for one in content) == second.choices[0].message.content
    assert all(len(one.top_logprobs) <= 2 and one.logprob <= 0 for one in content)


@pytest.mark.timeout(600)
def test_choices_and_their_pieces_come_from_real_weights(api):
    """Two answers to one prompt, streamed, told apart by their index."""
    stream = api.chat.completions.create(
        model="ofa-hpc",
        messages=[{"role": "user", "content": QUESTIONS[1][0]}],
        temperature=1.0,
        seed=3,
        n=2,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, ends, usage = {0: "", 1: ""}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert all(texts.values())
    assert set(ends) == {0, 1}
    assert usage.completion_tokens <= 24


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


@pytest.mark.timeout(600)
def test_langgraph_finishes_a_task_of_two_tools(server, monkeypatch):
    """A real model, made to call one tool after the other, then to say how it went:
    LangGraph's loop runs both with arguments that fit, and shows it both results."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")  # nothing leaves the machine
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    base_url, key = server
    ran = []

    def job_state(job: int) -> str:
        """Return the state of a batch job."""
        ran.append(("job_state", job))
        return "hangs since 12:03 on node042"

    def cancel_job(job: int, *, notify: Literal["owner", "nobody"]) -> str:
        """Cancel a batch job."""
        ran.append(("cancel_job", job, notify))
        return "cancelled"

    steps = iter(("job_state", "cancel_job", "none"))
    client = ChatOpenAI(
        model="ofa-hpc",
        base_url=base_url,
        api_key=key,
        max_retries=0,
        temperature=0,
        max_tokens=60,
        timeout=280,
    )

    def model(state, runtime):
        return client.bind_tools([job_state, cancel_job], tool_choice=next(steps))

    with warnings.catch_warnings():
        # It has moved to `langchain`, which would bring more than a client.
        warnings.filterwarnings("ignore", "create_react_agent has been moved")
        agent = create_react_agent(model, [job_state, cancel_job])
    result = agent.invoke({"messages": [("user", "Job 4711 hangs: cancel it.")]})

    assert ran[0] == ("job_state", 4711)
    assert ran[1][:2] == ("cancel_job", 4711) and ran[1][2] in ("owner", "nobody")
    assert len(ran) == 2
    last = result["messages"][-1]
    assert last.content and not last.tool_calls
