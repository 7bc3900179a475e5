"""What the exporter answers, without sockets: bytes of a head → `Request` → `Answer` → bytes. Parsing is httptools'."""

import gzip
import threading
import time
from collections.abc import Callable, Iterable
from html import escape
from http import HTTPStatus
from typing import NamedTuple
from wsgiref.handlers import format_date_time

import httptools

from cadenza.telemetry.exposition import OPENMETRICS_TYPE, TEXT_TYPE, Kept, Table, render
from cadenza.telemetry.sampler import State
from cadenza.telemetry.web_config import Access

# Less than this is not worth compressing.
_GZIP_BYTES = 2048
_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_ALWAYS = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


class Request(NamedTuple):
    """One request's head. `path` is without its query; header names are lower case, the last of equals wins."""

    method: str
    path: str
    headers: dict[str, str]
    keep_alive: bool


class Answer(NamedTuple):
    """`headers` beside those that every answer has."""

    status: HTTPStatus
    type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class BadRequestError(Exception):
    """Bytes that are no request, or one that brings a body; answer `status`, and close."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Head:
    """What httptools tells of a head. What it knows of a connection it knows only while it tells."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.headers: dict[str, str] = {}
        self.version = ""
        self.keep_alive = False
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.version = self.parser.get_http_version()
        self.keep_alive = self.parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self.complete = True


def parse(head: bytes) -> Request:
    """The request that `head` is, its empty last line included. BadRequestError for all else, bodies included."""
    told = _Head()
    try:
        told.parser.feed_data(head)
        path = httptools.parse_url(told.url).path or b"/"
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        raise BadRequestError(HTTPStatus.BAD_REQUEST) from None
    if told.version not in ("1.0", "1.1"):
        raise BadRequestError(HTTPStatus.BAD_REQUEST)
    if not told.complete:
        raise BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return Request(told.parser.get_method().decode(), path.decode("latin-1"), told.headers, told.keep_alive)


class Site:
    """The pages: /metrics, / for people, /-/healthy.

    states     every collector as it is now (`Sampler.states`)
    tabulate   the series of those states, given how many pages were served before
    """

    def __init__(
        self, states: Callable[[], list[State]], tabulate: Callable[[list[State], int], Table], version: str
    ) -> None:
        self._states = states
        self._tabulate = tabulate
        self._version = version
        self._scrapes = 0
        self._kept: Kept = {}
        self._lock = threading.Lock()
        self._pages: dict[str, Callable[[Request], Answer]] = {
            "/metrics": self._metrics,
            "/": self._landing,
            "/-/healthy": self._healthy,
        }

    def answer(self, request: Request, access: Access) -> Answer:
        """A HEAD is answered as a GET: who sends it leaves the body out."""
        if not access.auth.allows(request.headers.get("authorization")):
            ask = ("WWW-Authenticate", 'Basic realm="cadenza exporter", charset="UTF-8"')
            return say(HTTPStatus.UNAUTHORIZED, ask)
        page = self._pages.get(request.path)
        if page is None:
            return say(HTTPStatus.NOT_FOUND)
        if request.method not in ("GET", "HEAD"):
            return say(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
        return page(request)

    def _metrics(self, request: Request) -> Answer:
        with self._lock:
            scrapes = self._scrapes
            self._scrapes += 1
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        body = render(self._tabulate(self._states(), scrapes), openmetrics, self._kept)
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if len(body) >= _GZIP_BYTES and wants_gzip(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers += (("Content-Encoding", "gzip"),)
        return Answer(HTTPStatus.OK, OPENMETRICS_TYPE if openmetrics else TEXT_TYPE, body, headers)

    def _healthy(self, request: Request) -> Answer:
        return say(HTTPStatus.OK)

    def _landing(self, request: Request) -> Answer:
        states = self._states()
        table = self._tabulate(states, self._scrapes)
        title = f"cadenza exporter {escape(self._version)}"
        lines = [
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>',
            f'<h1>{title}</h1><p><a href="/metrics">Metrics</a>, <a href="/-/healthy">health</a></p>',
            f"<h2>Cards</h2>{_table(('address', 'product', 'state'), _cards(table))}",
            f"<h2>Collectors</h2>{_table(('collector', 'state', 'last round', 'not to be had'), map(_row, states))}",
            "</body></html>\n",
        ]
        return Answer(HTTPStatus.OK, _HTML, "\n".join(lines).encode("utf-8", errors="replace"))


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics 1.x, or OpenMetrics without a version."""
    for entry in accept.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        versions = [text.removeprefix("version=") for text in parameters if text.startswith("version=")]
        if kind.lower() == "application/openmetrics-text" and all(version.startswith("1.") for version in versions):
            return True
    return False


def wants_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, and not to refuse it."""
    for entry in accept_encoding.split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def say(status: HTTPStatus, *headers: tuple[str, str]) -> Answer:
    """`status` in words, and nothing else."""
    return Answer(status, _TEXT, f"{status.phrase}\n".encode(), headers)


def _cards(table: Table) -> list[tuple[str, str, str]]:
    """Address, product and state of every card; of one that is gone the product is not known any more."""
    products = {info["gpu"]: info["product"] for info in map(dict, table.get("gpu_info", {}))}
    states = {labels[0][1]: "up" if up else "down" for labels, up in table.get("gpu_up", {}).items()}
    states |= {labels[0][1]: "asleep" for labels, asleep in table.get("gpu_suspended", {}).items() if asleep}
    return [(gpu, products.get(gpu, ""), states.get(gpu, "")) for gpu in {**products, **states}]


def _row(state: State) -> tuple[str, str, str, str]:
    missing = ", ".join(f"{reason} {count}" for reason, count in sorted(state.missing.items()))
    return state.collector, "ok" if state.success else "nothing", f"{state.age_s:.1f} s ago", missing


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def format_answer(answer: Answer, access: Access, *, keep_alive: bool, head_only: bool = False) -> bytes:
    """The bytes of `answer`; headers of the web config win over our own."""
    headers = dict(_ALWAYS) | dict(access.headers) | dict(answer.headers)
    # Not email.utils: with CPython 3.11 its way leaves some bytes behind at every call.
    headers["Date"] = format_date_time(time.time())
    headers["Content-Type"] = answer.type
    headers["Content-Length"] = str(len(answer.body))
    headers["Connection"] = "keep-alive" if keep_alive else "close"
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head_only else answer.body)
