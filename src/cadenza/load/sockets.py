"""The real transport: non-blocking TCP, TLS through memory buffers, one look at the sockets at a time, one thread.

A payload carries the kernel's stamp of its arrival where the kernel gives one, else the stamp of its read. Either is
taken before anything looks at the bytes.
"""

import errno
import os
import socket
import ssl
import time
from collections.abc import Callable

from cadenza.clock import NS_PER_S, MonotonicClock
from cadenza.errors import CadenzaError
from cadenza.load.readiness import WRITABLE, Readiness, make_readiness
from cadenza.load.stamps import ANCILLARY_BYTES, ArrivalClock, ask_for_stamps
from cadenza.load.tls import Tls, explain, tls_context
from cadenza.load.transport import OPENED, Arrival, Closed, Counters, Origin

_READ_BYTES = 1 << 16
# How often the pace of the reads is looked at, below how many connections it is not worth a rest, and the longest rest.
_PACE_NS = 50_000_000
_MANY = 32
_LONGEST_REST_S = 0.001
# Of the time between two reads of one connection: so two events of it seldom fall into one read.
_REST_SHARE = 0.1
_IN_PROGRESS = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY}
# What this machine has run out of, and what its user can do; never the target's fault.
_EXHAUSTED = {
    errno.EMFILE: "no more files may be open: raise `ulimit -n`, or lower the concurrency or the rate",
    errno.ENFILE: "the system has no more files to open: lower the concurrency or the rate",
    errno.EADDRNOTAVAIL: "no local port is left: lower the rate of new connections (does the server keep them open?), "
    "or widen net.ipv4.ip_local_port_range",
    errno.ENOBUFS: "the kernel has no buffers left: lower the concurrency",
    errno.ENOMEM: "the kernel has no memory left: lower the concurrency",
}


class _Connection:
    __slots__ = ("connected", "fd", "id", "opened", "out", "recvmsg_into", "sock", "tls", "waiting")

    def __init__(self, id: int, sock: socket.socket, tls: Tls | None) -> None:
        self.id = id
        self.sock = sock
        self.fd = sock.fileno()
        self.recvmsg_into = sock.recvmsg_into
        self.tls = tls
        self.connected = False
        self.opened = False
        self.waiting = b""  # plaintext handed over before the connection was open
        self.out = bytearray()  # bytes that the kernel has not taken yet


class SocketTransport:
    """`Transport` over real sockets; a context manager that closes what is left open.

    kernel_stamps   False: take the stamps of the reads, as on systems without kernel stamps
    """

    def __init__(
        self,
        clock: MonotonicClock | None = None,
        make_context: Callable[[], ssl.SSLContext] = tls_context,
        *,
        kernel_stamps: bool = True,
        arrivals: ArrivalClock | None = None,
    ) -> None:
        self.clock = clock or MonotonicClock()
        self._scaled = self.clock.speed != 1.0
        self.counters = Counters()
        self._readiness: Readiness = make_readiness()
        # Asks before any connection does: the kernel turns stamping on a moment after the first socket wants it.
        self._asks_first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._kernel_stamps = kernel_stamps and ask_for_stamps(self._asks_first)
        self._arrivals = arrivals or ArrivalClock()
        self._connections: dict[int, _Connection] = {}
        self._by_fd: dict[int, _Connection] = {}
        self._next = 0
        self._paced_ns = time.monotonic_ns()
        self._paced_reads = 0
        self._rest_s = 0.0
        self._ready: list[Arrival] = []
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._buffers = [self._buffer]
        self._make_context = make_context
        self._context: ssl.SSLContext | None = None

    def __enter__(self) -> "SocketTransport":
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in list(self._connections):
            self.close(connection)
        self._readiness.close()
        self._asks_first.close()

    def connect(self, origin: Origin) -> int:
        self._next += 1
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in origin.address[0] else socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            raise self._exhausted(error.errno) or error from None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._kernel_stamps:
            ask_for_stamps(sock)
        connection = _Connection(self._next, sock, self._tls(origin) if origin.tls else None)
        self._connections[connection.id] = self._by_fd[connection.fd] = connection
        self._readiness.watch(connection.fd, read=False, write=True)
        code = sock.connect_ex(origin.address)
        if code and code not in _IN_PROGRESS:
            if (exhausted := self._exhausted(code)) is not None:
                raise exhausted
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
        now_ns = time.monotonic_ns()
        counters = self.counters
        if counters.left_ns and now_ns - counters.left_ns > counters.away_ns:
            counters.away_ns = now_ns - counters.left_ns
        if not self._ready:
            self._rest(now_ns, self.clock.real_s(until_ns - self.clock.now_ns()))
            self._turn(self.clock.real_s(until_ns - self.clock.now_ns()))
            while not self._ready and (left_ns := until_ns - self.clock.now_ns()) > 0:
                self._turn(self.clock.real_s(left_ns))
        ready, self._ready = self._ready, []
        counters.left_ns = time.monotonic_ns()
        return ready

    def close(self, connection: int) -> None:
        found = self._connections.pop(connection, None)
        if found is not None:
            del self._by_fd[found.fd]
            self._readiness.forget(found.fd)
            found.sock.close()

    def _exhausted(self, code: int | None) -> CadenzaError | None:
        what = _EXHAUSTED.get(code or 0)
        return CadenzaError(f"{what} ({len(self._connections)} connections are open)") if what else None

    def _tls(self, origin: Origin) -> Tls:
        if self._context is None:
            self._context = self._make_context()
        return Tls(self._context, origin.host)

    def _rest(self, now_ns: int, wait_s: float) -> None:
        """Let answers gather, since waking up for each event costs more than the event; the stamps are the kernel's."""
        if now_ns - self._paced_ns > _PACE_NS:
            reads = self.counters.reads
            reads_per_s = (reads - self._paced_reads) * NS_PER_S / (now_ns - self._paced_ns)
            self._paced_ns, self._paced_reads = now_ns, reads
            many = self._kernel_stamps and len(self._connections) >= _MANY and reads_per_s > 0
            self._rest_s = min(_LONGEST_REST_S, _REST_SHARE * len(self._connections) / reads_per_s) if many else 0.0
        if self._rest_s and wait_s > 2 * self._rest_s:
            time.sleep(self._rest_s)

    def _turn(self, wait_s: float) -> None:
        """One look at the sockets, waiting for at most `wait_s` of real time."""
        ready = self._readiness.wait(wait_s)
        if ready and self._kernel_stamps and self._arrivals.look():
            self.counters.clock_steps += 1
        by_fd, read = self._by_fd, self._read
        for fd, events in ready:
            connection = by_fd.get(fd)
            if connection is None:
                continue
            if not connection.connected:
                self._connect_ended(connection)
                continue
            if events & WRITABLE:
                self._write(connection, b"")
            if events != WRITABLE:
                read(connection)

    def _connect_ended(self, connection: _Connection) -> None:
        code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lose(connection, os.strerror(code))
            return
        connection.connected = True
        self._readiness.watch(connection.fd, read=True, write=False)
        if connection.tls is None:
            self._open(connection, self.clock.now_ns())
        else:
            self._shake_hands(connection, b"", self.clock.now_ns())

    def _open(self, connection: _Connection, stamp_ns: int) -> None:
        connection.opened = True
        self._ready.append((connection.id, stamp_ns, OPENED, None))
        waiting, connection.waiting = connection.waiting, b""
        if waiting:
            self.send(connection.id, waiting)

    def _shake_hands(self, connection: _Connection, received: bytes, stamp_ns: int) -> None:
        assert connection.tls is not None
        try:
            done, reply = connection.tls.shake_hands(received)
        except ssl.SSLError as error:
            self._lose(connection, explain(error))
            return
        self._write(connection, reply)
        if done:
            self._open(connection, stamp_ns)
            # Data may have come with the handshake's last record.
            self._decrypt(connection, connection.tls, b"", stamp_ns, None)

    def _read(self, connection: _Connection) -> None:
        lag_ns = None
        try:
            if self._kernel_stamps:
                size, ancillary, _, _ = connection.recvmsg_into(self._buffers, ANCILLARY_BYTES)
                stamp_ns = time.monotonic_ns()
                arrived_ns = self._arrivals.arrival_ns(ancillary, stamp_ns)
                if arrived_ns is not None:
                    lag_ns, stamp_ns = stamp_ns - arrived_ns, arrived_ns
            else:
                stamp_ns = time.monotonic_ns()
                size = connection.sock.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(connection, os.strerror(error.errno or 0))
            return
        if self._scaled:
            stamp_ns = self.clock.at_ns(stamp_ns)
        data = self._buffer[:size].tobytes()
        self.counters.reads += 1
        if not size:
            self._ready.append((connection.id, stamp_ns, Closed(True, "closed by the server"), lag_ns))
            self.close(connection.id)
        elif connection.tls is None:
            self._ready.append((connection.id, stamp_ns, data, lag_ns))
        elif connection.opened:
            self._decrypt(connection, connection.tls, data, stamp_ns, lag_ns)
        else:
            self._shake_hands(connection, data, stamp_ns)

    def _decrypt(self, connection: _Connection, tls: Tls, data: bytes, stamp_ns: int, lag_ns: int | None) -> None:
        try:
            plain = tls.decrypt(data)
        except ssl.SSLError as error:
            self._lose(connection, explain(error))
            return
        if plain:
            self._ready.append((connection.id, stamp_ns, plain, lag_ns))

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
            connection.out.clear()  # the read shows how it broke, after whatever the server still sent
        if bool(connection.out) != had_rest:
            self._readiness.watch(connection.fd, read=True, write=bool(connection.out))

    def _lose(self, connection: _Connection, reason: str) -> None:
        self._ready.append((connection.id, self.clock.now_ns(), Closed(clean=False, reason=reason), None))
        self.close(connection.id)
