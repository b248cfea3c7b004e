"""The bench: its arithmetic, its reading of streams, the chat's policies, one row."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench import conversation, machine, proc, texts, wire
from bench.__main__ import _chosen, _failed, _keep, _latest, _measure, main, report
from bench.context import Run, alternating
from bench.figures import Figure, Pair, at_least, at_most, number, share, table
from bench.models import packaged
from bench.rows import ROWS, Row
from bench.rows.load import streams
from bench.rows.speed import together_per_s, whole_per_s
from bench.servers import ROOT, CannotMeasure

# --- arithmetic ---------------------------------------------------------------------


def test_a_pair_compares_medians():
    """One slow round on either side decides nothing; the spread still tells it."""
    pair = Pair([10.0, 11.0, 2.0], [10.0, 10.0, 10.0])

    assert pair.ratio == 1.0
    assert pair.difference == 0.0
    assert pair.spread == "0.2 to 1.1 over 3 rounds"
    assert pair.told("s") == "10 against 10 s"


@pytest.mark.parametrize(
    ("measured", "must", "met"),
    [
        (0.97, at_least(0.97), True),
        (0.969, at_least(0.97), False),
        (4100, at_most(4100), True),
        (4101, at_most(4100), False),
        (None, at_most(4100), False),
        (None, None, False),
        (1.0, None, None),
    ],
)
def test_a_figure_is_met_on_its_bound_and_never_unmeasured(measured, must, met):
    """What was not measured does not pass, whatever was asked of it."""
    assert Figure("f", measured, must).met is met


def test_the_table_names_all_four_things():
    """Figure, measured, must reach, met or not; numbers as people read them."""
    page = table(
        [
            Figure("tokens", 4058.0, at_most(4100)),
            Figure("ratio", 0.98765, at_least(0.99)),
            Figure("time", 0.2, unit="ms"),
            Figure("none", None, at_most(1)),
        ]
    ).splitlines()

    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page]
    assert cells[0] == ["figure", "measured", "must reach", "met"]
    assert cells[2:] == [
        ["tokens", "4,058", "≤ 4,100", "yes"],
        ["ratio", "0.988", "≥ 0.99", "**no**"],
        ["time", "0.2 ms", "–", "–"],
        ["none", "–", "≤ 1", "**no**"],
    ]
    assert len({len(line) for line in page}) == 1


@pytest.mark.parametrize(
    ("part", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_share_is_a_value_that_was_seen(part, value):
    """The p99 of a hundred probes is the ninety-ninth, not the worst."""
    assert share(range(100, 0, -1), part) == value


def test_numbers_keep_three_digits():
    """Small ratios are not rounded to nothing, counts not to hundreds."""
    shown = [number(value) for value in (0.01234, 12.34, 1234.5, 3.0, None)]

    assert shown == ["0.0123", "12.3", "1,234", "3", "–"]


def test_sides_take_turns_to_go_first():
    """Neither side always runs on the machine the other has warmed."""
    order = list(alternating(range(3), "a", "b"))

    assert order == [(0, "b"), (0, "a"), (1, "a"), (1, "b"), (2, "b"), (2, "a")]


# --- reading streams ----------------------------------------------------------------

BODY = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b": keep-alive\n\n"
    b'data: {"choices":[{"delta":{"content":"H\xc3\xa9"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"llo"}}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":5}}\n\n'
    b"data: [DONE]\n\n"
)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
    f"{len(part):x}\r\n".encode() + part + b"\r\n"
    for part in (BODY[:70], BODY[70:200], BODY[200:], b"")
)


@pytest.mark.parametrize("sent", [PLAIN, CHUNKED], ids=["plain", "chunked"])
def test_a_stream_reads_the_same_wherever_it_is_cut(sent):
    """Frames are whole however the network deals them out."""
    for cut in range(1, len(sent)):
        heard = wire.Heard(began_s=1.0)
        reader = wire._Reader(None, heard)
        reader.feed(sent[:cut], 2.0)
        done = reader.feed(sent[cut:], 3.0)

        assert heard.status == 200
        assert heard.text == "Héllo"
        assert heard.tokens == 5
        assert heard.is_whole
        assert done is (sent is CHUNKED)


def test_no_more_are_asked_at_once_than_told():
    """Seven requests, three at a time: all are heard, in the order they were given."""
    now, most = [], []

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self):
            now.append(self.path)
            most.append(len(now))
            time.sleep(0.05)
            now.remove(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked = [wire.request(f"/{n}", method="GET") for n in range(7)]
    try:
        heard = wire.ask_all(server.server_port, asked, at_once=3)
    finally:
        server.shutdown()
        server.server_close()

    assert [one.body for one in heard] == [b"/%d" % n for n in range(7)]
    assert max(most) == 3


def heard(began, times, tokens):
    """Return a stream whose pieces came at *times*."""
    frames = [(at, b'data: {"choices":[{"delta":{"content":"x"}}]}') for at in times]
    usage = f'data: {{"choices":[],"usage":{{"completion_tokens":{tokens}}}}}'.encode()
    return wire.Heard(began, frames=[*frames, (times[-1], usage)])


def test_decode_rate_leaves_the_first_token_out():
    """Five tokens in four intervals of half a second are two a second."""
    one = heard(0.0, [10.0, 10.5, 11.0, 11.5, 12.0], 5)

    assert one.decode_per_s == 2.0
    assert one.ttft_s == 10.0


def test_together_counts_only_while_all_write():
    """From the last stream's beginning to the first one's end: 8 tokens in 2 s."""
    first = heard(0.0, [1.0, 2.0, 2.5, 3.0, 3.5, 4.0], 6)
    second = heard(0.0, [2.0, 2.5, 3.0, 3.5, 4.0, 9.0], 6)

    assert together_per_s([first, second]) == 4.0
    assert whole_per_s([first, second]) == 12 / 9


def test_streams_that_never_write_at_once_give_no_figure():
    """Eight streams one after the other are no batch of eight."""
    with pytest.raises(CannotMeasure, match="never wrote all at once"):
        together_per_s([heard(0.0, [1.0, 2.0], 2), heard(0.0, [3.0, 4.0], 2)])


# --- the eight-turn chat ------------------------------------------------------------


@pytest.fixture(scope="module")
def encode():
    """Return the encoder of the packaged Gemma."""
    try:
        return conversation.tokenizer(packaged("gemma").folder)
    except CannotMeasure as exc:
        pytest.fail(f"run scripts/test: {exc}")


def test_policies_prefill_what_was_measured_of_them(encode):
    """7,103 and growing, 4,058 at 506 a turn, 3,071 at 365 a turn."""
    chat = conversation.script(encode)
    last = conversation.turns(chat, encode, chat.answers, kept=False)
    kept = conversation.turns(chat, encode, chat.answers, kept=True)

    server = conversation.prefilled(last, conversation.server_policy)
    assert sum(server) == 7103
    assert server == [516, *range(506, 1377, 145)]
    history = conversation.prefilled(last, conversation.history_policy)
    assert (sum(history), history) == (4058, [516] + [506] * 7)
    replayed = conversation.prefilled(kept, conversation.history_policy)
    assert (sum(replayed), replayed) == (3071, [516] + [365] * 7)


def test_a_checkpoint_counts_only_as_a_true_prefix_with_something_left():
    """A kept prompt that differs in one token helps not at all; an exact one, never."""

    def turn(*prompt):
        return conversation.Turn(prompt, 1, 2, (*prompt, 9))

    def whole(one):
        return (one.prompt,)

    assert conversation.prefilled([turn(1, 2, 3), turn(1, 2, 3, 4)], whole) == [3, 1]
    assert conversation.prefilled([turn(1, 2, 3), turn(1, 5, 3, 4)], whole) == [3, 4]
    assert conversation.prefilled([turn(1, 2, 3), turn(1, 2, 3)], whole) == [3, 3]


def test_texts_have_the_length_that_was_asked():
    """As counted by whoever counts; the same each time, another for another seed."""

    def count(text):
        return len(text.split())

    assert count(texts.sized(40, 1, count)) == 40
    assert texts.sized(40, 1, count) == texts.sized(40, 1, count)
    assert texts.words(40, 1) != texts.words(40, 2)


# --- processes ----------------------------------------------------------------------


def test_a_process_is_seen_to_work_and_to_rest():
    """Processor time in the tree, not a word of the process itself, tells idle."""
    program = "import time\nwhile time.process_time() < 0.7: pass\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE
    ) as process:
        try:
            assert proc.wait_until(lambda: proc.is_busy(process.pid), 20)
            assert proc.wait_idle(process.pid, 20) is not None
            assert not proc.is_busy(process.pid)
            assert proc.descriptors(process.pid) >= 3
            assert proc.rss_bytes(process.pid) > 1 << 20
            assert proc.tree(process.pid) == [process.pid]
        finally:
            process.kill()
    assert not proc.is_alive(process.pid)


# --- the command --------------------------------------------------------------------


def test_the_list_names_every_row(capsys):
    """--list is where people find what to run."""
    assert main(["--list"]) == 0

    told = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert told == [row.name for row in ROWS]


def test_the_readme_explains_every_row():
    """A row nobody can look up is a number nobody can judge."""
    page = (ROOT / "bench" / "README.md").read_text()

    assert [row.name for row in ROWS if f"| `{row.name}` |" not in page] == []


def test_an_unknown_row_is_refused(capsys):
    """Before anything is started."""
    with pytest.raises(SystemExit) as stopped:
        main(["single", "singel"])

    assert stopped.value.code == 2
    assert "no such row: singel" in capsys.readouterr().err


def test_a_row_that_fails_is_not_met_and_stops_no_other(tmp_path):
    """The table of a long run must not be lost to one row's trouble."""
    broken = Row("broken", "nowhere", "nothing", "a row without its module")

    (figure,) = _measure(broken, Run(tmp_path))

    assert figure.met is False
    assert figure.row == "broken"
    assert "NOT MEASURED: ModuleNotFoundError" in figure.note


def test_why_a_row_failed_names_no_folder_of_this_machine():
    """Results are for others to read; an import error tells where its module lies."""
    row = Row("broken", "nowhere", "nothing", "a row without its module")

    figure = _failed(row, f"no name 'x' in 'ofa' ({ROOT}/ofa/__init__.py)")

    assert figure.note == "NOT MEASURED: no name 'x' in 'ofa' (ofa/__init__.py)"


def test_results_are_kept_as_a_page_and_as_readings(tmp_path):
    """What stands in the page can be worked with from the JSON."""
    figure = Figure("f", 1.0, at_most(2), note="n", details={"s": [1.0]}, row="r")
    facts = {"processor": "one"}

    _keep(tmp_path, facts, [figure], quick=False)

    (page,) = tmp_path.glob("*.md")
    assert "- processor: one" in page.read_text()
    kept = json.loads(page.with_suffix(".json").read_text())
    assert kept["figures"][0]["details"] == {"s": [1.0]}
    assert kept["figures"][0]["met"] is True


def test_a_run_goes_on_where_another_one_ended(tmp_path):
    """What was kept comes back as it was; only the rows that are missing are chosen."""
    figure = Figure("f", 3.0, at_most(2), "µs", "n", {"s": [1.0]}, "cost", "0.1 (abc)")
    lone = Figure("g", None, row="single", ofa="0.1 (def)")
    _keep(tmp_path, {"ofa": "0.1 (def)"}, [figure, lone], quick=False)

    again = _latest(tmp_path, quick=False)

    assert again == [figure, lone]
    assert _latest(tmp_path, quick=True) == []
    left = [row.name for row in _chosen([], {one.row for one in again})]
    assert "batch8" in left and not {"cost", "single", "fences"} & set(left)
    assert [row.name for row in _chosen(["cost"], {"cost"})] == ["cost"]
    page = report({"ofa": "0.1 (def)"}, again)
    assert "ofa: 0.1 (abc) for cost; 0.1 (def) for single" in page


def test_a_row_is_measured_for_real(tmp_path):
    """Eight streams of a scripted server: all their own words, /healthz beside them."""
    lost, foreign, health = streams(Run(tmp_path, quick=True))

    assert (lost.measured, lost.met) == (0, True)
    assert (foreign.measured, foreign.met) == (0, True)
    assert health.measured > 0
    assert lost.note == "of 400"


def test_memory_is_touched_where_there_is_some(monkeypatch):
    """A part of what is free, in a process that is gone afterwards."""
    monkeypatch.setattr(machine, "_TOUCHED", 0.01)

    assert machine.touch_memory().endswith(" GiB")
