"""The grid: models × concurrency × rate, as points in the order in which they are measured."""

import math
from collections.abc import Sequence

from cadenza.record import LoadLabel, Point
from cadenza.spec import Spec

DEFAULT_REQUESTS = 128
# Enough rounds for intervals, and to see whether anything moves, whatever the concurrency.
_ROUNDS = 12
# The opening requests, of residual lengths, and one round after them: by then nothing remembers the start.
_WARMUP_ROUNDS = 2
# Of the response time without load, in an open loop: under load an answer takes longer.
_WARMUP_RESPONSES = 3


def is_auto(spec: Spec) -> bool:
    """Whether points are measured until that is enough."""
    if spec.duration_s is not None:
        return False
    return spec.requests == "auto" or (spec.requests is None and spec.engine is None)


def lay_out(spec: Spec, models: Sequence[str], response_s: float | None = None) -> list[Point]:
    """One point a cell, a model after the other. Concurrency alone is CLOSED, rates alone OPEN, both CAPPED.

    Repeats go over the whole grid of a model, every second time backwards: what rises with time, such as heat or the
    filling of a cache, then falls on other cells than what rises with the load, and shows as a drift between repeats.

    response_s   how long an answer of the usual length takes without load; None: not known
    """
    cells = [(c, r) for r in spec.rates_per_s or (None,) for c in spec.concurrency or (None,)]
    points: list[Point] = []
    for model in models:
        for repeat in range(spec.repeat):
            for concurrency, rate in cells[:: -1 if repeat % 2 else 1]:
                points.append(_point(spec, len(points), model, repeat, (concurrency, rate), response_s))
    return points


def _point(
    spec: Spec,
    index: int,
    model: str,
    repeat: int,
    cell: tuple[int | None, float | None],
    response_s: float | None,
) -> Point:
    concurrency, rate_per_s = cell
    planned, auto = None, is_auto(spec)
    if spec.duration_s is None and not auto:
        given = spec.requests if isinstance(spec.requests, int) else None
        planned = given or max(DEFAULT_REQUESTS, _ROUNDS * (concurrency or 1))
    return Point(
        index=index,
        model=model,
        repeat=repeat,
        load=_label(concurrency, rate_per_s),
        concurrency=concurrency,
        rate_per_s=rate_per_s,
        planned=planned,
        duration_s=spec.duration_s,
        auto=auto,
        warmup=_warmup(spec, concurrency, rate_per_s, response_s),
        cooldown_s=spec.cooldown_s,
        virtual=spec.virtual,
    )


def _label(concurrency: int | None, rate_per_s: float | None) -> LoadLabel:
    if rate_per_s is None:
        return LoadLabel.CLOSED
    return LoadLabel.OPEN if concurrency is None else LoadLabel.CAPPED


def _warmup(spec: Spec, concurrency: int | None, rate_per_s: float | None, response_s: float | None) -> int:
    """By default two requests a slot; without slots, three response times of arrivals, and one second at least.

    Never more than a fifth of what a duration holds.
    """
    if spec.warmup is not None:
        return spec.warmup
    if rate_per_s is None:
        return _WARMUP_ROUNDS * (concurrency or 1)
    seconds = max(1.0, _WARMUP_RESPONSES * (response_s or 0.0))
    if spec.duration_s is not None:
        seconds = min(seconds, spec.duration_s / 5)
    return max(1, math.ceil(rate_per_s * seconds))
