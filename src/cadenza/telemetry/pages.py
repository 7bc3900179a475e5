"""What the exporter responds, without sockets: `PageRequest` → `Response`."""

import gzip
import threading
import time
from collections.abc import Callable, Iterable
from html import escape
from http import HTTPStatus
from typing import NamedTuple
from wsgiref.handlers import format_date_time

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


class PageRequest(NamedTuple):
    """One request. `path` is without its query; header names are lower case, the last of equals wins."""

    method: str
    path: str
    headers: dict[str, str]


class Response(NamedTuple):
    """`headers`: in addition to those that every response has."""

    status: HTTPStatus
    type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


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
        self._pages: dict[str, Callable[[PageRequest], Response]] = {
            "/metrics": self._metrics,
            "/": self._landing,
            "/-/healthy": self._healthy,
        }

    def answer(self, request: PageRequest, access: Access) -> Response:
        """A HEAD has the response of a GET; the server leaves the body out."""
        if not access.auth.allows(request.headers.get("authorization")):
            challenge = ("WWW-Authenticate", 'Basic realm="cadenza exporter", charset="UTF-8"')
            return status_page(HTTPStatus.UNAUTHORIZED, challenge)
        page = self._pages.get(request.path)
        if page is None:
            return status_page(HTTPStatus.NOT_FOUND)
        if request.method not in ("GET", "HEAD"):
            return status_page(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
        return page(request)

    def _metrics(self, request: PageRequest) -> Response:
        with self._lock:
            scrapes = self._scrapes
            self._scrapes += 1
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        body = render(self._tabulate(self._states(), scrapes), openmetrics, self._kept)
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if len(body) >= _GZIP_BYTES and wants_gzip(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers += (("Content-Encoding", "gzip"),)
        return Response(HTTPStatus.OK, OPENMETRICS_TYPE if openmetrics else TEXT_TYPE, body, headers)

    def _healthy(self, request: PageRequest) -> Response:
        return status_page(HTTPStatus.OK)

    def _landing(self, request: PageRequest) -> Response:
        states = self._states()
        table = self._tabulate(states, self._scrapes)
        title = f"cadenza exporter {escape(self._version)}"
        lines = [
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>',
            f'<h1>{title}</h1><p><a href="/metrics">Metrics</a>, <a href="/-/healthy">health</a></p>',
            f"<h2>Cards</h2>{_table(('address', 'product', 'state'), _cards(table))}",
            f"<h2>Collectors</h2>{_table(('collector', 'state', 'last round', 'unreadable'), map(_row, states))}",
            "</body></html>\n",
        ]
        return Response(HTTPStatus.OK, _HTML, "\n".join(lines).encode("utf-8", errors="replace"))


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


def status_page(status: HTTPStatus, *headers: tuple[str, str]) -> Response:
    """A page of the phrase of `status`."""
    return Response(status, _TEXT, f"{status.phrase}\n".encode(), headers)


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


def list_headers(response: Response, access: Access) -> dict[str, str]:
    """The headers of `response`; those of the web config win over the exporter's own."""
    headers = dict(_ALWAYS) | dict(access.headers) | dict(response.headers)
    # Not email.utils: with CPython 3.11 its way leaves some bytes behind at every call.
    headers["Date"] = format_date_time(time.time())
    headers["Content-Type"] = response.type
    headers["Content-Length"] = str(len(response.body))
    return headers
