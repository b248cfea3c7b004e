"""GGUF files become folders that mlx-lm loads: names, layouts, values, tokenizers."""

import json
import struct
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.sample_utils import make_sampler

from ofa.engine.mlx.gguf_convert import convert, is_complete
from ofa.engine.mlx.gguf_file import GgufFile
from ofa.engine.mlx.gguf_weights import Weights, write_safetensors
from ofa.errors import ConfigError

from . import gguf_files
from .gguf_files import F32, Q8_0, Tiny

ARCHITECTURES = ("gemma3", "qwen2", "llama")


def converted(tmp_path: Path, tiny: Tiny, **options) -> tuple[Path, dict]:
    """Return the folder made of *tiny*, and the weights it should hold."""
    source = tmp_path / "tiny.gguf"
    weights = gguf_files.write(source, tiny)
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    folder = tmp_path / "model"
    convert(source, folder, scratch=scratch, provenance={"identity": "it"}, **options)
    return folder, weights


def stored_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return what mlx reads from the folder."""
    arrays = mx.load(str(folder / "model.safetensors"))
    return {name: np.array(array.astype(mx.float32)) for name, array in arrays.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_returns_to_its_place_and_layout(tmp_path, architecture):
    """What the converter renamed, permuted or offset comes back bit for bit."""
    folder, weights = converted(tmp_path, Tiny(architecture))

    found = stored_weights(folder)

    assert found.keys() == weights.keys()
    for name, values in weights.items():
        # gemma's 1 + w was rounded to float32 when the file was made
        atol = 1e-7 if architecture == "gemma3" and "norm" in name else 0
        np.testing.assert_allclose(found[name], values, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_quantised_rows_are_permuted_whole(tmp_path, architecture):
    """Blocks are quantised along rows, so whole rows move and no block is cut."""
    folder, weights = converted(tmp_path, Tiny(architecture, matrices=Q8_0))

    found = stored_weights(folder)

    for name, values in weights.items():
        if values.ndim == 2:
            values = gguf.dequantize(gguf.quantize(values, Q8_0), Q8_0)
            np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_mlx_lm_generates_what_the_original_weights_do(tmp_path, architecture):
    """The folder loads in mlx-lm and decodes greedily like a model made directly."""
    folder, weights = converted(tmp_path, Tiny(architecture))

    model, tokenizer = load(str(folder))
    ids = tokenizer.encode("hello")
    generated = [
        step.token
        for step in stream_generate(
            model, tokenizer, ids, max_tokens=12, sampler=make_sampler(temp=0.0)
        )
    ]
    model.load_weights([(name, mx.array(value)) for name, value in weights.items()])
    expected = list(ids)
    for _ in generated:
        logits = model(mx.array([expected]))[0, -1]
        expected.append(int(mx.argmax(logits)))

    assert generated == expected[len(ids) :]
    assert len(generated) == 12 or generated[-1] in tokenizer.eos_token_ids


@pytest.mark.parametrize(
    ("dtype", "width", "error"),
    [("float32", 4, 0), ("float16", 2, 2**-11), ("bfloat16", 2, 2**-8)],
)
def test_the_stored_type_is_the_one_asked_for(tmp_path, dtype, width, error):
    """Values are rounded to the nearest of the type, and the file is no larger."""
    source = tmp_path / "tiny.gguf"
    weights = gguf_files.write(source, Tiny("qwen2"))
    target = tmp_path / "model.safetensors"

    write_safetensors(Weights(GgufFile(source)), target, dtype=dtype)

    arrays = mx.load(str(target))
    assert {str(array.dtype) for array in arrays.values()} == {f"mlx.core.{dtype}"}
    size = sum(values.size for values in weights.values()) * width
    assert size < target.stat().st_size < size + 10_000
    for name, values in weights.items():
        wanted = np.array(
            mx.array(values).astype(getattr(mx, dtype)).astype(mx.float32)
        )
        found = np.array(arrays[name].astype(mx.float32))
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        np.testing.assert_allclose(found, values, rtol=error, atol=1e-7)


def test_an_output_that_repeats_the_embedding_is_tied(tmp_path):
    """Of one matrix quantised twice the finer copy is kept, as embedding and output."""
    tiny = Tiny("qwen2", matrices=Q8_0, output="again")

    folder, weights = converted(tmp_path, tiny)

    found = stored_weights(folder)
    embedding = weights["model.embed_tokens.weight"]
    finer = gguf.dequantize(gguf.quantize(embedding, Q8_0), Q8_0)
    assert "lm_head.weight" not in found
    np.testing.assert_array_equal(found["model.embed_tokens.weight"], finer)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]


def test_an_output_of_its_own_stays(tmp_path):
    """A model that is not tied keeps both matrices, and mlx-lm is told so."""
    folder, weights = converted(tmp_path, Tiny("llama", output="own"))

    model, _ = load(str(folder))

    found = stored_weights(folder)
    np.testing.assert_array_equal(found["lm_head.weight"], weights["lm_head.weight"])
    assert not model.args.tie_word_embeddings


def test_settings_reach_mlx_lm(tmp_path):
    """What decides the result beside the weights is read from the metadata."""
    folder, _ = converted(tmp_path, Tiny("gemma3"))

    args = load(str(folder))[0].args

    assert args.model_type == "gemma3_text"
    assert args.head_dim == args.query_pre_attn_scalar == gguf_files.HEAD_DIM
    assert (args.sliding_window, args.sliding_window_pattern) == (32, 6)
    assert (args.rms_norm_eps, args.rope_theta) == (1e-5, 50000.0)
    assert (args.num_attention_heads, args.num_key_value_heads) == (4, 2)


def test_the_tokenizer_merges_and_knows_its_control_tokens(tmp_path):
    """Text is cut by the file's merges, and a control token is one id."""
    folder, _ = converted(tmp_path, Tiny("qwen2"))

    _, tokenizer = load(str(folder))

    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("hello<|im_end|>"))
    assert tokens == ["hel", "l", "o", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("h\u00e9llo \U0001f642")) == (
        "h\u00e9llo \U0001f642"
    )
    assert tokenizer.model_max_length == gguf_files.CONTEXT


def test_the_chat_template_and_the_ends_come_along(tmp_path):
    """An instruct model keeps its template and stops at each of its ends."""
    folder, _ = converted(tmp_path, Tiny("llama"))

    _, tokenizer = load(str(folder))

    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == (
        "<|im_start|>hi<|im_end|>"
    )
    assert tokenizer.eos_token_ids == {0, 2}
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [2, 0]


def test_a_pretrained_model_gets_no_chat_template(tmp_path):
    """None is invented for a model that was trained on none."""
    folder, _ = converted(tmp_path, Tiny("gemma3"))

    _, tokenizer = load(str(folder))

    assert not tokenizer.has_chat_template
    assert tokenizer.encode("he")[0] == 2  # <bos>, without which Gemma derails
    assert tokenizer.eos_token_ids == {1, 5}


@pytest.mark.parametrize(
    ("tiny", "message"),
    [
        (Tiny("phi3"), "architecture 'phi3' is not one of gemma3, qwen2, llama"),
        (
            Tiny("llama", extra={"rope_freqs.weight": np.ones(8, np.float32)}),
            "'rope_freqs.weight' has no place",
        ),
        (
            Tiny("llama", extra={"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}),
            "'blk.0.attn_q_norm.weight' has no place",
        ),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, tiny, message):
    """A tensor or a family without a place is named, not left out."""
    with pytest.raises(ConfigError, match=message):
        converted(tmp_path, tiny)

    assert not (tmp_path / "model").exists()


def test_a_file_cut_anywhere_is_refused(tmp_path):
    """Whatever is missing at the end is noticed before anything is written."""
    whole = tmp_path / "whole.gguf"
    gguf_files.write(whole, Tiny("llama"))
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    lengths = [0, 3, 4, 7, 8, 20, 40, *range(64, len(content), 4999), len(content) - 1]

    for length in lengths:
        cut.write_bytes(content[:length])
        with pytest.raises(ConfigError, match=r"cut\.gguf: no complete GGUF file"):
            GgufFile(cut)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"<!DOCTYPE html>", "it begins otherwise"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "cut off"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "cut off"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "99"),
        (b"GGUF" + struct.pack("<IQQQ1sII", 3, 1, 0, 1, b"t", 9, 1), "9 dimensions"),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path, head, message):
    """An error page, an older format and absurd counts are errors, not crashes."""
    path = tmp_path / "model.gguf"
    path.write_bytes(head)

    with pytest.raises(ConfigError, match=message):
        GgufFile(path)


@pytest.mark.parametrize("kind", ["whole", "number", "sequence"])
def test_metadata_of_another_type_are_named(tmp_path, kind):
    """A value of the wrong type is an error that names the key."""
    path = tmp_path / "model.gguf"
    gguf_files.write(path, Tiny("llama"))

    with pytest.raises(ConfigError, match="'tokenizer.ggml.model' is not a"):
        getattr(GgufFile(path), kind)("tokenizer.ggml.model")
    with pytest.raises(ConfigError, match="the metadata lack 'llama.nothing'"):
        getattr(GgufFile(path), kind)("llama.nothing")


def test_the_reader_agrees_with_the_gguf_package(tmp_path):
    """Our reader finds what the format's own library finds, key by key."""
    path = tmp_path / "model.gguf"
    gguf_files.write(path, Tiny("gemma3", matrices=Q8_0))
    theirs = gguf.GGUFReader(path)

    ours = GgufFile(path)

    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.get(key) == field.contents(), key
    for tensor in theirs.tensors:
        mine = ours.tensor(tensor.name)
        assert mine.shape == tuple(tensor.shape.tolist()[::-1])
        assert mine.rows.tobytes() == tensor.data.tobytes()


def test_progress_counts_up_to_all_weights(tmp_path):
    """Progress never goes back, and its end is the whole."""
    seen = []

    _, weights = converted(
        tmp_path, Tiny("qwen2"), progress=lambda done, total: seen.append((done, total))
    )

    total = sum(values.size for values in weights.values())
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


def test_a_damaged_folder_is_not_taken_for_whole(tmp_path):
    """A file that was cut or lost, or another source, makes a folder incomplete."""
    folder, _ = converted(tmp_path, Tiny("llama"))
    assert is_complete(folder, "it")

    assert not is_complete(folder, "another")
    assert not is_complete(tmp_path / "nowhere", "it")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not is_complete(folder, "it")


def test_a_folder_is_replaced_whole(tmp_path):
    """Converting again leaves no file of the folder that was there."""
    folder, _ = converted(tmp_path, Tiny("llama"))
    (folder / "left.txt").write_text("over")

    converted(tmp_path, Tiny("llama", matrices=F32))

    assert not (folder / "left.txt").exists()
    assert is_complete(folder, "it")
