"""Goodput by hand: every bound at its edge, failures as misses, and what an interruption leaves open."""

import math

import msgspec
import pytest

from cadenza.analysis.summary import summarise_point
from cadenza.record import LoadLabel, Outcome, Point, PointStatus
from cadenza.spec import Slo
from cadenza.stats.columns import Columns
from cadenza.stats.goodput import goodput, meets
from cadenza.stats.window import Window
from support.columns import closed, rec

NAN = float("nan")
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


def test_under_a_rate_the_users_latency_counts() -> None:
    late = Columns.of([rec(0, 30, [80, 90, 100], intended=0)])  # latency 70 from its dispatch, 100 for the user
    for load, bound, good in (
        *((LoadLabel.OPEN, 99, False), (LoadLabel.OPEN, 100, True)),
        *((LoadLabel.CAPPED, 99, False), (LoadLabel.CLOSED, 70, True), (LoadLabel.CLOSED, 69, False)),
    ):
        point = Point(index=0, model="m", load=load, rate_per_s=1.0, concurrency=1)
        assert meets(point, late, Slo(latency_ms=bound)).tolist() == [good]


def test_exactly_at_the_bound_is_good_wherever_the_clock_stands() -> None:
    """A difference of floats is off by less than the nanosecond that a stamp can resolve."""
    first_ns, gap_ns, hour_ns = 100_000_000, 10_000_001, 3_600_000_000_000
    records = [
        msgspec.structs.replace(
            rec(k, 0, []),
            intended_ns=sent,
            sent_ns=sent,
            event_ns=[sent + first_ns + extra, sent + first_ns + extra + gap_ns],
            output_tokens=2,
        )
        for extra in (0, 1)
        for k, sent in enumerate(hour_ns * h + 1_234_567 * h for h in range(50))
    ]
    for slo in (Slo(ttft_ms=100.0), Slo(latency_ms=110.000001)):
        assert meets(closed(1, 100), Columns.of(records), slo).tolist() == [True] * 50 + [False] * 50
    assert meets(closed(1, 100), Columns.of(records), Slo(tpot_ms=10.000001)).all()
    assert not meets(closed(1, 100), Columns.of(records), Slo(tpot_ms=10.0)).any()


def test_an_answer_without_an_event_came_at_no_time() -> None:
    columns = Columns.of([rec(0, 0, [], done=50, tokens=7)])
    assert [meets(closed(1, 1), columns, slo).item() for slo in (Slo(ttft_ms=1e9), Slo(latency_ms=1e9), Slo())] == [
        *(False, False, True),
    ]


def test_the_share_is_of_all_and_the_rate_of_those_that_were_sent_in_the_window() -> None:
    found = goodput(closed(6, 6), COLUMNS, Window(0, 110, "steady", ""), Slo(tpot_ms=10))
    # Good are 0, 1, 3 and 5, of all six, and of these only 5 was sent in (0, 110].
    assert (found.good, found.of, found.share) == (4, 6, 4 / 6)
    assert found.per_s == pytest.approx(1 / 0.110)
    assert (found.undecided, found.share_range) == (0, (4 / 6, 4 / 6))


def test_under_a_rate_those_that_were_due_in_the_window_count() -> None:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=100.0, status=PointStatus.COMPLETE)
    # Due every 10 ms, sent 35 ms later: of ten, seven are due in (20, 90], and eight are sent there.
    columns = Columns.of([rec(k, 10 * k + 35, [10 * k + 40.0], intended=10 * k) for k in range(10)])
    assert goodput(point, columns, Window(20, 90, "steady", ""), Slo(ttft_ms=40)).per_s == pytest.approx(7 / 0.070)


def test_ten_per_cent_of_failures_are_ten_per_cent_of_misses() -> None:
    records = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 30, 40.0 * k + 40]) for k in range(100)]
    for k in range(0, 100, 10):
        records[k] = msgspec.structs.replace(records[k], outcome=Outcome.HTTP_ERROR, event_ns=[])
    columns = Columns.of(records)
    found = goodput(closed(1, 100), columns, Window(-1, 4000, "whole", ""), Slo(ttft_ms=20, tpot_ms=10))
    assert (found.good, found.of, found.share) == (90, 100, 0.9)
    assert found.per_s == pytest.approx(90 / 4.001)


def test_a_queue_at_the_client_is_a_users_wait() -> None:
    """One slot of 30 ms, an arrival each 10 ms: request k of 100 leaves at 30 k ms, 20 k ms after it was due.

    From its dispatch each has its first token at 20 ms. The user of request k waits 20 k + 20 ms, which is within
    140 ms for k ≤ 6: 7 % of 100. Due after the first one, until the last one at 990 ms, are 6 of these 7.
    """
    records = [rec(k, 30 * k, [30 * k + 20.0, 30 * k + 30.0], intended=10 * k) for k in range(100)]
    point = Point(
        index=0, model="m", load=LoadLabel.CAPPED, rate_per_s=100.0, concurrency=1, status=PointStatus.COMPLETE
    )
    window, columns = Window(0, 990, "steady", ""), Columns.of(records)
    found = goodput(point, columns, window, Slo(ttft_ms=140, attainment=0.95))
    assert (found.good, found.of, found.met) == (7, 100, False)
    assert found.per_s == pytest.approx(6 / 0.99)
    # The last event comes 10 ms later: the same 7 within 150 ms.
    assert goodput(point, columns, window, Slo(latency_ms=150)).good == 7
    assert goodput(point, columns, window, Slo(latency_ms=149.9)).good == 6
    naive = msgspec.structs.replace(point, load=LoadLabel.CLOSED)
    assert goodput(naive, columns, window, Slo(ttft_ms=140, latency_ms=150)).share == 1


CUT = Outcome.CANCELLED
INTERRUPTED = [
    rec(0, 0, [20, 30, 40]),  # good
    rec(1, 0, [60, 70, 80]),  # TTFT 60
    rec(2, 50, [], done=100, outcome=CUT, intended=50),  # 50 ms without a token
    rec(3, 40, [], done=100, outcome=CUT, intended=40),  # 60 ms without a token: too long by now
    rec(4, 30, [40], done=100, outcome=CUT, intended=30),  # began in time, 70 ms under way
    rec(5, 10, [75], done=100, outcome=CUT, intended=10),  # its first token took 65 ms
    rec(6, 0, [10], done=100, outcome=CUT, intended=0),  # began in time, 100 ms under way
    rec(7, None, [], outcome=Outcome.DROPPED, intended=60),  # queued for 40 ms
    rec(8, None, [], outcome=Outcome.DROPPED, intended=45),  # queued for 55 ms
    rec(9, None, [], outcome=Outcome.DROPPED, intended=110),  # not due yet
    rec(10, 90, [], done=95, outcome=Outcome.CONNECTION_LOST, intended=90),
]


@pytest.mark.parametrize(
    ("load", "slo", "good", "of", "undecided"),
    [
        # due are 0 to 8 and 10; not decided are 2, 4, 6, 7
        (LoadLabel.CAPPED, Slo(ttft_ms=50), 1, 6, 4),
        # 6 has taken 100 ms by now, above 99; all others less, but for 1, which took 80
        (LoadLabel.CAPPED, Slo(latency_ms=99), 2, 4, 6),
        (LoadLabel.CAPPED, Slo(ttft_ms=50, latency_ms=99), 1, 7, 3),
        # a bound on TPOT is missed only by what has ended
        (LoadLabel.CAPPED, Slo(tpot_ms=9), 0, 3, 7),
        # a closed loop has no queue: what was not sent was not due
        (LoadLabel.CLOSED, Slo(ttft_ms=50), 1, 5, 3),
    ],
)
def test_what_an_interruption_cuts_off_is_judged_only_if_it_had_missed(
    load: LoadLabel, slo: Slo, good: int, of: int, undecided: int
) -> None:
    point = Point(index=0, model="m", load=load, rate_per_s=1.0, concurrency=9, status=PointStatus.INTERRUPTED)
    found = goodput(point, Columns.of(INTERRUPTED), Window(0, 100, "whole", ""), slo)
    assert (found.good, found.of, found.undecided) == (good, of, undecided)
    assert found.share == good / of
    assert found.share_range == (good / (of + undecided), (good + undecided) / (of + undecided))


def test_in_a_complete_point_what_never_ended_has_missed() -> None:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=1.0, status=PointStatus.COMPLETE)
    found = goodput(point, Columns.of(INTERRUPTED[:7]), Window(0, 100, "whole", ""), Slo(ttft_ms=50))
    assert (found.good, found.of, found.undecided) == (1, 7, 0)


@pytest.mark.parametrize(
    ("attainment", "undecided", "met"),
    [
        # 8 good of 10: at 80 % it is met exactly.
        *((None, 0, None), (0.8, 0, True), (0.81, 0, False)),
        # With 2 undecided the share is between 8 / 12 and 10 / 12.
        *((0.66, 2, True), (8 / 12, 2, True), (0.67, 2, None), (0.83, 2, None), (10 / 12, 2, None), (0.84, 2, False)),
    ],
)
def test_attainment_is_met_missed_or_not_known(attainment: float | None, undecided: int, met: bool | None) -> None:
    records = [rec(k, k, [k + 10.0]) for k in range(8)] + [rec(k, k, [k + 99.0]) for k in (8, 9)]
    records += [rec(k, k, [], done=k + 5, outcome=CUT) for k in range(10, 10 + undecided)]
    status = PointStatus.INTERRUPTED if undecided else PointStatus.COMPLETE
    slo = Slo(ttft_ms=10, attainment=attainment)
    assert goodput(closed(12, 12, status), Columns.of(records), Window(0, 99, "whole", ""), slo).met is met


def test_of_nothing_there_is_no_share() -> None:
    found = goodput(closed(1, 0), Columns.of([]), Window(NAN, NAN, "whole", ""), Slo(ttft_ms=1, attainment=0.5))
    assert (found.good, found.of, found.undecided, found.met) == (0, 0, 0, None)
    assert all(math.isnan(value) for value in (found.per_s, found.share, *found.share_range))


def test_the_summary_has_it_by_the_bounds_of_the_run() -> None:
    records = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 30]) for k in range(50)]
    found = summarise_point(closed(1, 50), records, Slo(ttft_ms=19)).goodput
    assert found is not None
    assert (found.good, found.of) == (0, 50)
