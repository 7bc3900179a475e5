"""Laws fitted to one published sweep: they reproduce its table, prefill beside the steps, and claim nothing else.

Structs are the profile's tables, the classes the laws over them. Two fits of the same 45 values:

    fit B (ten parameters, rms 1.36 %, safe beyond the last row)
        TPOT(C) = t0 · (1 + q · max(0, C − 8) / 8) · (1 + b if C = 2)
        TTFT(C) = alpha · t0 · (1 + beta · (√C − 1))
    fit D (fifteen, rms 0.62 %, not to be used beyond C = 16)
        TPOT(C) = (t0 + q · (C / 16)³) · (1 + b if C = 2)
        TTFT(C) = a + beta · (√C − 1)

Their last parameter, phi, is the share of a run that its client's window saw: no business of a server's. Around the
means lies the table's own spread, interpolated between its rows.
"""

import math

import msgspec

from cadenza.clock import NS_PER_MS
from cadenza.engine.laws.timing import Shape, between, shape
from cadenza.hardware.batch import Batch

_HINGE = 8
_LAST = 16


class CalibratedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published row: (mean, P50, P99) in ms of TTFT over requests and of token gaps, at one concurrency."""

    concurrency: int
    ttft_ms: tuple[float, float, float]
    tpot_ms: tuple[float, float, float]


class FitB(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's part of fit B: `t0_ms` its step alone, `growth` (q) the share a step gains from 8 to 16 requests.

    ttft_steps (alpha), ttft_growth (beta) and pair_bump (b) are the same for all models of a sweep.
    """

    t0_ms: float
    growth: float
    ttft_steps: float
    ttft_growth: float
    pair_bump: float

    def step_ms(self, in_system: int) -> float:
        mean_ms = self.t0_ms * (1 + self.growth * max(0, in_system - _HINGE) / _HINGE)
        return mean_ms * (1 + self.pair_bump) if in_system == 2 else mean_ms

    def ttft_ms(self, in_system: int) -> float:
        return self.ttft_steps * self.t0_ms * (1 + self.ttft_growth * (math.sqrt(in_system) - 1))


class FitD(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's part of fit D: `t0_ms`, what is added to it at C = 16, TTFT alone, and its growth with √C − 1."""

    t0_ms: float
    growth_ms: float
    ttft_alone_ms: float
    ttft_growth_ms: float
    pair_bump: float

    def step_ms(self, in_system: int) -> float:
        mean_ms = self.t0_ms + self.growth_ms * (in_system / _LAST) ** 3
        return mean_ms * (1 + self.pair_bump) if in_system == 2 else mean_ms

    def ttft_ms(self, in_system: int) -> float:
        return self.ttft_alone_ms + self.ttft_growth_ms * (math.sqrt(in_system) - 1)


class Calibrated:
    """A fit's means, with the spread of the published `rows` around them (or none)."""

    def __init__(self, fit: FitB | FitD, rows: tuple[CalibratedRow, ...], noise: bool = True) -> None:
        self._fit = fit
        self._noise = noise
        self._ttft_shapes = [(float(row.concurrency), shape(*row.ttft_ms)) for row in rows]
        self._step_shapes = [(float(row.concurrency), shape(*row.tpot_ms)) for row in rows]
        self._known: dict[tuple[bool, int], tuple[float, Shape]] = {}

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return self._draw(False, batch.sequences, quantile)

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int:
        """The published TTFT; the table does not know prompts' lengths, so `prompt_tok` changes nothing."""
        return self._draw(True, in_system, quantile)

    def request_ns(self) -> int:
        """0: the published TTFT has it in it."""
        return 0

    def _draw(self, prefill: bool, in_system: int, quantile: float) -> int:
        known = self._known.get((prefill, in_system))
        if known is None:
            mean_ms = self._fit.ttft_ms(in_system) if prefill else self._fit.step_ms(in_system)
            form = between(self._ttft_shapes if prefill else self._step_shapes, in_system)
            known = self._known[prefill, in_system] = (mean_ms * NS_PER_MS, form)
        mean_ns, form = known
        return round(mean_ns * form.at(quantile)) if self._noise else round(mean_ns)
