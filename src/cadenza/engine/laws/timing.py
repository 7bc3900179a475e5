"""What a timing law is, and how chance comes into it: as a quantile, dealt from a `Deck`. The laws are in `laws/`."""

import random
from typing import NamedTuple, Protocol

from cadenza.hardware.batch import Batch

_LEVELS = 5
_TILES = 1 << _LEVELS


class TimingLaw(Protocol):
    """Time as a function of load; `quantile` in (0, 1) says how slow, among its like, this one is."""

    def step_ns(self, batch: Batch, quantile: float) -> int:
        """One forward pass, in ns: the gap between two tokens of every sequence that decodes in it."""
        ...

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int | None:
        """Admission to first token, in ns, where the prefill runs beside the steps of the other sequences.

        `in_system` counts the admitted, this one included. None: the prefill is part of the steps.
        """
        ...

    def request_ns(self) -> int:
        """A request's arrival to the moment that the scheduler knows of it, in ns, once; steps go on meanwhile."""
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


def between(shapes: list[tuple[float, Shape]], at: float) -> Shape:
    """The shape at `at`: interpolated linearly between its neighbours, kept beyond the first and the last."""
    below_at, below = shapes[0]
    for here_at, here in shapes:
        if here_at >= at:
            if here_at in (below_at, at):
                return here
            share = (at - below_at) / (here_at - below_at)
            return Shape(*(lo + share * (hi - lo) for lo, hi in zip(below, here, strict=True)))
        below_at, below = here_at, here
    return below


class Deck:
    """Quantiles dealt without replacement: the midpoints of 32 equal strata, over and over in one scrambled order.

    Any 32 draws in a row hold each stratum once, and a `Shape` is linear in every one, so their mean is the law's
    own: a short run shows the mean, and chance only decides the order. The order is a van der Corput sequence under
    nested scrambling (Owen, "Randomly permuted (t,m,s)-nets", 1995): of any 2, 4, 8 or 16 draws from a multiple of
    that number on, each falls into another half, quarter, … So a run cut anywhere is off by little.
    """

    def __init__(self, seed: str) -> None:
        flip = random.Random(seed).getrandbits
        flips = [[flip(1) for _ in range(1 << level)] for level in range(_LEVELS)]
        self._order = []
        for at in range(_TILES):
            tile = 0
            for level in range(_LEVELS):
                tile = 2 * tile + ((at >> level & 1) ^ flips[level][at & ((1 << level) - 1)])
            self._order.append((tile + 0.5) / _TILES)
        self._dealt = 0

    def draw(self) -> float:
        self._dealt += 1
        return self._order[(self._dealt - 1) % _TILES]
