"""Series whose steady part is known by construction, and the three statistics by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.stats.columns import Floats
from cadenza.stats.steady import Change, examine_series, find_shift, find_trend, transient_end

LEVEL = 40.0  # ms, of every plateau here


def noise(seed: int, phi: float, n: int) -> Floats:
    """AR(1) of standard deviation 1 and lag-1 correlation phi."""
    found = np.random.default_rng(seed).standard_normal(n)
    for i in range(1, n):
        found[i] = phi * found[i - 1] + math.sqrt(1 - phi**2) * found[i]
    return found


def ramp(place: Floats) -> Floats:
    """From 30 % up to the level over the first fifth."""
    return np.minimum(1, 0.3 + 3.5 * place)


def burst(place: Floats) -> Floats:
    """An opening wave: five times the level in the first twentieth."""
    return np.where(place < 0.05, 5.0, 1.0)


def approach(place: Floats) -> Floats:
    """From three times the level exponentially down; what is left of it is below 1 % after a quarter."""
    return 1 + 2 * np.exp(-place / 0.045)


# MSER by hand: means of five, by repeating each five times.


def test_mser_by_hand() -> None:
    """Left after d: Σ(Z − mean)² / k² is, for d = 1 … 4, 12.89/81, 2/64, 1.71/49, 1.5/36; two means go."""
    means = np.array([9, 5, 1, 2, 1, 2, 1, 2, 1, 2], dtype=np.float64)
    assert transient_end(np.repeat(means, 5)) == 10


def test_mser_of_a_plateau_takes_nothing() -> None:
    assert transient_end(np.full(100, 0.1)) == 0
    assert transient_end(np.tile([1.0, 2, 3, 4, 5], 20)) == 0  # all fives have mean 3


def test_mser_rejects_a_minimum_beyond_half() -> None:
    """The variance of k points of a line grows as k², so that Σ(Z − mean)² / k² falls with every point that goes."""
    assert transient_end(np.arange(200.0)) is None
    assert transient_end(np.repeat([1.0, 2.0], [140, 60])) is None
    assert transient_end(np.repeat([1.0, 2.0], [100, 100])) == 100  # half itself is not beyond it


def test_mser_is_what_it_says() -> None:
    """The definition, term by term, over series too long for a hand."""
    for seed in range(20):
        values = LEVEL * ramp(np.arange(400) / 400) + noise(seed, 0.5, 400)
        means = [float(np.mean(values[i : i + 5])) for i in range(0, 400, 5)]
        spread = [float(np.var(means[d:])) / (80 - d) for d in range(80 - 16 + 1)]
        assert transient_end(values) == 5 * spread.index(min(spread))


def test_places_are_those_of_the_series_as_given() -> None:
    values = np.repeat([9.0, 5, 1, 2, 1, 2, 1, 2, 1, 2], 5)
    assert transient_end(np.insert(values, 3, [np.nan, np.nan])) == 12
    assert transient_end(np.insert(np.full(50, 2.0), 0, np.nan)) == 0


# Mann-Kendall and Pettitt by hand: of 20 values every batch is one, and alternation leaves no correlation to correct.


def test_mann_kendall_by_hand() -> None:
    """1 … 20 with neighbours swapped: 10 of the 190 pairs fall, S = 170; Var S = 20 · 19 · 45 / 18 = 950."""
    values = np.arange(1.0, 21).reshape(10, 2)[:, ::-1].ravel()
    found = find_trend(values)
    assert found is not None
    assert found.p_value == pytest.approx(math.erfc(169 / math.sqrt(2 * 950)))
    assert (found.kind, found.at) == ("trend", None)


def test_mann_kendall_with_ties_by_hand() -> None:
    """1, 1, 2, 2, … 10, 10: S = 190 − 10; each pair takes 2 · 1 · 9 from 20 · 19 · 45."""
    found = find_trend(np.repeat(np.arange(1.0, 11), 2))
    assert found is not None
    assert found.p_value == pytest.approx(math.erfc(179 / math.sqrt(2 * (17_100 - 180) / 18)))


def test_a_line_is_found_again() -> None:
    found = find_trend(10 - 0.02 * np.arange(200.0))
    assert found is not None
    assert found.before == pytest.approx(10)
    assert found.after == pytest.approx(10 - 0.02 * 199)
    assert found.relative == pytest.approx(-0.398)


def test_pettitt_by_hand() -> None:
    """0, 1, 0, 1 … then 10, 11 …: all 10 · 10 pairs across the jump rise, K = 100, m = 20."""
    found = find_shift(np.tile([0.0, 1], 10) + np.repeat([0.0, 10], 10))
    assert found is not None
    assert found.p_value == pytest.approx(2 * math.exp(-6 * 100**2 / (20**3 + 20**2)))
    assert (found.kind, found.before, found.after, found.at) == ("shift", 0.5, 10.5, 10)
    assert found.relative == 20


def test_a_shift_out_of_reach_of_ranks_is_none() -> None:
    """At 1 of 20, K is 19 at most, and p > 1."""
    assert find_shift(np.repeat([0.0, 9.0], [1, 19])) is None


def test_relative_change_from_nothing() -> None:
    def change(before: float, after: float) -> float:
        return Change(kind="shift", p_value=0.001, before=before, after=after, at=1).relative

    assert change(0, 0) == 0
    assert change(0, -3) == -math.inf
    assert change(4, 5) == 0.25


# The promise: the plateau is found again, and what is no plateau is not called one.


@pytest.mark.parametrize("phi", [0.0, 0.6])
@pytest.mark.parametrize("opening", [ramp, burst, approach])
@pytest.mark.parametrize("seed", range(6))
def test_the_plateau_is_recovered(opening: Callable[[Floats], Floats], phi: float, seed: int) -> None:
    """2,000 values with a noise of 5 %: the mean of 1,600 has a standard error of 0.1 %, of 0.25 % with phi = 0.6."""
    n = 2000
    values = LEVEL * (opening(np.arange(n) / n) + 0.05 * noise(seed, phi, n))
    start, change = examine_series(values)
    assert change is None
    assert values[start:].mean() == pytest.approx(LEVEL, rel=0.01)
    assert values.mean() != pytest.approx(LEVEL, rel=0.02)


def test_a_long_transient_is_not_taken_for_a_change() -> None:
    """From 115 % down to the level over two fifths: more than a quarter goes, and the rest is a plateau."""
    place = np.arange(300) / 300
    series = [LEVEL * (1 + 0.15 * np.maximum(0, 1 - 2.5 * place) + 0.03 * noise(seed, 0.3, 300)) for seed in range(40)]
    found = [examine_series(values) for values in series]
    assert sum(change is None for _, change in found) >= 38
    kept = [float(values[start:].mean()) for values, (start, _) in zip(series, found, strict=True)]
    assert np.median(kept) == pytest.approx(LEVEL, rel=0.01)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("spread", "phi"), [(0.05, 0.5), (0.1, 0.0)])
@pytest.mark.parametrize("seed", range(5))
def test_a_drift_is_no_plateau(seed: int, spread: float, phi: float, sign: int) -> None:
    """Also where noise hides that it is a line: a shift is then significant, too, but fits worse."""
    n = 1000
    values = LEVEL * (1 + sign * 0.2 * np.arange(n) / n + spread * noise(seed, phi, n))
    start, change = examine_series(values)
    assert start <= n / 2
    assert change is not None
    assert change.kind == "trend"
    assert change.p_value < 0.01
    left = (1 + sign * 0.2) / (1 + sign * 0.2 * start / n) - 1  # of the drift, from the start on
    assert change.relative == pytest.approx(left, abs=0.04)


@pytest.mark.parametrize("place", [0.4, 0.5, 0.65])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_two_levels(seed: int, place: float) -> None:
    """Up to the middle MSER would take the first level for a transient; it is a level of its own."""
    n = 1000
    values = LEVEL * (1 + 0.1 * (np.arange(n) >= place * n) + 0.03 * noise(seed, 0.3, n))
    start, change = examine_series(values)
    assert start <= 0.1 * n
    assert change is not None
    assert change.kind == "shift"
    assert change.at is not None
    assert abs(change.at - place * n) <= 0.05 * n
    assert change.before == pytest.approx(LEVEL, rel=0.02)
    assert change.after == pytest.approx(1.1 * LEVEL, rel=0.02)


@pytest.mark.parametrize("at", [120, 200, 290])
@pytest.mark.parametrize("seed", range(5))
def test_a_clear_step_between_batches_is_placed_exactly(seed: int, at: int) -> None:
    """400 values are 40 batches of 10. Pettitt's own place would lean to the middle."""
    found = find_shift(LEVEL * (1 + 0.1 * (np.arange(400) >= at) + 0.01 * noise(seed, -0.2, 400)))
    assert found is not None
    assert found.at == at


def test_a_step_after_a_transient_is_placed_in_the_whole_series() -> None:
    place = np.arange(2000) / 2000
    values = LEVEL * (burst(place) + 0.1 * (place >= 0.6) + 0.12 * noise(1, 0.3, 2000))
    start, change = examine_series(values)
    assert 90 <= start <= 200
    assert change is not None
    assert change.at == pytest.approx(1200, abs=100)


@pytest.mark.parametrize("n", [200, 1000])
def test_a_steady_series_is_left_alone(n: int) -> None:
    found = [examine_series(LEVEL * (1 + 0.1 * noise(seed, 0.7, n))) for seed in range(200)]
    assert sum(change is None for _, change in found) >= 194
    assert all(start <= n / 2 for start, _ in found)


def test_a_significant_change_that_is_small_is_none() -> None:
    values = LEVEL * (1 + 0.03 * np.arange(1000) / 1000 + 0.002 * noise(3, 0.0, 1000))
    assert find_trend(values) is not None
    assert examine_series(values)[1] is None
    assert examine_series(values, material=0.01)[1] is not None


def test_a_large_change_that_may_be_chance_is_none() -> None:
    """30 values of which the later 15 are 5 % higher, in a noise of 50 %."""
    values = LEVEL * (1 + 0.05 * (np.arange(30) >= 15) + 0.5 * noise(1, 0.0, 30))
    assert abs(values[15:].mean() / values[:15].mean() - 1) >= 0.05
    assert examine_series(values)[1] is None


def test_a_constant_series_has_nothing() -> None:
    values = np.full(300, 0.1)
    assert (find_trend(values), find_shift(values)) == (None, None)
    assert examine_series(values) == (0, None)


@pytest.mark.parametrize("n", [0, 1, 5, 19])
def test_of_few_values_nothing_is_said(n: int) -> None:
    values = np.arange(float(n))
    assert transient_end(values) is None
    assert (find_trend(values), find_shift(values)) == (None, None)
    assert examine_series(values) == (0, None)
    assert examine_series(np.append(values, np.full(50, np.nan))) == (0, None)


@given(st.lists(st.integers(1, 1000), min_size=20, max_size=120), st.sampled_from([0.25, 4.0]))
def test_the_unit_of_the_values_changes_nothing(values: list[int], scale: float) -> None:
    sample = np.array(values, dtype=np.float64)
    (start, change), (other_start, other) = examine_series(sample), examine_series(sample * scale)
    assert start == other_start
    assert 0 <= start <= len(sample) / 2
    assert (change is None) == (other is None)
    if change is not None and other is not None:
        assert (other.kind, other.at) == (change.kind, change.at)
        assert other.relative == pytest.approx(change.relative)
