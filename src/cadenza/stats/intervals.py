"""How far a figure of a correlated series can be trusted: intervals from few, long batches.

Latencies of successive requests depend on one another, since they shared the server. An interval that takes them for
independent is too narrow: the 95 % interval of the mean of 2,000 values with lag-1 correlation 0.8 covers the truth
half of the time. Here the series, in order of dispatch, is cut into few long batches whose means hardly depend on one
another; they spread as the mean does (Schmeiser, Batch size effects in the analysis of simulation output, Oper. Res.
30, 1982). A batch holds two rounds at least (`round_of`); where no cut into `MIN_BATCHES` of those is possible, the
interval is not determinable: its bounds are NaN, and `needed` says how many values it takes.
`scripts/coverage.py` prints how often they hold the truth under a simulated batching server.
"""

import math
from functools import lru_cache
from statistics import NormalDist

import msgspec
import numpy as np

from cadenza.stats.columns import Floats

# Fewer values or events than this have no interval: batches of two or three say nothing of correlation.
MIN_VALUES = 20
# Long batches before many: 5 have t = 2.8, 10 have 2.3, and more hardly make it smaller.
BATCHES = (10, 8, 5)
MIN_BATCHES, MIN_ROUNDS_A_BATCH = 5, 2
# Lag-1 correlation of batch means (corrected for its bias, −1 / k) above which longer batches are taken, and above
# which the longest possible ones are still too short: not determinable.
MERGE_ABOVE, GIVE_UP_ABOVE = 0.2, 0.5
# Sub-batches that skewness is estimated from; each number of batches divides them.
_CELLS = 40
# In an open loop a backlog outlives a response time, by 1 / (1 − ρ)² or so: 4 at ρ = 0.5, 25 at 0.8. ρ is not known.
_OPEN_ROUNDS = 8
# From here on Student's t is the normal's expansion, to six digits at any level in use.
_MANY_DEGREES = 200


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Where the true figure lies with confidence `level`, in the figure's unit. A bound is NaN: not determinable.

    n             values (of a rate: events) that it rests on
    n_effective   independent values that would say as much, in [1, n]; NaN where both bounds are
    needed        further values until both bounds can be determined; 0: they are; None: not known
    """

    low: float
    high: float
    level: float = 0.95
    n: int
    n_effective: float
    needed: int | None = None


def round_of(in_flight: float, lengths: Floats, *, is_open: bool = False) -> int:
    """**Round**: requests over which those in flight are replaced: in flight · (1 + CV²), at least 1.

    `in_flight` is C in a closed loop, the mean number in an open one. A request in flight is a draw in proportion to
    its length, so it stays E[L²] / E[L]² = 1 + CV² mean response times (renewal theory); `lengths` (n,) are output
    tokens. `is_open`: eight times that, since what a burst leaves behind drains at the rate of the spare capacity.
    """
    kept = lengths[np.isfinite(lengths)]
    mean = float(kept.mean()) if len(kept) else math.nan
    spread = float(kept.var()) / mean**2 if mean > 0 else 0.0
    rounds = in_flight * (1 + spread) * (_OPEN_ROUNDS if is_open else 1)
    return max(1, math.ceil(rounds)) if math.isfinite(rounds) else 1


def phases_seen(slots: int, lengths: Floats) -> float:
    """**Phases seen** of a closed loop: independent choices of the slots' relative positions that a run has passed.

    With equal lengths every slot returns at the same distance from the others for ever: requests that share the step
    of their prefill do so again in each round, and the run is one draw of `slots` positions, however long. Slots that
    meet share their value, so C slots count as C / 3, but as 4 at least. Lengths that differ mix: after k rounds the
    position has variance k · CV² in rounds squared, its first harmonic has decayed by exp(−2π² CV² k), and a run of k
    rounds has passed 1 + 2π² CV² k independent choices. `lengths` (n,) in tokens. Infinite for one slot, which has
    nobody to meet, and where no length is known.
    """
    kept = lengths[np.isfinite(lengths)]
    if slots < 2 or not len(kept) or not kept.mean() > 0:
        return math.inf
    spread = float(kept.var() / kept.mean() ** 2)
    return max(4.0, slots / 3) * (1 + 2 * math.pi**2 * spread * len(kept) / slots)


def mean_interval(values: Floats, level: float = 0.95, *, round_size: int = 1, phases: float = math.inf) -> Interval:
    """**Interval of a mean**: mean ± t · s of k batches (k − 1 degrees of freedom), s² the variance of batch means / k.

    `values` (n,) in order of dispatch; NaN and infinite ones are left out. k = 10, 8 or 5, the most with batches of two
    rounds (`round_of`) or more, and fewer where the lag-1 correlation φ of the batch means, corrected for its bias, is
    above 0.2. What is left of it widens the interval by √((1 + φ) / (1 − φ)) (as in Tafazzoli and Wilson, Skart, IIE
    Trans. 43, 2011). The side of the longer tail is 1 + 2γ times as long, γ the skewness of the mean as 40 sub-batches
    show it: a run that has seen few of the rare bursts is short of them in its mean and in its variance at once. The
    first-order term (Johnson, J. Am. Stat. Assoc. 73, 1978) is 0.84γ and moves both sides; few batches underestimate γ.

    Never narrower than the interval for independent values: batch means that spread less than those would are, among
    so few, more often luck than a load that evens itself out, and an error on the wide side is the lesser one. Nor
    than one of `phases` independent values (`phases_seen`). **Effective n** = n · (variance of the mean, were the
    values independent) / (its variance from batch means), clipped to [1, n] and to `phases`.

    NaN bounds: fewer than 20 values, or than five batches of two rounds; φ above 0.5 even then.
    """
    _check_share(level, "level")
    kept = values[np.isfinite(values)]
    n = len(kept)
    if short := _short(n, round_size):
        return _unknown(level, n, short)
    centred = kept - kept[0]  # a constant series becomes zeros exactly
    mean = float(centred.mean())
    centred -= mean
    spread = _spread(centred, float(np.square(centred).sum()) / (n - 1), level, round_size, phases)
    if spread is None:
        return _unknown(level, n, n)
    mean += float(kept[0])
    return Interval(
        low=mean - spread.below, high=mean + spread.above, level=level, n=n, n_effective=spread.effective, needed=0
    )


def quantile_interval(
    values: Floats, q: float, level: float = 0.95, *, round_size: int = 1, phases: float = math.inf
) -> Interval:
    """**Interval of a percentile**: the order statistics at q − h and q + h', where h and h' bound the share beyond it.

    `values` (n,) in order of dispatch; NaN and infinite ones are left out; 0 < q < 1. The share of values above is a
    mean, of ones and zeros in order of dispatch, and h and h' are the half-widths of its interval (`mean_interval`, but
    1 + γ on the side of the longer tail: no one is larger than the others), scaled by √(q (1 − q) / (p (1 − p))) where
    ties make the share p another than q. Order statistics interpolate linearly, as percentiles do.

    A bound is NaN where q − h or q + h' leaves (0, 1): the sample holds no value that could bound the percentile on
    that side. So a p99 has no upper bound below some 400 independent values. Both are NaN as those of a mean are,
    and where fewer than one phase is expected beyond the percentile, q (1 − q) · `phases` < 1.
    """
    _check_share(level, "level")
    _check_share(q, "q")
    kept = values[np.isfinite(values)]
    n = len(kept)
    if short := _short(n, round_size):
        return _unknown(level, n, short)
    if q * (1 - q) * phases < 1:
        return _unknown(level, n, None)
    beyond = (kept > np.quantile(kept, q)).astype(np.float64)
    p = float(beyond.mean())
    if p > 0:
        spread = _spread(beyond - p, p * (1 - p) * n / (n - 1), level, round_size, phases, tail=1.0)
        if spread is None:
            return _unknown(level, n, n)
        scale = math.sqrt(q * (1 - q) / (p * (1 - p)))
        below, above, effective = spread.below * scale, spread.above * scale, spread.effective
    else:  # all values up to the percentile and beyond are one: no spread to learn from
        effective = min(float(n), phases)
        below = above = _t_two_sided(level, _degrees(effective)) * math.sqrt(q * (1 - q) / max(1.0, effective - 1))
    low, high = (float(bound) for bound in np.quantile(kept, [max(q - below, 0.0), min(q + above, 1.0)]))
    # The half-widths fall as 1 / √n: from this factor on both lie within (0, 1).
    factor = max(below / q, above / (1 - q))
    return Interval(
        low=low if q > below else math.nan,
        high=high if q + above < 1 else math.nan,
        level=level,
        n=n,
        n_effective=effective,
        needed=0 if factor < 1 else None if effective >= phases else math.floor(n * factor**2) + 1 - n,
    )


def rate_interval(
    stamps_ms: Floats,
    weights: Floats,
    start_ms: float,
    end_ms: float,
    level: float = 0.95,
    *,
    min_slice_ms: float = 0.0,
) -> Interval:
    """**Interval of a throughput**: batch means over k equal time slices of (start, end], in weight per second.

    `stamps_ms` (n,) in any order, `weights` (n,) what each event brought (tokens, or ones), not negative. k = 10, 8 or
    5, the most with slices of `min_slice_ms` (the time of two rounds) or more and two events each; fewer, and wider,
    where the totals of neighbouring slices are correlated, as in `mean_interval`. Correlation below zero is no reason:
    it errs on the wide side. What keeps the load up or down for longer than a fifth of the window is not seen.

    May be narrower than for independent arrivals: a closed loop is more regular than those. **Effective n** here is
    n · (variance of the total, were arrivals independent: Σ w²) / (its variance from slices), clipped to [1, n]. The
    lower bound is 0 at least. NaN bounds: fewer than 20 events inside, no length, fewer than five slices, correlation
    above 0.5 even then.
    """
    _check_share(level, "level")
    inside = np.isfinite(weights) & (stamps_ms > start_ms) & (stamps_ms <= end_ms)
    stamps, brought = stamps_ms[inside], weights[inside]
    n, span_ms = len(stamps), end_ms - start_ms
    if n < MIN_VALUES or not math.isfinite(span_ms):
        return _unknown(level, n, None)
    if span_ms < MIN_BATCHES * min_slice_ms:
        return _unknown(level, n, math.ceil(n * (MIN_BATCHES * min_slice_ms / span_ms - 1)))
    slot = np.clip(np.ceil((stamps - start_ms) / span_ms * _CELLS).astype(np.int64) - 1, 0, _CELLS - 1)
    cells = np.bincount(slot, brought, _CELLS).astype(np.float64)
    most = min(n / 2, span_ms / min_slice_ms if min_slice_ms > 0 else math.inf)
    batched = _batched(cells, np.ones(_CELLS), most)
    if batched is None:
        return _unknown(level, n, n)
    k, variance = batched
    variance *= _CELLS**2  # of a cell's mean; the sum over the window is _CELLS of those
    total, per_s = float(cells.sum()), 1000 / span_ms
    half = _t_two_sided(level, k - 1) * math.sqrt(variance)
    skew = _skewness(cells, variance / _CELLS**2)
    return Interval(
        low=max(0.0, total - half * (1 + 2 * max(0.0, -skew))) * per_s,
        high=(total + half * (1 + 2 * max(0.0, skew))) * per_s,
        level=level,
        n=n,
        n_effective=_effective(n, float(np.square(brought).sum()), variance),
        needed=0,
    )


def requests_needed(interval: Interval, estimate: float, relative: float) -> int | None:
    """**Values still needed**: how many more bring the half-width down to `relative` · |estimate|. 0: it is there.

    The half-width, (high − low) / 2, falls as 1 / √n while the series goes on as it was. `relative` is a fraction above
    0. None: a bound is missing, or the estimate is 0 or NaN and no fraction of it is a width.
    """
    if not relative > 0:
        raise ValueError(f"relative half-width: expected a fraction above 0, got {relative}")
    half, target = (interval.high - interval.low) / 2, relative * abs(estimate)
    if not (math.isfinite(half) and math.isfinite(target)):
        return None
    if half <= target:
        return 0
    if not target > 0:
        return None
    return max(1, math.ceil(interval.n * (half / target) ** 2 * (1 - 1e-12)) - interval.n)


@lru_cache(maxsize=256)
def t_quantile(p: float, degrees: int) -> float:
    """**Student's t**: the value that a t variate with `degrees` ≥ 1 degrees of freedom stays below with probability p.

    The finite series of its distribution in θ = arctan(t / √degrees) (Abramowitz and Stegun 26.7.3 and 26.7.4), solved
    by bisection; above 200 degrees the expansion from the normal quantile (26.7.5). 0 < p < 1.
    """
    _check_share(p, "p")
    if degrees < 1:
        raise ValueError(f"degrees of freedom: expected at least 1, got {degrees}")
    if p < 0.5:
        return -t_quantile(1 - p, degrees)
    if degrees > _MANY_DEGREES:
        z = NormalDist().inv_cdf(p)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, degrees) < 2 * p - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _t_inside(angle: float, degrees: int) -> float:
    """P(|T| < √degrees · tan(angle))."""
    cosine, sine, odd = math.cos(angle), math.sin(angle), degrees % 2
    term = cosine if odd else 1.0
    series = term if degrees > 1 else 0.0
    for j in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        series += term
    return 2 / math.pi * (angle + sine * series) if odd else sine * series


class _Spread(msgspec.Struct, frozen=True):
    """Half-widths of a mean's interval on either side of it, and the effective n."""

    below: float
    above: float
    effective: float


def _short(n: int, round_size: int) -> int:
    """Further values that a series of n is short of before it has batches."""
    if round_size < 1:
        raise ValueError(f"round size: expected at least 1, got {round_size}")
    return max(0, max(MIN_VALUES, MIN_BATCHES * MIN_ROUNDS_A_BATCH * round_size) - n)


def _spread(
    centred: Floats, variance: float, level: float, round_size: int, phases: float, tail: float = 2.0
) -> _Spread | None:
    """Of a series of mean 0 and the given sample variance; None: its batches depend on one another.

    The side of the longer tail is 1 + `tail` · γ times as long.
    """
    n = len(centred)
    cells = _CELLS if n >= 2 * _CELLS else _CELLS // 2
    edges = np.arange(cells + 1) * n // cells
    sizes = np.diff(edges).astype(np.float64)
    sums = np.add.reduceat(centred, edges[:-1])
    batched = _batched(sums, sizes, n / (MIN_ROUNDS_A_BATCH * round_size))
    if batched is None:
        return None
    k, of_mean = batched
    independent = variance / n
    half = max(_t_two_sided(level, k - 1) * math.sqrt(of_mean), _t_two_sided(level, n - 1) * math.sqrt(independent))
    skew = _skewness(sums / sizes, of_mean)
    below, above = half * (1 + tail * max(0.0, -skew)), half * (1 + tail * max(0.0, skew))
    effective = _effective(n, independent, of_mean)
    if phases < n:
        least = _t_two_sided(level, _degrees(phases)) * math.sqrt(variance / phases)
        below, above, effective = max(below, least), max(above, least), min(effective, phases)
    return _Spread(below, above, effective)


def _batched(sums: Floats, sizes: Floats, most: float) -> tuple[int, float] | None:
    """The number of batches, `most` of them at most, and the variance of the mean that they give. None: correlated.

    `sums` and `sizes` are of consecutive cells, whose sizes differ by one at most. A batch is some of them.
    """
    cells, n = len(sums), float(sizes.sum())
    found = None
    for k in BATCHES:
        if cells % k or k > most:
            continue
        size = sizes.reshape(k, -1).sum(axis=1)
        means = sums.reshape(k, -1).sum(axis=1) / size
        means = means - sums.sum() / n
        # Weighted by their sizes the estimate stays unbiased for independent values.
        variance = float((size * means**2).sum()) / (k - 1) / n
        phi = _lag1(means) + 1 / k
        found = (k, variance * (1 + phi) / (1 - phi) if phi > 0 else variance) if phi <= GIVE_UP_ABOVE else None
        if phi <= MERGE_ABOVE:
            break
    return found


def _skewness(means: Floats, variance: float) -> float:
    """Of the overall mean, by the cells' means: γ / √(as many independent cells as the variance speaks of)."""
    centred = means - means.mean()
    largest = float(np.abs(centred).max())
    if not largest > 0:
        return 0.0
    scaled = centred / largest
    square = float((scaled**2).mean())
    skewness = float((scaled**3).mean()) / (square * math.sqrt(square))
    independent = square * largest**2 / (len(means) - 1)  # variance of the mean, were the cells so
    correlated = variance / independent if independent > 0 else 1.0
    return skewness / math.sqrt(len(means) / max(1.0, correlated))


def _degrees(values: float) -> int:
    return max(1, math.floor(values) - 1)


def _t_two_sided(level: float, degrees: int) -> float:
    return t_quantile((1 + level) / 2, degrees)


def _effective(n: int, independent: float, batched: float) -> float:
    """n over the autocorrelation time; n where nothing varies."""
    return float(n) if batched <= independent else max(1.0, n * independent / batched)


def _lag1(values: Floats) -> float:
    """Lag-1 autocorrelation; 0 of a constant series."""
    centred = values - values.mean()
    square = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / square if square > 0 else 0.0


def _unknown(level: float, n: int, short: int | None) -> Interval:
    """`short` values are missing; None: it is not known how many would do."""
    return Interval(low=math.nan, high=math.nan, level=level, n=n, n_effective=math.nan, needed=short)


def _check_share(share: float, name: str) -> None:
    if not 0 < share < 1:
        raise ValueError(f"{name}: expected a fraction between 0 and 1, got {share}")
