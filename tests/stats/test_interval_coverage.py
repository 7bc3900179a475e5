"""Intervals of a throughput by hand, and those of loads whose truth is known: Poisson, waves, a batching server."""

import math

import numpy as np
import pytest

from cadenza.stats.columns import Columns, Floats
from cadenza.stats.intervals import mean_interval, rate_interval, round_of
from cadenza.stats.latency import tpot_ms, ttft_ms
from support.batching import Server, closed_records, heavy, open_records, uniform
from support.series import TEN, ar1, coverage


def spread_evenly(counts: list[int]) -> Floats:
    """Stamps of so many events in each successive second, in ms."""
    return np.concatenate([1000 * (i + (np.arange(c) + 0.5) / c) for i, c in enumerate(counts)])


def test_a_rate_by_hand() -> None:
    """Events a second over 10 s: 20 + TEN; s² of a second's count 110 / 9, of the total ten times that."""
    counts = [20 + round(one) for one in TEN]
    found = rate_interval(spread_evenly(counts), np.ones(200), 0, 10_000)
    half = 2.2622 * math.sqrt(10 * 110 / 9)  # t(0.975, 9)
    assert found.low == pytest.approx((200 - half) / 10, rel=0.02)
    assert (found.low + found.high) / 2 == pytest.approx(20, rel=0.02)  # quarters of a second have some skewness
    assert (found.n, found.needed) == (200, 0)
    assert found.n_effective == 200  # Poisson arrivals would have a total of variance 200, here 122: more regular


def test_a_rate_that_is_at_two_levels_has_no_interval() -> None:
    """10 a second then 30: slices of any length repeat their neighbours, five too."""
    found = rate_interval(spread_evenly([10] * 4 + [30] * 4), np.ones(160), 0, 8000)
    assert math.isnan(found.low)
    assert found.needed == 160


def test_slices_hold_two_rounds() -> None:
    stamps = spread_evenly([20 + round(one) for one in TEN])
    assert rate_interval(stamps, np.ones(200), 0, 10_000, min_slice_ms=1000) == rate_interval(
        stamps, np.ones(200), 0, 10_000
    )
    short = rate_interval(stamps, np.ones(200), 0, 10_000, min_slice_ms=3000)
    assert math.isnan(short.low)
    assert short.needed == 100  # 15 s at 20 a second


def test_a_rate_counts_what_falls_in_the_window_open_at_its_start() -> None:
    """One event of 3 tokens every 10 ms from 0 to 20 s; of (5 s, 15 s] it is 100 events and 300 tokens a second."""
    stamps = np.arange(0, 20_001, 10.0)
    found = rate_interval(np.append(stamps, np.nan), np.full(len(stamps) + 1, 3.0), 5000, 15_000)
    assert found.n == 1000
    assert found.low <= 300 <= found.high
    # Ten slices of 100 ± 1 events: s ≤ 3 √(10 / 9) tokens, and t(0.975, 9) √10 s in 10 s are 2.3 a second.
    assert found.high - found.low <= 2 * 2.3


@pytest.mark.parametrize("expected", [40, 300])
def test_a_poisson_rate_is_covered(expected: int) -> None:
    draw = np.random.default_rng(expected)
    found = []
    for _ in range(600):
        stamps = draw.uniform(0, 60_000, draw.poisson(expected))
        found.append(rate_interval(stamps, np.ones(len(stamps)), 0, 60_000))
    found = [one for one in found if not math.isnan(one.low)]
    assert len(found) >= 570
    assert 0.92 <= coverage(found, expected / 60) <= 0.985


def test_a_rate_in_slow_waves_is_covered() -> None:
    """400 cells of an AR(1) intensity, lag-1 correlation 0.8: neighbouring slices of 12 cells are still correlated."""
    draw = np.random.default_rng(8)
    found = []
    for intensity in ar1(9, 0.8, 400, 400):
        counts = draw.poisson(5 * np.clip(1 + 0.3 * intensity, 0, None))
        stamps = 250 * (np.repeat(np.arange(400), counts) + draw.uniform(0, 1, counts.sum()))
        found.append(rate_interval(stamps, np.ones(len(stamps)), 0, 100_000))
    found = [one for one in found if not math.isnan(one.low)]
    assert len(found) >= 380
    assert coverage(found, 20) >= 0.92


def test_a_rate_of_few_events_or_no_window_is_unknown() -> None:
    stamps = np.linspace(1, 1000, 19)
    assert math.isnan(rate_interval(stamps, np.ones(19), 0, 1000).low)
    assert rate_interval(np.zeros(0), np.zeros(0), 0, 1000).n == 0
    assert math.isnan(rate_interval(np.arange(100.0), np.ones(100), 50, 50).high)
    assert math.isnan(rate_interval(np.arange(100.0), np.ones(100), math.nan, 50).high)


def test_a_rate_is_never_below_nothing() -> None:
    """All 20 events at one instant."""
    found = rate_interval(np.full(20, 500.0), np.ones(20), 0, 1000)
    assert found.low == 0 < 20 < found.high


@pytest.mark.parametrize("slots", [4, 8])
def test_means_of_a_closed_loop_of_a_batching_server_are_covered(slots: int) -> None:
    """Heavy-tailed lengths, 40 · C requests; the truth is all runs together. The table: `scripts/coverage.py`."""
    n = 40 * slots
    series: list[tuple[int, Floats, Floats]] = []
    for seed in range(30):
        records = closed_records(
            Server(slots=slots, seed=seed), slots, heavy(), warmup=2 * slots, measured=n, seed=seed
        )
        columns = Columns.of(records)
        lengths = columns.output_tok[columns.measured].astype(np.float64)
        series.append(
            (round_of(slots, lengths), ttft_ms(columns)[columns.measured], tpot_ms(columns)[columns.measured])
        )
    truth = 0.0
    for values in ([ttft for _, ttft, _ in series], [tpot for _, _, tpot in series]):
        truth = float(np.nanmean(np.concatenate(values)))
        found = [mean_interval(one, round_size=size) for one, (size, _, _) in zip(values, series, strict=True)]
        found = [one for one in found if not math.isnan(one.low)]
        assert len(found) >= 20
        assert coverage(found, truth) >= 0.87
    # Of TPOT, where independent values would have an interval that fails.
    narrow = [1.96 * float(np.nanstd(one[2])) / math.sqrt(n) for one in series]
    means = [float(np.nanmean(one[2])) for one in series]
    held = [abs(mean - truth) <= half for mean, half in zip(means, narrow, strict=True)]
    assert np.mean(held) < 0.87


def test_a_run_shorter_than_its_rounds_is_not_determinable() -> None:
    """64 in flight and 200 requests: three rounds. An open loop at 0.8 of the capacity: 200 are 15 response times."""
    lengths = np.full(200, 32.0)
    values = np.random.default_rng(1).normal(10, 1, 200)
    found = mean_interval(values, round_size=round_of(64, lengths))
    assert math.isnan(found.low)
    assert found.needed == 10 * 64 - 200
    server = Server(slots=16)
    due = np.cumsum(np.random.default_rng(2).exponential(1000 / 0.8 / server.capacity_per_s(32), 800))
    records = open_records(server, due, uniform()(np.random.default_rng(3), 800), warmup=300, measured=200)
    columns = Columns.of(records)
    mine = columns.measured
    in_flight = 200 / float(np.ptp(columns.sent_ms[mine])) * float((columns.last_ms - columns.sent_ms)[mine].mean())
    assert math.isnan(mean_interval(ttft_ms(columns)[mine], round_size=round_of(in_flight, lengths, is_open=True)).low)
