"""Loading: what is wrong with a model or an installation is said in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ofa.engine.mlx import lm
from ofa.engine.mlx.engine import MlxEngine
from ofa.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def broken(folders, tmp_path):
    """A copy of the tiny Gemma 3 to be damaged."""
    return shutil.copytree(folders["gemma3"], tmp_path / "broken")


def edit(path, **changes):
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path, size):
    """Leave only the first *size* bytes of a file."""
    path.write_bytes(path.read_bytes()[:size])


DAMAGES = {
    "no folder": (lambda d: shutil.rmtree(d), "no model at"),
    "no config": (lambda d: (d / "config.json").unlink(), "config.json is missing"),
    "no json": (lambda d: cut(d / "config.json", 20), "config.json can't be read"),
    "a list": (lambda d: (d / "config.json").write_text("[]"), "no JSON object"),
    "own code": (
        lambda d: edit(d / "config.json", model_file="evil.py"),
        "'model_file' would run code",
    ),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "is missing"),
    "half weights": (lambda d: cut(d / "model.safetensors", 60_000), "is cut off"),
    "half header": (lambda d: cut(d / "model.safetensors", 100), "damaged or cut off"),
    "empty weights": (lambda d: cut(d / "model.safetensors", 0), "damaged or cut off"),
    "no shard": (
        lambda d: (d / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}'
        ),
        "model-00002-of-00002.safetensors is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_folder_is_refused_at_once(broken, damage):
    """E1: before anything is loaded, with the file's name, in one line."""
    act, message = DAMAGES[damage]
    act(broken)

    with pytest.raises(ConfigError, match=message) as caught:
        MlxEngine(broken)

    assert "\n" not in str(caught.value)
    assert str(broken) in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: edit(d / "config.json", model_type="unheard"), "unheard not supp"),
        (lambda d: edit(d / "config.json", hidden_size=48), "can't be loaded"),
        (lambda d: (d / "tokenizer.json").write_text("{"), "can't be loaded"),
    ],
)
def test_what_only_loading_shows_is_a_line_too(broken, damage, message):
    """An unknown type, weights of other shapes, a broken tokenizer."""
    damage(broken)
    engine = MlxEngine(broken)
    try:
        with pytest.raises(ConfigError, match=message) as caught:
            engine.wait(60)
        assert "\n" not in str(caught.value)
        assert not engine.status().ready
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("mlx-community/gemma-3-1b-it-4bit", True),
        ("./models/gemma", False),
        ("/models/gemma", False),
        ("~/models", False),
        ("gemma", False),
        ("a/b/c", False),
        ("a/", False),
    ],
)
def test_hub_ids_are_told_from_paths(model, expected):
    """Only owner/name is looked for on the hub, and only if no such folder exists."""
    assert lm.is_hub_id(model) is expected


def test_an_existing_folder_is_never_a_hub_id(tmp_path, monkeypatch):
    """A folder of two parts is used as it is."""
    (tmp_path / "models" / "gemma").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert not lm.is_hub_id("models/gemma")


def test_context_of_a_config():
    """The context stands at the top or under text_config, or is assumed."""
    assert lm.context_of({"max_position_embeddings": 5}) == 5
    assert lm.context_of({"text_config": {"max_position_embeddings": 7}}) == 7
    assert lm.context_of({"text_config": None}) == 8192


def test_quantised_weights_become_float32_on_a_cpu(folders, tmp_path):
    """A 4-bit folder answers, and in the numbers a CPU is fast with."""
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.utils import quantize_model, save_model

    folder = shutil.copytree(folders["gemma3"], tmp_path / "four")
    model, _, config = mlx_lm.load(str(folder), return_config=True)
    model, config = quantize_model(model, config, group_size=32, bits=4)
    (folder / "model.safetensors").unlink()
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))

    loaded = lm.load(str(folder))

    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    assert loaded.numbers == ("float32 on CPU" if on_cpu else "quantised on GPU")


def run(code, *, path=(), **env):
    """Run *code* in a fresh interpreter that finds modules in *path* first."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((*path, str(REPOSITORY))),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


LOAD = """
    import sys
    from ofa.engine.mlx.engine import MlxEngine
    from ofa.errors import ConfigError

    try:
        MlxEngine(sys.argv[1] if len(sys.argv) > 1 else {folder!r}).wait(90)
    except ConfigError as error:
        print(error)
"""


def test_R070_an_mlx_without_a_backend_names_the_extras(folders, tmp_path):
    """PyPI's bare mlx on Linux fails to import: one line, with what to install."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text(
        "raise ImportError('libmlx.so: cannot open shared object file')"
    )

    done = run(LOAD.format(folder=str(folders["gemma3"])), path=[str(tmp_path)])

    (line,) = done.stdout.splitlines()
    assert "ofa[cpu]" in line
    assert "ofa[cuda]" in line
    assert "libmlx.so" in line


@pytest.mark.parametrize(("allowed", "expected"), [("0", True), ("1", False)])
def test_another_mlx_lm_is_refused_unless_allowed(tmp_path, allowed, expected):
    """The interfaces used change with each release, so the version is checked."""
    info = tmp_path / "mlx_lm-0.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mlx-lm\nVersion: 0.99.0\n"
    )
    code = """
        from ofa.engine.mlx import lm
        from ofa.errors import ConfigError

        try:
            lm.check_version()
        except ConfigError as error:
            print(error)
    """

    done = run(code, path=[str(tmp_path)], OFA_UNPINNED_MLX=allowed)

    assert ("mlx-lm 0.99.0 is installed" in done.stdout) is expected
    assert done.stderr == ""


def test_importing_the_engine_imports_no_mlx():
    """`ofa --help` stays fast, and works where MLX is not installed."""
    done = run(
        """
        import sys
        import ofa.engine.mlx.engine

        heavy = {"mlx", "mlx.core", "mlx_lm", "transformers", "tokenizers", "jinja2"}
        print(sorted(heavy & sys.modules.keys()))
        """
    )

    assert done.stdout.strip() == "[]", done.stderr


def test_a_program_that_forgets_to_close_ends_cleanly(folders):
    """
    The engine's thread is gone before the interpreter is, even in mid-answer.

    And the limit of open files, which importing mlx_lm lowers to 2048, is back: a
    server with many clients needs its own.
    """
    code = f"""
        import resource

        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        from ofa.chat import Chat, Message, Sampling
        from ofa.engine.mlx.engine import MlxEngine

        engine = MlxEngine({str(folders["gemma3"])!r})
        chat = Chat("m", (Message("user", "Hi"),), Sampling(logit_bias=((230, 100.0),)))
        engine.wait()
        events = iter(engine.reply(chat))
        next(events)
        after = resource.getrlimit(resource.RLIMIT_NOFILE)
        print(after[0] >= min(before[0], 4096))
    """

    done = run(code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_the_batch_generator_has_what_is_used_of_it():
    """The names and parameters that the pinned release must still have."""
    import inspect

    from mlx_lm.generate import BatchGenerator

    insert = inspect.signature(BatchGenerator.insert).parameters
    made = inspect.signature(BatchGenerator.__init__).parameters

    assert list(insert)[1:3] == ["prompts", "max_tokens"]
    assert {"samplers", "logits_processors"} <= insert.keys()
    assert {
        "stop_tokens",
        "completion_batch_size",
        "prefill_batch_size",
        "prefill_step_size",
        "stream",
    } <= made.keys()
    assert list(inspect.signature(BatchGenerator.remove).parameters)[1] == "uids"
