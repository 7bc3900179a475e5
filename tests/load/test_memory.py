"""The transport's twin: what it hands out, when, and where it leaves the clock."""

from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import OPENED, Closed, Origin
from support.scripted import ScriptedPeer

MS = 1_000_000
ORIGIN = Origin("test", ("127.0.0.1", 1))


def test_the_clock_goes_from_answer_to_answer_and_no_further_than_asked() -> None:
    transport = MemoryTransport(ScriptedPeer(lambda n: [(20, b"one"), (30, b"two"), (30, None)]))
    connection = transport.connect(ORIGIN)
    assert transport.poll(10 * MS) == [(connection, 0, OPENED, 0)]
    transport.send(connection, b"hello")
    assert transport.poll(10 * MS) == []
    assert transport.clock.now_ns() == 10 * MS
    assert transport.poll(100 * MS) == [(connection, 20 * MS, b"one", 0)]
    assert transport.poll(100 * MS) == [
        (connection, 30 * MS, b"two", 0),
        (connection, 30 * MS, Closed(clean=True, reason="closed by the server"), 0),
    ]
    assert transport.poll(100 * MS) == []
    assert transport.clock.now_ns() == 100 * MS


def test_a_look_brings_what_is_due_now_and_moves_nothing() -> None:
    transport = MemoryTransport(ScriptedPeer(lambda n: [(0, b"at once"), (5, b"later")]))
    connection = transport.connect(ORIGIN)
    transport.poll(0)
    transport.poll(7 * MS)
    transport.send(connection, b"hello")
    assert transport.poll(0) == [(connection, 7 * MS, b"at once", 0)]
    assert transport.poll(0) == []
    assert transport.clock.now_ns() == 7 * MS


def test_a_refused_or_a_closed_connection_is_silent_after_that() -> None:
    peer = ScriptedPeer(lambda n: [(1, b"too late")])
    transport = MemoryTransport(peer, refuse=lambda origin: origin.host == "shut")
    refused = transport.connect(Origin("shut", ("127.0.0.1", 1)))
    transport.send(refused, b"hello")
    assert transport.poll(MS) == [(refused, 0, Closed(clean=False, reason="Connection refused"), 0)]
    connection = transport.connect(ORIGIN)
    transport.send(connection, b"hello")
    transport.poll(0)
    transport.close(connection)
    transport.close(connection)
    assert peer.closed == [connection]
    assert transport.poll(9 * MS) == []
