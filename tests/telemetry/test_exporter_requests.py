"""What `http.server` makes of bytes with the exporter's limits: a connection in memory, no socket."""

import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.telemetry.exporter import MAX_HEAD_BYTES, ClientConnection, MetricsServer
from cadenza.telemetry.exposition import tabulate
from cadenza.telemetry.pages import PageRequest, Response, Site
from cadenza.telemetry.web_config import Access, ConfigWatch


class Wire:
    """A connection of which the client has sent `data` and then ended its half."""

    def __init__(self, data: bytes) -> None:
        self.sent = b""
        self._data = data

    def makefile(self, mode: str, size: int) -> io.BufferedReader:
        return io.BufferedReader(cast(io.RawIOBase, io.BytesIO(self._data)))

    def setsockopt(self, *option: object) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.sent += bytes(data)


class Recorded(Site):
    """The real pages, and the requests for them."""

    def __init__(self) -> None:
        super().__init__(list, lambda states, scrapes: tabulate(states, "0", scrapes), "0")
        self.requests: list[PageRequest] = []

    def answer(self, request: PageRequest, access: Access) -> Response:
        self.requests.append(request)
        return super().answer(request, access)


class Stub:
    """What a handler needs of its server."""

    closing = False

    def __init__(self) -> None:
        self.site = Recorded()
        self.watch = ConfigWatch(None)

    def extend(self, *deadline: object, **idle: object) -> None:
        pass


def exchange(data: bytes) -> tuple[list[int], bytes, list[PageRequest]]:
    """The status of each response to `data`, all bytes sent, and the requests that reached the site."""
    wire, server = Wire(data), Stub()
    ClientConnection(cast(Any, wire), ("127.0.0.1", 1), cast(MetricsServer, server))
    statuses = [int(part[:3]) for part in wire.sent.split(b"HTTP/1.1 ")[1:]]
    return statuses, wire.sent, server.site.requests


def test_a_request_is_read() -> None:
    head = b"GET /metrics?name[]=x HTTP/1.1\r\nHost: a\r\nAccept: a/b\r\nX: 1\r\nx: 2\r\n\r\n"
    statuses, _, requests = exchange(head)
    assert statuses == [200]
    assert requests == [PageRequest("GET", "/metrics", {"host": "a", "accept": "a/b", "x": "2"})]


@pytest.mark.parametrize(
    ("head", "responses"),
    [
        (b"GET /-/healthy HTTP/1.1\r\n\r\n", 2),
        (b"GET /-/healthy HTTP/1.1\r\nConnection: close\r\n\r\n", 1),
        (b"GET /-/healthy HTTP/1.0\r\n\r\n", 1),
        (b"GET /-/healthy HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 2),
    ],
)
def test_connections_are_kept_as_the_version_and_the_client_say(head: bytes, responses: int) -> None:
    statuses, sent, _ = exchange(head + head)
    assert statuses == [200] * responses
    assert sent.count(b"\r\nConnection: keep-alive\r\n") == (responses if responses == 2 else 0)


def test_a_head_request_has_the_length_and_not_the_body() -> None:
    _, sent, _ = exchange(b"HEAD /-/healthy HTTP/1.1\r\n\r\n")
    assert sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Length: 3\r\n" in sent
    assert sent.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /nope HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", 413),
        (b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 101 + b"\r\n", 431),
    ],
)
def test_what_is_refused_is_refused_once(head: bytes, status: int) -> None:
    statuses, sent, _ = exchange(head)
    assert statuses == [status]
    assert b"\r\nX-Content-Type-Options: nosniff\r\n" in sent


def test_a_long_head_is_allowed_to_each_request_of_a_connection() -> None:
    head = b"GET /-/healthy HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    assert exchange(head * 4)[0] == [200] * 4


@given(st.binary(max_size=200))
def test_no_bytes_break_it(junk: bytes) -> None:
    for head in (
        junk + b"\r\n\r\n",
        b"GET /" + junk + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + junk + b"\r\n\r\n",
    ):
        assert set(exchange(head)[0]) <= {200, 400, 404, 405, 413, 414, 431, 501, 505}
