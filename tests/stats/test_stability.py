"""The backlog of queues whose course is known by hand, and a few runs of the simulated server."""

import numpy as np
import pytest

from cadenza.record import LoadLabel, Phase, Point, PointStatus, Record
from cadenza.stats.columns import Columns
from cadenza.stats.stability import Stability, assess_stability
from support.batching import Server, open_records, uniform
from support.columns import rec


def stability(records: list[Record], rate_per_s: float) -> Stability:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=rate_per_s, status=PointStatus.COMPLETE)
    found = assess_stability(point, Columns.of(records))
    assert found is not None
    return found


def one_server(n: int, every_ms: float, service_ms: float) -> list[Record]:
    """D/D/1: one is due each `every_ms`, one is answered in `service_ms`."""
    rows, free = [], 0.0
    for k in range(n):
        free = max(free, every_ms * k) + service_ms
        rows.append(rec(k, every_ms * k, [free]))
    return rows


def test_an_overloaded_queue_completes_what_its_capacity_is() -> None:
    """50 a second arrive, 25 can be served. In the second half 50 arrive and 25 end: 25 / (2.33 √50) = 1.52."""
    found = stability(one_server(101, 20, 40), 50)
    assert found.completed_per_s == pytest.approx(25, rel=0.06)
    assert found.growth == pytest.approx(25 / (2.33 * np.sqrt(50)), rel=0.05)
    assert found.grows
    assert not found.is_stable


def test_answers_that_end_ever_later_are_a_backlog_although_none_waits_for_its_first_token() -> None:
    found = stability([rec(k, 20.0 * k, [20.0 * k + 1, 40.0 * k + 2]) for k in range(101)], 50)
    assert found.window_waits == float("inf")
    assert found.growth == pytest.approx(25 / (2.33 * np.sqrt(50)), rel=0.05)
    assert found.grows


def test_a_queue_with_half_its_capacity_used_is_stable() -> None:
    """25 a second arrive and 50 can be served: nobody waits, each is answered before the next comes."""
    found = stability(one_server(101, 40, 20), 25)
    assert found.window_responses == pytest.approx(100 * 40 / 20)
    assert found.window_waits == float("inf")
    assert found.is_stable


def test_a_window_of_four_responses_is_no_evidence() -> None:
    """All answered after 1,000 ms, in a window of 4,000 ms."""
    found = stability([rec(k, 40.0 * k, [40.0 * k + 1000]) for k in range(101)], 25)
    assert found.window_responses == pytest.approx(4)
    assert not found.grows
    assert not found.is_stable


def bursts(every_ms: float, service_ms: float) -> list[Record]:
    """25 at once at 0 ms and at 1,000 ms, and a last one at 1,500 ms; begun one by one, each takes `service_ms`."""
    due = [1000.0 * b for b in range(2) for _ in range(25)] + [1500.0]
    place = [k for _ in range(2) for k in range(25)] + [0]
    begun = [at + every_ms * (k + 1) for at, k in zip(due, place, strict=True)]
    return [rec(k, due[k], [begun[k], begun[k] + service_ms]) for k in range(len(due))]


def test_three_responses_are_enough_where_the_server_clearly_keeps_up() -> None:
    """One begins each 8 ms, 125 a second, and takes 300 ms: a mean latency of 13 · 8 + 300 ms, a wait of 12 · 8 ms."""
    clear, near = (stability(bursts(8, 300), rate) for rate in (25, 60))
    assert clear.window_responses == pytest.approx(1500 / (13 * 8 + 300), rel=0.02)
    assert clear.window_waits == pytest.approx(1500 / (12 * 8), rel=0.1)
    assert 1.5 * 25 < clear.completed_per_s < 1.5 * 60
    assert (clear.needed_responses, near.needed_responses) == (3, 5)
    assert (clear.is_stable, near.is_stable) == (True, False)


def test_answers_that_are_late_by_their_wait_need_five_responses() -> None:
    """One answer each 24 ms, 41.7 a second: 1.67 times what arrives, but a mean latency of 13 · 24 ms is all wait."""
    found = stability(bursts(24, 0), 25)
    assert found.window_responses == pytest.approx(1500 / (13 * 24), rel=0.02)
    assert found.completed_per_s == pytest.approx(1000 / 24, rel=0.1)
    assert not found.grows
    assert found.needed_responses == 5
    assert not found.is_stable


def at_load(load: float, seed: int) -> Stability:
    server, n, warmup = Server(slots=8, seed=seed), 128, 64
    rng, rate = np.random.default_rng(seed), load * server.capacity_per_s(32)
    due = np.cumsum(rng.exponential(1000 / rate, 600))
    return stability(open_records(server, due, uniform()(rng, 600), warmup=warmup, measured=n), rate)


@pytest.mark.parametrize("load", [1.2, 1.5])
def test_an_overload_is_never_stable(load: float) -> None:
    assert not any(at_load(load, seed).is_stable for seed in range(10))


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_load_within_the_capacity_is_stable(load: float) -> None:
    assert all(at_load(load, seed).is_stable for seed in range(10))


def test_phases_are_not_mixed_up() -> None:
    """Only measured requests make the window."""
    rows = one_server(101, 40, 20)
    for row in rows[:50]:
        row.phase = Phase.WARMUP
    assert stability(rows, 25).window_responses == pytest.approx(50 * 40 / 20)
