"""The same cell measured again: do the figures agree, and do they wander?"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from cadenza.stats.intervals import t_quantile


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over K repeats, in its own unit; null where it is undefined.

    low, high   95 % interval of the mean over repeats
    drift_pct   last against first, in per cent: what time did, since the load was the same
    """

    values: tuple[float, ...]
    mean: float
    low: float
    high: float
    drift_pct: float


def compare(values: Sequence[float]) -> Agreement:
    """**Agreement of repeats**: mean ± t · s / √K over the K repeats (K − 1 degrees of freedom).

    The interval within one point sees what varies during it; this one also what varies between points: heat, caches,
    a neighbour. Figures are not negative, so the lower bound is 0 at least. **Drift of repeats**: last / first − 1.
    Undefined values are left out; one value has no interval.
    """
    kept = np.array([value for value in values if math.isfinite(value)])
    nan = math.nan
    if not len(kept):
        return Agreement(values=tuple(values), mean=nan, low=nan, high=nan, drift_pct=nan)
    mean = float(kept.mean())
    half = nan
    if len(kept) > 1:
        half = t_quantile(0.975, len(kept) - 1) * float(kept.std(ddof=1)) / math.sqrt(len(kept))
    drift = 100 * float(kept[-1] / kept[0] - 1) if len(kept) > 1 and kept[0] else nan
    return Agreement(
        values=tuple(values),
        mean=mean,
        low=mean - half if half != half else max(0.0, mean - half),
        high=mean + half,
        drift_pct=drift,
    )
