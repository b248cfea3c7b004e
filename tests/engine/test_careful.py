"""Calls that can't be used, and calls in text: asked for once more, or text."""

import threading
from contextlib import suppress

import pytest

from ofa.chat import (
    Call,
    Chat,
    End,
    Message,
    Sampling,
    Text,
    Thought,
    Tool,
    ToolChoice,
    Usage,
    gather,
    gather_choices,
)
from ofa.engine.careful import Careful
from ofa.engine.queue import Queued
from ofa.engine.scripted import ScriptedEngine
from ofa.engine.text_calls import TextCalls, offered
from ofa.errors import Cancelled, ContextLengthExceeded, EngineError
from ofa.toolcalls.hermes import Hermes
from ofa.toolcalls.reader import Reader
from ofa.toolcalls.tally import Tally

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
}
CHAT = Chat(
    "ofa-hpc",
    (Message("user", "Read a.txt"),),
    tools=(Tool("read_note", "Read", SCHEMA), Tool("list", "List", {})),
)
GOOD = '<tool_call>{"name": "read_note", "arguments": {"path": "a"}}</tool_call>'
WRONG = '<tool_call>{"name": "delete", "arguments": {}}</tool_call>'
UNFIT = '<tool_call>{"name": "read_note", "arguments": {"lines": []}}</tool_call>'


class Asking:
    """An engine that reads calls from a scripted one's text."""

    def __init__(self, *answers, chat=CHAT) -> None:
        self.engine = ScriptedEngine(answers)
        self.tally = Tally()
        self.reply = Careful(chat, self.ask, self.tally)

    def ask(self, chat):
        """Return one answer, its calls read."""

        def reader() -> Reader:
            parallel = chat.parallel_calls
            return Reader(
                Hermes(str), offered(chat), parallel=parallel, tally=self.tally
            )

        return TextCalls(self.engine.reply(chat), reader)

    @property
    def asked(self):
        """The chats that the engine was given."""
        return list(self.engine.asked)


def made(answer):
    """Return an answer's calls without their ids."""
    return [(call.name, call.arguments) for call in answer.calls]


def test_a_good_answer_is_not_asked_for_twice():
    """Text, then a call: as they are."""
    asking = Asking([{"thought": "hm"}, {"text": f"See. {GOOD}"}])
    answer = gather(asking.reply)

    assert answer.parts[:2] == (Thought("hm"), Text("See."))
    assert made(answer) == [("read_note", {"path": "a"})]
    assert answer.end.reason == "tools"
    assert len(asking.asked) == 1 and "x-ofa-tools" not in asking.reply.told


def test_a_failed_call_is_asked_for_once_more():
    """The model sees what it wrote and what is wrong; the client sees one answer."""
    asking = Asking(f"I will.\n{WRONG} So.", f"Here. {GOOD}")
    answer = gather(asking.reply)

    assert answer.text == "I will.\n\n\nHere."
    assert made(answer) == [("read_note", {"path": "a"})]
    assert answer.end.reason == "tools"
    first, second = asking.asked
    assert second.messages[:1] == first.messages
    assert second.messages[1] == Message("assistant", f"I will.\n{WRONG} So.")
    assert second.messages[2].role == "user"
    assert "'delete'" in second.messages[2].text
    assert "list, read_note" in second.messages[2].text
    assert asking.reply.told["x-ofa-tools"] == "failed: call; asked again: once"


def test_what_is_wrong_with_arguments_is_said():
    """By the name of the tool and of each argument."""
    asking = Asking(UNFIT, GOOD)
    answer = gather(asking.reply)

    said = asking.asked[1].messages[-1].text
    assert "read_note" in said and "path" in said and "lines" in said
    assert answer.text == "" and len(answer.calls) == 1


def test_usage_is_all_the_work():
    """Both prompts and both answers: nothing is hidden."""
    asking = Asking(WRONG, GOOD)
    usage = gather(asking.reply).end.usage

    prompts = [sum(len(m.text.split()) for m in c.messages) for c in asking.asked]
    assert usage == Usage(sum(prompts), len(WRONG.split()) + len(GOOD.split()))


def test_a_second_failure_is_text():
    """R022: the raw text, "stop", never an error and never a silent drop."""
    asking = Asking(WRONG, f"Now. {UNFIT} Done.")
    answer = gather(asking.reply)

    assert answer.text == f"Now. {UNFIT} Done."
    assert answer.calls == () and answer.end.reason == "stop"
    assert len(asking.asked) == 2


@pytest.mark.parametrize(
    ("said", "text"), [(GOOD + WRONG, WRONG), (WRONG + GOOD, WRONG)]
)
def test_good_calls_stand_beside_a_failed_one(said, text):
    """Nothing is asked again; the failed one is text in its place."""
    asking = Asking(f"See. {said}")
    answer = gather(asking.reply)

    assert answer.text.replace(" ", "") == f"See.{text}".replace(" ", "")
    assert len(answer.calls) == 1 and answer.end.reason == "tools"
    assert len(asking.asked) == 1


@pytest.mark.parametrize(
    "choice", [ToolChoice("required"), ToolChoice("named", "list")]
)
def test_a_demanded_call_that_does_not_come_is_asked_for(choice):
    """Prose is no answer then: once more, with the tool's name where it is named."""
    chat = Chat(CHAT.model, CHAT.messages, tools=CHAT.tools, tool_choice=choice)
    call = '<tool_call>{"name": "list", "arguments": {}}</tool_call>'
    asking = Asking("I could list.", call, chat=chat)
    answer = gather(asking.reply)

    assert made(answer) == [("list", {})]
    assert answer.text == "I could list."
    assert "list" in asking.asked[1].messages[-1].text
    assert asking.asked[1].tool_choice == choice


def test_a_call_to_another_tool_than_the_named_one_fails():
    """What the client named is all that may be called."""
    named = ToolChoice("named", "list")
    chat = Chat(CHAT.model, CHAT.messages, tools=CHAT.tools, tool_choice=named)
    asking = Asking(GOOD, GOOD, chat=chat)
    answer = gather(asking.reply)

    assert answer.calls == () and answer.text == GOOD


def test_cut_by_the_limit_there_is_no_second_try():
    """ "length", and nothing of the call."""
    asking = Asking([{"text": f"See.\n{GOOD[:50]}"}, {"end": "length"}])
    answer = gather(asking.reply)

    assert (answer.text, answer.calls) == ("See.", ())
    assert answer.end.reason == "length"
    assert len(asking.asked) == 1
    assert asking.reply.told["x-ofa-tools"] == "dropped: cut"


def test_the_second_try_has_what_is_left_of_the_limit():
    """Both answers together are no longer than the client allows."""
    limited = Chat(CHAT.model, CHAT.messages, Sampling(max_tokens=40), tools=CHAT.tools)
    asking = Asking(f"one two three {WRONG}", GOOD, chat=limited)
    gather(asking.reply)

    spent = len(f"one two three {WRONG}".split())
    assert asking.asked[1].sampling.max_tokens == 40 - spent


def test_without_room_for_a_call_there_is_no_second_try():
    """A handful of tokens would be cut again."""
    limited = Chat(CHAT.model, CHAT.messages, Sampling(max_tokens=18), tools=CHAT.tools)
    asking = Asking(WRONG, GOOD, chat=limited)

    assert gather(asking.reply).text == WRONG and len(asking.asked) == 1


def test_several_choices_are_not_asked_again():
    """Each failure is text in its own answer."""
    chat = Chat(CHAT.model, CHAT.messages, tools=CHAT.tools, choices=2)
    asking = Asking(WRONG, GOOD, chat=chat)
    bad, good = gather_choices(asking.reply)

    assert (bad.text, bad.end.reason) == (WRONG, "stop")
    assert (len(good.calls), good.end.reason) == (1, "tools")
    assert len(asking.asked) == 1


def test_log_probabilities_stay_with_their_text():
    """Those of the call go with it."""
    chat = Chat(CHAT.model, CHAT.messages, tools=CHAT.tools, logprobs=0)
    asking = Asking([{"text": "Let me see. "}, {"text": GOOD}], chat=chat)
    answer = gather(asking.reply)

    assert "".join(one.token for one in answer.logprobs) == "Let me see."


def test_calls_that_the_engine_reads_itself_are_settled():
    """A name mended, its id kept; one that is not offered fails and is asked again."""
    asking = Asking([{"call": {"name": "READ-NOTE", "arguments": {"path": "a"}}}])
    answer = gather(asking.reply)
    assert made(answer) == [("read_note", {"path": "a"})]
    assert answer.calls[0].id == f"call_{1:024x}"
    assert asking.reply.told["x-ofa-tools"] == "repaired: name"

    asking = Asking([{"call": {"name": "delete", "arguments": {"a": 1}}}], "No then.")
    answer = gather(asking.reply)
    assert (answer.text, answer.calls) == ("No then.", ())
    assert '"delete"' in asking.asked[1].messages[1].text


def test_one_call_where_no_more_are_wanted():
    """Also of those that the engine reads itself."""
    chat = Chat(CHAT.model, CHAT.messages, tools=CHAT.tools, parallel_calls=False)
    call = {"call": {"name": "list", "arguments": {}}}
    asking = Asking([call, call], chat=chat)

    assert len(gather(asking.reply).calls) == 1
    assert asking.reply.told["x-ofa-tools"] == "dropped: extra"


def test_a_refused_second_try_leaves_the_first():
    """The prompt has grown too long for it: what there is must do."""
    asking = Asking(f"See. {WRONG}")

    def full(chat):
        if len(chat.messages) > 1:
            raise ContextLengthExceeded("no room")
        return asking.ask(chat)

    answer = gather(Careful(CHAT, full, asking.tally))

    assert answer.text == f"See. {WRONG}" and answer.end.reason == "stop"


def test_a_second_try_that_fails_at_once_leaves_the_first():
    """An upstream refuses only when it is asked."""
    answer = gather(Asking(f"See. {WRONG}", [{"fail": "no"}]).reply)

    assert answer.text == f"See. {WRONG}" and answer.end.reason == "stop"


def test_a_second_try_that_breaks_off_is_an_error():
    """Half an answer is never passed off as a whole one."""
    asking = Asking(WRONG, [{"text": "Half"}, {"fail": "broken"}])

    with pytest.raises(EngineError, match="broken"):
        gather(asking.reply)


def test_a_refusal_of_the_first_is_raised_at_once():
    """On the caller's thread, while a status can be sent."""

    def full(chat):
        raise ContextLengthExceeded("no room")

    with pytest.raises(ContextLengthExceeded):
        Careful(CHAT, full)


@pytest.mark.parametrize("waiting", [0, 1])
def test_closing_ends_either_reply(waiting):
    """From another thread, while it waits: the reader comes back, nothing is asked."""
    slow = [{"text": "Slow"}, {"wait_s": 30}, {"text": "ly"}]
    asking = Asking(*([slow] if not waiting else [WRONG, slow]))
    seen = threading.Event()
    got = []

    def read() -> None:
        with suppress(Cancelled):
            for event in asking.reply:
                got.append(event)
                seen.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert seen.wait(10)
    asking.reply.close()
    asking.reply.close()
    reader.join(10)

    assert not reader.is_alive()
    assert Text("ly") not in got
    assert len(asking.asked) == 1 + waiting


def test_closed_between_the_two_nothing_more_is_asked():
    """Whoever leaves after the first answer's end starts no second one."""
    asking = Asking("unused", WRONG, GOOD)
    replies = []

    def ask(chat):
        replies.append(chat)
        careful.close() if len(replies) > 1 else None
        return asking.ask(chat)

    careful = Careful(CHAT, ask)
    with pytest.raises(Cancelled):
        list(careful)

    careful = Careful(CHAT, asking.ask)
    careful.close()
    with suppress(Cancelled):
        assert not [e for e in careful if isinstance(e, Call | End)]
    assert asking.engine.closed_replies >= 2


def test_both_tries_have_the_one_place_in_the_queue():
    """Asked again within the same place: a full queue is no reason to fail."""

    class Engine(ScriptedEngine):
        def reply(self, chat):
            asking.engine = self
            return Careful(chat, self._read, asking.tally)

        def _read(self, chat):
            plain = ScriptedEngine.reply(self, chat)
            return TextCalls(plain, lambda: Reader(Hermes(str), chat.tools))

    asking = Asking("unused")
    queued = Queued(Engine([WRONG, GOOD]), running=1, waiting=0)
    try:
        answer = gather(queued.reply(CHAT))
    finally:
        queued.close()

    assert len(answer.calls) == 1 and len(asking.asked) == 2
