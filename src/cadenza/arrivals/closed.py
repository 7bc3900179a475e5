"""No plan of time: each request is due when a slot frees."""

import numpy as np
from numpy.typing import NDArray


class Closed:
    """All due at 0. The closed loop holds them back by its slots; there is no rate to speak of."""

    def times_ns(self, rng: np.random.Generator, rate_per_s: float, n: int) -> NDArray[np.int64]:
        return np.zeros(n, dtype=np.int64)
