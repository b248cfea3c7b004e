"""The list of files behind an answer: its form, where it stands, and that it goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ofa.chat import (
    Call,
    Chat,
    End,
    Message,
    Output,
    Sampling,
    Text,
    Thought,
    ToolCall,
    Usage,
    Waiting,
    gather,
    gather_choices,
)
from ofa.rag.cite import (
    Cited,
    footer,
    takes_footer,
    without_footer,
    without_footers,
)
from ofa.rag.fence import block
from ofa.rag.passage import Passage

LIST = "\n\nSources looked up: [1] `hpc/a.md`"
CALL = Call(ToolCall("c", "look", {}))


def passage(path, *, collection="hpc", private=False):
    """Return a passage of a file."""
    return Passage(collection, path, "", "Part", "text", private=private)


class Events:
    """A reply that plays events."""

    patient, told = True, {"x-ofa-cache": "miss"}

    def __init__(self, *events):
        self.events, self.closed = events, 0

    def __iter__(self):
        return iter(self.events)

    def close(self):
        """Count the call."""
        self.closed += 1


def cited(*events):
    """Return the events of a cited reply that plays *events*."""
    return list(Cited(Events(*events), LIST))


def test_each_file_stands_once_with_the_numbers_it_has_in_the_fence():
    """Whoever sees [3] in an answer finds it in the list, private files too."""
    passages = [passage("b.md"), passage("me.md", collection="own", private=True)]
    passages += [passage("a.md"), passage("b.md")]

    told = footer(passages)

    shown = block(passages, "HPC", "Notes:", tag="t")
    assert told == (
        "\n\nSources looked up: [1][3] `hpc/b.md`; [2] `hpc/a.md`; [4] `own/me.md`"
    )
    for line in ("[1] hpc/b.md >", "[2] hpc/a.md >", "[3] hpc/b.md >", "[4] own/me.md"):
        assert line in shown


def test_no_passages_have_no_list():
    """There is nothing to name."""
    assert footer([]) == ""


@pytest.mark.parametrize(
    "path",
    [
        "[click](http://bad.example)",
        "![x](http://bad.example/?q=).md",
        "a`b`.md",
        "two\nlines\n\nSources looked up: [1] `x`.md",
        "x; [2] `y`.md",
        "<|turn>user.md",
        "\udce9t\udce9.md",
        "p" * 5000,
    ],
    ids=repr,
)
def test_whatever_a_file_is_called_its_name_is_code_and_is_taken_off_again(path):
    """No name of a document becomes a link, an image, a line or a list of its own."""
    told = footer([passage(path), passage("z.md")])

    line = told.removeprefix("\n\n")
    assert "\n" not in line and len(line) < 1000
    assert line.count("`") == 4
    assert "`" not in line.split("`")[1]
    assert without_footer(f"An answer.\n{told}") == "An answer.\n"


def test_it_is_taken_off_byte_for_byte():
    """What the engine wrote is what stays, white space included."""
    for answer in ("Yes.", "Yes.\n", "Yes.\n\n", "  Yes. \n\n\n", "a" + LIST + " b"):
        assert without_footer(answer + LIST) == answer
        assert without_footer(answer + LIST + "\n") == answer, "a client's end of line"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sources looked up: [1] `a`",
        "Yes.\n\nSources: [1] `hpc/a.md`",
        "Yes.\n\nSources looked up: hpc/a.md",
        "Yes.\n\nSources looked up: [1] hpc/a.md",
        "Yes.\n\nSources looked up: none",
        f"Yes.{LIST}\n\nAnd more.",
        f"Yes.{LIST}, and more",
    ],
    ids=repr,
)
def test_no_other_text_is_taken_off(text):
    """Only the very form that we write, and only as the end."""
    assert without_footer(text) == text


def test_only_answers_lose_it():
    """What a user pastes and what a tool returned stays as it is."""
    said = [Message(role, f"x{LIST}") for role in ("user", "assistant", "tool")]

    kept = without_footers(Chat("ofa-hpc", tuple(said)))

    assert [m.text for m in kept.messages] == [f"x{LIST}", "x", f"x{LIST}"]


def test_a_whole_answer_ends_with_it():
    """It comes as text of the answer, before the end; the counts stay the engine's."""
    usage = Usage(10, 2)
    events = cited(Text("Y"), Waiting(), Text("es."), End("stop", usage))

    assert events[-2:] == [Text(LIST), End("stop", usage)]
    assert gather(events).text == f"Yes.{LIST}"


@pytest.mark.parametrize(
    "events",
    [
        (Text("Yes"), End("length")),
        (Text("I look."), CALL, End("tools")),
        (CALL, End("tools")),
        (Thought("hm"), End("stop")),
        (Text(" \n"), End("stop")),
        (End("stop"),),
        (Text("See:\n```bash\nls"), End("stop")),
        (Text("~~~~\n~~~\nx"), End("stop")),
    ],
    ids=repr,
)
def test_others_do_not(events):
    """Cut ones, calls, empty ones, and those whose end is within code."""
    assert cited(*events) == list(events)


def test_closed_code_is_no_hindrance():
    """Most answers have a block of commands in them."""
    events = cited(Text("```\nls\n```\n"), Text("~~~\n```\n~~~"), End("stop"))

    assert Text(LIST) in events


def test_each_choice_has_its_own():
    """Those that end by themselves, wherever the others are."""
    events = (
        Text("a", 0),
        Text("b", 1),
        End("stop", None, 1, last=False),
        Text("c", 2),
        End("length", None, 2, last=False),
        End("stop", Usage(1, 3), 0),
    )

    answers = gather_choices(Cited(Events(*events), LIST))

    assert [answer.text for answer in answers] == [f"a{LIST}", f"b{LIST}", "c"]


def test_the_reply_behind_it_is_told_and_closed():
    """It is the same reply but for its end."""
    inner = Events()
    reply = Cited(inner, LIST)

    reply.close()

    assert (reply.told, reply.patient, inner.closed) == (inner.told, True, 1)


def test_answers_that_programs_read_take_none():
    """JSON, log probabilities, and text that stop strings cut to measure."""
    chat = Chat("ofa-hpc", ())

    assert takes_footer(chat)
    assert not takes_footer(replace(chat, output=Output()))
    assert not takes_footer(replace(chat, logprobs=0))
    assert not takes_footer(replace(chat, sampling=Sampling(stop=("END",))))
