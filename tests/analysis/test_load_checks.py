"""Lockstep and silence against closed forms."""

import numpy as np
import pytest

from cadenza.analysis.finding import Verdict
from cadenza.analysis.load_checks import lockstep, silence
from cadenza.analysis.summary import summarise_point
from cadenza.record import Record
from cadenza.stats.columns import Columns
from support.columns import closed, rec


def test_all_at_once_is_one_and_evenly_spaced_is_none() -> None:
    starts = np.arange(12.0) * 100
    assert lockstep(np.asarray(np.repeat(starts, 8), dtype=np.float64), 8) == pytest.approx(1)
    assert lockstep(np.arange(96.0) * 12.5, 8) == pytest.approx(0, abs=1e-9)


def test_half_of_a_round_is_two_over_pi() -> None:
    """Spread evenly over half a circle: the resultant is (2 / π) of all, for many slots."""
    inside = np.arange(1000.0) / 1000 * 50
    assert lockstep((np.arange(5.0)[:, None] * 100 + inside).ravel(), 1000) == pytest.approx(2 / np.pi, rel=0.01)


def test_fewer_than_two_rounds_are_not_judged() -> None:
    assert np.isnan(lockstep(np.arange(16.0), 8))


def streams(begin: list[float], silent: tuple[float, float]) -> list[Record]:
    """A request at each time, a token each 5 ms for 100 ms; what falls into the silence comes at its end."""
    found = []
    for k, at in enumerate(begin):
        events = [at + 5 * j for j in range(1, 21)]
        found.append(rec(k, at, [silent[1] if silent[0] < event < silent[1] else event for event in events]))
    return found


def test_a_silence_is_as_long_as_it_was() -> None:
    # Dispatches each 50 ms to 950 ms, so that the point lasts for 1,045 ms in 200 steps of 5.2 ms; two in flight.
    lasted_ms, share = silence(Columns.of(streams([50.0 * k for k in range(20)], (300, 700))))
    assert lasted_ms == pytest.approx(400, abs=2 * 1045 / 200)
    assert share == pytest.approx(400 / 1045, abs=0.01)


def test_idle_is_not_silent() -> None:
    """Between 200 and 800 ms nothing is in flight: the server had nothing to say."""
    begin = [0.0, 50.0, 100.0, 800.0, 850.0, 900.0]
    lasted_ms, _ = silence(Columns.of(streams(begin, (0, 0))))
    assert lasted_ms <= 2 * 1000 / 200


def back_to_back(n: int, slots: int, fast: int) -> list[Record]:
    """Answers of 11 tokens on slots that are never empty, 10 ms a token, and 8 ms in the last `fast` of them."""
    found, free = [], [13.0 * slot for slot in range(slots)]
    for k in range(n):
        at = min(free)
        tpot = 8.0 if k >= n - fast else 10.0
        found.append(rec(k, at, [at + 20 + tpot * j for j in range(11)]))
        free[free.index(at)] = at + 20 + 10 * tpot
    return found


@pytest.mark.parametrize(("fast", "verdict"), [(0, Verdict.VALID), (8, Verdict.SUSPECT)])
def test_a_run_without_cooldown_keeps_its_verdict_where_its_end_moves_nothing(fast: int, verdict: Verdict) -> None:
    """With 8 fast of 96 mean TPOT is 10 − 0.17 ms; the others have no spread at all."""
    found = summarise_point(closed(8, 96), back_to_back(96, 8, fast))
    assert {check.name: check.verdict for check in found.checks}["followed"] is verdict
    held = closed(8, 96)
    held.cooldown_s = 60.0
    again = summarise_point(held, back_to_back(96, 8, fast))
    assert {check.name: check.verdict for check in again.checks}["followed"] is Verdict.VALID


def test_a_silent_server_is_named() -> None:
    point = closed(2, 20)
    records = streams([50.0 * k for k in range(20)], (300, 700))
    by_name = {check.name: check for check in summarise_point(point, records).checks}
    assert by_name["silence"].verdict is Verdict.SUSPECT
    well = streams([50.0 * k for k in range(20)], (0, 0))
    assert {check.name: check.verdict for check in summarise_point(point, well).checks}["silence"] is Verdict.VALID
