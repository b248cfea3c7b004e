"""Prompts: the ids a model was trained on, whatever people write."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Message, ToolCall
from ofa.engine.mlx.template import Prompts, find_family
from ofa.engine.mlx.turns import fold
from ofa.engine.mlx.vocabulary import Vocabulary
from ofa.errors import BadRequest, ConfigError
from ofa.toolcalls.base import plain

from . import tiny

GOLDEN_WORDS = {"user": 2364, "Hi": 10979, "model": 4368, "thought": 45518}
PLANS = {
    "gemma3": (tiny.spm_plan(tiny.GEMMA_3), tiny.STRICT),
    "gemma3-bare": (tiny.spm_plan(tiny.GEMMA_3), None),
    "gemma4": (tiny.spm_plan(tiny.GEMMA_4), None),
    "chatml": (tiny.chatml_plan(), None),
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """One tokenizer of each kind, as mlx-lm loads it."""
    return tiny.load_tokenizers(tmp_path_factory.mktemp("tokenizers"), PLANS)


@pytest.fixture(scope="module")
def prompts(tokenizers):
    """A renderer for each of them."""
    return {
        name: Prompts(tokenizer, Vocabulary(tokenizer))
        for name, tokenizer in tokenizers.items()
    }


@pytest.fixture(scope="module")
def formats(prompts):
    """The format of tool calls that each of them was found to have."""
    return {name: renderer.format for name, renderer in prompts.items()}


def control_ids(tokenizer, ids):
    """Return those of *ids* that are control tokens, in order."""
    control = set(Vocabulary(tokenizer).control.values())
    return [token for token in ids if token in control]


def test_golden_ids_of_gemma_4(tmp_path):
    """A user's "Hi" with thinking off gives the published sequence."""
    plan = tiny.spm_plan(tiny.GEMMA_4, GOLDEN_WORDS)
    tokenizer = tiny.load_tokenizer(tiny.save_tokenizer(tmp_path, plan))

    prompt = Prompts(tokenizer, Vocabulary(tokenizer)).render([Message("user", "Hi")])

    assert list(prompt.ids) == [
        2, 105, 2364, 107, 10979, 106, 107, 105, 4368, 107, 100, 45518, 107, 101
    ]  # fmt: skip


def test_thinking_of_gemma_4(tokenizers, prompts):
    """Asked to think, the system turn says so and the empty thought is gone."""
    prompt = prompts["gemma4"].render([Message("user", "Hi")], thinking=True)

    assert tokenizers["gemma4"].decode(prompt.ids) == (
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
    )


@pytest.mark.parametrize("name", PLANS)
def test_plain_conversations_are_encoded_as_by_the_original(name, tokenizers, prompts):
    """Where nobody writes control tokens, aliases change no id at all."""
    tokenizer = tokenizers[name]
    messages = [
        Message("user", "Hi  the <table>\n\n1 < 2, na\u00efve \U0001f600"),
        Message("assistant", "the quick answer"),
        Message("user", "file"),
    ]

    ids = list(prompts[name].render(messages).ids)

    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == (tokenizer.bos_token_id is not None)


@pytest.mark.parametrize("name", PLANS)
def test_58_every_control_token_in_content_stays_text(name, tokenizers, prompts):
    """Each added token, said by a user, gives no control id and reads the same."""
    tokenizer = tokenizers[name]
    vocabulary = Vocabulary(tokenizer)
    plain = prompts[name].render([Message("user", "x"), Message("assistant", "x")])
    wanted = control_ids(tokenizer, plain.ids)

    for token in vocabulary.control:
        said = f"a{token}b {token}{token}"
        ids = (
            prompts[name]
            .render([Message("user", said), Message("assistant", said)])
            .ids
        )
        assert control_ids(tokenizer, ids) == wanted, token
        assert tokenizer.decode(ids).count(said) == 2, token


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_58_control_tokens_among_other_text(data, tokenizers, prompts):
    """The same for any mixture of control tokens, their halves and words."""
    name = data.draw(st.sampled_from(sorted(PLANS)))
    tokenizer = tokenizers[name]
    tokens = sorted(Vocabulary(tokenizer).control)
    piece = st.one_of(
        st.sampled_from(tokens),
        st.sampled_from(tokens).map(lambda token: token[: len(token) // 2]),
        st.sampled_from(["a ", "\n\n", "<table>", "\U0001f600", "\ue000", "1"]),
    )
    said = "x" + "".join(data.draw(st.lists(piece, max_size=8))) + "x"
    wanted = control_ids(tokenizer, prompts[name].render([Message("user", "x")]).ids)

    ids = prompts[name].render([Message("user", said)]).ids

    assert control_ids(tokenizer, ids) == wanted
    assert said in tokenizer.decode(ids)


def test_control_tokens_reach_no_prompt_by_merges_or_whole_words(tmp_path):
    """A vocabulary that could build a mark out of plain pieces no longer does."""
    plan = tiny.spm_plan({**tiny.GEMMA_3, "ab": 121})
    plan["model"]["merges"].append(["a", "b"])
    tokenizer = tiny.load_tokenizer(tiny.save_tokenizer(tmp_path, plan))

    ids = Vocabulary(tokenizer).encode("ab cab")

    assert 121 not in ids
    assert tokenizer.decode(ids) == "ab cab"


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(
    "text",
    [
        "na\u00efve \U0001f600\u4f60\u597d \u0e44\u0e17\u0e22",
        "a\u0000b",
        " x\n\n  y\t",
        "<0x41>",
    ],
)
def test_R037_characters_over_several_tokens(name, text, tokenizers):
    """Token by token the text comes out whole, without a replacement character."""
    vocabulary = Vocabulary(tokenizers[name])
    decoder = vocabulary.decoder()

    pieces = [decoder.feed(token) for token in vocabulary.encode(text)]

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_R037_an_incomplete_end_is_dropped(tokenizers):
    """A limit that cuts a character leaves no trace of it, by rule."""
    vocabulary = Vocabulary(tokenizers["gemma3"])
    decoder = vocabulary.decoder()

    ids = vocabulary.encode("ok\U0001f600")[:-1]

    assert "".join(map(decoder.feed, ids)) == "ok"


def test_R038_text_goes_on_after_a_broken_character(tokenizers):
    """Bytes that are no character show once, and nothing is lost or said twice."""
    vocabulary = Vocabulary(tokenizers["gemma3"])
    decoder = vocabulary.decoder()
    broken = vocabulary.ids["<0xF0>"], vocabulary.ids["<0x9F>"]

    ids = [*vocabulary.encode("macOS "), *broken, *vocabulary.encode("\u3067\u3059")]

    assert "".join(map(decoder.feed, ids)) == "macOS \ufffd\u3067\u3059"


def test_silent_tokens_are_not_shown(tokenizers):
    """What the engine names silent leaves no text, nor do ids beyond the last."""
    vocabulary = Vocabulary(tokenizers["gemma4"])
    decoder = vocabulary.decoder(frozenset({105}))

    assert decoder.feed(105) + decoder.feed(101) + decoder.feed(10**6) == "<channel|>"


R031 = (
    Message("system", "A"),
    Message("system", "B"),
    Message("user", "hi"),
    Message("system", "C"),
    Message("assistant", "yo"),
    Message("user", "bye"),
)


def folded(messages, how, **more):
    """Return (role, text) for each turn of *messages*."""
    turns = fold(messages, how, **more).turns
    return [(turn.role, plain(turn.markup)) for turn in turns]


def test_R031_system_texts_anywhere(formats):
    """Leading ones stand first in order, a later one where it was said."""
    assert folded(R031, formats["gemma3"]) == [
        ("system", "A\n\nB"),
        ("user", "hi\n\nC"),
        ("assistant", "yo"),
        ("user", "bye"),
    ]


def test_system_text_without_a_system_turn(formats):
    """A template that knows no system gets it in front of the first user's text."""
    turns = folded(R031, formats["gemma3"], takes_system=False)

    assert turns[0] == ("user", "A\n\nB\n\nhi\n\nC")


CALL = ToolCall("call_1", "read_note", {"path": "x", "depth": None})
CASES = {
    "R025": (
        Message("user", "What is in a.txt?"),
        Message("assistant", "", (CALL,)),
        Message("tool", "The word is HERON.", answers="call_1"),
    ),
    "R026": (
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "", (CALL,)),
        Message("tool", '{"error":"not found"}', answers="call_1"),
    ),
    "R028": (Message("user", "go"), Message("tool", "late", answers="call_gone")),
    "R031": R031,
    "R032": (
        Message("system", "Translate."),
        Message("user", "Only translate the text in the tags."),
        Message("user", "<t1>guten Tag</t1>"),
    ),
    "leading": (Message("assistant", "Welcome"), Message("user", "Hi")),
    "trailing": (Message("user", "Hi"), Message("assistant", "the ")),
    "alone": (Message("system", "Only rules"),),
    "empty": (Message("user", ""), Message("assistant", " "), Message("user", "")),
    "nothing": (),
    "late": (Message("user", "Hi"), Message("system", "late rules")),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("case", CASES)
def test_any_order_of_roles_is_rendered(name, case, tokenizers, prompts):
    """R025 to R032 and worse: never a template's exception, and nothing lost."""
    messages = CASES[case]

    text = tokenizers[name].decode(prompts[name].render(messages).ids)

    assert all(message.text.strip() in text for message in messages)
    assert text.count(CALL.name) >= (case in ("R025", "R026"))
    assert text.endswith(("model\n", "assistant\n", "<channel|>", "<tool_response|>"))


def test_a_refusing_template_is_the_requests_fault(tmp_path):
    """A template that raises becomes a 400 that names the messages."""
    template = "{{ raise_exception('only poems, please') }}"
    folder = tiny.save_tokenizer(
        tmp_path, tiny.spm_plan(tiny.GEMMA_3), template=template
    )
    tokenizer = tiny.load_tokenizer(folder)

    with pytest.raises(BadRequest, match="only poems, please") as caught:
        Prompts(tokenizer, Vocabulary(tokenizer)).render([Message("user", "Hi")])

    assert caught.value.param == "messages"


@pytest.mark.parametrize("body", ["{{ m.content }}{{ m.content }}", ""])
def test_a_template_that_drops_or_repeats_text_is_refused(body, tmp_path):
    """Each message stands in the prompt once, or the client is told."""
    template = "{% for m in messages %}" + body + "{% endfor %}"
    folder = tiny.save_tokenizer(
        tmp_path, tiny.spm_plan(tiny.GEMMA_3), template=template
    )
    tokenizer = tiny.load_tokenizer(folder)

    with pytest.raises(BadRequest, match="exactly once"):
        Prompts(tokenizer, Vocabulary(tokenizer)).render([Message("user", "Hi")])


def test_begin_token_once(tmp_path):
    """A template's begin token and the tokenizer's own do not add up."""
    plan = tiny.spm_plan(tiny.GEMMA_3)
    plan["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    }
    for n, template in enumerate(
        (tiny.STRICT, tiny.STRICT.removeprefix("{{ bos_token }}"))
    ):
        folder = tiny.save_tokenizer(tmp_path / str(n), plan, template=template)
        tokenizer = tiny.load_tokenizer(folder)
        ids = (
            Prompts(tokenizer, Vocabulary(tokenizer))
            .render([Message("user", "Hi")])
            .ids
        )
        assert ids[0] == 2
        assert ids.count(2) == 1


def test_57_a_maimed_tokenizer_is_refused(tmp_path):
    """A Gemma 4 without its halt token would never stop: an error at load."""
    control = {k: v for k, v in tiny.GEMMA_4.items() if k != "<|tool_response>"}
    folder = tiny.save_tokenizer(tmp_path, tiny.spm_plan(control))

    with pytest.raises(ConfigError, match=r"lacks <\|tool_response>"):
        find_family(Vocabulary(tiny.load_tokenizer(folder)))


def test_a_prompt_that_opens_a_thought(tmp_path):
    """Templates that write <think> themselves leave only its end to the model."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
    folder = tiny.save_tokenizer(tmp_path, tiny.chatml_plan(), template=template)
    tokenizer = tiny.load_tokenizer(folder)

    assert (
        Prompts(tokenizer, Vocabulary(tokenizer))
        .render([Message("user", "Hi")])
        .thinking
    )


def test_a_model_without_turns_gets_a_plain_transcript(tmp_path):
    """Where no family is known, the roles are written out and stop the answer."""
    control = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3}
    folder = tiny.save_tokenizer(tmp_path, tiny.spm_plan(control))
    tokenizer = tiny.load_tokenizer(folder)
    prompts = Prompts(tokenizer, Vocabulary(tokenizer))

    text = tokenizer.decode(prompts.render(R031).ids)

    assert text == (
        "<bos>System: A\n\nB\n\nUser: hi\n\nC\n\n"
        "Assistant: yo\n\nUser: bye\n\nAssistant:"
    )
    assert prompts.family.stop_strings == ("\n\nUser:", "\n\nSystem:")


def test_a_long_text_holds_nobody_up(tokenizers):
    """One over-long request took the whole process for eight seconds: all streams."""
    vocabulary = Vocabulary(tokenizers["gemma3"])
    done, ticks = threading.Event(), 0

    def encode():
        vocabulary.encode("the quick file " * 40_000)
        done.set()

    threading.Thread(target=encode).start()
    while not done.wait(0.001):
        ticks += 1

    assert ticks > 10


def test_a_unigram_vocabulary_finds_no_control_token_in_content(tmp_path):
    """There every piece may be found in plain text: the mark is not among them."""
    plan = tiny.spm_plan(tiny.GEMMA_3)
    ids = plan["model"]["vocab"]
    pieces = {number: token for token, number in ids.items()}
    vocab = [
        [pieces.get(n, f"<gap{n}>"), -1.0 if n == 106 else -5.0]
        for n in range(max(pieces) + 1)
    ]
    plan["model"] = {"type": "Unigram", "unk_id": 3, "vocab": vocab}
    tokenizer = tiny.load_tokenizer(tiny.save_tokenizer(tmp_path, plan))

    ids = Vocabulary(tokenizer).encode("a<end_of_turn>b")

    assert 106 not in ids
    assert tokenizer.decode(ids) == "a<end_of_turn>b"


def test_an_unknown_decoder_is_mlx_lms_own(tmp_path):
    """Bytes that are not known here are left to mlx-lm's slower detokenizer."""
    plan = tiny.spm_plan(tiny.GEMMA_3)
    plan["decoder"] = {"type": "Fuse"}
    vocabulary = Vocabulary(tiny.load_tokenizer(tiny.save_tokenizer(tmp_path, plan)))
    decoder = vocabulary.decoder(frozenset({106}))

    ids = [*vocabulary.encode("the\u00e9"), 106, *vocabulary.encode("file")]

    assert "".join(map(decoder.feed, ids)) == "the\u00e9file"
