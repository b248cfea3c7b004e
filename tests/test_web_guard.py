"""The guard's rules, one by one, without a server."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ofa.errors import Forbidden, UnsupportedMediaType
from ofa.web_guard import (
    check_host,
    check_media_type,
    check_origin,
    cors_headers,
    header_value,
    ignored_header,
    log_field,
    normal_path,
    preflight_headers,
    request_id,
)

# No deadline: the machine may be busy with other things.
QUICK = settings(deadline=None, max_examples=100)

ROUTES = {"/healthz", "/readyz", "/v1/models", "/v1/chat/completions"}
PAGE = "http://localhost:3000"
ORIGINS = frozenset({PAGE})


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:49200",
        "localhost.",
        "localhost.:80",
        "127.0.0.1",
        "127.0.0.1:49200",
        "127.1.2.3:1",
        "[::1]",
        "[::1]:49200",
        "[0:0:0:0:0:0:0:1]",
        "node17",
        "NODE17.cluster.example:49200",
        "10.0.0.7:49200",
        "[fd00::7]:49200",
    ],
)
def test_our_own_hosts_pass(host):
    """This machine by any of its names, in any case, with port and final dot."""
    names = {"node17", "node17.cluster.example", "10.0.0.7", "fd00::7"}

    check_host(host, names)


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "evil.example",
        "evil.example:49200",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0.0.0.0",
        "192.168.0.1",
        "[::]",
        "::1",
        "[::1",
        "localhost, evil.example",
        "localhost:80:80",
        "localhost:port",
        "localhost:999999",
        "localhost/",
        "local\u0131host",
        "node17.",
        "x" * 100_000,
    ],
)
def test_foreign_hosts_are_refused(host):
    """A page that rebinds its name to this machine gets nothing."""
    with pytest.raises(Forbidden) as caught:
        check_host(host, frozenset())

    assert (caught.value.status, caught.value.code) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Mode": "cors"},  # VS Code's fetch
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": PAGE},
        {"Origin": PAGE, "Sec-Fetch-Site": "same-site"},
        {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_editors_and_allowed_pages_pass(headers):
    """No Origin, or one that the site has named."""
    check_origin(headers, ORIGINS)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:3001"},
        {"Origin": "http://localhost"},
        {"Origin": "https://localhost:3000"},
        {"Origin": "HTTP://localhost:3000"},
        {"Origin": "http://LOCALHOST:3000"},
        {"Origin": "http://localhost:3000/"},
        {"Origin": "http://a.localhost:3000"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "file://"},
        {"Origin": "chrome-extension://abc"},
        {"Origin": "https://evil.example"},
        {"Origin": PAGE + ", https://evil.example"},
        {"Origin": "*"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "Cross-Site"},
        {"Sec-Fetch-Site": ""},
    ],
)
def test_other_pages_are_refused(headers):
    """Origins are compared exactly; what a browser reports as foreign is refused."""
    with pytest.raises(Forbidden):
        check_origin(headers, ORIGINS)

    assert "Access-Control-Allow-Origin" not in cors_headers(headers, ORIGINS)


def test_cors_headers_only_for_configured_sites():
    """Without configured origins there is not one CORS header; never a star."""
    assert cors_headers({"Origin": PAGE}, frozenset()) == {}
    assert cors_headers({"Origin": "x"}, ORIGINS) == {"Vary": "Origin"}
    allowed = cors_headers({"Origin": PAGE}, ORIGINS)
    assert allowed["Access-Control-Allow-Origin"] == PAGE
    assert allowed["Vary"] == "Origin"


def test_a_preflight_is_told_the_headers_it_asked_for():
    """SDKs in pages add headers of their own; broken lists are not repeated."""
    asked = "authorization,content-type,x-stainless-os"
    headers = {"Access-Control-Request-Headers": asked}

    assert preflight_headers(headers)["Access-Control-Allow-Headers"] == asked
    broken = {"Access-Control-Request-Headers": "a\x00b"}
    assert "Access-Control-Allow-Headers" not in preflight_headers(broken)


@pytest.mark.parametrize(
    "media",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json; charset=us-ascii; x=y",
        "application/json;",
    ],
)
def test_json_in_utf8_is_taken(media):
    """The content type as clients spell it."""
    check_media_type({"Content-Type": media, "Content-Encoding": "identity"})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/jsonp"},
        {"Content-Type": "text/json"},
        {"Content-Type": "application/json, text/plain"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "application/json", "Content-Encoding": "br"},
        {"Content-Type": "application/json", "Content-Encoding": "identity, gzip"},
    ],
)
def test_other_bodies_are_refused(headers):
    """What a form can send, what must be unpacked, what isn't UTF-8."""
    with pytest.raises(UnsupportedMediaType):
        check_media_type(headers)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("//v1///models//", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/models", "/v1/models"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/v1/models", "/v1/models"),
        ("/v1/./models", "/v1/models"),
        ("/v1/x/../models", "/v1/models"),
        ("/../../v1/models", "/v1/models"),
        ("/v1/models/..", "/v1"),
        ("/healthz/", "/healthz"),
        ("/v1/healthz", "/v1/healthz"),
        ("/V1/MODELS", "/V1/MODELS"),
        ("/v1/models;x=1", "/v1/models;x=1"),
        ("/", "/"),
        ("", "/"),
        ("*", "/*"),
    ],
)
def test_R061_paths_are_put_right(path, normal):
    """Slashes, dots and /v1 as people get them wrong; case is kept."""
    assert normal_path(path, ROUTES.__contains__) == normal


@QUICK
@given(st.text(alphabet="/.v1modelschat;% ", max_size=40))
def test_a_normal_path_stays_as_it_is(path):
    """Putting right twice changes nothing, and no dot segment is left."""
    normal = normal_path(path, ROUTES.__contains__)

    assert normal_path(normal, ROUTES.__contains__) == normal
    assert normal.startswith("/")
    assert not {"..", "."} & set(normal.split("/"))
    assert "//" not in normal


def test_a_given_request_id_is_kept_if_harmless():
    """A client's id ties its log to ours; anything else is replaced."""
    assert request_id("0a1b-2C_3") == "0a1b-2C_3"
    for given_id in ("", "a b", "a\nb", "x" * 65, "ü", "a\x1b[31m"):
        made = request_id(given_id)
        assert made.startswith("req_")
        assert made != request_id(given_id)


LOG_PAYLOADS = [
    "a\nb",
    "a\r\nb",
    "\x1b[2Jclear",
    "\x1b]0;title\x07",
    "a\u2028b",
    "a\u2029b",
    "a\x85b",
    "a\x0bb",
    "a\x0cb",
    "\x00",
    "\x7f",
    "\x9b31m",
    "\u202eevil",
    "\ud800",
    "x" * 10_000,
    "é" * 10_000,
    "req_1 GET /v1/models 200",
    "{}%s%n$(id)`id`",
]


@pytest.mark.parametrize("payload", LOG_PAYLOADS)
def test_H18_log_fields_stay_on_one_line(payload):
    """Whatever a client sends, a field is one short printable word."""
    field = log_field(payload)

    assert field.isprintable()
    assert field.isascii()
    assert len(field.split()) == 1
    assert len(field) <= 200


def test_an_empty_log_field_is_visible():
    """Columns stay countable."""
    assert log_field("") == "-"


@pytest.mark.parametrize("payload", LOG_PAYLOADS)
def test_H17_header_values_are_clean(payload):
    """No value can end its line, and none grows without bound."""
    value = header_value(payload)

    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= 1024


def test_the_ignored_header_is_bounded():
    """At most eight names, each cut and made of harmless characters."""
    assert ignored_header(["foo", "foo", "a.b-c_d"]) == "foo, a.b-c_d"
    assert ignored_header(["a\r\nx: y", "ü"]) == "a__x__y, _"
    many = ignored_header([f"f{i}" + "x" * 200 for i in range(20)])
    assert many.endswith("and 12 more")
    assert len(many) < 8 * 66 + 20
