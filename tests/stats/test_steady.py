"""Series whose changes are known by construction, and healthy ones by the hundred."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cadenza.stats.columns import Floats
from cadenza.stats.steady import Change, can_judge, closed_round, find_change, memory_of

LEVEL = 40.0  # ms


def noise(seed: int, phi: float, n: int, m: int = 1) -> Floats:
    """(n,), or (m, n): AR(1) of standard deviation 1 and lag-1 correlation phi."""
    values = np.random.default_rng(seed).standard_normal((m, n))
    for i in range(1, n if phi else 0):
        values[:, i] = phi * values[:, i - 1] + math.sqrt(1 - phi**2) * values[:, i]
    return values[0] if m == 1 else values


def times(n: int) -> Floats:
    return np.asarray(np.arange(n) / n, dtype=np.float64)


def change_of(shape: NDArray[np.floating], cv: float, seed: int, *, material: float = 0.05, around: int = 1) -> Change:
    values = np.asarray(LEVEL * shape * (1 + cv * noise(seed, 0.0, len(shape))), dtype=np.float64)
    change = find_change(values, material=material, round_size=around)
    assert change is not None
    return change


# A planted change: its kind, its place and its levels.


@pytest.mark.parametrize(("n", "around"), [(128, 1), (256, 4), (500, 16), (1000, 16)])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_in_the_last_tenth_is_seen(n: int, around: int, seed: int) -> None:
    change = change_of(1 + 0.5 * (times(n) >= 0.9), 0.07, seed, around=around)
    assert change.kind == "step"
    assert change.stop == n
    assert change.start == pytest.approx(0.9 * n, abs=max(2, around))
    assert change.before == pytest.approx(LEVEL, rel=0.03)
    assert change.relative == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(("n", "around"), [(128, 1), (500, 16)])
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_beginning_is_a_transient(n: int, around: int, seed: int) -> None:
    change = change_of(1 + 0.5 * (times(n) < 0.1), 0.07, seed, around=around)
    assert (change.kind, change.start) == ("transient", 0)
    assert change.stop == pytest.approx(0.1 * n, abs=max(2, around))
    assert change.before == pytest.approx(1.5 * LEVEL, rel=0.05)
    assert change.after == pytest.approx(LEVEL, rel=0.03)


@pytest.mark.parametrize(("size", "kind"), [(-0.5, "dip"), (-0.25, "dip"), (0.5, "bump")])
@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_in_the_middle_is_a_dip_or_a_bump(size: float, kind: str, seed: int) -> None:
    n = 500
    change = change_of(1 + size * ((times(n) >= 0.45) & (times(n) < 0.55)), 0.07, seed)
    assert change.kind == kind
    assert change.start == pytest.approx(225, abs=5)
    assert change.stop == pytest.approx(275, abs=5)
    assert change.relative == pytest.approx(size, abs=0.05)


@pytest.mark.parametrize("amplitude", [0.25, 0.5])
@pytest.mark.parametrize("periods", [1, 3])
@pytest.mark.parametrize(("cv", "material"), [(0.07, 0.05), (0.2, 0.25)])
def test_a_wave_is_seen(amplitude: float, periods: int, cv: float, material: float) -> None:
    for n in (128, 500):
        shape = 1 + amplitude * np.sin(2 * np.pi * periods * times(n))
        change = change_of(shape, cv, 1, material=material)
        assert change.kind == "wave"
        assert change.periods == pytest.approx(periods, abs=0.25)
        low, high = sorted((change.before, change.after))
        assert high / low == pytest.approx((1 + amplitude) / (1 - amplitude), rel=0.2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [128, 1000])
def test_a_trend_is_a_line_between_two_levels(n: int, sign: int) -> None:
    change = change_of(1 + 0.2 * sign * times(n), 0.05, 2)
    assert (change.kind, change.start, change.stop) == ("trend", 0, n)
    assert change.before == pytest.approx(LEVEL, rel=0.04)
    assert change.relative == pytest.approx(0.2 * sign, abs=0.05)


def test_a_change_without_noise_is_seen() -> None:
    """Normal scores bend a line and a sine: what is left of them is smooth, but no correlated noise."""
    line, wave = (
        change_of(1 + times(60), 0.0, 0),
        change_of(1 + 0.5 * np.sin(2 * np.pi * times(256)), 0.01, 0, around=16),
    )
    assert (line.kind, wave.kind) == ("trend", "wave")


def test_a_step_in_scattered_ttft_is_seen_from_the_middle_on() -> None:
    change = change_of(1 + 0.5 * (times(256) >= 0.5), 0.3, 3, material=0.25)
    assert change.kind == "step"
    assert change.start == pytest.approx(128, abs=15)


# Healthy families: at most 1 % of a check, and a binomial margin: of 200 at 1 %, 7 or more have a chance of 0.4 %.

MOST_OF_200 = 6
FAMILIES: dict[str, Callable[[int], Floats]] = {
    "normal": lambda n: 1 + 0.1 * noise(1, 0.0, n, 200),
    "lognormal": lambda n: np.random.default_rng(2).lognormal(0, 0.47, (200, n)),
    "exponential": lambda n: np.random.default_rng(3).exponential(size=(200, n)),
    "AR(1) 0.5": lambda n: 1 + 0.2 * noise(4, 0.5, n, 200),
    "AR(1) 0.7": lambda n: 1 + 0.2 * noise(5, 0.7, n, 200),
    "AR(1) 0.85": lambda n: 1 + 0.2 * noise(6, 0.85, n, 200),
    "Cauchy": lambda n: 100 + np.random.default_rng(7).standard_cauchy((200, n)),
}


@pytest.mark.parametrize("n", [128, 400])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_series_is_left_alone(family: str, n: int) -> None:
    assert sum(find_change(values) is not None for values in FAMILIES[family](n)) <= MOST_OF_200


@pytest.mark.parametrize(("around", "n"), [(4, 128), (16, 128), (16, 1600), (7, 700), (64, 500), (64, 2000)])
def test_slots_in_step_are_no_change(around: int, n: int) -> None:
    """Requests of a round wait for each other's prefill: a saw tooth of the period C that never ends."""
    tooth = 1 + 2 * (np.arange(n) % around) / around
    wrong = [find_change(tooth + 0.05 * noise(seed, 0.0, n), round_size=around) is not None for seed in range(50)]
    assert sum(wrong) <= 2  # of 50 at 1 %, 3 or more have a chance of 1.4 %


def test_one_slow_request_is_no_change() -> None:
    values = LEVEL * (1 + 0.05 * noise(4, 0.0, 128))
    values[[60, 61]] = 1e6
    assert find_change(values) is None


# What counts.


def test_a_change_that_is_small_does_not_count() -> None:
    values = LEVEL * (1 + 0.03 * (times(1000) >= 0.5) + 0.002 * noise(3, 0.0, 1000))
    assert find_change(values) is None
    assert find_change(values, material=0.01) is not None


def test_constant_and_short_series_have_none() -> None:
    assert find_change(np.full(300, 0.1)) is None
    assert find_change(np.arange(19.0)) is None
    assert find_change(np.concatenate([np.arange(19.0), np.full(50, np.nan)])) is None


def test_six_rounds_are_needed() -> None:
    assert can_judge(96, 16)
    assert not can_judge(95, 16)
    assert (can_judge(19), can_judge(20)) == (False, True)
    step = np.repeat([1.0, 2.0], 50)
    assert find_change(step, round_size=17) is None
    assert find_change(step, round_size=8) is not None


def test_places_are_those_of_the_series_as_given() -> None:
    values = LEVEL * (1 + 0.5 * (times(200) >= 0.5) + 0.02 * noise(5, 0.0, 200))
    change = find_change(np.insert(values, 10, np.full(30, np.nan)))
    assert change is not None
    assert (change.start, change.stop) == (130, 230)


def test_relative_change_from_nothing() -> None:
    def relative(before: float, after: float) -> float:
        return Change(kind="step", p_value=0.001, before=before, after=after, start=0, stop=1).relative

    assert relative(0, 0) == 0
    assert relative(0, -3) == -math.inf
    assert relative(4, 5) == 0.25


@given(
    st.lists(st.integers(1, 1000), min_size=20, max_size=120),
    st.sampled_from([0.25, 4.0]),
    st.floats(1, 20),
)
def test_the_unit_of_the_values_changes_nothing(values: list[int], scale: float, around: float) -> None:
    sample = np.array(values, dtype=np.float64)
    one, other = (find_change(sample * k, round_size=around) for k in (1.0, scale))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.kind, one.start, one.stop) == (other.kind, other.start, other.stop)
        assert one.relative == pytest.approx(other.relative)
        assert 0 < one.p_value < 0.003 or one.p_value == 0


def test_the_memory_of_a_closed_loop_grows_with_the_scatter_of_its_lengths() -> None:
    """Lengths of 1 and 3: mean 2, standard deviation 1, CV ½. Of four slots half of that counts."""
    two = np.array([1.0, 3.0] * 10)
    assert memory_of(4, two) == pytest.approx(0.1 + 0.06 * 0.5 * 0.5)
    assert memory_of(64, two) == pytest.approx(0.1 + 0.06 * 0.5 * 62 / 64)
    assert memory_of(2, two) == memory_of(1, two) == memory_of(64, np.full(20, 32.0)) == pytest.approx(0.1)
    assert memory_of(64, np.empty(0)) == pytest.approx(0.1)


def test_the_round_of_a_closed_loop_grows_with_the_scatter_of_its_lengths() -> None:
    """One length of 16 tokens to 15 of none: mean 1, variance 15, so that (1 + CV²)^¼ = 2."""
    assert closed_round(16, np.array([16.0] + [0.0] * 15)) == 32
    assert closed_round(16, np.full(20, 32.0)) == closed_round(16, np.empty(0)) == 16
    assert closed_round(4, np.array([1.0, 3.0])) == 4  # 4 · 1.25^¼ = 4.23


@pytest.mark.parametrize("shape", ["step", "bump", "wave", "trend"])
def test_a_longer_memory_makes_chance_of_what_was_a_change(shape: str) -> None:
    t = times(200)
    shapes = {"step": t >= 0.5, "bump": abs(t - 0.5) < 0.1, "wave": np.sin(4 * np.pi * t), "trend": t}
    values = LEVEL * (1 + 0.1 * shapes[shape] + 0.1 * noise(3, 0.0, 200))
    short, long = (find_change(values, memory=memory) for memory in (0.0, 0.3))
    assert short is not None
    assert short.kind == shape
    assert long is None or long.p_value > short.p_value
