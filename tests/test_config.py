"""The configuration: where it is found, what is refused, what beats what."""

import os
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from ofa.config import Config, load
from ofa.config_schema import SECTIONS, ModeChange, ModelChange, rows, rows_of
from ofa.errors import ConfigError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def site(tmp_path):
    """Write a site.toml and return a loader of it."""

    def write(text, env=(), overrides=()):
        path = tmp_path / "site.toml"
        path.write_text(text, encoding="utf-8")
        return load(str(path), dict(env), dict(overrides))

    return write


def refusal(make, *args):
    """Return the one line with which the configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        make(*args)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Where it is looked for


def test_without_any_file_the_defaults_hold():
    """Nothing configured is a configuration, of no cluster in particular."""
    config = load(None, {}, {})

    assert config == Config()
    assert config.path is None
    assert config.server.auth is True
    assert config.tools.enabled == "auto"
    assert config.rag.floor is None


def test_a_configuration_cannot_be_changed():
    """Whoever holds it may rely on it."""
    with pytest.raises(FrozenInstanceError):
        load(None, {}, {}).server.port = 1


def named(folder, name):
    """Write a site.toml that tells in its name where it was found."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "site.toml"
    path.write_text(f'[site]\nname = "{name}"\n')
    return path


def test_files_are_looked_for_in_order(tmp_path):
    """--site, $OFA_SITE_TOML, $OFA_ROOT, $XDG_CONFIG_HOME or ~/.config."""
    flag = named(tmp_path / "flag", "flag")
    variable = named(tmp_path / "variable", "variable")
    named(tmp_path / "root", "root")
    named(tmp_path / "xdg" / "ofa", "xdg")
    named(tmp_path / "home" / ".config" / "ofa", "home")
    env = {"HOME": str(tmp_path / "home")}

    found = [load(None, env, {}).site.name]
    env["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    found.append(load(None, env, {}).site.name)
    env["OFA_ROOT"] = str(tmp_path / "root")
    found.append(load(None, env, {}).site.name)
    env["OFA_SITE_TOML"] = str(variable)
    found.append(load(None, env, {}).site.name)
    found.append(load(str(flag), env, {}).site.name)

    assert found == ["home", "xdg", "root", "variable", "flag"]


def test_places_without_a_file_are_passed_over(tmp_path):
    """A root or a folder without site.toml is none; empty variables are not set."""
    env = {"OFA_ROOT": str(tmp_path), "OFA_SITE_TOML": "", "XDG_CONFIG_HOME": "x"}

    assert load(None, env, {}).path is None


def test_a_named_file_that_is_missing_stops_the_start(tmp_path):
    """A typing mistake in the path does not start a server with other settings."""
    named(tmp_path / "root", "root")
    env = {"OFA_ROOT": str(tmp_path / "root")}
    missing = str(tmp_path / "missing.toml")

    by_flag = refusal(load, missing, env, {})
    by_variable = refusal(load, None, {**env, "OFA_SITE_TOML": missing}, {})

    assert by_flag == f"{missing}: no such file, though --site names it"
    assert by_variable == f"{missing}: no such file, though $OFA_SITE_TOML names it"


def test_home_is_short_for_the_home_of_the_environment(tmp_path):
    """ "~/" works in --site, in variables and in keys that name files."""
    path = named(tmp_path, "home")
    path.write_text('[engine]\nmodel = "~/m"\n[rag]\nsources = "a/~/b"\n')
    env = {"HOME": str(tmp_path), "OFA_SERVER_KEY_FILE": "~/key"}

    config = load("~/site.toml", env, {"engine.script": "~/s"})

    assert config.engine.model == str(tmp_path / "m")
    assert config.server.key_file == str(tmp_path / "key")
    assert config.engine.script == str(tmp_path / "s")
    assert config.rag.sources == "a/~/b"


# What is refused in a file


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            "[server]\nport = 1\nprot = 2",
            3,
            "server.prot: unknown key; did you mean server.port?",
        ),
        ("\n\n[server]\nkeep_alive = 2", 4, "did you mean server.keep_alive_s?"),
        ("[api]\nport = 3", 2, "api.port: unknown key; did you mean server.port?"),
        ("[rag]\nzzzzzz = 3", 2, "rag.zzzzzz: unknown key"),
        ("[sevrer]\nport = 1", 1, "sevrer: no such section; did you mean server?"),
        ("# c\nport = 1", 2, "port: no such section"),
        ("server.prot = 1", 1, "server.prot: unknown key"),
        ("server = {prot = 1}", 1, "server.prot: unknown key"),
        ("server = 5", 1, "server: expected [server], a table"),
        ("[[server]]\nport = 1", 1, "server: expected [server], a table"),
        ('["server"]\n"prot" = 1', 2, "server.prot: unknown key"),
        ("[modes]\nhpc = 1", 2, "modes.hpc: expected [modes.hpc], a table"),
        ("[modes.hpc]\nhiden = true", 2, "did you mean modes.hpc.hidden?"),
        ('[modes."hpc"]\n\nhidden = 1', 3, "modes.hpc.hidden: expected true or false"),
        (
            '[site]\nname = """\nprot = 1\n[server]"""\n',
            2,
            "site.name: holds a line break",
        ),
        ('[site]\norg = """a"""\n[server]\nprot = 1', 4, "server.prot: unknown key"),
    ],
)
def test_unknown_keys_stop_the_start(site, tmp_path, text, line, words):
    """File, line, key and the nearest right name are in the one line."""
    said = refusal(site, text)

    assert said.startswith(f"{tmp_path}/site.toml:{line}: ")
    assert words in said


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("server.port", '"1"', "expected an integer, got a string"),
        ("server.port", "true", "expected an integer, got true"),
        ("server.port", "1.0", "expected an integer, got a number"),
        ("server.port", "[1]", "expected an integer, got a list"),
        ("server.port", "{a = 1}", "expected an integer, got a table"),
        ("server.port", "1979-05-27", "expected an integer, got a date or time"),
        ("server.port", "-1", "-1 is not within 0 to 65535"),
        ("server.port", "65536", "65536 is not within 0 to 65535"),
        ("server.local_port", "70000", "not within"),
        ("server.auth", "1", "expected true or false, got an integer"),
        ("server.auth", '"no"', 'expected true or false, got "no"'),
        ("server.drain_s", "true", "expected a number, got true"),
        ("server.drain_s", "nan", "expected a number"),
        ("server.drain_s", "inf", "expected a number"),
        ("server.drain_s", "-1", "not within"),
        ("server.running", "0", "0 is not within 1 to 256"),
        ("server.allowed_hosts", '"a"', "expected a list of strings"),
        ("server.allowed_hosts", "[1]", "expected a list of strings"),
        ("server.allowed_hosts", '["a:80"]', "without port"),
        ("server.allowed_hosts", '["*"]', "expected host names"),
        ("server.allowed_origins", '["*"]', "expected exact origins"),
        ("server.allowed_origins", '["null"]', "expected exact origins"),
        ("server.allowed_origins", '["https://a/"]', "expected exact origins"),
        ("server.allowed_origins", '["https://*.a"]', "expected exact origins"),
        ("server.max_body_bytes", "10", "not within"),
        ("api.unknown_fields", '"refse"', 'got "refse"; did you mean refuse?'),
        ("api.unknown_fields", "true", 'expected "ignore" or "refuse", got true'),
        ("api.client_system", '"Auto"', 'expected "auto" or "replace" or "append"'),
        ("engine.kind", '"ollama"', 'expected "mlx" or "upstream" or "scripted"'),
        ("engine.temperature", "2.5", "not within 0 to 2"),
        ("engine.top_p", "0", "not within"),
        ("engine.top_k", "0.5", "expected an integer"),
        ("engine.rows", "0", "not within"),
        ("engine.model", '"a\\u0000b"', "control character"),
        ("engine.upstream_url", '"localhost:8000"', "expected a URL such as"),
        ("engine.upstream_url", '"ftp://a"', "expected a URL such as"),
        ("engine.upstream_url", '"http://"', "expected a URL such as"),
        ("engine.upstream_url", '"http://me:pa55@a/v1"', "upstream_key_file"),
        ("engine.upstream_url", '"http://a/v1?key=pa55"', "upstream_key_file"),
        ("engine.upstream_urls", '"http://a/v1"', "expected a list of strings"),
        ("engine.upstream_urls", '["http://a/v1", "b:1"]', "expected a URL such as"),
        ("engine.upstream_urls", '["http://me:pa55@a/v1"]', "upstream_key_file"),
        ("engine.upstream_features", '["auto", "logprob"]', "did you mean logprobs?"),
        ("tools.enabled", '"on"', 'expected true or false or "auto", got "on"'),
        ("tools.enabled", "1", 'expected true or false or "auto"'),
        ("rag.floor", '"auto"', "expected a number"),
        ("rag.dense_weight", "1.5", "not within 0 to 1"),
        ("rag.max_passages", "0", "not within"),
        ("scheduler.kind", '"sulrm"', "did you mean slurm?"),
        ("scheduler.ntasks_per_node", '"32"', "expected an integer"),
        ("modes.hpc.top_p", "1.5", "not within"),
        ("modes.hpc.collections", '"hpc"', "expected a list of strings"),
        ("modes.hpc.lead_in", '"a\\nb"', "line break"),
    ],
)
def test_wrong_values_stop_the_start(site, tmp_path, key, value, words):
    """Booleans are no integers, ranges hold, and the line names file, line and key."""
    said = refusal(site, f"# first\n{key} = {value}\n")

    assert said.startswith(f"{tmp_path}/site.toml:2: {key}: ")
    assert words in said
    assert "pa55" not in said


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[server]\nport = \n", 2, "not valid TOML"),
        ("[server]\nport = 1\nport = 2\n", 3, "not valid TOML"),
        ("[server]\n[server]\n", 2, "not valid TOML"),
        ("[server\n", 1, "not valid TOML"),
        ("a = 'b\n", 1, "not valid TOML"),
    ],
)
def test_broken_toml_stops_the_start_with_its_line(site, tmp_path, text, line, words):
    """A broken file never turns into defaults."""
    said = refusal(site, text)

    assert said.startswith(f"{tmp_path}/site.toml:{line}: {words}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = 1\nb = '\xff'\n", "site.toml:2: not UTF-8"),
        ("[server]\nport = 1".encode("utf-16"), "site.toml:1: not UTF-8"),
        (b"a = " + b"[" * 50_000, "site.toml: nested too deeply"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"#" * 2_000_000, "larger than"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path, content, words):
    """Other encodings, depths and sizes end in one line as well."""
    path = tmp_path / "site.toml"
    path.write_bytes(content)

    assert words in refusal(load, str(path), {}, {})


def test_a_folder_or_fifo_is_no_site_file(tmp_path):
    """Neither is opened, so nothing hangs."""
    os.mkfifo(tmp_path / "fifo")

    assert "not a regular file" in refusal(load, str(tmp_path), {}, {})
    assert "not a regular file" in refusal(load, str(tmp_path / "fifo"), {}, {})


def test_windows_files_are_read(tmp_path):
    """A byte order mark and CRLF are no errors, and lines still count."""
    path = tmp_path / "site.toml"
    path.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 41000\r\n")

    config = load(str(path), {}, {})

    assert config.server.port == 41000
    assert config.origins["server.port"] == f"{path}:2"


@pytest.mark.parametrize(
    ("kind", "needed", "value"),
    [
        ("upstream", "upstream_url", "http://127.0.0.1:1/v1"),
        ("scripted", "script", "f"),
    ],
)
def test_an_engine_without_what_it_needs_is_refused(site, kind, needed, value):
    """The key that lacks is named, also if the kind came by a flag."""
    lacking = f'[engine]\nkind = "{kind}"\n'

    assert f"engine.{needed}: needed" in refusal(site, lacking)
    assert f"engine.{needed}: needed" in refusal(site, "", (), {"engine.kind": kind})
    assert site(lacking, {f"OFA_ENGINE_{needed.upper()}": value}).engine.kind == kind


def test_a_list_of_upstreams_is_enough(site):
    """Where several are listed, the one needs no key of its own."""
    env = {"OFA_ENGINE_UPSTREAM_URLS": "http://a:1/v1, http://[::1]:1/v1"}

    engine = site('[engine]\nkind = "upstream"\n', env).engine

    assert engine.upstream_urls == ("http://a:1/v1", "http://[::1]:1/v1")
    assert engine.upstream_features == ("auto",)


# What beats what


def test_flag_beats_variable_beats_file_beats_default(site):
    """And each value's origin is kept."""
    text = "[server]\nrunning = 1\nwaiting = 2\nport = 43000\n"
    env = {"OFA_SERVER_WAITING": "3", "OFA_SERVER_PORT": "44000"}

    config = site(text, env, {"server.port": 45000, "server.quiet": None})

    assert (config.server.running, config.server.waiting, config.server.port) == (
        1,
        3,
        45000,
    )
    assert config.origins["server.running"].endswith("site.toml:2")
    assert config.origins["server.waiting"] == "$OFA_SERVER_WAITING"
    assert config.origins["server.port"] == "command line"
    assert "server.quiet" not in config.origins


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("OFA_SERVER_PORT", "40100", "server.port", 40100),
        ("OFA_SERVER_AUTH", "off", "server.auth", False),
        ("OFA_RAG_ENABLED", "0", "rag.enabled", False),
        ("OFA_RAG_ENABLED", "TRUE", "rag.enabled", True),
        ("OFA_RAG_FLOOR", "0.25", "rag.floor", 0.25),
        ("OFA_SERVER_DRAIN_S", "5", "server.drain_s", 5.0),
        ("OFA_TOOLS_ENABLED", "auto", "tools.enabled", "auto"),
        ("OFA_TOOLS_ENABLED", "yes", "tools.enabled", True),
        ("OFA_API_UNKNOWN_FIELDS", "refuse", "api.unknown_fields", "refuse"),
        (
            "OFA_SERVER_ALLOWED_HOSTS",
            "a, b.example",
            "server.allowed_hosts",
            ("a", "b.example"),
        ),
        ("OFA_SITE_NAME", "O'Hara", "site.name", "O'Hara"),
        # The seed's names, and those that `ofa config shell-export` prints.
        ("OFA_MODEL", "org/name", "engine.model", "org/name"),
        ("OFA_NUM_CTX", "65536", "engine.context_tokens", 65536),
        ("OFA_NUM_PREDICT", "32768", "engine.output_tokens", 32768),
        ("OFA_TEMPERATURE", "1", "engine.temperature", 1.0),
        ("OFA_TOP_P", "0.95", "engine.top_p", 0.95),
        ("OFA_TOP_K", "64", "engine.top_k", 64),
        ("OFA_PARTITION", "gpu", "scheduler.partition", "gpu"),
        ("OFA_SCHEDULER_PARTITION_DEFAULT", "gpu", "scheduler.partition", "gpu"),
        ("OFA_MODULE_CUDA_RHEL9", "cuda", "modules.cuda_rhel9", "cuda"),
    ],
)
def test_the_environment_sets_keys(variable, text, key, value):
    """Text becomes the key's type."""
    config = load(None, {variable: text}, {})
    section, leaf = key.split(".")

    assert getattr(getattr(config, section), leaf) == value
    assert type(getattr(getattr(config, section), leaf)) is type(value)
    assert config.origins[key] == f"${variable}"


def test_a_keys_own_variable_beats_the_seeds_name():
    """And an empty one is not set."""
    both = {"OFA_ENGINE_MODEL": "a", "OFA_MODEL": "b"}

    assert load(None, both, {}).engine.model == "a"
    assert load(None, {**both, "OFA_ENGINE_MODEL": ""}, {}).engine.model == "b"


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("OFA_SERVER_PORT", "http", "server.port: expected an integer"),
        ("OFA_SERVER_PORT", "99999", "server.port: 99999 is not within"),
        ("OFA_SERVER_PORT", "9" * 5000, "server.port: expected an integer"),
        ("OFA_SERVER_PORT", "٣", "server.port: expected an integer"),
        ("OFA_SERVER_AUTH", "maybe", "server.auth: expected true or false"),
        ("OFA_RAG_FLOOR", "nan", "rag.floor: expected a number"),
        ("OFA_RAG_FLOOR", "low", "rag.floor: expected a number"),
        ("OFA_ENGINE_KIND", "upstraem", "did you mean upstream?"),
        ("OFA_TEMPERATURE", "5", "engine.temperature: 5.0 is not within"),
    ],
)
def test_a_wrong_variable_stops_the_start(variable, text, words):
    """Its name and the key are in the line."""
    said = refusal(load, None, {variable: text}, {})

    assert said.startswith(f"${variable}: ")
    assert words in said


def test_a_variable_that_looks_like_a_key_is_warned_of():
    """The environment belongs to others too, so that it does not stop the start."""
    env = {
        "OFA_SERVER_PROT": "1",
        "OFA_SITE_TOML": "",
        "OFA_OPENFOAM13_ROOT": "/x",
        "OFA_SCRATCH": "/s",
        "OFA_SERVER_PORT": "40000",
    }

    assert load(None, env, {}).warnings == (
        "$OFA_SERVER_PROT sets nothing; did you mean OFA_SERVER_PORT?",
    )


def test_a_flag_is_checked_like_a_line():
    """Text from a command line becomes the key's type; unknown keys are named."""
    assert load(None, {}, {"server.port": "40000"}).server.port == 40000
    assert load(None, {}, {"rag.enabled": False}).rag.enabled is False
    assert "command line: server.port" in refusal(load, None, {}, {"server.port": "x"})
    assert "did you mean server.port?" in refusal(load, None, {}, {"server.prt": 1})


def test_modes_are_taken_as_they_stand(site, tmp_path):
    """What is not said stays None; the place is kept for later messages."""
    config = site(
        '[modes.hpc]\nhidden = true\n[modes.lammps]\ntitle = "L"\n'
        'collections = ["l", "hpc"]\ntemperature = 1\n'
    )

    assert list(config.modes) == ["hpc", "lammps"]
    assert config.modes["hpc"] == ModeChange(
        hidden=True, where=f"{tmp_path}/site.toml:1"
    )
    assert config.modes["lammps"].collections == ("l", "hpc")
    assert config.modes["lammps"].temperature == 1.0
    assert config.origins["modes.lammps.title"].endswith(":4")


# The table, the example and the program agree


def test_every_row_has_a_reason_and_a_default_of_its_type():
    """The table is complete, and its defaults pass its own checks."""
    overrides = {name: row.default for name, row in rows().items()}

    config = load(None, {}, overrides)

    for row in (*rows().values(), *rows_of("modes.x", ModeChange)):
        assert row.why, row.name
        assert len(row.why) < 80, row.name
    for section in SECTIONS:
        assert getattr(config, section) == getattr(Config(), section)


def test_the_example_holds_every_key_its_default_and_its_reason():
    """site.toml.example can't lag behind the program."""
    text = (ROOT / "site.toml.example").read_text(encoding="utf-8")
    tables = tomllib.loads(text)

    for section, shape in SECTIONS.items():
        for row in rows_of(section, shape):
            leaf = row.name.partition(".")[2]
            start = f"# {leaf} = " if row.default is None else f"{leaf} = "
            body = text.partition(f"[{section}]\n")[2].partition("\n[")[0]
            lines = [line for line in body.splitlines() if line.startswith(start)]
            assert len(lines) == 1, row.name
            assert lines[0].endswith(f"  # {row.why}"), row.name
            if row.default is not None:
                value, default = tables[section].pop(leaf), row.default
                default = list(default) if isinstance(default, tuple) else default
                assert value == default, row.name
                assert type(value) is type(default), row.name
    assert not any(tables.values())


def test_the_examples_new_mode_holds_every_key_of_a_mode():
    """Without its comment signs the example of a mode is a mode."""
    text = (ROOT / "site.toml.example").read_text(encoding="utf-8")
    table = text.partition("# [modes.lammps]")[2].partition("\n\n")[0]
    lines = [line.removeprefix("# ") for line in table.splitlines()[1:]]

    mode = tomllib.loads("\n".join(lines))

    named = {row.name.rpartition(".")[2] for row in rows_of("modes.x", ModeChange)}
    assert set(mode) == named
    for row in rows_of("modes.x", ModeChange):
        leaf = row.name.rpartition(".")[2]
        assert any(
            line.startswith(leaf) and line.endswith(f"# {row.why}") for line in lines
        )


def test_the_examples_model_holds_every_key_of_a_model():
    """Without its comment signs the example of a model is a model."""
    text = (ROOT / "site.toml.example").read_text(encoding="utf-8")
    lines = text.partition("# [models.large]")[2].splitlines()[1:]

    model = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines))

    named = {row.name.rpartition(".")[2] for row in rows_of("models.x", ModelChange)}
    assert set(model) == named


def test_modes_choose_among_models(tmp_path):
    """A model is a table of its own; a mode that names none of them is refused."""
    path = tmp_path / "site.toml"
    path.write_text(
        '[models.big]\npath = "/m/big"\n[modes.vasp]\nmodel = "big"\n', "utf-8"
    )

    config = load(str(path), {}, {})

    assert config.models["big"].path == "/m/big"
    assert config.modes["vasp"].model == "big"
    assert ("models.big.path", "/m/big", f"{path}:2") in set(config.values())
    for text, told in (
        ("[models.big]\ncontext_tokens = 5\n", "models.big.path: needed"),
        ('[modes.vasp]\nmodel = "bg"\n[models.big]\npath = "x"', "did you mean big"),
    ):
        path.write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=told):
            load(str(path), {}, {})


@pytest.mark.parametrize("name", ["site.toml.example", "docs/sites/kestrel.toml"])
def test_the_shipped_files_load(name):
    """What is to be copied works as it is; the example changes nothing."""
    config = load(str(ROOT / name), {}, {})

    assert config.path == ROOT / name
    if name == "site.toml.example":
        for section in fields(Config()):
            if section.name in SECTIONS:
                assert getattr(config, section.name) == getattr(Config(), section.name)


def test_no_default_is_a_fact_of_one_cluster():
    """A new site does not start up lying."""
    words = ("kestrel", "nrel", "nlr", "slurm", "h100", "gpu:1", "cuda/")
    config = Config()

    told = " ".join(
        str(getattr(getattr(config, section), field.name)).lower()
        for section in ("site", "scheduler", "modules")
        for field in fields(getattr(config, section))
    )

    assert not [word for word in words if word in told]


def test_values_tell_origins(site):
    """Every key once, with its value and where it came from, modes last."""
    config = site("[server]\nport = 43000\n[modes.hpc]\nhidden = true\n")

    told = {name: (value, origin) for name, value, origin in config.values()}

    assert set(rows()) <= set(told)
    assert told["server.port"][0] == 43000
    assert told["server.port"][1].endswith("site.toml:2")
    assert told["rag.floor"] == (None, "default")
    assert told["modes.hpc.hidden"][0] is True
    assert "modes.hpc.title" not in told


def test_R068_strange_proxy_variables_do_no_harm(tmp_path):
    """Import and load work under a NO_PROXY with networks and IPv6 in it."""
    code = (
        "import os, ofa.auth, ofa.state, ofa.ports, ofa.cli.config, ofa.cli.key\n"
        "from ofa.config import load\n"
        "print(load(None, os.environ, {}).server.port)\n"
    )
    env = {
        "NO_PROXY": "localhost,127.0.0.1,10.0.0.0/8,::1,[::1],*.cluster",
        "no_proxy": "localhost,127.0.0.1,10.0.0.0/8,::1,[::1],*.cluster",
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert list(tmp_path.iterdir()) == []
