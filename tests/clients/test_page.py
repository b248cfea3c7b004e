"""
The page at /ofa in a real browser, as a person uses it.

Runs where a chromium is on the PATH; is skipped elsewhere.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from ..browser import CHROMIUM, browser
from ..rag.shelves import HPC, Letters, parsed, put
from ..running import serving

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="needs a chromium on the PATH"),
    pytest.mark.timeout(120),
]

HOSTILE = """
slurm/xss.md | <img src=x onerror="document.title='bad'"> Accounting
Accounting with sacct shows </pre><script>document.title = "bad"</script> the memory
of a job <b>after</b> it ended. </textarea></details> &lt;script&gt; and $& too.
"""
QUESTION = "start a job after another ended without error"
SHOWN = "document.querySelector('#results').childElementCount > 0"
INSIDE = "!document.querySelector('#inside').hidden"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Run a whole server with an index, of which one collection is damaged."""
    folder = tmp_path_factory.mktemp("page")
    state = folder / "state"
    put(state / "rag", parsed("hpc", f"{HPC}---{HOSTILE}"), Letters())
    own = parsed("notes", "me.md | Mine\nMy allocation is named tulip.", private=True)
    put(state / "private", own, Letters())
    (state / "rag" / "vasp").mkdir()
    (state / "rag" / "vasp" / "current").write_text("nonsense")
    with serving(folder, rag__enabled=True, rag__floor=-1) as client:
        yield client


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Run a browser; what is kept in its tab is emptied for each test."""
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(opened, client):
    """Open the page as somebody who comes for the first time."""
    url = f"http://127.0.0.1:{client.port}"
    opened.open(f"{url}/healthz")  # the same origin, without the page at work
    opened.run("sessionStorage.clear()")
    opened.open(f"{url}/ofa")
    opened.wait("!document.querySelector('#door').hidden")
    return opened


def enter(page, key):
    """Type a key and press Enter."""
    page.type("#key", key)
    page.press("Enter", 13)


def search(page, client, question, model="ofa-hpc"):
    """Enter, choose a model and ask."""
    enter(page, client.key)
    page.wait(INSIDE)
    page.run(f"document.querySelector('#mode').value = {json.dumps(model)}")
    page.type("#question", question)
    page.press("Enter", 13)
    page.wait(SHOWN)


def test_it_asks_for_the_key_and_shows_the_server(page, client):
    """Collections with counts, age and health, the queue, the modes to choose."""
    enter(page, client.key)
    page.wait(INSIDE)

    text = page.text
    assert "ready" in text and "Answering" in text and "0 of 4" in text
    assert "hpc\t7\tunder a minute" in text
    assert "names no generation" in text, "what is wrong with vasp"
    assert "notes (private)" in text and "not built" in text
    assert page.run("document.querySelector('#mode').options.length") == 8
    assert [line for line in page.complaints if "401" not in line] == []


def test_a_wrong_key_is_said_and_another_one_can_be_tried(page, client):
    """Nothing of the server is shown, and the field is ready for the next."""
    enter(page, "ofa-wrong")
    page.wait("!document.querySelector('#trouble').hidden")

    assert "key" in page.run("document.querySelector('#trouble').textContent")
    assert page.run("document.querySelector('#inside').hidden")
    assert page.run("document.activeElement.id") == "key"

    enter(page, client.key)
    page.wait(INSIDE)
    assert page.run("document.querySelector('#trouble').hidden")


def test_what_is_no_key_is_not_sent(page):
    """A browser could not put it into a header, and would blame the server."""
    enter(page, "ключ")
    page.wait("!document.querySelector('#trouble').hidden")

    assert "no key" in page.text
    sent = [request["headers"] for request in page.requested]
    assert not any("Authorization" in headers for headers in sent)


def test_it_follows_the_server_and_leaves_what_is_the_same(page, client):
    """A line that somebody marks to copy it stays; what changed is shown."""
    enter(page, client.key)
    page.wait(INSIDE)
    page.run("window.kept = document.querySelector('#problems, #now').firstChild")
    page.run("document.querySelector('#state').textContent = 'old'")

    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait("document.querySelector('#state').textContent === 'ready'")

    assert page.run("window.kept.isConnected")


def test_a_question_shows_what_the_model_would_see(page, client):
    """The fenced text, where it is from, scores, and the user's own documents."""
    search(page, client, QUESTION)

    shown = page.run("document.querySelector('#results pre').textContent")
    assert shown.startswith("Reference material") and "afterok:JOBID" in shown
    assert "would be injected" in page.run(
        "document.querySelector('#summary').textContent"
    )
    assert "hpc/slurm/after.md" in page.text and "score 1.00" in page.text
    assert "your own documents" in page.text


def test_nothing_found_says_why(page, client):
    """Small talk is not looked up."""
    search(page, client, "Hi!")

    summary = page.run("document.querySelector('#summary').textContent")
    assert summary == "Nothing would be injected: greeting"


def test_documents_stay_text(page, client):
    """Markup in a passage, a path or a heading is shown and does nothing."""
    search(page, client, "accounting with sacct after it ended")

    texts = page.run(
        "[...document.querySelectorAll('#results pre')].map(p => p.textContent)"
    )
    assert any(
        '</pre><script>document.title = "bad"</script>' in text for text in texts
    )
    assert '<img src=x onerror="document.title=' in page.text
    assert page.run("document.querySelectorAll('#results img, #results b').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 1
    assert page.run("document.title") == "OFA"


def test_the_policy_stops_what_the_page_would_not_do(page):
    """Were there a hole, neither HTML from text nor anything from elsewhere gets in."""
    assert (
        page.run(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'in' }"
            " catch (e) { return e.name } })()"
        )
        == "TypeError"
    )
    assert (
        page.run("fetch('http://127.0.0.1:9/').then(() => 'in', (e) => e.name)")
        == "TypeError"
    )
    assert any("Content Security Policy" in line for line in page.complaints)


def test_the_key_is_in_a_header_only(page, client):
    """No address has it, and nothing outlives the tab."""
    search(page, client, QUESTION)

    asked = [request for request in page.requested if "/v1/" in request["url"]]
    urls = [request["url"] for request in page.requested]
    assert {urlsplit(url).netloc for url in urls} <= {f"127.0.0.1:{client.port}", ""}
    assert not any(client.key in url for url in urls)
    assert asked[-1]["headers"]["Authorization"] == f"Bearer {client.key}"
    assert parse_qs(urlsplit(asked[-1]["url"]).query)["q"] == [QUESTION]
    assert client.key not in page.run("location.href + document.cookie")
    assert page.run("localStorage.length") == 0
    assert client.key not in page.run("document.documentElement.outerHTML")


def test_a_reload_keeps_the_key_until_it_is_forgotten(page, client):
    """As long as the tab is open; then the door is shut again."""
    enter(page, client.key)
    page.wait(INSIDE)

    page.open(page.run("location.href"))
    page.wait(INSIDE)
    page.run("document.querySelector('#forget').click()")

    assert page.run("document.querySelector('#inside').hidden")
    assert page.run("sessionStorage.length") == 0
    assert "hpc" not in page.text


def test_it_fits_a_narrow_window(page, client):
    """Of 400 pixels, nothing has to be scrolled sideways."""
    page.resize(400)
    search(page, client, QUESTION)

    assert page.run("document.documentElement.scrollWidth") <= 400
    page.resize(1000)


def test_every_field_has_a_label(page, client):
    """For those who do not see them."""
    enter(page, client.key)
    page.wait(INSIDE)

    assert (
        page.run(
            "[...document.querySelectorAll('input, select, textarea')]"
            ".filter((field) => !field.labels.length).length"
        )
        == 0
    )


def test_a_server_without_keys_opens_at_once(opened, tmp_path):
    """There is nothing to type, and nothing to forget."""
    with serving(tmp_path, server__auth=False) as client:
        opened.open(f"http://127.0.0.1:{client.port}/ofa")
        opened.wait(INSIDE)

        assert "Retrieval is off" in opened.text
        assert opened.run("document.querySelector('#forget').hidden")
