"""A server that dies, hangs or is told to stop, seen from outside: whole processes."""

import contextlib
import http.client
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from ofa.banner import SENTINEL

from .processes import SLOW, Process, process, wait_gone
from .running import frames, text_of

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks for processes in /proc"
)

# Beyond what is promised: two shared cores start a Python in anything up to seconds.
NOTICED_S = 2.0
ENDLESS = [[{"text": "on "}, {"wait_s": 0.05, "times": 100000}]]
DEATHS = (
    ("SIGKILL", "was killed by signal 9 (SIGKILL)"),
    ("SIGSEGV", "was killed by signal 11 (SIGSEGV)"),
    (1, "ended with exit code 1"),
    ("SIGABRT", "was killed by signal 6 (SIGABRT)"),
)


def fatal(step: dict) -> list:
    """Return a script that says a word, waits for it to be read, and plays *step*."""
    return [[{"text": "one "}, {"wait_s": 0.3}, step]]


def with_stall(folder: Path, stall_s: float) -> tuple[str, str]:
    """Return the arguments for a server that takes no step longer than that."""
    site = folder / "site.toml"
    site.write_text(f"[engine]\nstall_s = {stall_s}\n")
    return "--site", str(site)


def until_cut(server: Process) -> tuple[bytes, float]:
    """Start a stream; return what of it came, and how long after its first byte."""
    answer = server.stream()
    body = answer.read(10)
    began = time.monotonic()
    try:
        while piece := answer.read(1):
            body += piece
    except (http.client.HTTPException, OSError):  # cut in the middle of a chunk
        pass
    return body, time.monotonic() - began


def wait_free(port: int, limit_s: float) -> None:
    """Wait until a port can be bound: a process's threads do not all end at once."""
    until = time.monotonic() + limit_s
    while True:
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            return
        assert time.monotonic() < until, f"port {port} is held"
        time.sleep(0.02)


def test_E5_each_way_to_die_is_outlived_three_times(tmp_path):
    """
    The reader sees the end at once, the port answers all the while, the next is right.

    The fourth death within ten minutes ends it, with exit code 70 and a line.
    """
    script = fatal({"die": DEATHS[0][0]})
    with process(tmp_path, "--no-rag", "--quiet", script=script) as server:
        server.wait_ready()
        port, told = server.port, []
        for number, (_, how) in enumerate(DEATHS[:3]):
            server.say(fatal({"die": DEATHS[number + 1][0]}))  # for the next worker
            body, cut_s = until_cut(server)
            died = time.monotonic()

            assert b"one" in body and b"[DONE]" not in body
            assert cut_s < NOTICED_S
            assert server.open("GET", "/healthz", key="").status == 200
            assert server.ready() == (
                503,
                f"the server's worker {how}, and starts again",
            )
            assert time.monotonic() - died < NOTICED_S
            told += server.wait_ready()
        until_cut(server)

        assert server.wait(10) == 70

    assert server.port == port
    assert server.lines.count(SENTINEL) == 1
    assert [line for line in server.lines if "(restart 3 of 3)" in line]
    assert "giving up after 3 restarts in 600 s" in server.text
    assert DEATHS[3][1] in server.lines[-1]
    assert "Traceback" not in server.text


def test_after_a_death_the_next_request_is_answered(tmp_path):
    """A client only has to ask again, on the same port: its 503 says when."""
    with process(tmp_path, "--no-rag", script=fatal({"die": 3})) as server:
        server.wait_ready()
        server.say(SLOW)
        until_cut(server)

        refused = server.stream()
        error = frames(b"data: " + refused.read())[0]["error"]
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "5"
        assert (error["code"], error["type"]) == ("engine_restarting", "server_error")
        assert "ended with exit code 3" in error["message"]

        while (answer := server.stream()).status == 503:
            time.sleep(0.1)
        assert text_of(answer.read()) == "one two "

    assert re.search(r"the server answers again, after \d+\.\d s", server.text)


def test_R002_a_step_that_never_returns_ends_in_errors_and_a_restart(tmp_path):
    """Streams get an error event within the stall limit, then the server is new."""
    stuck = fatal({"hang": "step"})
    arguments = ("--no-rag", *with_stall(tmp_path, 1))
    with process(tmp_path, *arguments, script=stuck) as server:
        server.wait_ready()
        server.say(SLOW)
        bodies: list[bytes] = []
        began = time.monotonic()

        def read() -> None:
            bodies.append(server.stream().read())

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(30)
        took = time.monotonic() - began

        reasons = server.wait_ready()
        assert text_of(server.stream().read()) == "one two "

    assert took < 0.3 + 1 + NOTICED_S
    for body in bodies:
        *_, error, done = frames(body)
        assert error["error"]["code"] == "engine_restarting"
        assert "has not returned for 1 s" in error["error"]["message"]
        assert done == "[DONE]"
    assert any("gave up: the engine's step has not returned" in r for r in reasons)
    assert server.lines.count(SENTINEL) == 1


def test_R002_alone_it_leaves_with_75(tmp_path):
    """Without a supervisor its exit code says that it may be started again."""
    arguments = ("--no-rag", "--no-supervisor", *with_stall(tmp_path, 1))
    with process(tmp_path, *arguments, script=fatal({"hang": "step"})) as server:
        assert server.worker == server.child.pid
        *_, error, _ = frames(server.stream().read())

        assert error["error"]["code"] == "engine_restarting"
        assert server.wait(10) == 75


def test_E6_native_code_that_holds_the_interpreter_is_ended(tmp_path):
    """No thread of the worker runs any more; its silence is noticed, and said."""
    arguments = ("--no-rag", *with_stall(tmp_path, 1))
    with process(tmp_path, *arguments, script=fatal({"hang": "gil"})) as server:
        server.wait_ready()
        server.say(SLOW)

        body, cut_s = until_cut(server)
        reasons = server.wait_ready()

        assert b"[DONE]" not in body
        assert cut_s < 0.3 + 5 + NOTICED_S
        assert any("gave no sign of life for 5 s" in reason for reason in reasons)
        assert text_of(server.stream().read()) == "one two "

    assert 'faults.py", line' in server.text  # where it hung


def test_L5_a_pause_of_everything_is_no_hang(tmp_path):
    """Schedulers suspend jobs: after it the same worker goes on."""
    arguments = ("--no-rag", *with_stall(tmp_path, 1))
    with process(tmp_path, *arguments) as server:
        server.wait_ready()
        both = (server.child.pid, server.worker)
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(6.5)  # more than the 5 s of silence that are no hang
        for pid in both:
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.6)

        assert server.worker == both[1]
        assert text_of(server.stream().read()) == "one two "


def test_L2_one_ctrl_c_for_both_processes_drains_once(tmp_path):
    """A terminal sends it to the whole group, and that is no second signal."""
    arguments = ("--no-rag",)
    with process(tmp_path, *arguments, start_new_session=True) as server:
        answer = server.stream()
        first = answer.read(10)

        os.killpg(server.child.pid, signal.SIGINT)
        body = first + answer.read()

        assert text_of(body) == "one two "
        assert server.wait(20) == 0
    assert "Traceback" not in server.text


def test_a_stop_of_each_process_drains_once(tmp_path):
    """Slurm sends SIGTERM to every process of a job, in any order."""
    with process(tmp_path, "--no-rag") as server:
        answer = server.stream()
        first = answer.read(10)

        for pid in (server.child.pid, server.worker):
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.2)
        body = first + answer.read()

        assert text_of(body) == "one two "
        assert server.wait(20) == 0
    assert "starts again" not in server.text


def test_a_second_sigterm_cuts_with_an_error(tmp_path):
    """Streams are told even then."""
    with process(tmp_path, "--no-rag", script=ENDLESS) as server:
        answer = server.stream()
        first = answer.read(10)
        server.child.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # two signals at once are one
        server.child.send_signal(signal.SIGTERM)
        *_, error, done = frames(first + answer.read())

        assert (error["error"]["code"], done) == ("server_shutdown", "[DONE]")
        assert server.wait(10) == 0


@pytest.mark.parametrize("step", [{"text": "two "}, {"hang": "gil"}], ids=str)
def test_L9_the_worker_ends_with_its_supervisor(tmp_path, step):
    """Nobody is left on port or GPU, not even a worker that hangs in native code."""
    with process(tmp_path, "--no-rag", script=fatal(step)) as server:
        server.wait_ready()
        worker, port = server.worker, server.port
        answer = server.stream()
        answer.read(10)
        time.sleep(0.5)  # the step is played

        server.child.kill()
        server.child.wait(5)
        wait_gone(worker, NOTICED_S)

        wait_free(port, NOTICED_S)


def test_no_descriptor_is_left_to_children_of_the_worker(tmp_path):
    """A build of the index that outlives the worker must not keep its port."""
    with process(tmp_path, "--no-rag") as server:
        server.wait_ready()
        for pid in (server.child.pid, server.worker):
            folder = Path(f"/proc/{pid}")
            sockets = [
                one.name
                for one in (folder / "fd").iterdir()
                if str(one.readlink()).startswith("socket:")
            ]
            flags = [
                int(re.search(r"flags:\s+(\d+)", text)[1], 8)
                for text in ((folder / "fdinfo" / n).read_text() for n in sockets)
            ]

            assert len(sockets) >= 2
            assert all(flag & os.O_CLOEXEC for flag in flags)
        environ = Path(f"/proc/{server.worker}/environ").read_text()
        assert server.key not in environ and "_OFA_WORKER" in environ


def test_a_worker_asks_for_huge_pages(tmp_path):
    """Its memory is set up before it starts, so its supervisor has to tell it."""
    with process(tmp_path, "--no-rag") as server:
        server.wait_ready()
        environ = Path(f"/proc/{server.worker}/environ").read_text().split("\0")

    told = [one for one in environ if one.startswith("GLIBC_TUNABLES=")]
    assert len(told) == 1 and "glibc.malloc.hugetlb=" in told[0]


def test_a_stop_while_the_worker_is_away_is_obeyed(tmp_path):
    """Between a death and the next start there is nothing to drain."""
    with process(tmp_path, "--no-rag") as server:
        server.wait_ready()
        server.kill()
        while server.ready()[0] == 200:
            pass
        server.child.send_signal(signal.SIGTERM)

        assert server.wait(9) == 0
