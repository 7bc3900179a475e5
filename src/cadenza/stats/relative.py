"""One point against the base of its curve: the smallest concurrency of the same model at the same rate setting.

Plain numbers in, plain numbers out, always from unrounded values: a quotient of rounded ones is off by a digit.
"""

from collections.abc import Sequence

ULTRA_FLAT_PCT = 5.0
STABLE_PCT = 12.0
CONTROLLED_PCT = 20.0


def speedup(tok_per_s: float, base_tok_per_s: float) -> float:
    """S_C = T_C / T_base.

    Unit: none. Population: the throughputs of the two points, each in its own window.
    NaN: either is NaN, or the base is 0. Source: Amdahl (1967), with throughput for inverse time.
    """
    return _quotient(tok_per_s, base_tok_per_s)


def efficiency(tok_per_s: float, base_tok_per_s: float, concurrency: int, base_concurrency: int) -> float:
    """Parallel efficiency: S_C / (C / C_base), computed from the throughputs, never from a rounded speedup.

    Unit: a fraction; 1 is perfect scaling, and above 1 is possible and worth an explanation.
    NaN: as for the speedup. Source: the definition.
    """
    return _quotient(tok_per_s * base_concurrency, base_tok_per_s * concurrency)


def drift_ms(tpot_ms: float, base_tpot_ms: float) -> float:
    """TPOT drift: mean TPOT at C − mean TPOT at the base.

    Unit: ms per token; positive: slower under load. NaN: either is NaN. Source: the definition.
    """
    return tpot_ms - base_tpot_ms


def drift_pct(tpot_ms: float, base_tpot_ms: float) -> float:
    """TPOT drift in percent of the base's mean TPOT.

    Unit: %. NaN: either is NaN, or the base is 0. Source: the definition.
    """
    return 100.0 * _quotient(tpot_ms - base_tpot_ms, base_tpot_ms)


def drift_class(pct: float) -> str | None:
    """The word for a drift: ultra-flat below 5 %, stable below 12 %, controlled below 20 %, else degraded.

    Unit: a word. The sign counts: a TPOT that falls is no degradation, and is ultra-flat. None: the drift is NaN.
    Source: the thresholds 5 and 20 from published sweeps of small servers, 12 between them; a convention.
    """
    if pct != pct:
        return None
    if pct < ULTRA_FLAT_PCT:
        return "ultra-flat"
    if pct < STABLE_PCT:
        return "stable"
    return "controlled" if pct < CONTROLLED_PCT else "degraded"


def spread_ms(tpots_ms: Sequence[float]) -> float:
    """Spread of a curve: its highest mean TPOT − its lowest, over all concurrencies, not only the last against the base.

    Unit: ms per token. NaN: no point. Source: the definition.
    """
    return max(tpots_ms) - min(tpots_ms) if tpots_ms else float("nan")


def spread_pct(tpots_ms: Sequence[float]) -> float:
    """Spread of a curve in percent of its lowest mean TPOT.

    Unit: %. NaN: no point, or the lowest is 0. Source: the definition.
    """
    return 100.0 * _quotient(spread_ms(tpots_ms), min(tpots_ms)) if tpots_ms else float("nan")


def _quotient(top: float, bottom: float) -> float:
    return top / bottom if bottom else float("nan")
