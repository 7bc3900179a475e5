"""Verdicts: each rule on a point that breaks it and no other, with its number in the sentence."""

import msgspec
import pytest

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import summarise_point
from cadenza.record import LoadLabel, Outcome, Point, PointStatus, Record
from support.columns import closed, rec


def answers(n: int, slots: int = 1, lag: float = 0.0) -> list[Record]:
    """Answers of 40 ms back to back on each slot; each is sent `lag` ms after it was due."""
    found = []
    for k in range(n):
        start = 40.0 * (k // slots) + lag
        found.append(rec(k, start, [start + 20, start + 30, start + 40 - lag], intended=start - lag, tokens=3))
    return found


def verdict(point: Point, records: list[Record]) -> PointSummary:
    return summarise_point(point, records)


def test_a_clean_point_is_valid_without_reasons() -> None:
    found = verdict(closed(2, 20), answers(20, 2))
    assert (found.verdict, found.reasons) == (Verdict.VALID, [])
    assert found.in_flight.mean == pytest.approx(2)


def failed(n: int, of: int) -> list[Record]:
    records = answers(of)
    for k in range(n):
        records[k] = msgspec.structs.replace(records[k], outcome=Outcome.HTTP_ERROR, detail="HTTP 503: busy")
    return records


CASES: list[tuple[str, Point, list[Record], Verdict, str]] = [
    (
        "few failures",
        closed(1, 100),
        failed(5, 100),
        Verdict.SUSPECT,
        "5 of 100 requests failed (5.0 %): 5 × http_error",
    ),
    ("many failures", closed(1, 100), failed(6, 100), Verdict.INVALID, "6 of 100 requests failed (6.0 %)"),
    (
        "all failed",
        closed(1, 20),
        failed(20, 20),
        Verdict.INVALID,
        "no request succeeded: 20 × http_error (HTTP 503: busy)",
    ),
    ("nothing sent", closed(1, 20, PointStatus.INTERRUPTED), [], Verdict.INVALID, "no request was sent"),
    ("lost", closed(1, 21), answers(20), Verdict.INVALID, "requests are missing: 21 planned, 20 sent, 0 dropped"),
    ("interrupted", closed(1, 40, PointStatus.INTERRUPTED), answers(20), Verdict.SUSPECT, "interrupted after 20 of 40"),
    ("our fault", closed(1, 40, PointStatus.FAILED), answers(20), Verdict.INVALID, "the measurement itself failed"),
    ("short", closed(4, 4), answers(4, 4), Verdict.SUSPECT, "no steady state: whole run"),
    ("late", closed(1, 100), answers(100, lag=6.0), Verdict.CLIENT_LIMITED, "dispatch lag p90 6.0 ms, allowed 5.0 ms"),
    ("above C", closed(1, 20), answers(20, 2), Verdict.INVALID, "2 requests were in flight where 1 were asked for"),
    ("below C", closed(4, 40), answers(40, 2), Verdict.SUSPECT, "2.00 requests were in flight on average where 4"),
    (
        "too many events",
        closed(1, 20),
        [msgspec.structs.replace(r, output_tokens=2) for r in answers(20)],
        Verdict.SUSPECT,
        "in 20 answers more events carried text than the server counted tokens: 60 events against 40",
    ),
    (
        "a clock that went back",
        closed(1, 20),
        [msgspec.structs.replace(r, sent_ns=r.event_ns[0] + 1) if r.index == 3 else r for r in answers(20)],
        Verdict.INVALID,
        "1 stamps lie before what caused them",
    ),
    (
        "an event before the one before it",
        closed(1, 20),
        [msgspec.structs.replace(r, event_ns=[r.event_ns[1], r.event_ns[0], r.event_ns[2]]) for r in answers(20)],
        Verdict.INVALID,
        "20 stamps lie before what caused them",
    ),
    (
        "an end before the last event",
        closed(1, 20),
        [msgspec.structs.replace(r, done_ns=r.event_ns[1]) for r in answers(20)],
        Verdict.INVALID,
        "20 stamps lie before what caused them",
    ),
    (
        "counted twice",
        closed(1, 20),
        [msgspec.structs.replace(r, index=min(r.index, 18)) for r in answers(20)],
        Verdict.INVALID,
        "1 requests have more than one record",
    ),
]


@pytest.mark.parametrize(("point", "records", "worst", "sentence"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_rule_is_caught(point: Point, records: list[Record], worst: Verdict, sentence: str) -> None:
    found = verdict(point, records)
    assert found.verdict is worst
    assert any(sentence in reason for reason in found.reasons), found.reasons


def test_what_we_cancelled_does_not_dilute_the_failures() -> None:
    records = failed(1, 4) + [msgspec.structs.replace(r, outcome=Outcome.CANCELLED) for r in answers(20)[4:]]
    found = verdict(closed(1, 40, PointStatus.INTERRUPTED), records)
    assert found.verdict is Verdict.INVALID
    assert "1 of 4 requests failed (25.0 %)" in found.reasons[0]


@pytest.mark.parametrize(("n", "percentile"), [(20, "p50"), (64, "p90"), (130, "p95"), (662, "p99")])
def test_lag_is_judged_by_what_the_sample_carries(n: int, percentile: str) -> None:
    reasons = verdict(closed(1, n), answers(n, lag=6.0)).reasons
    assert any(f"dispatch lag {percentile} 6.0 ms" in reason for reason in reasons)
    one_hiccup = [*answers(n, lag=6.0)[:1], *answers(n)[1:]]
    assert not any("dispatch lag" in reason for reason in verdict(closed(1, n), one_hiccup).reasons)


def test_a_lag_that_a_long_ttft_hides_is_allowed() -> None:
    slow = [rec(k, 300.0 * k + 6, [300.0 * k + 200, 300.0 * k + 300], intended=300.0 * k) for k in range(50)]
    assert verdict(closed(1, 50), slow).verdict is Verdict.VALID


def test_under_a_cap_waiting_is_what_was_asked_for() -> None:
    point = Point(
        index=0, model="m", load=LoadLabel.CAPPED, concurrency=1, rate_per_s=50, planned=50, status=PointStatus.COMPLETE
    )
    late = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40], intended=20.0 * k) for k in range(50)]
    found = verdict(point, late)
    # The wait is the server's, not the client's.
    assert found.verdict is Verdict.SUSPECT
    by_name = {check.name: check.verdict for check in found.checks}
    assert by_name["stability"] is Verdict.SUSPECT
    assert by_name["dispatch lag"] is None


def test_the_worst_reason_comes_first() -> None:
    found = verdict(closed(1, 20, PointStatus.INTERRUPTED), failed(10, 20))
    assert found.verdict is Verdict.INVALID
    assert "failed" in found.reasons[0]
    assert "interrupted" in found.reasons[1]
