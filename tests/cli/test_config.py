"""`ofa config`: what is shown to people, to programs and to a launcher's shell."""

import argparse
import json
import subprocess

import pytest

from ofa.cli import config as command
from ofa.cli.config import quoted, render_exports, render_json, render_table
from ofa.config import load
from ofa.config_schema import rows
from ofa.errors import ConfigError

NAMES = [
    "OFA_SITE_NAME",
    "OFA_SITE_LOGIN_HOST",
    "OFA_SCHEDULER_KIND",
    "OFA_SCHEDULER_PARTITION_DEFAULT",
    "OFA_SCHEDULER_GRES",
    "OFA_SCHEDULER_MEM",
    "OFA_SCHEDULER_NTASKS_PER_NODE",
    "OFA_SCHEDULER_WALLTIME_DEFAULT",
    "OFA_SCHEDULER_ACCOUNT_DISCOVERY",
    "OFA_MODULE_CUDA_RHEL8",
    "OFA_MODULE_CUDA_RHEL9",
]
NASTY = 'it\'s "$HOME" `id` $(id) \\ ; & | > < * ? # !'


def run(*words):
    """Run `ofa config` with *words*."""
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    args = parser.parse_args(["config", *words])
    return args.func(args)


@pytest.fixture
def site(tmp_path):
    """Write a site.toml with values that a shell could stumble over."""
    path = tmp_path / "site.toml"
    path.write_text(
        f"[site]\nname = '''{NASTY}'''\n[server]\nport = 43210\n"
        '[scheduler]\nkind = "slurm"\ngres = "gpu:1"\n[modes.hpc]\nhidden = true\n'
    )
    return path


def test_show_prints_every_key_with_its_origin(site, capsys):
    """A person sees what is in force, and which line to change."""
    assert run("show", "--site", str(site)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"# {site}"
    assert f"server.port = 43210  # {site}:4" in lines
    assert f"modes.hpc.hidden = true  # {site}:9" in lines
    assert "server.auth = true  # default" in lines
    assert "rag.floor = unset  # default" in lines
    shown = {line.split(" = ")[0] for line in lines[1:]}
    assert set(rows()) <= shown


def test_show_json_is_for_programs(site, capsys):
    """The same, as one object."""
    assert run("show", "--json", "--site", str(site)) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(site)
    assert told["values"]["server.port"] == {"value": 43210, "origin": f"{site}:4"}
    assert told["values"]["rag.floor"] == {"value": None, "origin": "default"}
    assert told["values"]["site.protected_roots"]["value"] == []


def test_without_a_file_the_head_line_says_so():
    """Nothing found is worth knowing when a change has no effect."""
    config = load(None, {}, {})

    assert render_table(config).startswith("# no site.toml: built-in defaults\n")
    assert json.loads(render_json(config))["path"] is None


def test_warnings_go_to_stderr(site, capsys, monkeypatch):
    """A mistyped variable is told without spoiling what is piped."""
    monkeypatch.setenv("OFA_SERVER_PROT", "1")

    assert run("shell-export", "--site", str(site)) == 0

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 11
    assert "OFA_SERVER_PROT sets nothing" in captured.err


def test_a_wrong_file_is_for_the_outermost_handler(tmp_path):
    """The command raises; who runs it prints one line and exits with 78."""
    with pytest.raises(ConfigError) as caught:
        run("show", "--site", str(tmp_path / "none.toml"))
    assert caught.value.exit_code == 78


def test_shell_export_has_the_seeds_eleven_lines(site, capsys):
    """In its order, each in single quotes."""
    run("shell-export", "--site", str(site))

    lines = capsys.readouterr().out.splitlines()
    assert [line.split("=")[0] for line in lines] == [f"export {n}" for n in NAMES]
    assert all(line.endswith("'") for line in lines)
    assert "export OFA_SCHEDULER_GRES='gpu:1'" in lines
    assert "export OFA_SCHEDULER_NTASKS_PER_NODE='1'" in lines


def test_a_shell_reads_back_what_was_meant(site):
    """Nothing in a value is run or expanded by `eval`."""
    exports = render_exports(load(str(site), {}, {}))

    done = subprocess.run(
        ["/bin/sh", "-c", 'eval "$1"; printf %s "$OFA_SITE_NAME"', "sh", exports],
        capture_output=True,
        text=True,
        check=True,
        env={},
    )

    assert done.stdout == NASTY


def test_exports_read_back_as_configuration(site):
    """A launcher's `eval` and a start after it give the same values."""
    config = load(str(site), {}, {})
    exports = render_exports(config)
    shell = subprocess.run(
        ["/bin/sh", "-c", 'eval "$1"; env -0', "sh", exports],
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    env = dict(
        line.split("=", 1) for line in shell.stdout.decode().split("\0") if "=" in line
    )

    again = load(str(site), env, {})

    assert (again.site, again.scheduler, again.modules) == (
        config.site,
        config.scheduler,
        config.modules,
    )
    assert again.warnings == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "''"),
        ("a b", "'a b'"),
        ("it's", "'it'\\''s'"),
        (32, "'32'"),
        ("'", "''\\'''"),
    ],
)
def test_quoting_breaks_out_for_each_quote(value, expected):
    """A single quote ends the string, stands escaped, and begins a new one."""
    assert quoted(value) == expected
