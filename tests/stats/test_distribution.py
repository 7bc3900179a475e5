"""Percentiles against order statistics, and what a small sample may not say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.stats.distribution import Distribution


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
    assert few.further("p99", 0.1) == 662 - 300  # no upper bound yet: the floor is what is known to be needed
    assert Distribution.of(values[:5], in_time_order=True).further("mean", 0.05) is None
