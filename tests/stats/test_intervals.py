"""Intervals against closed forms, printed tables, and how often they cover a truth that is known."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.stats.columns import Floats
from cadenza.stats.intervals import (
    Interval,
    mean_interval,
    quantile_interval,
    rate_interval,
    requests_needed,
    t_quantile,
)

SAMPLES = st.lists(st.integers(-1000, 1000), min_size=20, max_size=150)


def ar1(seed: int, phi: float, n: int, series: int) -> Floats:
    """(series, n) of a stationary AR(1) with standard normal marginal: mean 0, lag-1 correlation phi."""
    noise = np.random.default_rng(seed).standard_normal((n, series))
    found = noise.copy()
    for i in range(1, n):
        found[i] = phi * found[i - 1] + math.sqrt(1 - phi**2) * noise[i]
    return found.T


def coverage(intervals: list[Interval], truth: float) -> float:
    return sum(found.low <= truth <= found.high for found in intervals) / len(intervals)


def interval(n: int, low: float, high: float) -> Interval:
    return Interval(low=low, high=high, n=n, n_effective=float(n))


# Printed tables of Student's t, three decimals.
@pytest.mark.parametrize(
    ("p", "degrees", "printed"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.95, 5, 2.015),
        (0.975, 7, 2.365),
        (0.995, 9, 3.250),
        (0.975, 10, 2.228),
        (0.90, 15, 1.341),
        (0.975, 19, 2.093),
        (0.975, 30, 2.042),
        (0.975, 120, 1.980),
    ],
)
def test_t_is_the_printed_one(p: float, degrees: int, printed: float) -> None:
    assert t_quantile(p, degrees) == pytest.approx(printed, abs=6e-4)


@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.999])
def test_t_has_closed_forms_for_one_and_two_degrees(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)))
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) * math.sqrt(2 / (1 - (2 * p - 1) ** 2)))


def test_t_is_symmetric_and_becomes_the_normal() -> None:
    assert t_quantile(0.025, 7) == -t_quantile(0.975, 7)
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.975, 10**7) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-6)
    assert t_quantile(0.975, 200) == pytest.approx(t_quantile(0.975, 201), abs=1e-4)  # where the formulas meet


def test_the_mean_by_hand() -> None:
    """64 values, so 8 batches of 8 (√64 / 2 = 4 is below the least), each constant: batch means 1 … 8."""
    found = mean_interval(np.repeat(np.arange(1.0, 9.0), 8))
    half = 2.3646 * math.sqrt(6 / 8)  # t(0.975, 7); the means 1 … 8 have variance 6
    assert found.low == pytest.approx(4.5 - half, abs=1e-3)
    assert found.high == pytest.approx(4.5 + half, abs=1e-3)
    # Independent, the 64 values would have s² = 8 · 42 / 63 = 16 / 3, their mean a variance of 1 / 12; it is 3 / 4.
    assert found.n == 64
    assert found.n_effective == pytest.approx(64 / 9)


def test_what_evens_itself_out_is_not_believed_to() -> None:
    """Alternating values: all batch means are equal, and the independent interval stands."""
    found = mean_interval(np.tile([0.0, 1.0], 200))
    half = t_quantile(0.975, 399) * math.sqrt(0.25 * 400 / 399 / 400)
    assert (found.high - found.low) / 2 == pytest.approx(half)
    assert found.n_effective == 400


@pytest.mark.parametrize(("phi", "n", "least"), [(0.0, 200, 0.94), (0.5, 200, 0.93), (0.8, 200, 0.90)])
def test_the_mean_is_covered_in_short_series(phi: float, n: int, least: float) -> None:
    assert coverage([mean_interval(series) for series in ar1(1, phi, n, 1000)], 0) >= least


def test_the_mean_is_covered_where_the_independent_interval_fails() -> None:
    series = ar1(2, 0.8, 2000, 1000)
    found = [mean_interval(one) for one in series]
    assert 0.92 <= coverage(found, 0) <= 0.97
    independent = 1.96 * series.std(axis=1) / math.sqrt(2000)
    assert np.mean(np.abs(series.mean(axis=1)) <= independent) < 0.6
    # The autocorrelation time of an AR(1) is (1 + phi) / (1 − phi), here 9.
    assert np.median([one.n_effective for one in found]) == pytest.approx(2000 / 9, rel=0.2)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_percentiles_are_covered(q: float, phi: float) -> None:
    found = [quantile_interval(series, q) for series in ar1(3, phi, 2000, 500)]
    assert 0.91 <= coverage(found, NormalDist().inv_cdf(q)) <= 0.99


def test_the_median_by_hand() -> None:
    """0 … 100 shuffled by a stride, so that batches hardly differ: √(q (1 − q) / n), the independent half-width."""
    found = quantile_interval(np.arange(101.0) * 37 % 101, 0.5)
    # 51 of 101 lie at or below 50; the share's s² / n is p (1 − p) / (n − 1), scaled to q (1 − q) / (n − 1).
    half = t_quantile(0.975, 100) * math.sqrt(0.25 / 100)
    assert found.low == pytest.approx(50 - 100 * half)
    assert found.high == pytest.approx(50 + 100 * half)


@pytest.mark.parametrize("n", [50, 300])
def test_a_p99_of_few_values_has_no_upper_bound(n: int) -> None:
    """Independent values have none above their p99 with probability 0.99^n: 61 %, 5 %; it may not pass for 2.5 %."""
    found = quantile_interval(np.random.default_rng(4).standard_normal(n), 0.99)
    assert math.isnan(found.high)
    assert found.low < NormalDist().inv_cdf(0.99)


def test_a_p99_of_many_values_has_both_bounds() -> None:
    found = quantile_interval(np.random.default_rng(5).standard_normal(5000), 0.99)
    assert found.low < NormalDist().inv_cdf(0.99) < found.high
    assert math.isnan(quantile_interval(np.random.default_rng(5).standard_normal(50), 0.01).low)


def test_ties_widen_nothing_to_nonsense() -> None:
    """Ten answers of 5 ms to one of 9: the p50 is 5 whatever the sample, and so is the bound below it."""
    values = np.where(np.arange(440) % 11 == 0, 9.0, 5.0)
    found = quantile_interval(values, 0.5)
    assert (found.low, found.high) == (5, 5)
    constant = quantile_interval(np.full(100, 5.0), 0.5)
    assert (constant.low, constant.high, constant.n_effective) == (5, 5, 100)


def test_too_few_values_are_told_as_such() -> None:
    for found in (mean_interval(np.arange(19.0)), quantile_interval(np.arange(19.0), 0.5)):
        assert found.n == 19
        assert all(math.isnan(v) for v in (found.low, found.high, found.n_effective))
    assert mean_interval(np.zeros(0)).n == 0
    assert not math.isnan(mean_interval(np.arange(20.0)).low)


def test_undefined_values_are_left_out() -> None:
    values = ar1(6, 0.5, 200, 1)[0]
    gaps = np.insert(values, [0, 50, 200], np.nan)
    assert mean_interval(gaps) == mean_interval(values)
    assert quantile_interval(gaps, 0.9) == quantile_interval(values, 0.9)


@given(SAMPLES)
def test_bounds_are_in_order_and_hold_the_figure(values: list[int]) -> None:
    sample = np.array(values, dtype=np.float64)
    mean, median = mean_interval(sample), quantile_interval(sample, 0.5)
    assert mean.low - 1e-9 <= sample.mean() <= mean.high + 1e-9
    assert not median.low > np.median(sample)
    assert not median.high < np.median(sample)
    assert all(1 <= found.n_effective <= found.n for found in (mean, median))


@given(SAMPLES, st.integers(-100, 100), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_bounds_move_and_stretch_with_the_values(values: list[int], shift: int, scale: float) -> None:
    sample = np.array(values, dtype=np.float64)
    figures: list[Callable[[Floats], Interval]] = [mean_interval, lambda v: quantile_interval(v, 0.5)]
    for figure in figures:
        found, other = figure(sample), figure(sample * scale + shift)
        wanted = (found.low * scale + shift, found.high * scale + shift)
        assert (other.low, other.high) == pytest.approx(wanted, nan_ok=True)


@given(SAMPLES)
def test_more_confidence_is_wider(values: list[int]) -> None:
    sample = np.array(values, dtype=np.float64)
    narrow, wide = mean_interval(sample, 0.8), mean_interval(sample, 0.99)
    assert wide.low <= narrow.low <= narrow.high <= wide.high


def spread_evenly(counts: list[int]) -> Floats:
    """Stamps of so many events in each successive second, in ms."""
    return np.concatenate([1000 * (i + (np.arange(c) + 0.5) / c) for i, c in enumerate(counts)])


def test_a_rate_by_hand() -> None:
    """48 events over 8 s, 3 or 9 in each: too few for 16 slices of 4 events, so 8 slices; s² = 8 · 9 / 7."""
    found = rate_interval(spread_evenly([3, 9] * 4), np.ones(48), 0, 8000)
    half = 2.3646 * math.sqrt(8 * 72 / 7)  # t(0.975, 7)
    assert found.low == pytest.approx((48 - half) / 8, abs=1e-3)
    assert found.high == pytest.approx((48 + half) / 8, abs=1e-3)
    assert found.n == 48
    assert found.n_effective == pytest.approx(48 * 48 * 7 / 576)  # independent arrivals: variance of the total 48


def test_slices_that_repeat_their_neighbours_are_merged() -> None:
    """160 events, 10 a second then 30: at any number of slices the halves agree within, so the fewest, 8, are taken."""
    found = rate_interval(spread_evenly([10] * 4 + [30] * 4), np.ones(160), 0, 8000)
    half = 2.3646 * math.sqrt(8 * 800 / 7)
    assert found.low == pytest.approx((160 - half) / 8, abs=1e-3)
    assert found.high == pytest.approx((160 + half) / 8, abs=1e-3)


def test_a_rate_counts_what_falls_in_the_window_open_at_its_start() -> None:
    """One event of 3 tokens every 10 ms from 0 to 20 s; of (5 s, 15 s] it is 100 events and 300 tokens a second."""
    stamps = np.arange(0, 20_001, 10.0)
    found = rate_interval(np.append(stamps, np.nan), np.full(len(stamps) + 1, 3.0), 5000, 15_000)
    assert found.n == 1000
    assert found.low <= 300 <= found.high
    # 32 slices of 31 or 32 events: s ≤ 1.5 √(32 / 31) tokens, and t(0.975, 31) √32 s in 10 s are 1.76 a second.
    assert found.high - found.low <= 2 * 1.76


@pytest.mark.parametrize("expected", [40, 300])
def test_a_poisson_rate_is_covered(expected: int) -> None:
    draw = np.random.default_rng(expected)
    found = []
    for _ in range(600):
        stamps = draw.uniform(0, 60_000, draw.poisson(expected))
        found.append(rate_interval(stamps, np.ones(len(stamps)), 0, 60_000))
    assert 0.92 <= coverage(found, expected / 60) <= 0.985


def test_a_rate_in_slow_waves_is_covered() -> None:
    """400 cells of an AR(1) intensity, lag-1 correlation 0.8: neighbouring slices of 12 cells are still correlated."""
    draw = np.random.default_rng(8)
    found = []
    for intensity in ar1(9, 0.8, 400, 400):
        counts = draw.poisson(5 * np.clip(1 + 0.3 * intensity, 0, None))
        stamps = 250 * (np.repeat(np.arange(400), counts) + draw.uniform(0, 1, counts.sum()))
        found.append(rate_interval(stamps, np.ones(len(stamps)), 0, 100_000))
    assert coverage(found, 20) >= 0.90


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


def test_the_half_width_falls_as_the_root_of_n() -> None:
    # Half-width 10 of 100 is 10 %. 5 % takes four times the values, 1 % a hundred times.
    found = interval(50, 90, 110)
    assert [requests_needed(found, 100, r) for r in (0.2, 0.1, 0.05, 0.01)] == [0, 0, 150, 4950]
    assert requests_needed(interval(50, -110, -90), -100, 0.05) == 150
    assert requests_needed(interval(50, 7, 7), 7, 0.01) == 0
    assert requests_needed(interval(50, 90, 110), 100, 0.0999) == 1  # 50.1 in all


def test_what_is_needed_for_an_unknown_width_is_unknown() -> None:
    assert requests_needed(interval(50, 90, math.nan), 100, 0.05) is None
    assert requests_needed(interval(50, -1, 1), 0, 0.05) is None
    assert requests_needed(interval(50, 90, 110), math.nan, 0.05) is None


def test_what_is_no_fraction_is_refused() -> None:
    for wrong in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            mean_interval(np.arange(30.0), wrong)
        with pytest.raises(ValueError, match="between 0 and 1"):
            quantile_interval(np.arange(30.0), wrong)
    with pytest.raises(ValueError, match="above 0"):
        requests_needed(interval(50, 90, 110), 100, 0)
    with pytest.raises(ValueError, match="at least 1"):
        t_quantile(0.9, 0)
