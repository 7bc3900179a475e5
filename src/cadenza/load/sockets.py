"""The real transport: non-blocking TCP, TLS through memory buffers, one selector, one thread.

A payload is stamped when it is read, before anything looks at it. Waits have microsecond resolution: epoll itself
counts in milliseconds, but an epoll descriptor can be waited for by `select`, which does not.
"""

import contextlib
import errno
import os
import select
import selectors
import socket
import ssl
from collections.abc import Callable

from cadenza.clock import MonotonicClock
from cadenza.errors import CadenzaError
from cadenza.load.transport import OPENED, Arrival, Closed, Origin

_READ_BYTES = 1 << 16
_IN_PROGRESS = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY}


def tls_context(verify: bool = True) -> ssl.SSLContext:
    """The system's trust store; `verify=False` accepts any certificate (a home server's own)."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Tls:
    """TLS over two memory buffers, so that the socket is read in one place only, where the stamp is taken."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake_hands(self, received: bytes) -> tuple[bool, bytes]:
        """Feed what came; whether the handshake is done, and what to send for it. Raises `ssl.SSLError`."""
        self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """All plaintext that is whole by now; raises `ssl.SSLError`."""
        self._incoming.write(received)
        plain = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while part := self._object.read(_READ_BYTES):
                plain += part
        return bytes(plain)


class _Connection:
    __slots__ = ("connected", "id", "opened", "out", "sock", "tls", "waiting")

    def __init__(self, id: int, sock: socket.socket, tls: _Tls | None) -> None:
        self.id = id
        self.sock = sock
        self.tls = tls
        self.connected = False
        self.opened = False
        self.waiting = b""  # plaintext handed over before the connection was open
        self.out = bytearray()  # bytes that the kernel has not taken yet


class SocketTransport:
    """`Transport` over real sockets; a context manager that closes what is left open."""

    def __init__(
        self, clock: MonotonicClock | None = None, make_context: Callable[[], ssl.SSLContext] = tls_context
    ) -> None:
        self.clock = clock or MonotonicClock()
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._next = 0
        self._ready: list[Arrival] = []
        self._make_context = make_context
        self._context: ssl.SSLContext | None = None

    def __enter__(self) -> "SocketTransport":
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in list(self._connections):
            self.close(connection)
        self._selector.close()

    def connect(self, origin: Origin) -> int:
        self._next += 1
        sock = self._socket(socket.AF_INET6 if ":" in origin.address[0] else socket.AF_INET)
        connection = _Connection(self._next, sock, self._tls(origin) if origin.tls else None)
        self._connections[connection.id] = connection
        self._selector.register(sock, selectors.EVENT_WRITE, connection)
        code = sock.connect_ex(origin.address)
        if code and code not in _IN_PROGRESS:
            self._lose(connection, os.strerror(code))
        return connection.id

    def send(self, connection: int, data: bytes) -> None:
        found = self._connections.get(connection)
        if found is None:
            return
        if not found.opened:
            found.waiting += data
            return
        self._write(found, found.tls.encrypt(data) if found.tls else data)

    def poll(self, until_ns: int) -> list[Arrival]:
        if not self._ready:
            self._turn(0)
            while not self._ready and (left_ns := until_ns - self.clock.now_ns()) > 0:
                self._turn(self.clock.real_s(left_ns))
        ready, self._ready = self._ready, []
        return ready

    def close(self, connection: int) -> None:
        found = self._connections.pop(connection, None)
        if found is not None:
            self._selector.unregister(found.sock)
            found.sock.close()

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise CadenzaError(
                f"no more files may be open ({len(self._connections)} connections are): raise `ulimit -n`, "
                "or lower the concurrency or the rate"
            ) from None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _tls(self, origin: Origin) -> _Tls:
        if self._context is None:
            self._context = self._make_context()
        return _Tls(self._context, origin.host)

    def _turn(self, wait_s: float) -> None:
        """One look at the selector, waiting for at most `wait_s` of real time."""
        if wait_s and isinstance(self._selector, selectors.EpollSelector):
            select.select([self._selector.fileno()], [], [], wait_s)
            wait_s = 0
        for key, events in self._selector.select(wait_s):
            connection: _Connection = key.data
            if events & selectors.EVENT_WRITE and connection.id in self._connections:
                if connection.connected:
                    self._write(connection, b"")
                else:
                    self._connect_ended(connection)
            if events & selectors.EVENT_READ and connection.id in self._connections:
                self._read(connection)

    def _connect_ended(self, connection: _Connection) -> None:
        code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lose(connection, os.strerror(code))
            return
        connection.connected = True
        self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
        if connection.tls is None:
            self._open(connection, self.clock.now_ns())
        else:
            self._shake_hands(connection, b"", self.clock.now_ns())

    def _open(self, connection: _Connection, stamp_ns: int) -> None:
        connection.opened = True
        self._ready.append(Arrival(connection.id, stamp_ns, OPENED))
        waiting, connection.waiting = connection.waiting, b""
        if waiting:
            self.send(connection.id, waiting)

    def _shake_hands(self, connection: _Connection, received: bytes, stamp_ns: int) -> None:
        assert connection.tls is not None
        try:
            done, reply = connection.tls.shake_hands(received)
        except ssl.SSLError as error:
            self._lose(connection, f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}")
            return
        self._write(connection, reply)
        if done:
            self._open(connection, stamp_ns)
            self._deliver(connection, b"", stamp_ns)  # data may have come with the handshake's last record

    def _read(self, connection: _Connection) -> None:
        stamp_ns = self.clock.now_ns()
        try:
            data = connection.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(connection, os.strerror(error.errno or 0))
            return
        if not data:
            self._ready.append(Arrival(connection.id, stamp_ns, Closed(True, "closed by the server")))
            self.close(connection.id)
        elif connection.opened:
            self._deliver(connection, data, stamp_ns)
        else:
            self._shake_hands(connection, data, stamp_ns)

    def _deliver(self, connection: _Connection, data: bytes, stamp_ns: int) -> None:
        if connection.tls is not None:
            try:
                data = connection.tls.decrypt(data)
            except ssl.SSLError as error:
                self._lose(connection, f"TLS: {error.reason or error}")
                return
        if data:
            self._ready.append(Arrival(connection.id, stamp_ns, data))

    def _write(self, connection: _Connection, data: bytes) -> None:
        """Give the kernel what it takes now; watch for room only while something is left."""
        had_rest = bool(connection.out)
        connection.out += data
        try:
            if connection.out:
                del connection.out[: connection.sock.send(connection.out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            connection.out.clear()  # the read tells how it broke, after whatever the server still said
        if bool(connection.out) != had_rest:
            also = selectors.EVENT_WRITE if connection.out else 0
            self._selector.modify(connection.sock, selectors.EVENT_READ | also, connection)

    def _lose(self, connection: _Connection, reason: str) -> None:
        self._ready.append(Arrival(connection.id, self.clock.now_ns(), Closed(clean=False, reason=reason)))
        self.close(connection.id)
