"""A sample in a few numbers, with what it is too small to say."""

from typing import Any

import msgspec
import numpy as np

from cadenza.stats.columns import Floats
from cadenza.stats.intervals import Interval, mean_interval, quantile_interval, requests_needed

# The fewest samples of which one may exceed a bound and the percentile still be below it with 99 % confidence: the
# smallest n with P(Binomial(n, 1 − q) ≤ 1) ≤ 0.01, the early-stopping argument of MLPerf's LoadGen.
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
FLOORS = {"p90": 64, "p95": 130, "p99": 662}


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """n values and their mean, percentiles and maximum, in the unit of the values; NaN (null in JSON) where n is 0.

    undersampled   the percentiles for which n is below the floor (p90 64, p95 130, p99 662)
    n_effective    independent values that would say as much as these n of a correlated series; NaN: not determined
    intervals      95 % interval of each figure, by its name; a bound that cannot be determined is null
    """

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    undersampled: tuple[str, ...] = ()
    n_effective: float = float("nan")
    intervals: dict[str, tuple[float, float]] = {}

    @classmethod
    def of(cls, values: Floats, *, in_time_order: bool = False) -> "Distribution":
        """**Percentiles** interpolate linearly between order statistics (numpy's default). NaN values are left out.

        Below n = 64, 130 or 662 a p90, p95 or p99 is marked as under-sampled: with one value allowed above a bound, n
        is then too few to say with 99 % confidence that the percentile lies below it. Values `in_time_order` also
        get intervals that respect their autocorrelation (`stats.intervals`).
        """
        kept = values[np.isfinite(values)]
        below = tuple(name for name, floor in FLOORS.items() if len(kept) < floor)
        if not len(kept):
            nan = float("nan")
            return cls(n=0, mean=nan, p50=nan, p90=nan, p95=nan, p99=nan, max=nan, undersampled=below)
        p50, p90, p95, p99 = (float(p) for p in np.percentile(kept, [50, 90, 95, 99]))
        return cls(
            n=len(kept),
            mean=float(kept.mean()),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=float(kept.max()),
            undersampled=below,
            **(_intervals(kept) if in_time_order else {}),
        )

    def further(self, figure: str, relative: float) -> int | None:
        """How many more values would bring the figure's interval to ± `relative` of it; for a percentile the sample
        floor too. 0: it is there. None: not determinable.
        """
        low, high = self.intervals.get(figure, (float("nan"), float("nan")))
        interval = Interval(low=low, high=high, n=self.n, n_effective=self.n_effective)
        needed = requests_needed(interval, getattr(self, figure), relative)
        floor = max(0, FLOORS.get(figure, 0) - self.n)
        return floor or None if needed is None else max(needed, floor)


def _intervals(values: Floats) -> dict[str, Any]:
    mean = mean_interval(values)
    found = {"mean": (mean.low, mean.high)}
    for name, q in _QUANTILES.items():
        interval = quantile_interval(values, q)
        found[name] = (interval.low, interval.high)
    return {"n_effective": mean.n_effective, "intervals": found}
