"""The measured law: as fast as a server was in a run, by rows that `cadenza fit` made from it."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from cadenza.clock import NS_PER_MS
from cadenza.domain import Domain
from cadenza.hardware.batch import Batch

Spread = tuple[float, ...]
_ROUNDED = 0.01


class MeasuredRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one load looked like.

    in_system      requests in flight, the mean over the moments at which tokens were made; C in a closed loop
    verdict        of the worst point in it: VALID or SUSPECT
    requests, gaps   how many first tokens, and how many gaps between tokens, were measured
    ttft_ms        mean time to the first token, for a prompt of the fit's `prompt_tok`
    step_ms        mean gap between two tokens of a request
    ttft_spread, step_spread   of each equal share of the values, from the fastest to the slowest, its mean over the
                   mean of all: rising, of mean 1, at least one. (1.0,) is no spread
    """

    in_system: float
    verdict: str = "VALID"
    requests: int = 0
    gaps: int = 0
    ttft_ms: float
    step_ms: float
    ttft_spread: Spread = (1.0,)
    step_spread: Spread = (1.0,)

    def __post_init__(self) -> None:
        for name in ("in_system", "ttft_ms", "step_ms"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} has to be a number above 0")
        _check_spread("ttft_spread", self.ttft_spread)
        _check_spread("step_spread", self.step_spread)


class MeasuredSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the rows come from. `simulated`: an embedded engine answered, and no server was measured."""

    run: str = ""
    started: str = ""
    server: str = ""
    cadenza: str = ""
    simulated: bool = False


class MeasuredFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data of the law, as a profile's `[models.measured]` holds it.

    rows                      by rising `in_system`
    prompt_tok                the mean prompt of the run; 0: the server did not count
    ttft_ms_per_prompt_tok    what a token of prompt more adds to the first token's time; 0: not distinguishable from 0
    slope_interval            its 99 % interval; empty: not determinable
    domain                    loads and lengths that were measured; None: not recorded
    """

    rows: tuple[MeasuredRow, ...]
    prompt_tok: float = 0.0
    ttft_ms_per_prompt_tok: float = 0.0
    slope_interval: tuple[float, ...] = ()
    source: MeasuredSource = MeasuredSource()
    domain: Domain | None = None

    def __post_init__(self) -> None:
        at = [row.in_system for row in self.rows]
        if not at or any(later <= earlier for earlier, later in pairwise(at)):
            raise ValueError("rows: at least one, and in_system has to rise from each to the next")
        if not (0 <= self.ttft_ms_per_prompt_tok < math.inf and 0 <= self.prompt_tok < math.inf):
            raise ValueError("prompt_tok and ttft_ms_per_prompt_tok have to be numbers of at least 0")


class Measured:
    """`TimingLaw` of one model, from its rows.

    Means are linear in the number in the system between rows, the first row's below it, and go on beyond the last row
    with the slope of the last two, if that is not negative. The law itself does not know the load that it is put
    under: `domain` is kept with the points of a run, and `analysis.extrapolation` names what lies outside of it.

    What drives a step is the gap between tokens, not TPOT. All requests of a batch share its step, so its spread is
    that of the gaps; TPOT is already a mean over a hundred steps, and steps drawn from its spread would give gaps
    that hardly scatter. The other way round it comes right: the mean of the gaps is the mean of TPOT (weighted by
    tokens), and what a re-simulation shows as TPOT's spread is what remains of the steps' after averaging. What makes
    one *request* slower than another for all of its tokens is not in the law.

    Prefill runs beside the steps: a first token's time is as the client saw it, with connecting, queueing at the server
    and waiting for a step in it.
    """

    def __init__(self, fit: MeasuredFit) -> None:
        at = [row.in_system for row in fit.rows]
        self.domain = fit.domain or Domain(in_system=tuple(at))
        self._step = _Curve(at, [row.step_ms for row in fit.rows], [row.step_spread for row in fit.rows])
        self._ttft = _Curve(at, [row.ttft_ms for row in fit.rows], [row.ttft_spread for row in fit.rows])
        self._prompt_tok = fit.prompt_tok
        self._per_tok_ms = fit.ttft_ms_per_prompt_tok

    def step_ns(self, batch: Batch, quantile: float) -> int:
        """One step's length, in ns, by how many requests are in the system (`batch.sequences`)."""
        return _ns(self.step_ms(batch.sequences, quantile))

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int | None:
        """Admission to the first token, in ns; never None, since what was measured includes the prefill."""
        return _ns(self.ttft_ms(prompt_tok, in_system, quantile))

    def request_ns(self) -> int:
        """0: the measured TTFT has it in it."""
        return 0

    def step_ms(self, in_system: float, quantile: float) -> float:
        """As `step_ns`, unrounded."""
        return self._step.ms(in_system, quantile)

    def ttft_ms(self, prompt_tok: float, in_system: float, quantile: float) -> float:
        """As `prefill_ns`, unrounded; never below 0, however short the prompt."""
        longer_ms = self._per_tok_ms * (prompt_tok - self._prompt_tok) if self._per_tok_ms else 0.0
        return max(0.0, self._ttft.ms(in_system, quantile) + longer_ms)


class _Curve:
    """A mean and its spread as functions of the number in the system, knots `at` rising."""

    def __init__(self, at: Sequence[float], means_ms: Sequence[float], spreads: Sequence[Spread]) -> None:
        self._at = at
        self._means_ms = means_ms
        self._spreads = [_centre(spread) for spread in spreads]
        rise = (means_ms[-1] - means_ms[-2]) / (at[-1] - at[-2]) if len(at) > 1 else 0.0
        self._beyond_ms = max(0.0, rise)

    def ms(self, in_system: float, quantile: float) -> float:
        above = bisect_right(self._at, in_system)
        if above == 0:
            return self._means_ms[0] * _pick(self._spreads[0], quantile)
        below = above - 1
        if above == len(self._at):
            mean_ms = self._means_ms[below] + self._beyond_ms * (in_system - self._at[below])
            return mean_ms * _pick(self._spreads[below], quantile)
        share = (in_system - self._at[below]) / (self._at[above] - self._at[below])
        low_ms = self._means_ms[below] * _pick(self._spreads[below], quantile)
        high_ms = self._means_ms[above] * _pick(self._spreads[above], quantile)
        return low_ms + share * (high_ms - low_ms)


def _pick(spread: Spread, quantile: float) -> float:
    return spread[min(int(quantile * len(spread)), len(spread) - 1)]


def _centre(spread: Spread) -> Spread:
    """Of mean 1 exactly: the digits of a file are rounded."""
    mean = math.fsum(spread) / len(spread)
    return tuple(value / mean for value in spread)


def _ns(ms: float) -> int:
    # A step or a prefill without length would stop the engine's clock; gaps of 0 come from tokens read together.
    return max(1, round(ms * NS_PER_MS))


def _check_spread(name: str, spread: Spread) -> None:
    if not spread or not all(0 <= value < math.inf for value in spread):
        raise ValueError(f"{name}: at least one number, none negative")
    if any(later < earlier for earlier, later in pairwise(spread)):
        raise ValueError(f"{name}: has to rise from the fastest share to the slowest")
    if abs(math.fsum(spread) / len(spread) - 1) > _ROUNDED:
        raise ValueError(f"{name}: its mean has to be 1")
