"""The summary's contract: names, nulls with reasons, strict and reproducible JSON."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.analysis.summary import Summary, relate, summarise, summarise_point, to_json
from cadenza.record import SCHEMA, LoadLabel, Outcome, Point, PointStatus, Record
from support.columns import closed, rec

TOOL = {"name": "cadenza", "version": "0"}
CONTRACT = {
    *("model", "concurrency", "rate_per_s", "load", "verdict", "reasons", "requests", "duration_s", "window_s"),
    *("output_tokens", "token_source", "throughput_tok_per_s", "requests_per_s", "speedup", "efficiency", "drift_ms"),
    *("drift_pct", "drift_class", "ttft_ms", "user_ttft_ms", "tpot_ms", "itl_ms", "latency_ms", "dispatch_lag_ms"),
}


def summary(points: list[Point], records: list[Record]) -> Summary:
    return summarise(points, records, simulated=False, tool=TOOL)


def strict(data: bytes) -> dict[str, Any]:
    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is not JSON")

    value: dict[str, Any] = json.loads(data, parse_constant=refuse)
    return value


def lanes(point: int, slots: int, gap: float, n: int = 12) -> list[Record]:
    """n answers a slot of two tokens: 20 ms to the first, `gap` to the second."""
    found = []
    for k in range(n):
        start = k * (20 + gap)
        for slot in range(slots):
            one = rec(k * slots + slot, start, [start + 20, start + 20 + gap], tokens=2)
            one.point = point
            found.append(one)
    return found


def point(index: int, slots: int, planned: int) -> Point:
    found = closed(slots, planned)
    found.index = index
    return found


def test_the_contract_holds() -> None:
    value = strict(to_json(summary([closed(1, 12)], lanes(0, 1, 20))))
    assert value["schema"] == SCHEMA
    assert value["simulated"] is False
    (only,) = value["points"]
    assert set(only) >= CONTRACT
    assert only["requests"] == {"planned": 12, "sent": 12, "ok": 12, "failed": 0, "dropped": 0, "outcomes": {"ok": 12}}
    assert set(only["ttft_ms"]) >= {"n", "mean", "p50", "p90", "p95", "p99"}
    assert (only["ttft_ms"]["mean"], only["tpot_ms"]["mean"]) == pytest.approx((20, 20))
    assert only["token_source"] == "usage"


def test_scaling_and_drift_are_against_the_smallest_concurrency() -> None:
    records = lanes(0, 4, 30) + lanes(1, 2, 20)
    four, two = summary([point(0, 4, 48), point(1, 2, 24)], records).points
    assert (two.speedup, two.efficiency, two.drift_ms) == (1, 1, 0)
    assert four.speedup == pytest.approx((4 * 2 / 50) / (2 * 2 / 40))
    assert four.efficiency == pytest.approx(four.speedup / 2)
    assert (four.drift_ms, four.drift_pct) == pytest.approx((10, 50))
    assert four.drift_class == "degraded"


def test_what_is_undefined_is_null_and_says_why() -> None:
    open_point = Point(
        index=0, model="m", load=LoadLabel.OPEN, rate_per_s=1.0, planned=1, status=PointStatus.COMPLETE, start_ns=0
    )
    value = strict(to_json(summary([open_point], [rec(0, 0, [], outcome=Outcome.HTTP_ERROR)])))
    (only,) = value["points"]
    for name in ("speedup", "drift_pct", "throughput_tok_per_s", "tokens_per_event"):
        assert only[name] is None
        assert only["undefined"][name]
    assert only["ttft_ms"]["mean"] is None
    assert only["undefined"]["ttft_ms"]


def test_a_base_without_an_answer_leaves_no_null_without_a_reason() -> None:
    dead = [rec(k, 50.0 * k, [], done=50.0 * k + 50, outcome=Outcome.HTTP_ERROR) for k in range(20)]
    value = strict(to_json(summary([point(0, 1, 20), point(1, 2, 24)], dead + lanes(1, 2, 20))))
    for one in value["points"]:
        assert {name for name, given in one.items() if given is None} <= {*one["undefined"], "rate_per_s"}


def test_a_killed_run_counts_what_it_lost_as_dropped() -> None:
    (only,) = summary([closed(1, 40, PointStatus.INTERRUPTED)], lanes(0, 1, 20)).points
    assert (only.requests.planned, only.requests.sent, only.requests.dropped) == (40, 12, 28)


def test_a_cap_that_cannot_keep_up_says_so() -> None:
    """D/D/1: due every 20 ms, served in 40 ms, one slot: 25/s of 50/s leave."""
    capped = Point(
        index=0,
        model="m",
        load=LoadLabel.CAPPED,
        concurrency=1,
        rate_per_s=50,
        planned=41,
        status=PointStatus.COMPLETE,
        start_ns=0,
    )
    late = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40], intended=20.0 * k) for k in range(41)]
    (only,) = summary([capped], late).points
    assert (only.offered_per_s, only.achieved_per_s) == pytest.approx((50, 25))
    assert only.notes[0].startswith("requests left at 25/s where 50/s were due")
    in_time = [rec(k, 20.0 * k, [20.0 * k + 10, 20.0 * k + 15], intended=20.0 * k) for k in range(41)]
    assert summary([capped], in_time).points[0].notes == []


def test_points_that_were_not_begun_are_not_reported() -> None:
    waiting = closed(2, 12)
    waiting.index, waiting.start_ns = 1, None
    assert len(summary([closed(1, 12), waiting], lanes(0, 1, 20)).points) == 1


@given(st.randoms())
def test_the_same_records_in_any_order_are_the_same_bytes(shuffler: random.Random) -> None:
    points, records = [point(0, 1, 12), point(1, 3, 36)], lanes(0, 1, 20) + lanes(1, 3, 21)
    expected = to_json(summary(points, records))
    shuffler.shuffle(records)
    assert to_json(summary(points, records)) == expected


outcomes = st.sampled_from([o for o in Outcome if o is not Outcome.DROPPED])


@given(st.lists(outcomes, min_size=1, max_size=40), st.integers(0, 5))
def test_conservation(ends: list[Outcome], dropped: int) -> None:
    records = [rec(k, 10.0 * k, [10.0 * k + 5], outcome=end) for k, end in enumerate(ends)]
    records += [rec(len(ends) + k, None, [], outcome=Outcome.DROPPED) for k in range(dropped)]
    (only,) = summary([closed(1, len(records), PointStatus.INTERRUPTED)], records).points
    counted = only.requests
    assert counted.planned == counted.sent + counted.dropped == len(records)
    assert counted.sent == sum(counted.outcomes.values()) == counted.ok + counted.failed
    assert not any("requests are missing" in reason for reason in only.reasons)


def test_both_ttfts_stand_side_by_side_where_they_differ() -> None:
    point = Point(
        index=0, model="m", load=LoadLabel.CAPPED, concurrency=1, rate_per_s=20.0, planned=40,
        status=PointStatus.COMPLETE, start_ns=0,
    )  # fmt: skip
    waits = [rec(k, 50.0 * k + 30, [50.0 * k + 50, 50.0 * k + 60], intended=50.0 * k) for k in range(40)]
    note = "user TTFT and TTFT from dispatch differ by the wait to be sent: mean 50.0 and 20.0 ms, P50 50.0 and 20.0 ms"
    assert any(told.startswith(note) for told in summarise_point(point, waits).notes)
    prompt = [rec(k, 50.0 * k, [50.0 * k + 20, 50.0 * k + 30]) for k in range(40)]
    assert not any("from dispatch" in told for told in summarise_point(point, prompt).notes)


def test_nothing_is_compared_with_an_invalid_base() -> None:
    records = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40]) for k in range(40)]
    lost = summarise_point(closed(1, 41), records)
    other = closed(2, 40)
    other.index = 1
    found = relate([lost, summarise_point(other, records)], simulated=False, tool={})
    assert [math.isnan(point.speedup) for point in found.points] == [True, True]
    assert found.points[1].undefined["speedup"] == "its base (C = 1) is INVALID"
