"""From a run's points to the rows of the embedded engine's measured law: what a server did at each load."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from cadenza.stats import latency
from cadenza.stats.columns import Columns, Floats, Ints
from cadenza.stats.concurrency import level_at
from cadenza.stats.intervals import t_quantile

# As many as the engine deals before it begins anew (`engine.laws.timing.Deck`): so many draws give the mean exactly.
SHARES = 32
# Points whose loads differ by less than this, as a fraction, are one row.
SAME_LOAD = 0.02
NAN = float("nan")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit takes from one point: its measured `ok` requests.

    in_system    see `take_sample`
    ttft_ms, prompt_tok   (n,) of each request; NaN where the prompt's length is not known
    gap_ms       (k,) gaps between events per token of the request, pooled; not the first ones
    gap_level, gap_request   (k,) requests in flight at each gap's midpoint, and the request that it is of
    tpot_ms      mean TPOT, to hold the fit against
    tpot_each_ms   (m,) TPOT of each request that has one
    """

    in_system: float
    ttft_ms: Floats
    prompt_tok: Floats
    gap_ms: Floats
    gap_level: Ints
    gap_request: Ints
    tpot_ms: float
    tpot_each_ms: Floats


class Slope(msgspec.Struct, frozen=True):
    """TTFT's slope in ms per prompt token, with its interval; NaN: not determinable."""

    estimate: float
    low: float
    high: float

    @property
    def used(self) -> float:
        """The estimate where its interval lies above 0, else 0: a longer prompt is not read faster."""
        return self.estimate if self.low > 0 else 0.0


class FittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One load. Means in ms, TTFT's for a prompt of the fit's mean length; spreads as `spread` gives them.

    samples   which samples it was made from
    """

    samples: tuple[int, ...]
    in_system: float
    requests: int
    gaps: int
    ttft_ms: float
    step_ms: float
    ttft_spread: Floats
    step_spread: Floats


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by rising load; `prompt_tok` the mean prompt of all requests, NaN where it is not known."""

    rows: tuple[FittedRow, ...]
    prompt_tok: float
    slope: Slope


def take_sample(columns: Columns) -> Sample | None:
    """**Load of a fit**: requests in flight, averaged over the midpoints of the gaps between tokens.

    C in a closed loop. In an open one the number swings, and a step or an arrival rather happens while it is high: with
    Poisson arrivals of mean L in flight both meet L + 1 (themselves included), which the time average would miss. So
    means of what is linear in the load belong to this average of it.

    **Gap per token**: event gap · (events − 1) / tokens after the first stamp, of its request: ITL where an event is a
    token, and its mean over a request is TPOT always. The first gap of a request is left out where there are others:
    from its own prefill to a step of all, it is half a step to one and a half, and in the re-simulation it comes by
    itself. In a run without cooldown the gaps after the last dispatch are left out: the load falls. None: no measured
    request has a TPOT above 0.
    """
    ttft, tpot = latency.ttft_ms(columns), latency.tpot_ms(columns)
    inside = columns.measured & columns.ok & (ttft > 0)
    counted = inside & (tpot > 0)
    if not counted.any():
        return None
    owner = columns.event_owner()
    held = np.ones(len(owner), dtype=bool)
    if not columns.cooldown.any():
        until_ms = float(np.nanmax(columns.sent_ms))
        held = columns.event_ms <= until_ms if (columns.done_ms[counted] <= until_ms).any() else held
        counted &= (columns.done_ms <= until_ms) | held.all()
    mine = (owner[1:] == owner[:-1]) & inside[owner[1:]] & (tpot[owner[1:]] > 0) & held[1:]
    later = mine & (np.arange(1, len(owner)) > columns.event_start[owner[1:]] + 1)
    mine = later if later.any() else mine
    events = np.diff(columns.event_start)
    share = (events - 1) / columns.later_tok
    level = level_at(columns, (columns.event_ms[1:] + columns.event_ms[:-1])[mine] / 2)
    prompts = columns.prompt_tok if np.isfinite(columns.prompt_tok[inside]).all() else columns.aimed_tok
    return Sample(
        in_system=float(level.mean()),
        ttft_ms=ttft[inside],
        prompt_tok=prompts[inside],
        gap_ms=np.diff(columns.event_ms)[mine] * share[owner[1:][mine]],
        gap_level=level,
        gap_request=owner[1:][mine],
        tpot_ms=float(tpot[counted].mean()),
        tpot_each_ms=tpot[counted],
    )


def fit_rows(samples: Sequence[Sample]) -> Fitted:
    """The rows of `samples`, at least one, in any order. Loads within 2 % of one another are pooled."""
    groups = _group(samples)
    prompts = np.concatenate([sample.prompt_tok for sample in samples])
    known = bool(np.isfinite(prompts).all())
    slope = fit_slope([_join(samples, group) for group in groups]) if known else Slope(NAN, NAN, NAN)
    mean_tok = float(prompts.mean()) if known else NAN
    return Fitted(
        rows=tuple(_fit_row(samples, group, slope.used, mean_tok) for group in groups), prompt_tok=mean_tok, slope=slope
    )


def fit_slope(groups: Sequence[tuple[Floats, Floats]], level: float = 0.99) -> Slope:
    """**Slope of TTFT**: least squares of TTFT on prompt tokens within groups of equal load, in ms per token.

    `groups` holds (prompt_tok (n,), ttft_ms (n,)) of each load; both are taken from their group's mean, so that a load
    with longer prompts by chance says nothing. The interval is Student's, with the HC3 standard error (MacKinnon and
    White, J. Econometrics 29, 1985): TTFT scatters more under load, and a single long prompt must not decide alone.
    NaN: prompts are all as long, or there are too few, or one of them alone would decide.
    """
    kept = [(tok, ms) for tok, ms in groups if len(tok) > 1]
    if not kept:
        return Slope(NAN, NAN, NAN)
    x = np.concatenate([tok - tok.mean() for tok, _ in kept])
    y = np.concatenate([ms - ms.mean() for _, ms in kept])
    own = np.concatenate([np.full(len(tok), 1 / len(tok)) for tok, _ in kept])
    square = float((x * x).sum())
    degrees = len(x) - len(kept) - 1
    if not square > 0 or degrees < 1:
        return Slope(NAN, NAN, NAN)
    estimate = float((x * y).sum()) / square
    rest = 1 - own - x * x / square
    if rest.min() < 1e-9:
        return Slope(estimate, NAN, NAN)
    error = math.sqrt(float(np.square(x * (y - estimate * x) / rest).sum())) / square
    half = t_quantile((1 + level) / 2, degrees) * error
    return Slope(estimate, estimate - half, estimate + half)


def spread(values: Floats, shares: int = SHARES) -> Floats:
    """**Spread**: (shares,) the mean of each equal share of the sorted values, over the mean of all.

    It rises, and its own mean is 1, whatever the distribution: value i of n covers the quantiles from i / n to
    (i + 1) / n, and may fall into two shares by parts. `values` not empty, none negative, not all 0.
    """
    ordered = np.sort(values)
    n = len(ordered)
    edges = np.arange(shares + 1) * n / shares
    sums = np.interp(edges, np.arange(n + 1), np.concatenate([[0.0], np.cumsum(ordered)]))
    # Differences of sums are right to their last digits only, which must not make a share fall.
    rising: Floats = np.maximum.accumulate(np.maximum(np.diff(sums), 0.0))
    return rising * (shares / float(sums[-1]))


def _group(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    """Positions of the samples, by rising load, those of one load together."""
    groups: list[list[int]] = []
    for i in sorted(range(len(samples)), key=lambda i: samples[i].in_system):
        if groups and samples[i].in_system <= samples[groups[-1][0]].in_system * (1 + SAME_LOAD):
            groups[-1].append(i)
        else:
            groups.append([i])
    return [tuple(group) for group in groups]


def _join(samples: Sequence[Sample], group: Sequence[int]) -> tuple[Floats, Floats]:
    return (
        np.concatenate([samples[i].prompt_tok for i in group]),
        np.concatenate([samples[i].ttft_ms for i in group]),
    )


def _fit_row(samples: Sequence[Sample], group: tuple[int, ...], slope: float, mean_tok: float) -> FittedRow:
    prompts, ttft = _join(samples, group)
    if slope:
        ttft = np.maximum(ttft - slope * (prompts - mean_tok), 0.0)
    gaps = np.concatenate([samples[i].gap_ms for i in group])
    loads = np.array([samples[i].in_system for i in group])
    return FittedRow(
        samples=group,
        in_system=float(np.average(loads, weights=[len(samples[i].gap_ms) for i in group])),
        requests=len(ttft),
        gaps=len(gaps),
        ttft_ms=float(ttft.mean()),
        step_ms=float(gaps.mean()),
        ttft_spread=spread(ttft),
        step_spread=spread(gaps),
    )
