"""Independent users: a Poisson process, gaps exponential with mean 1 / rate."""

import numpy as np
from numpy.typing import NDArray

from cadenza.arrivals.arrival import accumulate_ns


class Poisson:
    """The first arrival comes after a gap too, so that counts in any window are Poisson."""

    def times_ns(self, rng: np.random.Generator, rate_per_s: float, n: int) -> NDArray[np.int64]:
        return accumulate_ns(rng.standard_exponential(n), 1.0 / rate_per_s)
