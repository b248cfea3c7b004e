"""The connection block: what a person copies and what a launcher parses."""

import json
import re
import shlex
from dataclasses import replace

from ofa.banner import SENTINEL, Connection, as_json, render, tunnel_lines

JOB = Connection(
    node="r1i7n3",
    host="0.0.0.0",
    port=40933,
    local_port=40933,
    user="ada",
    login_host="login.example.org",
    key_file="/scratch/ada/.ofa_api_key",
    models=("ofa-hpc", "ofa-code"),
    model="Gemma (test)",
    notes=("tools are off here",),
)


def test_tunnel_line_parses_as_the_launchers_do():
    """The `-L local:node:remote` form stands in the block, labelled by both ports."""
    text = render(JOB)

    assert re.search(r"-L (\d+):([\w.-]+):(\d+)", text).groups() == (
        "40933",
        "r1i7n3",
        "40933",
    )
    assert "REMOTE port  : 40933" in text and "LOCAL port   : 40933" in text
    assert text.splitlines()[-1] == SENTINEL


def test_both_ssh_forms_are_commands_that_fail_when_the_port_is_taken():
    """N16: a taken forward must end ssh, not lead to somebody else's server."""
    direct, hop = (shlex.split(line) for line in tunnel_lines(JOB))

    for words in (direct, hop):
        assert words[0] == "ssh" and "ExitOnForwardFailure=yes" in words
    assert direct[-1] == "ada@login.example.org"
    assert hop[hop.index("-J") + 1] == "ada@login.example.org"
    assert hop[-1] == "ada@r1i7n3"


def test_a_loopback_server_is_reached_through_its_own_node():
    """A login node's forward can't reach another node's loopback."""
    direct, _ = tunnel_lines(replace(JOB, host="127.0.0.1"))

    assert direct.endswith("-L 40933:127.0.0.1:40933 ada@r1i7n3")


def test_commands_never_put_the_key_on_a_command_line():
    """N5: only the path of the key file is printed; curl reads the key from a pipe."""
    text = render(JOB)

    assert "cat /scratch/ada/.ofa_api_key) | curl -s -H @-" in text
    assert "Bearer $(" not in text


def test_people_at_this_machine_need_no_tunnel():
    """On a laptop the block has two steps."""
    text = render(replace(JOB, tunnel=False, host="127.0.0.1"))

    assert "ssh" not in text and "LOCAL port" not in text
    assert "1. Check from here" in text and "2. VS Code" in text


def test_without_a_key_none_is_asked_for():
    """--no-auth prints no key line."""
    text = render(replace(JOB, key_file=""))

    assert "apiKey" not in text and "-H @-" not in text


def test_colour_is_only_added_never_changes_a_word():
    """The coloured block is the plain one with escapes around lines."""
    coloured = render(JOB, colour=True)

    assert coloured != render(JOB)
    assert re.sub(r"\033\[\d+m", "", coloured) == render(JOB)


def test_json_is_one_line_with_the_same_facts():
    """A script gets node, ports and URL without parsing the block."""
    line = as_json(JOB)

    facts = json.loads(line)
    assert "\n" not in line
    assert facts["port"] == 40933 and facts["node"] == "r1i7n3"
    assert facts["base_url"] == "http://127.0.0.1:40933/v1"
    assert facts["ssh"] == tunnel_lines(JOB)[0]
    assert "api_key" not in facts
