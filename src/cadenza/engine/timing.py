"""Timing laws: how long a prefill and a decode step last. Pure: chance comes in as a quantile, drawn from a `Deck`."""

import math
import random
from typing import NamedTuple, Protocol

from cadenza.clock import NS_PER_MS
from cadenza.engine.profile import Profile

_TILES = 32
_HINGE = 8


class TimingLaw(Protocol):
    """Time as a function of load; `quantile` in (0, 1) says how slow, among its like, this one is."""

    def ttft_ns(self, model: str, in_system: int, quantile: float) -> int:
        """Arrival to first token, in ns, while `in_system` requests (this one included) are in the system."""
        ...

    def step_ns(self, model: str, in_system: int, quantile: float) -> int:
        """One decode step, in ns: the gap between two tokens of every request that decodes."""
        ...


class Shape(NamedTuple):
    """A quantile function of mean 1: linear from `low` at 0 through `median` at 1/2 to `high` at 1."""

    low: float
    median: float
    high: float

    def at(self, quantile: float) -> float:
        if quantile < 0.5:
            return self.low + 2 * quantile * (self.median - self.low)
        return self.median + (2 * quantile - 1) * (self.high - self.median)


def shape(mean: float, p50: float, p99: float) -> Shape:
    """The shape through a published (mean, P50, P99): the upper line passes through P99, `low` makes the mean right.

    The mean of the two lines is (low + 2·median + high) / 4, which is 1 after division by `mean`.
    """
    median, at_99 = p50 / mean, p99 / mean
    high = median + (at_99 - median) * 0.5 / 0.49
    return Shape(low=4 - 2 * median - high, median=median, high=high)


class Deck:
    """Quantiles dealt without replacement: the midpoints of 32 equal strata, over and over in one shuffled order.

    Any 32 draws in a row hold each stratum once, and a `Shape` is linear in every one, so their mean is the law's
    own: a short run shows the mean, and chance only decides the order.
    """

    def __init__(self, seed: str) -> None:
        self._order = [(tile + 0.5) / _TILES for tile in range(_TILES)]
        random.Random(seed).shuffle(self._order)
        self._dealt = 0

    def draw(self) -> float:
        self._dealt += 1
        return self._order[(self._dealt - 1) % _TILES]


class Calibrated:
    """The law fitted to a profile's published sweep ("fit B"), with the sweep's own spread around it.

        TPOT(C) = t0 · (1 + q · max(0, C − 8) / 8) · (1 + b if C = 2)
        TTFT(C) = alpha · t0 · (1 + beta · (√C − 1))

    The fit's third part, phi, is the share of a run that its client's window saw: no business of a server's.
    Shapes are interpolated linearly in C between published rows, and kept beyond the first and the last.
    """

    def __init__(self, profile: Profile, noise: bool = True) -> None:
        self._law = profile.law
        self._models = {model.name: model for model in profile.models}
        self._ttft_shapes = {m.name: [(row.concurrency, shape(*row.ttft_ms)) for row in m.rows] for m in profile.models}
        self._step_shapes = {m.name: [(row.concurrency, shape(*row.tpot_ms)) for row in m.rows] for m in profile.models}
        self._noise = noise

    def ttft_ns(self, model: str, in_system: int, quantile: float) -> int:
        mean_ms = self._law.ttft_steps * self._models[model].t0_ms
        mean_ms *= 1 + self._law.ttft_growth * (math.sqrt(in_system) - 1)
        return self._spread(mean_ms, self._ttft_shapes[model], in_system, quantile)

    def step_ns(self, model: str, in_system: int, quantile: float) -> int:
        mean_ms = self._models[model].t0_ms
        mean_ms *= 1 + self._models[model].growth * max(0, in_system - _HINGE) / _HINGE
        if in_system == 2:
            mean_ms *= 1 + self._law.pair_bump
        return self._spread(mean_ms, self._step_shapes[model], in_system, quantile)

    def _spread(self, mean_ms: float, shapes: list[tuple[int, Shape]], in_system: int, quantile: float) -> int:
        factor = _between(shapes, in_system).at(quantile) if self._noise else 1.0
        return round(mean_ms * factor * NS_PER_MS)


def _between(shapes: list[tuple[int, Shape]], in_system: int) -> Shape:
    below_at, below = shapes[0]
    for at, here in shapes:
        if at >= in_system:
            if at in (in_system, below_at):
                return here
            share = (in_system - below_at) / (at - below_at)
            return Shape(*(lo + share * (hi - lo) for lo, hi in zip(below, here, strict=True)))
        below_at, below = at, here
    return below
