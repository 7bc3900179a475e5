"""The client's own health: each limit just kept, and just broken."""

import msgspec
import pytest

from cadenza.analysis.client_checks import check_client
from cadenza.analysis.finding import Finding, Verdict
from cadenza.record import LoadLabel, Point, PointStatus, Record, WorkerHealth
from cadenza.stats.columns import Columns
from support.columns import closed, rec

MS = 1_000_000


def answers(n: int, read_lag_ms: float | None = 0.1, lag_ms: float = 0.0, gap_ms: float = 10.0) -> list[Record]:
    """Answers of 200 ms, back to back but for the client's lag."""
    found = []
    for k in range(n):
        due = (200.0 + lag_ms) * k
        sent = due + lag_ms
        record = rec(k, sent, [sent + 200 - 10 * gap_ms + gap_ms * j for j in range(11)], intended=due)
        found.append(
            msgspec.structs.replace(record, read_lag_ns=None if read_lag_ms is None else round(read_lag_ms * MS))
        )
    return found


def found(name: str, point: Point, records: list[Record]) -> Finding:
    (check,) = [check for check in check_client(point, Columns.of(records)) if check.name == name]
    return check


def worker(**changes: object) -> Point:
    health = WorkerHealth(worker=0, wall_s=10.0, cpu_s=1.0)
    point = closed(1, 100)
    point.workers = [msgspec.structs.replace(health, **changes)]
    return point


def test_with_kernel_stamps_a_late_dispatch_costs_load_and_not_ttft() -> None:
    kept = found("dispatch lag", closed(1, 100), answers(100, lag_ms=3.9))
    assert (kept.verdict, kept.message) == (Verdict.VALID, "dispatch lag p90 3.90 ms, none of it in TTFT")
    assert found("empty slots", closed(1, 100), answers(100, lag_ms=3.9)).verdict is Verdict.VALID
    late = found("empty slots", closed(1, 100), answers(100, lag_ms=4.5))
    # 4.5 / 204.5 = 2.20 % of a slot's time
    assert (late.verdict, late.message) == (
        Verdict.CLIENT_LIMITED,
        "the client sent late: slots stood empty for 2.20 % of the time (allowed 2 %)",
    )


def test_without_kernel_stamps_lateness_is_in_the_latencies() -> None:
    late = found("dispatch lag", closed(1, 100), answers(100, read_lag_ms=None, lag_ms=6.0))
    assert late.verdict is Verdict.CLIENT_LIMITED
    stamps = found("stamps", closed(1, 100), answers(100, read_lag_ms=None))
    assert stamps.verdict is None
    assert stamps.message.startswith("100 of 100 answers were stamped by the client's reads")


def test_a_late_read_matters_once_events_share_stamps() -> None:
    assert found("read lag", closed(1, 100), answers(100, read_lag_ms=8.0)).verdict is Verdict.VALID
    merged = answers(100, read_lag_ms=8.0)
    for record in merged:
        record.event_ns[5] = record.event_ns[6]
    late = found("read lag", closed(1, 100), merged)
    assert late.verdict is Verdict.CLIENT_LIMITED
    assert "read lag p90 8.00 ms of a gap of 10.00 ms; 10.00 % of events share a stamp" in late.message
    prompt = [msgspec.structs.replace(record, read_lag_ns=MS) for record in merged]
    assert found("read lag", closed(1, 100), prompt).verdict is Verdict.VALID  # the server sent them together


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "told"),
    [
        ("worker CPU", {"cpu_s": 8.9}, Verdict.VALID, "worker 0 used 89 % of a core (allowed 90 %)"),
        ("worker CPU", {"cpu_s": 9.5}, Verdict.CLIENT_LIMITED, "worker 0 used 95 % of a core (allowed 90 %)"),
        ("core", {"waited_s": 1.9}, Verdict.VALID, "worker 0 waited for its core 19 % of the time (allowed 20 %)"),
        (
            "core",
            {"waited_s": 2.5},
            Verdict.SUSPECT,
            "worker 0 waited for its core 25 % of the time (allowed 20 %): something else runs there",
        ),
        ("clock", {}, Verdict.VALID, "the calendar clock did not jump"),
        (
            "clock",
            {"clock_steps": 2},
            Verdict.INVALID,
            "the calendar clock jumped 2 times: kernel stamps around it cannot be placed",
        ),
        ("loop lag", {"away_ms": 3.25}, Verdict.VALID, "worker 0: longest gap between polls 3.2 ms"),
    ],
)
def test_workers(name: str, changes: dict[str, object], verdict: Verdict, told: str) -> None:
    check = found(name, worker(**changes), answers(100))
    assert (check.verdict, check.message) == (verdict, told)


@pytest.mark.parametrize(
    ("ceiling", "verdict", "percent"),
    [
        (None, None, ""),
        (1000.0, Verdict.VALID, "11 %"),
        (130.0, Verdict.SUSPECT, "85 %"),
        (100.0, Verdict.CLIENT_LIMITED, "110 %"),
    ],
)
def test_the_share_of_the_ceiling(ceiling: float | None, verdict: Verdict | None, percent: str) -> None:
    point = worker()
    point.ceiling_events_per_s = ceiling
    check = found("ceiling", point, answers(100))  # 1,100 events in 10 s of one worker
    assert check.verdict is verdict
    assert percent in check.message


def test_an_open_loop_has_to_keep_its_rate() -> None:
    point = Point(
        index=0, model="m", load=LoadLabel.OPEN, rate_per_s=10.0, planned=100, status=PointStatus.COMPLETE, start_ns=0
    )
    on_time = [rec(k, 100.0 * k, [100.0 * k + 20, 100.0 * k + 30]) for k in range(100)]
    assert found("rate", point, on_time).verdict is Verdict.VALID
    slow = [rec(k, 103.0 * k, [103.0 * k + 20, 103.0 * k + 30], intended=100.0 * k) for k in range(100)]
    late = found("rate", point, slow)
    assert late.verdict is Verdict.CLIENT_LIMITED
    assert "requests left at 9.709/s where 10/s were due (97.09 %)" in late.message
