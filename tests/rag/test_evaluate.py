"""The metrics of retrieval, against figures worked out by hand."""

import json
import math
import re

import pytest

from ofa.errors import ConfigError
from ofa.rag.evaluate import (
    Asked,
    Outcome,
    Result,
    grouped,
    load_bench,
    run_line,
    scores,
)

LINE = {
    "id": "a-1",
    "mode": "hpc",
    "question": "and for two nodes?",
    "history": [{"role": "user", "content": "one node?"}],
    "relevant": ["hpc/a.md", "hpc/b.md"],
    "evidence": {"hpc/a.md": "nodes=\\d"},
    "kind": "followup",
    "split": "dev",
}


def result(file, text=""):
    """Return a passage of *file*."""
    return Result(file, 1.0, text)


def outcome(found, relevant=("a", "b"), *, kind="paraphrase", shown=None, **more):
    """Return what came of a question whose answers are in *relevant*."""
    asked = Asked("q", "hpc", "?", (), frozenset(relevant), kind=kind, **more)
    results = tuple(result(file) for file in found)
    return Outcome(asked, results, results if shown is None else shown)


def test_a_perfect_ranking_has_one_in_everything():
    """Both files first: recall, MRR and nDCG are 1."""
    these = scores([outcome("ab")])

    assert (these.recall, these.mrr, these.ndcg, these.missed) == (1, 1, 1, 0)


def test_ranks_count_as_the_metrics_say():
    """Of two files one is found, third: 1/2, 1/3, and 1/log2(4) of 1 + 1/log2(3)."""
    these = scores([outcome("xya")])

    assert these.recall == 0.5
    assert these.mrr == pytest.approx(1 / 3)
    assert these.ndcg == pytest.approx(0.5 / (1 + 1 / math.log2(3)))


def test_a_file_counts_once_at_its_best_passage():
    """Three passages of a wrong file cost one rank, not three."""
    assert scores([outcome("xxxa")]).mrr == 0.5


def test_recall_looks_at_five_files_and_the_others_at_ten():
    """The sixth file is beyond recall, the eleventh beyond everything."""
    sixth = scores([outcome("uvwxya", relevant="a")])
    eleventh = scores([outcome("bcdefghijka", relevant="a")])

    assert sixth.recall == 0 and sixth.mrr == pytest.approx(1 / 6)
    assert eleventh.mrr == eleventh.ndcg == 0


def test_evidence_is_in_what_is_shown():
    """A relevant file is not enough: its passage has to hold the answer, be shown, and
    be of the file that the pattern is for."""
    evidence = {"a": re.compile(r"nodes=\d")}
    told = "use --nodes=2"

    def has(*shown):
        return scores([outcome("a", shown=shown, evidence=evidence)]).evidence

    assert has(result("a", told)) == 1
    assert has(result("a", "nothing of it")) == has(result("x", told)) == has() == 0


def test_off_topic_questions_count_by_themselves():
    """False injection is a share of them, and they have no part in the rest."""
    these = scores(
        [
            outcome("a", (), kind="offtopic"),
            outcome("", (), kind="offtopic"),
            outcome("", "a"),
            outcome("a", "a"),
        ]
    )

    assert (these.false, these.missed) == (0.5, 0.5)
    assert (these.answerable, these.off_topic, these.recall) == (2, 2, 0.5)


def test_groups_have_scores_of_their_own():
    """A kind without off-topic questions has no rate of them."""
    kinds = grouped([outcome("a", "a"), outcome("a", (), kind="offtopic")], _kind)

    assert list(kinds) == ["offtopic", "paraphrase"]
    assert kinds["paraphrase"].recall == 1 and math.isnan(kinds["paraphrase"].false)
    assert kinds["offtopic"].false == 1 and math.isnan(kinds["offtopic"].recall)


def _kind(asked):
    return asked.kind


def test_times_are_told_by_rank():
    """Half of a hundred retrievals take 50 ms or less, 95 of them 95."""
    each = [
        Outcome(Asked("q", "m", "?", kind="x"), seconds=n / 1000)
        for n in range(100, 0, -1)
    ]

    assert (scores(each).p50_s, scores(each).p95_s) == (0.05, 0.095)


def test_a_benchmark_is_read_and_split(tmp_path):
    """Everything of a line, in our words; only the split that is asked for."""
    bench = tmp_path / "bench.jsonl"
    other = {"id": "b", "mode": "code", "question": "hi", "split": "test"}
    bench.write_text(f"{json.dumps(LINE)}\n\n{json.dumps(other)}\n")

    (asked,) = load_bench(bench, "dev")

    assert [m.text for m in asked.chat.messages] == ["one node?", "and for two nodes?"]
    assert asked.relevant == {"hpc/a.md", "hpc/b.md"}
    assert asked.evidence["hpc/a.md"].search("--nodes=4")
    assert [one.id for one in load_bench(bench)] == ["a-1", "b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "bench.jsonl:1: no question"),
        (json.dumps({"id": "a", "mode": "hpc"}), "bench.jsonl:1: question: is missing"),
        (json.dumps({**LINE, "evidence": {"a": "("}}), "bench.jsonl:1: evidence: "),
        (json.dumps({**LINE, "history": ["hi"]}), "bench.jsonl:1: "),
        ("[1]", "bench.jsonl:1: "),
        ("", "no question in it"),
    ],
)
def test_what_is_no_benchmark_is_told_by_line(tmp_path, text, told):
    """The line and the field, so that a long file can be mended."""
    bench = tmp_path / "bench.jsonl"
    bench.write_text(text)

    with pytest.raises(ConfigError, match=re.escape(told)):
        load_bench(bench)


def test_a_split_without_questions_is_told(tmp_path):
    """As a misspelt name would make all figures empty."""
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps(LINE))

    with pytest.raises(ConfigError, match="no question of the split 'tset'"):
        load_bench(bench, "tset")


def test_a_run_has_what_a_scorer_needs():
    """The results best first with their texts, and whether any was injected."""
    line = run_line(outcome("ab", shown=()))

    assert line["id"] == "q" and line["inject"] is False
    assert [one["path"] for one in line["results"]] == ["a", "b"]
