"""What people say finds what documents call it; a glossary's mistakes are named."""

from itertools import product
from string import ascii_lowercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofa.rag.glossary import NONE, BadGlossary, Glossary
from ofa.rag.sources import load_sources, packaged_sources

RULES = """
# devices
stirred tank, mixing vessel => mixerVessel2D, MRFProperties   # of a rotor
conjugate heat transfer, CHT
loss of c\\,d,
    issue \\#7 => div(phi\\,U)
"""

SOURCES = load_sources(packaged_sources())
FILES = sorted((packaged_sources().parent / "glossary").iterdir())
# What any question may say. Some are here as the stem of a name that is quite another
# thing: RANS is "ran", ABL "able", "hardness" "hard", "restful" "rest".
COMMON = """
    able again answer any associated back bad begin best better big build case change
    check code command copy crash data day different directory dry end error example
    extremely fail fast file find first fix folder form get give good group hang hard
    help high hour input install issue job key kind know last level line list load log
    long look low machine make many memory message minute model module moment more move
    much name need new next node note number old open option order output page parameter
    part period periodic place please point possible print problem process processor
    program project python question ran read report request rest result right run same
    script see send server set setting share short show simple size slow small sound
    sounds start state step stop system table take tell test text thing time try use
    user value version wait want way week word work write year
""".split()  # noqa: SIM905 - a list literal would be 100 lines


@pytest.mark.parametrize(
    ("question", "meant"),
    [
        ("A Stirred  tank, please", ("mixerVessel2D", "MRFProperties")),
        ("two mixing vessels", ("mixerVessel2D", "MRFProperties")),
        ("stirred the big tank", ("mixerVessel2D", "MRFProperties")),
        ("stirred up in a big tank", ()),
        ("a tank, stirred", ()),
        ("how is CHT done?", ("conjugate heat transfer",)),
        ("conjugate heat transfer", ("CHT",)),
        ("loss of c,d", ("div(phi,U)",)),
        ("see issue #7", ("div(phi,U)",)),
        ("", ()),
    ],
)
def test_phrases_add_names(question, meant):
    """In any ending and with a word between, in the order of the words."""
    assert Glossary.parse(RULES).added(question) == meant


def test_each_name_comes_once():
    """Two rules with one name, and a phrase said twice, add it once."""
    rules = Glossary.parse("fat node => bigmem, --mem\nmuch memory => --mem")

    assert len(rules) == 2
    assert rules.added("fat nodes, much memory, fat nodes") == ("bigmem", "--mem")


def test_none_adds_nothing():
    """A collection without a glossary has an empty one."""
    assert NONE.added("stirred tank") == ()
    assert Glossary.parse("") == NONE


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tank =>", "a rule is"),
        ("=> MRF", "a rule is"),
        ("tank", "a rule is"),
        ("a => b => c", "more than one =>"),
        ("the, tank => MRF", "'the' is of words that every text has"),
    ],
)
def test_what_is_no_rule_is_named(line, why):
    """With its line's number."""
    with pytest.raises(BadGlossary, match=f"line 2: {why}"):
        Glossary.parse(f"# a comment\n{line}\n")


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_a_glossary_or_refused(text, question):
    """Nothing else is raised, and what is added stands in the glossary."""
    try:
        rules = Glossary.parse(text)
    except BadGlossary:
        return
    assert all(isinstance(name, str) for name in rules.added(question))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_glossary_is_a_collections(path):
    """Its file has the name of a declared collection, and what it says is rules."""
    assert path.suffix == ".txt"
    assert len(SOURCES[path.stem].glossary) > 100


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_glossary_waits_for_more_than_a_common_word(path):
    """One word of any question, or two letters, would add its names to questions that
    have nothing to do with them."""
    rules = Glossary.parse(path.read_text("utf-8"))
    signs = ascii_lowercase + digits
    short = {*signs, *map("".join, product(signs, signs))} - {"ao", "ud"}  # AoS, UDS

    assert [word for word in {*COMMON, *short} if rules.added(word)] == []
