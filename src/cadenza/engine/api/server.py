"""The engine's socket shell: one thread that carries bytes between non-blocking sockets and the `HttpApi`, on time.

All events of a step fall due at one instant, and computing the step takes a while (some 2 ms for 500 streams). So it
is taken from the API that much before its time, and held; at its time there is nothing left to do but to send.
"""

import gc
import ipaddress
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cadenza.clock import NS_PER_S
from cadenza.engine.api.http import Output
from cadenza.engine.api.http_api import HttpApi
from cadenza.errors import UsageError

_READ_BYTES = 64 << 10
# A reader so slow that this much waits for it is cut off; the engine waits for nobody.
MAX_QUEUED_BYTES = 4 << 20
_STOP_EVERY_NS = 100_000_000
_BACKLOG = 4096
# How long before a deadline the engine stops sleeping.
_LOOK_S = 0.0003
# How much earlier than it is due a step is taken from the API: as long as such steps took, and a late awakening more.
_AWAKENING_NS = 400_000
_MAX_LEAD_NS = 8_000_000
_LEAD_FADES = 1 / 64
# Garbage is collected where there is time for it, but at the latest after ten times as long.
_COLLECT_EVERY_NS = NS_PER_S
# FD_SETSIZE of glibc, musl and macOS: select refuses descriptors from here on.
_SELECT_LIMIT = 1024


class _Link:
    """One client's socket, and what it has not taken yet; `ending`: close as soon as that has gone."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.queued = bytearray()
        self.is_writing = False
        self.ending = False


class SocketServer:
    """A reactor over one listening socket. Engine time is monotonic time since its start, times `speed`.

    The API may be ahead of it by the lead, 8 ms at most: a request that comes in meanwhile arrives, to the API, with
    the step that it has already taken. Nothing leaves before its time, the answers of pages included.
    """

    def __init__(
        self, api: HttpApi, listener: socket.socket, speed: float, tick: Callable[[int], None] | None = None
    ) -> None:
        self._api = api
        self._tick = tick
        self._speed = speed
        self._start_ns = time.monotonic_ns()
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._accepting = True
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._links: dict[int, _Link] = {}
        self._count = 0
        self._lead_ns = _AWAKENING_NS
        self._held: tuple[int, list[tuple[int, Output]]] | None = None
        self._collected_ns = self._start_ns
        self._collecting_s = 0.0

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve until `stop()`, which is asked ten times a second; `tick` gets the engine's time as often."""
        asked_ns = 0
        while True:
            now = time.monotonic_ns()
            if now - asked_ns >= _STOP_EVERY_NS:
                if stop():
                    return
                asked_ns = now
                if self._tick is not None:
                    self._tick(self._engine_ns())
            self._wait(self._advance())

    def close(self) -> None:
        """Close every socket, those of clients included."""
        for link in list(self._links.values()):
            self._drop(link)
        self._selector.close()
        self._listener.close()

    def _engine_ns(self) -> int:
        return int((time.monotonic_ns() - self._start_ns) * self._speed)

    def _advance(self) -> int | None:
        """Take what is due within the lead, say what is due; when to be asked again, None: when bytes have come."""
        if self._held is None:
            due = self._api.next_ns()
            if due is None:
                return None
            now_ns, lead_ns = self._engine_ns(), int(self._lead_ns * self._speed)
            if due - lead_ns > now_ns:
                return due - lead_ns
            due = max(due, now_ns)
            begun = time.monotonic_ns()
            self._held = (due, self._api.take(due))
            took_ns = time.monotonic_ns() - begun + _AWAKENING_NS
            # The longest of late, since steps and single first tokens alternate.
            self._lead_ns = min(max(took_ns, int(self._lead_ns * (1 - _LEAD_FADES))), _MAX_LEAD_NS)
        due, output = self._held
        now_ns = self._engine_ns()
        if due > now_ns:
            return due
        self._held = None
        self._say(output)
        return now_ns

    def _wait(self, due_ns: int | None) -> None:
        wait_s = _STOP_EVERY_NS / NS_PER_S
        if due_ns is not None:
            wait_s = min(wait_s, max(0.0, (due_ns - self._engine_ns()) / self._speed / NS_PER_S))
        if self._collects(wait_s):
            return
        # Only what is held has to leave on the dot.
        ready = _ready(self._selector, wait_s, 0.0 if self._held is None else _LOOK_S)
        now_ns = self._engine_ns()
        for key, mask in ready:
            link: _Link | None = key.data
            if link is None:
                self._accept()
                continue
            if mask & selectors.EVENT_WRITE:
                self._flush(link)
            if mask & selectors.EVENT_READ and link.number in self._links:
                self._read(link, now_ns)

    def _collects(self, wait_s: float) -> bool:
        """Collect garbage if it is time, and `wait_s` long enough; left to itself Python would do it during a step."""
        begun_ns = time.monotonic_ns()
        since_ns = begun_ns - self._collected_ns
        if since_ns < _COLLECT_EVERY_NS or (wait_s < 2 * self._collecting_s and since_ns < 10 * _COLLECT_EVERY_NS):
            return False
        gc.collect()
        self._collected_ns = time.monotonic_ns()
        self._collecting_s = (self._collected_ns - begun_ns) / NS_PER_S
        return True

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of descriptors, most likely: the backlog keeps them until a connection here ends.
                self._selector.unregister(self._listener)
                self._accepting = False
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._count += 1
            link = self._links[self._count] = _Link(self._count, sock)
            self._selector.register(sock, selectors.EVENT_READ, link)

    def _read(self, link: _Link, now_ns: int) -> None:
        try:
            data = link.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(link)
        elif not link.ending:
            self._api.receive(link.number, data, now_ns)

    def _say(self, output: list[tuple[int, Output]]) -> None:
        if len(dict(output)) < len(output):
            self._say_together(output)
            return
        links = self._links
        for number, data in output:
            link = links.get(number)
            if link is None:
                continue
            if not isinstance(data, bytes) or link.queued or link.ending:
                self._say_together([(number, data)])
                continue
            # What nearly all of it is: an event for a client that has taken all before it.
            try:
                sent = link.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(link)
                continue
            if sent < len(data):
                link.queued += data[sent:]
                self._flush(link)

    def _say_together(self, output: list[tuple[int, Output]]) -> None:
        """All that there is for a client in one piece: where several of its events are late, or some still waits."""
        touched = {}
        for number, data in output:
            link = self._links.get(number)
            if link is None or link.ending:
                continue
            touched[number] = link
            if data is None:
                link.ending = True
            elif isinstance(data, ConnectionResetError):
                self._break(link)
            else:
                link.queued += data
        for link in touched.values():
            self._flush(link)

    def _flush(self, link: _Link) -> None:
        if link.number not in self._links:
            return
        try:
            while link.queued:
                del link.queued[: link.sock.send(link.queued)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(link)
            return
        if len(link.queued) > MAX_QUEUED_BYTES:
            self._drop(link)
            return
        if link.is_writing != bool(link.queued):
            link.is_writing = not link.is_writing
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.is_writing else 0)
            self._selector.modify(link.sock, wanted, link)
        if link.ending and not link.queued:
            self._end(link)

    def _end(self, link: _Link) -> None:
        # Half a close: a full one, with bytes of the client's still unread, would reset what we just sent.
        try:
            link.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(link)

    def _break(self, link: _Link) -> None:
        """Break the connection off with a reset; what the kernel takes without waiting goes before it."""
        self._flush(link)
        if link.number in self._links:
            link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._drop(link)

    def _drop(self, link: _Link) -> None:
        self._selector.unregister(link.sock)
        link.sock.close()
        del self._links[link.number]
        self._api.receive(link.number, b"", self._engine_ns())
        if not self._accepting:
            self._selector.register(self._listener, selectors.EVENT_READ, None)
            self._accepting = True


def _ready(
    selector: selectors.BaseSelector, wait_s: float, look_s: float = _LOOK_S
) -> list[tuple[selectors.SelectorKey, int]]:
    """What is ready within `wait_s`. epoll counts in milliseconds and rounds up; select on its descriptor does not.

    A timed wait ends late all the same (0.2 ms on a virtual machine), so the last `look_s` of it are spent looking.
    """
    ready = selector.select(0)
    if ready or wait_s == 0:
        return ready
    fileno: Callable[[], int] | None = getattr(selector, "fileno", None)
    if fileno is None or fileno() >= _SELECT_LIMIT:
        return selector.select(wait_s)
    until_s = time.monotonic() + wait_s
    if wait_s > look_s:
        select.select([fileno()], [], [], wait_s - look_s)
    while not (ready := selector.select(0)) and time.monotonic() < until_s:
        pass
    return ready


def listen(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket; UsageError where the address is unknown, taken or not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"the host '{host}' cannot be resolved ({error}); --host 127.0.0.1 always can") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"cannot listen on {host} port {port}: {reason}; try another --port, or --port 0") from None
    listener.setblocking(False)
    return listener


def serve(
    api: HttpApi,
    host: str,
    port: int,
    speed: float,
    ready: Callable[[str], None] = lambda url: None,
    stop: Callable[[], bool] = lambda: False,
    tick: Callable[[int], None] | None = None,
) -> None:
    """Serve `api` until SIGINT, SIGTERM or `stop()`; `ready` gets the URL once connections are taken.

    `port` 0 takes a free one; `tick` see `SocketServer.run`. Raises UsageError where it cannot listen.
    """
    listener = listen(host, port)
    address = listener.getsockname()
    name = f"[{address[0]}]" if listener.family == socket.AF_INET6 else address[0]
    if not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        print(f"warning: listening on {name}, where other machines can reach it", file=sys.stderr)
    server = SocketServer(api, listener, speed, tick)
    try:
        with _signalled() as signalled, _collected_by_hand():
            ready(f"http://{name}:{address[1]}")
            server.run(lambda: signalled.is_set() or stop())
    finally:
        server.close()


@contextmanager
def _collected_by_hand() -> Iterator[None]:
    """No garbage is collected unasked, and what is there now is not walked: a whole KV cache would take 20 ms."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _signalled() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; outside the main thread signals are somebody else's."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)
