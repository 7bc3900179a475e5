import pytest

from cadenza.engine.api import http
from cadenza.engine.api.http import BadRequestError, Parser, chunk, json_bytes, whole

ONE = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\nbody"
TWO = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


def is_both(parser: Parser) -> bool:
    first, second = parser.calls
    return (
        (first.method, first.path, first.query, first.body) == ("POST", "/v1/completions", "x=1", b"body")
        and first.headers == {"host": "a", "content-type": "application/json", "content-length": "4"}
        and first.keep_alive
        and first.chunked
        and (second.method, second.path, second.query, second.body) == ("GET", "/health", "", b"")
        and not second.keep_alive
    )


def test_pipelined_requests_whole() -> None:
    parser = Parser()
    parser.feed(ONE + TWO)
    assert is_both(parser)


def test_pipelined_requests_byte_by_byte() -> None:
    parser = Parser()
    for at in range(len(ONE + TWO)):
        parser.feed((ONE + TWO)[at : at + 1])
    assert is_both(parser)


def test_pipelined_requests_at_every_cut() -> None:
    both = ONE + TWO
    for cut in range(1, len(both)):
        parser = Parser()
        parser.feed(both[:cut])
        parser.feed(both[cut:])
        assert is_both(parser)


def test_http_1_0_keeps_nothing_alive_and_takes_no_chunks() -> None:
    parser = Parser()
    parser.feed(b"GET /health HTTP/1.0\r\n\r\n")
    assert not parser.calls[0].keep_alive
    assert not parser.calls[0].chunked


def test_a_chunked_body_is_put_together() -> None:
    parser = Parser()
    parser.feed(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert parser.calls[0].body == b"abcde"


@pytest.mark.parametrize(
    "data", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequestError) as caught:
        Parser().feed(data)
    assert caught.value.status == 400


def test_upgrades_are_refused() -> None:
    with pytest.raises(BadRequestError):
        Parser().feed(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 10)
    with pytest.raises(BadRequestError) as caught:
        Parser().feed(b"POST / HTTP/1.1\r\ncontent-length: 11\r\n\r\n01234567890")
    assert caught.value.status == 413
    monkeypatch.setattr(http, "MAX_HEAD_BYTES", 100)
    endless = Parser()
    endless.feed(b"GET / HTTP/1.1\r\nx: ")
    endless.feed(b"a" * 99)
    with pytest.raises(BadRequestError) as caught:
        endless.feed(b"aa")
    assert caught.value.status == 431


def test_waiting_requests_are_bounded() -> None:
    parser = Parser()
    parser.feed(b"GET / HTTP/1.1\r\n\r\n" * http.MAX_WAITING_CALLS)
    with pytest.raises(BadRequestError):
        parser.feed(b"GET / HTTP/1.1\r\n\r\n")


def test_expect_is_seen_until_the_body_comes() -> None:
    parser = Parser()
    parser.feed(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    before = parser.expects_continue
    parser.feed(b"ab")
    assert (before, parser.expects_continue) == (True, False)
    assert parser.calls[0].body == b"ab"


def test_answers_are_framed() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    answer = whole(404, b'{"a":1}', keep_alive=False)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b'{"a":1}'
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 404 Not Found"
    assert {b"content-length: 7", b"content-type: application/json", b"connection: close"} <= set(head.split(b"\r\n"))


def test_json_is_compact_and_survives_what_utf_8_cannot_hold() -> None:
    assert json_bytes({"a": ["é", "\ud800", None]}) == '{"a":["é","?",null]}'.encode()
