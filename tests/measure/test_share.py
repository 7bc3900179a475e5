"""A share of a point on a simulated server in virtual time: its records, and the statistics that a loop alone has."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from cadenza.load.client import Client
from cadenza.load.memory import MemoryTransport, Peer
from cadenza.load.shard import Board, Share
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.enough import Enough
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing
from cadenza.measure.share import ShareRun, plan_share
from cadenza.record import Outcome, Phase, Point, Record
from cadenza.spec import Credentials, Spec
from support.batching import BatchingPeer, Server, closed_records, uniform
from support.loops import MS, in_flight_at
from support.runs import server
from support.scripted import ScriptedPeer, stream

TARGET = Target("http://t", Origin("t", ("127.0.0.1", 1)), "t", "")
BATCHING = Server(slots=64, base_ms=8.0, per_seq_ms=0.1, prefill_ms=4.0)


class Kept(list[Record]):
    """A sink."""


def measure(
    spec: Spec,
    peer: Peer,
    stop: Callable[[list[Record]], bool] = lambda records: False,
    change: Callable[[Point], None] = lambda point: None,
) -> tuple[Point, list[Record]]:
    """The only point of `spec`, by one share, as the runner does it."""
    (point,) = lay_out(spec, ["m"])
    change(point)
    records, board = Kept(), Board(1)
    phrasing = Phrasing(spec, Credentials(), [TARGET])
    client = Client(MemoryTransport(peer), [TARGET.origin], phrasing.dialect, spec.timeouts)
    enough = Enough(point) if point.auto else None

    def hear(record: Record) -> None:
        if enough is not None:
            enough.add(record)
            if enough.is_met():
                board.say_enough()

    run = ShareRun(point, Share(), client, records, board, lambda: stop(records), hear)
    run.run(plan_share(spec, phrasing, server(), point, Share()), client.now_ns())
    assert board.all_finished
    return point, records


def of(records: list[Record], phase: Phase) -> list[Record]:
    return sorted((r for r in records if r.phase is phase), key=lambda r: r.index)


def mean_ttft_ms(records: list[Record]) -> float:
    return float(np.mean([(r.event_ns[0] - (r.sent_ns or 0)) / MS for r in of(records, Phase.MEASURE)]))


def mean_latency_ms(records: list[Record]) -> float:
    return float(np.mean([((r.done_ns or 0) - (r.sent_ns or 0)) / MS for r in of(records, Phase.MEASURE)]))


def test_the_client_measures_what_a_closed_loop_without_a_client_gives() -> None:
    """C = 8, 16 to 48 tokens: a step has 8 / 32 joins, so latency is 32 · (8.8 + 4 / 4) + some 4 ms to the first."""
    spec = Spec(concurrency=(8,), requests=600, output_tokens=(16, 48), seed=5)
    point, records = measure(
        spec, BatchingPeer(replace(BATCHING, seed=1)), change=lambda point: setattr(point, "opening_s", 0.3)
    )
    assert (point.warmup, point.planned) == (16, 600)
    ideal = closed_records(replace(BATCHING, seed=2), 8, uniform(16, 48), warmup=16, measured=600, seed=3)
    assert {r.outcome for r in records} == {Outcome.OK}
    # Means of 600 spread by 2 % (TTFT) and 1 % (latency), of which three each way.
    assert mean_ttft_ms(records) == pytest.approx(mean_ttft_ms(ideal), rel=0.06)
    assert mean_latency_ms(records) == pytest.approx(mean_latency_ms(ideal), rel=0.03)
    first_ns = 300 * MS  # all slots are filled
    last_ns = max(r.done_ns or 0 for r in of(records, Phase.MEASURE))
    assert {in_flight_at(records, at_ns) for at_ns in range(first_ns, last_ns, 50 * MS)} == {8}


def test_slots_are_first_filled_evenly_over_the_openings_time() -> None:
    spec = Spec(concurrency=(4,), requests=8, output_tokens=(50, 50))
    _, records = measure(
        spec,
        ScriptedPeer(lambda n: stream(50, gap_ms=20)),
        change=lambda point: setattr(point, "opening_s", 0.8),
    )
    opening = [r.sent_ns for r in of(records, Phase.WARMUP)[:4]]
    assert opening == [0, 200 * MS, 400 * MS, 600 * MS]


OPEN = Spec(concurrency=(), rates_per_s=(100.0,), arrivals="constant", output_tokens=(1, 1), warmup=10)


def test_a_plan_without_end_drops_nothing_at_its_end() -> None:
    """Auto in an open loop: what its time left over was never due, and is no record."""
    spec = msgspec.structs.replace(OPEN, requests="auto")
    _, records = measure(
        spec, ScriptedPeer(lambda n: stream(1, first_ms=95)), change=lambda point: setattr(point, "budget_s", 1.0)
    )
    assert {r.outcome for r in records} == {Outcome.OK}
    measured = of(records, Phase.MEASURE)
    # One each 10 ms from 0 on, those before 1 s: 100, of which 10 are of the warm-up.
    assert [r.index for r in measured] == list(range(10, 100))
    last_ns = max(r.done_ns or 0 for r in measured)
    after = of(records, Phase.COOLDOWN)
    assert [r.index for r in after] == list(range(100, 100 + len(after)))
    assert len(after) == (last_ns - 1000 * MS) // (10 * MS) + 1


@pytest.mark.parametrize("requests", [40, "auto"])
@pytest.mark.parametrize("ended", [5, 25])
def test_an_interrupted_plan_is_whole_and_one_without_end_has_what_was_due(requests: int, ended: int) -> None:
    spec = msgspec.structs.replace(OPEN, requests=requests, concurrency=(2,))
    _, records = measure(spec, ScriptedPeer(lambda n: stream(1, first_ms=30)), lambda records: len(records) >= ended)
    every = sorted(records, key=lambda r: r.index)
    assert [r.index for r in every] == list(range(len(every)))
    dropped = [r for r in every if r.outcome is Outcome.DROPPED]
    assert {r.detail for r in dropped} == {"never sent: the run was interrupted"}
    if requests == 40:
        assert len(every) == 50
    else:
        assert all(r.intended_ns <= (r.done_ns or 0) for r in dropped)
        assert len(every) == (max(r.done_ns or 0 for r in every)) // (10 * MS) + 1  # one each 10 ms from 0 on


def test_what_queues_at_the_bound_of_the_cooldown_is_dropped() -> None:
    spec = msgspec.structs.replace(OPEN, requests=20, warmup=0, concurrency=(1,), cooldown_s=0.5)
    _, records = measure(spec, ScriptedPeer(lambda n: []))
    measured = of(records, Phase.MEASURE)
    assert [r.outcome for r in measured] == [Outcome.CANCELLED] + [Outcome.DROPPED] * 19
    assert measured[0].detail == "not ended when the load did"
    assert {r.detail for r in measured[1:]} == {"never sent: the load ended while it queued at the client"}
    assert all(650 * MS <= (r.done_ns or 0) <= 820 * MS for r in measured)  # 500 ms after the last due, at 200 ms


def test_a_share_without_a_measured_request_is_waited_for_by_nobody() -> None:
    spec = Spec(concurrency=(2,), requests=1, warmup=0)
    (point,) = lay_out(spec, ["m"])
    board, records = Board(2), Kept()
    phrasing = Phrasing(spec, Credentials(), [TARGET])
    client = Client(
        MemoryTransport(ScriptedPeer(lambda n: stream(2))), [TARGET.origin], phrasing.dialect, spec.timeouts
    )
    board.finish(0)
    run = ShareRun(point, Share(1, 2), client, records, board, lambda: False, lambda record: None)
    run.run(plan_share(spec, phrasing, server(), point, Share(1, 2)), 0)
    assert board.all_finished
    assert records == []


def test_auto_ends_and_its_population_is_whole() -> None:
    spec = Spec(concurrency=(4,), requests="auto", output_tokens=(16, 48), seed=2)
    point, records = measure(spec, BatchingPeer(BATCHING), change=lambda point: setattr(point, "budget_s", 900.0))
    measured = of(records, Phase.MEASURE)
    assert point.auto
    assert 130 <= len(measured) < 5000
    assert (max(r.done_ns or 0 for r in records)) < 900_000 * MS
    assert {r.outcome for r in records} == {Outcome.OK}
    assert [r.index for r in measured] == list(range(8, 8 + len(measured)))
