"""The window, throughput and in-flight level against counts made by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from cadenza.stats.columns import Columns
from cadenza.stats.concurrency import in_flight, mean_in_flight, peak_in_flight
from cadenza.stats.throughput import requests_per_s, throughput_tok_per_s, tokens_per_event
from cadenza.stats.window import Window, load_window, whole_window
from support.columns import closed, rec


def lane(first: int, start: float, n: int, slot: int = 0) -> list[Record]:
    """n answers of 10 tokens back to back: 20 ms to the first token, 10 ms apart, 110 ms each."""
    begin = [start + 110 * k for k in range(n)]
    return [rec(first + k, b, [b + 20 + 10 * j for j in range(10)]) for k, b in enumerate(begin)]


def test_one_slot_is_measured_from_the_first_to_the_last_dispatch() -> None:
    columns = Columns.of(lane(0, 0, 5))
    window = load_window(closed(1, 5), columns)
    assert (window.kind, window.start_ms, window.end_ms) == ("steady", 0, 440)
    assert throughput_tok_per_s(columns, window) == pytest.approx(40 / 0.44)
    assert requests_per_s(columns, window) == pytest.approx(4 / 0.44)


def test_the_window_opens_when_all_slots_are_filled() -> None:
    records = [rec(0, 0, [100], phase=Phase.WARMUP), *lane(1, 10, 4), *lane(5, 50, 4)]
    window = load_window(closed(3, 8), Columns.of(records))
    assert window.start_ms == 50


def test_warm_up_tokens_in_the_window_count() -> None:
    warm = rec(0, 0, [5, 15, 25, 500], phase=Phase.WARMUP)
    columns = Columns.of([warm, rec(1, 10, [20, 30]), rec(2, 30, [40, 50]), rec(3, 60, [70])])
    window = load_window(closed(2, 3), columns)
    assert (window.start_ms, window.end_ms) == (10, 60)
    assert throughput_tok_per_s(columns, window) == pytest.approx((2 + 4) / 0.05)


def test_a_failing_request_uses_the_server_too() -> None:
    columns = Columns.of([rec(0, 0, [10, 20], outcome=Outcome.CONNECTION_LOST), rec(1, 20, [30]), rec(2, 40, [50])])
    window = Window(0, 40, "steady", "")
    assert throughput_tok_per_s(columns, window) == pytest.approx(3 / 0.04)
    assert requests_per_s(columns, window) == pytest.approx(3 / 0.04)  # answers have one token each


def test_too_few_answers_are_no_steady_state() -> None:
    columns = Columns.of([rec(0, 0, [10, 20]), rec(1, 0, [10, 30])])
    window = load_window(closed(2, 2), columns)
    assert (window.kind, window.start_ms, window.end_ms) == ("whole", 0, 30)
    assert "0 answers ended while the load was held, 2 are needed" in window.rule


def test_an_open_loop_is_measured_over_its_arrivals() -> None:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=1.0, planned=4)
    columns = Columns.of([rec(k, 100 * k + 7, [100 * k + 30], intended=100 * k) for k in range(4)])
    window = load_window(point, columns)
    assert (window.start_ms, window.end_ms) == (0, 300)


def test_without_records_nothing_is_claimed() -> None:
    columns = Columns.of([])
    window = load_window(closed(), columns)
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
    window = load_window(closed(slots, 6 * slots), columns)
    assert window.kind == "steady"
    assert requests_per_s(columns, window) == pytest.approx(throughput_tok_per_s(columns, window))


@given(st.integers(1, 8), lengths, st.booleans())
def test_as_many_requests_as_advised_would_do(slots: int, took: list[int], warm: bool) -> None:
    warmup, enough = slots * warm, max(2 * slots, 3)
    assert load_window(closed(slots, enough), Columns.of(loop(slots, enough, took, warmup))).kind == "steady"
    short = load_window(closed(slots, enough - 1), Columns.of(loop(slots, enough - 1, took, warmup)))
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
