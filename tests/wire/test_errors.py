"""Error bodies, as the servers and the proxies before them write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.record import printable
from cadenza.wire.errors import read_error

GOLDEN = Path(__file__).parent.parent / "golden" / "streams"
NGINX = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    b"<hr><center>nginx/1.24.0</center>\r\n</body>\r\n</html>\r\n"
)

BODIES: dict[str, tuple[bytes, str, str]] = {
    "object": (b'{"error":{"message":"no","type":"t"}}', "application/json", "no"),
    "string": (b'{"error":"no"}', "application/json", "no"),
    "TGI": (b'{"error":"too long","error_type":"validation"}', "application/json", "too long"),
    "older vLLM": (b'{"object":"error","message":"no","code":400}', "application/json", "no"),
    "Ollama": (b'{"error":{"message":"model \\"x\\" not found","type":"api_error"}}', "", 'model "x" not found'),
    "FastAPI detail": (b'{"detail":"Not Found"}', "application/json", "Not Found"),
    "FastAPI 422": (
        b'{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required","input":{}},'
        b'{"loc":["body","messages",0],"msg":"Bad"}]}',
        "application/json",
        "body.model: Field required; body.messages.0: Bad",
    ),
    "error in a list": (b'[{"error":{"message":"no"}}]', "application/json", "no"),
    "JSON as text": (b'"no"', "text/plain", "no"),
    "JSON of unknown shape": (b'{"status": 4}', "application/json", '{"status": 4}'),
    "JSON without a message": (b'{"error":{}}', "application/json", '{"error":{}}'),
    "broken JSON": (b'{"error":{"mess', "application/json", '{"error":{"mess'),
    "nginx": (NGINX, "text/html", "an HTML page: 502 Bad Gateway"),
    "HTML by its looks": (b"<!DOCTYPE html><title>A &amp; B</title>", "", "an HTML page: A & B"),
    "HAProxy": (
        b"<html><body><h1>503 Service Unavailable</h1>\nNo server is available.\n</body></html>",
        "text/html",
        "an HTML page: 503 Service Unavailable No server is available.",
    ),
    "an HTML page of nothing": (b"<html></html>", "text/html", "an HTML page: without text"),
    "plain text": (b"Internal Server Error", "text/plain; charset=utf-8", "Internal Server Error"),
    "lines": (b"a\r\n\r\n  b\x1b[0m\n", "text/plain", "a b [0m"),
    "not UTF-8": (b"caf\xe9", "text/plain", "caf\ufffd"),
    "empty": (b"", "text/plain", "an empty body"),
    "blank": (b" \r\n", "", "an empty body"),
    "control characters": (b"\x00\x01", "", "a body without printable text"),
    "HTML by its content type": (b"<p>Bad gateway</p>", "Text/HTML; charset=utf-8", "an HTML page: Bad gateway"),
    "HTML by its first tag": (b"<HTML><title>No</title>", "", "an HTML page: No"),
    "HTML after a byte-order mark": (b"\xef\xbb\xbf\r\n<html><title>No</title>", "", "an HTML page: No"),
    "text that begins with X": (b"X: no", "", "X: no"),
    "an empty path": (b'{"loc":[],"msg":"no"}', "application/json", "no"),
    "four levels": (b'{"errors":[{"error":{"message":"no"}}]}', "application/json", "no"),
    "five levels": (b'[{"errors":[{"error":{"msg":"no"}}]}]', "", '[{"errors":[{"error":{"msg":"no"}}]}]'),
    "four lists": (b'[[[["no"]]]]', "application/json", "no"),
    "five lists": (b'[[[[["no"]]]]]', "application/json", '[[[[["no"]]]]]'),
    # The look ends after 64 KiB, here within a character.
    "long JSON": (b'{"ab":"' + "é".encode() * 40_000 + b'"}', "", '{"ab":"' + "é" * 292 + "…"),
    "nested too deep": (b"[" * 100_000, "application/json", "[" * 299 + "…"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str) -> None:
    body, content_type, line = BODIES[name]
    assert read_error(body, content_type) == line


RECORDED = {
    "too-long": "max_tokens=4000 cannot be greater than max_model_len=2048. Please request fewer output tokens.",
    "no-model": "The model `nobody` does not exist. Valid aliases: tiny.",
    "bad-json": "1 validation error: {'type': 'json_invalid', 'loc': 'body.17', 'msg': 'JSON decode error'",
    "bad-value": "temperature must be non-negative, got -3.0.",
    "no-path": "Not Found",
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_vllm_errors(name: str) -> None:
    _, _, body = (GOLDEN / f"vllm-0.32-error-{name}.http").read_bytes().partition(b"\r\n\r\n")
    assert read_error(body, "application/json").startswith(RECORDED[name])


@given(st.binary(max_size=200), st.sampled_from(["", "application/json", "text/html"]))
def test_any_body_gives_one_bounded_printable_line(body: bytes, content_type: str) -> None:
    line = read_error(body, content_type)
    assert line
    assert printable(line) == line
