"""How many requests were served as promised."""

import msgspec
import numpy as np

from cadenza.record import LoadLabel, Point
from cadenza.spec import Slo
from cadenza.stats.columns import Bools, Columns
from cadenza.stats.latency import latency_ms, tpot_ms, ttft_ms, user_ttft_ms
from cadenza.stats.window import Window, ended_inside


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met every bound of `slo`: per second of the window, how many of how many, and their share."""

    slo: Slo
    per_s: float
    good: int
    of: int
    share: float


def meets(point: Point, columns: Columns, slo: Slo) -> Bools:
    """**Good**: (n,) an `ok` request none of whose figures is above its bound.

    TTFT is user TTFT where the plan sets the times: what was promised was promised to a user. An answer too short to
    have a TPOT cannot break a bound on it; a failure meets nothing.
    """
    first = ttft_ms(columns) if point.load is LoadLabel.CLOSED else user_ttft_ms(columns)
    good = columns.ok.copy()
    for values, bound_ms in (
        (first, slo.ttft_ms),
        (tpot_ms(columns), slo.tpot_ms),
        (latency_ms(columns), slo.latency_ms),
    ):
        if bound_ms is not None:
            good &= ~(values > bound_ms)
    return good


def goodput(point: Point, columns: Columns, window: Window, slo: Slo) -> Goodput:
    """**Goodput**: measured requests that ended inside the window and met every bound / its length.

    Every request that ended inside counts in the share, failures as misses. NaN: the window has no length, or nothing
    ended in it.
    """
    ended = ended_inside(columns, window)
    good, of = int(np.sum(ended & meets(point, columns, slo))), int(ended.sum())
    nan = float("nan")
    return Goodput(
        slo=slo,
        per_s=good / window.length_s if window.length_s > 0 else nan,
        good=good,
        of=of,
        share=good / of if of else nan,
    )
