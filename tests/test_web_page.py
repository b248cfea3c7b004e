"""The page at /ofa and `GET /v1/ofa/status`, over HTTP; for a browser see clients."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ofa.engine.base import Limits, Status
from ofa.modes import Modes
from ofa.rag.health import Checkup, Documents, Health, health
from ofa.rag.shelf import Shelf
from ofa.web_page import Live, assembled, routes

from .rag.shelves import HPC, Letters, parsed, put
from .running import serving
from .test_openapi_answers import check
from .web_fakes import Site

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BUILT = Health("hpc", 6, NOW - timedelta(hours=3), "letters")
LIVE = Live(
    Modes(),
    lambda weights: Limits(4096, 512, prefill_per_s=123.456, description="Tiny 1B"),
    lambda: Status(True, details={"model": "Tiny"}),
    lambda: (2, 1),
    (4, 16),
    lambda: None,
    lambda: Documents((BUILT,), "letters", "ready"),
    now=lambda: NOW,
)


@pytest.fixture
def opened():
    """Give a function that opens a server with these routes; all are closed."""
    sites = []

    def opened(**changes):
        sites.append(Site(more=routes(replace(LIVE, **changes))))
        return sites[-1]

    yield opened
    for site in sites:
        site.close()


def status(site):
    """Return what the route tells, which fits the document."""
    got = site.ask("GET", "/v1/ofa/status")
    check("GET", "/v1/ofa/status", (got.status, got.headers, got.body))
    return got.json


def test_the_page_needs_no_key_and_tells_nothing(opened):
    """It is the file as it lies there, whatever the server knows."""
    got = opened().ask("GET", "/ofa", headers={})

    assert got.status == 200
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    assert got.body.decode() == assembled()[0]
    assert not re.search("Tiny|hpc|/v1/chat|letters", got.body.decode())


def test_its_policy_lets_nothing_else_run_or_be_framed(opened):
    """Its own script and style by their sums, this server to ask, and nothing more."""
    got = opened().ask("GET", "/ofa", headers={})
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in got.headers["content-security-policy"].split(";")
    )

    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["form-action"] == policy["base-uri"] == "'none'"
    assert re.fullmatch("'sha256-[A-Za-z0-9+/]{43}='", policy["script-src"])
    assert re.fullmatch("'sha256-[A-Za-z0-9+/]{43}='", policy["style-src"])
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in got.headers["content-security-policy"]
    assert got.headers["referrer-policy"] == "no-referrer"
    assert got.headers["cache-control"] == "no-store"


def test_it_names_nothing_outside_of_itself():
    """No address, no handler in an attribute, no way for text to become HTML."""
    text, _ = assembled()

    assert not re.search(r"https?://|//[a-z]+\.|\bsrc=|@import|url\(", text)
    assert not re.search(r"\son\w+=|\sstyle=", text)
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ):
        assert way not in text
    assert "localStorage" not in text and "document.cookie" not in text


@pytest.mark.parametrize(
    "path", ["/ofa/", "//ofa", "/OFA", "/v1/ofa", "/ofa/x", "/%6ffa"]
)
def test_only_one_spelling_is_open(opened, path):
    """As for the probe: every other path is refused alike."""
    assert opened().ask("GET", path, headers={}).status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_only_reading_is_open(opened, method):
    """Another method on it needs the key, and is none of its methods then."""
    site = opened()

    assert site.ask(method, "/ofa", headers={}).status == 401
    assert site.ask(method, "/ofa", b"{}").status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Origin": "http://elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=str,
)
def test_a_page_elsewhere_does_not_even_learn_of_it(opened, headers):
    """The rules for hosts and origins go before it, as before everything."""
    assert opened().ask("GET", "/ofa", headers=headers).status == 403


def test_it_answers_at_the_laptops_end_of_a_tunnel(opened):
    """`ssh -L` brings another port, and 127.0.0.1 or localhost for a name."""
    for host in ("127.0.0.1:41000", "localhost:41000", "[::1]:41000"):
        assert opened().ask("GET", "/ofa", headers={"Host": host}).status == 200


def test_the_status_needs_the_key(opened):
    """It tells of models and documents."""
    got = opened().ask("GET", "/v1/ofa/status", headers={})

    assert got.status == 401 and b"hpc" not in got.body


def test_the_status_tells_of_engine_queue_and_documents(opened):
    """Each figure where the page looks for it."""
    told = status(opened(decode_per_s=lambda: 9.8765))

    assert told["ready"] and told["models"][1] == {"id": "ofa-hpc", "name": "OFA · HPC"}
    assert told["engine"] == {
        "model": "Tiny 1B",
        "context_tokens": 4096,
        "output_tokens": 512,
        "prefill_per_s": 123.46,
        "decode_per_s": 9.88,
        "details": {"model": "Tiny"},
    }
    assert told["queue"] == {
        "running": 2,
        "waiting": 1,
        "places": {"running": 4, "waiting": 16},
    }
    (one,) = told["retrieval"]["collections"]
    assert (one["passages"], one["age_s"], one["layer"]) == (6, 3 * 3600, "shared")
    assert "ofa-hpc" in one["models"] and "ofa-openfoam" not in one["models"]


def test_a_server_that_loads_or_lacks_retrieval_has_a_status(opened):
    """A page can show why nothing works yet."""
    waiting = Status(False, "loading the model")

    told = status(opened(status=lambda: waiting, documents=lambda: None))

    assert (told["ready"], told["reason"]) == (False, "loading the model")
    assert told["retrieval"] is None


def test_what_is_wrong_is_told(opened):
    """Of one collection beside it, of all in a list; an old look is said to be one."""
    spoilt = replace(BUILT, passages=0, created=None, problem="a file is cut short")
    private = replace(BUILT, name="mine", private=True)
    documents = Documents(
        (spoilt, private), "", "failed", ("no model: by words alone",), is_fresh=False
    )

    told = status(opened(documents=lambda: documents))["retrieval"]

    assert told["collections"][0]["problem"] == "a file is cut short"
    assert told["collections"][0]["age_s"] is None
    assert told["collections"][1]["layer"] == "private"
    assert told["collections"][1]["models"] == []
    assert len(told["problems"]) == 2 and "does not answer" in told["problems"][0]


def test_collections_are_seen_as_they_are(tmp_path):
    """Sound ones with passages and date, missing and damaged ones with the reason."""
    put(tmp_path, parsed("hpc", HPC), Letters())
    put(tmp_path, parsed("extra", HPC), Letters())
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "current").write_text("nonsense")

    seen = {one.name: one for one in health(Shelf(tmp_path), ["hpc", "code", "vasp"])}

    assert set(seen) == {"hpc", "code", "vasp", "extra"}
    assert (seen["hpc"].passages, seen["hpc"].embedder) == (6, "letters")
    assert seen["hpc"].created.tzinfo and not seen["hpc"].problem
    assert seen["code"].passages == 0 and "names no generation" in seen["code"].problem
    assert seen["vasp"] == Health("vasp")


def test_a_look_that_hangs_holds_up_nobody_else():
    """The second caller gets what was seen before, and is told so."""
    begun, go_on = threading.Event(), threading.Event()
    looks = []

    def look(names):
        looks.append(names)
        if len(looks) > 1:
            begun.set()
            assert go_on.wait(20)
        return [BUILT]

    checkup = Checkup(look, wait_s=0.05)
    assert checkup(["hpc"]) == ((BUILT,), True)
    hanging = threading.Thread(target=checkup, args=(["hpc"],))
    hanging.start()
    assert begun.wait(20)

    assert checkup(["hpc"]) == ((BUILT,), False)

    go_on.set()
    hanging.join(20)
    assert len(looks) == 2


def test_the_server_serves_both(tmp_path):
    """As `ofa serve` puts it together, with its own index and pace."""
    put(tmp_path / "state" / "rag", parsed("hpc", HPC), Letters())
    words = "word " * 20
    script = [[{"text": words}, {"wait_s": 0.01}, {"text": words}]]
    with serving(tmp_path, script, rag__enabled=True) as client:
        page = client.ask("GET", "/ofa", headers={"Authorization": ""})
        chat = {"model": "ofa-hpc", "messages": [{"role": "user", "content": "Hi!"}]}
        assert client.chat(chat)[0] == 200
        told = client.ask("GET", "/v1/ofa/status")
        check("GET", "/v1/ofa/status", told)

    assert page[0] == 200
    assert b'"name":"hpc"' in told[2] and b'"passages":6' in told[2]
    assert b'"decode_per_s":null' not in told[2]
