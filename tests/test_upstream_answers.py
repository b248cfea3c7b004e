"""The upstream assistant's lost server cases that concern what the model is given."""

from collections.abc import Iterator, Sequence

import pytest

from ofa.answer import Answerer, AnswerSettings, Caller
from ofa.chat import Chat, Message, Tool, gather
from ofa.engine.base import Limits
from ofa.engine.queue import Queued
from ofa.engine.scripted import ScriptedEngine
from ofa.modes import SEED_MODES, Modes
from ofa.prompts import Prompts, packaged_folder
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.passage import Hit, Passage
from ofa.rag.retrieve import Found, Retriever

VALUES = dict.fromkeys(
    ("SITE_NAME", "SITE_ORG", "SITE_LONG_NAME", "SITE_DESCRIPTION"), "Larkspur"
)
LIMITS = Limits(context_tokens=100_000, output_tokens=1000, tools=True)


class Noting(Retriever):
    """A retriever whose search finds one passage, and notes where it looked."""

    def __init__(self) -> None:
        super().__init__(_Empty(), lambda: None)
        self.looked: list[Sequence[str]] = []

    def _within_deadline(self, shelf, names, asked):
        self.looked.append(tuple(names()))
        passage = Passage("c", "page.md", "Page", "Sec", f"FOUND for {asked[0]}")
        return Found((Hit(passage, 1.0, 1.0),), "hit")


class _Empty:
    def generation(self, collection):
        return None

    def collections(self):
        return ()


class Site:
    """An Answerer with the shipped prompts and a noting retriever."""

    def __init__(self, **settings) -> None:
        self.engine = ScriptedEngine(limits=LIMITS)
        self.queue = Queued(self.engine)
        self.retriever = Noting()
        lookup = Lookup(
            self.retriever,
            Memory(1 << 20),
            count_tokens=self.engine.count_tokens,
            budget=lambda mode: Budget(),
        )
        self.answerer = Answerer(
            self.queue,
            Modes(),
            Prompts(packaged_folder(), VALUES),
            lookup=lookup,
            settings=AnswerSettings(**settings),
        )

    def ask(self, *messages: tuple[str, str], model="ofa-hpc", **more) -> Chat:
        """Return what the engine was given for *messages*."""
        chat = Chat(model, tuple(Message(r, t) for r, t in messages), **more)
        gather(self.answerer.reply(chat, Caller("k", "curl/8")).reply)
        return self.engine.asked[-1]


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield a site; its queue is closed."""
    made = Site()
    yield made
    made.queue.close()


def test_own_system_prompt_and_fenced_passages_in_the_last_user_message(site):
    """The happy path: brief, fence, marker, and the user's own words at the end."""
    seen = site.ask(("user", "How do I submit a job?"))

    system, user = seen.messages
    assert system.role == "system" and "Larkspur" in system.text
    assert '<rag label="HPC_DOCS" tag="' in user.text
    assert "FOUND for How do I submit a job?" in user.text
    assert user.text.endswith("---\n\nUser request: How do I submit a job?")


def test_inbound_system_text_is_dropped(site):
    """A script's system message does not stand beside ours."""
    seen = site.ask(("system", "You are a pirate."), ("user", "How do I submit?"))

    assert "pirate" not in str(seen.messages)
    assert [m.role for m in seen.messages] == ["system", "user"]


def test_passages_stand_in_the_last_user_message_only(site):
    """History that came without passages stays without."""
    seen = site.ask(
        ("user", "What is sbatch?"),
        ("assistant", "A command."),
        ("user", "And how do I cancel a job?"),
    )

    texts = [m.text for m in seen.messages if m.role == "user"]
    assert "FOUND" not in texts[0] and "FOUND" in texts[1]


@pytest.mark.parametrize("mode", SEED_MODES, ids=lambda mode: mode.name)
def test_each_id_reaches_its_own_collections(site, mode):
    """The id alone decides what is searched."""
    site.ask(("user", "How does this work?"), model=mode.id)

    assert site.retriever.looked == [mode.collections]


@pytest.mark.parametrize(
    "greeting", ["hi", "Hello!", "hey…", "Howdy?", "thanks!!", "Thank you :)"]
)
def test_greetings_are_not_looked_up(site, greeting):
    """In any punctuation: upstream's exact match missed "hi!"."""
    seen = site.ask(("user", greeting))

    assert site.retriever.looked == []
    assert seen.messages[-1].text == greeting


def test_tools_are_dropped_when_disabled():
    """With tools off the model sees none, and the fence protocol stays."""
    site = Site(tools=False)
    try:
        tool = Tool("read_file", "Read", {"type": "object"})
        seen = site.ask(("user", "Read my input file"), tools=(tool,))
    finally:
        site.queue.close()

    assert seen.tools == ()
    assert "fenced block" in seen.messages[0].text


def test_with_tools_the_directive_stands_first(site):
    """What the model reads first is that it has tools to call."""
    tool = Tool("read_file", "Read", {"type": "object"})

    seen = site.ask(("user", "Read my input file"), tools=(tool,))

    assert seen.messages[0].text.startswith("Tools are available")
    assert seen.tools == (tool,)
