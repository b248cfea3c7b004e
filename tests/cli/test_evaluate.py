"""`ofa index eval` measures retrieval as a server does it, on real parts."""

import json

import pytest

from ofa.cli.main import main

PAGES = {
    "hpc/jobs/after.md": "# Dependencies\nStart a job after another one ended without "
    "error: sbatch --dependency=afterok:JOBID script.sh",
    "hpc/jobs/memory.md": "# Memory\nsacct --format=MaxRSS tells the peak memory that "
    "a finished job used.",
    "hpc/login.md": "# Logging in\nConnect to the login node with ssh on port 2222.",
    "code/git.md": "# Bisect\ngit bisect finds the commit that broke a test.",
}
QUESTIONS = (
    ("a", "hpc", "start a job after another ended without error", "hpc/jobs/after.md",
     "afterok"),
    ("b", "code", "how much memory did my finished job use?", "hpc/jobs/memory.md",
     "MaxRSS"),
    ("c", "code", "which commit broke my test?", "code/git.md", "bisect"),
    ("d", "hpc", "Book a table for two in Zurich tonight", "", ""),
)  # fmt: skip


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Write pages and questions; return the command's words."""
    monkeypatch.setenv("OFA_SCRATCH", str(tmp_path / "state"))
    for name, text in PAGES.items():
        page = tmp_path / "corpora" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    lines = [
        {
            "id": name,
            "mode": mode,
            "question": question,
            "relevant": [file] if file else [],
            "evidence": {file: pattern} if file else {},
            "kind": "paraphrase" if file else "offtopic",
            "split": "dev",
        }
        for name, mode, question, file, pattern in QUESTIONS
    ]
    path = tmp_path / "bench.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return ["index", "eval", str(path), "--corpora", str(tmp_path / "corpora")]


def test_figures_are_those_of_the_serving_path(bench, tmp_path, capsys):
    """Three pages are found first and shown, nothing for the table in Zurich; what was
    found is written for another scorer; the mode code searches hpc's collection too."""
    run = tmp_path / "run.jsonl"

    assert main([*bench, "--json", "--run-out", str(run)]) == 0

    told = json.loads(capsys.readouterr().out)
    every = told["all"]
    assert (every["answerable"], every["off_topic"]) == (3, 1)
    assert every["recall"] == every["ndcg"] == every["mrr"] == every["evidence"] == 1
    assert every["missed"] == every["false"] == 0
    assert 0 < every["tokens"] < 1000 and every["p50_s"] > 0
    assert set(told["kinds"]) == {"paraphrase", "offtopic"}
    assert told["kinds"]["offtopic"]["recall"] is None
    lines = [json.loads(line) for line in run.read_text().splitlines()]
    assert [line["inject"] for line in lines] == [True, True, True, False]
    assert lines[2]["results"][0]["path"] == "code/git.md"


def test_glossaries_beside_the_sources_count(bench, tmp_path, capsys):
    """A site sees what its own does: the page that was not first is now."""
    (tmp_path / "corpora" / "code" / "git.md").unlink()  # the less there is to index
    (tmp_path / "corpora" / "code").rmdir()
    words = "through the front door after a job used its memory"
    (tmp_path / "one.jsonl").write_text(
        json.dumps(
            {
                "id": "a",
                "mode": "hpc",
                "question": words,
                "relevant": ["hpc/login.md"],
                "evidence": {"hpc/login.md": "2222"},
                "kind": "paraphrase",
            }
        )
    )
    (tmp_path / "sources.toml").write_text("[hpc]\n")
    (tmp_path / "site.toml").write_text(
        f'[rag]\nfloor = -1\nsources = "{tmp_path / "sources.toml"}"\n'
    )
    (tmp_path / "glossary").mkdir()
    rules = tmp_path / "glossary" / "hpc.txt"
    measured = [*bench[:2], str(tmp_path / "one.jsonl"), *bench[3:], "--json"]
    measured += ["--site", str(tmp_path / "site.toml")]

    def rank():
        assert main(measured) == 0
        return json.loads(capsys.readouterr().out)["all"]["mrr"]

    assert rank() < 1
    names = "ssh, login node, logging in, port, connect, 2222"
    rules.write_text(f"front door => {names}\n")
    assert rank() == 1
    rules.write_text("front door =>\n")
    assert main(measured) != 0
    assert f"{rules}: line 1: a rule is" in capsys.readouterr().err


def test_people_see_a_table(bench, capsys):
    """A row for all, one a kind, one a mode, and the time it takes."""
    assert main([*bench, "--split", "dev"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["questions", "recall@5", "nDCG@10"]
    assert [line.split()[0] for line in lines[1:] if line][:4] == [
        "all",
        "offtopic",
        "paraphrase",
        "code",
    ]
    assert lines[-1].startswith("a retrieval: p50 ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--corpora", "/nowhere"], "--corpora /nowhere: no such folder"),
        (["--split", "tset"], "no question of the split 'tset'"),
    ],
)
def test_what_cannot_be_measured_is_told(bench, words, told, capsys):
    """The option that is wrong, on one line, with the usual exit code."""
    assert main([*bench, *words]) != 0
    assert told in capsys.readouterr().err
