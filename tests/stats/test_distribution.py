"""Percentiles against order statistics, and what a small sample may not say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.stats.distribution import Distribution
from cadenza.stats.intervals import quantile_interval


def test_percentiles_interpolate_linearly() -> None:
    found = Distribution.of(np.arange(101, dtype=np.float64))
    assert (found.n, found.mean, found.p50, found.p90, found.p95, found.p99, found.max) == (
        101,
        50,
        50,
        90,
        95,
        99,
        100,
    )
    assert Distribution.of(np.array([10.0, 20.0])).p90 == pytest.approx(19)


def test_undefined_values_are_left_out() -> None:
    assert Distribution.of(np.array([1.0, np.nan, 3.0])).mean == 2


def test_nothing_is_not_zero() -> None:
    found = Distribution.of(np.array([np.nan]))
    assert found.n == 0
    assert all(math.isnan(v) for v in (found.mean, found.p50, found.p90, found.p95, found.p99, found.max))


@pytest.mark.parametrize(
    ("n", "below"),
    [(63, ("p90", "p95", "p99")), (64, ("p95", "p99")), (130, ("p99",)), (661, ("p99",)), (662, ())],
)
def test_percentiles_below_their_floor_are_marked(n: int, below: tuple[str, ...]) -> None:
    assert Distribution.of(np.ones(n)).undersampled == below


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=200))
def test_percentiles_lie_between_their_neighbours_in_order(values: list[int]) -> None:
    found, ordered = Distribution.of(np.array(values, dtype=np.float64)), sorted(values)
    for p, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        rank = p / 100 * (len(ordered) - 1)
        assert ordered[math.floor(rank)] - 1e-6 <= value <= ordered[math.ceil(rank)] + 1e-6


@pytest.mark.parametrize(("tail", "n"), [(0.1, 64), (0.05, 130), (0.01, 662)])
def test_the_floors_are_where_one_value_above_a_bound_is_allowed(tail: float, n: int) -> None:
    """P(Binomial(n, tail) ≤ 1) falls to 1 % at the floor and not before."""

    def at_most_one(n: int) -> float:
        return float((1 - tail) ** n + n * tail * (1 - tail) ** (n - 1))

    assert at_most_one(n) <= 0.01 < at_most_one(n - 1)


def test_intervals_only_for_what_is_in_time_order() -> None:
    values = np.random.default_rng(1).normal(100, 10, 400)
    assert Distribution.of(values).intervals == {}
    found = Distribution.of(values, in_time_order=True)
    assert list(found.intervals) == ["mean", "p50", "p90", "p95", "p99"]
    low, high = found.intervals["mean"]
    # Never narrower than for independent values: t(0.975, 399) · s / √400.
    assert high - low >= 2 * 1.9659 * float(values.std(ddof=1)) / 20 - 1e-3
    assert low < 100 < high
    # 0.99 + 1.97 · √(0.99 · 0.01 / 300) > 1: no value of 300 could bound the p99 from above.
    assert np.isnan(Distribution.of(values[:300], in_time_order=True).intervals["p99"][1])


def test_how_many_more_would_do() -> None:
    values = np.random.default_rng(2).normal(100, 10, 400)
    found = Distribution.of(values, in_time_order=True)
    low, high = found.intervals["mean"]
    half = (high - low) / 2
    assert found.further("mean", 1.1 * half / found.mean) == 0
    assert found.further("mean", half / found.mean / 2) == pytest.approx(3 * 400, abs=2)
    few = Distribution.of(values[:300], in_time_order=True)
    # No upper bound yet: as many more as that takes, or the floor.
    assert few.needed["p99"] > 0
    assert few.further("p99", 0.1) == max(few.needed["p99"], 662 - 300)
    # Five values: 15 more make the 20 of the least that is tried.
    assert Distribution.of(values[:5], in_time_order=True).further("mean", 0.05) == 15
    assert Distribution.of(values[:300], in_time_order=True, round_size=64).further("mean", 0.05) == 640 - 300


def test_the_headline_is_the_highest_percentile_with_its_floor() -> None:
    found = {n: Distribution.of(np.ones(n)).headline for n in (0, 63, 64, 129, 130, 661, 662)}
    assert found == {0: "p50", 63: "p50", 64: "p90", 129: "p90", 130: "p95", 661: "p95", 662: "p99"}
    assert Distribution.of(np.ones(60), censored=np.ones(4)).headline == "p90"


def test_what_never_ended_counts_at_least_as_long_as_it_was_waited_for() -> None:
    """1 … 90 ended; 11 more were waited for 50, at the least. Of 101 in all, rank 50 is the p50, rank 90 the p90."""
    found = Distribution.of(np.arange(1.0, 91), censored=np.full(11, 50.0))
    assert (found.n, found.censored) == (90, 11)
    ordered = np.sort(np.concatenate([np.arange(1.0, 91), np.full(11, 50.0)]))
    assert (found.p50, found.p90, found.max) == (ordered[50], ordered[90], 90)
    assert found.mean == pytest.approx((90 * 91 / 2 + 11 * 50) / 101)
    # Were the 11 infinite, the p50 would be the 51st of those that ended, and the p90 the first infinite one.
    assert found.bounds == ("mean", "p50", "p90", "p95", "p99", "max")


def test_a_percentile_that_the_censored_do_not_reach_is_none() -> None:
    """1 … 99 ended, one was waited for 98.5: whatever it is, the order statistics below 98 stand."""
    found = Distribution.of(np.arange(1.0, 100), censored=np.array([98.5]))
    assert found.bounds == ("mean", "p99", "max")
    assert (found.p50, found.p90) == pytest.approx((50.5, 90.1))
    # A bound that is not known is no help.
    unknown = Distribution.of(np.arange(1.0, 100), censored=np.array([np.nan]))
    assert unknown.bounds == ("mean", "p50", "p90", "p95", "p99", "max")
    nothing = Distribution.of(np.arange(1.0, 100), censored=np.zeros(0))
    assert (nothing.bounds, nothing.censored) == ((), 0)


def test_a_lower_bound_has_no_upper_end() -> None:
    values = np.random.default_rng(3).normal(100, 10, 2000)
    whole = Distribution.of(values, in_time_order=True)
    found = Distribution.of(values, in_time_order=True, censored=np.full(30, 200.0))
    assert found.bounds == ("mean", "p99", "max")
    for name in ("mean", "p99"):
        low, high = found.intervals[name]
        assert math.isfinite(low)
        assert math.isnan(high)
        assert name not in found.needed
    # The p50 and its interval are far from where 30 values matter.
    assert found.intervals["p50"] == pytest.approx(whole.intervals["p50"], rel=0.01)
    # Where a percentile stands, its upper end is that of a series in which they are larger than all others.
    ranks = np.random.default_rng(5).permutation(400).astype(np.float64)
    one = Distribution.of(ranks, in_time_order=True, censored=np.array([382.0]))
    assert "p95" not in one.bounds
    least, most = (quantile_interval(np.append(ranks, at), 0.95) for at in (382.0, 1e9))
    assert least.high < most.high
    assert one.intervals["p95"] == (least.low, most.high)
    # The p95 stands, but its upper end lies among those that never ended.
    many = Distribution.of(values[:400], in_time_order=True, censored=np.full(15, 200.0))
    assert "p95" not in many.bounds
    assert math.isnan(many.intervals["p95"][1])


def test_nothing_but_censored_values_is_a_bound_throughout() -> None:
    found = Distribution.of(np.zeros(0), censored=np.array([5.0, 7.0]))
    assert (found.n, found.censored, found.mean, found.p50, found.max) == (0, 2, 6, 6, 7)
    assert found.bounds == ("mean", "p50", "p90", "p95", "p99", "max")
