"""Exponential gaps and Poisson counts, against their closed forms, within their sampling errors."""

import numpy as np
import pytest

from cadenza.arrivals.poisson import Poisson

RATE, N = 50.0, 100_000
TIMES_S = Poisson().times_ns(np.random.default_rng(11), RATE, N) / 1e9
GAPS_S = np.diff(TIMES_S, prepend=0.0)


def test_the_mean_gap_is_one_over_the_rate() -> None:
    assert abs(np.mean(GAPS_S) * RATE - 1) < 4 / np.sqrt(N)


def test_gaps_have_cv_one() -> None:
    # The sample CV of an exponential has standard error 1 / sqrt(n) (delta method).
    assert abs(np.std(GAPS_S) / np.mean(GAPS_S) - 1) < 4 / np.sqrt(N)


def test_gaps_are_exponential() -> None:
    """Kolmogorov-Smirnov: the largest distance between the sample's and the law's distribution function."""
    law = 1 - np.exp(-RATE * np.sort(GAPS_S))
    steps = np.arange(N + 1) / N
    distance = max(np.max(steps[1:] - law), np.max(law - steps[:-1]))
    assert distance < 1.63 / np.sqrt(N)  # the 1 % point of the Kolmogorov distribution


def test_gaps_are_independent() -> None:
    correlation = np.corrcoef(GAPS_S[:-1], GAPS_S[1:])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(N)


@pytest.mark.parametrize("width_s", [0.1, 1.0, 10.0])
def test_counts_are_poisson_at_every_scale(width_s: float) -> None:
    bins = int(TIMES_S[-1] / width_s)
    counts = np.histogram(TIMES_S, bins=bins, range=(0.0, bins * width_s))[0]
    dispersion = np.var(counts, ddof=1) / np.mean(counts)
    # Variance of the index of dispersion of Poisson counts: 2 / (bins - 1).
    assert abs(dispersion - 1) < 4 * np.sqrt(2 / (bins - 1))
