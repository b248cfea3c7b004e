"""Calls found in answers as they are written: every cut, every place, every end."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.chat import Tool, ToolCall
from ofa.toolcalls.base import Failed, Found
from ofa.toolcalls.functiongemma import FunctionGemma
from ofa.toolcalls.gemma4 import Gemma4
from ofa.toolcalls.generic import Generic
from ofa.toolcalls.hermes import Hermes
from ofa.toolcalls.reader import Reader
from ofa.toolcalls.tally import Tally

PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
}
TOOLS = (
    Tool("read_note", "Read one note", PATH),
    Tool("plot-mesh", "Plot", {"type": "object"}),
    Tool("list", "List", {}),
)
FORMATS = {
    "gemma4": Gemma4(str),
    "functiongemma": FunctionGemma(str),
    "hermes": Hermes(str),
    "generic": Generic(),
}
CALL = '<tool_call>\n{"name": "read_note", "arguments": {"path": "a"}}\n</tool_call>'
BLOCK = '```json\n{"name": "read_note", "arguments": {"path": "a"}}\n```'
READ = ("read_note", {"path": "a"})


def read(text, kind="hermes", *, sizes=(), cut=False, **options):
    """Return what *text* comes to, cut in pieces of *sizes*, and the tally's words."""
    tally = Tally()
    reader = Reader(FORMATS[kind], TOOLS, tally=tally, **options)
    pieces, at = [], 0
    for size in (*sizes, len(text)):
        pieces += reader.feed(text[at : at + size])
        at += size
    pieces += reader.finish(cut=cut)
    return joined(pieces), tally.told()


def joined(pieces):
    """Return *pieces* with texts in one and calls without their ids."""
    made = []
    for piece in pieces:
        if isinstance(piece, str):
            assert piece, "an empty piece of text"
            if made and isinstance(made[-1], str):
                made[-1] += piece
                continue
        made.append(
            (piece.name, piece.arguments) if isinstance(piece, ToolCall) else piece
        )
    return made


def parts(text, kind="hermes", **options):
    """Return what *text* comes to."""
    return read(text, kind, **options)[0]


def written(kind, *calls):
    """Return *calls* as models of *kind* write them."""
    made = [ToolCall(f"c{n}", *call) for n, call in enumerate(calls)]
    return "".join(piece.text for piece in FORMATS[kind].calls(made))


@pytest.mark.parametrize("kind", FORMATS)
def test_two_calls_behind_text_are_found(kind):
    """Each family's own form: the text before, both calls, no blank beside them."""
    second = ("plot-mesh", {"code": "for(i){ a[i]={}; }", "n": [1, None, {"b": True}]})
    text = f"Let me see.\n\n{written(kind, READ)}\n{written(kind, second)}\n"

    assert parts(text, kind) == ["Let me see.", READ, second]


SAYINGS = st.lists(
    st.sampled_from(
        (
            *(written(kind, READ) for kind in FORMATS),
            *(written(kind, ("nope", {})) for kind in FORMATS),
            CALL[:40], BLOCK, BLOCK[:30], '{"name": "list", "args": {}}', "<", "`",
            "```", "```bash\nls\n```", "\n", " ", "said ", "<tool", "<|tool_call>",
            "> ", '"', "<function=list>\n</function>", "call:list{}", "[1] x",
            "<invoke ", '{"name": "x", "version": 1}', "~~~\n", "read_note", "[ARGS]",
        )
    ),
    max_size=6,
)  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
@settings(deadline=None, max_examples=60)
@given(said=SAYINGS, sizes=st.lists(st.integers(1, 9), max_size=60), cut=st.booleans())
def test_any_cut_gives_the_same(kind, said, sizes, cut):
    """Pieces as tokens come, or all at once: the same text, calls and counts."""
    text = "".join(said)

    assert read(text, kind, sizes=sizes, cut=cut) == read(text, kind, cut=cut)


@settings(deadline=None, max_examples=100)
@given(said=SAYINGS, kind=st.sampled_from(list(FORMATS)))
def test_no_text_is_lost_and_no_call_is_made_up(said, kind):
    """What isn't a call is text, character by character but for blanks beside calls;
    what is a call is offered and fits."""
    text = "".join(said)
    pieces = parts(text, kind)

    for piece in pieces:
        if isinstance(piece, tuple):
            assert piece[0] in {tool.name for tool in TOOLS}
            assert piece[0] != "read_note" or piece[1] == {"path": "a"}
    if not any(isinstance(piece, tuple) for piece in pieces):
        kept = "".join(p if isinstance(p, str) else p.raw for p in pieces)
        assert kept == text


def test_text_goes_out_at_once():
    """Nothing waits that can't become a call; a blank waits for what follows it."""
    reader = Reader(Hermes(str), TOOLS)

    assert reader.feed("Use a < b") == ["Use a < b"]
    assert reader.feed(" and") == [" and"]
    assert reader.feed(" <tool") == []
    assert reader.feed("box>") == [" <toolbox>"]
    assert reader.feed("\n```json\n{") == []
    assert reader.feed('"na') == []
    assert reader.feed('tion": 1') == ['\n```json\n{"nation": 1']


def test_an_answer_that_is_other_json_is_soon_let_go():
    """A key that no call has shows it, long before the answer's end."""
    reader = Reader(Hermes(str), TOOLS)

    assert reader.feed('{"name": "x", "vers') == ['{"name": "x", "vers']


def test_a_call_goes_out_as_soon_as_it_is_closed():
    """Not only at the answer's end."""
    reader = Reader(Hermes(str), TOOLS)

    assert joined(reader.feed(CALL)) == [READ]


@pytest.mark.parametrize(
    "text",
    [
        f"`{CALL[:20]}`",
        f"Write `{CALL.replace(chr(10), '')}` to read.",
        f"```\n{CALL}\n```",
        f"~~~~xml\n```\n{CALL}\n~~~~\nbehind",
        f"> {CALL.replace(chr(10), '')}\n",
        f'They write "{CALL}".',
        f"   ```text\n{CALL}",
        f"{BLOCK}\nThis reads a note.",
        f"{BLOCK}\n{BLOCK}",
        f"```\nx\n```\n{BLOCK}",
        BLOCK.replace("read_note", "Read_Note"),
        BLOCK.replace('"a"', "1"),
        BLOCK.replace('"arguments"', '"id": 1, "arguments"'),
        BLOCK.replace("json", "yaml"),
        f"It is {BLOCK[8:-4]}",
        '{"name": "list"}',
        '{"name": "list", "arguments": "{}"}',
        '{"name": "list", "arguments": {}} there',
        '[{"name": "list", "arguments": {}}, 1]',
        "recall:list{}",
        f"tool_call {BLOCK[8:-4]}",
        f"Then:\ntool_call\n{BLOCK[8:-4]}",
        f"tool_call\n{BLOCK[8:-4]}\nThat reads it.",
        "tool_calls\nare what I write.",
        "I'd use <function=list></function> for that.",
        "<tool_call> and </tool_call> stand around calls.",
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_what_is_shown_or_only_looks_so_stays_text(text, cut):
    """Code, quotations, examples, other JSON: no call, and nothing of it is lost."""
    assert parts(text, cut=cut) == [text]


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        f"{BLOCK}\n\n",
        BLOCK.replace("json", ""),
        BLOCK.replace("json", "tool_call"),
        BLOCK.removesuffix("\n```"),
        BLOCK[8:-4],
        f"[{BLOCK[8:-4]}]",
        f"\n {BLOCK[8:-4]}\n",
        f"tool_call \n{BLOCK[8:-4]}",
        BLOCK[8:-4].replace("name", "tool").replace("arguments", "input"),
        BLOCK[8:-4].replace('"a"', '"}\\"{"').replace('}\\"{', "a"),
    ],
)
def test_a_block_that_is_exactly_a_call_is_one(text):
    """The answer's only block at its end, or the whole answer, as small models do."""
    assert read(text) == ([READ], "rescued: json")


def test_text_may_stand_before_the_one_block():
    """A sentence first, as they do."""
    assert parts(f"I will read it.\n{BLOCK}\n") == ["I will read it.", READ]


def test_without_rescue_only_the_family_counts():
    """Foreign forms and blocks are text then."""
    for text in (BLOCK, BLOCK[8:-4], "<function=list></function>"):
        assert parts(text, rescue=False) == [text]


def test_a_control_token_counts_in_code_as_well():
    """Nobody writes one as text: a fence left open does not hide a call."""
    marked = Hermes(lambda token: f"\ue000{token}")
    reader = Reader(marked, TOOLS)
    text = CALL.replace("<tool", "\ue000<tool").replace("</", "\ue000</")

    assert joined(reader.feed(f"```\nx\n{text}")) == ["```\nx", READ]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_the_limit_cuts_leaves_nothing(kind):
    """At every place within a call: not its text, no call, and it is counted."""
    call = written(kind, READ)
    for end in range(3 if kind != "generic" else 12, len(call)):
        pieces, told = read("See.\n" + call[:end], kind, cut=True)
        assert pieces == ["See."], call[:end]
        assert told == "dropped: cut"


def test_calls_before_the_cut_one_stand():
    """The whole one is given out."""
    assert parts(CALL + CALL[:30], cut=True) == [READ]


def test_what_the_model_leaves_unfinished_is_a_failure():
    """The raw text comes with it, for another try or as text."""
    pieces, told = read("Well. " + CALL[:40])

    assert pieces[0] == "Well. " and pieces[1].raw == CALL[:40]
    assert told == "failed: call"


def test_a_missing_closing_tag_at_the_end_is_no_matter():
    """The model stopped behind a complete call."""
    assert parts(CALL.removesuffix("</tool_call>")) == [READ]


def test_an_unknown_tool_fails_with_what_there_is():
    """The failure says what is offered, and holds the call as it was written."""
    raw = CALL.replace("read_note", "delete_all")
    (failed,) = parts(raw)

    assert failed.raw == raw
    assert "delete_all" in failed.why and "read_note" in failed.why


def test_only_one_call_where_no_more_are_wanted():
    """What is further a call is dropped and counted; text is not."""
    pieces, told = read(f"{CALL}\n{CALL} done", parallel=False)

    assert pieces == [READ, "done"]
    assert told == "dropped: extra"


def test_a_call_that_comes_twice_in_a_row_is_one():
    """A weak model that has to call repeats itself up to the limit, which is told."""
    pieces, told = read(f"{CALL}\n{CALL}\n{CALL}")
    other = CALL.replace('"a"', '"b"')
    reader = Reader(FORMATS["hermes"], TOOLS)
    reader.feed(f"{CALL}\n{other}\n")

    assert pieces == [READ] and told == "dropped: repeated x2"
    assert reader.calls == 2 and not reader.repeats
    assert reader.feed(other) == [] and reader.repeats


def test_a_native_call_is_settled_in_its_place():
    """Its id stays; blanks held before it go."""
    reader = Reader(Hermes(str), TOOLS)
    pieces = reader.feed("See.\n")
    pieces += reader.take(Found("functions.read_note", {"path": "a"}), "call_7")
    pieces += reader.take(Found("read_note", {}), "call_8")

    assert pieces[:2] == ["See.", ToolCall("call_7", "read_note", {"path": "a"})]
    assert isinstance(pieces[2], Failed) and "path" in pieces[2].why
    assert reader.tally.told() == "repaired: name; failed: call"


def test_R019_two_calls_have_two_ids():
    """No two calls of an answer share an id."""
    reader = Reader(Hermes(str), TOOLS)
    other = CALL.replace('"a"', '"b"')
    ids = [call.id for call in reader.feed(CALL + other)]

    assert len(set(ids)) == 2 and all(one.startswith("call_") for one in ids)


R022 = '<|tool_call>call:plot-mesh{code:<|"|>for(i){ a[i]={}; }<|"|>}<tool_call|>'
R023 = "<|tool_call>call:google:mcp:read_note{path:'a, b.txt'}<tool_call|>"


@pytest.mark.parametrize("size", range(1, 12))
def test_R022_hyphens_and_braces_are_no_matter(size):
    """A name with a hyphen, braces in a string: the call as it was written."""
    sizes = [size] * (len(R022) // size)

    assert parts(R022, "gemma4", sizes=sizes) == [
        ("plot-mesh", {"code": "for(i){ a[i]={}; }"})
    ]


def test_R022_what_cannot_be_read_is_kept():
    """Never a silent drop: a failure with the text as the model wrote it."""
    raw = "<|tool_call>call:plot-mesh{code:<tool_call|>"
    (failed,) = parts(raw, "gemma4")

    assert failed.raw == raw


def test_R023_an_invented_namespace_and_single_quotes():
    """The one offered name it can mean, and the value without its quotes."""
    pieces, told = read(R023, "gemma4")

    assert pieces == [("read_note", {"path": "a, b.txt"})]
    assert "name" in told


def test_R023_a_name_that_two_tools_could_mean_is_none():
    """Nothing is guessed."""
    tools = (Tool("a.read_note", "", PATH), replace(TOOLS[0], name="b.read_note"))
    (piece,) = Reader(Gemma4(str), tools).feed(R023)

    assert isinstance(piece, Failed)


def test_fences_that_look_like_tools_are_reported():
    """Written although tools are in force: the tags, how often each; others not."""
    text = "```bash\nls\n```\n```Write a.txt\nx\n```\n```json\n1\n```\n```bash\n"

    assert read(text)[1] == "fenced: bash x2, write"


def test_a_tally_is_told_in_one_short_line():
    """ASCII, no separators from outside, at most 200 characters; empty if nothing."""
    tally = Tally()
    assert tally.told() == ""

    tally.repaired.update(["type", "type", "n\u00e4me\r\n;"])
    tally.fenced.update({f"{'x' * 40}{n}": 1 for n in range(50)})
    told = tally.told()

    assert told.startswith("repaired: n?me???, type x2; fenced: ")
    assert told.isascii() and told.isprintable() and len(told) <= 200


HOSTILE = (
    "```", "<", "{", "[", "`", "~", "\n", " ", '"', "> ", "<tool_call>", "<tool_call>{",
    "```\n", "```json\n{", "[TOOL_CALLS]", "<function=list>", "call:list{",
    "list[ARGS]",
    '<tool_call>{"a": "', '{"name": "', "```tool_call\n{", "<|tool_call>call:list{",
)  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "kind"),
    [*((unit, "hermes") for unit in HOSTILE), ("```tool_call\n{", "generic")],
)
def test_hostile_text_takes_no_more_than_its_length(unit, kind):
    """200 kB of what may open a call, in tokens' pieces: linear, so seconds at most."""
    text = (unit * 200_000)[:200_000]
    begun = time.process_time()
    pieces = parts(text, kind, sizes=[5] * 40_000)

    assert time.process_time() - begun < 10
    assert "".join(p if isinstance(p, str) else p.raw for p in pieces) == text


def test_a_long_call_is_read_in_time():
    """A file of 200 kB as an argument, written token by token."""
    path = "x<{`}>" * 33_000
    call = {"name": "read_note", "arguments": {"path": path}}
    text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    begun = time.process_time()

    assert parts(text, sizes=[4] * 50_000) == [("read_note", {"path": path})]
    assert time.process_time() - begun < 10
