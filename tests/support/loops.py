"""A client over a peer in virtual time, plans of small requests with a cooldown, and what was in flight when."""

from collections.abc import Iterator, Sequence
from itertools import count

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.memory import MemoryTransport, Peer
from cadenza.load.transport import Origin
from cadenza.record import Message, Phase, Record, Request
from cadenza.spec import Timeouts
from cadenza.wire.dialects import DIALECTS

MS = 1_000_000
ORIGIN = Origin("test", ("127.0.0.1", 1))


class Bench:
    """A client over a peer, and what came of its requests."""

    def __init__(self, peer: Peer, origins: int = 1) -> None:
        self.transport = MemoryTransport(peer)
        self.client = Client(self.transport, [ORIGIN] * origins, DIALECTS["chat"], Timeouts())
        self.records: list[Record] = []
        self.greatest = 0

    def emit(self, exchange: Exchange) -> None:
        self.records.append(exchange.record(0, "m"))

    def never(self) -> bool:
        self.greatest = max(self.greatest, self.client.in_flight)
        return False

    def of(self, phase: Phase) -> list[Record]:
        """By index."""
        return sorted((r for r in self.records if r.phase is phase), key=lambda r: r.index)


def plan(n: int, due_ms: Sequence[float] | None = None) -> Iterator[Outgoing]:
    """n measured requests, and nothing after them."""
    return (_outgoing(index, Phase.MEASURE, None if due_ms is None else due_ms[index]) for index in range(n))


def plan_on(warmup: int, measured: int, every_ms: float | None = None) -> Iterator[Outgoing]:
    """Without end: warm-up, what is measured, cooldown; one request is due `every_ms`, or whenever there is a slot."""
    for index in count():
        phase = Phase.WARMUP if index < warmup else Phase.MEASURE if index < warmup + measured else Phase.COOLDOWN
        yield _outgoing(index, phase, None if every_ms is None else index * every_ms)


def _outgoing(index: int, phase: Phase, due_ms: float | None) -> Outgoing:
    due_ns = None if due_ms is None else round(due_ms * MS)
    request = Request(index=index, messages=(Message("user", "hi"),), output_tokens=1, due_ns=due_ns, phase=phase)
    return Outgoing(request, b"POST / HTTP/1.1\r\n\r\n")


def in_flight_at(records: list[Record], at_ns: int) -> int:
    return sum(r.sent_ns is not None and r.done_ns is not None and r.sent_ns <= at_ns < r.done_ns for r in records)
