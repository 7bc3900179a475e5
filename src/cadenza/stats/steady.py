"""Is a series steady, and from where on: cut its transient, then look for a drift or a jump in what is left.

Series are (n,) values in issue order; NaN and infinite ones are passed over, and places are counted in the series as it
was given. Nothing here looks at which part gives the better figure: only at where the series settles.
"""

import math
from typing import Literal

import msgspec
import numpy as np

from cadenza.stats.columns import Floats, Ints

# Values that a series needs before anything is said of it.
MIN_VALUES = 20
# Error of the first kind of either test.
SIGNIFICANT = 0.01
# Batches of a test: 40 where that leaves 5 values in each, since with 20 a shift is seen in the middle third only.
MIN_BATCHES, MAX_BATCHES, BATCH_VALUES = 20, 40, 5
# MSER takes means of 5. It leaves 5 of them and a fifth of all: a few that happen to lie close are no plateau.
MSER_VALUES, MSER_LEFT, MSER_LEFT_SHARE = 5, 5, 0.2
# A truncation up to here is a transient whatever its shape: an opening burst is flat, too.
BELIEVED_SHARE = 0.25


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A series that does not stay where it was, and how unlikely chance is to look like it.

    before, after   levels: for a trend the fitted line at the first and the last value, for a shift the means on both
                    sides, in the unit of the values
    at              of a shift, the place of the first value after it; None: a trend
    """

    kind: Literal["trend", "shift"]
    p_value: float
    before: float
    after: float
    at: int | None = None

    @property
    def relative(self) -> float:
        """**Relative change**: after / before − 1; infinite where the level was 0 before and is another after."""
        if self.before == 0:
            return 0.0 if self.after == 0 else math.copysign(math.inf, self.after)
        return self.after / self.before - 1


def transient_end(values: Floats) -> int | None:
    """**Transient** (MSER-5): how many leading values to leave out so that the mean of the rest is best known.

    Over the means Z of successive fives, the d leading ones go for which Σ (Z − mean)² / (m − d)² over the m − d that
    stay is least, the first of equals; 5 means and a fifth of all stay at least. The result is in values of the series
    as given. None: the minimum lies beyond half of the series, which then shows no level that it has settled at, or
    there are fewer than 20 values.
    (White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997; fives:
    White, Cobb and Spratt 2000.)
    """
    places = np.flatnonzero(np.isfinite(values))
    m = len(places) // MSER_VALUES
    if len(places) < MIN_VALUES:
        return None
    means = values[places[: m * MSER_VALUES]].reshape(m, MSER_VALUES).mean(axis=1)
    centred = means - np.median(means)  # exact zeros where the series is constant, small sums where it is not
    left = np.arange(m, 0, -1)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred**2)[::-1])[::-1]
    spread = np.maximum(squares - sums**2 / left, 0) / left**2
    most = m - max(MSER_LEFT, math.ceil(MSER_LEFT_SHARE * m))
    cut = int(np.argmin(spread[: max(most, 0) + 1]))
    if 2 * cut > m:
        return None
    return int(places[cut * MSER_VALUES]) if cut else 0


def find_trend(values: Floats) -> Change | None:
    """**Trend** (Mann-Kendall): later batch means above earlier ones, or below, more often than by chance, p < 0.01.

    S = Σ sign(Z_j − Z_i) over pairs i < j of m = 20 to 40 means of successive values, 5 or more in each from 100 values
    on. Its variance is corrected for ties and, as neighbours resemble each other, by the factor of Hamed and Rao (J.
    Hydrology 204, 1998) for autocorrelation, with ρ(i) = r^i, r the lag-1 autocorrelation of the means about their line
    (corrected for bias, 0 at least). Levels: the Theil-Sen line (median of pairwise slopes) at the first and the last
    value. None: no trend, or fewer than 20 values. Of 1,000 AR(1) series without a trend, lag-1 correlation 0, 0.7,
    0.85, 2, 9, 6 have one at n = 200, and 9, 6, 11 at n = 2,000.
    """
    batches = _Batches.of(values)
    return None if batches is None else _trend(batches)


def find_shift(values: Floats) -> Change | None:
    """**Shift** (Pettitt): the series jumps from a level to another at one place, p < 0.01.

    K = max over t of |Σ sign(Z_j − Z_i) over i ≤ t < j| of the means that `find_trend` takes, p = 2 exp(−6 K² / (m³ +
    m²)) (Pettitt, Applied Statistics 28, 1979), K² divided by (1 + r) / (1 − r), by which correlation makes such sums
    vary more; r as there, about the two levels. The place is known to a batch: of those near K's, where the two levels
    leave the least squares. None: no shift, or fewer than 20 values.

    Ranks know no size, so that a shift in the first or the last 19 % of the series (up to 32 % with fewer than 200
    values) is never found. Of the AR(1) series of `find_trend`, 10 in 1,000 at most are taken for shifted.
    """
    batches = _Batches.of(values)
    return None if batches is None else _shift(batches)


def examine_series(values: Floats, material: float = 0.05) -> tuple[int, Change | None]:
    """**Steady series**: (where it starts, the change that is left from there on; None: it is steady).

    The transient goes first (`transient_end`; None: nothing goes, and the whole is examined). One longer than a quarter
    of the series is looked at twice: unless a curve that bends into the level of the rest explains the whole better
    than one line, and better than two levels, a change of the whole that counts means that what went was part of a
    drift, or a level of its own, and it stays.

    A change counts if it is significant and |relative| is at least `material`. Where a trend and a shift both count, it
    is the one that leaves the lesser sum of squares about the batch means. Fewer than 20 values: (0, None).
    """
    start = transient_end(values) or 0
    if start > BELIEVED_SHARE * len(values) and not _settles(values, start):
        found = _find_change(values, material)
        if found is not None:
            return 0, found
    found = _find_change(values[start:], material)
    if found is not None and found.at is not None:
        found = msgspec.structs.replace(found, at=found.at + start)
    return start, found


def _find_change(values: Floats, material: float) -> Change | None:
    batches = _Batches.of(values)
    if batches is None:
        return None
    counted = [c for c in (_shift(batches), _trend(batches)) if c is not None and abs(c.relative) >= material]
    if len(counted) == 2 and _line_residual(batches) < _levels_residual(batches, _split(batches)[1]):
        counted.reverse()
    return counted[0] if counted else None


class _Batches(msgspec.Struct, frozen=True):
    """m means of successive finite values: their sizes, centres (in values of the series), and first places."""

    means: Floats
    sizes: Ints
    centres: Floats
    places: Ints
    last: int  # place of the last value

    @classmethod
    def of(cls, values: Floats) -> "_Batches | None":
        places = np.flatnonzero(np.isfinite(values))
        n = len(places)
        if n < MIN_VALUES:
            return None
        m = min(max(n // BATCH_VALUES, MIN_BATCHES), MAX_BATCHES)
        edges = np.arange(m + 1) * n // m
        sizes = np.diff(edges)
        kept = values[places]
        means = kept[0] + np.add.reduceat(kept - kept[0], edges[:-1]) / sizes
        centres = np.add.reduceat(places.astype(np.float64), edges[:-1]) / sizes
        return cls(means, sizes, centres, places[edges[:-1]], int(places[-1]))


def _trend(batches: _Batches) -> Change | None:
    means, m = batches.means, len(batches.means)
    s = float(np.triu(_signs(means)).sum())
    _, ties = np.unique(means, return_counts=True)
    variance = float(m * (m - 1) * (2 * m + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))) / 18
    if variance <= 0 or s == 0:
        return None
    first, second = np.triu_indices(m, 1)
    slope = float(np.median((means[second] - means[first]) / (batches.centres[second] - batches.centres[first])))
    level = float(np.median(means - slope * batches.centres))
    r = _lag1(means, level + slope * batches.centres, fitted=2)
    lag = np.arange(1, m)
    pairs = (m - lag) * (m - lag - 1) * (m - lag - 2)
    variance *= 1 + 2 * float(np.sum(pairs * r**lag)) / (m * (m - 1) * (m - 2))
    p = math.erfc((abs(s) - 1) / math.sqrt(2 * variance))
    if p >= SIGNIFICANT:
        return None
    return Change(kind="trend", p_value=p, before=level, after=level + slope * batches.last)


def _shift(batches: _Batches) -> Change | None:
    means, m = batches.means, len(batches.means)
    k, split = _split(batches)
    before, after = _levels(batches, split)
    # Three are fitted, but p errs on the safe side already.
    r = _lag1(means, np.where(np.arange(m) < split, before, after), fitted=1)
    p = min(1.0, 2 * math.exp(-6 * k**2 * (1 - r) / (1 + r) / (m**3 + m**2)))
    if p >= SIGNIFICANT:
        return None
    return Change(kind="shift", p_value=p, before=before, after=after, at=int(batches.places[split]))


def _signs(means: Floats) -> Floats:
    """(m, m) sign(Z_j − Z_i) at row i, column j."""
    return np.sign(means[None, :] - means[:, None])


def _split(batches: _Batches) -> tuple[float, int]:
    """Pettitt's K, and the first batch after the jump: of the splits near K's the one with the least squares.

    Where the two sides differ in length, K's own place leans to the middle by what ranks within a side happen to be.
    """
    m = len(batches.means)
    u = np.abs(np.cumsum(_signs(batches.means).sum(axis=1))[:-1])
    top = int(np.argmax(u)) + 1
    near = range(max(1, top - m // 8), min(m - 1, top + m // 8) + 1)
    return float(u[top - 1]), min(near, key=lambda split: _levels_residual(batches, split))


def _levels(batches: _Batches, split: int) -> tuple[float, float]:
    """Means of the values on both sides."""
    means, sizes = batches.means, batches.sizes
    before, after = np.average(means[:split], weights=sizes[:split]), np.average(means[split:], weights=sizes[split:])
    return float(before), float(after)


def _lag1(means: Floats, fit: Floats, fitted: int) -> float:
    """Lag-1 autocorrelation about a fit, 0 to 0.9, relieved of the bias that so many fitted parameters give it."""
    residuals, m = means - fit, len(means)
    residuals = residuals - residuals.mean()
    square = float((residuals**2).sum())
    if square <= 1e-20 * float(((means - means.mean()) ** 2).sum()):  # the fit is exact, and the rest is rounding
        return 0.0
    r = float((residuals[1:] * residuals[:-1]).sum()) / square
    return min(max((r * m + fitted) / (m - 3 - fitted), 0.0), 0.9)


def _settles(values: Floats, start: int) -> bool:
    """A parabola that ends in the level of the rest leaves less than a line over all, and than the best two levels."""
    batches, rest = _Batches.of(values), values[start:]
    if batches is None:
        return False
    lead = np.minimum(batches.centres / start - 1, 0)
    offset = batches.means - float(rest[np.isfinite(rest)].mean())
    bend = np.stack([lead, lead**2], axis=1)
    residual = float(((offset - bend @ np.linalg.lstsq(bend, offset, rcond=None)[0]) ** 2).sum())
    m = len(batches.means)
    return residual < min(_line_residual(batches), *(_levels_residual(batches, split) for split in range(1, m)))


def _line_residual(batches: _Batches) -> float:
    """Sum of squares of the batch means about their least-squares line."""
    x = batches.centres - batches.centres.mean()
    y = batches.means - batches.means.mean()
    return float(((y - x * float((x * y).sum()) / float((x**2).sum())) ** 2).sum())


def _levels_residual(batches: _Batches, split: int) -> float:
    """Sum of squares of the batch means about two levels."""
    before, after = _levels(batches, split)
    means = batches.means
    return float(((means[:split] - before) ** 2).sum() + ((means[split:] - after) ** 2).sum())
