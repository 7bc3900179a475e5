"""Burstier or steadier than Poisson: gaps gamma distributed with shape K and mean 1 / rate."""

import numpy as np
from numpy.typing import NDArray

from cadenza.arrivals.arrival import accumulate_ns


class Gamma:
    """Gaps have CV 1 / sqrt(K): K < 1 bursts, K = 1 is Poisson in law, K > 1 steadier (vLLM's `burstiness`).

    Over long windows the count's variance is mean / K. Starts with a gap, as a renewal process that has just renewed.
    """

    def __init__(self, shape: float) -> None:
        self.shape = shape

    def times_ns(self, rng: np.random.Generator, rate_per_s: float, n: int) -> NDArray[np.int64]:
        return accumulate_ns(rng.standard_gamma(self.shape, n), 1.0 / (rate_per_s * self.shape))
