"""Passages for a chat: found once, chosen to fit, told in a header."""

from dataclasses import replace

import pytest

from ofa.chat import Chat, Sampling
from ofa.modes import SEED_MODES
from ofa.rag.lookup import HEADER_CHARS, Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.passage import Hit, Passage
from ofa.rag.retrieve import Found

from .wrapped import called, chat, said, user

HPC = next(mode for mode in SEED_MODES if mode.name == "hpc")
FENCE, EACH = 33, 52  # words of a block's fence, and of each of its passages


def passages(count, words=50, *, private=False):
    """Return *count* hits of *words* words each."""
    folder = "own" if private else "hpc"
    return tuple(
        Hit(
            Passage(folder, f"{n}.md", "", "", f"p{n} " * words, private=private),
            1.0 - n / 100,
            0.9,
        )
        for n in range(count)
    )


SIX, NONE = Found(passages(6), "hit"), Found()


class Finder:
    """Finds what it was made with, and notes each question."""

    def __init__(self, shared=SIX, private=NONE) -> None:
        self.shared, self.private = shared, private
        self.asked: list[str] = []

    def find(self, collections, question, previous=""):
        """Return the shared ones."""
        self.asked.append(question)
        return self.shared

    def find_private(self, question, previous=""):
        """Return the private ones."""
        return self.private


def looking(finder=None, **budget):
    """Return a look-up that counts words."""
    return Lookup(
        finder or Finder(),
        Memory(1 << 20),
        count_tokens=lambda text: len(text.split()),
        budget=lambda mode: Budget(**budget),
    )


def sets(lookup, *messages):
    """Return all sets of passages for a chat: none of them was taken."""
    return [
        looked[:2] for looked in lookup.augment(chat(*messages), HPC, "key", 100_000)
    ]


def first(lookup, *messages, room=100_000):
    """Return the first set, which is taken."""
    return next(lookup.augment(chat(*messages), HPC, "key", room))[:2]


def size(made: Chat, asked: Chat) -> int:
    """Return how many words *made* has more than *asked*."""
    return sum(
        len(one.text.split()) - len(other.text.split())
        for one, other in zip(made.messages, asked.messages, strict=True)
    )


def test_passages_and_their_header():
    """Fenced before the question; number, tokens and sources are told."""
    made, told = first(looking(max_passages=2), user("Why?"))

    assert made.messages[-1].text.endswith("User request: Why?")
    assert made.messages[-1].text.count("<rag ") == 1
    words = size(made, chat(user("Why?")))
    assert told == f"hit; n=2; tokens={words}; sources=hpc/0.md,hpc/1.md"


@pytest.mark.parametrize("room", [0, 30, 60, 100, 150, 200, 300, 1000])
def test_the_whole_block_fits_the_room(room):
    """Fence and headers count as well: fewer passages, then none."""
    made, told = first(looking(), user("Why?"), room=room)

    words = size(made, chat(user("Why?")))
    assert words <= room
    if room < FENCE + EACH:
        assert (made, told) == (chat(user("Why?")), "none; no room")
    else:
        assert told.startswith(f"hit; n={min(6, (room - FENCE) // EACH)}; ")


def test_private_passages_keep_their_share_when_room_is_short():
    """The user's own are not the first to go."""
    finder = Finder(private=Found(passages(3, private=True), "hit"))

    made, _ = first(looking(finder), user("Why?"), room=250)

    assert "[1] hpc/0.md" in made.messages[-1].text
    assert "own/0.md" in made.messages[-1].text


def test_dropped_turns_are_told():
    """Who wonders why an answer forgot a page sees it in the header."""
    lookup = looking(max_passages=2)
    messages = ()
    told = []
    for number in range(4):
        messages = (*messages, user(f"Why {number}?"))
        told.append(first(lookup, *messages, room=300)[1])
        messages = (*messages, said("So."))
    looped = first(lookup, *messages[:-1], *called(), room=300)[1]

    words = FENCE + 2 * EACH
    assert told[1] == f"hit; n=2; tokens={words}; sources=hpc/0.md,hpc/1.md"
    assert told[2] == f"hit; n=2; tokens={words}; dropped=2; sources=hpc/0.md,hpc/1.md"
    assert told[3] == told[2]
    assert looped == told[2].replace("; dropped", "; replayed; dropped")


def test_what_is_said_without_embeddings_stays_said():
    """The reason of a search by words stands behind what was dropped."""
    lookup = looking(Finder(Found(passages(2), "hit: by words alone, no model")))
    first(lookup, user("One?"), room=1000)

    _, told = first(lookup, user("One?"), said("So."), user("Two?"), room=200)

    assert "; dropped=1; by words alone, no model; sources=" in told


def test_nothing_found_is_told_with_what_was_dropped():
    """A greeting after a long talk: the reason, and what the prompt goes without."""
    finder = Finder()
    lookup = looking(finder)
    first(lookup, user("One?"), room=1000)
    finder.shared = Found((), "skipped: greeting")

    made, told = first(lookup, user("One?"), said("So."), user("hello"), room=10)

    assert told == "skipped; greeting; dropped=1"
    assert made == chat(user("One?"), said("So."), user("hello"))


def test_each_set_is_smaller_and_the_last_is_the_chat_itself():
    """Who finds every set too long comes down to what the client sent."""
    asked = (user("One?"), said("So."), user("Two?"))
    lookup = looking()
    first(lookup, *asked[:1])

    offered = sets(lookup, *asked)

    sizes = [size(made, chat(*asked)) for made, _ in offered]
    assert len(offered) == 4
    assert all(a > 0 and b <= a // 2 for a, b in zip(sizes, sizes[1:], strict=False))
    assert offered[-1] == (chat(*asked), "none; the context is full")
    assert [told.startswith("hit; ") for _, told in offered] == [True] * 3 + [False]


def test_a_search_is_made_once_for_all_sets():
    """Smaller sets are chosen from what was found."""
    finder = Finder()

    sets(looking(finder), user("One?"))

    assert finder.asked == ["One?"]


def test_a_chat_without_passages_is_offered_once():
    """There is nothing to leave out: if it is too long, it is the client's."""
    finder = Finder(Found((), "none"))

    assert sets(looking(finder), user("One?")) == [(chat(user("One?")), "none")]


def test_an_answer_ends_where_it_copies_the_fence():
    """A weak model copies what it was shown; of ours nothing behind a fence's end."""
    lookup = looking()
    stops = ("END", "\n\n")
    asked = replace(chat(user("Why?")), sampling=Sampling(stop=stops))

    for _ in ("fresh", "replayed"):
        made = next(lookup.augment(asked, HPC, "key", 100_000)).chat

        *own, ours = made.sampling.stop
        assert tuple(own) == stops
        assert made.messages[-1].text.count(ours) == 1
        shown, behind = made.messages[-1].text.split(ours)
        assert shown.startswith(HPC.lead_in) and "<rag " not in behind
        assert behind.endswith("User request: Why?")


def test_a_request_with_as_many_stops_as_upstreams_take_gets_no_more():
    """OpenAI's own servers refuse a fifth."""
    asked = replace(chat(user("Why?")), sampling=Sampling(stop=tuple("abcd")))

    made = next(looking().augment(asked, HPC, "key", 100_000)).chat

    assert made.sampling.stop == tuple("abcd")


def test_after_all_sets_were_refused_the_next_turn_begins_bare():
    """The engine has read it without; so it is said again without."""
    lookup = looking()
    sets(lookup, user("One?"))

    made, _ = first(lookup, user("One?"), said("So."), user("Two?"))

    assert made.messages[:3] == chat(user("One?"), said("So.")).messages
    assert "<rag " in made.messages[3].text


def test_a_block_that_finds_no_room_again_is_told_as_such():
    """A regenerated answer with a longer limit may have no room for its passages."""
    lookup = looking()
    first(lookup, user("One?"))

    made, told = first(lookup, user("One?"), room=10)

    assert (made, told) == (chat(user("One?")), "none; no room; dropped=1")


def test_who_asks_nothing_gets_nothing():
    """A tool's round without passages, and a chat without any user's words."""
    finder = Finder()
    lookup = looking(finder)
    for messages in ((user("One?"), *called()), (said("Welcome."),)):
        made, told = first(lookup, *messages)

        assert (made, told) == (chat(*messages), "skipped; no question of the user's")
    assert finder.asked == []


def test_the_header_is_cut_between_sources():
    """Proxies and clients take a few KiB of headers in all."""
    long = tuple(
        Hit(Passage("hpc", f"{n}-{'é' * 100}.md", "", "", f"word {n}"), 1, 0.9)
        for n in range(6)
    )

    _, told = first(looking(Finder(Found(long, "hit"))), user("Why?"))

    assert told.startswith("hit; n=6; ")
    assert 600 < len(told) <= HEADER_CHARS + len("; sources=")
    assert told.endswith(".md") and told.isascii()
