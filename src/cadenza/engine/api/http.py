"""HTTP/1.1 as a server speaks it, without sockets: bytes → `Call`, answers → bytes. Parsing is httptools' (llhttp)."""

import json
from collections import deque
from typing import NamedTuple

import httptools

MAX_BODY_BYTES = 16 << 20
MAX_HEAD_BYTES = 64 << 10
MAX_WAITING_CALLS = 64

_REASONS = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_SERVER = b"server: cadenza (simulated)\r\n"
END = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# What a server does to a connection: bytes for it; None: close it once they have left; an error: break it off at once,
# with a reset (SO_LINGER 0), whatever still waits to leave.
Output = bytes | ConnectionResetError | None


class Call(NamedTuple):
    """One whole request. `path` is without its `query`; header names are lower case, the last of equals wins."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    chunked: bool
    query: str = ""


class BadRequestError(Exception):
    """Bytes that are no request, or more of them than we take; the connection is of no further use."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Parser:
    """One connection's requests, in order, from bytes cut anywhere; at most `MAX_WAITING_CALLS` wait at a time."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        self.expects_continue = False
        self._in_head = False
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def feed(self, data: bytes) -> None:
        """Take bytes; complete requests appear in `calls`. BadRequestError: answer it and close."""
        was_in_head = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BadRequestError(400, "Upgrades are not supported.") from None
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, BadRequestError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError:
            raise BadRequestError(400, "Invalid HTTP request received.") from None
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise BadRequestError(431, f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

    def _reset(self) -> None:
        self._url = bytearray()
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._head_bytes = 0

    def on_message_begin(self) -> None:
        self._reset()
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.expects_continue = self._headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        self.expects_continue = False
        if len(self._body) + len(body) > MAX_BODY_BYTES:
            raise BadRequestError(413, f"The request body is larger than {MAX_BODY_BYTES} bytes.")
        self._body += body

    def on_message_complete(self) -> None:
        if len(self.calls) >= MAX_WAITING_CALLS:
            raise BadRequestError(400, f"More than {MAX_WAITING_CALLS} requests wait on one connection.")
        self.expects_continue = False
        path, _, query = self._url.partition(b"?")
        self.calls.append(
            Call(
                method=self._parser.get_method().decode("ascii"),
                path=path.decode("latin-1"),
                headers=self._headers,
                body=bytes(self._body),
                keep_alive=self._parser.should_keep_alive(),
                chunked=self._parser.get_http_version() == "1.1",
                query=query.decode("latin-1"),
            )
        )


def reason(status: int) -> str:
    """The phrase that goes with a status."""
    return _REASONS[status]


def head(status: int, fields: bytes, keep_alive: bool = True) -> bytes:
    """Status line and header block; `fields` are whole lines, each with its CRLF."""
    close = b"" if keep_alive else b"connection: close\r\n"
    return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (status, _REASONS[status].encode(), _SERVER, fields, close)


def whole(
    status: int, body: bytes, content_type: str = "application/json", keep_alive: bool = True, extra: bytes = b""
) -> bytes:
    """A complete answer of known length; `extra` are more header lines."""
    kind = b"content-type: %b\r\n" % content_type.encode() if body else b""
    return head(status, b"content-length: %d\r\n%b%b" % (len(body), kind, extra), keep_alive) + body


def bodiless(answer: bytes) -> bytes:
    """An answer as HEAD gets it."""
    return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def stream_head(chunked: bool, keep_alive: bool, extra: bytes = b"") -> bytes:
    """What precedes a stream of server-sent events; HTTP/1.0 knows no chunks, there the close ends it."""
    coding = b"transfer-encoding: chunked\r\n" if chunked else b""
    kind = b"content-type: text/event-stream; charset=utf-8\r\n"
    return head(200, kind + coding + extra, keep_alive and chunked)


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_bytes(value: object) -> bytes:
    """A JSON body as vLLM writes it: no spaces, UTF-8 rather than escapes; what no UTF-8 can hold becomes `?`."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
