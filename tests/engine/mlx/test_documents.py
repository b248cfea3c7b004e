"""Documents full of control tokens, before tokenizers of real models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ofa.chat import Message
from ofa.engine.mlx.starter import PACKAGED, cache_folder, find
from ofa.engine.mlx.template import Prompts
from ofa.engine.mlx.vocabulary import Vocabulary
from ofa.rag.fence import fence
from ofa.rag.passage import Passage

from . import tiny

TAG = "0123456789abcdef"
# Placeholders in every second manual: breaking them would spoil more than it saves.
PLACEHOLDERS = {"<filename>", "<reponame>", "<repo_name>"}


@pytest.fixture(scope="module", params=["starter", "small", "gemma", "gemma 4"])
def tokenizer(request, tmp_path_factory):
    """Give the tokenizer of each packaged model, and Gemma 4's control tokens."""
    if request.param == "gemma 4":
        folder = tmp_path_factory.mktemp("gemma4")
        tiny.save_tokenizer(folder, tiny.spm_plan(tiny.GEMMA_4))
        return tiny.load_tokenizer(folder)
    taken = find(PACKAGED[request.param], cache_folder())
    assert taken is not None, "run scripts/test: it fetches the packaged models"
    return tiny.load_tokenizer(Path(taken.model))


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    """Give its vocabulary, control tokens under alias."""
    return Vocabulary(tokenizer)


def asked(text, **fields):
    """Return a user's message behind one passage."""
    found = {"collection": "hpc", "path": "a.md", "title": "A", "section": "S"}
    passage = Passage(**{**found, **fields, "text": text})
    return Message("user", fence([passage], "HPC", "Reference:", "Hi", tag=TAG))


def control_in(vocabulary, ids):
    """Return those of *ids* that are control tokens, in order."""
    control = set(vocabulary.control.values())
    return [token for token in ids if token in control]


def documents(vocabulary):
    """Return texts that hold each control token: bare, doubled, split and in lines."""
    tokens = sorted(vocabulary.control)
    yield "".join(tokens)
    yield "\n".join(f"{token} {token}{token}" for token in tokens)
    yield "".join(f"{token[:2]}\u200b{token[2:]}\n" for token in tokens)
    yield "".join(token[:3] + token + token[3:] for token in tokens)
    yield "\r".join(token.swapcase() for token in tokens)


def test_R046_control_tokens_in_documents_become_no_special_ids(tokenizer, vocabulary):
    """With a passage of nothing else, a prompt has the control ids it has without."""
    prompts = Prompts(tokenizer, vocabulary)
    wanted = control_in(vocabulary, prompts.render([asked("x")]).ids)

    for text in documents(vocabulary):
        for message in (
            asked(text),
            asked("x", path=text[:3000], section=text[-3000:]),
        ):
            ids = prompts.render([message]).ids
            assert control_in(vocabulary, ids) == wanted
            assert len(ids) > 50


def test_R046_nor_where_the_engine_is_elsewhere(tokenizer, vocabulary):
    """The fence alone breaks them, for upstreams whose tokenizers see plain text."""
    plan = json.loads(tokenizer.backend_tokenizer.to_str())["added_tokens"]
    special = {token["id"]: token["content"] for token in plan if token["special"]}

    for text in documents(vocabulary):
        ids = tokenizer.encode(asked(text).text, add_special_tokens=False)
        assert {special[i] for i in ids if i in special} <= PLACEHOLDERS
