"""`GET /v1/ofa/retrieve`: what a question would bring along, over HTTP."""

from __future__ import annotations

import threading
from urllib.parse import urlencode

import pytest

from ofa.modes import Modes
from ofa.rag.lookup import Budget, Lookup
from ofa.rag.memory import Memory
from ofa.rag.report import Inspector
from ofa.rag.retrieve import Retriever, Settings
from ofa.rag.shelf import Shelf
from ofa.web_ofa import MAX_QUESTION_CHARS, routes

from .rag.shelves import HPC, Letters, parsed, put
from .running import serving
from .test_openapi_answers import check
from .web_fakes import Lines, Site, services

FLOOR = 0.2
QUESTION = "start a job after another ended without error"


class Slow(Letters):
    """An embedder whose questions wait to be let go."""

    def __init__(self):
        self.reached, self.go_on = threading.Semaphore(0), threading.Event()

    def query(self, text):
        """Tell that it was reached, then wait."""
        self.reached.release()
        assert self.go_on.wait(20)
        return super().query(text)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders with a shared and a private index."""
    path = tmp_path_factory.mktemp("indexes")
    put(path / "shared", parsed("hpc", HPC), Letters())
    own = parsed("notes", "me.md | Mine\nMy allocation is named tulip.", private=True)
    put(path / "private", own, Letters())
    return path


def inspector_of(folders, *, embedder=None, private=True, floor=FLOOR, tokens=2400):
    """Return an inspector of the folders' shelves, as a server has one."""
    shared = Shelf(folders / "shared")
    own = Shelf(folders / "private") if private else None
    embedder = embedder or Letters()

    def retriever(floor):
        settings = Settings(floor=floor, deadline_s=20)
        return Retriever(shared, lambda: embedder, private=own, settings=settings)

    lookup = Lookup(
        retriever(floor),
        Memory(1 << 20),
        count_tokens=lambda text: len(text.split()),
        budget=lambda mode: Budget(tokens, 6),
    )
    return Inspector(lookup, retriever(None), lambda: own is not None)


@pytest.fixture
def opened():
    """Give a function that opens a server with an inspector; all are closed."""
    sites = []

    def opened(inspector):
        parts = services()
        more = routes(
            Modes(), parts.limits, name="OFA", keyed=True, inspector=inspector
        )
        sites.append(Site(more=more))
        return sites[-1]

    yield opened
    for site in sites:
        site.close()


def ask(site, **query):
    """Ask the route; the answer fits the document."""
    path = f"/v1/ofa/retrieve?{urlencode(query)}"
    got = site.ask("GET", path)
    check("GET", path, (got.status, got.headers, got.body))
    return got


def test_it_shows_what_would_be_injected_and_from_where(folders, opened):
    """Text as the model would see it, its parts with place and scores, and the cost."""
    site = opened(inspector_of(folders))

    got = ask(site, model="hpc", q=QUESTION).json

    shared, private = got["layers"]
    first = shared["hits"][0]
    assert (got["model"], got["reason"]) == ("ofa-hpc", "hit")
    assert (first["path"], first["section"]) == ("slurm/after.md", "Dependencies")
    assert first["injected"] and first["cosine"] > 0 and 0 < first["score"] <= 1
    assert first["text"] in got["text"]
    assert got["text"].startswith("Reference material") and "<rag label=" in got["text"]
    assert got["tokens"] == len(got["text"].split())
    assert got["budget"] == {"tokens": 2400, "passages": 6}
    assert got["injected"] == 6
    assert sum(hit["injected"] for hit in shared["hits"] + private["hits"]) >= 6
    assert {hit["collection"] for hit in private["hits"]} <= {"notes"}


def test_nothing_found_shows_what_came_closest(folders, opened):
    """The reason has the number that was missed; the nearest are not injected."""
    site = opened(inspector_of(folders, floor=0.99))

    got = ask(site, model="ofa-hpc", q="How long may a job of mine run?").json

    shared = got["layers"][0]
    assert got["reason"].startswith("none: below the floor (")
    assert (got["text"], got["tokens"], got["injected"]) == ("", 0, 0)
    assert shared["hits"] == [] and len(shared["nearest"]) == 3
    assert not any(hit["injected"] for hit in shared["nearest"])


def test_no_room_shows_what_did_not_fit(folders, opened):
    """A budget that no passage fits is told as such, with the hits beside it."""
    site = opened(inspector_of(folders, tokens=3))

    got = ask(site, model="hpc", q=QUESTION).json

    assert got["reason"] == "none: no room"
    assert got["layers"][0]["hits"] and got["injected"] == 0


def test_small_talk_is_skipped(folders, opened):
    """The reason is the one that a chat's header has."""
    site = opened(inspector_of(folders))

    assert ask(site, model="hpc", q="Hi!").json["reason"] == "skipped: greeting"


def test_no_private_documents_are_no_layer(folders, opened):
    """Who has none does not read about them."""
    got = ask(opened(inspector_of(folders, private=False)), model="hpc", q=QUESTION)

    assert [layer["layer"] for layer in got.json["layers"]] == ["shared"]


def test_the_question_before_counts_where_this_one_leans_on_it(folders, opened):
    """As in a chat: "and for two?" is searched with what was asked before."""
    site = opened(inspector_of(folders))
    before = "How do I ask for graphics cards in a script?"

    leaning = ask(site, model="hpc", q="And for two nodes?", previous=before).json
    alone = ask(site, model="hpc", q="word " * 20, previous=before).json

    assert leaning["previous"] == before
    assert leaning["layers"][0]["hits"][0]["path"] == "slurm/gpu.md"
    assert alone["previous"] == ""


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"q": "x"}, 400, "model"),
        ({"model": "", "q": "x"}, 400, "model"),
        ({"model": "hpc"}, 400, "q"),
        ({"model": "hpc", "q": "  "}, 400, "q"),
        ({"model": "hpc", "q": "x" * (MAX_QUESTION_CHARS + 1)}, 400, "q"),
        ({"model": "hpc", "q": "x", "previous": "x" * 4001}, 400, "previous"),
        ({"model": "none", "q": "x"}, 404, "model"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_named(folders, opened, query, status, param):
    """A refusal says which, and repeats nothing of the question."""
    got = ask(opened(inspector_of(folders)), **query)

    assert (got.status, got.error["param"]) == (status, param)


def test_nobody_without_the_key_sees_documents(folders, opened):
    """They are the site's and the user's own."""
    site = opened(inspector_of(folders))

    got = site.ask("GET", f"/v1/ofa/retrieve?model=hpc&q={QUESTION[:5]}", headers={})

    assert got.status == 401 and b"slurm" not in got.body


def test_where_retrieval_is_off_that_is_said(opened):
    """It is no empty result, and no unknown path either."""
    got = ask(opened(None), model="hpc", q=QUESTION)

    assert (got.status, got.error["code"]) == (404, "retrieval_off")


def test_a_third_at_a_time_is_refused_and_chats_go_on(folders, opened):
    """Reports leave most of the threads to chats, whatever holds them up."""
    embedder = Slow()
    site = opened(inspector_of(folders, embedder=embedder))
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: statuses.append(ask(site, model="hpc", q=QUESTION).status)
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert embedder.reached.acquire(timeout=20)

    third = ask(site, model="hpc", q=QUESTION)
    chat = site.chat()

    embedder.go_on.set()
    for thread in threads:
        thread.join(20)
    assert (third.status, third.error["code"]) == (429, "queue_full")
    assert third.headers["retry-after"]
    assert chat.status == 200
    assert statuses == [200, 200]
    assert ask(site, model="hpc", q=QUESTION).status == 200, "the places are free again"


def test_the_log_has_nothing_of_the_question(folders, opened, caplog):
    """Counts and names only, as for chats."""
    with caplog.at_level("DEBUG"), Lines("ofa.access") as log:
        ask(opened(inspector_of(folders)), model="hpc", q="a tulip named Zebedee?")
        (line,) = log.wait(1)  # it is written once the answer is gone

    assert "mode=hpc" in line
    assert "Zebedee" not in line and "tulip" not in line
    assert "Zebedee" not in caplog.text and "tulip" not in caplog.text


def test_the_server_serves_it(tmp_path):
    """As `ofa serve` puts it together: by words alone while the model is loading."""
    put(tmp_path / "state" / "rag", parsed("hpc", HPC), Letters())
    with serving(tmp_path, rag__enabled=True) as client:
        path = f"/v1/ofa/retrieve?{urlencode({'model': 'hpc', 'q': QUESTION})}"
        got = client.ask("GET", path)
        check("GET", path, got)
    with serving(tmp_path) as client:
        off = client.ask("GET", path)

    assert b"slurm/after.md" in got[2]
    assert off[0] == 404
