"""How often the client looks at deadlines: each exchange in flight once a minute, however many came before it."""

from collections.abc import Iterator

import pytest

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Origin
from cadenza.record import Message, Outcome, Record, Request
from cadenza.spec import Timeouts
from cadenza.wire.dialects import DIALECTS
from support.scripted import ScriptedPeer, stream

S = 1_000_000_000
SHORT = 200


def plan() -> Iterator[Outgoing]:
    for index in range(SHORT + 1):
        yield Outgoing(Request(index=index, messages=(Message("user", "hi"),), output_tokens=1), b"POST / HTTP/1.1\r\n")


def test_answers_that_have_ended_leave_no_looks_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    check = Exchange.check_deadline

    def note(exchange: Exchange, now_ns: int) -> None:
        looks.append(now_ns)
        check(exchange, now_ns)

    monkeypatch.setattr(Exchange, "check_deadline", note)
    # 200 answers of 0.1 s on one connection, which is kept, then one of 210 s with a token every 10 s.
    peer = ScriptedPeer(lambda n: stream(1, first_ms=100) if n < SHORT else stream(22, first_ms=100, gap_ms=10_000))
    client = Client(MemoryTransport(peer), [Origin("t", ("127.0.0.1", 1))], DIALECTS["chat"], Timeouts(stall_s=60))
    records: list[Record] = []
    closed_loop(client, plan(), 1, lambda ended: records.append(ended.record(0, "m")), lambda: False)
    assert [record.outcome for record in records] == [Outcome.OK] * (SHORT + 1)
    assert len({connection for connection, _ in peer.requests}) == 1
    # The first a minute after it was sent, at 20 s; each next a minute after the last token that the look before saw.
    assert looks == [80 * S, 130 * S + S // 10, 190 * S + S // 10]


def test_the_connection_that_was_idle_for_the_shortest_time_is_taken() -> None:
    # The server drops those that rest the longest. The first answer takes 0.3 s, the second 0.1 s.
    peer = ScriptedPeer(lambda n: stream(1, first_ms=300 if n == 0 else 100))
    client = Client(MemoryTransport(peer), [Origin("t", ("127.0.0.1", 1))], DIALECTS["chat"], Timeouts())
    sent = plan()
    for _ in range(2):
        client.start(next(sent), client.now_ns())
    while client.in_flight:
        client.turn(client.now_ns() + S)
    client.start(next(sent), client.now_ns())
    first, second, third = (connection for connection, _ in peer.requests)
    assert first != second
    assert third == first
