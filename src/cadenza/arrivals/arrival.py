"""The plug point for arrival processes: when requests are due, as numbers made before the clock starts.

To add one: a file beside this, a test of the same name, a line in `ARRIVALS` (`arrivals/catalogue.py`).
"""

import copy
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cadenza.clock import NS_PER_S
from cadenza.errors import UsageError

MAX_ARRIVALS = 100_000_000


class Arrival(Protocol):
    """One law of arrivals. Pure: the same generator state gives the same times.

    Times are never rescaled to end at n / rate: that would take the variance out of the count, and hide the rate
    that was achieved. Prefix-stable: the first n of 2n times are the n times.
    """

    def times_ns(self, rng: np.random.Generator, rate_per_s: float, n: int) -> NDArray[np.int64]:
        """(n,) int64, ascending: nanoseconds from the start of the point to each arrival."""
        ...


def for_horizon(arrival: Arrival, rng: np.random.Generator, rate_per_s: float, horizon_s: float) -> NDArray[np.int64]:
    """All arrivals of an open-loop law before `horizon_s`: the beginning of what `times_ns` would give.

    Leaves `rng` as it was. Raises `UsageError` where that is more than `MAX_ARRIVALS`.
    """
    horizon_ns = round(horizon_s * NS_PER_S)
    expected = rate_per_s * horizon_s
    n = math.ceil(expected + 6 * math.sqrt(expected)) + 16 if math.isfinite(expected) else MAX_ARRIVALS + 1
    while n <= MAX_ARRIVALS:
        times_ns = arrival.times_ns(copy.deepcopy(rng), rate_per_s, n)
        if times_ns[-1] >= horizon_ns:
            return times_ns[: np.searchsorted(times_ns, horizon_ns)]
        n *= 2
    raise UsageError(
        f"{rate_per_s:g} arrivals per second for {horizon_s:g} s are more than {MAX_ARRIVALS:,}: "
        "lower the rate or the duration"
    )


def accumulate_ns(gaps: NDArray[np.float64], mean_gap_s: float) -> NDArray[np.int64]:
    """Gaps in units of their mean, as times in nanoseconds. Sums floats and rounds once, so that no error adds up."""
    return np.rint(np.cumsum(gaps) * (mean_gap_s * NS_PER_S)).astype(np.int64)
