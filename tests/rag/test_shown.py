"""Which passages a budget lets in, and what stands beside them."""

from dataclasses import replace

from ofa.rag.passage import Hit, Passage
from ofa.rag.shown import is_shown, select


def hit(name: str, length: int, *, pinned: bool = False) -> Hit:
    """Return a hit whose text has *length* words."""
    text = " ".join([name.split()[0], *["w"] * (length - 1)])
    return Hit(Passage("c", name, name, "", text, pinned=pinned), 0.5, 0.5)


def words(text: str) -> int:
    """Count words, as a tokenizer would count tokens."""
    return len(text.split())


def chosen(hits, max_tokens, max_passages=9) -> str:
    """Return the names of what is selected."""
    found = select(
        hits,
        count_tokens=words,
        max_tokens=max_tokens,
        max_passages=max_passages,
    )
    return "".join(passage.path for passage in found)


def test_whole_passages_fill_the_budget_in_order():
    """One that is too long is left out, the next shorter one taken; none is cut."""
    hits = [hit("a", 50), hit("b", 80), hit("c", 20)]

    assert chosen(hits, 200) == "abc"
    assert chosen(hits, 90) == "ac"
    assert chosen(hits, 10) == ""
    assert chosen(hits, 200, max_passages=2) == "ab"
    assert chosen(hits, 0) == chosen([], 100) == ""


def test_pinned_passages_take_half_at_most():
    """An authoritative page is there, and what was asked for is too."""
    pinned = [hit("P", 40, pinned=True), hit("Q", 40, pinned=True)]
    found = [hit("a", 40), hit("b", 40)]

    assert chosen([*pinned, *found], 200) == "PQab"
    assert chosen([*pinned, *found], 120) == "Pa"
    assert chosen(pinned, 120) == "PQ"
    assert chosen([*pinned, *found], 900, max_passages=2) == "Pa"


def test_the_budget_holds_with_headers_counted():
    """A thousand tiny passages with long names don't slip through."""
    hits = [hit(f"{n} " * 30, 1) for n in range(100)]

    found = chosen(hits, 100, max_passages=99)

    assert len(set(found.split())) == 3


def test_the_same_text_is_shown_once():
    """A copy in another file adds nothing, however it is wrapped, and costs nothing."""
    first = hit("a", 40)
    copy = Passage("c", "copy", "copy", "", first.passage.text.replace(" ", "  \n"))

    assert chosen([first, replace(first, passage=copy), hit("b", 40)], 100) == "ab"


# --- neighbours ---------------------------------------------------------------------

DOCUMENT = [
    Passage("c", "doc", "Doc", section, f"text{n} " + "w " * 9)
    for n, section in enumerate(["A", "A", "A > B", "A > B", "C"])
]


def at(row: int, *, path: str = "doc") -> Hit:
    """Return the hit on a piece of the document, with those beside it."""
    pieces = [
        replace(piece, path=path, text=piece.text.replace("w", path, 1))
        for piece in DOCUMENT
    ]
    before = pieces[row - 1] if row else None
    after = pieces[row + 1] if row + 1 < len(pieces) else None
    return Hit(pieces[row], 0.5, 0.5, row, before, after)


def shown(hits, max_tokens=1000, max_passages=6) -> tuple[Passage, ...]:
    """Return what is shown of *hits*."""
    return select(
        hits, count_tokens=words, max_tokens=max_tokens, max_passages=max_passages
    )


def rows(passage: Passage) -> list[int]:
    """Return which pieces stand in *passage*, in order."""
    return [int(w[4:]) for w in passage.text.split() if w.startswith("text")]


def test_room_that_is_left_shows_what_stands_beside():
    """Behind first, then before; without room for both, or any, the hit stays whole."""
    header = len(["[9]", "c/doc", ">", "A", ">", "B"])

    assert [rows(p) for p in shown([at(2)])] == [[1, 2, 3]]
    assert [rows(p) for p in shown([at(2)], header + 25)] == [[2, 3]]
    assert [rows(p) for p in shown([at(2)], header + 15)] == [[2]]


def test_what_is_asked_for_goes_before_what_stands_beside():
    """All hits get in before any neighbour does, and the best has the first choice."""
    two = [at(0), at(0, path="other")]

    assert [rows(p) for p in shown(two, 30)] == [[0], [0]]
    assert [rows(p) for p in shown(two, 41)] == [[0, 1], [0]]


def test_pieces_that_meet_are_one_passage_called_by_the_best():
    """No text is shown twice; the order is that of the best piece of each."""
    found = shown([at(3), at(0, path="other"), at(1)])

    assert [rows(p) for p in found] == [[0, 1, 2, 3, 4], [0, 1]]
    assert [(p.path, p.section) for p in found] == [("doc", "A > B"), ("other", "A")]


def test_a_neighbour_under_another_heading_says_so():
    """Unless its own text begins with that heading."""
    (passage,) = shown([at(1)])
    assert "[B]\ntext2" in passage.text
    assert "[A]" not in passage.text

    own = replace(at(1), after=replace(DOCUMENT[2], text="## B\ntext2"))
    (passage,) = shown([own])
    assert passage.text.endswith("\n\n## B\ntext2")


def test_a_hit_is_shown_alone_or_among_its_neighbours():
    """By its document and its words: another document's same words are not it."""
    found = shown([at(1)])

    assert is_shown(at(1), found)
    assert is_shown(at(2), found)
    assert not is_shown(at(4), found)
    assert not is_shown(at(1, path="other"), found)
