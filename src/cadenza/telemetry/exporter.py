"""The exporter's socket shell: it carries bytes between connections, a thread each, and the `Site`.

A scraper waits for no hardware, since the site answers from memory, and for no other scraper: every connection has a
deadline, kept by the thread that accepts, and there is a bound to how many there are.
"""

import ipaddress
import select
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.errors import UsageError
from cadenza.telemetry.pages import BadRequestError, Site, format_answer, parse, say
from cadenza.telemetry.web_config import Access, Watch

DEFAULT_LISTEN = "127.0.0.1:9101"
MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS = 32
# From a connection's first byte to the end of its answer, the TLS handshake included.
REQUEST_S = 10.0
# Between two requests: longer than between most scrapes. The one that waited longest goes first when room is short.
IDLE_S = 150.0
_TICK_S = 0.5
# For a client to take our last words in before the connection ends.
_LAST_S = 2.0
# For answers under way when the server stops.
_STOP_S = 1.0
_BACKLOG = 64
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, with brackets around an IPv6 address; no HOST means every address. UsageError for anything else."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 1 << 16) or (":" in host and bare == host):
        raise UsageError(f"--listen takes HOST:PORT, like {DEFAULT_LISTEN} or [::1]:9101, not {text}")
    return bare, int(port)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; UsageError where the address is unknown, taken or not ours."""
    name = f"[{host}]" if ":" in host else host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"--listen: the host '{host}' cannot be resolved ({error})") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot listen on {name}:{port}: {reason}; try another --listen HOST:PORT") from None
    listener.setblocking(False)
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, access: Access) -> str:
    """Where it can be asked."""
    host, port = listener.getsockname()[:2]
    return f"{'http' if access.tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


class _Visit:
    """One connection, its thread's and the accepting thread's; `until_ns`: when it is cut off."""

    def __init__(self, sock: socket.socket, until_ns: int) -> None:
        self.sock = sock
        self.until_ns = until_ns
        self.idle = False
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Let every read and write on it end at once, from whichever thread; what was not taken yet is thrown away."""
        with self._lock:
            try:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Not SSLSocket's own, which would pull the TLS state from under the other thread.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        with self._lock:
            self.sock.close()


class Server:
    """A site on a listening socket. `run` accepts; each connection is answered on a thread of its own."""

    def __init__(self, listener: socket.socket, site: Site, watch: Watch, clock: Clock | None = None) -> None:
        self._listener = listener
        self._site = site
        self._watch = watch
        self._clock = clock or MonotonicClock()
        self._visits: dict[_Visit, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closing = False

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until `stop()`, which is asked twice a second at least."""
        while not stop():
            ready, _, _ = select.select([self._listener], [], [], _TICK_S)
            if ready:
                self._accept()
            self._cut_late()

    def close(self) -> None:
        """Stop listening; answers under way have a second, everything else ends at once."""
        self._listener.close()
        self._closing = True
        with self._lock:
            visits = dict(self._visits)
        for visit in visits:
            if visit.idle:
                visit.cut()
        until_ns = self._in(_STOP_S)
        for thread in visits.values():
            thread.join(max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_S))
        for visit, thread in visits.items():
            visit.cut()
            thread.join(_STOP_S)

    def _in(self, seconds: float) -> int:
        return self._clock.now_ns() + round(seconds * NS_PER_S)

    def _cut_late(self) -> None:
        now_ns = self._clock.now_ns()
        with self._lock:
            late = [visit for visit in self._visits if visit.until_ns <= now_ns]
        for visit in late:
            visit.cut()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        access = self._watch.access()
        if not self._has_room():
            sock.setblocking(False)
            try:
                if access.tls is None:
                    sock.send(_BUSY)
            except OSError:
                pass
            sock.close()
            return
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if access.tls is not None:
                # The handshake itself waits for the client: that is for the connection's own thread.
                sock = access.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            return
        visit = _Visit(sock, self._in(REQUEST_S))
        thread = threading.Thread(target=self._serve, args=(visit,), name="scrape", daemon=True)
        with self._lock:
            self._visits[visit] = thread
        try:
            thread.start()
        except RuntimeError:
            # No more threads to be had: let this one go, and live on.
            self._end(visit)

    def _has_room(self) -> bool:
        with self._lock:
            if len(self._visits) < MAX_CONNECTIONS:
                return True
            idle = [visit for visit in self._visits if visit.idle]
            if not idle:
                return False
            # The next one to come finds its place; this one takes it already.
            oldest = min(idle, key=lambda visit: visit.until_ns)
            del self._visits[oldest]
        oldest.cut()
        return True

    def _serve(self, visit: _Visit) -> None:
        try:
            if isinstance(visit.sock, ssl.SSLSocket):
                visit.sock.do_handshake()
            self._converse(visit)
        except (OSError, ValueError):
            # Gone, cut off, or no TLS: nobody is left to tell.
            pass
        finally:
            self._end(visit)

    def _end(self, visit: _Visit) -> None:
        visit.close()
        with self._lock:
            self._visits.pop(visit, None)

    def _converse(self, visit: _Visit) -> None:
        kept = b""
        while True:
            end = kept.find(b"\r\n\r\n")
            if end < 0 and len(kept) <= MAX_HEAD_BYTES:
                data = visit.sock.recv(MAX_HEAD_BYTES)
                if not data:
                    return
                if visit.idle:
                    visit.until_ns, visit.idle = self._in(REQUEST_S), False
                kept += data
                continue
            answer, goes_on = self._answer(kept[: end + 4] if end >= 0 else None)
            visit.sock.sendall(answer)
            if not goes_on or self._closing:
                self._part(visit)
                return
            kept = kept[end + 4 :]
            visit.until_ns, visit.idle = (self._in(REQUEST_S), False) if kept else (self._in(IDLE_S), True)

    def _part(self, visit: _Visit) -> None:
        """Half a close: a full one, with bytes of the client's still unread, would reset what we just said."""
        visit.until_ns = self._in(_LAST_S)
        socket.socket.shutdown(visit.sock, socket.SHUT_WR)
        while socket.socket.recv(visit.sock, MAX_HEAD_BYTES):
            pass

    def _answer(self, head: bytes | None) -> tuple[bytes, bool]:
        """The answer to a head (None: there is no end to it), and whether the connection stays."""
        access = self._watch.access()
        try:
            if head is None:
                raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            request = parse(head)
        except BadRequestError as error:
            return format_answer(say(error.status), access, keep_alive=False), False
        try:
            answer = self._site.answer(request, access)
        except Exception as error:
            print(f"warning: {request.path} could not be served: {type(error).__name__}: {error}", file=sys.stderr)
            answer = say(HTTPStatus.INTERNAL_SERVER_ERROR)
        keep = request.keep_alive
        return format_answer(answer, access, keep_alive=keep, head_only=request.method == "HEAD"), keep
