"""The domain of a fitted profile: under which loads and lengths its server was measured. Beyond it, it extrapolates."""

import math
from typing import Literal

import msgspec

# The figures whose errors a fit records: ttft (means only), tpot (one value a request) or itl (gaps per token), and
# which statistic of it.
FIGURES = ("ttft_mean", "tpot_mean", "tpot_p50", "tpot_p95", "tpot_p99", "itl_p50", "itl_p95", "itl_p99")


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lengths in tokens of the measured `ok` requests.

    mean    lowest and highest mean of a point: what a law of the load alone was measured at
    range   shortest and longest of a single request
    """

    mean: tuple[float, float]
    range: tuple[float, float]

    def __post_init__(self) -> None:
        for name in ("mean", "range"):
            low, high = getattr(self, name)
            if not 0 <= low <= high < math.inf:
                raise ValueError(f"{name} has to be two numbers of at least 0, the lower one first")


class Domain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a profile was measured. Empty or None: not recorded, as in older profiles.

    in_system          requests in flight at each row of the fit, rising; see `analysis.fitting.take_sample`
    peak_in_flight     most requests in flight at any moment of the fitted points
    loads              OPEN, CAPPED, CLOSED: those that were measured
    arrivals           arrival laws of the open and capped points, as `--arrivals` spells them
    rates_per_s        their lowest and highest rate
    prompt_tok         as the server counted them; aimed_prompt_tok: as the prompt source aimed at
    output_tok         as the answers had them
    holdout            loads: each interior row was left out and predicted; blocks: fewer than three rows, so half of
                       each point was left out (no interpolation is tested then); empty: not recorded
    holdout_pct        figure → the largest out-of-sample error, in %, with its sign; keys: `FIGURES`
    rows_pct           the same in-sample, at the rows themselves: what the law does not keep even there
    """

    in_system: tuple[float, ...]
    peak_in_flight: int | None = None
    loads: tuple[Literal["OPEN", "CAPPED", "CLOSED"], ...] = ()
    arrivals: tuple[str, ...] = ()
    rates_per_s: tuple[float, ...] = ()
    prompt_tok: Lengths | None = None
    aimed_prompt_tok: Lengths | None = None
    output_tok: Lengths | None = None
    holdout: str = ""
    holdout_pct: dict[str, float] = {}
    rows_pct: dict[str, float] = {}

    @property
    def recorded(self) -> bool:
        """False: only the rows' loads are known."""
        return bool(self.loads)
