"""The upstream engine against real servers on loopback: answers, faults, cancelling."""

import gzip
import threading
import time
from contextlib import closing, suppress

import pytest

from ofa.chat import (
    Chat,
    Image,
    Message,
    Sampling,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
    gather,
)
from ofa.engine import upstream_kinds as kinds
from ofa.engine.queue import Queued
from ofa.engine.upstream import UpstreamEngine
from ofa.engine.upstream_body import body
from ofa.engine.upstream_events import events
from ofa.engine.upstream_wire import frames
from ofa.errors import (
    Cancelled,
    ConfigError,
    EngineError,
    EngineTimeout,
    NotReady,
)

from .upstream_servers import (
    CHAT,
    DONE,
    HELLO,
    Upstream,
    delta,
    engine,
    free_url,
    sse,
)


def ask(upstream, chat=CHAT, **options):
    """Return the whole answer to *chat*."""
    with engine(upstream, **options) as made:
        return gather(made.reply(chat))


def test_an_answer_comes_through_with_its_usage(upstream):
    """Text, thoughts and true counts are the upstream's own."""
    usage = {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    }
    frames = sse(
        delta(role="assistant"),
        delta(reasoning_content="hm"),
        delta(content="4"),
        delta(content="2"),
        delta("stop"),
        usage,
    )
    upstream.answers = [b": keep-alive\n\n" + frames + DONE]

    answer = ask(upstream)

    assert answer.parts == (Thought("hm"), Text("42"))
    assert answer.end.usage == Usage(7, 3, 5, None)


def test_absent_usage_stays_absent(upstream):
    """No count is invented."""
    assert ask(upstream).end.usage is None


def test_the_chat_is_sent_as_the_upstream_knows_it(upstream):
    """Roles, calls, results, images, tools and sampling keep their meaning."""
    call = ToolCall("c1", "read", {"path": "ä.txt"})
    chat = Chat(
        "ofa-hpc",
        (
            Message("user", "see", images=(Image("data:image/png;base64,AA"),)),
            Message("assistant", calls=(call,)),
            Message("tool", "text", answers="c1"),
        ),
        sampling=Sampling(temperature=0.0, top_k=64, stop=("END",), max_tokens=9),
        tools=(Tool("read", "Read", {"type": "object"}, strict=True),),
        tool_choice=ToolChoice("named", "read"),
        parallel_calls=False,
    )

    ask(upstream, chat, key="sk-1", model="big")

    body = upstream.asked[0]
    assert upstream.headers[0]["Authorization"] == "Bearer sk-1"
    assert body["model"] == "big" and body["stream"] is True
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "read", "arguments": '{"path": "ä.txt"}'},
                }
            ],
        },
        {"role": "tool", "content": "text", "tool_call_id": "c1"},
    ]
    assert body["tools"][0]["function"] == {
        "name": "read",
        "description": "Read",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert body["tool_choice"] == {"type": "function", "function": {"name": "read"}}
    assert body["parallel_tool_calls"] is False
    assert (body["temperature"], body["top_k"], body["stop"]) == (0.0, 64, ["END"])
    assert "seed" not in body


def test_openai_itself_gets_no_field_it_refuses():
    """top_k and its like are for local servers only."""
    chat = Chat("m", (Message("user", "x"),), sampling=Sampling(top_k=3, top_p=0.5))
    openai, vllm = kinds.OPENAI, kinds.VLLM

    assert "top_k" in body(chat, "m", vllm, vllm.features)
    assert "top_k" not in body(chat, "m", openai, openai.features)
    assert body(chat, "m", openai, openai.features)["top_p"] == 0.5


def tool_frames() -> bytes:
    """Return two calls, in pieces, the second without a name in later ones."""

    def piece(index, **parts):
        return delta(tool_calls=[{"index": index, **parts}])

    return sse(
        delta(content="Let me see."),
        piece(0, id="a", function={"name": "read", "arguments": ""}),
        piece(0, function={"arguments": '{"path":'}),
        piece(0, function={"arguments": '"x"}'}),
        piece(1, id="b", function={"name": "list", "arguments": "{}"}),
        delta("stop"),
    )


def test_calls_come_whole_and_end_as_calls(upstream):
    """A finish of "stop" after calls would make clients drop them."""
    upstream.answers = [tool_frames() + DONE]

    answer = ask(upstream)

    assert answer.text == "Let me see."
    assert answer.calls == (
        ToolCall("a", "read", {"path": "x"}),
        ToolCall("b", "list", {}),
    )
    assert answer.end.reason == "tools"


def test_a_stream_cut_anywhere_reads_the_same():
    """Frames come in whatever pieces the network makes of them."""
    body = sse(delta(content="a\u2028b ü"), delta("length")) + DONE
    whole = gather(events(frames([body])))

    assert whole.text == "a\u2028b ü" and whole.end.reason == "length"
    for place in range(len(body) + 1):
        pieces = [body[:place], body[place:]]
        assert gather(events(frames(pieces))) == whole


def test_calls_without_an_index_stay_apart():
    """Servers that leave the index out send each call whole."""

    def whole(identity):
        function = {"name": identity, "arguments": {"n": 1}}
        return delta(tool_calls=[{"id": identity, "function": function}])

    answer = gather(events([whole("a"), whole("b"), delta("tool_calls")]))

    assert [call.name for call in answer.calls] == ["a", "b"]
    assert answer.calls[0].arguments == {"n": 1}


def test_a_server_that_does_not_stream_is_understood(upstream):
    """Its whole answer is one frame."""
    message = {"role": "assistant", "content": "whole"}
    upstream.answers = [
        upstream.status(
            200, {"choices": [{"message": message, "finish_reason": "stop"}]}
        )
    ]

    assert ask(upstream).text == "whole"


def test_a_stream_that_is_packed_all_the_same_is_read(upstream):
    """A gateway may compress what it was asked not to."""

    def packed(handler) -> None:
        upstream.reply(handler, 200, gzip.compress(HELLO), Content_Encoding="gzip")

    upstream.answers = [packed]

    assert ask(upstream).text == "hello"


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_an_answer_without_end_does_not_fill_the_memory(upstream, kind):
    """Neither a line nor a whole answer may grow for ever."""
    sent: list[int] = []

    def endless(handler) -> None:
        upstream.start(handler, kind=kind)
        handler.end_headers()
        handler.close_connection = True
        with suppress(OSError):
            while sum(sent) < 1 << 30:
                sent.append(handler.wfile.write(b"x" * (1 << 20)))

    upstream.answers = [endless]

    with pytest.raises(EngineError, match="too long|without an end"):
        ask(upstream)
    assert sum(sent) < 64 << 20


@pytest.mark.parametrize(
    "body",
    [
        sse(delta(content="half")),
        sse(delta(content="half"), {"error": {"message": "out of memory"}}),
        b"data: {oops\n\n",
        sse(
            delta(
                tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{"}}]
            )
        )
        + sse(delta("tool_calls")),
    ],
    ids=["cut", "error frame", "no json", "broken call"],
)
def test_a_broken_answer_is_an_error_never_a_short_answer(upstream, body):
    """R013: nothing of a failed run passes for a complete one."""
    upstream.answers = [body]

    with pytest.raises(EngineError):
        ask(upstream)


@pytest.mark.parametrize(
    ("status", "ours"),
    [(400, 400), (404, 404), (422, 422), (401, 502), (500, 502), (307, 502)],
)
def test_error_statuses_are_mapped(upstream, status, ours):
    """What the client can mend keeps its status; the rest is a bad gateway."""
    upstream.answers = [
        upstream.status(
            status, {"error": {"message": "no  luck"}}, Location="http://127.0.0.1:9/"
        )
    ]

    with pytest.raises(EngineError) as caught:
        ask(upstream)

    assert caught.value.status == ours
    assert len(upstream.asked) == 1
    if ours < 500:
        assert "no luck" in str(caught.value)


def test_a_busy_upstream_is_asked_again_before_the_first_byte(upstream):
    """Two refusals, then an answer: the client sees only the answer."""
    busy = upstream.status(503, {"error": "busy"}, Retry_After="0")
    upstream.answers = [busy, busy, HELLO]

    assert ask(upstream).text == "hello"
    assert len(upstream.asked) == 3


def test_retries_end(upstream):
    """Three tries, then the error."""
    upstream.answers = [
        upstream.status(503, {"error": "busy"}, Retry_After="0") for _ in range(9)
    ]

    with pytest.raises(EngineError, match="busy"):
        ask(upstream)

    assert len(upstream.asked) == 3


def test_nothing_is_sent_twice_once_a_byte_came(upstream):
    """A cut answer is not asked for again."""
    upstream.answers = [sse(delta(content="half"))]

    with pytest.raises(EngineError):
        ask(upstream)

    assert len(upstream.asked) == 1


def test_silence_over_the_limit_is_a_timeout(upstream):
    """A wedged upstream becomes 504, not a hang."""
    upstream.answers = [upstream.wait_for_hang_up]

    with pytest.raises(EngineTimeout):
        ask(upstream, silence_s=0.2)


def test_closing_cuts_an_upstream_that_has_sent_no_headers(upstream):
    """R008: a client that leaves stops the work up there within a second."""
    upstream.answers = [upstream.wait_for_hang_up]
    with engine(upstream) as made:
        reply = made.reply(CHAT)
        caught: list[BaseException] = []

        def read() -> None:
            try:
                list(reply)
            except EngineError as exc:
                caught.append(exc)

        reader = threading.Thread(target=read)
        reader.start()
        assert upstream.waiting.wait(5)
        began = time.monotonic()

        reply.close()
        reader.join(5)

        assert time.monotonic() - began < 1
        assert upstream.cut.wait(1)
        assert isinstance(caught[0], Cancelled)


def test_closing_cuts_a_stream_in_its_middle(upstream):
    """The same while text is coming."""

    def half(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(sse(delta(content="half")))
        upstream.wait_for_hang_up(handler)

    upstream.answers = [half]
    with engine(upstream) as made, closing(Queued(made)) as queue:
        reply = queue.reply(CHAT)
        for event in reply:
            if event == Text("half"):
                break

        reply.close()

        assert upstream.cut.wait(2)


def test_limits_and_model_are_what_the_upstream_says(upstream):
    """The first model listed answers, with its own context."""
    with engine(upstream) as made:
        gather(made.reply(CHAT))

        limits = made.limits()
        assert limits.context_tokens == 8192 and limits.tools
        assert "gemma" in limits.description
        assert made.status().ready

    assert upstream.asked[0]["model"] == "gemma"


def test_a_named_model_that_is_not_listed_is_said(upstream):
    """The status tells; the request still goes out, for servers with hidden models."""
    with engine(upstream, model="other") as made:
        gather(made.reply(CHAT))

        assert not made.status().ready
        assert "other" in made.status().reason


def test_a_dead_upstream_is_a_clear_error_and_then_costs_nothing():
    """After three failures in a row callers are told at once."""
    with engine(free_url(), model="m") as made:
        with pytest.raises(EngineError, match="can't be reached"):
            gather(made.reply(CHAT))  # three tries

        with pytest.raises(NotReady, match="in a row"):
            made.reply(CHAT)

        assert not made.status().ready


def test_without_any_model_the_reason_is_told():
    """Nothing is guessed where the list is empty."""
    with (
        closing(Upstream(models={"data": []})) as server,
        engine(server) as made,
        pytest.raises(NotReady, match="upstream_model"),
    ):
        made.reply(CHAT)


def test_R067_proxies_of_the_environment_never_see_loopback(upstream, monkeypatch):
    """HTTP_PROXY on a cluster must not break a server on the same machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")

    assert ask(upstream).text == "hello"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/v1",
        "127.0.0.1:8000",
        "http://",
        "http://x:port/v1",
        "http://me:pa55@x/v1",
        "http://x/v1?key=pa55",
    ],
)
def test_a_url_that_is_none_stops_the_start(url):
    """The key in site.toml is named."""
    with pytest.raises(ConfigError, match=r"engine\.upstream_url"):
        UpstreamEngine([url])


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_urls_as_people_write_them_lead_to_the_same_place(upstream, path):
    """With or without /v1, or the whole path of chat."""
    base = upstream.url.removesuffix("/v1")
    with closing(UpstreamEngine([base + path])) as made:
        assert gather(made.reply(CHAT)).text == "hello"


def test_the_key_is_in_no_text(upstream):
    """Neither description nor errors hold it."""
    upstream.answers = [upstream.status(401, {"error": "bad key sk-SECRET"})]
    with engine(upstream, key="sk-SECRET") as made:
        with pytest.raises(EngineError) as caught:
            gather(made.reply(CHAT))

        told = f"{caught.value} {made.limits()} {made.status()} {made!r}"
        assert "SECRET" not in told
