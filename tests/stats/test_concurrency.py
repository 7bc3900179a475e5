"""Little's law on records whose L, λ and W are known, and on servers that break it."""

import math

import numpy as np
import pytest

from cadenza.record import Phase, Record
from cadenza.stats.columns import Columns, Floats
from cadenza.stats.concurrency import little
from support.columns import rec


def lane(first: int, begin: float, count: int) -> list[Record]:
    """Answers of 110 ms back to back."""
    return [rec(first + k, begin + 110 * k, [begin + 110 * (k + 1)]) for k in range(count)]


def judged(records: list[Record]) -> bool:
    """Whether the window from the first to the last measured dispatch fails the check."""
    columns = Columns.of(records)
    sent = columns.sent_ms[columns.measured]
    residual, allowed = little(columns, float(sent.min()), float(sent.max()))
    return abs(residual) > allowed


def lengths(rng: np.random.Generator, law: str, n: int) -> Floats:
    """Of mean 1 s, in ms; heavy: lognormal with a coefficient of variation of 1.3."""
    if law == "fixed":
        return np.full(n, 1000.0)
    sigma = math.sqrt(math.log1p(1.3**2))
    return rng.uniform(500, 1500, n) if law == "uniform" else 1000 * rng.lognormal(-(sigma**2) / 2, sigma, n)


def closed(seed: int, law: str, slots: int, n: int) -> list[Record]:
    """`slots` independent lanes, in the middle of their lives; the first 4 slots requests are a warm-up."""
    rng = np.random.default_rng(seed)
    spans = lengths(rng, law, slots * n).reshape(slots, n)  # far more in each lane than are measured
    sent = np.cumsum(spans, axis=1) - spans - rng.uniform(0, 1000, (slots, 1))
    order = np.argsort(sent, axis=None)[: 6 * slots + n]
    rows = zip(sent.ravel()[order].tolist(), spans.ravel()[order].tolist(), strict=True)
    return [phased(i, 4 * slots, n, at, span) for i, (at, span) in enumerate(rows)]


def opened(seed: int, law: str, load: float, n: int) -> list[Record]:
    """Poisson arrivals, `load` in flight on average, none of which waits (M/G/∞)."""
    rng, warmup = np.random.default_rng(seed), round(6 * load)
    sent = np.cumsum(rng.exponential(1000 / load, n + 2 * warmup))
    spans = lengths(rng, law, len(sent))
    rows = zip(sent.tolist(), spans.tolist(), strict=True)
    return [phased(i, warmup, n, at, span) for i, (at, span) in enumerate(rows)]


def phased(index: int, warmup: int, n: int, at: float, span: float) -> Record:
    phase = Phase.WARMUP if index < warmup else Phase.MEASURE if index < warmup + n else Phase.COOLDOWN
    return rec(index, at, [at + span], phase=phase)


def test_by_hand() -> None:
    """Two lanes of 110 ms: L = 2, λ = 20 in 1,100 ms, W = 110 ms."""
    columns = Columns.of([*lane(0, 0, 10), *lane(10, 0, 10)])
    assert little(columns, 0, 1100)[0] == pytest.approx(0)


def test_the_edges_by_hand() -> None:
    """Two in flight throughout, 10 ms to go for each at 1,090: 2 · 1,090 + 20 is 20 requests of 110 ms."""
    columns = Columns.of([*lane(0, 0, 10), *lane(10, 0, 10)])
    assert little(columns, 0, 1090) == pytest.approx((0, 0.05))
    # From 55 on the first two belong to L for 55 ms each: 2 · 1,035 − 110 + 20 = 18 · 110.
    assert little(columns, 55, 1090)[0] == pytest.approx(0)


def test_records_that_the_population_lacks() -> None:
    """Beside a lane of 110 ms one that takes all of it and does not count: L = 2, λ = 11 in 1,100 ms, W = 110 ms."""
    slow = rec(10, 0, [1100], phase=Phase.WARMUP)
    columns = Columns.of([*lane(0, 0, 10), slow])
    assert little(columns, 0, 1100)[0] == pytest.approx((2 - 11 / 1100 * 110) / 2)


def test_nothing_to_judge() -> None:
    columns = Columns.of(lane(0, 0, 10))
    assert np.isnan(little(columns, 5000, 6000)).all()
    assert np.isnan(little(columns, 5, 5)).all()
    assert np.isnan(little(Columns.of([]), 0, 1)).all()


# Healthy: at most 1 %; of 60 at 1 %, 4 or more have a chance of 0.3 %.


@pytest.mark.parametrize("law", ["fixed", "uniform", "heavy"])
@pytest.mark.parametrize("slots", [4, 16])
def test_a_healthy_closed_loop_passes(law: str, slots: int) -> None:
    assert sum(judged(closed(seed, law, slots, 128)) for seed in range(60)) <= 3


@pytest.mark.parametrize("law", ["fixed", "uniform", "heavy"])
@pytest.mark.parametrize("load", [4, 16])
def test_a_healthy_open_loop_passes(law: str, load: float) -> None:
    assert sum(judged(opened(seed, law, load, 128)) for seed in range(60)) <= 3


# Broken.


def without(records: list[Record], share: float) -> list[Record]:
    """The longest answers are counted out of the population."""
    spans = sorted(row.done_ns - row.sent_ns for row in records if row.done_ns and row.sent_ns is not None)
    most = spans[int((1 - share) * len(spans))]
    for row in records:
        if row.done_ns is not None and row.sent_ns is not None and row.done_ns - row.sent_ns > most:
            row.phase = Phase.COOLDOWN
    return records


@pytest.mark.parametrize(("law", "share"), [("uniform", 0.3), ("heavy", 0.1)])
@pytest.mark.parametrize("seed", range(10))
def test_long_answers_left_out_are_noticed(law: str, share: float, seed: int) -> None:
    assert judged(without(closed(seed, law, 16, 500), share))
    assert judged(without(opened(seed, law, 8, 500), share))


@pytest.mark.parametrize("seed", range(10))
def test_answers_counted_only_if_they_ended_early_are_noticed(seed: int) -> None:
    """Heavy lengths, 64 slots: those still out at the last dispatch are the long ones."""
    records = closed(seed, "heavy", 64, 256)
    end = max(row.sent_ns or 0 for row in records if row.phase is Phase.MEASURE)
    for row in records:
        if (row.done_ns or 0) > end and row.phase is Phase.MEASURE:
            row.phase = Phase.COOLDOWN
    assert judged(records)


@pytest.mark.parametrize("seed", range(10))
def test_a_backlog_that_grows_is_another_checks(seed: int) -> None:
    """One server, 1.5 times its capacity: all that were sent are counted, so that the law holds (El-Taha, Stidham)."""
    rng = np.random.default_rng(seed)
    sent, ends, free = np.cumsum(rng.exponential(1000, 500)), [], 0.0
    for at, span in zip(sent.tolist(), rng.uniform(1000, 2000, 500).tolist(), strict=True):
        free = max(free, at) + span
        ends.append(free)
    assert not judged([rec(i, at, [end]) for i, (at, end) in enumerate(zip(sent.tolist(), ends, strict=True))])
