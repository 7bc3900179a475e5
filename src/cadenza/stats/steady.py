"""Does a series stay where it is: steps, dips, waves and drifts, against what correlated noise does by chance.

Series are (n,) values in dispatch order; NaN and infinite ones are passed over, and places are counted in the series as
it was given.
"""

import math
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from cadenza.stats.columns import Bools, Floats, Ints

# Values, and rounds of what is in flight together, that a series needs before it can be judged.
MIN_VALUES, MIN_ROUNDS = 20, 6
# Error of the first kind of the whole test: two series per point leave the point at 1 %, with a reserve for noise whose
# memory is longer than that of the AR(1) noise it is held against.
SIGNIFICANT = 0.003
# Batch means of a series, at most: the scan costs their square.
MAX_BATCHES = 100
# The shortest stretch that counts, as a share of the series and in values: a slow request is no change.
MIN_SHARE, MIN_STRETCH = 0.05, 6
# A slower or faster beginning up to this share of the series is called a transient, a longer one a level.
TRANSIENT_SHARE = 0.25
# Periods of a wave: below one it is a trend, above four the scan of six rounds would meet the rounds themselves.
PERIODS = np.arange(0.75, 3.51, 0.25)
# Looks that each test takes, i.e. what its p-value is multiplied by: as many independent ones as reproduce the share
# of white series found (docs/results/steady.md); those of stretches grow with the batches.
LOOKS_EDGE, LOOKS_INNER_PER_BATCH, LOOKS_WAVE, TESTS = 12, 2, 8, 4
# Lag-1 correlation above which the series has no more than a few independent values.
MAX_LAG1 = 0.97
# Of a shape that leaves less than this share of the variance, what is left is how normal scores bend it, and no noise:
# its lag-1 correlation counts up to 0.6.
CLEAR_SHARE, CLEAR_LAG1 = 0.1, 0.6
# Added to the lag-1 correlation for what AR(1) does not know, and of a closed loop for each unit of its lengths'
# coefficient of variation (`memory_of`).
LONGER_MEMORY, MEMORY_PER_CV = 0.1, 0.06

Kind = Literal["transient", "step", "dip", "bump", "wave", "trend"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A series that does not stay where it was, and how unlikely noise is to look like it.

    p_value         of the whole test: corrected for every stretch, frequency and shape that it looks at
    before, after   levels in the unit of the values. transient, step: before and after the place of the change; dip,
                    bump: outside and inside; trend: the line at its ends; wave: its first and its second extreme
    start, stop     the values [start, stop) that differ. transient: 0 to its end; step: from it to the end; trend and
                    wave: the whole series
    periods         of a wave: how many the series holds
    """

    kind: Kind
    p_value: float
    before: float
    after: float
    start: int
    stop: int
    periods: float | None = None

    @property
    def relative(self) -> float:
        """**Relative change**: after / before − 1; infinite where the level was 0 before and is another after."""
        if self.before == 0:
            return 0.0 if self.after == 0 else math.copysign(math.inf, self.after)
        return self.after / self.before - 1


class _Batches(msgspec.Struct, frozen=True):
    """m means of `size` successive scores, centred; `places` (n,) are those of the values in the series as given."""

    scores: Floats
    size: int
    values: Floats
    places: Ints
    shortest: int


class _Fit(msgspec.Struct, frozen=True):
    """A shape that a test has found: p-value, residual sum of squares, parameters; [begin, end) in batches."""

    kind: Literal["edge", "inner", "wave", "trend"]
    p_value: float
    residual: float
    fitted: int
    begin: int
    end: int
    periods: float = 0.0


def can_judge(n: int, round_size: float = 1) -> bool:
    """**Judged**: n values suffice to look for a change: 20, and six rounds of `round_size` requests in flight."""
    return n >= MIN_VALUES and n >= MIN_ROUNDS * round_size


def closed_round(slots: int, lengths: Floats) -> int:
    """**Round of the test** in a closed loop: ⌊C · (1 + CV²)^¼⌋ requests, C = `slots`.

    `lengths` (n,) output tokens of its requests, CV their coefficient of variation. Shorter than the C · (1 + CV²) over
    which those in flight are replaced (`intervals.round_of`), six of which few runs have; `memory_of` is for the rest.
    """
    return max(1, math.floor(slots * math.pow(1 + _variation(lengths) ** 2, 0.25)))


def memory_of(slots: int, lengths: Floats) -> float:
    """**Longer memory** of a closed loop: 0.1 + 0.06 · CV · (1 − 2 / C), added to the lag-1 correlation of its series.

    A long answer holds its slot for many rounds, so fewer requests join meanwhile and the step time stays lower: the
    noise remembers this for longer than one lag says. With two slots a batch is one request, whose own scatter hides
    it. Both this and `closed_round` were chosen in simulation (docs/results/steady.md). No length: 0.1.
    """
    return LONGER_MEMORY + MEMORY_PER_CV * _variation(lengths) * max(0.0, 1 - 2 / max(1, slots))


def _variation(lengths: Floats) -> float:
    """Coefficient of variation; 0 of none."""
    mean = float(lengths.mean()) if len(lengths) else 0.0
    return float(lengths.std()) / mean if mean > 0 else 0.0


def find_change(
    values: Floats, *, round_size: float = 1, material: float = 0.05, memory: float = LONGER_MEMORY
) -> Change | None:
    """**Change**: the series does not keep one level, p < 0.003 over all that is looked at, and by `material` at least.

    The values' normal scores are averaged in at most 100 batches of half a round or of whole rounds (`round_size`
    requests: C of a closed loop, the mean in flight of an open one). Four shapes are fitted to the batch means by least
    squares: two levels, over every place of the step (transient, step); a stretch of another level, over every stretch
    of 5 % of the series, and the lesser of three rounds and a twelfth of it, at least (dip, bump); a sine, over 0.75 to
    3.5 periods (wave); a line (trend). Neighbours resemble each other, so each statistic is held against the variance
    that AR(1) noise gives it (of a mean over k batches, or at a frequency), whose lag-1 correlation r is that of the
    residuals about the fit, corrected for the bias of the fit and raised by `memory` and 0.6 to 2.6 standard errors,
    2.6 from r = 0.6 on. p-values are those of Student's t or of F for that noise, times the number of looks.

    A change counts if it is significant and |relative| is at least `material`; of several it is the one with the least
    Bayes information criterion. Levels are means without the lowest and highest tenth, of a sine or a line fitted to
    values within Tukey's outer fences. None: no such change, or too few values (`can_judge`). What it sees
    and how often it is wrong: docs/results/steady.md. (Scan statistics: Siegmund, Ann. Stat. 16, 1988; van der Waerden
    scores; AR(1) as the null of climate series: Schulz and Mudelsee, Computers & Geosciences 28, 2002.)
    """
    places = np.flatnonzero(np.isfinite(values))
    if not can_judge(len(places), round_size):
        return None
    batches = _batch(values[places], places, round_size)
    if not np.any(batches.scores):
        return None
    y, shortest, m = batches.scores, batches.shortest, len(batches.scores)
    scans = (_scan(y, shortest, memory, inner=False), _scan(y, shortest, memory, inner=True))
    found = (*scans, _wave(y, memory), _trend(y, memory))
    fits = [fit for fit in found if fit is not None]
    fits.sort(key=lambda fit: m * math.log(max(fit.residual, 1e-12)) + fit.fitted * math.log(m))
    for fit in fits:
        p = min(1.0, TESTS * fit.p_value)
        if p < SIGNIFICANT:
            change = _describe(batches, fit, p)
            if abs(change.relative) >= material:
                return change
    return None


def _batch(values: Floats, places: Ints, round_size: float) -> _Batches:
    n, around = len(values), max(1, round(round_size))
    half = -(-around // 2)
    size = max(-(-n // MAX_BATCHES), half)
    if size > half:  # else the places within a round would beat against the batches: a wave
        size = -(-size // around) * around
    m = n // size
    scores = _scores(values)[: m * size].reshape(m, size).mean(axis=1)
    shortest = max(math.ceil(MIN_STRETCH / size), math.ceil(MIN_SHARE * m), math.ceil(min(3 * around, n / 12) / size))
    return _Batches(scores - scores.mean(), size, values, places, shortest)


def _scores(values: Floats) -> Floats:
    """Normal scores: Φ⁻¹((rank − ½) / n), mean ranks where values are equal, by Tukey's lambda approximation."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    share = ((np.cumsum(counts) - counts / 2) / len(values))[inverse]
    return np.asarray(4.91 * (share**0.14 - (1 - share) ** 0.14), dtype=np.float64)


def _noise(y: Floats, residuals: Floats, fitted: int, memory: float) -> tuple[float, float, float]:
    """Lag-1 correlation of AR(1) noise, on the safe side; its variance; degrees of freedom.

    `fitted` parameters, each of which takes its share of slow movement away, lower r by about one over the number of
    residuals each; the mean lowers it by (1 + 3 r) / m (Kendall, Biometrika 41, 1954).
    """
    m, square = len(residuals), float((residuals**2).sum())
    r = float((residuals[1:] * residuals[:-1]).sum()) / square if square > 1e-12 else 0.0
    r += (fitted + 1 + 3 * max(r, 0.0)) / m
    most = CLEAR_LAG1 if square < CLEAR_SHARE * float((y**2).sum()) else MAX_LAG1
    errors = 0.6 + 2 * min(max((r - 0.2) / 0.4, 0.0), 1.0)
    r = min(max(r + memory + errors * math.sqrt(max(1 - r * r, 0.0) / m), 0.0), most)
    shocks = residuals[1:] - r * residuals[:-1]
    left = m - 2 - fitted
    variance = max(float((shocks**2).sum()) / left / (1 - r * r), 1e-12)
    return r, variance, left * (1 - 0.8 * r * r)  # r is estimated, too, and costs the more the nearer it is to 1


def _two_sided(square: float, freedom: float) -> float:
    """P(t² ≥ square), Student's t, by Wallace's transformation to a normal (Ann. Math. Stat. 30, 1959)."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(square / freedom))
    return math.erfc(z / math.sqrt(2))


def _mean_variance(m: int, r: float) -> Floats:
    """(m,) variance of the mean of k = 1 … m successive values of AR(1) noise of variance 1."""
    k = np.arange(1, m + 1)
    return np.asarray(((1 + r) / (1 - r) - 2 * r * (1 - r**k) / (k * (1 - r) ** 2)) / k, dtype=np.float64)


@lru_cache(maxsize=64)
def _stretches(m: int, shortest: int, inner: bool) -> tuple[Ints, Ints]:
    """Begins and ends of the stretches that a scan looks at: those that begin the series, or those within it."""
    begin, end = (grid.ravel() for grid in np.indices((m + 1 if inner else 1, m + 1)))
    kept = (end - begin >= shortest) & (m - (end - begin) >= shortest)
    if inner:
        kept &= (begin > 0) & (end < m)
    return begin[kept], end[kept]


def _scan(y: Floats, shortest: int, memory: float, *, inner: bool) -> _Fit | None:
    """The stretch whose mean differs most from that of the rest; not `inner`: only those that begin the series."""
    m = len(y)
    begin, end = _stretches(m, shortest, inner)
    if not len(begin):
        return None
    long = end - begin
    total = np.concatenate([[0.0], np.cumsum(y)])
    square = ((total[end] - total[begin]) * m / (long * (m - long))) ** 2
    r, place = 0.0, 0
    for _ in range(3):  # the place depends on r, and r on the place
        spread = _mean_variance(m, r)
        place = int(np.argmax(square / (spread[long - 1] + spread[m - long - 1])))
        inside = _inside(m, int(begin[place]), int(end[place]))
        residuals = y - np.where(inside, y[inside].mean(), y[~inside].mean())
        r, variance, freedom = _noise(y, residuals, fitted=2 if inner else 1, memory=memory)
    spread = _mean_variance(m, r)
    ratio = float(square[place] / (spread[long[place] - 1] + spread[m - long[place] - 1])) / variance
    looks = LOOKS_INNER_PER_BATCH * m if inner else LOOKS_EDGE
    return _Fit(
        kind="inner" if inner else "edge",
        p_value=looks * _two_sided(ratio, freedom),
        residual=float((residuals**2).sum()),
        fitted=3 if inner else 2,
        begin=int(begin[place]),
        end=int(end[place]),
    )


def _inside(m: int, begin: int, end: int) -> Bools:
    return (np.arange(m) >= begin) & (np.arange(m) < end)


@lru_cache(maxsize=64)
def _waves(m: int) -> Floats:
    """(periods, m, 2) orthonormal sine and cosine about their means, at the middles of m batches."""
    angle = 2 * np.pi * PERIODS[:, None] * (np.arange(m) + 0.5) / m
    pairs = np.stack([np.cos(angle), np.sin(angle)], axis=2)
    return np.asarray(np.linalg.qr(pairs - pairs.mean(axis=1, keepdims=True))[0], dtype=np.float64)


def _wave(y: Floats, memory: float) -> _Fit:
    """The sine that explains most. F of its two amplitudes against the AR(1) spectrum at its frequency."""
    m, waves = len(y), _waves(len(y))
    parts = np.einsum("pmk,m->pk", waves, y)
    best = int(np.argmax((parts**2).sum(axis=1)))
    residuals = y - waves[best] @ parts[best]
    r, variance, freedom = _noise(y, residuals, fitted=2, memory=memory)
    spectrum = (1 - r * r) / (1 - 2 * r * math.cos(2 * math.pi * float(PERIODS[best]) / m) + r * r)
    ratio = float((parts[best] ** 2).sum()) / (2 * variance * spectrum)
    p = (1 + 2 * ratio / freedom) ** (-freedom / 2)  # of F(2, freedom), exactly
    return _Fit("wave", LOOKS_WAVE * p, float((residuals**2).sum()), 3, 0, m, float(PERIODS[best]))


def _trend(y: Floats, memory: float) -> _Fit:
    """The least-squares line: t of its slope."""
    m = len(y)
    line = np.arange(m) - (m - 1) / 2
    line /= math.sqrt(float((line**2).sum()))
    part = float(line @ y)
    residuals = y - part * line
    r, variance, freedom = _noise(y, residuals, fitted=1, memory=memory)
    p = _two_sided(part * part * (1 - r) / (1 + r) / variance, freedom)
    return _Fit("trend", p, float((residuals**2).sum()), 1, 0, m)


def _describe(batches: _Batches, fit: _Fit, p: float) -> Change:
    values, places, m = batches.values, batches.places, len(batches.scores)
    n = len(values)
    if fit.kind in ("wave", "trend"):
        before, after = _extremes(values, fit)
        kind: Kind = "wave" if fit.kind == "wave" else "trend"
        stop = int(places[-1]) + 1
        periods = fit.periods if kind == "wave" else None
        return Change(
            kind=kind, p_value=p, before=before, after=after, start=int(places[0]), stop=stop, periods=periods
        )
    begin, end = fit.begin * batches.size, n if fit.end == m else fit.end * batches.size
    within, rest = _level(values[begin:end]), _level(np.concatenate([values[:begin], values[end:]]))
    if fit.kind == "inner":
        kind = "dip" if within < rest else "bump"
        return _stretch(kind, p, rest, within, places, begin, end)
    if end <= TRANSIENT_SHARE * n:
        return _stretch("transient", p, within, rest, places, 0, end)
    return _stretch("step", p, within, rest, places, end, n)


def _stretch(kind: Kind, p: float, before: float, after: float, places: Ints, begin: int, end: int) -> Change:
    start, stop = int(places[begin]), int(places[end - 1]) + 1
    return Change(kind=kind, p_value=p, before=before, after=after, start=start, stop=stop)


def _level(values: Floats) -> float:
    """Mean without the lowest and the highest tenth."""
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _extremes(values: Floats, fit: _Fit) -> tuple[float, float]:
    """First and second extreme of the sine or line that fits the values within Tukey's outer fences best."""
    n = len(values)
    place = (np.arange(n) + 0.5) / n
    angle = 2 * np.pi * fit.periods * place
    shape = np.stack([np.cos(angle), np.sin(angle)], axis=1) if fit.kind == "wave" else place[:, None]
    design = np.column_stack([np.ones(n), shape])
    low_quarter, high_quarter = np.percentile(values, [25, 75])
    fence = 3 * (high_quarter - low_quarter)  # Tukey's outer fence
    bounded = np.clip(values, low_quarter - fence, high_quarter + fence)
    line = design @ np.linalg.lstsq(design, bounded, rcond=None)[0]
    low, high = int(np.argmin(line)), int(np.argmax(line))
    return float(line[min(low, high)]), float(line[max(low, high)])


def examine_series(values: Floats, material: float = 0.05) -> tuple[int, Change | None]:
    """The change of the whole series, for a window that still asks where the series starts: always at 0."""
    return 0, find_change(values, material=material)
