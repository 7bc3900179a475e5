"""Goodput by hand: every bound at its edge, failures as misses."""

import msgspec
import pytest

from cadenza.record import LoadLabel, Outcome, Point
from cadenza.spec import Slo
from cadenza.stats.columns import Columns
from cadenza.stats.goodput import goodput, meets
from cadenza.stats.summary import summarise_point
from cadenza.stats.window import Window
from support.columns import closed, rec

RECORDS = [
    rec(0, 0, [100, 110, 120]),  # TTFT 100, TPOT 10, latency 120
    rec(1, 0, [101, 111, 121]),  # TTFT 101
    rec(2, 0, [50, 61, 72]),  # TPOT 11
    rec(3, 0, [90]),  # one token: no TPOT
    rec(4, 0, [50, 60, 70], outcome=Outcome.STREAM_ERROR),
    rec(5, 30, [80, 90, 100], intended=0),  # sent 30 ms after it was due
]
COLUMNS = Columns.of(RECORDS)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_ms=100), [True, False, True, True, False, True]),
        (Slo(tpot_ms=10), [True, True, False, True, False, True]),
        (Slo(latency_ms=120), [True, False, True, True, False, True]),
        (Slo(ttft_ms=100, tpot_ms=10), [True, False, False, True, False, True]),
        (Slo(), [True, True, True, True, False, True]),
        (Slo(ttft_ms=60), [False, False, True, False, False, True]),
    ],
)
def test_which_requests_are_good(slo: Slo, good: list[bool]) -> None:
    assert meets(closed(6, 6), COLUMNS, slo).tolist() == good


def test_under_a_rate_the_users_ttft_counts() -> None:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=1.0)
    assert meets(point, COLUMNS, Slo(ttft_ms=60)).tolist() == [False, False, True, False, False, False]


def test_per_second_of_the_window_and_of_all_that_ended() -> None:
    found = goodput(closed(6, 6), COLUMNS, Window(0, 110, "steady", ""), Slo(tpot_ms=10))
    # inside (0, 110]: requests 2, 3, 4, 5; of them 3 and 5 are good
    assert (found.good, found.of, found.share) == (2, 4, 0.5)
    assert found.per_s == pytest.approx(2 / 0.110)


def test_ten_per_cent_of_failures_are_ten_per_cent_of_misses() -> None:
    records = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 30, 40.0 * k + 40]) for k in range(101)]
    for k in range(0, 100, 10):
        records[k] = msgspec.structs.replace(records[k], outcome=Outcome.HTTP_ERROR, event_ns=[])
    found = summarise_point(closed(1, 101), records, Slo(ttft_ms=20, tpot_ms=10)).goodput
    assert found is not None
    # The window ends with the last dispatch, at 4,000 ms: 100 answers of 40 ms ended in it, 10 of them failures.
    assert (found.good, found.of) == (90, 100)
    assert found.per_s == pytest.approx(90 / 4.0)
