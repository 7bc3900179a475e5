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
