"""The exporter's HTTP server: the standard library's threading server, with limits on slow and on many clients.

A scrape never waits for hardware, since the site answers from memory, and never for another scrape: each connection has
its own thread and a deadline, which the accepting thread enforces, and the number of connections is limited.
"""

import io
import ipaddress
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.errors import UsageError
from cadenza.telemetry.pages import PageRequest, Response, Site, list_headers, status_page
from cadenza.telemetry.web_config import Access, ConfigWatch

DEFAULT_LISTEN = "127.0.0.1:9101"
MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS = 32
# From a connection's first byte to the end of its answer, the TLS handshake included.
REQUEST_S = 10.0
# Between two requests: longer than between most scrapes. The one that waited longest goes first when room is short.
IDLE_S = 150.0
_TICK_S = 0.5
# For the client to read the last response before the connection is closed.
_LAST_S = 2.0
# For responses in progress when the server stops.
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
    """A listening socket; UsageError where the address is unknown, in use or not of this machine."""
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
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket, access: Access) -> str:
    """The base URL of the listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{'http' if access.tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


class _HeadReader:
    """A connection's input, of which one request's head may take `left` bytes at most."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.left = MAX_HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        """The next line; more than the limit, which http.server refuses, once the head is too long."""
        line = self._file.readline(min(limit, self.left))
        self.left -= len(line)
        return line if self.left else bytes(limit)

    def wait(self) -> bool:
        """Block until a byte is there; False if the client has ended the connection."""
        return bool(self._file.peek(1))

    def close(self) -> None:
        self._file.close()


class ClientConnection(BaseHTTPRequestHandler):
    """One connection on its own thread: its requests one after the other, each answered by the server's site."""

    server: "MetricsServer"
    protocol_version = "HTTP/1.1"
    # What is not a request is answered with a status line too.
    default_request_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._head = _HeadReader(self.rfile)  # type: ignore[arg-type]
        self.rfile = self._head  # type: ignore[assignment]

    def handle(self) -> None:
        self.close_connection = False
        while not self.close_connection and self._head.wait():
            self.server.extend(self.connection, REQUEST_S)
            self._head.left = MAX_HEAD_BYTES
            self.handle_one_request()
            self.server.extend(self.connection, IDLE_S, idle=True)

    def parse_request(self) -> bool:
        """Also refuses a request without a version, and one with a body."""
        if not super().parse_request():
            return False
        length = self.headers.get("Content-Length", "0")
        if len(self.requestline.split()) != 3 or not (length.isascii() and length.isdigit()):
            self.send_error(HTTPStatus.BAD_REQUEST)
        elif length.strip("0") or "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            return True
        return False

    def handle_expect_100(self) -> bool:
        """Bodies are refused, so no client is invited to send one."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Respond with the status in plain text and close the connection."""
        self.close_connection = True
        self._send(status_page(HTTPStatus(code)))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests and clients' errors are not logged."""

    def _respond(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            path = urlsplit(self.path).path or "/"
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            response = self.server.site.answer(PageRequest(self.command, path, headers), self.server.watch.access())
        except Exception as error:
            print(f"warning: {path} could not be served: {type(error).__name__}: {error}", file=sys.stderr)
            response = status_page(HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(response)
        if self.server.closing:
            self.close_connection = True

    # http.server answers 501 to a method that has no function.
    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = _respond  # noqa: N815

    def _send(self, response: Response) -> None:
        self.send_response_only(response.status, response.status.phrase)
        for name, value in list_headers(response, self.server.watch.access()).items():
            self.send_header(name, value)
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


class _Client:
    """A connection as the accepting thread sees it. `until_ns`: when it is cut off; `idle`: between two requests."""

    def __init__(self, until_ns: int) -> None:
        self.until_ns = until_ns
        self.idle = False
        self.thread: threading.Thread | None = None


def _cut(sock: socket.socket) -> None:
    """End every read and write on it at once, from any thread; unsent data is discarded."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Not SSLSocket's own, which would pull the TLS state from under the other thread.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass


class MetricsServer(ThreadingHTTPServer):
    """A site on a listening socket. `run` accepts; each `ClientConnection` has its own thread."""

    timeout = _TICK_S

    def __init__(self, listener: socket.socket, site: Site, watch: ConfigWatch, clock: Clock | None = None) -> None:
        super().__init__(listener.getsockname()[:2], ClientConnection, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        # No accept may block for longer: a client may be gone between select and accept.
        listener.settimeout(_TICK_S)
        self.site = site
        self.watch = watch
        self.closing = False
        self._clock = clock or MonotonicClock()
        self._clients: dict[socket.socket, _Client] = {}
        self._lock = threading.Lock()

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until `stop()`, which is called at least twice a second."""
        while not stop():
            self.handle_request()
            self._cut_late()

    def close(self) -> None:
        """Stop listening; responses in progress have a second, everything else ends at once."""
        self.closing = True
        self.socket.close()
        with self._lock:
            clients = dict(self._clients)
            for sock, client in clients.items():
                if client.idle:
                    _cut(sock)
        until_ns = self._in(_STOP_S)
        for client in clients.values():
            if client.thread is not None:
                client.thread.join(max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_S))
        with self._lock:
            for sock in self._clients:
                _cut(sock)
        for client in clients.values():
            if client.thread is not None:
                client.thread.join(_STOP_S)

    def extend(self, sock: socket.socket, seconds: float, *, idle: bool = False) -> None:
        """Set the connection's deadline to `seconds` from now."""
        with self._lock:
            client = self._clients.get(sock)
            if client is not None:
                client.until_ns, client.idle = self._in(seconds), idle

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, address = self.socket.accept()
        sock.setblocking(True)
        tls = self.watch.access().tls
        if tls is None:
            return sock, address
        try:
            # The handshake waits for the client, so it belongs to the connection's own thread.
            return tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), address
        except OSError:
            sock.close()
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more; if not, the client is sent away."""
        if self._has_room():
            return True
        if not isinstance(request, ssl.SSLSocket):
            request.setblocking(False)
            try:
                request.send(_BUSY)
            except OSError:
                pass
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        client = _Client(self._in(REQUEST_S))
        client.thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="scrape", daemon=True
        )
        with self._lock:
            self._clients[request] = client
        try:
            client.thread.start()
        except RuntimeError:
            # No more threads: the caller closes this connection, and the server goes on.
            with self._lock:
                del self._clients[request]
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone, was cut off or does not speak TLS is not reported."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError | ValueError | RuntimeError):
            print(f"warning: a connection failed: {type(error).__name__}: {error}", file=sys.stderr)

    def shutdown_request(self, request: Any) -> None:
        """Close in two steps: closing with input unread would reset the connection and lose the last response."""
        if request in self._clients:
            self.extend(request, _LAST_S)
            try:
                socket.socket.shutdown(request, socket.SHUT_WR)
                while socket.socket.recv(request, MAX_HEAD_BYTES):
                    pass
            except OSError:
                pass
        # Under the lock, so that no other thread cuts a descriptor that is already another's.
        with self._lock:
            self._clients.pop(request, None)
            request.close()

    def _in(self, seconds: float) -> int:
        return self._clock.now_ns() + round(seconds * NS_PER_S)

    def _cut_late(self) -> None:
        now_ns = self._clock.now_ns()
        with self._lock:
            for sock, client in self._clients.items():
                if client.until_ns <= now_ns:
                    _cut(sock)

    def _has_room(self) -> bool:
        """Room for one more, which the connection that has been idle longest makes if need be."""
        with self._lock:
            if len(self._clients) < MAX_CONNECTIONS:
                return True
            idle = [(client.until_ns, sock) for sock, client in self._clients.items() if client.idle]
            if not idle:
                return False
            _, oldest = min(idle, key=lambda pair: pair[0])
            del self._clients[oldest]
            _cut(oldest)
        return True
