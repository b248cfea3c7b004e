"""The question alone, whatever is wrapped around it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.chat import Chat, Image, Message
from ofa.rag.question import (
    HEAD_CHARS,
    TAIL_CHARS,
    asked,
    is_side_request,
    leans_on_previous,
    own_words,
    trimmed,
    wants_retrieval,
)

from .wrapped import (
    ATTACHED,
    ENVIRONMENT,
    OPENAI,
    OPENCODE,
    REMINDER,
    TOOLS,
    VSCODE,
    called,
    chat,
    said,
    user,
    vscode,
    vscode_turn,
)

ASK = "How do I request two GPUs?"


@pytest.mark.parametrize(
    "text",
    [
        ASK,
        f"  {ASK}\n",
        vscode_turn(ASK),
        vscode_turn(
            ASK, reminder="<reminderInstructions>\n\n</reminderInstructions>\n"
        ),
        vscode_turn(ASK, ATTACHED),
        f"<prompt>\n{ASK}\n</prompt>",
        f"<task>\n{ASK}\n</task>\n<environment_details>\nfoo.py\n</environment_details>",
        f"<current_datetime>today</current_datetime>\n\n{ASK}",
        f"<system-reminder>\n<file>x</file>\n</system-reminder>\n{ASK}",
        f"<user_info>\nOS\n</user_info>\n<user_query>\n{ASK}\n</user_query>",
        f"{ASK}\n<environment_details>\n# VSCode Open Tabs\n</environment_details>",
        f"<attached_files>\n<file path='a'>b</file>\n</attached_files>\n{ASK}",
    ],
)
def test_the_question_is_found_in_each_wrapping(text):
    """What an editor adds is dropped, in each of the shapes that clients send."""
    assert own_words(text) == ASK


def test_a_whole_vscode_chat_asks_its_last_question():
    """Environment, attachments and tool rounds are no questions."""
    first = vscode(ASK, attachments=ATTACHED)
    later = vscode(ASK, *called(), said("Done."), user(vscode_turn("And for an hour?")))

    assert asked(first).text == ASK and asked(first).place == 2
    assert asked(later).text == "And for an hour?" and asked(later).place == 6
    assert asked(later).previous == ASK


def test_an_image_makes_three_messages_and_one_turn():
    """Its brackets stand in messages of their own; the marked one is the question."""
    closing = f"\n</attachments>\n{vscode_turn(ASK)}"
    picture = Message("user", images=(Image("data:image/png;base64,AA"),))

    found = asked(
        chat(user(ENVIRONMENT), user("<attachments>"), picture, user(closing))
    )

    assert (found.text, found.place) == (ASK, 4)


def test_the_question_may_come_before_its_context():
    """Two messages in any order: the one with words of the user's own is the one."""
    found = asked(chat(user(ASK), user("<context>\ndecoy\n</context>")))

    assert (found.text, found.place) == (ASK, 1)


def test_system_messages_between_do_not_split_a_turn():
    """Claude Code puts one after the first user message."""
    found = asked(chat(user(ASK), Message("system", "reminder")))

    assert found.text == ASK


@pytest.mark.parametrize(
    "last",
    [
        Message("tool", "result", answers="call_1"),
        said("prefilled answer"),
        user(""),
        user("<context>\nonly context\n</context>"),
        user("\n\n  "),
        user("<userRequest>\n\n</userRequest>"),
    ],
)
def test_no_question_of_the_users_no_retrieval(last):
    """A tool round, a prefill and an empty message ask nothing."""
    history = chat(user(ASK), *called(), last)

    assert asked(history) is None
    assert not wants_retrieval(history)


def test_an_empty_chat_asks_nothing():
    """No message at all is no error."""
    assert asked(Chat("m", ())) is None


def test_retrieval_is_wanted_for_questions_not_for_courtesies():
    """A greeting has no subject, wrapped or not."""
    assert wants_retrieval(vscode(ASK))
    assert not wants_retrieval(vscode("Thanks!"))
    assert not wants_retrieval(vscode("go on"))


def test_a_previous_courtesy_is_skipped():
    """The subject is in the last question that has one."""
    history = chat(
        user(ASK), said("So."), user("thanks!"), said("..."), user("and CPUs?")
    )

    assert asked(history).previous == ASK


def test_a_long_question_stands_for_itself():
    """What names its own subject isn't mixed with the one before."""
    alone = (
        "Which sbatch options set the wall time and the partition for a job array run?"
    )

    assert not leans_on_previous(alone)
    assert asked(chat(user(ASK), said("So."), user(alone))).previous == ""
    assert leans_on_previous(alone.replace("a job array run", "this and for that one"))


def test_pasted_code_leaves_only_its_words():
    """A program says little about a question, its names say something."""
    text = f"Why does this fail?\n```python\nimport numpy as np\nx = f(3)\n```\n{ASK}"

    assert own_words(text) == f"Why does this fail? import numpy as np {ASK}".replace(
        " as np", ""
    )


def test_the_users_own_markup_stays():
    """A tag that never closes is the user's own word, and so are ordinary ones."""
    assert (
        own_words("what is <b>bold</b> & <vector>?")
        == "what is <b>bold</b> & <vector>?"
    )
    assert own_words("explain <context> in React to me") == "explain in React to me"


def test_the_last_request_counts():
    """A file that holds a request of its own stands before the user's."""
    assert own_words(vscode_turn(ASK, ATTACHED)) == ASK
    assert (
        own_words(f"<userRequest>a</userRequest> <userRequest>{ASK}</userRequest>")
        == ASK
    )


@pytest.mark.parametrize(
    "paste",
    [
        "word " * 200_000,
        "x" * 1_000_000,
        "<" * 1_000_000,
        "<context>" * 110_000,
        "<context " * 110_000,
        "</context>" * 100_000,
        "<userRequest>" * 70_000,
        "</userRequest>" * 70_000,
        "```" * 330_000,
        "<reminderInstructions>" * 45_000,
        "<file>a</file>" * 70_000,
        "\n" * 1_000_000,
    ],
    ids=lambda text: text[:16].strip(),
)
def test_R012_a_megabyte_is_cut_in_linear_time(paste):
    """The end of a huge paste is still seen, in a fraction of the time allowed."""
    started = time.thread_time()

    found = own_words(f"{paste} {ASK}")
    trimmed(paste)

    assert time.thread_time() - started < 0.25  # seen: 5 to 35 ms
    assert len(found) <= HEAD_CHARS + TAIL_CHARS + 1
    assert found.endswith(ASK)


@given(st.text(st.sampled_from("<>/ `a\ncontextfileuserRequest"), max_size=400))
def test_any_text_gives_a_bounded_line(text):
    """No input raises, none gives more than a line."""
    found = own_words(text)

    assert "\n" not in found and len(found) <= HEAD_CHARS + TAIL_CHARS + 1


def test_reminders_are_cut_out_and_nothing_else():
    """Without tools, what tells the model to use them goes; every other byte stays."""
    text = vscode_turn(ASK, ATTACHED)

    assert trimmed(text) == text.replace(REMINDER, "")
    assert trimmed(trimmed(text)) == trimmed(text)
    assert trimmed(f"a{REMINDER}b{REMINDER}c") == "abc"
    assert trimmed("an open <reminderInstructions> tag") == (
        "an open <reminderInstructions> tag"
    )


SUMMARISE = user("Summarise the conversation so far in detail.")


@pytest.mark.parametrize(
    ("request_", "agent", "side"),
    [
        (chat(user("Write a title for: hello")), VSCODE, True),
        (chat(user("Make a title"), user("hello")), OPENCODE, True),
        (vscode(ASK), VSCODE, False),
        (vscode(ASK, *called()), VSCODE, False),
        (vscode(ASK, said("So."), SUMMARISE), VSCODE, True),
        (vscode(ASK, *called(), SUMMARISE), VSCODE, True),
        (vscode(ASK, said("So."), SUMMARISE), OPENAI, False),
        (chat(user("<prompt>\nfix\n</prompt>"), tools=TOOLS), VSCODE, False),
        (chat(user(ASK), tools=TOOLS), OPENCODE, False),
        (chat(user(ASK), said("So."), user("and?"), tools=TOOLS), OPENCODE, False),
        (chat(user(ASK)), OPENAI, False),
        (chat(user(ASK)), "", False),
        (chat(user(ASK)), "curl/8.5.0", False),
        (chat(user(ASK)), "python GitHubCopilotChat/0.67.0", False),
        (Chat("m", ()), VSCODE, True),
        (Chat("m", (), tools=TOOLS), VSCODE, False),
    ],
)
def test_side_requests_are_told_by_their_shape(request_, agent, side):
    """No tools from an editor that always offers some, or an unmarked last message."""
    assert is_side_request(request_, agent) is side
