"""The grid: models × concurrency × rate, as points in the order in which they are measured."""

from collections.abc import Sequence

from cadenza.record import LoadLabel, Point
from cadenza.spec import Spec

DEFAULT_REQUESTS = 128
# Enough rounds for a window between ramp and drain, whatever the concurrency.
_ROUNDS = 8


def lay_out(spec: Spec, models: Sequence[str]) -> list[Point]:
    """One point a cell, a model after the other. Concurrency alone is CLOSED, rates alone OPEN, both CAPPED.

    Repeats go over the whole grid of a model, every second time backwards: what rises with time, such as heat or the
    filling of a cache, then falls on other cells than what rises with the load, and shows as a drift between repeats.
    """
    cells = [(c, r) for r in spec.rates_per_s or (None,) for c in spec.concurrency or (None,)]
    points: list[Point] = []
    for model in models:
        for repeat in range(spec.repeat):
            for concurrency, rate in cells[:: -1 if repeat % 2 else 1]:
                points.append(_point(spec, len(points), model, repeat, concurrency, rate))
    return points


def _point(spec: Spec, index: int, model: str, repeat: int, concurrency: int | None, rate_per_s: float | None) -> Point:
    planned = None
    if spec.duration_s is None:
        planned = spec.requests or max(DEFAULT_REQUESTS, _ROUNDS * (concurrency or 1))
    return Point(
        index=index,
        model=model,
        repeat=repeat,
        load=_label(concurrency, rate_per_s),
        concurrency=concurrency,
        rate_per_s=rate_per_s,
        planned=planned,
        duration_s=spec.duration_s,
        warmup=_warmup(spec, concurrency, rate_per_s),
        virtual=spec.virtual,
    )


def _label(concurrency: int | None, rate_per_s: float | None) -> LoadLabel:
    if rate_per_s is None:
        return LoadLabel.CLOSED
    return LoadLabel.OPEN if concurrency is None else LoadLabel.CAPPED


def _warmup(spec: Spec, concurrency: int | None, rate_per_s: float | None) -> int:
    """By default one request a slot; without slots, one second of arrivals."""
    if spec.warmup is not None:
        return spec.warmup
    return concurrency if concurrency is not None else max(1, round(rate_per_s or 0))
