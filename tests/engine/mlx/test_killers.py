"""Requests that end or mislead `mlx_lm.server`, sent to a whole server on a model."""

from __future__ import annotations

import json
import shutil
import socket

import pytest

from ofa.chat import Sampling
from ofa.engine.mlx.engine import MlxEngine, Settings
from ofa.engine.mlx.rows import Row

from ...running import frames, serving, text_of
from .caches import prompt

HI = [{"role": "user", "content": "Hi the quick file"}]
OUTPUT = 600
CONTEXT = 8192  # the modes' prompts are long where a word is many tokens


@pytest.fixture(scope="module")
def client(tmp_path_factory, smaller):
    """A client of a server as `ofa serve` makes it, on a tiny Gemma 3."""
    root = tmp_path_factory.mktemp("killers")
    model = root / "gemma3"
    shutil.copytree(smaller["gemma3"], model)
    config = model / "config.json"
    config.write_text(config.read_text().replace("1024", str(CONTEXT)))
    keys = {"engine.kind": "mlx", "engine.output_tokens": OUTPUT}
    with serving(root, **keys, engine__model=str(model)) as client:
        yield client


def ask(client, **fields):
    """Return status, headers and body of a greedy chat with *fields* over it."""
    base = {"model": "ofa-hpc", "messages": HI, "temperature": 0, "max_tokens": 12}
    return client.chat({**base, **fields})


def said(got):
    """Return the text of a whole answer."""
    return json.loads(got[2])["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def right(client):
    """What the server says to `HI` before anything else happens to it."""
    got = ask(client)
    assert got[0] == 200, got
    return said(got)


@pytest.fixture(autouse=True)
def healthy(request):
    """After every request of a test its server gives the answer that it gave before."""
    if "client" not in request.fixturenames:
        yield
        return
    client, right = (request.getfixturevalue(name) for name in ("client", "right"))
    yield
    assert said(ask(client)) == right
    assert client.ask("GET", "/readyz")[0] == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": 5}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"stop": {"a": 1}}, "stop"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"4294967295": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [[1, 2]]}, "logit_bias"),
        ({"top_k": "all"}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "oracle", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        (
            {"chat_template_kwargs": {"enable_thinking": "yes"}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"n": 0}, "n"),
        ({"n": 64}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream_options": 1}, "stream_options"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ],
    ids=str,
)
def test_killers_1_6_7_8_wrong_values_are_400_by_name(client, fields, param):
    """What ends a generation thread elsewhere, or its process, is a refusal here."""
    status, _, body = ask(client, **fields)

    error = json.loads(body)["error"]
    assert (status, error["param"]) == (400, param)
    assert error["message"].startswith(param.partition("[")[0])


@pytest.mark.parametrize("top_k", [1, 895, 896, 897, 10**6, 2**64 - 1])
def test_killer_2_top_k_beyond_the_vocabulary(client, top_k):
    """As many as there are, or more, is no cut; with a temperature too."""
    got = ask(client, top_k=top_k, temperature=0.9, seed=4)

    assert got[0] == 200
    assert json.loads(got[2])["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    "fields",
    [
        {"xtc_threshold": 0.9},
        {"xtc_probability": 1.0, "xtc_threshold": 0.9},
        {"xtc_special_tokens": "all"},
        {"repetition_context_size": -5},
        {"mirostat": {"tau": []}, "typical_p": "x", "top_a": None, "tfs": 2},
        {"num_draft_tokens": 10**9, "draft_model": "../../x", "adapters": "/etc"},
    ],
    ids=str,
)
def test_killer_3_sampling_fields_of_others_are_told_and_ignored(client, right, fields):
    """A field that nobody here knows changes nothing, and the answer says which."""
    got = ask(client, **fields)

    told = got[1]["x-ofa-ignored"].split(", ")
    assert told == sorted(name for name, value in fields.items() if value is not None)
    assert said(got) == right


@pytest.mark.parametrize("prompts", [["a", "b"], "a", [[1, 2]], 5])
def test_killer_4_several_prompts_have_no_path_here(client, prompts):
    """Completions are not served: 404 in OpenAI's shape, with the path that is."""
    status, _, body = client.ask("POST", "/v1/completions", {"prompt": prompts})

    error = json.loads(body)["error"]
    assert (status, error["code"]) == (404, "not_found")
    assert "/v1/chat/completions" in error["message"]


def test_killer_5_a_prompt_that_was_answered_before(client, right):
    """The same again, in parallel parts of a chat: all of it is kept but a token."""
    again = ask(client)
    history = [*HI, {"role": "assistant", "content": right}]
    longer = [*history, {"role": "user", "content": "Hi"}]
    first, second = (ask(client, messages=longer) for _ in range(2))

    usage = json.loads(again[2])["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 < usage["prompt_tokens"] - cached <= 4
    assert said(again) == right
    assert said(first) == said(second)


def test_killer_9_a_stop_ends_the_request_wherever_its_tokens_part(client, right):
    """Every piece of an answer, as a stop, cuts it there and is not generated past."""
    pieces = [right[start : start + 3] for start in range(len(right) - 2)]
    for stop in [piece for piece in pieces if piece.isprintable()][::3]:
        body = json.loads(ask(client, stop=[stop], max_tokens=400)[2])
        choice = body["choices"][0]
        assert choice["message"]["content"] == right[: right.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] <= 12


def test_killer_12_no_url_is_ever_fetched(client):
    """Neither of an image nor of anything else: nobody knocks at its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x.png"
        image = {"type": "image_url", "image_url": {"url": url}}
        message = {"role": "user", "content": [{"type": "text", "text": "a"}, image]}
        status, _, body = ask(client, messages=[message])

        assert status == 400
        assert json.loads(body)["error"]["param"].startswith("messages[0].content[1]")
        with pytest.raises(TimeoutError):
            listening.accept()


def test_killers_13_14_15_streams_have_what_the_reference_says(client, right):
    """Logprobs with bytes, the role once, empty options; usage in a proper chunk."""
    plain = ask(client, stream=True, stream_options={})
    got = ask(
        client,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
    )
    chunks = frames(got[2])[:-1]

    assert text_of(plain[2]) == text_of(got[2]) == right
    assert all("usage" not in chunk for chunk in frames(plain[2])[:-1])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert ["role" in choice["delta"] for choice in choices].count(True) == 1
    tokens = [
        token
        for choice in choices
        for token in (choice.get("logprobs") or {}).get("content", ())
    ]
    assert len(tokens) == 12
    for token in tokens:
        assert bytes(token["bytes"]).decode("utf-8", "replace") == token["token"]
        first, *_ = tops = token["top_logprobs"]
        assert len(tops) == 3
        assert first["token"] == token["token"]  # greedy
        assert all(isinstance(byte, int) for top in tops for byte in top["bytes"])


def test_killer_16_a_prompt_longer_than_the_context(client):
    """It is refused with both numbers, not read for minutes."""
    long = [{"role": "user", "content": "the quick file " * 40_000}]
    status, _, body = ask(client, messages=long)

    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert f"context is {CONTEXT}" in error["message"]


def test_killer_17_an_answer_without_a_limit_ends_where_the_room_does(client):
    """Neither at 512 tokens nor never: where the site says."""
    base = {"model": "ofa-hpc", "messages": HI, "logit_bias": {"230": 100}}
    got = client.chat(base)

    choice = json.loads(got[2])["choices"][0]
    assert choice["finish_reason"] == "length"
    assert json.loads(got[2])["usage"]["completion_tokens"] == OUTPUT


# -- the fifth, at every border --------------------------------------------------------

# Around the window of 32 and the store's blocks of 64 tokens.
LENGTHS = tuple(at + off for at in (32, 64, 96, 128) for off in (-1, 0, 1))


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def pair(request, smaller):
    """An engine that keeps what it can, and one that keeps nothing."""
    made = [
        MlxEngine(smaller[request.param], Settings(prefix_memory_gib=gib))
        for gib in (None, 0)
    ]
    for engine in made:
        engine.wait(60)
    yield made
    for engine in made:
        engine.close()


def continued(engine, ids, tokens, owner):
    """Return what follows *ids*, and how many of them were kept."""
    row = Row(
        tuple(ids),
        max_tokens=tokens,
        sampling=Sampling(temperature=0.0),
        marks=((len(ids) - 1, "prompt"),),
        owner=owner,
    )
    engine._scheduler.submit(engine._first.weights, row)
    written = []
    for sampled in filter(None, row.mailbox.read()):
        written.append(sampled.token)
        if sampled.finish:
            return written, row.cached
    return [], 0


@pytest.mark.parametrize("length", LENGTHS)
def test_killer_5_an_exact_hit_leaves_a_token_to_read(pair, length):
    """A prompt that is an earlier one and its output, to the token, and less and more:
    each is answered as without anything kept."""
    warm, cold = pair
    ids, owner = prompt(length, length), str(length)
    answer, _ = continued(warm, ids, 6, owner)
    whole = [*ids, *answer]

    reused = 0
    for asked in (whole, whole[:-1], ids, ids[:-1], [*ids, 200], whole, ids):
        told, cached = continued(warm, asked, 3, owner)
        assert told == continued(cold, asked, 3, owner)[0]
        assert cached < len(asked)
        reused += cached > 0
    assert reused >= 5
