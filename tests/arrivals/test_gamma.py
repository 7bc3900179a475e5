"""Gamma gaps against closed forms: Erlang's distribution function for whole K, the renewal limit for counts."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from cadenza.arrivals.gamma import Gamma
from cadenza.arrivals.poisson import Poisson

RATE, N = 50.0, 100_000


def times_s(shape: float, n: int = N) -> NDArray[np.float64]:
    return Gamma(shape).times_ns(np.random.default_rng(11), RATE, n) / 1e9


@pytest.mark.parametrize("shape", [0.25, 0.5, 1.0, 2.0, 16.0])
def test_mean_and_cv(shape: float) -> None:
    gaps_s = np.diff(times_s(shape), prepend=0.0)
    cv = 1 / math.sqrt(shape)
    assert abs(np.mean(gaps_s) * RATE - 1) < 4 * cv / math.sqrt(N)
    # Standard error of the sample CV (delta method): gamma has skewness 2 cv and excess kurtosis 6 cv^2.
    variance = cv**2 * ((6 * cv**2 + 2) / 4 + cv**2 - 2 * cv**2)
    assert abs(np.std(gaps_s) / np.mean(gaps_s) - cv) < 4 * math.sqrt(variance / N)


def kolmogorov(sample: NDArray[np.float64], law: NDArray[np.float64]) -> float:
    steps = np.arange(len(sample) + 1) / len(sample)
    return float(max(np.max(steps[1:] - law), np.max(law - steps[:-1])))


@pytest.mark.parametrize("shape", [1, 2, 5])
def test_gaps_are_erlang_for_whole_shapes(shape: int) -> None:
    gaps = np.sort(np.diff(times_s(shape), prepend=0.0)) * RATE * shape
    law = 1 - np.exp(-gaps) * sum(gaps**i / math.factorial(i) for i in range(shape))
    assert kolmogorov(gaps, law) < 1.63 / math.sqrt(N)


def test_gaps_of_shape_one_half_are_squared_normals() -> None:
    # Gamma(1/2, scale 2) is chi-squared with one degree of freedom: P(X < x) = erf(sqrt(x / 2)).
    gaps = np.sort(np.diff(times_s(0.5, 20_000), prepend=0.0)) * RATE
    law = np.array([math.erf(math.sqrt(gap / 2)) for gap in gaps])
    assert kolmogorov(gaps, law) < 1.63 / math.sqrt(len(gaps))


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_dispersion_of_counts_tends_to_one_over_k(shape: float) -> None:
    arrivals_s = times_s(shape, 400_000)
    for width_s in (4.0, 8.0, 16.0):
        bins = int(arrivals_s[-1] / width_s)
        counts = np.histogram(arrivals_s, bins=bins, range=(0.0, bins * width_s))[0]
        dispersion = np.var(counts, ddof=1) / np.mean(counts)
        # Sampling error 4 sqrt(2 / bins), and 2 % for windows that are long but not infinite.
        assert abs(dispersion * shape - 1) < 4 * math.sqrt(2 / bins) + 0.02


def test_shape_one_has_the_mean_of_poisson() -> None:
    ends = [law.times_ns(np.random.default_rng(3), RATE, N)[-1] / 1e9 for law in (Gamma(1.0), Poisson())]
    assert abs(ends[0] - ends[1]) < 4 * math.sqrt(2 * N) / RATE
