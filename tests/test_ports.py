"""Ports: bound before they are remembered, and honest about who has one."""

import os
import socket
import stat
import threading

import pytest

from ofa.errors import ConfigError
from ofa.ports import (
    LOCAL_PORT_NAME,
    PORT_NAME,
    choose_host,
    choose_local_port,
    choose_port,
    is_loopback,
)
from ofa.state import StateFolder

from .children import NOBODY, as_root_only

HOST = "127.0.0.1"


@pytest.fixture
def state(tmp_path):
    """Make a state folder of this test's own."""
    return StateFolder(tmp_path)


@pytest.fixture
def opened():
    """Collect sockets, to be closed when the test ends."""
    sockets = []
    yield sockets
    for one in sockets:
        one.close()


@pytest.fixture
def taken(opened):
    """Hold a port as a neighbour does, and return its number."""
    neighbour = socket.create_server((HOST, 0))
    opened.append(neighbour)
    return neighbour.getsockname()[1]


def start(state, opened, requested=0, **more):
    """Choose a port and keep the socket for closing."""
    place = choose_port(state, HOST, requested, **more)
    opened.append(place.socket)
    return place


def test_the_first_start_gets_a_port_of_the_range(state, opened):
    """It listens already, and is remembered 0600 under the seed's name."""
    place = start(state, opened)

    assert 40000 <= place.port <= 49999
    assert place.socket.getsockname() == (HOST, place.port)
    socket.create_connection((HOST, place.port), timeout=5).close()
    path = state.path / ".ofa_serve_port"
    assert path.read_text() == f"{place.port}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_next_start_gets_the_same_port(state, opened):
    """Editors keep their URL."""
    first = start(state, opened)
    first.socket.close()

    assert start(state, opened).port == first.port


def test_a_restart_does_not_wait_for_the_last_starts_connections(state, opened):
    """A connection in TIME_WAIT doesn't cost the remembered port."""
    first = start(state, opened)
    client = socket.create_connection((HOST, first.port), timeout=5)
    served, _ = first.socket.accept()
    served.close()  # the server closes first: TIME_WAIT is on its side
    assert client.recv(1) == b""
    client.close()
    first.socket.close()

    assert start(state, opened).port == first.port


def test_a_taken_port_is_left_for_another(state, opened, taken):
    """The remembered one is a neighbour's now: another is bound and remembered."""
    state.write(PORT_NAME, str(taken).encode())

    place = start(state, opened)

    assert place.port != taken
    assert state.read(PORT_NAME) == f"{place.port}\n".encode()


@pytest.mark.parametrize(
    "text", [b"", b"x", b"80", b"65536", b"-1", b"40000.5", b"4" * 100, b"\xff"]
)
def test_nonsense_in_the_file_is_not_believed(state, opened, text):
    """A damaged file costs the number, not the start."""
    state.write(PORT_NAME, text)

    assert 40000 <= start(state, opened).port <= 49999


def test_a_number_outside_the_range_is_believed_if_it_may_be_bound(state, opened):
    """A port asked for once with --port is the remembered one from then on."""
    with socket.create_server((HOST, 0)) as free:
        number = free.getsockname()[1]

    asked = start(state, opened, number)
    asked.socket.close()

    assert start(state, opened).port == number


def test_a_requested_port_that_is_taken_is_an_error_with_its_holder(
    state, opened, taken
):
    """The person asked for this one; who has it is told as far as it is known."""
    with pytest.raises(ConfigError) as caught:
        start(state, opened, taken)

    text = str(caught.value)
    assert f"{taken} on {HOST} is taken by you, process {os.getpid()} (" in text
    assert "--port" in text
    assert state.read(PORT_NAME) is None


@as_root_only
def test_a_neighbours_port_names_the_neighbour(state, opened):
    """By the socket's owner, which every user may read."""
    neighbour = socket.socket()
    opened.append(neighbour)
    os.fchown(neighbour.fileno(), NOBODY, NOBODY)
    neighbour.bind((HOST, 0))
    neighbour.listen()
    port = neighbour.getsockname()[1]

    with pytest.raises(ConfigError, match=f"uid {NOBODY}"):
        start(state, opened, port)


def test_N15_nobody_can_bind_beside_us(state, opened):
    """Neither with SO_REUSEPORT nor on another address of the machine."""
    place = choose_port(state, "0.0.0.0", 0)
    opened.append(place.socket)
    assert not place.socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)

    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        for address in ("0.0.0.0", "127.0.0.1"):
            with socket.socket() as squatter:
                squatter.setsockopt(socket.SOL_SOCKET, option, 1)
                with pytest.raises(OSError, match="in use"):
                    squatter.bind((address, place.port))


def test_twenty_starts_at_once_each_get_their_own(tmp_path, opened):
    """Even from one remembered number."""
    StateFolder(tmp_path).write(PORT_NAME, b"45678")
    barrier = threading.Barrier(20)
    places, failures = [], []

    def run():
        barrier.wait()
        try:
            places.append(choose_port(StateFolder(tmp_path), HOST, 0))
        except ConfigError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened += [place.socket for place in places]

    assert failures == []
    ports = [place.port for place in places]
    assert len(set(ports)) == 20
    assert int(StateFolder(tmp_path).read(PORT_NAME)) in ports


def test_a_range_without_a_free_port_is_said(state, opened, taken):
    """The search ends."""
    with pytest.raises(ConfigError, match=f"no free port on {HOST} in {taken}-{taken}"):
        start(state, opened, low=taken, high=taken)


def test_an_address_of_another_machine_is_refused(state):
    """192.0.2.1 is nobody's, by RFC 5737."""
    with pytest.raises(
        ConfigError, match=r"server\.host.*can't listen on 192\.0\.2\.1"
    ):
        choose_port(state, "192.0.2.1", 0)


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "[::1]", "127.0.0.1:80"])
def test_a_host_that_is_no_address_is_refused(state, host):
    """The key is named, with what always works."""
    with pytest.raises(ConfigError, match=r"server\.host: .* is no address"):
        choose_port(state, host, 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python knows no IPv6")
def test_ipv6_loopback_works(state, opened):
    """::1 is an address like another, where the machine has it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")

    place = choose_port(state, "::1", 0)
    opened.append(place.socket)

    assert place.socket.getsockname()[:2] == ("::1", place.port)


def test_a_folder_that_cannot_be_written_still_gives_a_port(tmp_path, opened):
    """It is only not remembered, and that is said by the state folder."""
    (tmp_path / "file").write_bytes(b"")
    state = StateFolder(tmp_path / "file" / "state")

    assert start(state, opened).port
    assert state.problems


def test_an_unchanged_port_is_not_written_again(state, opened):
    """A second start leaves the file alone."""
    start(state, opened).socket.close()
    before = state.path_of(PORT_NAME).stat().st_ino

    start(state, opened)

    assert state.path_of(PORT_NAME).stat().st_ino == before


# The laptop's port


def test_the_laptops_port_is_the_servers_by_default(state):
    """Then one URL is right in local and in Remote-SSH windows."""
    assert choose_local_port(state, 0, 41000) == 41000
    assert state.read(LOCAL_PORT_NAME) is None


def test_another_local_port_is_remembered(state):
    """--local-port once is --local-port from then on."""
    assert choose_local_port(state, 50000, 41000) == 50000
    assert choose_local_port(state, 0, 41000) == 50000
    assert (state.path / ".ofa_serve_local_port").read_text() == "50000\n"


def test_asking_for_the_servers_number_forgets_the_other(state):
    """So there is a way back to the default."""
    choose_local_port(state, 50000, 41000)

    assert choose_local_port(state, 41000, 41000) == 41000
    assert choose_local_port(state, 0, 42000) == 42000


def test_nonsense_as_local_port_is_not_believed(state):
    """A damaged file costs the number only."""
    state.write(LOCAL_PORT_NAME, b"22\n")

    assert choose_local_port(state, 0, 41000) == 41000


# The address


@pytest.mark.parametrize(
    ("env", "host", "words"),
    [
        ({}, "127.0.0.1", "not in a scheduler's job"),
        ({"SLURM_JOB_ID": ""}, "127.0.0.1", "not in a scheduler's job"),
        ({"SLURM_JOB_ID": "123"}, "0.0.0.0", "Slurm job 123"),
        ({"PBS_JOBID": "7[2].head-1"}, "0.0.0.0", "PBS job 7[2].head-1"),
        ({"LSB_JOBID": "9"}, "0.0.0.0", "LSF job 9"),
        ({"SLURM_JOB_ID": "1\n\x1b[31m"}, "0.0.0.0", "Slurm job 1[31m:"),
    ],
)
def test_inside_a_job_the_login_node_must_reach_us(env, host, words):
    """Elsewhere only this machine does."""
    chosen, reason = choose_host("", env)

    assert chosen == host
    assert words in reason
    assert "\n" not in reason


def test_a_configured_host_is_taken_as_it_is():
    """Also inside a job."""
    assert choose_host("10.0.0.7", {"SLURM_JOB_ID": "1"}) == (
        "10.0.0.7",
        "as configured",
    )


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.evil.example", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_the_rest(host, expected):
    """What may go without a key is what only this machine reaches."""
    assert is_loopback(host) is expected
