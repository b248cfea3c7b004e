"""What goes wrong with an upstream: what is tried again, and what clients are told."""

import email.utils
import logging
import threading
import time

import httpx
import pytest

from ofa.chat import Text, gather
from ofa.engine import upstream_faults as faults
from ofa.engine.upstream_breaker import OPEN_S, OPENS_AFTER, Breaker
from ofa.errors import EngineError, EngineTimeout, NotReady, OfaError

from .upstream_servers import (
    CHAT,
    DONE,
    HALF,
    HELLO,
    delta,
    engine,
    free_url,
    recorded,
    sse,
    until,
)


def refusal_of(upstream, *answers, **options) -> OfaError:
    """Return what a client is told of *answers*."""
    upstream.answers = list(answers)
    with engine(upstream, **options) as made, pytest.raises(OfaError) as caught:
        gather(made.reply(CHAT))
    return caught.value


# What is tried again


@pytest.mark.parametrize("status", [429, 502, 503])
def test_what_may_pass_is_tried_twice_more(upstream, status):
    """Busy servers and gateways whose server restarts; then the client is told."""
    again = upstream.status(status, {"error": {"message": "later"}}, Retry_After="0")

    refused = refusal_of(upstream, *[again] * 9)

    assert len(upstream.asked) == 3
    assert refused.status == (429 if status == 429 else 502)
    assert "later" in str(refused)


@pytest.mark.parametrize("status", [400, 401, 404, 409, 418, 500, 501, 504])
def test_what_will_not_pass_is_tried_once(upstream, status):
    """The same question would get the same answer."""
    refusal_of(upstream, upstream.status(status, {"error": "no"}, Retry_After="0"))

    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    "begun",
    [b": a comment\n\n", sse(delta(content="half")), b""],
    ids=["comment", "text", "headers only"],
)
def test_nothing_is_tried_again_once_an_answer_has_begun(upstream, begun):
    """A byte is enough: the upstream has done work, and the client may have seen it."""

    def break_off(handler) -> None:
        upstream.start(handler)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(begun)
        handler.close_connection = True

    refused = refusal_of(upstream, break_off)

    assert refused.status == 502
    assert len(upstream.asked) == 1


def test_a_new_connection_that_breaks_is_not_tried_again(upstream):
    """The upstream may have taken the question: only connecting is tried again."""

    def hang_up(handler) -> None:
        handler.close_connection = True

    refusal_of(upstream, hang_up)

    assert len(upstream.asked) == 1


def test_retry_after_is_waited_for(upstream):
    """The upstream knows best when it has room."""
    busy = upstream.status(503, {"error": "busy"}, Retry_After="1")
    upstream.answers = [busy, HELLO]
    with engine(upstream) as made:
        began_s = time.monotonic()

        assert gather(made.reply(CHAT)).text == "hello"
        assert time.monotonic() - began_s >= 1


def test_who_asks_for_much_time_is_not_asked_again(upstream):
    """The client is told how long instead."""
    busy = upstream.status(429, {"error": "quota"}, Retry_After="60")

    refused = refusal_of(upstream, busy)

    assert len(upstream.asked) == 1
    assert (refused.status, refused.retry_after_s) == (429, 60)
    assert refused.kind == "rate_limit_error"


def headers(value):
    """Return an answer with this Retry-After."""
    return httpx.Response(503, headers={"Retry-After": value} if value else {})


def test_retry_after_is_read_in_both_of_its_forms():
    """Seconds, or a date; anything else is nothing."""
    soon = email.utils.format_datetime(
        email.utils.localtime().fromtimestamp(time.time() + 30).astimezone()
    )
    read = {
        value: faults.retry_after_s(headers(value))
        for value in (
            "",
            "7",
            "0",
            "-1",
            "soon",
            "9" * 40,
            "Thu, 01 Jan 1970 00:00:00 GMT",
        )
    }

    assert read == {
        "": None,
        "7": 7.0,
        "0": 0.0,
        "-1": None,
        "soon": None,
        "9" * 40: None,
        "Thu, 01 Jan 1970 00:00:00 GMT": 0.0,
    }
    assert 20 < faults.retry_after_s(headers(soon)) <= 31


def test_pauses_grow_and_differ():
    """Callers that were refused together don't come back together."""
    first = {faults.pause_s(1) for _ in range(50)}
    second = {faults.pause_s(2) for _ in range(50)}

    assert len(first) > 10
    assert min(first) >= 0.25 and max(first) <= 0.75
    assert min(second) >= 0.5 and max(second) <= 1.5


# What clients are told


@pytest.mark.parametrize(
    ("status", "ours"),
    [
        *((s, s) for s in (400, 402, 404, 405, 408, 409, 413, 415, 418, 422)),
        *((s, 502) for s in (204, 307, 401, 403, 407, 500, 501, 504, 599)),
    ],
)
def test_each_status_has_its_own(upstream, status, ours):
    """4xx is the client's to mend, but for the key; the rest is a bad gateway."""
    refused = refusal_of(
        upstream, upstream.status(status, {"error": {"message": "no"}})
    )

    assert refused.status == ours
    assert refused.kind == ("server_error" if ours == 502 else "invalid_request_error")


@pytest.mark.parametrize(
    ("recording", "status", "code", "words"),
    [
        ("vllm-too-long.json", 400, "context_length_exceeded", "16384 tokens"),
        ("llama-server-too-long.json", 400, "context_length_exceeded", "9412 tokens"),
        ("vllm-unknown-model.json", 404, "upstream_refused", "does not exist"),
        ("ollama-unknown-model.json", 404, "upstream_refused", "not found"),
    ],
)
def test_errors_as_servers_send_them(upstream, recording, status, code, words):
    """What an editor acts upon, a context that is full, has the code that it knows."""
    refused = refusal_of(upstream, upstream.status(status, recorded(recording)))

    assert (refused.status, refused.code) == (status, code)
    assert words in str(refused)


@pytest.mark.parametrize(
    "body",
    [
        {"error": "plain"},
        {"error": {"message": "plain"}},
        {"object": "error", "message": "plain", "code": 400},
        {"detail": "plain"},
        "plain",
    ],
)
def test_a_message_is_found_in_every_shape(upstream, body):
    """OpenAI's, Ollama's own, vLLM's older one, FastAPI's, a string."""
    assert "plain" in str(refusal_of(upstream, upstream.status(400, body)))


@pytest.mark.parametrize(
    "body", [b"<html>", b"", b"[" * 100_000, b'"' + b"x" * (1 << 20) + b'"', None]
)
def test_an_error_page_that_is_none_is_still_an_error(upstream, body):
    """A gateway's HTML is not shown to anybody."""
    refused = refusal_of(upstream, upstream.status(400, body))

    assert str(refused) == "the upstream refused: no message"


def test_a_key_that_is_quoted_is_not_passed_on(upstream, caplog):
    """Some servers repeat what they were sent; neither client nor log sees it."""
    caplog.set_level(logging.DEBUG)
    quoted = upstream.status(400, {"error": {"message": "key sk-SECRET is no good"}})

    refused = refusal_of(upstream, quoted, key="sk-SECRET")

    assert str(refused) == "the upstream refused: key … is no good"
    assert "SECRET" not in caplog.text


def test_httpxs_errors_are_all_mapped():
    """Nothing of httpx gets out, and no message of it: it may quote a URL."""
    told = {
        type_: faults.foreign(type_("http://me:pa55@host"))
        for type_ in _subclasses(httpx.HTTPError)
        if type_ is not httpx.HTTPStatusError and type_.__module__.startswith("httpx")
    }

    assert len(told) > 10
    for type_, error in told.items():
        late = issubclass(type_, httpx.TimeoutException)
        assert error.status == (504 if late else 502)
        assert "pa55" not in str(error)


def _subclasses(base):
    yield base
    for child in base.__subclasses__():
        yield from _subclasses(child)


# When to leave it alone


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock():
    """Return a clock."""
    return Clock()


@pytest.fixture
def opened(clock):
    """Return a breaker that has just opened."""
    breaker = Breaker(clock)
    for _ in range(OPENS_AFTER):
        assert breaker.enter() is False
        breaker.failed()
    return breaker


def test_failures_in_a_row_open_it(clock):
    """One that works in between starts the count anew."""
    breaker = Breaker(clock)
    for _ in range(OPENS_AFTER - 1):
        breaker.failed()
    breaker.worked()
    for _ in range(OPENS_AFTER - 1):
        breaker.failed()
    assert breaker.refusal() is None

    breaker.failed()

    assert breaker.refusal() is not None


def test_an_open_one_says_for_how_long(opened, clock):
    """The client gets it as Retry-After, in whole seconds."""
    clock.now_s += 0.5

    with pytest.raises(NotReady, match="in a row") as caught:
        opened.enter()

    assert caught.value.retry_after_s == OPEN_S


def test_one_request_goes_through_on_trial(opened, clock):
    """The others wait until it is known whether that one works."""
    clock.now_s += OPEN_S

    assert opened.refusal() is None
    assert opened.enter() is True
    with pytest.raises(NotReady, match="another request"):
        opened.enter()

    opened.worked()
    opened.leave(trial=True)

    assert opened.enter() is False
    assert opened.enter() is False


def test_a_trial_that_fails_opens_it_again(opened, clock):
    """For the whole time."""
    clock.now_s += OPEN_S
    opened.enter()

    opened.failed()

    clock.now_s += OPEN_S - 1
    assert opened.refusal() is not None
    clock.now_s += 1
    assert opened.enter() is True


def test_a_trial_whose_client_left_makes_room_for_the_next(opened, clock):
    """It has shown nothing."""
    clock.now_s += OPEN_S
    assert opened.enter() is True

    opened.leave(trial=True)

    assert opened.enter() is True


def test_a_probe_may_bring_the_trial_forward(opened):
    """A server that has come back is used at once, not after the time is over."""
    assert opened.refusal() is not None

    opened.allow_trial()

    assert opened.enter() is True


def test_of_many_threads_one_gets_the_trial(opened, clock):
    """Whatever they do at the same time."""
    clock.now_s += OPEN_S
    start, through = threading.Barrier(8), []

    def enter() -> None:
        start.wait()
        try:
            through.append(opened.enter())
        except NotReady:
            through.append(False)

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(through) == [False] * 7 + [True]


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_answer_is_no_failure_of_the_server(upstream, status):
    """One client's bad question, or a full queue, must not close it to the others."""
    upstream.answers = [
        upstream.status(status, {"error": "no"}, Retry_After="0") for _ in range(12)
    ]
    with engine(upstream) as made:
        for _ in range(4):
            with pytest.raises(EngineError):
                gather(made.reply(CHAT))

        assert made.status().ready


def test_a_gateway_that_lost_its_server_counts(upstream):
    """502 and 504 are a gateway's words for a server that is gone; then 503 at once."""
    gone = upstream.status(504, {"error": "gateway"})
    upstream.answers = [gone] * 9
    upstream.pages["/v1/models"] = upstream.status(502, {})
    with engine(upstream, model="m", probe_every_s=600) as made:
        until(lambda: made.status().ready)  # a model is named: the list is no matter
        for _ in range(OPENS_AFTER):
            with pytest.raises(EngineError, match="504"):
                gather(made.reply(CHAT))

        with pytest.raises(NotReady) as caught:
            made.reply(CHAT)

        assert 0 < caught.value.retry_after_s <= OPEN_S
        assert not made.status().ready
        assert len(upstream.asked) == OPENS_AFTER


@pytest.mark.parametrize("said", [b"", HALF], ids=["headers", "words"])
def test_who_begins_and_hangs_counts_as_failing(upstream, said):
    """Headers tell nothing, nor does half an answer: some servers hang behind them,
    and each chat waited for all the silence that is allowed, for ever."""
    pieces = [said] if said else []
    upstream.answers = [upstream.chunked(*pieces, None) for _ in range(9)]
    with engine(upstream, silence_s=0.2, probe_every_s=600) as made:
        until(lambda: made.status().ready)
        for _ in range(OPENS_AFTER):
            with pytest.raises(EngineTimeout):
                gather(made.reply(CHAT))

        with pytest.raises(NotReady):
            made.reply(CHAT)

        breaker = made._servers[0].breaker
        breaker.allow_trial()
        with pytest.raises(EngineTimeout):
            gather(made.reply(CHAT))
        assert breaker.refusal() is not None, "a trial is no answer by its headers"
        breaker.allow_trial()
        upstream.answers = []
        assert gather(made.reply(CHAT)).text == "hello"
        assert breaker.refusal() is None


@pytest.mark.parametrize("stream", [True, False], ids=["frame", "page"])
def test_an_error_behind_a_good_status_never_tells_the_key(upstream, stream):
    """A gateway that quotes what it was sent would hand it to every client."""
    error = {"error": {"message": "bad key sk-UPSTREAM for this model"}}
    upstream.answers = [sse(error) + DONE if stream else error]
    told = pytest.raises(EngineError, match="bad key … for")
    with engine(upstream, key="sk-UPSTREAM") as made, told as caught:
        gather(made.reply(CHAT))

    assert "sk-" not in str(caught.value)


def test_the_breaker_closes_by_the_first_answer(upstream):
    """On trial, through HTTP: what works opens the way for all."""
    with engine(upstream) as made:
        gather(made.reply(CHAT))
        breaker = made._servers[0].breaker
        for _ in range(OPENS_AFTER):
            breaker.failed()
        with pytest.raises(NotReady):
            made.reply(CHAT)

        breaker.allow_trial()
        assert gather(made.reply(CHAT)).text == "hello"

        assert made.status().ready
        assert Text("hello") in list(made.reply(CHAT))


# Looking after it


def test_the_list_is_read_again(upstream):
    """A model that is changed under way is asked for by its new name."""
    with engine(upstream, probe_every_s=0.02) as made:
        gather(made.reply(CHAT))
        upstream.pages["/v1/models"] = {"data": [{"id": "new", "max_model_len": 4096}]}
        until(lambda: made.limits().context_tokens == 4096)

        gather(made.reply(CHAT))

    assert [body["model"] for body in upstream.asked] == ["gemma", "new"]


def test_an_unknown_model_has_the_list_read_at_once(upstream):
    """Not only when its time comes."""
    missing = upstream.status(404, recorded("vllm-unknown-model.json"))
    upstream.answers = [missing]
    with engine(upstream, probe_every_s=600) as made:
        until(lambda: made.status().ready)
        upstream.pages["/v1/models"] = {"data": [{"id": "new"}]}

        with pytest.raises(EngineError, match="does not exist"):
            gather(made.reply(CHAT))

        until(lambda: "new" in made.limits().description)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ({"data": "none"}, "can't be read|does not list"),
        ({"data": []}, "does not list any model"),
        ({"data": [7, {"id": None}, {"id": ""}]}, "does not list any model"),
        ([], "can't be read"),
    ],
)
def test_a_list_that_is_none_is_said(upstream, page, words):
    """Whatever a server answers there, the reason is told, and nothing breaks."""
    upstream.pages["/v1/models"] = page
    with engine(upstream) as made, pytest.raises(NotReady, match=words):
        made.reply(CHAT)


@pytest.mark.parametrize(
    ("status", "words"), [(401, "refuses its key"), (500, "answers 500")]
)
def test_a_list_that_is_refused_is_said(upstream, status, words):
    """An operator reads in /readyz what to mend."""
    upstream.pages["/v1/models"] = upstream.status(status, {"error": "no"})
    with engine(upstream) as made:
        with pytest.raises(NotReady, match=words):
            made.reply(CHAT)

        assert not made.status().ready
        assert words in made.status().reason


def test_an_unreachable_upstream_is_said():
    """And its URL is in the details, for people and probes."""
    url = free_url()
    with engine(url) as made:
        with pytest.raises(NotReady, match="can't be reached"):
            made.reply(CHAT)

        assert list(made.status().details) == [url]
