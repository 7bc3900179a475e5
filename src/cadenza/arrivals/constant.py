"""A metronome: the i-th arrival at i / rate, the first at once."""

import numpy as np
from numpy.typing import NDArray

from cadenza.clock import NS_PER_S


class Constant:
    """Equal gaps of 1 / rate; draws nothing."""

    def times_ns(self, rng: np.random.Generator, rate_per_s: float, n: int) -> NDArray[np.int64]:
        times: NDArray[np.float64] = np.arange(n, dtype=np.float64) * (NS_PER_S / rate_per_s)
        return np.rint(times).astype(np.int64)
