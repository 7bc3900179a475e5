"""Requests as RFC 9112 wants them, responses in all framings, and what is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza import __version__
from cadenza.record import printable
from cadenza.wire.dialect import MalformedError
from cadenza.wire.http1 import ResponseReader, encode_request

Deliveries = Callable[[bytes], Iterator[list[bytes]]]
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"


def read(reads: list[bytes], closed: bool = False) -> tuple[ResponseReader, bytes]:
    reader, body = ResponseReader(), b""
    for data in reads:
        reader.feed(data)
        body += reader.take()
    if closed:
        reader.eof()
    return reader, body


def test_a_request_is_these_bytes() -> None:
    data = encode_request("POST", "/v1/completions", "h:8000", [("Authorization", "Bearer k")], b"{}")
    assert data == (
        b"POST /v1/completions HTTP/1.1\r\nHost: h:8000\r\n"
        b"User-Agent: cadenza/" + __version__.encode() + b"\r\nAccept-Encoding: identity\r\n"
        b"Authorization: Bearer k\r\nContent-Length: 2\r\n\r\n{}"
    )


def test_a_get_has_no_length_and_an_empty_post_has_one() -> None:
    assert b"Content-Length" not in encode_request("GET", "/metrics", "h")
    assert b"Content-Length: 0\r\n\r\n" in encode_request("POST", "/x", "h")


def test_given_headers_replace_ours_and_host_stays_first() -> None:
    given = [("user-agent", "me"), ("ACCEPT-ENCODING", "br"), ("host", "virtual"), ("X-Name", "Zoë")]
    data = encode_request("GET", "/", "h", given)
    assert data == (
        b"GET / HTTP/1.1\r\nhost: virtual\r\nuser-agent: me\r\nACCEPT-ENCODING: br\r\nX-Name: Zo\xeb\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "target", "host", "header"),
    [
        ("GET\r\n", "/", "h", ("A", "b")),
        ("get", "/", "h", ("A", "b")),
        ("GET", "/a b", "h", ("A", "b")),
        ("GET", "/a\r\nX: y", "h", ("A", "b")),
        ("GET", "/é", "h", ("A", "b")),
        ("GET", "", "h", ("A", "b")),
        ("GET", "/", "h\r\nX: y", ("A", "b")),
        ("GET", "/", "h\0", ("A", "b")),
        ("GET", "/", "h", ("A:", "b")),
        ("GET", "/", "h", ("A ", "b")),
        ("GET", "/", "h", ("", "b")),
        ("GET", "/", "h", ("A\n", "b")),
        ("GET", "/", "h", ("A", "b\nX: y")),
        ("GET", "/", "h", ("A", "b\r")),
        ("GET", "/", "h", ("A", "b\0")),
        ("GET", "/", "h", ("A", "你")),
        ("GET", "/", "h", ("Content-Length", "3")),
        ("GET", "/", "h", ("transfer-encoding", "chunked")),
    ],
)
def test_nothing_of_a_request_can_end_a_line_early(
    method: str, target: str, host: str, header: tuple[str, str]
) -> None:
    with pytest.raises(ValueError):
        encode_request(method, target, host, [header])


def test_a_refused_header_value_is_not_quoted() -> None:
    with pytest.raises(ValueError) as refused:
        encode_request("GET", "/", "h", [("Authorization", "Bearer s3cret\n")])
    assert "s3cret" not in str(refused.value)


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_a_request_has_the_lines_it_should_or_is_refused(target: str, host: str, name: str, value: str) -> None:
    try:
        data = encode_request("GET", "/" + target, "h" + host, [("X" + name, value)])
    except ValueError:
        return
    head, end, rest = data.partition(b"\r\n\r\n")
    assert (end, rest) == (b"\r\n\r\n", b"")
    assert len(head.split(b"\r\n")) == 5
    assert b"\n" not in head.replace(b"\r\n", b"")


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

# name -> (bytes, status, body, keep_alive)
WHOLE = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", 200, b"hello", True),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
    "chunked": (CHUNKED + b"5\r\nhello\r\nB\r\n, you there\r\n0\r\n\r\n", 200, b"hello, you there", True),
    "chunk extensions": (CHUNKED + b"2;a=b\r\nhi\r\n0\r\n\r\n", 200, b"hi", True),
    "leading zeros": (CHUNKED + b"002\r\nhi\r\n000\r\n\r\n", 200, b"hi", True),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n", 200, b"hi", True),
    "line ends in chunks": (CHUNKED + b"4\r\n\r\n\r\n\r\n0\r\n\r\n", 200, b"\r\n\r\n", True),
    "connection close": (OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nhi", 200, b"hi", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    "HTTP/1.0 keep-alive": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "no reason": (b"HTTP/1.1 503 \r\nContent-Length: 2\r\n\r\nno", 503, b"no", True),
    "204 has no body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "304 has no body": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", 200, b"hi", True),
    "103 twice": (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2 + OK + b"Content-Length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "empty lines after the end": (OK + b"Content-Length: 2\r\n\r\nhi\r\n\r\n", 200, b"hi", True),
    "404 with HTML": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\n<p>", 404, b"<p>", True),
    "a compressed error": (
        b"HTTP/1.1 500 E\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        500,
        b"\x1f\x8b",
        True,
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_responses_in_any_pieces(name: str, deliveries: Deliveries) -> None:
    stream, status, body, keep_alive = WHOLE[name]
    for reads in deliveries(stream):
        reader, got = read(reads)
        assert (reader.status, got, reader.keep_alive) == (status, body, keep_alive), reads
        assert reader.headers_complete
        assert reader.complete
        assert reader.eof()


@pytest.mark.parametrize("name", WHOLE)
def test_a_response_cut_short_is_not_whole(name: str) -> None:
    stream = WHOLE[name][0].rstrip(b"\r\n") if name != "line ends in chunks" else WHOLE[name][0][:-5]
    for cut in range(len(stream) - 1):
        reader, _ = read([stream[:cut]], closed=True)
        assert not reader.complete, cut
        assert not reader.keep_alive


@pytest.mark.parametrize("head", [OK, b"HTTP/1.0 200 OK\r\n", OK + b"Transfer-Encoding: gzip\r\n"])
def test_without_a_length_the_close_is_the_end(head: bytes, deliveries: Deliveries) -> None:
    for reads in deliveries(head + b"Content-Type: text/event-stream\r\n\r\ndata: x\n\n"):
        reader, body = read(reads)
        assert (reader.complete, body) == (False, b"data: x\n\n")
        assert reader.eof()
        assert reader.complete
        assert not reader.keep_alive


def test_closed_before_any_byte() -> None:
    assert not ResponseReader().eof()


def test_the_headers_are_there_before_the_body() -> None:
    reader = ResponseReader()
    reader.feed(
        OK + b"Content-Type: text/event-stream\r\nX: 1\r\nx: 2\r\nName: Zo\xeb\r\nTransfer-Encoding: chunked\r\n"
    )
    assert (reader.status, reader.headers_complete) == (None, False)
    reader.feed(b"\r\n")
    assert (reader.status, reader.headers_complete, reader.complete) == (200, True, False)
    assert reader.headers == {
        "content-type": "text/event-stream",
        "x": "1, 2",
        "name": "Zoë",
        "transfer-encoding": "chunked",
    }


def test_headers_of_interim_responses_and_trailers_are_not_the_response_s() -> None:
    reader, _ = read([b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", CHUNKED + b"0\r\nX-Sum: 1\r\n\r\n"])
    assert reader.headers == {"transfer-encoding": "chunked"}


def test_an_interim_response_alone_is_no_response() -> None:
    reader, _ = read([b"HTTP/1.1 100 Continue\r\n\r\n"], closed=True)
    assert (reader.status, reader.headers_complete, reader.complete) == (None, False, False)


def test_take_hands_out_each_byte_once() -> None:
    reader = ResponseReader()
    reader.feed(CHUNKED + b"2\r\nab\r\n1\r\nc\r\n")
    assert reader.take() == b"abc"
    assert reader.take() == b""
    reader.feed(b"1\r\nd\r\n0\r\n\r\n")
    assert reader.take() == b"d"


MALFORMED = {
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP/1 response"),
    "TLS": (b"\x15\x03\x01\x00\x02\x02\x50", "not an HTTP/1 response"),
    "JSON without a head": (b'{"error": "no"}', "not an HTTP/1 response"),
    "HTTP/2": (b"HTTP/2 200\r\n\r\n", "not an HTTP/1 response"),
    "no status": (b"HTTP/1.1 OK\r\n\r\n", "not an HTTP/1 response"),
    "bare LF": (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "CR"),
    "bad chunk size": (CHUNKED + b"zz\r\n", "chunk size"),
    "no chunk end": (CHUNKED + b"2\r\nhiXX\r\n", "broken HTTP response"),
    "huge chunk size": (CHUNKED + b"fffffffffffffffff\r\n", "broken HTTP response"),
    "bad length": (OK + b"Content-Length: two\r\n\r\n", "Content-Length"),
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "Content-Length"),
    "length and chunks": (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Content-Length"),
    "NUL in a header": (OK + b"X: \0\r\n\r\n", "header"),
    "switching protocols": (b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "switched protocols"),
    "compressed": (OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", r"compressed \(gzip\)"),
    "a second response": (OK + b"Content-Length: 2\r\n\r\nhi" + OK, "more bytes than the response"),
    "a byte too many": (OK + b"Content-Length: 2\r\n\r\nhi!", "more bytes than the response"),
    "bytes after close": (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi!", "more bytes than the response"),
    "bytes after the last chunk": (CHUNKED + b"0\r\n\r\nhi", "more bytes than the response"),
    "a body on 204": (b"HTTP/1.1 204 No Content\r\n\r\nhi", "more bytes than the response"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_the_protocol_is_said_in_one_printable_line(name: str, deliveries: Deliveries) -> None:
    stream, reason = MALFORMED[name]
    for reads in deliveries(stream):
        with pytest.raises(MalformedError, match=reason) as refused:
            read(reads)
        assert printable(str(refused.value)) == str(refused.value)


@pytest.mark.parametrize("read_bytes", [1 << 20, 1000])
@pytest.mark.parametrize(
    "head",
    [OK + b"X: " + b"y" * 70_000, OK + b"X: yyyyyyyy\r\n" * 6_000, OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n"],
    ids=["endless line", "endless headers", "long line"],
)
def test_headers_are_bounded(head: bytes, read_bytes: int) -> None:
    with pytest.raises(MalformedError, match="more than 65536 bytes"):
        read([head[at : at + read_bytes] for at in range(0, len(head), read_bytes)])


@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_arbitrary_bytes_are_malformed_at_worst(reads: list[bytes], after_a_head: bool) -> None:
    reason = ""
    try:
        read([CHUNKED if after_a_head else b"HTTP/1.1 ", *reads], closed=True)
    except MalformedError as refused:
        reason = str(refused)
    assert printable(reason) == reason


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_chunks_come_back_under_any_cuts(chunks: list[bytes], data: st.DataObject) -> None:
    stream = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, body = read([stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)])
    assert reader.complete
    assert body == b"".join(chunks)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.http")), ids=lambda path: path.stem)
def test_recorded_responses(path: Path, deliveries: Deliveries) -> None:
    stream = path.read_bytes()
    status = int(stream.split(b" ", 2)[1])
    bodies = set()
    for reads in deliveries(stream):
        reader, body = read(reads)
        assert (reader.status, reader.complete, reader.keep_alive) == (status, True, True)
        bodies.add(body)
    assert len(bodies) == 1
    length = reader.headers.get("content-length")
    assert length is None or len(body) == int(length)
