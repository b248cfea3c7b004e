"""`GET /v1/ofa/byok`: the laptop needs no more than curl."""

import json
from urllib.parse import quote

import pytest

from ofa import byok
from ofa.web_ofa import routes

from .running import serving
from .web_fakes import AUTH, KEY, Site, services


@pytest.fixture
def site():
    """Run a server with the routes."""
    parts = services()
    more = routes(parts.modes, parts.limits, name="OFA (Test)", keyed=True)
    opened = Site(more=more)
    yield opened
    opened.close()


def url_of(got):
    """Return the URL of an answer's first model."""
    return got.json[0]["models"][0]["url"]


def test_it_is_a_whole_file(site):
    """What `byok write` would put into an empty one, with the caller's own key."""
    got = site.ask("GET", "/v1/ofa/byok")

    base_url = f"http://127.0.0.1:{site.port}/v1"
    parts = services()
    each = [(mode, parts.limits("")) for mode in parts.modes]
    group = byok.entry(each, base_url, name="OFA (Test)", key=KEY)
    assert got.status == 200
    assert got.body.decode() == byok.merge("", group)
    assert got.headers["content-type"] == "application/json"
    assert got.headers["cache-control"] == "no-store", "it holds a key"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("localhost:41000", 41000),
        ("127.0.0.1", 80),
        ("[::1]:41001", 41001),
        ("[::1]", 80),
    ],
)
def test_the_port_is_the_one_the_request_came_to(site, host, port):
    """At the laptop's end of a tunnel, which the server can't know otherwise."""
    got = site.ask("GET", "/v1/ofa/byok", headers={**AUTH, "Host": host})

    assert url_of(got) == f"http://127.0.0.1:{port}/v1/chat/completions"


def test_another_port_may_be_asked_for(site):
    """For a file that is made here and used there."""
    got = site.ask("GET", "/v1/ofa/byok?port=45678")

    assert url_of(got) == "http://127.0.0.1:45678/v1/chat/completions"


@pytest.mark.parametrize("port", ["0", "65536", "x", "", "-1", "٣", "1" * 50])
def test_a_port_that_is_none_is_refused(site, port):
    """The parameter is named, its value not repeated."""
    got = site.ask("GET", f"/v1/ofa/byok?port={quote(port)}")

    assert (got.status, got.error["param"]) == (400, "port")


def test_the_key_is_left_out_on_request(site):
    """For one that is entered in VS Code."""
    got = site.ask("GET", "/v1/ofa/byok?key=ui")

    assert got.status == 200
    assert KEY.encode() not in got.body


def test_another_place_for_the_key_is_refused(site):
    """A typing error must not put the key where it was not wanted."""
    got = site.ask("GET", "/v1/ofa/byok?key=u1")

    assert (got.status, got.error["param"]) == (400, "key")
    assert KEY.encode() not in got.body


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer ofa-wrong"}])
def test_nobody_without_the_key_gets_it(site, headers):
    """The key in it is the caller's own."""
    got = site.ask("GET", "/v1/ofa/byok", headers=headers)

    assert got.status == 401
    assert KEY.encode() not in got.body


def test_the_server_serves_it(tmp_path):
    """As `ofa serve` puts it together, with its own key and true limits."""
    with serving(tmp_path, site__name="Kestrel") as client:
        status, headers, body = client.ask("GET", "/v1/ofa/byok")

    (group,) = json.loads(body)
    assert (status, group["name"]) == (200, "OFA (Kestrel)")
    assert client.key in group["models"][0]["requestHeaders"]["Authorization"]
    assert group["models"][0]["maxInputTokens"] == 131072 - 8192


def test_a_key_sent_in_another_form_is_put_into_the_one_vscode_sends(tmp_path):
    """Any of the five header forms will do for curl."""
    with serving(tmp_path) as client:
        named = {"Authorization": "", "x-api-key": client.key}
        _, _, body = client.ask("GET", "/v1/ofa/byok", headers=named)

    (group,) = json.loads(body)
    sent = group["models"][0]["requestHeaders"]
    assert sent == {"Authorization": f"Bearer {client.key}"}


def test_a_server_without_keys_gives_none(tmp_path):
    """Nothing that a client happens to send ends up in its file."""
    with serving(tmp_path, server__auth=False) as client:
        sent = {"Authorization": "Bearer something-else"}
        status, _, body = client.ask("GET", "/v1/ofa/byok", headers=sent)

    assert status == 200
    assert b"requestHeaders" not in body
