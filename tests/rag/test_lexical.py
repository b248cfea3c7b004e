"""Search by words: what is a word, how texts rank, and how typos are repaired."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.rag import lexical
from ofa.rag.lexical import Groups, Lexical, tokens, weighed
from ofa.rag.typos import Nearest, edits

TEXTS = [
    "#SBATCH --gpus-per-node=4 asks for GPUs on each node",
    "divSchemes { div(phi,U) Gauss linearUpwind grad(U); }",
    "inlet { type nutkWallFunction; value uniform 0; }",
    "num_tasks_per_node is set in the test's class",
    "Turbulence models: kOmegaSST needs a wall distance",
    "",
]


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        ("--gpus-per-node=4", "gpus-per-node", {"gpu", "per", "node"}),
        ("div(phi,U)", "div(phi,u)", {"div", "phi"}),
        ("nutkWallFunction", "nutkwallfunction", {"wall", "function"}),
        ("num_tasks_per_node", "num_tasks_per_node", {"task", "node"}),
        ("system/fvSchemes", "system/fvschemes", {"system", "fvschemes", "scheme"}),
        ("amr.max_level", "amr.max_level", {"amr", "max", "level"}),
        ("MPI_Allreduce", "mpi_allreduce", {"mpi", "allreduc"}),
        ("rfm::core", "rfm::core", {"rfm", "core"}),
        ("$FOAM_TUTORIALS", "foam_tutorials", {"foam", "tutori"}),
    ],
)
def test_identifier_is_kept_whole_and_split(text, whole, parts):
    """An identifier is a word of its own and the words that it is made of."""
    found = tokens(text)

    assert whole in found
    assert parts <= set(found)


def test_prose_is_stemmed_and_function_words_are_dropped():
    """Endings do not matter, and "how do I" finds nothing by itself."""
    assert tokens("submitting jobs") == tokens("submitted job")
    assert tokens("How do I use the ...?") == []
    assert tokens("don't") == []


def test_other_scripts_are_searchable():
    """Accents stay in a word, and a run of Chinese is searched by pairs."""
    assert tokens("Größe") == tokens("größe") != []
    assert set(tokens("作业")) & set(tokens("提交作业脚本"))


@given(st.text(max_size=400))
def test_any_text_has_tokens_without_blanks(text):
    """No input breaks the tokenizer, and no token is empty, long or spaced."""
    for token in tokens(text):
        assert token
        assert len(token) <= 64
        assert not any(sign.isspace() for sign in token)


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("how do I request gpus per node", 0),
        ("--gpus-per-node", 0),
        ("divergence scheme div(phi,U)", 1),
        ("nut wall function at the inlet", 2),
        ("num_tasks_per_node", 3),
        ("which turbulence model", 4),
    ],
)
def test_the_text_with_the_words_ranks_first(question, best):
    """A question finds the text that has its words or identifiers."""
    scores = Lexical.build(TEXTS).scores(question)

    assert scores.shape == (len(TEXTS),)
    assert scores.dtype == np.float32
    assert int(scores.argmax()) == best


def test_scores_are_those_of_bm25s():
    """The sum over columns equals the library's own scoring."""
    import bm25s

    index = bm25s.BM25(k1=1.2, b=0.75, method="lucene", backend="numpy")
    index.index([tokens(text) or ["-"] for text in TEXTS], show_progress=False)
    question = "wall distance of the turbulence model per node"
    known = [word for word in tokens(question) if word in index.vocab_dict]

    expected = index.get_scores(known)

    np.testing.assert_allclose(
        Lexical.build(TEXTS).scores(question), expected, rtol=1e-5
    )


def test_unknown_words_score_nothing():
    """A question without a known word scores 0 everywhere; so does an empty one."""
    index = Lexical.build(TEXTS)

    assert not index.scores("zebra crossing").any()
    assert not index.scores("").any()


def test_an_index_of_nothing_answers():
    """No text at all is an index too."""
    index = Lexical.build([])

    assert len(index) == 0
    assert index.scores("anything").shape == (0,)
    assert not index.has_word("anything")
    assert index.nearest("anythingg") == []


def test_saved_index_is_the_same(tmp_path):
    """What is loaded scores, knows and repairs as what was saved."""
    built = Lexical.build(TEXTS)
    built.save(tmp_path / "lexical")

    loaded = Lexical.load(tmp_path / "lexical")

    question = "turbulence wall functions"
    np.testing.assert_array_equal(built.scores(question), loaded.scores(question))
    assert loaded.vocabulary == built.vocabulary
    assert loaded.nearest("kOmegaSTT") == built.nearest("kOmegaSTT")


def test_has_word_knows_endings():
    """A word is known in any ending and case, whole or as a part."""
    index = Lexical.build(TEXTS)

    assert index.has_word("Turbulence")
    assert index.has_word("distances")
    assert index.has_word("nutkWallFunction")
    assert not index.has_word("kubernetes")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trubulence", "turbulence"),  # swapped
        ("turbulnce", "turbulence"),  # dropped
        ("distannce", "distance"),  # doubled
        ("nutkwallfunctoin", "nutkwallfunction"),
        ("gpus-per-nodee", "gpus-per-node"),
    ],
)
def test_a_typo_is_near_to_what_was_meant(typed, meant):
    """One or two edits away from a known spelling."""
    assert meant in Lexical.build(TEXTS).nearest(typed)


@pytest.mark.parametrize("word", ["abcd", "lammps", "nod", "kubernetes", ""])
def test_short_and_strange_words_are_near_to_none(word):
    """Of few letters any could be meant; a new name is no typo."""
    assert Lexical.build(TEXTS).nearest(word) == []


@given(st.text("abcd", min_size=1, max_size=7), st.text("abcd", min_size=1, max_size=7))
def test_edits_are_a_distance(one, other):
    """Counted either way round it is the same, and 0 for equal words only."""

    def distance(left, right):
        table = np.frombuffer(right.encode("utf-32-le"), dtype="<u4")
        return int(edits(left, table.reshape(1, -1))[0])

    assert distance(one, other) == distance(other, one)
    assert (distance(one, other) == 0) == (one == other)
    assert distance(one, other) <= max(len(one), len(other))


def test_nearest_prefers_fewer_edits_then_common_words():
    """One edit beats two; of equals, the word that more texts hold comes first."""
    nearest = Nearest(["solvers", "solvent", "solver"])

    assert nearest.to("solvar") == ["solver"]
    assert nearest.to("solvens") == ["solvers", "solvent"]


def test_threads_share_an_index():
    """Stemming and repair give the same in any number of threads."""
    index = Lexical.build(TEXTS)
    expected = index.scores("turbulence models").tolist(), index.nearest("trubulence")
    seen = []

    def ask():
        for _ in range(50):
            seen.append(
                (
                    index.scores("turbulence models").tolist(),
                    index.nearest("trubulence"),
                )
            )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 200
    assert all(got == expected for got in seen)


def test_one_huge_text_is_bounded():
    """A file of a million numbers costs no more words than the limit."""
    index = Lexical.build(
        [" ".join(f"n{number}" for number in range(20_000)), "solver"]
    )

    assert int(index.scores("solver").argmax()) == 1
    assert len(index.dump()["rows.npy"]) < 100_000


def test_a_name_in_small_letters_is_known_by_its_parts():
    """As capitals divide it in most texts; what shows its parts, or has none, adds
    nothing."""
    texts = ["setFields", "setFields of nutkWallFunction", "setfIelds", "setfields"]
    built = Lexical.build(texts)
    loaded = Lexical.parse(built.dump())

    for index in (built, loaded):
        assert index.parts("the setfields and nutkwallfunction") == [
            *("set", "fields"),
            *("nutk", "wall", "function"),
        ]
        assert index.parts("setFields of set_fields, or fields") == []


def test_few_names_are_kept_of_many(monkeypatch):
    """The commonest."""
    monkeypatch.setattr(lexical, "MAX_COMPOUNDS", 2)
    texts = ["oneName", "twoNames oneName", "twoNames oneName", "rareName"]
    index = Lexical.build(texts)

    assert index.parts("onename twonames rarename") == ["one", "name", "two", "names"]


@pytest.mark.parametrize("wrong", [[], {"a": "bc"}, {"a": [1]}, None])
def test_names_that_are_damaged_are_told(wrong):
    """At loading, not at a question."""
    files = Lexical.build(TEXTS).dump()
    known = json.loads(files["words.json"])
    files["words.json"] = json.dumps({**known, "compounds": wrong}).encode()

    with pytest.raises((ValueError, AttributeError)):
        Lexical.parse(files)


# --- groups -------------------------------------------------------------------------


def test_words_that_stand_apart_in_a_group_count_together():
    """Of two files the one that has both words, though no piece of it has both."""
    texts = ["wall time of jobs", "memory of nodes", "wall of stone", "flat sand"]
    lexical, groups = Lexical.build(texts), Groups([0, 0, 1, 1])

    scores = lexical.group_scores("wall memory", groups)

    assert scores[0] == scores[1] > scores[2] == scores[3] > 0


def test_a_large_group_is_not_better_for_being_large():
    """A word among much else says less, as in a text; unknown words say nothing."""
    texts = ["gamma", "gamma", *["filler"] * 6]
    lexical, groups = Lexical.build(texts), Groups([0, 1, 1, 1, 1, 1, 1, 1])

    scores = lexical.group_scores("gamma", groups)

    assert scores[0] > scores[1] == scores[7] > 0
    assert not lexical.group_scores("unheard", groups).any()
    assert len(Lexical.build([]).group_scores("gamma", Groups([]))) == 0


def test_groups_of_one_text_rank_as_texts_do():
    """The same formula, one level up."""
    texts = ["alpha beta", "alpha", "beta beta beta gamma", "delta"]
    lexical = Lexical.build(texts)

    grouped = lexical.group_scores("alpha beta", Groups(range(4)))

    assert grouped.argsort()[::-1][0] == lexical.scores("alpha beta").argmax() == 0
    assert grouped[3] == 0


def test_texts_are_asked_together_as_one_by_one():
    """Two texts by their weights score what each scores, times its weight, in all."""
    lexical, groups = Lexical.build(TEXTS), Groups([0, 0, 1, 1, 2, 2])
    asked = weighed([(1.0, "wall class wall"), (0.5, "models of wall distance")])

    scores = lexical.scores(asked)
    grouped = lexical.group_scores(asked, groups)

    apart = ["wall class wall", "models of wall distance"]
    first, second = map(lexical.scores, apart)
    np.testing.assert_allclose(scores, first + 0.5 * second, rtol=1e-5)
    first, second = (lexical.group_scores(text, groups) for text in apart)
    np.testing.assert_allclose(grouped, first + 0.5 * second, rtol=1e-5)
    assert scores[3] > 0 and grouped[0] == 0
