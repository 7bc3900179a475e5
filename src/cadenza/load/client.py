"""A client of one service: connections that are kept, exchanges in flight, and their deadlines, over a transport."""

import heapq
from collections.abc import Sequence

from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.judge import End
from cadenza.load.transport import Closed, Origin, Transport
from cadenza.record import Connection
from cadenza.spec import Timeouts
from cadenza.wire.dialect import Dialect

# How long one wait may last: an interrupt is noticed within this time even if the server is silent.
_LONGEST_WAIT_NS = 100_000_000


class Client:
    """Sends requests and brings back exchanges that have ended. Never waits for a slot: that is the loops' business."""

    def __init__(self, transport: Transport, origins: Sequence[Origin], dialect: Dialect, timeouts: Timeouts) -> None:
        self._transport = transport
        self._origins = origins
        self._dialect = dialect
        self._timeouts = timeouts
        self._flying: dict[int, Exchange] = {}
        self._idle: dict[int, int] = {}  # connection → target, in the order of becoming idle
        # (when to look, connection, when the exchange was sent); where that has ended, the entry is stale and skipped
        self._deadlines: list[tuple[int, int, int]] = []

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def now_ns(self) -> int:
        return self._transport.clock.now_ns()

    def start(self, outgoing: Outgoing, intended_ns: int) -> None:
        """Send `outgoing` now, on an idle connection to its target if there is one."""
        exchange = Exchange(outgoing, self._dialect, self._timeouts, intended_ns, self.now_ns())
        connection = self._take_idle(outgoing.target)
        if connection is None:
            self._dispatch_on_new(exchange)
        else:
            exchange.connection = Connection.REUSED
            self._dispatch(exchange, connection)

    def turn(self, until_ns: int) -> list[Exchange]:
        """Wait until something has ended, at the latest until `until_ns` (or a tenth of a second)."""
        now_ns = self.now_ns()
        wait_ns = min(until_ns, now_ns + _LONGEST_WAIT_NS)
        if self._deadlines:
            wait_ns = min(wait_ns, self._deadlines[0][0])
        ended, flying = [], self._flying
        for connection, stamp_ns, payload, lag_ns in self._transport.poll(wait_ns):
            exchange = flying.get(connection)
            if exchange is None:
                self._drop_idle(connection)
            elif isinstance(payload, bytes):
                if exchange.receive(payload, stamp_ns, lag_ns):
                    ended.append(self._release(connection, exchange))
            elif isinstance(payload, Closed):
                if self._closed(connection, exchange, payload, stamp_ns):
                    ended.append(exchange)
            else:
                exchange.opened(stamp_ns)
        return ended + self._check_deadlines()

    def cancel(self, reason: str) -> list[Exchange]:
        """Drop everything in flight; the exchanges end as cancelled."""
        now_ns = self.now_ns()
        return [self._finish(connection, "cancelled", now_ns, reason) for connection in list(self._flying)]

    def close(self) -> None:
        """Drop the kept connections."""
        for connection in list(self._idle):
            self._transport.close(connection)
        self._idle.clear()

    def _take_idle(self, target: int) -> int | None:
        # The one idle for the shortest time: least likely to be dropped by the server just now.
        for connection in reversed(self._idle):
            if self._idle[connection] == target:
                del self._idle[connection]
                return connection
        return None

    def _dispatch_on_new(self, exchange: Exchange) -> None:
        exchange.connection = Connection.NEW
        self._dispatch(exchange, self._transport.connect(self._origins[exchange.outgoing.target]))

    def _dispatch(self, exchange: Exchange, connection: int) -> None:
        self._flying[connection] = exchange
        heapq.heappush(self._deadlines, (exchange.next_look_ns(exchange.sent_ns), connection, exchange.sent_ns))
        self._transport.send(connection, exchange.outgoing.data)

    def _drop_idle(self, connection: int) -> None:
        """An idle connection was closed by the server, or it speaks unasked."""
        if self._idle.pop(connection, None) is not None:
            self._transport.close(connection)

    def _closed(self, connection: int, exchange: Exchange, closed: Closed, stamp_ns: int) -> bool:
        """Whether that was the end of `exchange`."""
        if exchange.connection is Connection.REUSED and not exchange.received_any:
            # The server dropped an idle connection while the request was on its way: not the request's fault.
            # RFC 9112 9.3.1 allows one more try where nothing of a response has been seen.
            del self._flying[connection]
            exchange.send_again("sent again on a new connection: the kept one had been closed")
            self._dispatch_on_new(exchange)
            return False
        whole = closed.clean and exchange.reader.eof()
        self._finish(connection, "complete" if whole else "lost", stamp_ns, "" if whole else closed.reason)
        return True

    def _release(self, connection: int, exchange: Exchange) -> Exchange:
        del self._flying[connection]
        if exchange.reader.complete and exchange.reader.keep_alive:
            self._idle[connection] = exchange.outgoing.target
        else:
            self._transport.close(connection)
        return exchange

    def _finish(self, connection: int, how: End, stamp_ns: int, reason: str) -> Exchange:
        exchange = self._flying.pop(connection)
        exchange.end(how, stamp_ns, reason)
        self._transport.close(connection)
        return exchange

    def _check_deadlines(self) -> list[Exchange]:
        ended = []
        now_ns = self.now_ns()
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, connection, sent_ns = heapq.heappop(self._deadlines)
            exchange = self._flying.get(connection)
            if exchange is None or exchange.sent_ns != sent_ns:
                continue
            exchange.check_deadline(now_ns)
            if exchange.finished:
                del self._flying[connection]
                self._transport.close(connection)
                ended.append(exchange)
            else:
                heapq.heappush(self._deadlines, (exchange.next_look_ns(now_ns), connection, sent_ns))
        return ended
