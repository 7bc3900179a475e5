"""HTTP/1.1 client framing without sockets: a request to bytes, bytes to a response (RFC 9112, through llhttp)."""

import re
from collections.abc import Iterable

import httptools

from cadenza import __version__
from cadenza.record import printable
from cadenza.wire.dialect import MalformedError

MAX_HEADER_BYTES = 64 << 10

_MORE = "more bytes than the response"
_LONG = f"more than {MAX_HEADER_BYTES} bytes of response headers"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_ONE_TOKEN = {
    "method": re.compile(r"[A-Z]+"),
    "target": re.compile(r"[\x21-\x7e]+"),
    "host": re.compile(r"[\x21-\x7e]+"),
}


def encode_request(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
) -> bytes:
    """One whole request. `host` is the authority, e.g. `[::1]:8000`; a `Host` in `headers` replaces it.

    Adds Host, User-Agent and Accept-Encoding: identity where not given, and Content-Length for a body or a POST.
    Raises ValueError for anything that could end a line early (CR, LF, NUL), a name that is none, a value beyond
    latin-1, or framing of the caller's own (Content-Length, Transfer-Encoding).
    """
    for part, text in (("method", method), ("target", target), ("host", host)):
        if not _ONE_TOKEN[part].fullmatch(text):
            raise ValueError(f"{part} {printable(repr(text), 80)} cannot stand in an HTTP request")
    given = [(name, value) for name, value in headers]
    for name, value in given:
        _check_header(name, value)
    names = {name.lower() for name, _ in given}
    own = [("Host", host), ("User-Agent", f"cadenza/{__version__}"), ("Accept-Encoding", "identity")]
    fields = [field for field in own if field[0].lower() not in names]
    # RFC 9112 3.2: Host first, whoever gave it.
    fields = sorted(fields + given, key=lambda field: field[0].lower() != "host")
    if body or method == "POST":
        fields.append(("Content-Length", str(len(body))))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def _check_header(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"header name {printable(repr(name), 80)} cannot stand in an HTTP request")
    # The value may be a secret: it is never quoted.
    if any(c in value for c in "\r\n\0"):
        raise ValueError(f"the value of header {name} has a line end or a NUL in it")
    if not value.isascii():
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            raise ValueError(f"the value of header {name} has characters beyond latin-1") from None
    if name.lower() in _FRAMING:
        raise ValueError(f"header {name} is set by the client itself")


class ResponseReader:
    """Reads one response, in whatever pieces it comes. A new reader for each response.

    status, headers   None and empty until `headers_complete`; names lower-case, values latin-1, repeats joined by ", "
    complete          the message has ended; more bytes are then an error (but for empty lines)
    keep_alive        once complete: the connection may carry another request
    Interim (1xx) responses are skipped.
    """

    __slots__ = (
        "_body",
        "_fault",
        "_field_bytes",
        "_parser",
        "_start",
        "_unfinished_bytes",
        "complete",
        "headers",
        "headers_complete",
        "keep_alive",
        "on_body",
        "status",
    )

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.headers_complete = False
        self.complete = False
        self.keep_alive = False
        self._body: list[bytes] = []
        self.on_body = (
            self._body.append
        )  # for llhttp, as those at the end; once an event, so without a frame of our own
        self._parser = httptools.HttpResponseParser(self)
        self._start = b""  # evidence, should it turn out not to be HTTP
        self._unfinished_bytes = 0  # of reads that did not complete the header block
        self._field_bytes = 0
        self._fault: str | None = None

    def feed(self, data: bytes) -> None:
        """Take what the peer sent. Raises `MalformedError` with a printable reason; the reader is then spent."""
        if self.complete:
            if data.strip(b"\r\n"):
                raise MalformedError(_MORE)
            return
        headers_complete = self.headers_complete
        if not headers_complete and len(self._start) < 80:
            self._start += data[:80]
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise MalformedError("the server switched protocols (status 101), which was not asked for") from None
        except httptools.HttpParserCallbackError:
            if self._fault is None:
                raise
            raise MalformedError(self._fault) from None
        except httptools.HttpParserError as error:
            raise MalformedError(self._explain(str(error))) from None
        if not headers_complete and not self.headers_complete:  # llhttp itself would take a header line of any length
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > MAX_HEADER_BYTES:
                raise MalformedError(_LONG)

    def eof(self) -> bool:
        """The peer has closed. True if the response is whole, which the close itself may have made it."""
        if self.headers_complete and not self.complete and self._ends_at_close():
            self.complete = True
        return self.complete

    def take(self) -> bytes:
        """The body bytes that came since the last call, framing removed."""
        pieces = self._body
        if len(pieces) == 1:
            return pieces.pop()
        body = b"".join(pieces)
        pieces.clear()
        return body

    def _ends_at_close(self) -> bool:
        """RFC 9112 6.3, rules 4 and 8: neither a length nor a final chunked coding."""
        codings = self.headers.get("transfer-encoding", "").lower().split(",")
        return "content-length" not in self.headers and codings[-1].strip() != "chunked"

    def _refuse(self, fault: str) -> None:
        self._fault = fault  # httptools hides what a callback raises
        raise MalformedError(fault)

    def _explain(self, reason: str) -> str:
        if self.complete:
            return _MORE
        if self.status is None and not self.headers and not self.headers_complete:
            start = printable(self._start[:80].decode("latin-1"))
            return f"not an HTTP/1 response ({printable(reason)}), it begins: {start or 'unprintably'}"
        return f"broken HTTP response: {printable(reason)}"

    # What llhttp calls, by the names that httptools looks for.

    def on_message_begin(self) -> None:
        if self.complete:
            self._refuse(_MORE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headers_complete:  # a trailer; nothing of ours reads those
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > MAX_HEADER_BYTES:
            self._refuse(_LONG)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers = {}
            return
        self.status = status
        self.headers_complete = True
        encoding = self.headers.get("content-encoding", "identity").lower()
        if status == 200 and encoding not in ("", "identity"):
            self._refuse(f"the body is compressed ({printable(encoding, 40)}), although identity was asked for")

    def on_message_complete(self) -> None:
        if self.headers_complete:  # an interim response is not the message
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()
