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
    phases_seen,
    quantile_interval,
    requests_needed,
    round_of,
    t_quantile,
)
from support.series import TEN, ar1, coverage

SAMPLES = st.lists(st.integers(-1000, 1000), min_size=20, max_size=150)


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


def batch_means(means: list[float], size: int) -> Floats:
    """Each batch constant at its mean."""
    return np.repeat(np.array(means), size)


def test_the_mean_by_hand() -> None:
    """80 values in ten batches; Σ mean² = 110, so s² = 110 / 9 and the mean's is that by 10."""
    found = mean_interval(7 + batch_means(TEN, 8))
    half = 2.2622 * math.sqrt(110 / 9 / 10)  # t(0.975, 9)
    assert found.low == pytest.approx(7 - half, abs=1e-3)
    assert found.high == pytest.approx(7 + half, abs=1e-3)
    # Independent, the 80 values would have s² = 8 · 110 / 79, and their mean that by 80.
    assert (found.n, found.needed) == (80, 0)
    assert found.n_effective == pytest.approx((880 / 79) / (110 / 9 / 10))


def test_correlated_batches_are_merged_and_what_is_left_widens() -> None:
    """Pairs of equal means: at ten batches φ = 0.5 + 1 / 10 or so, at five they are those of the pairs."""
    five = [2.0, -2, 0, 2, -2]
    # Lag 1 of the five: (−4 + 0 + 0 − 4) / 16 = −0.5; s² = 16 / 4, t(0.975, 4) = 2.7764.
    found = mean_interval(batch_means(five, 16))
    assert found.high == pytest.approx(2.7764 * math.sqrt(4 / 5), abs=1e-3)
    # Lag 1 of −1, −1, 0, 1, 1: (1 + 0 + 0 + 1) / 4 = 0.5, and 1 / 5 more for its bias: above 0.5, not determinable.
    trend = mean_interval(batch_means([-1.0, -1, 0, 1, 1], 16))
    assert math.isnan(trend.low)
    assert math.isnan(trend.high)
    assert (trend.n, trend.needed) == (80, 80)
    # Lag 1 of 1, 1, −1, −1, 0: (1 − 1 + 1 + 0) / 4 = 0.25, so φ = 0.45 and the width is √(1.45 / 0.55) times as large.
    found = mean_interval(batch_means([1.0, 1, -1, -1, 0], 16))
    assert found.high == pytest.approx(2.7764 * math.sqrt(1 / 5 * 1.45 / 0.55), abs=1e-3)


def test_the_side_of_the_longer_tail_is_wider() -> None:
    """40 sub-batches, two of them at 19 and the rest at −1: γ = (19 − 1) / √19 of a cell, by √40 of the mean."""
    cells = np.full(40, -1.0)
    cells[[4, 25]] = 19
    found = mean_interval(np.repeat(cells, 3))
    gamma = 18 / math.sqrt(19) / math.sqrt(40)
    assert found.high / -found.low == pytest.approx(1 + 2 * gamma)
    mirrored = mean_interval(np.repeat(-cells, 3))
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_a_batch_holds_two_rounds() -> None:
    """80 values: ten batches of 8 hold two rounds of 4; of 5 or more only eight or five can be had."""
    values = batch_means(TEN, 8)
    assert mean_interval(values, round_size=4) == mean_interval(values)
    pairs = [(a + b) / 2 for a, b in zip(TEN[::2], TEN[1::2], strict=True)]  # 0.5, 0.5, 0, −0.5, −0.5: a trend
    assert np.mean(pairs) == 0
    assert math.isnan(mean_interval(values, round_size=8).low)
    short = mean_interval(values, round_size=9)
    assert math.isnan(short.low)
    assert short.needed == 5 * 2 * 9 - 80
    assert quantile_interval(values, 0.5, round_size=9).needed == 10
    with pytest.raises(ValueError, match="at least 1"):
        mean_interval(values, round_size=0)


def test_no_narrower_than_one_of_so_many_phases() -> None:
    """Alternating ±1, n = 400: s² = 400 / 399; as 16 independent values ± t(0.975, 15) √(s² / 16)."""
    found = mean_interval(np.tile([1.0, -1.0], 200), phases=16)
    assert found.high == pytest.approx(2.1314 * math.sqrt(400 / 399 / 16), abs=1e-3)
    assert found.n_effective == 16
    # The p90 of 16 values: 0.9 + 2.13 √(0.09 / 16) > 1, and no number of further requests helps.
    values = np.arange(400.0) * 37 % 401
    high = quantile_interval(values, 0.9, phases=16)
    assert math.isfinite(high.low)
    assert math.isnan(high.high)
    assert high.needed is None
    # Of ten phases 0.9 are expected beyond the p90.
    assert math.isnan(quantile_interval(values, 0.9, phases=10).low)


def test_what_evens_itself_out_is_not_believed_to() -> None:
    """Alternating values: all batch means are equal, and the independent interval stands."""
    found = mean_interval(np.tile([0.0, 1.0], 200))
    half = t_quantile(0.975, 399) * math.sqrt(0.25 * 400 / 399 / 400)
    assert (found.high - found.low) / 2 == pytest.approx(half)
    assert found.n_effective == 400
    # Neither is it in batches of two rounds: nothing here is a round.
    assert mean_interval(np.tile([0.0, 1.0], 200), round_size=20) == found


def test_a_round_is_what_replaces_those_in_flight() -> None:
    """E[L²] / E[L]²: 1 of equal lengths; of 10 and 30, 500 / 400."""
    assert round_of(16, np.full(10, 32.0)) == 16
    assert round_of(16, np.array([10.0, 30.0, np.nan])) == 20
    assert round_of(6, np.full(10, 32.0), is_open=True) == 48
    assert [round_of(0, np.ones(3)), round_of(0.2, np.zeros(0)), round_of(math.nan, np.ones(3))] == [1, 1, 1]


def test_equal_lengths_are_one_draw_of_phases() -> None:
    assert phases_seen(48, np.full(1000, 32.0)) == phases_seen(48, np.full(10**6, 32.0)) == 16
    assert phases_seen(4, np.full(1000, 32.0)) == 4
    assert phases_seen(1, np.full(1000, 32.0)) == math.inf
    assert phases_seen(4, np.zeros(0)) == math.inf
    # CV² = 1 / 4 over 100 rounds of 48: 16 · (1 + π² / 2 · 100).
    lengths = np.tile([16.0, 48.0], 2400)
    assert phases_seen(48, lengths) == pytest.approx(16 * (1 + math.pi**2 / 2 * 100))


@pytest.mark.parametrize(("phi", "n", "least"), [(0.0, 200, 0.94), (0.5, 200, 0.93), (0.8, 200, 0.92)])
def test_the_mean_is_covered_in_short_series(phi: float, n: int, least: float) -> None:
    assert coverage([mean_interval(series) for series in ar1(1, phi, n, 1000)], 0) >= least


def test_the_mean_is_covered_where_the_independent_interval_fails() -> None:
    series = ar1(2, 0.8, 2000, 1000)
    found = [mean_interval(one) for one in series]
    found = [one for one in found if not math.isnan(one.low)]
    assert len(found) >= 970
    assert 0.93 <= coverage(found, 0) <= 0.98
    independent = 1.96 * series.std(axis=1) / math.sqrt(2000)
    assert np.mean(np.abs(series.mean(axis=1)) <= independent) < 0.6
    # The autocorrelation time of an AR(1) is (1 + phi) / (1 − phi), here 9.
    assert np.median([one.n_effective for one in found]) == pytest.approx(2000 / 9, rel=0.2)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_percentiles_are_covered(q: float, phi: float) -> None:
    found = [quantile_interval(series, q) for series in ar1(3, phi, 2000, 500)]
    found = [one for one in found if not math.isnan(one.low)]
    both = [one for one in found if not math.isnan(one.low + one.high)]
    assert len(found) >= 480
    assert len(both) >= 0.85 * len(found)
    assert 0.93 <= coverage(both, NormalDist().inv_cdf(q)) <= 0.995


def test_the_median_by_hand() -> None:
    """0 … 79 in pairs of a low and a high one: all batches have equal shares, √(q (1 − q) / n), the independent one."""
    ranks = np.arange(40.0)
    found = quantile_interval(np.column_stack([ranks, 79 - ranks]).ravel(), 0.5)
    # 40 of 80 lie at or below 39.5; the share's s² / n is p (1 − p) / (n − 1).
    half = t_quantile(0.975, 79) * math.sqrt(0.25 / 79)
    assert found.low == pytest.approx(39.5 - 79 * half)
    assert found.high == pytest.approx(39.5 + 79 * half)


@pytest.mark.parametrize("n", [50, 300])
def test_a_p99_of_few_values_has_no_upper_bound(n: int) -> None:
    """Independent values have none above their p99 with probability 0.99^n: 61 %, 5 %; it may not pass for 2.5 %."""
    found = quantile_interval(np.random.default_rng(4).standard_normal(n), 0.99)
    assert math.isnan(found.high)
    assert found.low < NormalDist().inv_cdf(0.99)
    # With as many more as it says, at the same spread, it has one: h falls as 1 / √n.
    assert found.needed is not None
    assert 400 <= n + found.needed <= 8000


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
    assert (constant.low, constant.high, constant.n_effective, constant.needed) == (5, 5, 100, 0)


def test_too_few_values_are_told_as_such() -> None:
    for found in (mean_interval(np.arange(19.0)), quantile_interval(np.arange(19.0), 0.5)):
        assert (found.n, found.needed) == (19, 1)
        assert all(math.isnan(v) for v in (found.low, found.high, found.n_effective))
    assert mean_interval(np.zeros(0)).n == 0
    assert not math.isnan(mean_interval(np.tile([1.0, 2.0], 10)).low)


def test_undefined_values_are_left_out() -> None:
    values = ar1(6, 0.5, 200, 1)[0]
    gaps = np.insert(values, [0, 50, 200], np.nan)
    assert mean_interval(gaps) == mean_interval(values)
    assert quantile_interval(gaps, 0.9) == quantile_interval(values, 0.9)


@given(SAMPLES)
def test_bounds_are_in_order_and_hold_the_figure(values: list[int]) -> None:
    sample = np.array(values, dtype=np.float64)
    mean, median = mean_interval(sample), quantile_interval(sample, 0.5)
    assert not mean.low - 1e-9 > sample.mean()
    assert not sample.mean() > mean.high + 1e-9
    assert not median.low > np.median(sample)
    assert not median.high < np.median(sample)
    for found in (mean, median):
        assert math.isnan(found.n_effective) or 1 <= found.n_effective <= found.n
        assert found.needed != 0 or not math.isnan(found.low + found.high)


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
    assert math.isnan(narrow.low) == math.isnan(wide.low)
    assert math.isnan(narrow.low) or wide.low <= narrow.low <= narrow.high <= wide.high


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
