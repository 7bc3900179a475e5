"""A sample in a few numbers, with what it is too small to say."""

import math
from typing import Any

import msgspec
import numpy as np

from cadenza.stats.columns import Floats
from cadenza.stats.intervals import Interval, mean_interval, quantile_interval, requests_needed

# The fewest samples of which one may exceed a bound and the percentile still be below it with 99 % confidence: the
# smallest n with P(Binomial(n, 1 − q) ≤ 1) ≤ 0.01, the early-stopping argument of MLPerf's LoadGen. Of a p99.9, which
# is no figure here, it is 6,636.
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
FLOORS = {"p90": 64, "p95": 130, "p99": 662}


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """n values and their mean, percentiles and maximum, in the unit of the values; NaN (null in JSON) where n is 0.

    undersampled   the percentiles for which n + censored is below the floor (p90 64, p95 130, p99 662)
    n_effective    independent values that would say as much as these n of a correlated series; NaN: not determined
    intervals      95 % interval of each figure, by its name; a bound that cannot be determined is null
    censored       further values of which only a lower bound is known: requests that never ended. They are not in n
    bounds         the figures that those could raise: lower bounds (≥), whose intervals have no upper end
    needed         further values until both ends of a figure's interval can be determined, where they cannot and it is
                   known how many that takes
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
    censored: int = 0
    bounds: tuple[str, ...] = ()
    needed: dict[str, int] = {}

    @classmethod
    def of(
        cls,
        values: Floats,
        *,
        in_time_order: bool = False,
        round_size: int = 1,
        phases: float = math.inf,
        censored: Floats | None = None,
    ) -> "Distribution":
        """**Percentiles** interpolate linearly between order statistics (numpy's default). NaN values are left out.

        Below n = 64, 130 or 662 a p90, p95 or p99 is marked as under-sampled: with one value allowed above a bound, n
        is then too few to say with 99 % confidence that the percentile lies below it. Values `in_time_order`, which is
        that of their dispatch, also get intervals that respect their autocorrelation; `round_size` and `phases` as in
        `stats.intervals`.

        **Censored** values (m,) are lower bounds of values that are not known, NaN: not even that, i.e. 0. All figures
        count them at their bound. Whatever would be another figure if they were infinite (the mean and the maximum
        always, a percentile where they reach it) is a lower bound: its name is in `bounds`, and its interval has no
        upper end. For the intervals they stand at the end of the series, where requests that never ended mostly are.
        """
        ended = values[np.isfinite(values)]
        least = np.zeros(0) if censored is None else np.nan_to_num(censored, nan=0.0)
        kept = np.concatenate([ended, least]) if len(least) else ended
        below = tuple(name for name, floor in FLOORS.items() if len(kept) < floor)
        if not len(kept):
            nan = float("nan")
            return cls(n=0, mean=nan, p50=nan, p90=nan, p95=nan, p99=nan, max=nan, undersampled=below)
        p50, p90, p95, p99 = (float(p) for p in np.percentile(kept, [50, 90, 95, 99]))
        found: dict[str, Any] = {"bounds": ("mean", *_raised(ended, kept), "max")} if len(least) else {}
        if in_time_order:
            found |= _intervals(kept, _unbounded(ended, kept), found.get("bounds", ()), round_size, phases)
        return cls(
            n=len(ended),
            mean=float(kept.mean()),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=float(kept.max()),
            undersampled=below,
            censored=len(least),
            **found,
        )

    @property
    def headline(self) -> str:
        """The highest of p50, p90, p95 and p99 whose sample floor n + censored reaches."""
        return next((name for name in reversed(_QUANTILES) if name not in self.undersampled), "p50")

    def further(self, figure: str, relative: float) -> int | None:
        """How many more values would bring the figure's interval to ± `relative` of it, or, where it has an end that
        cannot be determined, until it can; for a percentile the sample floor too. 0: it is there. None: not known.
        """
        low, high = self.intervals.get(figure, (float("nan"), float("nan")))
        interval = Interval(low=low, high=high, n=self.n + self.censored, n_effective=self.n_effective)
        needed = requests_needed(interval, getattr(self, figure), relative)
        if needed is None:
            needed = self.needed.get(figure)
        floor = max(0, FLOORS.get(figure, 0) - self.n - self.censored)
        return floor or None if needed is None else max(needed, floor)


def _unbounded(ended: Floats, kept: Floats) -> Floats:
    """The series with its censored values above all others."""
    if len(ended) == len(kept):
        return kept
    return np.concatenate([ended, np.full(len(kept) - len(ended), 2 * np.abs(kept).max() + 1)])


def _raised(ended: Floats, kept: Floats) -> list[str]:
    """The percentiles that censored values could raise."""
    ranks = [100 * q for q in _QUANTILES.values()]
    as_bound, above = np.percentile(kept, ranks), np.percentile(_unbounded(ended, kept), ranks)
    return [name for name, one, other in zip(_QUANTILES, as_bound, above, strict=True) if one != other]


def _intervals(
    values: Floats, above: Floats, bounds: tuple[str, ...], round_size: int, phases: float
) -> dict[str, Any]:
    """Of all figures. Lower ends are those with censored values at their bound, upper ends with these `above` all."""
    figures = {"mean": mean_interval(values, round_size=round_size, phases=phases)}
    ends = {"mean": figures["mean"].high}
    for name, q in _QUANTILES.items():
        figures[name] = quantile_interval(values, q, round_size=round_size, phases=phases)
        ends[name] = figures[name].high
        if above is not values:
            ends[name] = quantile_interval(above, q, round_size=round_size, phases=phases).high
    # An upper end that lies among the censored, which alone are above the largest value, is none.
    largest = values.max()
    found = {
        name: (one.low, ends[name] if name not in bounds and ends[name] <= largest else math.nan)
        for name, one in figures.items()
    }
    return {
        "n_effective": figures["mean"].n_effective,
        "intervals": found,
        "needed": {name: one.needed for name, one in figures.items() if one.needed and name not in bounds},
    }
