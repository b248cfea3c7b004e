"""A whole server in front of upstreams, over HTTP: what comes out, and what goes in."""

import http.client
import json
import logging
import socket
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from ofa.answer import Answerer
from ofa.chat import Message
from ofa.rag.lookup import Looked

from .engine.upstream_servers import (
    DONE,
    HALF,
    Upstream,
    delta,
    free_url,
    recorded,
    sse,
    until,
)
from .running import Client, Site, frames, in_background, serving, text_of

ASK = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def front(folder, *urls, **overrides):
    """Yield a client of a server that forwards to *urls*."""
    keys = {
        "engine.kind": "upstream",
        "engine.upstream_urls": list(urls),
        "rag.enabled": False,
        **{name.replace("__", "."): value for name, value in overrides.items()},
    }
    running = Site(folder, keys).build()
    with in_background(running.run):
        try:
            yield Client(running, folder)
        finally:
            running.stop()


@pytest.fixture
def upstream():
    """Yield a server that says hello."""
    with closing(Upstream()) as server:
        yield server


def test_an_open_circuit_is_503_with_the_time_to_wait(tmp_path):
    """Retry-After is what is left until the upstream is asked again."""
    with front(tmp_path, free_url(), engine__upstream_model="m") as client:
        first, _, _ = client.chat(ASK)
        status, headers, body = client.chat(ASK)
        ready, _, why = client.ask("GET", "/readyz")

    assert (first, status, ready) == (502, 503, 503)
    assert 1 <= int(headers["retry-after"]) <= 10
    assert json.loads(body)["error"]["code"] == "not_ready"
    assert b"the upstream" in why


def test_a_refusal_for_load_keeps_its_status_and_its_time(tmp_path, upstream):
    """429 and Retry-After are the upstream's own."""
    busy = upstream.status(429, {"error": {"message": "quota"}}, Retry_After="77")
    upstream.answers = [busy]
    with front(tmp_path, upstream.url) as client:
        status, headers, body = client.chat(ASK)

    error = json.loads(body)["error"]
    assert (status, headers["retry-after"]) == (429, "77")
    assert (error["type"], error["message"]) == (
        "rate_limit_error",
        "the upstream refused: quota",
    )


def test_a_full_context_has_the_code_that_editors_know(tmp_path, upstream):
    """OpenAI's error shape, with the upstream's own figures in the message."""
    upstream.answers = [upstream.status(400, recorded("vllm-too-long.json"))]
    with front(tmp_path, upstream.url) as client:
        status, _, body = client.chat(ASK)

    error = json.loads(body)["error"]
    assert status == 400
    assert error["code"] == "context_length_exceeded"
    assert "16391" in error["message"]


class TwoSets:
    """Retrieval that finds one passage, or leaves it out."""

    def augment(self, chat, mode, key_id, room_tokens):
        """Yield the chat with it, then without."""
        last = chat.messages[-1]
        told = replace(last, text=f"PASSAGE {last.text}")
        yield Looked(replace(chat, messages=(*chat.messages[:-1], told)), "hit; n=1")
        yield Looked(chat, "none; the context is full")


@pytest.mark.parametrize("stream", [False, True])
def test_passages_give_way_where_the_upstream_refuses(
    tmp_path, upstream, stream, monkeypatch
):
    """Only it knows its tokens; a chat that fits without them is answered."""

    def with_passages(*parts, lookup, **more):
        return Answerer(*parts, lookup=TwoSets(), **more)

    monkeypatch.setattr("ofa.serve.Answerer", with_passages)
    upstream.answers = [upstream.status(400, recorded("vllm-too-long.json"))]
    with front(tmp_path, upstream.url) as client:
        status, headers, body = client.chat({**ASK, "stream": stream})

    sent = [asked["messages"][-1]["content"] for asked in upstream.asked]
    assert (status, sent) == (200, ["PASSAGE hi", "hi"])
    if stream:
        assert text_of(body) == "hello"
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == "hello"
        assert headers["x-ofa-rag"] == "none; the context is full"


@pytest.mark.parametrize(
    ("said", "asked", "most"),
    [(100, None, 4096), (24_000, None, 512), (24_000, 64, 64), (100, 100_000, 4096)],
)
def test_a_limit_leaves_room_for_the_prompt(tmp_path, upstream, said, asked, most):
    """vLLM refuses what its context can't hold, and the client named no limit."""
    limit = {} if asked is None else {"max_tokens": asked}
    with front(tmp_path, upstream.url) as client:
        messages = [{"role": "user", "content": "x" * said}]
        status, *_ = client.chat({**ASK, **limit, "messages": messages})

    sent = upstream.asked[0]["max_tokens"]
    assert status == 200
    assert min(most, 512) <= sent <= most


def test_an_error_after_the_first_byte_is_an_error_frame(tmp_path, upstream):
    """R013: the stream tells, and never ends as if it were complete."""
    upstream.answers = [recorded("vllm-broken.txt")]
    with front(tmp_path, upstream.url) as client:
        status, _, body = client.chat({**ASK, "stream": True})

    seen = frames(body)
    assert status == 200
    assert text_of(body) == "Use "
    assert [f["error"]["code"] for f in seen[:-1] if "error" in f] == ["engine_error"]
    assert seen[-1] == "[DONE]"


def test_nothing_of_the_client_goes_up_but_its_chat(tmp_path, upstream, caplog):
    """Neither key nor cookie nor any header of its own; ours is sent and not logged."""
    caplog.set_level(logging.DEBUG)
    key_file = tmp_path / "upstream-key"
    key_file.write_text("sk-UPSTREAM\n")
    key_file.chmod(0o600)
    tmp_path.chmod(0o700)
    sent = {
        "Cookie": "session=CANARY",
        "X-Forwarded-For": "CANARY",
        "X-Request-Id": "CANARY",
        "Te": "trailers",
        "Proxy-Authorization": "Basic CANARY",
        "User-Agent": "CANARY/1",
    }
    with front(
        tmp_path, upstream.url, engine__upstream_key_file=str(key_file)
    ) as client:
        status, _, _ = client.chat({**ASK, "user": "CANARY"}, sent)
        own_key = client.key

    (headers,) = upstream.headers
    assert status == 200
    assert headers["Authorization"] == "Bearer sk-UPSTREAM"
    told = json.dumps([headers, upstream.asked])
    assert "CANARY" not in told and own_key not in told
    assert "trailers" not in told
    assert "sk-UPSTREAM" not in caplog.text and own_key not in caplog.text


def test_nothing_of_the_upstream_comes_down_but_its_answer(tmp_path, upstream):
    """Its cookies and headers are no business of the client's."""

    def tell(handler) -> None:
        upstream.reply(
            handler,
            200,
            sse(delta(content="hello"), delta("stop")) + DONE,
            Set_Cookie="CANARY=1",
            X_Upstream="CANARY",
            Keep_Alive="timeout=CANARY",
        )

    upstream.answers = [tell]
    with front(tmp_path, upstream.url) as client:
        _, headers, body = client.chat(ASK)

    assert "CANARY" not in json.dumps([headers, body.decode()])


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("begun", [True, False], ids=["between frames", "no headers"])
def test_R008_a_client_that_hangs_up_frees_the_upstream(
    tmp_path, upstream, stream, begun
):
    """LiteLLM #37140: in the whole answer as well, while nothing is written to it."""
    upstream.answers = [
        upstream.chunked(HALF, None) if begun else upstream.wait_for_hang_up
    ]
    with front(tmp_path, upstream.url) as client:
        with closing(http.client.HTTPConnection("127.0.0.1", client.port)) as leaving:
            leaving.request(
                "POST",
                "/v1/chat/completions",
                json.dumps({**ASK, "stream": stream}),
                {
                    "Authorization": f"Bearer {client.key}",
                    "Content-Type": "application/json",
                },
            )
            assert upstream.waiting.wait(10)
            leaving.sock.shutdown(socket.SHUT_RDWR)
        began_s = time.monotonic()

        assert upstream.cut.wait(5)
        assert time.monotonic() - began_s < 2
        until(lambda: client.running.queue.depth() == (0, 0))


def test_one_front_keeps_conversations_on_their_nodes(tmp_path):
    """Two nodes, one of which dies: everybody is answered, and told of nothing."""

    def ask(client, number, *turns):
        messages = [{"role": "user", "content": f"question {number}"}]
        for turn in turns:
            messages.append({"role": "assistant", "content": "hello"})
            messages.append({"role": "user", "content": turn})
        return client.chat({"model": "ofa-hpc", "messages": messages})[0]

    def firsts(node):
        return [body["messages"][1]["content"] for body in node.asked]

    with (
        closing(Upstream()) as one,
        closing(Upstream()) as other,
        front(tmp_path, one.url, other.url) as client,
    ):
        for number in range(8):
            assert ask(client, number) == 200
            assert ask(client, number, "and then?") == 200
        homes = [firsts(one), firsts(other)]
        assert len(homes[0]) + len(homes[1]) == 16
        assert all(home.count(first) == 2 for home in homes for first in home)

        one.close()
        assert [ask(client, number, "again") for number in range(8)] == [200] * 8
        assert client.ask("GET", "/readyz")[0] == 200


def test_logprobs_and_choices_come_through_to_the_client(tmp_path, upstream):
    """As OpenAI's clients read them, whole and streamed."""
    upstream.answers = [
        recorded("vllm-logprobs.txt"),
        recorded("vllm-two.txt"),
        recorded("vllm-two.txt"),
    ]
    with front(tmp_path, upstream.url) as client:
        _, _, told = client.chat({**ASK, "logprobs": True, "top_logprobs": 1})
        _, _, two = client.chat({**ASK, "n": 2})
        _, _, pieces = client.chat({**ASK, "n": 2, "stream": True})

    (choice,) = json.loads(told)["choices"]
    assert [row["token"] for row in choice["logprobs"]["content"]][:2] == ["Gr", "ü"]
    assert choice["logprobs"]["content"][2]["bytes"] == [195]
    whole = {c["index"]: c["message"]["content"] for c in json.loads(two)["choices"]}
    assert whole == {0: "red wine", 1: "blue"}
    streamed = {0: "", 1: ""}
    for frame in frames(pieces)[:-1]:
        for part in frame["choices"]:
            streamed[part["index"]] += part["delta"].get("content") or ""
    assert streamed == whole


def test_an_ofa_in_front_of_an_ofa_briefs_once_and_looks_up_once(tmp_path):
    """As docs/scale-out.md sets it up: the node answers in the mode that was asked."""
    node_keys = {"rag__enabled": False, "api__client_system": "append"}
    (tmp_path / "node").mkdir()
    (tmp_path / "front").mkdir()
    with serving(tmp_path / "node", ["hi from the node"], **node_keys) as node:
        url = f"http://127.0.0.1:{node.port}/v1"
        key = str(tmp_path / "node" / "state" / ".ofa_api_key")
        with front(tmp_path / "front", url, engine__upstream_key_file=key) as client:
            status, _, body = client.chat({**ASK, "model": "ofa-vasp"})
        (seen,) = node.engine.asked

    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == "hi from the node"
    assert seen.model == "ofa-vasp"
    assert seen.messages[-1] == Message("user", "hi")
    assert "VASP" in seen.messages[0].text
