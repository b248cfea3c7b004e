"""The Answerer: what of a client's chat reaches the engine, and what is told back."""

from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest

from ofa.answer import Answerer, AnswerSettings, Caller, tools_off_reason
from ofa.chat import (
    Chat,
    Image,
    Message,
    Output,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    Waiting,
    gather,
)
from ofa.engine.base import Limits
from ofa.engine.queue import Queued
from ofa.engine.scripted import ScriptedEngine
from ofa.errors import (
    BadRequest,
    Cancelled,
    ContextLengthExceeded,
    Overloaded,
    UnknownModel,
)
from ofa.modes import SEED_MODES, Mode, Modes
from ofa.prompts import Prompts
from ofa.rag.lookup import Budget, Looked, Lookup
from ofa.rag.memory import Memory
from ofa.rag.passage import Hit, Passage
from ofa.rag.retrieve import Found

READ = Tool("read_file", "Read a file", {"type": "object", "properties": {}})
VSCODE = Caller("key1", "GitHubCopilotChat/0.67.0")
SCRIPT = Caller("key1", "OpenAI/Python 3.57.0")
LIMITS = Limits(context_tokens=131072, output_tokens=8192, tools=True)


class FixedLookup:
    """Retrieval that puts the same words before the newest user message."""

    def __init__(self, block: str = "PASSAGE ", footer: str = "") -> None:
        self.block, self.footer = block, footer
        self.asked: list[tuple[Chat, str, int]] = []

    def augment(self, chat, mode, key_id, room_tokens):
        """Prefix the last message with the block; then leave it out."""
        self.asked.append((chat, mode.name, room_tokens))
        last = chat.messages[-1]
        told = replace(last, text=self.block + last.text)
        prefixed = replace(chat, messages=(*chat.messages[:-1], told))
        yield Looked(prefixed, "hit; n=1", self.footer)
        yield Looked(chat, "none; the context is full")


class Small(ScriptedEngine):
    """An engine that holds at most ten words."""

    def reply(self, chat):
        """Refuse what is longer, as the real ones do."""
        words = sum(len(m.text.split()) for m in chat.messages)
        if words > 10:
            raise ContextLengthExceeded(f"{words} tokens, 10 fit", param="messages")
        return super().reply(chat)


class Refusing:
    """A reply that is refused only when it is read, as by another server."""

    patient, told = True, {}

    def __init__(self, error):
        self._error = error

    def __iter__(self):
        yield Waiting()
        raise self._error

    def close(self):
        """Do nothing."""


def late(kind):
    """Return *kind* of an engine, refusing when its reply is read."""

    class Late(kind):
        def reply(self, chat):
            try:
                return super().reply(chat)
            except ContextLengthExceeded as error:
                return Refusing(error)

    return Late


@pytest.fixture
def prompts(tmp_path):
    """Return prompts of one short line a part."""
    for mode in SEED_MODES:
        (tmp_path / mode.prompt).write_text(f"MODE {mode.name}")
    (tmp_path / "common.txt").write_text("COMMON")
    (tmp_path / "openai_tools.txt").write_text("TOOLS")
    return Prompts(tmp_path, {})


def ask(prompts, chat, caller=SCRIPT, *, engine=None, lookup=None, **settings):
    """Answer *chat*; return the answer, the headers and the chat the engine saw."""
    engine = engine or ScriptedEngine(["fine"], limits=LIMITS)
    with closing(Queued(engine)) as queue:
        answerer = Answerer(
            queue,
            Modes(),
            prompts,
            lookup=lookup,
            settings=AnswerSettings(**settings),
        )
        answered = answerer.reply(chat, caller)
        return gather(answered.reply), answered.headers, engine.asked[-1]


def said(*messages, **more):
    """Return a chat of the hpc mode with *messages* given as (role, text)."""
    return Chat("ofa-hpc", tuple(Message(r, t) for r, t in messages), **more)


def system(chat):
    """Return the chat's system texts."""
    return [m.text for m in chat.messages if m.role == "system"]


@pytest.mark.parametrize("mode", SEED_MODES, ids=lambda mode: mode.name)
def test_each_id_gets_its_own_prompt_and_collections(prompts, mode):
    """The model id alone picks the domain."""
    lookup = FixedLookup()
    chat = replace(said(("user", "q")), model=mode.id)

    _, headers, seen = ask(prompts, chat, lookup=lookup)

    assert system(seen) == [f"MODE {mode.name}\n\nCOMMON"]
    assert lookup.asked[0][1] == mode.name
    assert seen.messages[-1].text == "PASSAGE q"
    assert headers["x-ofa-rag"] == "hit; n=1"


def test_unknown_model_is_refused_with_those_on_offer(prompts):
    """The message lists what can be asked for."""
    with pytest.raises(UnknownModel, match="ofa-reframe") as caught:
        ask(prompts, replace(said(("user", "q")), model="gpt-4"))

    assert caught.value.param == "model"


def test_a_full_queue_refuses_before_any_other_work(prompts):
    """Nothing is looked up or counted for a request without a place."""
    lookup = FixedLookup()
    with closing(Queued(ScriptedEngine(), running=1, waiting=0)) as queue:
        answerer = Answerer(queue, Modes(), prompts, lookup=lookup)
        answerer.reply(said(("user", "q")), SCRIPT)

        with pytest.raises(Overloaded):
            answerer.reply(said(("user", "q")), SCRIPT)

    assert len(lookup.asked) == 1


def test_client_system_goes_without_tools_and_stays_with_them(prompts):
    """An agent's rules live in its system text; a script's would fight ours."""
    chat = said(("system", "AGENT RULES"), ("user", "q"))

    _, _, plain = ask(prompts, chat)
    _, _, agent = ask(prompts, replace(chat, tools=(READ,)))

    assert system(plain) == ["MODE hpc\n\nCOMMON"]
    assert system(agent) == ["TOOLS\n\nMODE hpc\n\nCOMMON\n\nAGENT RULES"]


def test_client_system_stays_where_json_is_wanted(prompts):
    """What a program says of the fields it wants stands there."""
    chat = said(("system", "FIELDS"), ("user", "q"), output=Output())

    _, _, seen = ask(prompts, chat, engine=ScriptedEngine(["{}"]))

    assert system(seen) == ["MODE hpc\n\nCOMMON\n\nFIELDS"]


@pytest.mark.parametrize(
    ("how", "kept"), [("replace", False), ("append", True)], ids=str
)
def test_a_site_can_decide_on_client_system_text(prompts, how, kept):
    """`replace` always drops it, `append` always keeps it."""
    chat = said(("system", "A"), ("user", "q"), ("system", "B"), tools=(READ,))

    _, _, with_tools = ask(prompts, chat, client_system=how)
    _, _, without = ask(prompts, replace(chat, tools=()), client_system=how)

    assert ("A\n\nB" in system(with_tools)[0]) is kept
    assert ("A\n\nB" in system(without)[0]) is kept
    assert len(system(without)) == 1


def test_side_request_of_an_editor_is_left_alone(prompts):
    """A title gets no mode prompt, no passages, its own system text, less priority."""
    lookup = FixedLookup()
    chat = said(("system", "Write a title"), ("user", "q"))

    _, headers, seen = ask(prompts, chat, VSCODE, lookup=lookup)

    assert system(seen) == ["Write a title"]
    assert seen.priority == 1
    assert lookup.asked == []
    assert headers["x-ofa-rag"].startswith("skipped")


def test_compaction_is_a_side_request_and_needs_no_tools(prompts):
    """VS Code's summary comes with all tools and wants no call."""
    chat = said(
        ("system", "Summarise"),
        ("user", "<userRequest>\nhow do I submit?\n</userRequest>"),
        ("assistant", "With sbatch."),
        ("user", "Summarise the conversation so far."),
        tools=(READ,),
    )

    _, _, seen = ask(prompts, chat, VSCODE)

    assert system(seen) == ["Summarise"]
    assert seen.tools == () and seen.priority == 1


def test_tools_an_engine_cannot_call_are_dropped_and_said(prompts):
    """R029: an agent can still chat; the header says why its tools did nothing."""
    engine = ScriptedEngine(limits=replace(LIMITS, tools=False))
    chat = said(("system", "RULES"), ("user", "hello"), tools=(READ,))

    answer, headers, seen = ask(prompts, chat, VSCODE, engine=engine)

    assert answer.text == "ok"
    assert seen.tools == ()
    assert system(seen) == ["MODE hpc\n\nCOMMON"]
    assert headers["x-ofa-tools"].startswith("ignored; ")


def test_reminders_to_use_tools_go_with_the_tools(prompts):
    """What tells the model to use tools is dropped where it has none."""
    engine = ScriptedEngine(limits=replace(LIMITS, tools=False))
    text = (
        "<reminderInstructions>\nuse tools\n</reminderInstructions>\n"
        "<userRequest>\nq\n</userRequest>"
    )

    _, _, seen = ask(prompts, said(("user", text), tools=(READ,)), engine=engine)

    assert seen.messages[-1].text == "<userRequest>\nq\n</userRequest>"


@pytest.mark.parametrize(
    "choice", [ToolChoice("required"), ToolChoice("named", "read_file")], ids=str
)
def test_demanding_a_call_where_there_are_no_tools_is_refused(prompts, choice):
    """R029: what can't be honoured is refused by name, not dropped."""
    engine = ScriptedEngine(limits=replace(LIMITS, tools=False))
    chat = said(("user", "q"), tools=(READ,), tool_choice=choice)

    with pytest.raises(BadRequest) as caught:
        ask(prompts, chat, engine=engine)

    assert (caught.value.param, caught.value.code) == (
        "tool_choice",
        "unsupported_value",
    )


def test_tool_choice_none_hides_the_tools(prompts):
    """The model doesn't see what it may not use."""
    chat = said(("user", "q"), tools=(READ,), tool_choice=ToolChoice("none"))

    _, headers, seen = ask(prompts, chat)

    assert seen.tools == ()
    assert headers["x-ofa-tools"].startswith("off")


@pytest.mark.parametrize(
    ("enabled", "limits", "off"),
    [
        ("auto", LIMITS, False),
        ("auto", replace(LIMITS, context_tokens=16384), True),
        ("auto", replace(LIMITS, prefill_per_s=130.0), True),
        ("auto", replace(LIMITS, prefill_per_s=2000.0), False),
        (True, replace(LIMITS, prefill_per_s=130.0), False),
        (True, replace(LIMITS, tools=False), True),
        (False, LIMITS, True),
    ],
    ids=str,
)
def test_auto_turns_tools_off_where_an_agent_would_wait_minutes(enabled, limits, off):
    """What VS Code's agent mode declares is measured against context and speed."""
    assert bool(tools_off_reason(enabled, limits, 12_100)) is off


def test_a_few_tools_are_in_force_on_a_slow_machine():
    """It is this request's declarations that are measured, nobody else's."""
    slow = replace(LIMITS, context_tokens=4096, prefill_per_s=45.0)

    assert tools_off_reason("auto", slow, 400) == ""


def test_a_strict_site_refuses_a_schema_that_cannot_be_told_exactly(prompts):
    """`[tools] schema = "strict"` names the tool and the place; others let it pass."""
    loose = replace(READ, parameters={"type": "object", "properties": {"x": True}})
    chat = said(("user", "q"), tools=(loose,))

    ask(prompts, chat)
    with pytest.raises(BadRequest, match="x") as refused:
        ask(prompts, chat, strict_tools=True)

    assert refused.value.code == "invalid_tool_schema"


def test_a_named_tool_is_called_once(prompts):
    """Who names a tool wants that call, as from OpenAI, not several of them."""
    chat = said(("user", "q"), tools=(READ,))
    choice = ToolChoice("named", READ.name)

    _, _, named = ask(prompts, replace(chat, tool_choice=choice))
    _, _, free = ask(prompts, chat)

    assert not named.parallel_calls and free.parallel_calls


def test_an_image_that_a_tool_returned_becomes_a_note(prompts):
    """An agent's picture must not end its turn where the model has no eyes."""
    image = Image("data:image/png;base64,AA", "messages[1].content[0].image_url")
    messages = (
        Message("user", "look"),
        Message("tool", "seen", answers="c1", images=(image,)),
    )

    _, _, seen = ask(prompts, Chat("ofa-hpc", messages, tools=(READ,)))

    assert seen.messages[-1].images == ()
    assert seen.messages[-1].text.startswith("seen\n[an image")
    assert seen.ignored == (image.param,)


def test_sampling_is_the_requests_then_the_modes(prompts):
    """What a request doesn't say, the mode does; no limit means the site's."""
    chat = said(("user", "q"), sampling=Sampling(temperature=0.0))

    _, _, seen = ask(prompts, chat, max_tokens=77)

    assert seen.sampling.temperature == 0.0
    assert seen.sampling.top_k == 64
    assert seen.sampling.max_tokens == 77


def test_R064_without_a_limit_an_answer_may_have_what_is_advertised(prompts):
    """A client that names no limit plans for the one that /v1/models tells."""
    _, _, seen = ask(prompts, said(("user", "q")))

    assert seen.sampling.max_tokens == LIMITS.output_tokens


@pytest.mark.parametrize("kind", [Small, late(Small)], ids=["asked", "read"])
def test_passages_never_make_a_chat_fail_that_fits_without(prompts, kind):
    """A full context costs the passages, not the answer."""
    engine = kind()
    with closing(Queued(engine, running=1, waiting=0)) as queue:
        answerer = Answerer(
            queue, Modes(), prompts, lookup=FixedLookup("word " * 50, "FOOTER")
        )
        answered = answerer.reply(said(("user", "q")), SCRIPT)
        answer = gather(answered.reply)

        assert answer.text == "ok"
        assert engine.asked[-1].messages[-1].text == "q"
        assert answered.reply.told["x-ofa-rag"] == "none; the context is full"
        assert queue.depth() == (0, 0)


def test_a_chat_too_long_as_it_is_is_refused_when_read(prompts):
    """Where not even the last set fits, the client is told what the engine says."""
    with closing(Queued(late(Small)())) as queue:
        answerer = Answerer(queue, Modes(), prompts, lookup=FixedLookup())
        answered = answerer.reply(said(("user", "long " * 20)), SCRIPT)

        with pytest.raises(ContextLengthExceeded, match="10 fit"):
            gather(answered.reply)
        assert queue.depth() == (0, 0)


def test_nothing_is_asked_for_a_reader_who_left(prompts):
    """Neither the next set nor anything else."""
    engine = late(Small)()
    with closing(Queued(engine)) as queue:
        lookup = FixedLookup("word " * 50)
        answerer = Answerer(queue, Modes(), prompts, lookup=lookup)
        answered = answerer.reply(said(("user", "q")), SCRIPT)
        answered.reply.close()

        with pytest.raises(Cancelled):
            gather(answered.reply)
        assert not engine.asked
        assert queue.depth() == (0, 0)


class TenPassages:
    """Finds ten passages of ten words for every question."""

    def find(self, collections, question, previous=""):
        """Return them."""
        passages = [Passage("hpc", f"{n}.md", "", "", f"w{n} " * 10) for n in range(10)]
        return Found(tuple(Hit(each, 1.0, 0.9) for each in passages), "hit")

    def find_private(self, question, previous=""):
        """Return none."""
        return Found()


class Exact(ScriptedEngine):
    """Counts 200 tokens more than it tells, which only its refusal shows."""

    def reply(self, chat):
        """Refuse what has less than 100 tokens left for the answer."""
        words = sum(len(m.text.split()) for m in chat.messages) + 200
        if words > self.limits().context_tokens - 100:
            raise ContextLengthExceeded(f"{words} tokens", param="messages")
        return super().reply(chat)


@pytest.mark.parametrize("kind", [Exact, late(Exact)], ids=["asked", "read"])
def test_a_long_conversation_never_fails_for_its_passages(prompts, kind):
    """As it grows, old passages go, then new ones shrink, then there are none."""
    engine = kind(["Yes. " * 5], limits=Limits(context_tokens=1200, output_tokens=100))
    with closing(Queued(engine)) as queue:
        lookup = Lookup(
            TenPassages(),
            Memory(1 << 20),
            count_tokens=queue.count_tokens,
            budget=lambda mode: Budget(),
        )
        answerer = Answerer(queue, Modes(), prompts, lookup=lookup)
        messages: tuple[Message, ...] = ()
        told = []
        with pytest.raises(ContextLengthExceeded):
            while True:
                question = f"Question {len(told)} of a long talk: " + "why? " * 40
                messages = (*messages, Message("user", question))
                answered = answerer.reply(Chat("ofa-hpc", messages), SCRIPT)
                said = gather(answered.reply).text
                told.append(answered.reply.told["x-ofa-rag"])
                messages = (*messages, Message("assistant", said))
        bare = sum(len(m.text.split()) for m in messages)

        assert queue.depth() == (0, 0)

    assert bare + 2 + 200 > 1100  # of its own, with the mode's two words
    assert len(told) > 10
    assert told[0].startswith("hit; n=6; ")
    assert any("dropped=" in each and each.startswith("hit") for each in told)
    assert told[-1].startswith("none; ")


def test_turns_repeat_earlier_ones_between_drops(prompts):
    """R044: what the engine has read is read again, but for the turns that drop."""
    engine = ScriptedEngine(["Yes."], limits=Limits(2500, 100))
    with closing(Queued(engine)) as queue:
        lookup = Lookup(
            TenPassages(),
            Memory(1 << 20),
            count_tokens=queue.count_tokens,
            budget=lambda mode: Budget(),
        )
        answerer = Answerer(queue, Modes(), prompts, lookup=lookup)
        messages: tuple[Message, ...] = ()
        for turn in range(12):
            messages = (*messages, Message("user", f"Question {turn}?"))
            gather(answerer.reply(Chat("ofa-hpc", messages), SCRIPT).reply)
            messages = (*messages, Message("assistant", "Yes."))

    seen = [chat.messages for chat in engine.asked]
    broken = [after[: len(before)] != before for before, after in pairwise(seen)]
    assert 1 <= sum(broken) <= 3


def test_one_place_is_enough_for_all_tries(prompts):
    """A refused set does not give the place away to somebody else."""
    with closing(Queued(Small(), running=1, waiting=0)) as queue:
        lookup = FixedLookup("word " * 50)
        answered = Answerer(queue, Modes(), prompts, lookup=lookup).reply(
            said(("user", "q")), SCRIPT
        )

        with pytest.raises(Overloaded):
            queue.reserve()
        assert gather(answered.reply).text == "ok"
        assert queue.depth() == (0, 0)


def test_tools_and_calls_take_room_too(prompts):
    """An agent's declarations and its calls are part of the prompt."""
    lookup = FixedLookup("")
    big = Tool("big", "word " * 300, {"type": "object"})
    call = Message("assistant", calls=(ToolCall("c", "big", {"text": "word " * 200}),))
    plain = said(("user", "q"))
    tooled = replace(plain, tools=(big,))
    looped = replace(tooled, messages=(*tooled.messages, call))

    for chat in (plain, tooled, looped):
        ask(prompts, chat, lookup=lookup)

    rooms = [asked[2] for asked in lookup.asked]
    assert rooms[0] - rooms[1] >= 300
    assert rooms[1] - rooms[2] >= 200


def test_a_chat_that_does_not_fit_by_itself_is_refused(prompts):
    """Both numbers reach the client, and no place stays taken."""
    with closing(Queued(Small(), running=1, waiting=0)) as queue:
        answerer = Answerer(queue, Modes(), prompts, lookup=FixedLookup())

        with pytest.raises(ContextLengthExceeded, match="10 fit"):
            answerer.reply(said(("user", "long " * 50)), SCRIPT)

        assert queue.depth() == (0, 0)


def test_room_for_passages_is_what_chat_and_answer_leave(prompts):
    """A long conversation leaves less room, never less than none."""
    limits = Limits(context_tokens=1000, output_tokens=400)
    lookup = FixedLookup("")
    for words in (10, 5000):
        ask(
            prompts,
            said(("user", "w " * words)),
            engine=ScriptedEngine(limits=limits),
            lookup=lookup,
        )

    rooms = [asked[2] for asked in lookup.asked]
    assert 500 < rooms[0] < 750
    assert rooms[1] == 0


def test_a_site_may_add_a_mode_in_one_row(prompts, tmp_path):
    """One row and one file: nothing else changes."""
    (tmp_path / "own.txt").write_text("OWN")
    mode = Mode("ofa-own", "own", "Own", "own.txt", ("own",), "OWN")
    engine = ScriptedEngine(limits=LIMITS)
    with closing(Queued(engine)) as queue:
        answerer = Answerer(queue, Modes((*SEED_MODES, mode)), prompts)

        chat = replace(said(("user", "q")), model="ofa-own")
        gather(answerer.reply(chat, SCRIPT).reply)

    assert system(engine.asked[0]) == ["OWN\n\nCOMMON"]


LIST = "\n\nSources looked up: [1] `hpc/a.md`"


def test_a_site_may_let_answers_end_with_their_sources(prompts):
    """`[rag] cite`: after the answer, where passages were injected; off by default."""
    lookup = FixedLookup(footer=LIST)
    bare = FixedLookup()

    plain, _, _ = ask(prompts, said(("user", "q")), lookup=lookup)
    cited, headers, _ = ask(prompts, said(("user", "q")), lookup=lookup, cite=True)
    nothing, _, _ = ask(prompts, said(("user", "q")), lookup=bare, cite=True)

    assert (plain.text, cited.text, nothing.text) == ("fine", f"fine{LIST}", "fine")
    assert cited.end == plain.end
    assert headers["x-ofa-rag"] == "hit; n=1"


@pytest.mark.parametrize(
    "more",
    [
        {"output": Output()},
        {"logprobs": 0},
        {"sampling": Sampling(stop=("END",))},
    ],
    ids=str,
)
def test_answers_for_programs_end_without(prompts, more):
    """What is parsed gets nothing behind it."""
    able = ScriptedEngine(["fine"])  # in all that is asked here
    chat = said(("user", "q"), **more)

    answer, _, _ = ask(
        prompts, chat, engine=able, lookup=FixedLookup(footer=LIST), cite=True
    )

    assert answer.text == "fine"


def test_an_editors_side_request_ends_without(prompts):
    """A title is no answer from documents."""
    lookup = FixedLookup(footer=LIST)

    answer, _, _ = ask(prompts, said(("user", "q")), VSCODE, lookup=lookup, cite=True)

    assert answer.text == "fine"


@pytest.mark.parametrize("caller", [SCRIPT, VSCODE], ids=str)
@pytest.mark.parametrize("cite", [False, True])
def test_the_model_never_sees_a_list_of_sources(prompts, caller, cite):
    """It is no part of what the model wrote, and would teach it to write some."""
    chat = said(("user", "q"), ("assistant", f"fine\n{LIST}"), ("user", f"and\n{LIST}"))

    _, _, seen = ask(prompts, chat, caller, cite=cite)

    texts = [m.text for m in seen.messages if m.role != "system"]
    assert texts == ["q", "fine\n", f"and\n{LIST}"]


def test_it_is_the_newest_questions_sources_that_are_listed(prompts):
    """In a tool loop those of the question it serves, after a look-up without hits
    none."""
    engine = ScriptedEngine(["fine"], limits=LIMITS)
    hits = TenPassages()
    with closing(Queued(engine)) as queue:
        lookup = Lookup(
            hits,
            Memory(1 << 20),
            count_tokens=queue.count_tokens,
            budget=lambda mode: Budget(),
        )
        settings = AnswerSettings(cite=True)
        answerer = Answerer(queue, Modes(), prompts, lookup=lookup, settings=settings)

        def answer(*messages):
            chat = Chat("ofa-hpc", messages, tools=(READ,))
            return gather(answerer.reply(chat, SCRIPT).reply).text

        asked = Message("user", "Where is the file?")
        call = Message("assistant", calls=(ToolCall("c1", "read_file", {}),))
        result = Message("tool", "here", answers="c1")
        first = answer(asked)
        looped = answer(asked, call, result)
        hits.find = lambda *words: Found(reason="none: below the floor")
        after = answer(asked, Message("assistant", first), Message("user", "Why so?"))

    assert first.startswith("fine\n\nSources looked up: [1] `hpc/0.md`; [2] `hpc/1.md`")
    assert looped == first
    assert after == "fine"
