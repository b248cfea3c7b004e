"""
Turns that name nothing to look up: greetings, thanks, "yes please", "go on".

Knows English courtesies, and the short hellos of its neighbours. Pure. A rule of words
only: whether a turn is *relevant* to an index is for `retrieve` to decide.
"""

from __future__ import annotations

import re

_SPEAKING = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")

# One of these makes small talk, with nothing but fillers beside it.
_COURTESIES = frozenset(
    """
    hi hello hey hiya howdy yo greetings morning afternoon evening night thanks
    thank thx ty tysm cheers bye goodbye ok okay k kk great nice cool perfect
    awesome excellent wonderful brilliant lovely amazing super yes yeah yep yup
    no nope nah sure fine alright understood welcome sorry lol haha wow hmm ah
    oh hola bonjour hallo ciao merci danke gracias salut servus moin tschüss
    """.split()  # noqa: SIM905 - a list literal would be 60 lines
)
_FILLERS = frozenset(
    """
    a all that this it is was works worked solved fixed helps helped did for the
    to there you your my me so very much many again good day everyone team folks
    man mate ofa assistant bot gemma copilot please got and lot lots now makes
    sense i im i'm see later well really just one too dear have be help answer
    explanation today not thats that's its it's right exactly
    """.split()  # noqa: SIM905 - a list literal would be 60 lines
)
_PLEASANTRIES = frozenset(
    {
        "how are you",
        "how are you doing",
        "how do you do",
        "how is it going",
        "how's it going",
        "hows it going",
        "what's up",
        "whats up",
        "who are you",
        "what are you",
        "what can you do",
        "what can you help me with",
        "nice to meet you",
        "are you there",
        "anyone there",
        "can you help me",
        "help me",
        "help",
        "test",
        "testing",
        "ping",
    }
)
_CONTINUATIONS = frozenset(
    {
        "continue",
        "go on",
        "go ahead",
        "carry on",
        "keep going",
        "proceed",
        "more",
        "tell me more",
        "next",
        "next step",
        "and then",
        "then",
        "do it",
        "do that",
        "do so",
        "do this",
        "try again",
        "again",
        "retry",
        "try it again",
        "one more time",
        "finish",
        "finish it",
        "continue where you left off",
        "go for it",
        "resume",
    }
)
_POLITE = frozenset(
    """
    yes yeah yep ok okay sure please now and then so just
    """.split()  # noqa: SIM905 - a list literal would be 60 lines
)
_MOST_WORDS = 8  # of small talk: nobody is that polite for longer


def is_small_talk(question: str) -> bool:
    """Tell whether *question* only greets, thanks, agrees or says nothing at all."""
    words = _spoken(question)
    if len(words) > _MOST_WORDS:
        return False
    while words and words[0] in _COURTESIES | {"there", "and"}:
        words = words[1:]  # "hi there, how are you"
    if not words or " ".join(w for w in words if w != "today") in _PLEASANTRIES:
        return True
    said = set(_spoken(question))
    return bool(said & _COURTESIES) and said <= _COURTESIES | _FILLERS


def is_continuation(question: str) -> bool:
    """Tell whether *question* only asks for more of what was being said."""
    words = _spoken(question)
    if len(words) > _MOST_WORDS:
        return False
    bare = [word for word in words if word not in _POLITE]
    return bool(words) and {" ".join(words), " ".join(bare)} & _CONTINUATIONS != set()


def is_empty_turn(question: str) -> bool:
    """Tell whether *question* names nothing that could be looked up."""
    return is_small_talk(question) or is_continuation(question)


def _spoken(question: str) -> list[str]:
    return _SPEAKING.findall(question[:400].casefold().replace("\u2019", "'"))
