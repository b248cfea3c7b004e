"""What is read ahead waits its turn: behind every request, and not for ever."""

from ofa.engine.mlx.ahead import REST_S, Ahead
from ofa.engine.mlx.rows import warm_row


def rows(kind, count):
    """Return so many beginnings."""
    return [warm_row(range(n + 1), "a", kind) for n in range(count)]


def test_nothing_is_begun_right_behind_a_request():
    """The next of a burst would wait for it; before any request there is no rest."""
    now = [100.0]
    ahead = Ahead(lambda: now[0])
    first, second = rows("system", 2)
    ahead.put(first)
    assert ahead.rest_s == 0
    assert ahead.take() is first

    ahead.note_request()
    assert ahead.rest_s == 0, "nothing is to be read"
    ahead.put(second)
    now[0] += REST_S / 2
    assert 0 < ahead.rest_s < REST_S
    assert ahead.take() is None
    now[0] += REST_S
    assert ahead.rest_s == 0
    assert ahead.take() is second
    assert not ahead and ahead.take() is None


def test_the_oldest_answers_are_forgotten_and_no_system_text():
    """What was begun and put back goes first again."""
    ahead = Ahead()
    systems, answers = rows("system", 3), rows("answer", 40)
    for row in (*systems, *answers):
        ahead.put(row)

    left = []
    while (row := ahead.take()) is not None:
        left.append(row)
    ahead.put(left[1])
    ahead.put_back(left[0])

    assert left == [*systems, *answers[-16:]]
    assert ahead.take() is left[0]
    ahead.clear()
    assert not ahead
