"""What a fit is worth where it was not measured: rows or halves of points are left out, and predicted by the law."""

from collections.abc import Sequence

import msgspec
import numpy as np

from cadenza.analysis.fitting import SHARES, Fitted, Sample, fit_rows, take_sample
from cadenza.domain import FIGURES
from cadenza.engine.laws.measured import Measured, MeasuredFit, MeasuredRow
from cadenza.engine.laws.timing import Deck
from cadenza.stats.columns import Columns, Floats

# Fewer rows than this have no interior one to leave out.
MIN_ROWS = 3
# Halves are made of so many stretches of a point, in turns: a stretch is long against the noise between requests, and
# a server that changed over the point shows in both halves.
BLOCKS = 8
_TILES = (np.arange(SHARES) + 0.5) / SHARES


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """One load left out of the fit and predicted by it.

    kind          loads: the whole row was left out; blocks: half of the requests of each point were; rows: nothing was
    samples       positions of the samples that it is made of
    measured, predicted   figure → ms, by `FIGURES`
    """

    kind: str
    in_system: float
    samples: tuple[int, ...]
    requests: int
    measured: dict[str, float]
    predicted: dict[str, float]

    def error_pct(self, figure: str) -> float:
        """(predicted − measured) / measured, in %. NaN: one of them is not known, or nothing took any time."""
        measured, predicted = self.measured[figure], self.predicted[figure]
        return 100 * (predicted / measured - 1) if measured > 0 else float("nan")


def hold_out(samples: Sequence[Sample], halves: Sequence[tuple[Sample, Sample] | None]) -> list[HeldOut]:
    """**Out-of-sample error** of a fit: every interior row predicted by a fit of the others.

    With fewer than three rows there is none to interpolate: the odd blocks of each point are predicted by a fit of the
    even ones (`split_sample`), which tests the law at a load that it knows. `halves` has a pair for each sample, None
    where it cannot be split. Empty: nothing can be held out.
    """
    rows = fit_rows(samples).rows
    if len(rows) >= MIN_ROWS:
        return [
            _predict(
                "loads",
                law_of(fit_rows([one for i, one in enumerate(samples) if i not in row.samples])),
                [samples[i] for i in row.samples],
                row.samples,
            )
            for row in rows[1:-1]
        ]
    pairs = [(i, pair) for i, pair in enumerate(halves) if pair is not None]
    if not pairs:
        return []
    law = law_of(fit_rows([fitted for _, (fitted, _) in pairs]))
    return [_predict("blocks", law, [held], (i,)) for i, (_, held) in pairs]


def reproduce(samples: Sequence[Sample]) -> list[HeldOut]:
    """**In-sample error** of a fit: every row against the law fitted to all of them, itself included.

    Means are right by construction. Percentiles are not: TPOT's follow from steps that all requests share, and a tail
    within the slowest 1/32 of the gaps is one value.
    """
    fitted = fit_rows(samples)
    law = law_of(fitted)
    return [_predict("rows", law, [samples[i] for i in row.samples], row.samples) for row in fitted.rows]


def split_sample(columns: Columns) -> tuple[Sample, Sample] | None:
    """(fitted, held out): the even and the odd ones of eight blocks of the measured requests, in order of dispatch.

    In blocks and not at random: neighbours share the steps of a batch, so that a random half predicts the other one
    better than it would any request of another hour. None: one of them has no TPOT.
    """
    order = np.argsort(columns.sent_ms, kind="stable")
    order = order[columns.measured[order] & columns.ok[order]]
    block = np.zeros(len(columns), dtype=np.int64)
    block[order] = np.arange(len(order)) * BLOCKS // max(1, len(order))
    even, odd = (
        take_sample(msgspec.structs.replace(columns, measured=columns.measured & (block % 2 == side)))
        for side in (0, 1)
    )
    return None if even is None or odd is None else (even, odd)


def law_of(fitted: Fitted) -> Measured:
    """The law by `fitted`, without the rounding of a file."""
    rows = tuple(
        MeasuredRow(
            in_system=row.in_system,
            ttft_ms=row.ttft_ms,
            step_ms=row.step_ms,
            ttft_spread=tuple(row.ttft_spread.tolist()),
            step_spread=tuple(row.step_spread.tolist()),
        )
        for row in fitted.rows
    )
    known = fitted.prompt_tok >= 0
    slope = fitted.slope.used if known else 0.0
    return Measured(
        MeasuredFit(rows=rows, prompt_tok=fitted.prompt_tok if known else 0.0, ttft_ms_per_prompt_tok=slope)
    )


def _predict(kind: str, law: Measured, held: Sequence[Sample], positions: tuple[int, ...]) -> HeldOut:
    steps = [_predict_steps(law, sample) for sample in held]
    measured = _figures(
        np.concatenate([sample.ttft_ms for sample in held]),
        np.concatenate([sample.tpot_each_ms for sample in held]),
        np.concatenate([sample.gap_ms for sample in held]),
    )
    predicted = _figures(
        np.concatenate([predict_ttft(law, sample) for sample in held]),
        np.concatenate([tpot for tpot, _ in steps]),
        np.concatenate([gaps for _, gaps in steps]),
    )
    gaps = [len(sample.gap_ms) for sample in held]
    return HeldOut(
        kind=kind,
        in_system=float(np.average([sample.in_system for sample in held], weights=gaps)),
        samples=positions,
        requests=sum(len(sample.ttft_ms) for sample in held),
        measured=measured,
        predicted=predicted,
    )


def predict_ttft(law: Measured, sample: Sample) -> Floats:
    """(32,) TTFT in ms at the sample's load and mean prompt, one value for each equal share of chance."""
    prompt_tok = float(np.mean(sample.prompt_tok))
    return np.array([law.ttft_ms(prompt_tok, sample.in_system, quantile) for quantile in _TILES])


def _predict_steps(law: Measured, sample: Sample) -> tuple[Floats, Floats]:
    """(TPOT of each request, each gap), in ms: what the law gives at the load that each gap met.

    Chance is dealt as the engine deals it: a gap takes the deck's next draw, in the order of the requests, so that a
    mean over 32 gaps of a request has none of the steps' spread left.
    """
    levels, at = np.unique(sample.gap_level, return_inverse=True)
    table = np.array([[law.step_ms(float(level), quantile) for quantile in _TILES] for level in levels])
    deck = Deck("holdout")
    order = np.array([int(deck.draw() * SHARES) for _ in range(SHARES)])
    gaps = table[at, order[np.arange(len(at)) % SHARES]]
    _, request = np.unique(sample.gap_request, return_inverse=True)
    return np.bincount(request, weights=gaps) / np.bincount(request), gaps


def _figures(ttft: Floats, tpot: Floats, gaps: Floats) -> dict[str, float]:
    figures = {"ttft_mean": float(ttft.mean()), "tpot_mean": float(tpot.mean())}
    for name, values in (("tpot", tpot), ("itl", gaps)):
        for percent in (50, 95, 99):
            figures[f"{name}_p{percent}"] = float(np.percentile(values, percent))
    return figures


def worst(held: Sequence[HeldOut]) -> dict[str, float]:
    """Figure → its largest error, in % with its sign; figures that are not known are left out."""
    figures: dict[str, float] = {}
    for figure in FIGURES:
        errors = [pct for one in held if (pct := one.error_pct(figure)) == pct]
        if errors:
            figures[figure] = max(errors, key=abs)
    return figures
