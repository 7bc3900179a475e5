"""One point against the base point of its model: scaling and drift."""

from collections.abc import Sequence
from typing import Literal

DriftClass = Literal["ultra-flat", "stable", "controlled", "degraded"]

# Upper bounds in per cent, the founding article's.
_CLASSES: tuple[tuple[float, DriftClass], ...] = ((5.0, "ultra-flat"), (12.0, "stable"), (20.0, "controlled"))
# A TPOT that falls with the load by more than this, in per cent, is named: the bound of ultra-flat.
FALLING_PCT = 5.0


def speedup(throughput: float, base_throughput: float) -> float:
    """**Speedup** S_C = T_C / T_base, from unrounded throughputs. The base is the model's smallest concurrency.

    Of closed loops only: under an open or capped loop the rate sets the throughput, and the quotient of two says
    nothing about the server.
    """
    return throughput / base_throughput if base_throughput > 0 else float("nan")


def efficiency(throughput: float, base_throughput: float, concurrency: int, base_concurrency: int) -> float:
    """**Scaling efficiency** S_C / (C / C_base), a fraction: 1 is perfect scaling. From the unrounded speedup; of
    closed loops only, as that is.
    """
    return speedup(throughput, base_throughput) / (concurrency / base_concurrency)


def drift_ms(tpot_mean_ms: float, base_tpot_mean_ms: float) -> float:
    """**Drift** of the cadence: mean TPOT(C) − mean TPOT(C_base), in ms."""
    return tpot_mean_ms - base_tpot_mean_ms


def drift_pct(tpot_mean_ms: float, base_tpot_mean_ms: float) -> float:
    """**Relative drift**: the drift in per cent of the base's mean TPOT."""
    return 100 * (tpot_mean_ms - base_tpot_mean_ms) / base_tpot_mean_ms if base_tpot_mean_ms > 0 else float("nan")


def spread_pct(tpot_means_ms: Sequence[float]) -> float:
    """**Spread** of a curve: its highest mean TPOT − its lowest, in per cent of the lowest. NaN: fewer than two points.

    The drift looks at two points of a curve, this at all of them: a curve may rise and fall between.
    """
    if len(tpot_means_ms) < 2 or not min(tpot_means_ms) > 0:
        return float("nan")
    return 100 * (max(tpot_means_ms) / min(tpot_means_ms) - 1)


def drift_class(pct: float) -> DriftClass | None:
    """**Drift class** of |pct|: ultra-flat below 5 %, stable below 12 %, controlled below 20 %, else degraded.

    The class is of the size: a TPOT that falls with the load is as far from flat as one that rises, and `falling_note`
    names what may be behind it. None: `pct` is undefined.
    """
    if pct != pct:
        return None
    return next((name for bound, name in _CLASSES if abs(pct) < bound), "degraded")


def falling_note(pct: float, base_concurrency: int) -> str | None:
    """**Falling TPOT**: a sentence where the drift is below −5 %, against C = `base_concurrency`; None elsewhere.

    More requests in a batch never make a decode step shorter, so that such a fall is a property of the measurement or
    of the path, not a gain.
    """
    if not pct < -FALLING_PCT:
        return None
    return (
        f"TPOT falls by {-pct:.1f} % from C = {base_concurrency}: possible causes are lumps (a gateway that sends "
        f"several tokens at once), a cold start at C = {base_concurrency}, or speculative decoding"
    )
