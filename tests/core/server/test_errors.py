"""Bad input is a 4xx with OpenAI's error object before any byte of a stream, on every surface."""

import json
import re

import pytest

HI = [{"role": "user", "content": "hi"}]
SURFACES = {
    "/generate": {"prompt": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": HI},
}
BOTH_MODES = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
EVERY_SURFACE = pytest.mark.parametrize("path", SURFACES)


def refused(live, path, body, status=400):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = live.post(path, data)
    assert reply.status == status, reply.body
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.error()["type"] == "invalid_request_error"
    assert live.post("/generate", {"prompt": "ok"}).body == "→ok".encode(), "the server lives"
    return reply.error()


@EVERY_SURFACE
@BOTH_MODES
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"191222": -100}),
        ("logit_bias", {"-1": 1}),
        ("temperature", -1),
        ("temperature", 1000),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("top_k", -2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", 10**4000),
        ("max_completion_tokens", -1),
        ("stop", ""),
        ("stop", {}),
        ("stop", [1]),
        ("seed", "x"),
        ("model", 7),
        ("stream", "yes"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_wrong_parameter_is_named(live, path, stream, field, value):
    error = refused(live, path, {**SURFACES[path], "stream": stream, field: value})
    assert error["param"].startswith(field.replace("max_completion_tokens", "max_"))


@EVERY_SURFACE
@BOTH_MODES
@pytest.mark.parametrize(
    "literal", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"1" + b"0" * 4400]
)
def test_numbers_that_are_not_json(live, path, stream, literal):
    body = json.dumps({**SURFACES[path], "stream": stream, "temperature": "X"}).encode()
    refused(live, path, body.replace(b'"X"', literal))


@EVERY_SURFACE
@pytest.mark.parametrize("large", [10_000, 10**12])
def test_a_large_token_limit_means_to_the_end_of_the_context(live, path, large):
    reply = live.post(path, {**SURFACES[path], "max_tokens": large, "stop": "i"})
    assert reply.status == 200


@EVERY_SURFACE
@BOTH_MODES
def test_a_prompt_that_is_too_long_names_both_numbers(live, path, stream):
    long = "x" * 9000
    prompt = (
        {"messages": [{"role": "user", "content": long}]} if "chat" in path else {"prompt": long}
    )
    error = refused(live, path, {**prompt, "stream": stream})
    assert error["code"] == "context_length_exceeded"
    assert str(live.model.context_tokens) in error["message"]
    (num_tokens,) = re.findall(r"prompt is too long: it has (\d+) tokens", error["message"])
    assert int(num_tokens) >= 9000


@EVERY_SURFACE
@BOTH_MODES
def test_a_lone_surrogate_is_refused(live, path, stream):
    body = json.dumps({**SURFACES[path], "stream": stream}).replace('"hi"', '"\\ud83d"')
    assert "surrogate" in refused(live, path, body.encode())["message"]


@BOTH_MODES
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "king", "content": "hi"}], "messages[0].role"),
        ([{"role": 1, "content": "hi"}], "messages[0].role"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
    ],
)
def test_a_wrong_message_is_named_by_its_path(live, messages, param, stream):
    for path in ("/v1/chat/completions", "/generate"):
        error = refused(live, path, {"messages": messages, "stream": stream})
        assert error["param"] == param


def test_images_are_refused_by_name(live):
    content = [{"type": "image_url", "image_url": {"url": "x"}}]
    error = refused(
        live, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}
    )
    assert "images are not supported" in error["message"]


def test_text_parts_are_joined_as_they_are(live):
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 2+2?"}]
    counts = [
        live.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}
        ).json()["usage"]["prompt_tokens"]
        for content in (parts, "What is 2+2?")
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("prompt", [[], [[]], [-1], [10**6], [2**70], [1.5], [True], {"a": 1}])
def test_a_prompt_of_wrong_ids_is_refused(live, prompt):
    assert refused(live, "/v1/completions", {"prompt": prompt})["param"].startswith("prompt")


@pytest.mark.parametrize("prompt", ["", [""]])
def test_an_empty_prompt_gets_an_answer_or_a_reason(live, prompt):
    reply = live.post("/v1/completions", {"prompt": prompt, "max_tokens": 4})
    assert reply.status in (200, 400)
    if reply.status == 400:
        assert "empty" in reply.error()["message"]


def test_an_empty_message_gets_an_answer(live):
    reply = live.post("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}]})
    assert reply.status == 200


@pytest.mark.parametrize("body", [{"suffix": "x"}, {"best_of": 2}, {"best_of": 2, "n": 1}])
def test_what_is_not_built_is_refused_and_never_ignored(live, body):
    error = refused(live, "/v1/completions", {"prompt": [[5, 6, 7]], **body})
    assert error["code"] == "unsupported_parameter"


@EVERY_SURFACE
def test_an_unknown_model_is_a_404(live, path):
    error = refused(live, path, {**SURFACES[path], "model": "gpt-9"}, status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "echo" in error["message"]


@EVERY_SURFACE
def test_a_body_over_the_limit_is_a_413(serve_echo, path):
    live = serve_echo(server={"max_body": 2000})
    body = json.dumps({**SURFACES[path], "padding": "x" * 2000}).encode()
    error = refused(live, path, body, status=413)
    assert "2000 bytes" in error["message"]
    with live.connect_chunked(path, body) as stream:
        assert b" 413 " in stream.head()


@EVERY_SURFACE
@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x"])
def test_multipart_is_a_415(live, path, content_type):
    reply = live.post(path, SURFACES[path], Content_Type=content_type)
    assert reply.status == 415
    assert "multipart" in reply.error()["message"]


@EVERY_SURFACE
@pytest.mark.parametrize("charset", ["bogus", "utf-16", "latin-1"])
def test_another_charset_is_a_400(live, path, charset):
    content_type = f"application/json; charset={charset}"
    reply = live.post(path, SURFACES[path], Content_Type=content_type)
    assert reply.status == 400
    assert charset in reply.error()["message"]


@EVERY_SURFACE
def test_a_broken_encoding_is_a_400(live, path):
    reply = live.post(path, b"this is not gzip", Content_Encoding="gzip")
    assert reply.status == 400
    assert reply.error()["code"] in ("invalid_request", "malformed_request")


@EVERY_SURFACE
@pytest.mark.parametrize("encoding", ["snappy", "gzip, gzip"])
def test_an_unknown_encoding_is_a_415(live, path, encoding):
    reply = live.post(path, SURFACES[path], Content_Encoding=encoding)
    assert reply.status == 415
    assert encoding in reply.error()["message"]


def test_a_body_that_breaks_leaves_no_traceback_in_the_log(live, caplog):
    assert live.post("/generate", b"this is not gzip", Content_Encoding="gzip").status == 400
    assert live.get("/health").status == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("path", [*SURFACES, "/nowhere"])
def test_an_unknown_expectation_gets_the_error_object(live, path):
    reply = live.post(path, {"prompt": "hi"}, Expect="miracles")
    assert reply.status == 417
    assert "100-continue" in reply.error()["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/generate", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("GET", "/v1/models/nothing", 404),
    ],
)
def test_wrong_routes_and_methods_get_the_error_object(live, method, path, status):
    reply = live.ask(method, path)
    assert reply.status == status
    assert reply.error()["message"]
    assert ("Allow" in reply.headers) == (status == 405)
    assert len(reply.headers["X-Request-Id"]) == 32


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["header", "path", "nonsense", "length", "many headers", "tls"],
)
def test_what_is_not_http_gets_json_and_no_traceback(live, caplog, data):
    with live.connect_raw(data) as stream:
        assert b" 400 " in stream.head()
        assert json.loads(stream.rest())["error"]["code"] == "malformed_request"
    assert "Traceback" not in caplog.text
    assert "aaaa" not in caplog.text
    assert live.get("/health").status == 200


def test_a_fault_of_ours_is_a_500_that_says_nothing_but_the_request_id(
    serve_echo, monkeypatch, caplog
):
    live = serve_echo()
    monkeypatch.setattr(live.model, "encode_timed", lambda *prompt: 1 / 0)
    reply = live.post("/generate", {"prompt": "secret"})
    assert reply.status == 500
    assert reply.error()["type"] == "server_error"
    assert reply.headers["X-Request-Id"] in reply.error()["message"]
    assert "division" not in reply.body.decode()
    assert "ZeroDivisionError" in caplog.text, "the log has the traceback"
    assert "secret" not in caplog.text


def test_the_log_has_a_line_a_request_without_its_text(live, caplog):
    caplog.set_level("INFO", "twostroke.server")
    reply = live.post("/generate", {"prompt": "secret"})
    live.get("/health")
    lines = [record.getMessage() for record in caplog.records if record.name == "twostroke.server"]
    assert len(lines) == 1
    assert lines[0].startswith(f"{reply.headers['X-Request-Id']} POST /generate 200 ")
    for fact in ("model=echo", "prompt_tokens=6", "completion_tokens=8", "finish=stop", "ttft_ms="):
        assert fact in lines[0]
    assert "secret" not in caplog.text
