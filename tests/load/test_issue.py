"""The two loops against closed forms, on a virtual clock."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.load.course import Course
from cadenza.load.issue import closed_loop, open_loop
from cadenza.record import Connection, Outcome
from support.loops import MS, Bench, in_flight_at, plan
from support.scripted import DONE, END, HEAD, ScriptedPeer, stream, token


def test_a_closed_loop_holds_exactly_its_slots() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(5, first_ms=20 + n % 7, gap_ms=10)))
    closed_loop(bench.client, plan(60), 4, bench.emit, bench.never)
    assert [r.outcome for r in bench.records] == [Outcome.OK] * 60
    assert bench.greatest == 4
    last_sent = max(r.sent_ns or 0 for r in bench.records)
    for at_ns in range(0, last_sent, MS):
        assert in_flight_at(bench.records, at_ns) == 4


def test_a_slot_is_refilled_the_moment_it_is_free() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(3, first_ms=20, gap_ms=10)))  # 40 ms each
    closed_loop(bench.client, plan(3), 1, bench.emit, bench.never)
    assert [(r.intended_ns, r.sent_ns, r.done_ns) for r in bench.records] == [
        (0, 0, 40 * MS),
        (40 * MS, 40 * MS, 80 * MS),
        (80 * MS, 80 * MS, 120 * MS),
    ]
    assert [r.connection for r in bench.records] == [Connection.NEW, Connection.REUSED, Connection.REUSED]


def test_a_duration_ends_the_sending_and_not_the_answers() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(3, first_ms=20, gap_ms=10)))
    requests = plan(1000)
    closed_loop(bench.client, requests, 1, bench.emit, bench.never, Course(until_ns=100 * MS))
    assert [r.sent_ns for r in bench.records] == [0, 40 * MS, 80 * MS]
    assert [r.outcome for r in bench.records] == [Outcome.OK] * 3


def test_an_open_loop_never_waits_for_a_slot() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=1000)))
    due = [float(k) for k in range(200)]
    left = open_loop(bench.client, plan(200, due), 0, bench.emit, bench.never)
    assert left == []
    assert sorted(r.sent_ns or 0 for r in bench.records) == [k * MS for k in range(200)]
    assert bench.greatest == 200


def test_a_cap_queues_at_the_client_and_time_counts_from_the_arrival() -> None:
    """D/D/1: service 30 ms, an arrival every 10 ms, one slot: request k starts at 30 k and was due at 10 k."""
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=30)))
    open_loop(bench.client, plan(20, [10.0 * k for k in range(20)]), 0, bench.emit, bench.never, cap=1)
    by_index = sorted(bench.records, key=lambda r: r.index)
    assert [r.intended_ns for r in by_index] == [10 * k * MS for k in range(20)]
    assert [r.sent_ns for r in by_index] == [30 * k * MS for k in range(20)]
    assert bench.greatest == 1


def test_a_frozen_server_shows_in_user_ttft_although_ttft_hides_it() -> None:
    """Coordinated omission: 12 arrivals a second, cap 16, a freeze of 6 s that begins with request 60."""
    frozen_until = 60 / 12 * 1000 + 6000

    def script(n: int) -> list[tuple[float, bytes | None]]:
        sent_ms = bench.transport.clock.now_ns() / MS
        wait = max(0.0, frozen_until - sent_ms) if n >= 60 else 0.0
        return [(wait + 100, HEAD + token(finish="stop") + DONE + END)]

    bench = Bench(ScriptedPeer(script))
    open_loop(bench.client, plan(240, [k * 1000 / 12 for k in range(240)]), 0, bench.emit, bench.never, cap=16)
    user = np.array([(r.event_ns[0] - r.intended_ns) / MS for r in bench.records])
    naive = np.array([(r.event_ns[0] - (r.sent_ns or 0)) / MS for r in bench.records])
    # Request 60 + k is due k/12 s into the freeze, so it waits at least 6 s − k/12 s: 30 % of 240 requests do.
    assert np.percentile(user, 95) > 5000
    assert np.mean(naive > 500) == pytest.approx(16 / 240, abs=0.01)  # only the 16 that filled the cap


def test_an_interrupt_cancels_what_is_in_flight_and_leaves_the_rest_of_the_plan() -> None:
    peer = ScriptedPeer(lambda n: stream(3, first_ms=20, gap_ms=10))
    bench = Bench(peer)
    requests = plan(10)
    left = closed_loop(bench.client, requests, 2, bench.emit, stop=lambda: len(bench.records) >= 4)
    assert [r.outcome for r in bench.records] == [Outcome.OK] * 4 + [Outcome.CANCELLED] * 2
    assert [outgoing.request.index for outgoing in (*left, *requests)] == [6, 7, 8, 9]
    assert len(set(peer.closed)) == 2


def test_an_interrupted_open_loop_returns_what_it_never_sent() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=50)))
    requests = plan(10, [0.0] * 10)
    left = open_loop(bench.client, requests, 0, bench.emit, stop=lambda: len(bench.records) >= 2, cap=2)
    assert len(bench.records) + len(left) + len(list(requests)) == 10


def test_a_kept_connection_that_died_is_replaced_once() -> None:
    dead: set[int] = set()

    def script(n: int) -> list[tuple[float, bytes | None]]:
        connection = peer.requests[-1][0]
        if connection in dead:
            return [(1, None)]
        dead.add(connection)  # good for one answer
        return list(stream(1, first_ms=10))

    peer = ScriptedPeer(script)
    bench = Bench(peer)
    closed_loop(bench.client, plan(3), 1, bench.emit, bench.never)
    assert [r.outcome for r in bench.records] == [Outcome.OK] * 3
    assert "sent again on a new connection" in (bench.records[1].detail or "")
    assert bench.records[1].connection is Connection.NEW
    assert bench.records[1].sent_ns == bench.records[0].done_ns  # the time counts from the first try


def test_several_targets_keep_their_connections_apart() -> None:
    peer = ScriptedPeer(lambda n: stream(1, first_ms=10))
    bench = Bench(peer, origins=2)
    requests = (o._replace(target=o.request.index % 2) for o in plan(6))
    closed_loop(bench.client, requests, 1, bench.emit, bench.never)
    assert [r.target for r in bench.records] == [0, 1, 0, 1, 0, 1]
    assert len({connection for connection, _ in peer.requests}) == 2


@settings(max_examples=50, deadline=None)
@given(
    slots=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    first=st.integers(0, 50),
    gap=st.integers(0, 20),
)
def test_whatever_the_answers_every_request_ends_once_and_no_slot_is_exceeded(
    slots: int, lengths: list[int], first: int, gap: int
) -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(lengths[n], first_ms=first, gap_ms=gap)))
    closed_loop(bench.client, plan(len(lengths)), slots, bench.emit, bench.never)
    assert sorted(r.index for r in bench.records) == list(range(len(lengths)))
    assert bench.greatest <= slots
    for record in bench.records:
        assert record.outcome is Outcome.OK
        assert record.output_tokens == lengths[record.index]
        assert len(record.event_ns) == lengths[record.index]
