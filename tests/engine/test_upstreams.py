"""Several upstreams: who is asked for what, and what happens when one of them fails."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from ofa.chat import Chat, Image, Message, Text, Tool, gather
from ofa.engine.upstream import affinity, rank
from ofa.engine.upstream_breaker import OPENS_AFTER
from ofa.errors import Cancelled, EngineError, NotReady

from .upstream_servers import (
    DONE,
    MODELS,
    Upstream,
    delta,
    engine,
    free_url,
    recorded,
    sse,
    until,
)

BRIEF = Message("system", "You know Slurm. " * 50)


def chat_about(question: str, *turns: str, brief=BRIEF, **more) -> Chat:
    """Return a chat that began with *question*; *turns* follow."""
    roles = ("assistant", "user") * len(turns)
    later = (Message(role, text) for role, text in zip(roles, turns, strict=False))
    return Chat("ofa-hpc", (brief, Message("user", question), *later), **more)


@contextmanager
def upstreams(count: int) -> Iterator[list[Upstream]]:
    """Yield *count* servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Upstream())) for _ in range(count)]


def named(one: Upstream) -> bytes:
    """Return an answer that says which server gave it."""
    return sse(delta(content=one.url), delta("stop")) + DONE


def asked_for(made, chat: Chat, servers: list[Upstream]) -> Upstream:
    """Return the server that *chat* went to."""
    before = [len(one.asked) for one in servers]
    gather(made.reply(chat))
    (one,) = [
        s for s, count in zip(servers, before, strict=True) if len(s.asked) > count
    ]
    return one


# Affinity


def test_a_conversation_stays_where_its_turns_are_cached():
    """Every turn, a tool loop and a regenerated answer have the same beginning."""
    with upstreams(4) as servers, engine(*servers) as made:
        for question in ("a", "b", "c", "d", "e", "f"):
            first = asked_for(made, chat_about(question), servers)

            later = chat_about(question, "answer", "more", "answer", "and more")
            assert asked_for(made, later, servers) is first
            assert asked_for(made, chat_about(question), servers) is first


def test_conversations_spread_over_all():
    """What they share, the instructions, does not send all of a mode to one place."""
    with upstreams(4) as servers, engine(*servers) as made:
        chats = [chat_about(f"question {n}") for n in range(400)]
        first = Counter(rank(affinity(chat), made._servers)[0] for chat in chats)

    assert len(first) == 4
    assert max(first.values()) < 140


@pytest.mark.parametrize(
    "other",
    [
        chat_about("q", brief=Message("system", "You know VASP.")),
        chat_about("another"),
        chat_about("q", tools=(Tool("read"),)),
        Chat("m", (BRIEF, Message("user", "q", images=(Image("data:,x"),)))),
    ],
    ids=["brief", "question", "tools", "image"],
)
def test_what_an_upstreams_cache_sees_tells_conversations_apart(other):
    """Instructions, tools, and the first question with its pictures."""
    assert affinity(chat_about("q")) != affinity(other)


def test_what_it_does_not_see_does_not():
    """Who asks, for which mode, how it is sampled, and what is said later."""
    chat = chat_about("q")
    same = [
        replace(chat, model="ofa-vasp", caller="k", priority=1),
        chat_about("q", "a", "b"),
        Chat("m", (BRIEF, Message("user", "q", images=(), name="x"))),
    ]

    assert {affinity(one) for one in same} == {affinity(chat)}
    affinity(Chat("m", ()))  # nothing at all is no error
    affinity(Chat("m", (Message("user", "\ud800"),)))


def test_a_server_that_leaves_moves_its_own_chats_only():
    """Rendezvous hashing: the others keep what their caches hold, and get it back."""
    with upstreams(4) as servers, engine(*servers) as made:
        all_ = made._servers
        keys = [affinity(chat_about(str(n))) for n in range(300)]
        before = {key: rank(key, all_)[0] for key in keys}

        gone = all_[1]
        after = {key: rank(key, [s for s in all_ if s is not gone])[0] for key in keys}

    moved = {key for key in keys if before[key] is not after[key]}
    assert moved == {key for key in keys if before[key] is gone}
    assert {after[key] for key in moved} == set(all_) - {gone}


def test_the_order_of_the_list_is_no_matter():
    """Two fronts that list the same nodes send a chat to the same one."""
    with upstreams(3) as servers:
        urls = [one.url for one in servers]
        with engine(*urls) as one, engine(*reversed(urls), urls[0]) as other:
            key = affinity(chat_about("q"))

            firsts = [str(s.base) for s in rank(key, one._servers)]
            assert firsts == [str(s.base) for s in rank(key, other._servers)]


# Failures


@contextmanager
def pair() -> Iterator[tuple]:
    """Yield an engine with two servers, and those in the order of `chat_about("q")`."""
    with upstreams(2) as servers, engine(*servers) as made:
        first = asked_for(made, chat_about("q"), servers)
        (second,) = [one for one in servers if one is not first]
        yield made, first, second


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_busy_one_is_passed_over_at_once(status):
    """The next in order answers, without a wait; and the busy one is left alone."""
    with pair() as (made, first, second):
        first.answers = [first.status(status, {"error": "no"}, Retry_After="30")]
        second.answers = [named(second), named(second)]

        assert gather(made.reply(chat_about("q"))).text == second.url
        assert gather(made.reply(chat_about("q"))).text == second.url
        assert len(first.asked) == 2


def test_a_refusal_is_not_asked_of_the_next():
    """A bad question is bad everywhere."""
    with pair() as (made, first, second):
        first.answers = [first.status(400, {"error": "no"})]

        with pytest.raises(EngineError, match="refused"):
            gather(made.reply(chat_about("q")))

        assert second.asked == []


def test_an_answer_that_has_begun_is_not_taken_over():
    """The client would see two beginnings."""

    def half(handler) -> None:
        first.reply(handler, 200, sse(delta(content="half")))

    with pair() as (made, first, second):
        first.answers = [half]

        with pytest.raises(EngineError):
            gather(made.reply(chat_about("q")))

        assert second.asked == []


def test_a_node_that_dies_is_passed_over_and_comes_back():
    """Its chats go to the next in order, and home again when it answers."""
    with pair() as (made, first, second):
        first.close()
        second.answers = [named(second) for _ in range(3)]

        for _ in range(3):
            assert gather(made.reply(chat_about("q"))).text == second.url
        until(lambda: "can't be reached" in made.status().details[first.url])
        assert made.status().ready
        assert made.status().details[second.url] == "up"

        with closing(Upstream(port=first.port)) as again:
            until(lambda: set(made.status().details.values()) == {"up"})
            assert gather(made.reply(chat_about("q"))).text == "hello"
            assert len(again.asked) == 1


def test_a_node_that_hangs_is_left_alone_after_three():
    """Its breaker opens; callers no longer pay for its silence."""
    with upstreams(2) as servers, engine(*servers, silence_s=0.2) as made:
        first = asked_for(made, chat_about("q"), servers)
        (second,) = [one for one in servers if one is not first]
        first.answers = [first.wait_for_hang_up] * 9
        for _ in range(OPENS_AFTER):
            with pytest.raises(EngineError, match="silent"):
                gather(made.reply(chat_about("q")))

        assert asked_for(made, chat_about("q"), servers) is second


def test_all_of_them_down_is_a_clear_error():
    """503 with the shortest time, and every reason in the details."""
    urls = [free_url(), free_url()]
    with engine(*urls, model="m") as made:
        with pytest.raises(EngineError, match="can't be reached"):
            gather(made.reply(chat_about("q")))
        for server in made._servers:
            for _ in range(OPENS_AFTER):
                server.breaker.failed()

        with pytest.raises(NotReady) as caught:
            made.reply(chat_about("q"))

        assert caught.value.retry_after_s >= 1
        status = made.status()
        assert not status.ready
        assert set(status.details) == set(urls)


def test_three_tries_are_all_there_are():
    """However many servers there are: a request is not a search party."""
    with upstreams(5) as servers, engine(*servers) as made:
        for one in servers:
            one.answers = [one.status(503, {"error": "no"})] * 3

        with pytest.raises(EngineError):
            gather(made.reply(chat_about("q")))

        assert sum(len(one.asked) for one in servers) == 3


def test_closing_between_two_servers_ends_it():
    """A client that leaves while the first is being asked is not taken to the next."""
    go = threading.Event()

    def slow(handler) -> None:
        go.wait(10)
        first.reply(handler, 503, {"error": "no"})

    with pair() as (made, first, second):
        first.answers = [slow]
        reply = made.reply(chat_about("q"))
        raised: list[BaseException] = []

        def read() -> None:
            try:
                gather(reply)
            except EngineError as exc:
                raised.append(exc)

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: len(first.asked) == 2)
        reply.close()
        go.set()
        reader.join(10)

        assert isinstance(raised[0], Cancelled)
        assert second.asked == []


# Load


def test_a_full_one_passes_chats_on_while_others_have_room():
    """`upstream_running` answers are its fill; when all are full it is asked again."""
    go = threading.Event()
    with upstreams(2) as servers, engine(*servers, running=2) as made:
        for one in servers:
            piece = sse(delta(content=one.url))
            one.answers = [
                one.chunked(piece, go, sse(delta("stop")), DONE) for _ in range(9)
            ]
        texts: list[str] = []
        threads: list[threading.Thread] = []

        def read(reply) -> None:
            for event in reply:
                if isinstance(event, Text):
                    texts.append(event.text)

        for count in range(1, 6):
            reply = made.reply(chat_about("q"))
            threads.append(threading.Thread(target=read, args=(reply,)))
            threads[-1].start()
            until(lambda count=count: len(texts) == count)
        go.set()
        for thread in threads:
            thread.join(10)

    home = texts[0]
    assert texts[1] == home
    assert texts[2] == texts[3] != home
    assert texts[4] == home


# What all can do


def test_the_least_able_decides_what_may_be_asked():
    """A chat may go to any of them: what one can't do is not offered."""
    vllm, ollama = recorded("vllm-models.json"), recorded("ollama-models.json")
    with (
        closing(Upstream(models=vllm)) as one,
        closing(Upstream(models=ollama)) as other,
        engine(one, other) as made,
    ):
        until(lambda: all(server.is_known for server in made._servers))
        limits = made.limits()

    assert limits.context_tokens == 4096
    assert limits.choices == 1
    assert limits.logprobs == 20
    assert limits.structured and limits.tools
    assert "gemma-3-27b-it" in limits.description and "Ollama" in limits.description


def test_one_that_never_answered_limits_nobody():
    """What it can do is not known; the others go on."""
    with closing(Upstream()) as one, engine(one, free_url()) as made:
        gather(made.reply(chat_about("q")))

        assert made.limits().context_tokens == 8192
        assert made.status().ready


def test_each_is_asked_for_its_own_model():
    """Nodes may call the same model by different names."""
    other_list = {"data": [{"id": "other", "owned_by": "vllm"}]}
    with (
        closing(Upstream(models=MODELS)) as one,
        closing(Upstream(models=other_list)) as other,
        engine(one, other) as made,
    ):
        for number in range(12):
            gather(made.reply(chat_about(str(number))))

        assert {body["model"] for body in one.asked} == {"gemma"}
        assert {body["model"] for body in other.asked} == {"other"}


# All at once


def echo(handler) -> None:
    """Answer with the question, a character a frame."""
    said = handler.body["messages"][-1]["content"]
    handler.upstream.reply(
        handler, 200, sse(*(delta(content=c) for c in said), delta("stop")) + DONE
    )


def test_many_conversations_over_a_failing_node_lose_and_mix_nothing():
    """Sixty chats on eight threads, a node that refuses at times: each gets its own."""
    dice = random.Random(5)
    with upstreams(3) as servers, engine(*servers, running=8) as made:
        for one in servers:
            one.answers = [echo] * 200
        busy = servers[0].status(503, {"error": "no"}, Retry_After="0")
        servers[0].answers = [busy if dice.random() < 0.5 else echo for _ in range(200)]
        wrong: list[str] = []
        numbers = iter(range(60))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                text = gather(made.reply(chat_about(f"chat {number}"))).text
                if text != f"chat {number}":
                    wrong.append(text)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert wrong == []
