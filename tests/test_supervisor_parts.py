"""The supervisor's parts: what it makes of ends of small workers, and its stand-in."""

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from ofa.engine.base import Status
from ofa.errors import NotReady
from ofa.ports import Place
from ofa.protocols import openai_chat
from ofa.supervisor import GAVE_UP, Patience, Restarts, Supervisor, silence_limit_s
from ofa.supervisor_link import find_link
from ofa.supervisor_standin import StandIn, render
from ofa.supervisor_worker import Worker

from .processes import ROOT

LINK = (
    "import os, signal, time; from ofa.engine.base import Status; "
    "from ofa.supervisor_link import find_link; link = find_link(os.environ); "
)
LOADS = LINK + "link.start(); link.attach(lambda: Status(False, 'loading'), {}); "
SERVES = LINK + "link.start(); link.attach(lambda: Status(True), {}); "


@pytest.fixture
def listening():
    """A socket that listens, and its place."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield Place(opened, "127.0.0.1", opened.getsockname()[1])


def supervisor(place: Place, code: str, **patience: object) -> Supervisor:
    """Return a supervisor of a worker that runs *code*."""
    quick = {"silence_s": 20.0, "drain_s": 1.0, "waits_s": (0.01, 0.01), **patience}
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Supervisor([sys.executable, "-c", code], env, place, Patience(**quick))


def test_waits_grow_and_end():
    """A worker that dies at once is not started for ever; old deaths are forgotten."""
    restarts = Restarts((0.2, 1.0, 5.0), window_s=600)

    waits = [restarts.next_wait_s(at) for at in (0.0, 10.0, 20.0, 30.0, 601.0, 602.0)]

    assert waits == [0.2, 1.0, 5.0, None, 5.0, None]


@pytest.mark.parametrize(("stall_s", "limit_s"), [(1, 5), (4.5, 5.5), (60, 61)])
def test_beats_may_stay_away_for_as_long_as_a_step(stall_s, limit_s):
    """And a bit: a busy machine delays beats, too."""
    assert silence_limit_s(stall_s) == limit_s


@pytest.mark.parametrize(
    ("code", "before"),
    [(0, SERVES), (78, LOADS), (78, LINK), (1, LINK)],
    ids=["done", "configuration", "configuration at start", "failed start"],
)
def test_some_ends_are_final(listening, capfd, code, before):
    """One that is done, or would end the same way again, is not started again."""
    run = f"{before} os.write(1, b'started '); os._exit({code})"

    assert supervisor(listening, run).run() == code
    assert capfd.readouterr().out == "started "


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os._exit(9)", "ended with exit code 9"),
        ("os.kill(os.getpid(), 15)", "was killed by signal 15 (SIGTERM)"),
        ("os.kill(os.getpid(), 40)", "was killed by signal 40"),
    ],
)
def test_a_worker_that_dies_again_and_again_ends_it(listening, caplog, code, how):
    """After the last restart, with a line that says how."""
    assert supervisor(listening, SERVES + code).run() == GAVE_UP

    *restarts, last = [r.getMessage() for r in caplog.records]
    assert len(restarts) == 2
    assert restarts[1].endswith(f"{how}; it starts again in 0.01 s (restart 2 of 2)")
    assert last.endswith(how) and last.startswith("giving up after 2 restarts")


def test_what_served_before_is_loaded_again(listening, caplog):
    """A model that can't be loaded behind a crash is a file server's bad minute, or
    memory taken by others: it ended the server for good, and its port was lost."""
    gone = supervisor(listening, SERVES + "os._exit(78)", load_wait_s=0.3)

    began = time.monotonic()
    assert gone.run() == GAVE_UP

    assert time.monotonic() - began > 2 * 0.3
    assert "exit code 78; it starts again in 0.3 s (restart 1 of 2)" in caplog.text


def test_a_worker_that_cannot_be_started_is_tried_again(listening, caplog):
    """No memory for a process is a passing thing; a missing program is not."""
    missing = Supervisor(["/nowhere/python"], {}, listening, Patience(9, 1, (0.01,)))

    assert missing.run() == GAVE_UP
    assert "could not be started: No such file" in caplog.text


def test_a_silent_worker_is_ended_and_replaced(listening, caplog):
    """It lives and does nothing: for a supervisor that is no life."""
    stub = supervisor(listening, "import time; time.sleep(60)", silence_s=0.5)
    began = time.monotonic()

    assert stub.run() == GAVE_UP
    assert time.monotonic() - began < 3 * (0.5 + 2)
    assert caplog.text.count("gave no sign of life") == 3


def test_a_worker_that_ignores_abortion_is_killed(listening, caplog):
    """Whatever a library does about signals, one works."""
    deaf = "import signal, time; signal.signal(6, signal.SIG_IGN); time.sleep(60)"

    assert supervisor(listening, deaf, silence_s=0.5, waits_s=()).run() == GAVE_UP
    assert "gave no sign of life" in caplog.text


def test_a_broken_worker_that_does_not_leave_is_ended(listening, caplog):
    """It said that it won't be ready again: it gets the time to tell its clients."""
    broken = LINK + (
        "link.start(); "
        "link.attach(lambda: Status(False, 'stuck', broken=True), {}); time.sleep(60)"
    )
    began = time.monotonic()

    assert supervisor(listening, broken, waits_s=()).run() == GAVE_UP
    assert time.monotonic() - began < 10
    assert "the server's worker gave up: stuck" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_is_ordered_once_and_then_forced(listening, caplog, number):
    """A worker that does not care is killed after its grace; the code is still 0."""
    deaf = SERVES + "time.sleep(60)"
    stub = supervisor(listening, deaf, drain_s=-9.5)  # half a second in all
    before = signal.signal(number, signal.SIG_DFL)  # ignored where nohup ran the tests
    try:
        with background(lambda: stop_when_away(listening.port, number)):
            assert stub.run() == 0
    finally:
        signal.signal(number, before)

    assert "(SIGKILL) while it stopped" in caplog.text


def test_L8_a_stop_before_the_server_listens_is_obeyed_at_once(listening):
    """While it loads there is nothing to drain."""
    loading = supervisor(listening, LINK + "link.start(); time.sleep(60)")
    began = time.monotonic()
    with background(lambda: (time.sleep(1), os.kill(os.getpid(), signal.SIGTERM))):
        assert loading.run() == 0

    assert time.monotonic() - began < 4


def test_L4_a_hang_up_that_is_ignored_stays_ignored(listening):
    """Who starts it with nohup wants it to outlive the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    dies = supervisor(listening, SERVES + "time.sleep(3); os._exit(5)", waits_s=())
    try:
        with background(lambda: stop_when_away(listening.port, signal.SIGHUP)):
            assert dies.run() == GAVE_UP  # and not 0, as if it had been stopped
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_of_signals_are_put_back(listening):
    """Who calls it in a program of his own gets his handlers back."""
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGCHLD)]

    supervisor(listening, "").run()

    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGCHLD)] == before
    assert signal.set_wakeup_fd(-1) == -1


def stop_when_away(port: int, number: int) -> None:
    """Send this process a signal once its worker listens: no stand-in answers then."""
    while True:
        with socket.create_connection(("127.0.0.1", port)) as asking:
            asking.settimeout(1)
            try:
                asking.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
                asking.recv(1)
            except TimeoutError:
                break
            except ConnectionError:  # the stand-in left just then
                continue
    os.kill(os.getpid(), number)


@contextmanager
def background(work):
    """Run *work* beside."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(20)


def test_a_worker_hears_orders_and_tells_how_it_is(listening):
    """Over one wire, both ways; what is told is the engine's status."""
    code = SERVES + "time.sleep(60)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    worker = Worker.start(
        [sys.executable, "-c", code], env, listening, first=True, restarted=""
    )
    try:
        until = time.monotonic() + 20
        while not worker.beat.ready and time.monotonic() < until:
            worker.hear()
            time.sleep(0.02)

        assert worker.beat.listening and worker.beat.ready
        assert worker.ended() == ""
    finally:
        worker.wire.close()
    while not worker.ended():
        assert time.monotonic() < until, "it lives without a supervisor"
        time.sleep(0.02)


def test_a_worker_learns_at_once_that_it_is_alone_on_the_port(listening, capfd):
    """It tells people where it is only then, and does not keep them waiting."""
    code = LINK + (
        "link.start(); began = time.monotonic(); "
        "link.attach(lambda: Status(True), {}); "
        "print(time.monotonic() - began < 3, flush=True)"
    )

    assert supervisor(listening, code).run() == 0
    assert capfd.readouterr().out == "True\n"


def test_nobodys_worker_has_no_link():
    """And what was handed over is taken out of the environment."""
    assert find_link({}) is None


def test_a_status_is_told_as_it_is():
    """A beat has what people and the supervisor need, and no more than a line."""
    status = Status(False, "loading\nthe model", broken=True)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        handed = {
            "listener": listener.detach(),
            "wire": theirs.detach(),
            "host": "127.0.0.1",
            "port": 1,
        }
        env = {"_OFA_WORKER": json.dumps(handed)}
        link = find_link(env)
        assert link is not None and env == {}
        with background(lambda: link.attach(lambda: status, {})):
            line = ours.makefile("rb").readline()
            link._orders["go"]()
        link.place.socket.close()
        link._wire.close()

    told = json.loads(line)
    assert told == {
        "listening": True,
        "ready": False,
        "why": "loading\nthe model",
        "broken": True,
    }


# --------------------------------------------------------------------------------------
# The stand-in


@contextmanager
def standing_in(reason: str = "the server is starting"):
    """Yield the port on which a stand-in answers."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        selector = stack.enter_context(selectors.DefaultSelector())
        stand_in = StandIn(listener, selector)
        stand_in.reason = reason
        stand_in.open()
        ended = threading.Event()

        def loop() -> None:
            while not ended.is_set():
                for key, _ in selector.select(0.05):
                    key.data()
                stand_in.tend()
            stand_in.close()
            stand_in.drop_all()

        with background(loop):
            try:
                yield listener.getsockname()[1]
            finally:
                ended.set()


def ask(port: int, method: str, path: str, body: bytes | None = None):
    """Return a response and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_stand_in_says_why():
    """Liveness is 200; the rest 503, readiness in its own form, chats in OpenAI's."""
    why = "the server's worker was killed by signal 9 (SIGKILL), and starts again"
    with standing_in(why) as port:
        alive, body = ask(port, "GET", "/healthz?x")
        unready, reasons = ask(port, "GET", "/readyz")
        chat, error = ask(port, "POST", "/v1/chat/completions", b"{}")
        head, nothing = ask(port, "HEAD", "/healthz")

    assert (alive.status, json.loads(body)) == (200, {"status": "ok"})
    assert (head.status, nothing) == (200, b"")
    assert unready.status == 503
    assert json.loads(reasons) == {"status": "unavailable", "reasons": [why]}
    assert (chat.status, chat.headers["Retry-After"]) == (503, "5")
    same = NotReady(f"{why}; ask again in 5 s", code="engine_restarting")
    assert json.loads(error) == openai_chat.error(same)


def test_a_body_that_is_still_sent_does_not_cost_the_answer():
    """A long chat arrives while it is refused: a reset would hide the reason."""
    with standing_in() as port:
        for _ in range(5):
            answer, _ = ask(port, "POST", "/v1/chat/completions", b"x" * (4 << 20))
            assert answer.status == 503


def test_many_slow_strangers_keep_nobody_out():
    """They hold a bounded number of places, and the oldest of them go."""
    with standing_in() as port, ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(200)
        ]
        for one in slow:
            one.settimeout(2)
            one.sendall(b"GET /hea")
        began = time.monotonic()

        assert ask(port, "GET", "/healthz")[0].status == 200
        assert time.monotonic() - began < 2
        with contextlib.suppress(ConnectionResetError):
            assert slow[0].recv(1) == b""
        slow[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[-1].recv(1)


@pytest.mark.parametrize(
    "head",
    [b"\r\n\r\n", b"\x16\x03\x01\xff\r\n\r\n", b"GET\r\n\r\n", b"x" * 20000],
    ids=["empty", "TLS", "no path", "long"],
)
def test_what_is_no_request_gets_the_same_answer(head):
    """Nothing that is sent can be wrong enough to stop it."""
    with standing_in() as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as asking:
            asking.sendall(head)
            assert asking.recv(20).startswith(b"HTTP/1.1 503 ")
        assert ask(port, "GET", "/healthz")[0].status == 200


def test_answers_name_nobody():
    """The same for everybody: neither the request nor the machine is in it."""
    answer = render(b"GET /CANARY?CANARY HTTP/1.1\r\nCANARY: CANARY\r\n\r\n", "why")

    assert b"CANARY" not in answer
    assert os.uname().nodename.encode() + b"\r" not in answer
