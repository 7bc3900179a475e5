"""When a point is measured enough: series whose intervals are known from their spread."""

import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from cadenza.measure import enough as module
from cadenza.measure.enough import Enough
from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from support.columns import MS, rec

FLOOR = 130  # of P95


def closed(slots: int = 1) -> Point:
    return Point(index=0, model="m", load=LoadLabel.CLOSED, concurrency=slots, auto=True)


def record(
    index: int,
    due_ms: float,
    ttft_ms: float = 50.0,
    tpot_ms: float = 10.0,
    tokens: int = 11,
    phase: Phase = Phase.MEASURE,
    outcome: Outcome = Outcome.OK,
) -> Record:
    first_ms = due_ms + ttft_ms
    events = [first_ms + k * tpot_ms for k in range(tokens)] if outcome is Outcome.OK else []
    return rec(index, due_ms, events, done=None if events else first_ms, phase=phase, outcome=outcome)


def one_slot(n: int, ttft: Callable[[int], float], tpot: Callable[[int], float], first: int = 0) -> list[Record]:
    """One request after the other, of eleven tokens."""
    records, at_ms = list[Record](), 0.0
    for k in range(first, first + n):
        records.append(record(k, at_ms, ttft(k), tpot(k)))
        at_ms += ttft(k) + 10 * tpot(k)
    return records


def needed(point: Point, records: Iterable[Record]) -> int | None:
    """After how many records it is met; None: never."""
    enough = Enough(point)
    for n, one in enumerate(records, start=1):
        enough.add(one)
        if enough.is_met():
            return n
    return None


def noise(mean: float, cv: float, seed: int) -> Callable[[int], float]:
    """Independent values; a gamma distribution, so that none is negative."""
    values = np.random.default_rng(seed).gamma(1 / cv**2, mean * cv**2, 20_000)
    return lambda k: float(values[k])


def test_a_calm_server_takes_what_its_percentile_needs() -> None:
    """5 % of spread: ± 1.96 · 5 % / √130 = 0.9 %."""
    assert needed(closed(), one_slot(400, noise(50, 0.05, 1), noise(10, 0.05, 2))) == FLOOR


@pytest.mark.parametrize("loud", ["ttft", "tpot"])
def test_one_mean_that_is_not_known_keeps_it_going(loud: str) -> None:
    """Independent values of spread 1: ± 5 % takes (1.96 / 0.05)² = 1,537 at least, with t and few batches some more."""
    ttft = noise(50, 1.0 if loud == "ttft" else 0.05, 1)
    tpot = noise(10, 1.0 if loud == "tpot" else 0.05, 2)
    n = needed(closed(), one_slot(6000, ttft, tpot))
    assert n is not None
    assert 1400 < n < 5000


def test_so_does_a_throughput_that_is_not_known() -> None:
    """TTFT and TPOT are the same for all; between requests the client was idle for times of spread 1."""
    gaps = noise(2000, 1.5, 3)
    at_ms, records = 0.0, list[Record]()
    for k in range(6000):
        records.append(record(k, at_ms))
        at_ms += 150 + gaps(k)
    n = needed(closed(), records)
    assert n is not None
    # The spread of a request's share of the time is 1.5 · 2000 / 2150 = 1.4: (1.96 · 1.4 / 0.05)² = 2,992.
    assert 2000 < n < 6000


def test_it_looks_seldom_and_stays_met(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def look(self: Enough, every: object) -> bool:
        looks.append(self._measured)
        return len(looks) == 4

    monkeypatch.setattr(Enough, "_is_known", look)
    enough = Enough(closed())
    for one in one_slot(1000, noise(50, 0.05, 1), noise(10, 0.05, 2)):
        enough.add(one)
        enough.is_met()
    # Each is a tenth more than the one before, rounded down, and one.
    assert looks == [130, 144, 159, 175]
    assert enough.is_met()


def test_only_measured_requests_count() -> None:
    records = one_slot(400, noise(50, 0.05, 1), noise(10, 0.05, 2))
    for one in records[:100]:
        one.phase = Phase.WARMUP
    point = closed()
    point.warmup = 100
    assert needed(point, records) == 100 + FLOOR
    for one in records:
        one.phase = Phase.COOLDOWN
    assert needed(point, records) is None


def test_failed_and_dropped_requests_do_not_fill_the_floor() -> None:
    records = one_slot(400, noise(50, 0.05, 1), noise(10, 0.05, 2))
    mixed = [
        record(k, one.intended_ns / MS, outcome=Outcome.HTTP_ERROR) if k % 5 == 0 else one
        for k, one in enumerate(records)
    ]
    n = needed(closed(), mixed)
    # Four of five have a TTFT: 130 of them are there after 162 at the earliest, and it looks at 175 next.
    assert n == 175
    dropped = [record(k, 0.0, outcome=Outcome.DROPPED) for k in range(500)]
    assert needed(closed(), dropped) is None


def test_a_server_that_always_fails_is_no_reason_to_go_on() -> None:
    assert needed(closed(), (record(k, 100.0 * k, outcome=Outcome.HTTP_ERROR) for k in range(500))) == FLOOR


@pytest.mark.parametrize(("n", "is_enough"), [(300, False), (2500, True)])
def test_the_order_of_the_records_does_not_matter(n: int, is_enough: bool) -> None:
    records = one_slot(n, noise(50, 0.6, 1), noise(10, 0.3, 2))
    for seed in range(4):
        random.Random(seed).shuffle(records)
        enough = Enough(closed())
        for one in records:
            enough.add(one)
        assert enough.is_met() is is_enough


def test_a_request_that_is_still_out_bounds_the_throughputs_window() -> None:
    """The one at place 10 is missing: only what was sent before it can be counted whole, which is too little."""
    records = one_slot(400, noise(50, 0.05, 1), noise(10, 0.05, 2))
    assert needed(closed(), [*records[:10], *records[11:]]) is None


def lockstep(slots: int, rounds: int, tokens: int = 11) -> list[Record]:
    """Equal lengths: slot k meets k others in its step and waits for their prefill, round after round."""
    round_ms = 50.0 + 10 * slots + 10 * (tokens - 1)
    return [
        record(r * slots + k, r * round_ms + k, 50.0 + 10 * k, tokens=tokens)
        for r in range(rounds)
        for k in range(slots)
    ]


def test_it_does_not_wait_for_what_more_requests_do_not_narrow() -> None:
    """The positions of sixteen slots of equal lengths are one draw: its interval is as wide after 500 rounds."""
    n = needed(closed(16), lockstep(16, 60))
    assert n is not None
    assert n <= 400  # ten rounds for batches, 25 at most


def test_it_waits_for_positions_that_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of 28 to 36 tokens have CV 0.081, and a round 2π² · CV² = 0.13 new choices of 16 / 3 positions.

    TTFT has CV 0.5: ± 5 % takes 384 of them, (384 · 3 / 16 − 1) / 0.13 = 550 rounds, or 8,800 requests.
    """
    rng, records = np.random.default_rng(1), list[Record]()
    for k in range(13_000):
        tokens = int(rng.integers(28, 36, endpoint=True))
        records.append(record(k, 10.0 * k, float(rng.gamma(4, 15)), 10.0, tokens))
    waited = needed(closed(16), records)
    monkeypatch.setattr(module, "phases_seen", lambda slots, lengths: np.inf)
    hasty = needed(closed(16), records)
    assert hasty is not None
    assert hasty < 4000
    assert waited is not None
    assert 8000 < waited < 12_000


def open_point(rate_per_s: float) -> Point:
    return Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=rate_per_s, auto=True)


def queue(rho: float, n: int, seed: int = 1) -> list[Record]:
    """M/D/1 with a service of 100 ms, in order of their ends, which is that of arrival."""
    gaps = np.random.default_rng(seed).exponential(100 / rho, n)
    free_ms, records = 0.0, list[Record]()
    for k, due_ms in enumerate(np.cumsum(gaps).tolist()):
        free_ms = max(free_ms, due_ms) + 100
        records.append(record(k, due_ms, free_ms - due_ms, 0.1, tokens=2))
    return records


@pytest.mark.parametrize("rho", [1.5, 2.0, 3.0])
def test_an_overloaded_open_loop_stops_early(rho: float) -> None:
    stopped = needed(open_point(10 * rho), queue(rho, 2000))
    assert stopped is not None
    assert 2 * FLOOR <= stopped < 3 * FLOOR  # two looks in a row


def test_a_busy_one_goes_on() -> None:
    """At 0.5 the wait of M/D/1 varies as much as its mean: 130 requests do not give it to 5 %."""
    n = needed(open_point(5.0), queue(0.5, 1500))
    assert n is None or n > 500


def test_arrivals_at_one_instant_are_no_window() -> None:
    records = [record(k, 0.0, 100.0 * (k + 1)) for k in range(200)]
    assert needed(open_point(10.0), records) is None
