"""The window, throughput and in-flight level against counts made by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from cadenza.stats.columns import Columns
from cadenza.stats.concurrency import in_flight, mean_in_flight, peak_in_flight
from cadenza.stats.latency import tpot_ms
from cadenza.stats.throughput import requests_per_s, throughput_tok_per_s, tokens_per_event
from cadenza.stats.window import Window, ended_inside, steady_window, whole_window
from support.columns import closed, rec


def lane(first: int, start: float, n: int, slot: int = 0) -> list[Record]:
    """n answers of 10 tokens back to back: 20 ms to the first token, 10 ms apart, 110 ms each."""
    begin = [start + 110 * k for k in range(n)]
    return [rec(first + k, b, [b + 20 + 10 * j for j in range(10)]) for k, b in enumerate(begin)]


def test_one_slot_is_measured_from_the_first_to_the_last_dispatch() -> None:
    columns = Columns.of(lane(0, 0, 5))
    window = steady_window(closed(1, 5), columns)
    assert (window.kind, window.start_ms, window.end_ms) == ("steady", 0, 440)
    assert ended_inside(columns, window).tolist() == [True] * 4 + [False]
    assert throughput_tok_per_s(columns, window) == pytest.approx(40 / 0.44)
    assert requests_per_s(columns, window) == pytest.approx(4 / 0.44)


def test_the_window_opens_when_all_slots_are_filled() -> None:
    records = [rec(0, 0, [100], phase=Phase.WARMUP), *lane(1, 10, 4), *lane(5, 50, 4)]
    window = steady_window(closed(3, 8), Columns.of(records))
    assert window.start_ms == 50


def test_warm_up_tokens_in_the_window_count_and_warm_up_answers_do_not() -> None:
    warm = rec(0, 0, [5, 15, 25, 500], phase=Phase.WARMUP)
    columns = Columns.of([warm, rec(1, 10, [20, 30]), rec(2, 30, [40, 50]), rec(3, 60, [70])])
    window = steady_window(closed(2, 3), columns)
    assert (window.start_ms, window.end_ms) == (10, 60)
    assert throughput_tok_per_s(columns, window) == pytest.approx((2 + 4) / 0.05)
    assert ended_inside(columns, window).tolist() == [False, True, True, False]


def test_a_failing_request_uses_the_server_too() -> None:
    columns = Columns.of([rec(0, 0, [10, 20], outcome=Outcome.CONNECTION_LOST), rec(1, 20, [30]), rec(2, 40, [50])])
    window = Window(0, 40, "steady", "")
    assert throughput_tok_per_s(columns, window) == pytest.approx(3 / 0.04)
    assert requests_per_s(columns, window) == pytest.approx(1 / 0.04)


def test_too_few_answers_are_no_steady_state() -> None:
    columns = Columns.of([rec(0, 0, [10, 20]), rec(1, 0, [10, 30])])
    window = steady_window(closed(2, 2), columns)
    assert (window.kind, window.start_ms, window.end_ms) == ("whole", 0, 30)
    assert "0 answers ended in the steady part, 2 are needed" in window.rule


def test_an_open_loop_is_measured_over_its_arrivals() -> None:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=1.0, planned=4)
    columns = Columns.of([rec(k, 100 * k + 7, [100 * k + 30], intended=100 * k) for k in range(4)])
    window = steady_window(point, columns)
    assert (window.start_ms, window.end_ms) == (0, 300)


def test_without_records_nothing_is_claimed() -> None:
    columns = Columns.of([])
    window = steady_window(closed(), columns)
    assert window.length_s == 0
    assert np.isnan(throughput_tok_per_s(columns, window))
    assert np.isnan(requests_per_s(columns, window))
    assert peak_in_flight(columns) == 0
    assert np.isnan(mean_in_flight(columns, 0, 0))


def test_usage_is_shared_out_over_the_events() -> None:
    columns = Columns.of([rec(0, 0, [10, 20], tokens=6), rec(1, 0, [10, 20], tokens=8, event_tokens=[1, 3])])
    assert columns.event_tok.tolist() == [3, 3, 2, 6]
    assert tokens_per_event(columns) == pytest.approx(14 / 4)


def loop(slots: int, planned: int, lengths: list[int], warmup: int) -> list[Record]:
    """A closed loop by hand: a slot that falls free takes the next request, warm-up first and not drained."""
    free, found = [0.0] * slots, []
    for k in range(warmup + planned):
        start = free.pop(free.index(min(free)))
        end = start + lengths[k % len(lengths)]
        free.append(end)
        found.append(rec(k, start, [end], phase=Phase.WARMUP if k < warmup else Phase.MEASURE))
    return found


lengths = st.lists(st.integers(10, 60), min_size=1, max_size=20)


@given(st.integers(1, 8), lengths)
def test_the_request_rate_is_that_of_the_tokens(slots: int, took: list[int]) -> None:
    """Answers of one token each: tokens and answers end at the same stamps, so the two rates are one."""
    columns = Columns.of(loop(slots, 6 * slots, took, slots))
    window = steady_window(closed(slots, 6 * slots), columns)
    assert window.kind == "steady"
    assert requests_per_s(columns, window) == pytest.approx(throughput_tok_per_s(columns, window))


@given(st.integers(1, 8), lengths, st.booleans())
def test_as_many_requests_as_advised_would_do(slots: int, took: list[int], warm: bool) -> None:
    warmup, enough = slots * warm, max(2 * slots, 3)
    assert steady_window(closed(slots, enough), Columns.of(loop(slots, enough, took, warmup))).kind == "steady"
    short = steady_window(closed(slots, enough - 1), Columns.of(loop(slots, enough - 1, took, warmup)))
    # Answers that end together may make do with fewer.
    assert short.kind == "steady" or short.rule.endswith(f"--requests {enough} would do")


def test_windows_side_by_side_share_no_token() -> None:
    columns = Columns.of(lane(0, 0, 5))
    parts = [Window(a, b, "steady", "") for a, b in ((0, 20), (20, 120), (120, 550))]
    total = sum(throughput_tok_per_s(columns, part) * part.length_s for part in parts)
    assert total == pytest.approx(50)
    assert throughput_tok_per_s(columns, whole_window(columns)) * 0.55 == pytest.approx(50)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=25)


@given(spans)
def test_the_level_in_flight_is_what_counting_says(pairs: list[tuple[int, int]]) -> None:
    columns = Columns.of([rec(k, start, [], done=start + length) for k, (start, length) in enumerate(pairs)])
    origin = min(start for start, _ in pairs)
    # Between whole milliseconds nothing happens, so the halves say all.
    halves = [t + 0.5 for t in range(101)]
    counted = [sum(start - origin <= t < start - origin + length for start, length in pairs) for t in halves]
    times, level = in_flight(columns)
    stepped = [int(level[i]) if (i := int(np.searchsorted(times, t, side="right")) - 1) >= 0 else 0 for t in halves]
    assert stepped == counted
    assert mean_in_flight(columns, 0, 101) == pytest.approx(sum(counted) / 101)
    assert peak_in_flight(columns) >= max(counted)
    assert level[-1] == 0


def test_a_slot_that_is_refilled_at_once_counts_once() -> None:
    assert peak_in_flight(Columns.of(lane(0, 0, 5))) == 1


def paced(tpots: list[float], ttft: float = 20.0) -> list[Record]:
    """One slot, answers of 11 tokens back to back, request k with a TPOT of `tpots[k]` ms."""
    found, at = [], 0.0
    for k, tpot in enumerate(tpots):
        found.append(rec(k, at, [at + ttft + tpot * j for j in range(11)]))
        at += ttft + 10 * tpot
    return found


def steady_of(tpots: list[float]) -> tuple[Window, float]:
    """The window, and the mean TPOT of what ended in it."""
    columns = Columns.of(paced(tpots))
    window = steady_window(closed(1, len(tpots)), columns)
    return window, float(np.mean(tpot_ms(columns)[ended_inside(columns, window)]))


def noise(n: int, seed: int) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).normal(0, 0.3, n)]


@pytest.mark.parametrize("seed", range(5))
def test_a_ramp_at_the_start_is_left_out(seed: int) -> None:
    """Service gets faster over the first fifth, from 20 to 10 ms a token: the plateau is found within 1 %."""
    tpots = [max(10.0, 20.0 - 10.0 * k / 40) + e for k, e in enumerate(noise(200, seed))]
    window, mean = steady_of(tpots)
    assert 20 <= window.cut <= 60
    assert f"without a transient of {window.cut} requests" in window.rule
    assert window.changes == ()
    assert mean == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_is_no_steady_state(seed: int) -> None:
    window, _ = steady_of([10.0 + 2.0 * k / 200 + e for k, e in enumerate(noise(200, seed))])
    (change,) = window.changes
    assert change.startswith("TPOT drifts from ")


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_no_steady_state(seed: int) -> None:
    window, _ = steady_of([(10.0 if k < 100 else 11.0) + e for k, e in enumerate(noise(200, seed))])
    (change,) = window.changes
    assert change.startswith("TPOT jumps from ")


def test_what_is_steady_loses_nothing() -> None:
    kept = [steady_of([10.0 + e for e in noise(200, seed)])[0] for seed in range(40)]
    assert sum(window.cut > 0 for window in kept) <= 2
    assert sum(bool(window.changes) for window in kept) <= 2
