"""Routes, key, hosts, errors and logs, over a real server."""

import http.client
import json
import logging

import pytest
from werkzeug.exceptions import ImATeapot

from ofa.chat import Call, End, Text, ToolCall, Usage
from ofa.engine.base import Limits, Status
from ofa.errors import (
    BadRequest,
    Cancelled,
    ContextLengthExceeded,
    EngineError,
    EngineTimeout,
    NotReady,
    Overloaded,
    ShuttingDown,
)
from ofa.modes import CREATED, SEED_MODES
from ofa.web import ChatRules, Page, Route, Services, WebSettings, create_app

from .web_fakes import (
    AUTH,
    KEY,
    FakeAnswerer,
    FakeReply,
    Lines,
    Refusing,
    Site,
    chat_body,
    post,
    scripted,
    services,
)

PAGE = "http://localhost:3000"
SPELLINGS = [
    "/v1/models",
    "//v1/models",
    "/v1/models/",
    "/v1//models",
    "/V1/MODELS",
    "/v1/./models",
    "/v1/../v1/models",
    "/v1/%6dodels",
    "/v1/models;x=1",
    "/v1/models?key=" + KEY,
    "/v1/models/ofa-hpc",
    "/models",
    "/v1/v1/models",
    "/v1/chat/completions",
    "/chat/completions",
    "/readyz",
    "/readyz/",
    "//healthz",
    "/healthz/",
    "/healthz/x",
    "/v1/healthz",
    "/health",
    "/",
    "*",
    "/v1",
    "/static/x",
    "/favicon.ico",
    "/.env",
    "/metrics",
    "/v1/%2e%2e/healthz",
]


@pytest.fixture(scope="module")
def site():
    """A server with an Answerer that says Hello."""
    opened = Site()
    yield opened
    opened.close()


def test_healthz_is_open_and_says_only_ok(site):
    """The liveness probe tells no version, model, name or path."""
    got = site.ask("GET", "/healthz", headers={})

    assert (got.status, got.body) == (200, b'{"status":"ok"}')
    assert "server" not in got.headers


def test_readyz_tells_why_not(open_site):
    """503 with the reason while the model loads; the key is needed."""
    loading = open_site(status=lambda: Status(False, "loading the model"))

    got = loading.ask("GET", "/readyz")

    assert got.status == 503
    assert got.json == {"status": "unavailable", "reasons": ["loading the model"]}
    assert got.headers["retry-after"]
    assert loading.ask("GET", "/healthz").status == 200
    assert loading.ask("GET", "/readyz", headers={}).status == 401


def test_readyz_says_ready(site):
    """200 when chats can be answered."""
    assert site.ask("GET", "/readyz").json == {"status": "ready"}


def test_readyz_tells_what_is_in_use(open_site):
    """The engine's own words for people and probes: its BLAS, what it keeps."""
    status = Status(True, details={"blas": "mkl 1, threads: 2", "running": "0"})

    got = open_site(status=lambda: status).ask("GET", "/readyz")

    assert got.json == {"status": "ready", **status.details}


def test_models_lists_the_modes(site):
    """Each mode is a model with its limits; `created` never changes."""
    got = site.ask("GET", "/v1/models").json

    assert got["object"] == "list"
    assert [model["id"] for model in got["data"]] == [mode.id for mode in SEED_MODES]
    assert got["data"][1] == {
        "id": "ofa-hpc",
        "object": "model",
        "created": CREATED,
        "owned_by": "ofa",
        "name": "OFA · HPC",
        "context_window": 32768,
        "max_output_tokens": 4096,
        "capabilities": ["text", "tools"],
    }
    assert site.ask("GET", "/v1/models/ofa-hpc").json == got["data"][1]


def test_capabilities_are_the_engines(open_site):
    """Only what the engine can do is promised."""
    seeing = open_site(limits=lambda _: Limits(8192, 1024, vision=True))

    got = seeing.ask("GET", "/v1/models/ofa-code").json

    assert got["capabilities"] == ["text", "image"]
    assert (got["context_window"], got["max_output_tokens"]) == (8192, 1024)


def test_an_unknown_model_is_404(site):
    """The error names those on offer, in both places, and before other mistakes."""
    for got in (
        site.ask("GET", "/v1/models/gpt-5"),
        site.chat(model="gpt-5"),
        site.chat(model="gpt-5", temperature="hot", stream=True),
    ):
        assert got.status == 404
        assert (got.error["code"], got.error["param"]) == ("model_not_found", "model")
        assert "ofa-hpc" in got.error["message"]


def test_a_chat_is_answered(open_site):
    """The request reaches the Answerer parsed; the answer comes back whole."""
    answering = open_site(FakeAnswerer(headers={"x-ofa-rag": "hit; n=2; tokens=100"}))

    got = answering.chat({**AUTH, "User-Agent": "tester/1"}, temperature=0, mystery=1)

    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-ofa-rag"] == "hit; n=2; tokens=100"
    assert got.headers["x-ofa-ignored"] == "mystery"
    assert got.json["choices"][0]["message"]["content"] == "Hello"
    assert got.json["usage"]["total_tokens"] == 10
    assert got.json["model"] == "ofa-hpc"
    (chat,), (caller,) = answering.answerer.chats, answering.answerer.callers
    assert (chat.model, chat.sampling.temperature) == ("ofa-hpc", 0)
    assert (caller.key_id, caller.user_agent) == ("key-1", "tester/1")


def test_replies_are_closed_when_read(site):
    """Whoever opens, closes: also an answer that ended by itself."""
    site.chat()
    site.chat(stream=True)

    assert all(reply.closed.wait(5) for reply in site.answerer.replies)


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "OPTIONS", "TRACE"])
def test_R059_everything_but_the_probe_needs_the_key(site, path, method):
    """No spelling of any path, no method, no query gets in without the key."""
    got = site.ask(method, path, headers={})

    assert got.status == 401, (method, path)
    if method != "HEAD":
        assert got.error["code"] == "invalid_api_key"
    told = got.body.decode() + str(got.headers)
    assert not [
        word for word in ("ofa-hpc", "lask", "aitress", "OpenFOAM") if word in told
    ]


def test_R059_absolute_form_needs_the_key(site):
    """A request line with a whole URL is judged like any other."""
    line = b"GET http://127.0.0.1/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n"

    assert b" 401 " in site.raw(line + b"Connection: close\r\n\r\n")
    authorized = line + f"Authorization: Bearer {KEY}\r\n".encode()
    assert b" 200 " in site.raw(authorized + b"Connection: close\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_the_probe_is_open_for_reading_only(site, method):
    """Other methods of /healthz are like any other path."""
    assert site.ask(method, "/healthz", headers={}).status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions?api-version=1",
        "/v1/./chat/completions",
        "/v1/chat%2Fcompletions",
    ],
)
def test_R061_misspelt_paths_are_served(site, path):
    """The same answer, without a redirect that would lose the body."""
    got = site.ask("POST", path, chat_body())

    assert got.status == 200
    assert got.json["choices"][0]["message"]["content"] == "Hello"


@pytest.mark.parametrize("path", ["/v1/nope", "/V1/MODELS", "/v1/models;x=1", "/", "*"])
def test_unknown_paths_are_json_404_with_the_key(site, path):
    """The error names the right paths; nothing is HTML."""
    got = site.ask("GET", path)

    assert (got.status, got.error["code"]) == (404, "not_found")
    assert "/v1/chat/completions" in got.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
        ("PUT", "/v1/chat/completions", "OPTIONS, POST"),
        ("HEAD", "/v1/chat/completions", "OPTIONS, POST"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/ofa-hpc", "GET, HEAD, OPTIONS"),
        ("TRACE", "/v1/models", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/models", "GET, HEAD, OPTIONS"),
    ],
)
def test_R062_wrong_methods_are_told_the_right_ones(site, method, path, allow):
    """405 with Allow, in the form of all errors."""
    got = site.ask(method, path)

    assert got.status == 405
    assert got.headers["allow"] == allow
    if method != "HEAD":
        assert got.error["code"] == "method_not_allowed"


def test_R062_options_with_the_key(site):
    """204 with Allow and no body; 404 where there is nothing."""
    got = site.ask("OPTIONS", "/v1/chat/completions")

    assert (got.status, got.body) == (204, b"")
    assert got.headers["allow"] == "OPTIONS, POST"
    assert "content-type" not in got.headers
    assert site.ask("OPTIONS", "/v1/nope").status == 404


def test_head_is_get_without_a_body(site):
    """Same status and length, no bytes."""
    got, head = site.ask("GET", "/v1/models"), site.ask("HEAD", "/v1/models")

    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert site.ask("HEAD", "/healthz", headers={}).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        (b"Host: evil.example:49200", b"Origin: http://evil.example:49200"),
        (b"Host: evil.example",),
        (b"Host: 127.0.0.1, evil.example",),
        (b"Host: 192.168.1.1",),
        (b"Host: 127.0.0.1", b"Origin: https://evil.example"),
        (b"Host: 127.0.0.1", b"Origin: null"),
        (b"Host: 127.0.0.1", b"Sec-Fetch-Site: cross-site"),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"OPTIONS"])
@pytest.mark.parametrize("path", [b"/v1/models", b"/healthz"])
def test_R055_pages_elsewhere_get_403(site, lines, method, path):
    """A foreign Host or Origin is refused even with the good key, without CORS."""
    head = [method + b" " + path + b" HTTP/1.1", *lines, b"Connection: close"]
    head.append(f"Authorization: Bearer {KEY}".encode())
    head.append(b"Access-Control-Request-Method: GET")

    got = site.raw(b"\r\n".join(head) + b"\r\n\r\n")

    assert got.startswith(b"HTTP/1.1 403 ")
    assert b"access-control" not in got.lower()
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"]


def test_R055_text_bodies_are_refused(site):
    """What a form can send without a preflight is 415 with the key, 401 without."""
    for media in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "",
    ):
        headers = {**AUTH, "Content-Type": media}
        assert site.chat(headers).status == 415
        assert site.chat({"Content-Type": media}).status == 401
    assert site.chat({**AUTH, "Content-Encoding": "gzip"}).status == 415
    assert site.chat({**AUTH, "Content-Type": "application/json; charset=utf-8"}).json


def test_configured_hosts_are_ours(open_site):
    """A compute node's own name works once it is configured."""
    node = open_site(settings=WebSettings(allowed_hosts=frozenset({"node17"})))

    assert node.ask(
        "GET", "/v1/models", headers={**AUTH, "Host": "NODE17:5"}
    ).status == (200)
    assert node.ask("GET", "/v1/models", headers={**AUTH, "Host": "node18"}).status == (
        403
    )


def test_R056_a_configured_page_may_ask(open_site):
    """Its preflight needs no key and is told what it asked; the POST needs the key."""
    answering = open_site(settings=WebSettings(allowed_origins=frozenset({PAGE})))
    asked = "authorization,content-type,x-stainless-os"
    preflight = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked,
    }

    got = answering.ask("OPTIONS", "/v1/chat/completions", headers=preflight)

    assert got.status == 204
    assert got.headers["access-control-allow-origin"] == PAGE
    assert got.headers["access-control-allow-headers"] == asked
    assert got.headers["vary"] == "Origin"
    answer = answering.chat({**AUTH, "Origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = answering.chat({"Origin": PAGE})
    assert refused.status == 401
    assert answering.ask("GET", "/v1/models").headers["vary"] == "Origin"
    other = {**preflight, "Origin": "http://localhost:3001"}
    got = answering.ask("OPTIONS", "/v1/chat/completions", headers=other)
    assert got.status == 403
    assert "access-control-allow-origin" not in got.headers


def test_vscodes_own_headers_pass(site):
    """Its fetch says sec-fetch-mode: cors without an Origin."""
    headers = {
        **AUTH,
        "User-Agent": "GitHubCopilotChat/0.67.0",
        "sec-fetch-mode": "cors",
        "accept-language": "*",
        "OpenAI-Intent": "conversation-other",
        "X-Request-Id": "00000000-0000-4000-8000-000000000000",
    }

    got = site.chat(headers)

    assert got.status == 200
    assert got.headers["x-request-id"] == headers["X-Request-Id"]


def test_security_headers_are_on_every_answer(site):
    """Also on errors of every kind, and on those of the server's core."""
    for got in (
        site.ask("GET", "/healthz", headers={}),
        site.ask("GET", "/v1/models"),
        site.ask("GET", "/nope"),
        site.ask("POST", "/v1/models"),
        site.chat(),
        site.chat(headers={}),
        site.chat(stream=True),
        site.ask("POST", "/v1/chat/completions", b"{"),
    ):
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["cross-origin-resource-policy"] == "same-origin"
        assert got.headers["x-request-id"]
        assert "no-" in got.headers["cache-control"]


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (BadRequest("messages: no", param="messages"), 400, "invalid_value", None),
        (ContextLengthExceeded("9 of 8"), 400, "context_length_exceeded", None),
        (Overloaded("full"), 429, "queue_full", "5"),
        (NotReady("loading"), 503, "not_ready", "10"),
        (ShuttingDown("bye"), 503, "server_shutdown", "5"),
        (EngineError("broke"), 502, "engine_error", None),
        (EngineTimeout("slow"), 504, "engine_timeout", None),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_refusals_are_statuses_also_for_streams(
    open_site, error, status, code, retry, streaming
):
    """What fails before the stream opens is an HTTP error with a JSON body."""
    refusing = open_site(Refusing(error))

    got = refusing.chat(stream=streaming)

    assert (got.status, got.error["code"]) == (status, code)
    assert got.error["message"] == str(error)
    assert got.headers["content-type"] == "application/json"
    assert got.headers.get("retry-after") == retry


def test_a_defect_tells_the_client_nothing(open_site, caplog):
    """500 with a fixed text; the log has the place on one line, but no content."""
    broken = open_site(Refusing(RuntimeError("secret prompt text")))

    with caplog.at_level(logging.ERROR, "ofa.web"):
        got = broken.chat()

    assert (got.status, got.error["code"]) == (500, "internal_error")
    assert b"secret" not in got.body
    (record,) = caplog.records
    assert "RuntimeError" in record.getMessage()
    assert "secret" not in caplog.text
    assert "\n" not in record.getMessage()


def test_an_engines_defect_in_a_whole_answer(open_site):
    """The blocking answer of a broken engine is a 500, and its reply is closed."""
    broken = open_site(scripted(Text("half"), ValueError("secret")))

    got = broken.chat()

    assert got.status == 500
    assert b"secret" not in got.body
    assert broken.answerer.replies[0].closed.is_set()


@pytest.mark.parametrize("error", [EngineError("oom", code="engine_oom"), None])
def test_a_failed_engine_in_a_whole_answer(open_site, error):
    """A blocking answer is never half: an error, or nothing after all."""
    script = (Text("half"), error) if error else (Text("half"),)
    failing = open_site(scripted(*script))

    got = failing.chat()

    assert got.status == 502
    assert got.error["code"] == ("engine_oom" if error else "engine_error")


def test_body_limits(open_site):
    """Exactly the limit is fine, one byte more is 413, by length and by chunks."""
    limit = 2000
    small = open_site(max_body_bytes=limit, settings=WebSettings(max_body_bytes=limit))

    def sized(size):
        bare = len(json.dumps(chat_body(user="")))
        return json.dumps(chat_body(user="x" * (size - bare))).encode()

    def chunked(body):
        connection = http.client.HTTPConnection("127.0.0.1", small.port, timeout=10)
        headers = {**AUTH, "Content-Type": "application/json"}
        pieces = (body[i : i + 700] for i in range(0, len(body), 700))
        connection.request(
            "POST", "/v1/chat/completions", pieces, headers, encode_chunked=True
        )
        answer = connection.getresponse()
        got = answer.status, json.loads(answer.read())
        connection.close()
        return got

    assert len(sized(limit)) == limit
    assert small.ask("POST", "/v1/chat/completions", sized(limit)).status == 200
    assert chunked(sized(limit))[0] == 200
    got = small.ask("POST", "/v1/chat/completions", sized(limit + 1))
    assert (got.status, got.error["code"]) == (413, "request_too_large")
    status, body = chunked(sized(limit + 1))
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert small.chat().status == 200


def test_the_apps_own_limits_are_json_too(open_site):
    """What Flask and werkzeug refuse by themselves has the form of all errors."""

    def teapot(asked):
        raise ImATeapot

    site = open_site(
        settings=WebSettings(max_body_bytes=100), more=[Route("/tea", ("GET",), teapot)]
    )

    got = site.chat(user="x" * 200)

    assert (got.status, got.error["code"]) == (413, "request_too_large")
    assert "100 bytes" in got.error["message"]
    assert site.ask("GET", "/tea").error["code"] == "invalid_value"


def test_json_has_a_limit_beside_images(open_site):
    """Pictures may be large where text may not."""
    rules = ChatRules(max_json_bytes=1000)
    small = open_site(settings=WebSettings(chat=rules))
    url = "data:image/png;base64," + "A" * 5000
    part = {"type": "image_url", "image_url": {"url": url}}

    assert small.chat(messages=[{"role": "user", "content": [part]}]).status == 200
    assert small.chat(messages=[{"role": "user", "content": "A" * 5000}]).status == 413


def test_a_strict_site_refuses_unknown_fields(open_site):
    """[api] unknown_fields = "refuse" is a 400 that names them, for streams too."""
    rules = ChatRules(refuse_unknown=True)
    strict = open_site(settings=WebSettings(chat=rules))

    got = strict.chat(stream=True, mystery=1)

    assert (got.status, got.error["code"]) == (400, "unknown_parameter")
    assert got.error["param"] == "mystery"


def test_more_routes_are_guarded_like_the_others(open_site):
    """A route from elsewhere gets a request that passed the guard; it returns JSON."""

    def byok(asked):
        return {"host": asked.headers["Host"], "q": asked.query.get("q"), **asked.args}

    def text(asked):
        return Page("a\n", media="text/plain", headers={"x-note": "one\r\nline"})

    more = (
        Route("/v1/ofa/byok/<kind>", ("GET",), byok),
        Route("/metrics", ("GET",), text),
    )
    site = open_site(more=more)

    got = site.ask("GET", "/v1/ofa/byok/vscode?q=1")

    assert got.json == {"host": f"127.0.0.1:{site.port}", "q": "1", "kind": "vscode"}
    assert site.ask("GET", "/ofa/byok/x").status == 200
    assert site.ask("GET", "/v1/ofa/byok/x", headers={}).status == 401
    page = site.ask("GET", "/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert page.headers["x-note"] == "one??line"
    assert site.ask("POST", "/metrics").status == 405


def test_R029_tools_may_be_ignored_but_are_told(open_site):
    """The Answerer's headers go out beside a normal answer."""
    told = {"x-ofa-tools": "ignored; this server's engine does not call tools"}
    site = open_site(FakeAnswerer(headers=told))
    tool = {"type": "function", "function": {"name": "read_note"}}

    got = site.chat(tools=[tool], tool_choice="auto")

    assert got.status == 200
    assert got.headers["x-ofa-tools"] == told["x-ofa-tools"]


def test_tool_calls_come_back_whole(open_site):
    """Text and calls stand side by side, arguments as a string."""
    call = ToolCall("call_1", "read_note", {"path": "a.txt"})
    site = open_site(scripted(Text("ok"), Call(call), End("tools", Usage(1, 2))))

    (choice,) = site.chat().json["choices"]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "ok"
    (wire,) = choice["message"]["tool_calls"]
    assert wire["id"] == "call_1"
    assert json.loads(wire["function"]["arguments"]) == {"path": "a.txt"}


def test_R031_R032_all_shapes_of_history_reach_the_engine(site):
    """System text in any place, runs of one role, orphan results: 200."""
    say = [("system", "A"), ("system", "B"), ("user", "hi"), ("system", "C")]
    messages = [{"role": role, "content": text} for role, text in say]
    messages += [
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "yo"},
        {"role": "tool", "tool_call_id": "gone", "content": "late"},
        {"role": "user", "content": "bye"},
    ]

    assert site.chat(messages=messages).status == 200
    assert [m.text for m in site.answerer.chats[-1].messages] == (
        ["A", "B", "hi", "C", "again", "yo", "late", "bye"]
    )


def test_R064_the_default_output_limit_is_the_one_that_is_told(open_site):
    """/v1/models and the engine share one number; "length" is the engine's own word."""
    site = open_site(scripted(Text("cut"), End("length", Usage(1, 8))))

    got = site.chat(max_tokens=8, stream=True)

    assert got.frames[-2]["choices"][0]["finish_reason"] == "length"
    assert site.answerer.chats[0].sampling.max_tokens == 8
    assert site.ask("GET", "/v1/models").json["data"][0]["max_output_tokens"] == 4096


def test_R073_text_goes_round_unchanged(open_site):
    """CR, LF, tabs, separators and trailing blanks survive both ways, streamed too."""
    text = "Change:\r\n```c\r\nint x;\r\n\tint z;\r```\u2028\u2029\x85 end  \n\n"

    def echo(chat):
        return FakeReply([Text(chat.messages[-1].text), End("stop")])

    site = open_site(FakeAnswerer(echo))
    asked = [{"role": "user", "content": text}]

    whole = site.chat(messages=asked).json["choices"][0]["message"]["content"]
    streamed = site.chat(messages=asked, stream=True)

    assert whole == text
    assert all(
        len(line.splitlines()) <= 1 for line in streamed.body.decode().split("\n")
    )
    assert streamed.frames[1]["choices"][0]["delta"]["content"] == text


CANARY = "canary-4711"


def test_one_log_line_a_request_without_content(site, caplog):
    """Who, what model, how long: never what was said, and never the key."""
    with caplog.at_level(logging.DEBUG), Lines("ofa.access") as log:
        named = {**AUTH, "X-Request-Id": "one-line"}
        said = [{"role": "user", "content": CANARY}]
        site.chat(named, messages=said, stop=[CANARY])
        site.chat(named, messages=said, stream=True)
        site.chat(named, messages=CANARY)
        site.chat({**named, "Authorization": f"Bearer {CANARY}"})
        site.ask("GET", "/v1/models?key=" + CANARY, headers=named)
        site.ask("POST", "/v1/chat/completions", CANARY.encode(), named)
        lines = log.wait(5, "one-line")

    assert len(lines) == 5  # the wrong key was refused before the app
    assert site.refused[-1] == (401, "invalid_api_key")
    assert CANARY not in caplog.text
    assert KEY[4:] not in caplog.text
    whole = next(line for line in lines if "messages=1 stream=False" in line)
    assert "200" in whole
    assert "model=ofa-hpc mode=hpc outcome=stop prompt=7 completion=3" in whole
    assert sum(" 400 " in line for line in lines) == 2


@pytest.mark.parametrize(
    "payload", ["a\nb", "a\r\n\x1b[31mb", "\u2028x", "\x85y", "x" * 5000, "é" * 300]
)
def test_H18_a_model_name_cannot_forge_a_log_line(site, payload):
    """What a client names itself stays one escaped, bounded word."""
    with Lines("ofa.access") as log:
        named = {**AUTH, "X-Request-Id": "forged"}
        site.chat(named, model=payload)
        site.ask("GET", "/v1/models/" + "a%C2%9B31m" * 50, headers=named)
        lines = log.wait(2, "forged")

    assert len(lines) == 2
    for line in lines:
        assert line.isprintable()
        assert line.isascii()
        assert len(line) < 700


def test_a_client_gone_before_a_whole_answer(open_site):
    """The engine's word for a closed reply is a status nobody reads."""
    site = open_site(scripted(Cancelled("closed")))

    assert site.chat().status == 499


def test_services_are_plain_values():
    """The app is made from callables; making it starts nothing and reads no files."""
    app = create_app(services())

    assert isinstance(services(), Services)
    with app.test_client() as client:
        assert client.get("/healthz").json == {"status": "ok"}


def test_pipelined_requests_are_answered_in_order(site):
    """Two requests in one packet: two answers, the first one first."""
    first = post(chat_body())
    second = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    got = site.raw(first + second)

    assert got.count(b"HTTP/1.1 200") == 2
    assert got.index(b"chat.completion") < got.index(b'{"status":"ok"}')
