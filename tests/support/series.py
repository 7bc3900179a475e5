"""Series whose mean, correlation and coverage are known."""

import math

import numpy as np

from cadenza.stats.columns import Floats
from cadenza.stats.intervals import Interval

# Ten means whose lag-1 correlation is below −1 / 10, and that lie evenly about 0, so that their skewness is 0.
TEN = [5.0, -4, 3, -2, 1, -1, 2, -3, 4, -5]


def ar1(seed: int, phi: float, n: int, series: int) -> Floats:
    """(series, n) of a stationary AR(1) with standard normal marginal: mean 0, lag-1 correlation phi."""
    noise = np.random.default_rng(seed).standard_normal((n, series))
    found = noise.copy()
    for i in range(1, n):
        found[i] = phi * found[i - 1] + math.sqrt(1 - phi**2) * noise[i]
    return found.T


def coverage(intervals: list[Interval], truth: float) -> float:
    return sum(found.low <= truth <= found.high for found in intervals) / len(intervals)
