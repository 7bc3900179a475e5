"""The transport's twin: an in-process peer in virtual time. Same calls, no sockets, no waiting.

A peer is anything that takes bytes and says when it wants to answer: the embedded engine's HTTP face, or a script
of a test. `poll` moves the manual clock to the next answer, or to `until_ns`, whichever comes first.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from cadenza.clock import ManualClock
from cadenza.load.transport import OPENED, Arrival, Closed, Origin, Payload


class Peer(Protocol):
    """A server without sockets: bytes in at a time, bytes out at times of its own choosing."""

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        """Bytes from the client; `b""` says that the client has closed the connection."""
        ...

    def next_ns(self) -> int | None:
        """When the peer next has something to do or to say, None: nothing until more bytes come."""
        ...

    def take(self, now_ns: int) -> Sequence[tuple[int, bytes | ConnectionResetError | None]]:
        """Do what is due at `now_ns`; the bytes it says, per connection and in order.

        None: it closes; an error: it breaks off.
        """
        ...


class MemoryTransport:
    """`Transport` over a `Peer`. `refuse(origin)` true makes a connect fail, as a closed port would.

    meanwhile   is called before time passes, with the time until which; up to that instant nothing happens
    """

    def __init__(
        self, peer: Peer, clock: ManualClock | None = None, refuse: Callable[[Origin], bool] | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        self.counters = None
        self.peer = peer
        self.meanwhile: Callable[[int], None] | None = None
        self._refuse = refuse
        self._next = 0
        self._open: set[int] = set()
        self._due: list[tuple[int, Payload]] = []

    def connect(self, origin: Origin) -> int:
        self._next += 1
        if self._refuse is not None and self._refuse(origin):
            self._due.append((self._next, Closed(clean=False, reason="Connection refused")))
        else:
            self._open.add(self._next)
            self._due.append((self._next, OPENED))
        return self._next

    def send(self, connection: int, data: bytes) -> None:
        if connection in self._open:
            self.peer.receive(connection, data, self.clock.now_ns())

    def poll(self, until_ns: int) -> list[Arrival]:
        now_ns = self.clock.now_ns()
        if self._due:
            due, self._due = self._due, []
            return [(connection, now_ns, payload, 0) for connection, payload in due]
        due_ns = self.peer.next_ns()
        if due_ns is None or due_ns > max(until_ns, now_ns):
            self._pass_to(until_ns)
            return []
        self._pass_to(due_ns)
        return self._take()

    def close(self, connection: int) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self.peer.receive(connection, b"", self.clock.now_ns())

    def _pass_to(self, at_ns: int) -> None:
        if self.meanwhile is not None and at_ns > self.clock.now_ns():
            self.meanwhile(at_ns)
        self.clock.advance_to(at_ns)

    def _take(self) -> list[Arrival]:
        now_ns, is_open = self.clock.now_ns(), self._open
        arrived: list[Arrival] = []
        for connection, data in self.peer.take(now_ns):
            if connection not in is_open:
                continue
            if data is None:
                is_open.discard(connection)
                arrived.append((connection, now_ns, Closed(clean=True, reason="closed by the server"), 0))
            elif isinstance(data, ConnectionResetError):
                is_open.discard(connection)
                arrived.append((connection, now_ns, Closed(clean=False, reason="Connection reset by peer"), 0))
            else:
                arrived.append((connection, now_ns, data, 0))
        return arrived
