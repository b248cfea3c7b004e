"""What the servers that people run send is understood, framed as they frame it."""

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import (
    Chat,
    End,
    Image,
    Logprob,
    Message,
    Output,
    Sampling,
    Text,
    Thought,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
    Waiting,
    gather,
    gather_choices,
)
from ofa.engine.upstream_events import events
from ofa.engine.upstream_wire import frames
from ofa.errors import BadRequest, EngineError

from .upstream_servers import CHAT, Upstream, engine, recorded


def ask(recording, models="vllm-models.json", chat=CHAT, **options):
    """Return the answers that *recording* holds, through HTTP, and what was asked."""
    with (
        closing(Upstream(recorded(recording), models=recorded(models))) as server,
        engine(server, **options) as made,
    ):
        return gather_choices(made.reply(chat)), server.asked[0]


@pytest.mark.parametrize(
    ("recording", "text", "usage"),
    [
        ("vllm-text.txt", "Use `sbatch job.sh`.", Usage(812, 9, 768, None)),
        ("ollama-text.txt", "Use sbatch.", Usage(31, 7, None, None)),
        ("llama-server-text.txt", "Use sbatch.", Usage(25, 9, None, None)),
        ("ofa-text.txt", "Use sbatch.", Usage(50, 4, 32, None)),
    ],
)
def test_text_and_counts_come_through(recording, text, usage):
    """Usage stands in a chunk of its own, without choices, after the finish."""
    (answer,), _ = ask(recording)

    assert answer.text == text
    assert answer.end == End("stop", usage)


@pytest.mark.parametrize(
    ("recording", "text"),
    [
        ("vllm-thought.txt", "Yes."),
        ("ollama-thought.txt", "Yes."),
        ("llama-server-text.txt", "Use sbatch."),
    ],
)
def test_reasoning_is_thought_under_both_of_its_names(recording, text):
    """`reasoning` and `reasoning_content` never get into the answer."""
    (answer,), _ = ask(recording)

    assert answer.parts == (Thought("Slurm, then."), Text(text))


@pytest.mark.parametrize(
    ("recording", "ids"),
    [
        ("vllm-calls.txt", ("chatcmpl-tool-a1b2c3", "chatcmpl-tool-d4e5f6")),
        ("ollama-calls.txt", ("call_lpz2aqop", "call_8x0ufv2c")),
        ("ollama-calls-old.txt", ("call_lpz2aqop", "call_8x0ufv2c")),
    ],
)
def test_calls_come_whole_whatever_their_pieces(recording, ids):
    """In pieces (vLLM), whole (Ollama), and two with one index (old Ollama)."""
    (answer,), _ = ask(recording)

    assert answer.calls == (
        ToolCall(ids[0], "read_file", {"path": "job.sh"}),
        ToolCall(ids[1], "list_dir", {}),
    )
    assert answer.end.reason == "tools"


@pytest.mark.parametrize(
    "recording", ["vllm-broken.txt", "llama-server-broken.txt", "ofa-broken.txt"]
)
def test_an_error_in_the_middle_is_one(recording):
    """R013: as data, as llama-server's line of its own, after ofa's finish "error"."""
    with pytest.raises(EngineError) as caught:
        ask(recording)

    assert caught.value.status == 502


@pytest.mark.parametrize("name", ["vllm-calls.txt", "ofa-text.txt"])
def test_recordings_cut_anywhere_read_the_same(name):
    """The network cuts where it likes."""
    raw = recorded(name)
    whole = gather(events(frames([raw])))

    for place in range(len(raw) + 1):
        assert gather(events(frames([raw[:place], raw[place:]]))) == whole


def test_comments_are_signs_of_life_and_no_content():
    """Each is a `Waiting`, so that a reader can look up."""
    seen = list(events(frames([recorded("ofa-text.txt")])))

    assert seen[:3] == [Waiting(), Waiting(), Text("Use sbatch.")]


# Log probabilities


def test_logprobs_stand_with_their_text_and_bytes(upstream):
    """Half a character has no text yet: its token waits for the text that comes."""
    chat = Chat("m", CHAT.messages, logprobs=1)
    (answer,), body = ask("vllm-logprobs.txt", chat=chat)

    raw = [one.raw for one in answer.logprobs]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)
    assert answer.parts[0].text == "Grüß"
    assert raw == [b"Gr", "ü".encode(), b"\xc3", b"\x9f"]
    assert b"".join(raw).decode() == "Grüß"
    assert answer.logprobs[0] == Logprob(
        "Gr", -0.25, b"Gr", (Logprob("Gr", -0.25, b"Gr"),)
    )


def test_each_piece_of_a_stream_has_its_own_logprobs():
    """A client can draw them as they come."""
    raw = recorded("ollama-logprobs.txt")

    texts = [e for e in events(frames([raw]), top=2) if isinstance(e, Text)]

    assert [(t.text, [p.token for p in t.logprobs]) for t in texts] == [
        ("Yes", ["Yes"]),
        (".", ["."]),
    ]
    assert [p.token for p in texts[0].logprobs[0].top] == ["Yes", "No"]


def test_logprobs_without_alternatives_are_what_was_asked_for():
    """llama-server tells none at all unless one alternative is asked for."""
    chat = Chat("m", CHAT.messages, logprobs=0)
    (answer,), body = ask("ollama-logprobs.txt", "llama-server-models.json", chat)

    assert body["top_logprobs"] == 1
    assert [one.token for one in answer.logprobs] == ["Yes", "."]
    assert all(one.top == () for one in answer.logprobs)


def test_logprobs_that_cannot_be_read_are_an_error():
    """Not an answer without what was asked for."""
    broken = {"content": [{"token": "a"}]}
    piece = {"index": 0, "delta": {"content": "a"}, "logprobs": broken}

    with pytest.raises(EngineError, match="frame"):
        list(events([{"choices": [piece]}]))


# Several choices


def test_two_choices_are_told_apart():
    """Texts by index; the counts, of both, with the end of the last."""
    (red, blue), body = ask("vllm-two.txt", chat=Chat("m", CHAT.messages, choices=2))

    assert body["n"] == 2
    assert (red.text, blue.text) == ("red wine", "blue")
    assert blue.end == End("stop", None, 1, last=False)
    assert red.end == End("length", Usage(12, 5, 0, None), 0)


def test_a_choice_that_never_ends_is_an_error():
    """Where two were asked for, one is not the answer."""
    with pytest.raises(EngineError, match="before the end"):
        ask("vllm-text.txt", chat=Chat("m", CHAT.messages, choices=2))


def test_a_whole_answer_has_all_of_it_too(upstream):
    """A server that does not stream: two choices and logprobs in one object."""

    def choice(index, text):
        told = {"content": [{"token": text, "logprob": -0.5, "bytes": None}]}
        message = {"role": "assistant", "content": text}
        ended = {"index": index, "logprobs": told, "finish_reason": "stop"}
        return {"message": message, **ended}

    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    whole = {"choices": [choice(0, "ä"), choice(1, "b")], "usage": usage}
    upstream.answers = [upstream.status(200, whole)]
    chat = Chat("m", CHAT.messages, choices=2, logprobs=0)

    with engine(upstream) as made:
        first, second = gather_choices(made.reply(chat))

    assert (first.text, second.text) == ("ä", "b")
    assert first.logprobs == (Logprob("ä", -0.5, "ä".encode()),)
    assert second.end == End("stop", Usage(3, 2, None, None), 1)


@pytest.mark.parametrize("choices", [{"choices": []}, {"choices": None}, {}])
def test_R014_counts_without_choices_are_no_surprise(choices):
    """Empty, null or absent: nobody crashes on the last chunk."""
    said = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
    counts = {**choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    answer = gather(events([said, counts]))

    assert (answer.text, answer.end.usage) == ("a", Usage(3, 2, None, None))


def shape(**parts):
    """Return objects with any of *parts*, each now and then something else."""
    return st.fixed_dictionaries({}, optional={k: v | ODD for k, v in parts.items()})


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.floats()
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)
    ),
    max_leaves=4,
)
TOKEN = shape(token=st.text(), logprob=st.floats(), bytes=st.lists(st.integers(0, 255)))
FUNCTION = shape(name=st.text(), arguments=st.sampled_from(["{}", "{", "1}"]))
CALL = shape(index=st.integers(0, 1), id=st.text(), function=FUNCTION)
DELTA = shape(content=st.text(), reasoning=st.text(), tool_calls=st.lists(CALL))
CHOICE = shape(
    index=st.integers(0, 2),
    delta=DELTA,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", None]),
    logprobs=shape(content=st.lists(TOKEN)),
)
COUNTS = shape(prompt_tokens=st.integers(), completion_tokens=st.integers())
FRAME = shape(choices=st.lists(CHOICE, max_size=2), usage=COUNTS)


@settings(deadline=None)
@given(st.lists(FRAME, max_size=4), st.integers(1, 2))
def test_whatever_a_frame_holds_the_answer_is_whole_or_an_error(stream, choices):
    """No shape of JSON raises anything else, and an answer has all of its ends."""
    try:
        answers = gather_choices(events(stream, choices=choices))
    except EngineError:
        return
    assert len(answers) == choices


# What each kind is, and can do

PAGES = {
    "ollama-models.json": {"/api/ps": recorded("ollama-ps.json")},
    "llama-server-models.json": {"/props": recorded("llama-server-props.json")},
    "lm-studio-models.json": {"/api/v0/models": recorded("lm-studio-v0-models.json")},
}


def limits_of(models, *, pages=None, **options):
    """Return the limits of an engine whose upstream lists *models*."""
    with closing(Upstream(models=recorded(models))) as server:
        server.pages |= PAGES.get(models, {}) if pages is None else pages
        with engine(server, **options) as made:
            gather(made.reply(CHAT))
            return made.limits(), server


@pytest.mark.parametrize(
    ("models", "name", "context", "vision"),
    [
        ("vllm-models.json", "google/gemma-3-27b-it at", 16384, None),
        ("ollama-models.json", "gemma3:12b at", 8192, None),
        ("llama-server-models.json", "gemma-3-12b-it at", 12288, True),
        ("lm-studio-models.json", "google/gemma-3-12b at", 10240, True),
        ("ofa-models.json", "ofa-openfoam at", 20000, False),
    ],
)
def test_a_kind_is_known_by_what_it_tells(models, name, context, vision):
    """Model, context as loaded, and eyes, from the list and one page beside it."""
    options = {"model": "gemma3:12b"} if models.startswith("ollama") else {}

    limits, _ = limits_of(models, **options)

    kind = {"vllm": "vLLM", "oll": "Ollama", "lla": "llama-server", "lm-": "LM Studio"}
    assert limits.context_tokens == context
    assert limits.vision is vision
    assert limits.description.startswith(name)
    expected = kind.get(models[:3], kind.get(models[:4], "ofa"))
    assert limits.description.endswith(f"({expected})")


def test_an_ollama_that_has_not_loaded_its_model_counts_as_small():
    """It cuts what is too long without a word; its default is 4096."""
    limits, _ = limits_of("ollama-models.json", pages={})

    assert limits.context_tokens == 4096


def test_the_context_that_a_site_names_counts_more():
    """[engine] context_tokens is the last word."""
    limits, _ = limits_of("ollama-models.json", context_tokens=65536)

    assert limits.context_tokens == 65536


def test_no_embedding_model_is_taken_for_a_chat_model():
    """LM Studio lists both."""
    models = recorded("lm-studio-models.json")
    models["data"].reverse()
    with closing(Upstream(models=models)) as server, engine(server) as made:
        gather(made.reply(CHAT))

        assert server.asked[0]["model"] == "google/gemma-3-12b"


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ("ollama-models.json", "gemma3"),  # for gemma3:latest
        ("llama-server-models.json", "gemma"),  # an alias
    ],
)
def test_short_names_are_found_in_the_list(models, named):
    """What the server answers to is not reported as missing."""
    with (
        closing(Upstream(models=recorded(models))) as server,
        engine(server, model=named) as made,
    ):
        gather(made.reply(CHAT))

        assert made.status().ready
        assert server.asked[0]["model"] == named


def test_another_ofa_is_asked_for_the_same_mode():
    """Its models are modes: the first that it lists would be the wrong one."""
    asked = [
        ask("ofa-text.txt", "ofa-models.json", Chat(name, CHAT.messages))[1]
        for name in ("ofa-hpc", "code", "ofa-vasp")
    ]

    models = [body["model"] for body in asked]
    assert models == ["ofa-hpc", "ofa-code", "ofa-openfoam"]


TOOL = Tool("f", "F", {"type": "object"})
IMAGE = Message(
    "user", "see", images=(Image("data:image/png;base64,AA", "messages[0]"),)
)


@pytest.mark.parametrize(
    ("models", "param", "wish"),
    [
        ("ollama-models.json", "n", {"choices": 2}),
        (
            "ollama-models.json",
            "logit_bias",
            {"sampling": Sampling(logit_bias=((1, 5),))},
        ),
        ("ollama-models.json", "min_p", {"sampling": Sampling(min_p=0.1)}),
        (
            "ollama-models.json",
            "repetition_penalty",
            {"sampling": Sampling(repetition_penalty=1.1)},
        ),
        (
            "ollama-models.json",
            "tool_choice",
            {"tools": (TOOL,), "tool_choice": ToolChoice("required")},
        ),
        ("llama-server-models.json", "n", {"choices": 2}),
        ("lm-studio-models.json", "logprobs", {"logprobs": 0}),
        ("vllm-models.json", "top_logprobs", {"logprobs": 21}),
        ("ofa-models.json", "messages[0]", {"messages": (IMAGE,)}),
    ],
)
def test_what_a_kind_would_drop_is_refused(models, param, wish):
    """400 with the field's name, and nothing is sent."""
    with closing(Upstream(models=recorded(models))) as server, engine(server) as made:
        with pytest.raises(BadRequest) as caught:
            made.reply(Chat(**{"model": "m", "messages": CHAT.messages, **wish}))

        assert caught.value.param == param
        assert server.asked == []


@pytest.mark.parametrize(
    "wish", [{"choices": 2}, {"logprobs": 1}, {"output": Output("json_object")}]
)
def test_nobody_knows_what_an_unknown_server_drops(wish):
    """What changes the shape of an answer is refused unless a site vouches for it."""
    models = {"data": [{"id": "m", "owned_by": "somebody"}]}
    chat = Chat("m", CHAT.messages, **wish)
    with closing(Upstream(models=models)) as server:
        with engine(server) as made, pytest.raises(BadRequest):
            made.reply(chat)
        vouched = ("auto", "n", "logprobs", "response_format")
        with engine(server, features=vouched) as made:
            made.reply(chat).close()


def test_an_ofa_that_calls_no_tools_is_given_none():
    """It says so in its list; the chat goes on without them."""
    models = recorded("ofa-models.json")
    for row in models["data"]:
        row["capabilities"] = ["text"]
    with closing(Upstream(models=models)) as server, engine(server) as made:
        gather(made.reply(CHAT))

        assert not made.limits().tools


@pytest.mark.parametrize("page", [None, [], {"modalities": 7}, b"no json"])
def test_a_page_beside_the_list_is_a_courtesy(page):
    """What can't be read there is as good as not told."""
    limits, _ = limits_of("llama-server-models.json", pages={"/props": page})

    assert limits.context_tokens == 32768
    assert limits.vision is True  # the list itself told that


def test_no_features_are_none():
    """An empty list takes back what the kind is known to do."""
    limits, _ = limits_of("vllm-models.json", features=())

    assert (limits.tools, limits.vision, limits.structured) == (False, False, False)
    assert (limits.choices, limits.logprobs) == (1, None)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRICT = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
}


@pytest.mark.parametrize(
    ("models", "output", "sent"),
    [
        ("vllm-models.json", Output("json_schema", SCHEMA), STRICT),
        ("ollama-models.json", Output("json_schema", SCHEMA), STRICT),
        ("vllm-models.json", Output("json_object"), {"type": "json_object"}),
        (
            "lm-studio-models.json",
            Output("json_object"),
            {
                "type": "json_schema",
                "json_schema": {
                    "name": "answer",
                    "schema": {"type": "object"},
                    "strict": True,
                },
            },
        ),
    ],
)
def test_a_schema_is_sent_in_the_form_that_is_enforced(models, output, sent):
    """LM Studio knows schemas only: any object is one."""
    chat = Chat("m", CHAT.messages, output=output)

    _, body = ask("vllm-text.txt", models, chat)

    assert body["response_format"] == sent


@pytest.mark.parametrize(
    ("models", "sent"),
    [
        ("vllm-models.json", {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1}),
        ("llama-server-models.json", {"top_k": 0, "min_p": 0.1, "repeat_penalty": 1.1}),
        ("ofa-models.json", {"top_k": 0, "min_p": 0.1, "repetition_penalty": 1.1}),
    ],
)
def test_sampling_has_the_names_of_its_kind(models, sent):
    """And "no top_k" the value that each takes for it."""
    bias = ((7, -1.5),)
    wanted = Sampling(top_k=0, min_p=0.1, repetition_penalty=1.1, logit_bias=bias)
    chat = Chat("m", CHAT.messages, wanted)

    _, body = ask("vllm-text.txt", models, chat)

    names = ("top_k", "min_p", "repetition_penalty", "repeat_penalty")
    assert {name: body[name] for name in names if name in body} == sent
    assert body["logit_bias"] == {"7": -1.5}


def test_a_modes_own_top_k_is_no_reason_to_refuse():
    """Where it is not known it is left out: no client has asked for it."""
    chat = Chat("m", CHAT.messages, Sampling(top_k=64))

    _, body = ask("ollama-text.txt", "ollama-models.json", chat)

    assert "top_k" not in body


@pytest.mark.parametrize(
    ("models", "thinking", "effort", "sent"),
    [
        (
            "vllm-models.json",
            True,
            "",
            {"chat_template_kwargs": {"enable_thinking": True}},
        ),
        (
            "vllm-models.json",
            False,
            "none",
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ("vllm-models.json", None, "", {}),
        ("ollama-models.json", False, "minimal", {"reasoning_effort": "none"}),
        ("ollama-models.json", True, "xhigh", {"reasoning_effort": "high"}),
        ("ollama-models.json", True, "low", {"reasoning_effort": "low"}),
        ("ollama-models.json", None, "", {}),
    ],
)
def test_thinking_is_switched_as_each_kind_wants_it(models, thinking, effort, sent):
    """Nothing is said where the client has said nothing."""
    chat = Chat("m", CHAT.messages, thinking=thinking, reasoning_effort=effort)

    _, body = ask("vllm-text.txt", models, chat)

    names = ("chat_template_kwargs", "reasoning_effort")
    assert {name: body[name] for name in names if name in body} == sent
