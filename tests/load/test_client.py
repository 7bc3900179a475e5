"""How often the client looks at deadlines: each exchange in flight once a minute, however many came before it."""

import itertools
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
from support.scripted import DONE, END, HEAD, Script, ScriptedPeer, stream, token

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


def two_in_turn(script: Script) -> ScriptedPeer:
    """A peer that has answered two requests, the second sent 10 s after the first, and the client was closed."""
    peer = ScriptedPeer(lambda n: script)
    client = Client(MemoryTransport(peer), [Origin("t", ("127.0.0.1", 1))], DIALECTS["chat"], Timeouts())
    for outgoing in itertools.islice(plan(), 2):
        client.start(outgoing, client.now_ns())
        until_ns = client.now_ns() + 10 * S
        while client.now_ns() < until_ns:
            client.turn(until_ns)
    client.close()
    return peer


def test_a_kept_connection_is_closed_with_the_client() -> None:
    peer = two_in_turn(stream(1))
    assert [connection for connection, _ in peer.requests] == [1, 1]
    assert peer.closed == [1]


def test_a_connection_that_the_answer_closes_is_not_used_again() -> None:
    # RFC 9112 9.6: after `Connection: close` the client sends no further request on that connection.
    head = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    peer = two_in_turn([(1, head + token(finish="stop") + DONE + END)])
    assert [connection for connection, _ in peer.requests] == [1, 2]
    assert peer.closed == [1, 2]


def test_an_idle_connection_on_which_bytes_come_is_dropped() -> None:
    # Nothing was asked on it, so that what comes cannot be the next request's answer.
    peer = two_in_turn([*stream(1), (5_000, b"HTTP/1.1 408 Request Timeout\r\n\r\n")])
    assert [connection for connection, _ in peer.requests] == [1, 2]
    assert peer.closed == [1, 2]
