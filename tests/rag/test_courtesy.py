"""Turns that name nothing are told from short questions that do."""

import pytest

from ofa.rag.courtesy import is_continuation, is_empty_turn, is_small_talk

SMALL_TALK = [
    "hi", "Hi!", "HELLO", "hello there 👋", "hey, how are you today?", "howdy.",
    "Good morning!", "good evening, everyone", "thanks", "Thank you!!", "thx :)", "ty",
    "thanks a lot, that solved it!", "Thank you so much", "many thanks", "ok", "OK.",
    "okay great", "K", "yes", "Yes.", "yes please", "yep", "no", "nope", "No, thanks",
    "sure", "perfect", "cool, got it", "great, that works!", "makes sense, thanks",
    "👍", "🙏🙏", "", "   ", "?", "...", "!!!", "what's up", "who are you?", "help",
    "what can you do?", "bye", "see you later, bye", "hi there, how are you", "test",
    "Hallo!", "bonjour", "lol", "that's right, thanks", "“hi”",
]  # fmt: skip

CONTINUATIONS = [
    "continue", "Continue.", "go on", "go on…", "please continue", "yes, go ahead",
    "yes please do that", "Yes, do it!", "keep going", "carry on please", "proceed",
    "more", "tell me more", "next", "ok next", "try again", "retry", "finish it",
    "continue where you left off",
]  # fmt: skip

QUESTIONS = [
    "hi, how do I submit a job?", "ok, and for GPUs?", "thanks, what about memory?",
    "sbatch?", "fvSchemes", "how do I continue a run from the last time step?",
    "yes, with MPI", "no module named reframe", "next time step too large", "INCAR",
    "hello world in MPI", "go to the next line in sacct output", "more than one GPU",
    "why?", "what is it", "is the test queue good for this", "retry a failed test case",
    "help with ENCUT", "Thank the user in the epilog script", "continue after timeout?",
]  # fmt: skip


@pytest.mark.parametrize("turn", SMALL_TALK)
def test_courtesies_are_small_talk(turn):
    """In any case, with any punctuation or emoji."""
    assert is_small_talk(turn)
    assert is_empty_turn(turn)


@pytest.mark.parametrize("turn", CONTINUATIONS)
def test_asking_for_more_names_nothing(turn):
    """What is to go on stands in the turns before."""
    assert is_continuation(turn)
    assert is_empty_turn(turn)


@pytest.mark.parametrize("turn", QUESTIONS)
def test_a_subject_makes_it_a_question(turn):
    """One word of substance is enough, however polite the rest is."""
    assert not is_empty_turn(turn)


def test_a_long_text_of_courtesies_is_looked_at_in_no_time():
    """A megabyte of thanks is neither: nobody is that polite."""
    assert not is_small_talk("thanks " * 150_000)
    assert not is_continuation("continue " * 100_000)
