"""`ofa model`: what it prints, and when it does nothing."""

import argparse
import io

import pytest

from ofa.cli import model


def run(*words: str) -> int:
    """Run `ofa model …` and return its exit code."""
    parser = argparse.ArgumentParser()
    model.add(parser.add_subparsers())
    args = parser.parse_args(["model", *words])
    return args.func(args)


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """Give each test a machine where nothing is configured or kept."""
    for name in ("OFA_SITE_TOML", "OFA_ROOT", "OFA_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))


def test_list_names_what_is_not_there_and_how_to_get_it(capsys):
    """Each packaged model comes with its licence and its command."""
    assert run("list") == 0

    out = capsys.readouterr().out
    assert out.count("not fetched") == 3
    assert "ofa model starter --gemma" in out
    assert "Apache-2.0" in out


@pytest.mark.parametrize(
    "env",
    [
        {"OFA_MODEL": "/some/folder"},
        {"OFA_ENGINE_KIND": "scripted", "OFA_ENGINE_SCRIPT": "/some/file"},
    ],
)
def test_if_unset_leaves_a_named_model_alone(env, monkeypatch, capsys):
    """Whoever names a model or another engine gets no download."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    assert run("starter", "--if-unset", "--no-hub") == 0

    assert capsys.readouterr().out == ""


def test_gemma_and_small_exclude_each_other():
    """Two models at once is a usage error."""
    with pytest.raises(SystemExit):
        run("starter", "--gemma", "--small")


def test_bars_show_one_step_at_a_time():
    """Each step gets a bar of its own, which counts to its end."""
    shown = io.StringIO()
    with model.Bars(shown) as bars:
        for step, done in (("downloading", 50), ("downloading", 100), ("checking", 7)):
            bars.show(step, done, 100)

    text = shown.getvalue()
    assert "downloading" in text
    assert "100%" in text
    assert text.index("downloading") < text.index("checking")
