"""Every tenth request fails: the rest is measured as defined, the failures are counted, and the point is INVALID."""

import pytest

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import summarise_point
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Origin
from cadenza.record import LoadLabel, Message, Outcome, Point, PointStatus, Record, Request
from cadenza.spec import Timeouts
from cadenza.wire.dialects import DIALECTS
from support.scripted import Script, ScriptedPeer, stream

REQUESTS, TOKENS = 100, 5
ERROR_MS = 10
BODY = b'{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","code":500}}'
ERROR = b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


def script(n: int, every: int) -> Script:
    """Five tokens 10 ms apart, the first after 20, 21, … 24 ms in turn; every so many-th request a 500 after 10 ms.

    Five answers in a row have the same mean, wherever one begins: no start that a window could take for a transient.
    """
    if n % every == every - 1:
        return [(ERROR_MS, ERROR)]
    answers = n - n // every
    return stream(TOKENS, first_ms=20 + answers % 5, gap_ms=10)


def measure(every: int, slots: int = 1) -> tuple[PointSummary, list[Record]]:
    peer = ScriptedPeer(lambda n: script(n, every))
    client = Client(MemoryTransport(peer), [Origin("test", ("127.0.0.1", 1))], DIALECTS["chat"], Timeouts())
    records: list[Record] = []

    def keep(exchange: Exchange) -> None:
        records.append(exchange.record(0, "m"))

    requests = [Request(index=n, messages=(Message("user", "hi"),), output_tokens=TOKENS) for n in range(REQUESTS)]
    ready = (Outgoing(request, b"POST / HTTP/1.1\r\n\r\n") for request in requests)
    closed_loop(client, ready, slots, keep, stop=lambda: False)
    point = Point(
        index=0,
        model="m",
        load=LoadLabel.CLOSED,
        concurrency=slots,
        planned=REQUESTS,
        status=PointStatus.COMPLETE,
        start_ns=0,
    )
    return summarise_point(point, records), records


@pytest.fixture(scope="module")
def tenth() -> tuple[PointSummary, list[Record]]:
    return measure(10)


def test_every_request_is_one_record(tenth: tuple[PointSummary, list[Record]]) -> None:
    found, records = tenth
    assert [record.index for record in records] == list(range(REQUESTS))
    failed = [record for record in records if record.outcome is not Outcome.OK]
    assert [record.index for record in failed] == list(range(9, 100, 10))
    for record in failed:
        assert (record.outcome, record.status, record.event_ns) == (Outcome.HTTP_ERROR, 500, [])
        assert record.detail == "HTTP 500: EngineCore encountered an issue"
        assert (record.done_ns or 0) - (record.sent_ns or 0) == ERROR_MS * 1_000_000
    requests = found.requests
    assert (requests.planned, requests.sent, requests.ok, requests.failed, requests.dropped) == (100, 100, 90, 10, 0)
    assert requests.outcomes == {"ok": 90, "http_error": 10}
    assert [(f.outcome, f.n, f.detail) for f in found.failures] == [
        ("http_error", 10, "HTTP 500: EngineCore encountered an issue")
    ]


def test_window_and_rates_as_defined(tenth: tuple[PointSummary, list[Record]]) -> None:
    """90 answers take 18 times 60 + 61 + 62 + 63 + 64 ms, and 10 errors 10 ms each: 5680 ms.

    The window ends at the last dispatch, that of the tenth error: 10 ms before the end. So all 90 answers lie inside,
    the last of them ending exactly there, and 9 of the errors, which make the window longer and bring no token.
    """
    found, _ = tenth
    assert found.window.kind == "steady"
    assert found.window_s == pytest.approx(5.670, abs=1e-9)
    assert found.throughput_tok_per_s == pytest.approx(90 * 5 / 5.670, rel=1e-12)
    assert found.requests_per_s == pytest.approx(90 / 5.670, rel=1e-12)
    assert found.duration_s == pytest.approx(5.680, abs=1e-9)
    # 100 dispatches, the first at 0 and the last at 5670 ms: failures were asked for too.
    assert found.offered_per_s == found.achieved_per_s == pytest.approx(99 / 5.670, rel=1e-12)
    assert (found.in_flight.peak, found.in_flight.mean) == pytest.approx((1, 1))


def test_latencies_are_those_of_the_answers(tenth: tuple[PointSummary, list[Record]]) -> None:
    """TTFT is 18 times each of 20, 21, … 24 ms. Of the sorted values 0…89, p50 lies between the 44th and 45th (22, 22),
    p90 at 80.1, p95 at 84.55, p99 at 88.11 (all 24, which is the 72nd to the 89th)."""
    found, _ = tenth
    ttft = found.ttft_ms
    assert ttft.n == 90
    assert (ttft.mean, ttft.p50, ttft.p90, ttft.p95, ttft.p99, ttft.max) == pytest.approx((22, 22, 24, 24, 24, 24))
    assert ttft.undersampled == ("p95", "p99")  # 90 values: at least 64, fewer than 130
    same = found.user_ttft_ms  # a freed slot is refilled at once
    assert (same.n, same.mean, same.p50, same.p99, same.max) == pytest.approx((90, 22, 22, 24, 24))
    tpot = found.tpot_ms
    assert (tpot.n, tpot.mean, tpot.p50, tpot.p99, tpot.max) == pytest.approx((90, 10, 10, 10, 10))
    assert (found.itl_ms.n, found.itl_ms.mean, found.itl_ms.max) == pytest.approx((90 * 4, 10, 10))
    latency = found.latency_ms
    assert (latency.n, latency.mean, latency.p50, latency.max) == pytest.approx((90, 62, 62, 64))
    assert (found.output_tokens, found.token_source, found.tokens_per_event) == (450, "usage", 1.0)


@pytest.mark.parametrize(
    ("every", "verdict", "reason"),
    [
        (10, "INVALID", "10 of 100 requests failed (10.0 %)"),
        (20, "SUSPECT", "5 of 100 requests failed (5.0 %)"),
        (1, "INVALID", "no request succeeded"),
        (101, "VALID", ""),
    ],
    ids=["10 %", "5 %", "all", "none"],
)
def test_more_than_5_percent_failures_are_invalid(every: int, verdict: str, reason: str) -> None:
    found, _ = measure(every)
    assert found.verdict == verdict
    assert bool(found.reasons) == bool(reason)
    if reason:
        cause = f"{REQUESTS // every} × http_error (HTTP 500: EngineCore encountered an issue)"
        assert found.reasons[0].startswith(f"{reason}: {cause}")
    assert sum(found.requests.outcomes.values()) == REQUESTS


def test_failed_requests_give_their_slots_back() -> None:
    """Two slots: the 500s neither stop the loop nor let it run ahead of its slots."""
    found, records = measure(10, slots=2)
    assert found.in_flight.peak == 2
    assert found.in_flight.mean == pytest.approx(2)
    assert found.requests.outcomes == {"ok": 90, "http_error": 10}
    # Work of 5680 ms on two slots that are never idle before the last dispatch.
    busy_ms = sum((record.done_ns or 0) - (record.sent_ns or 0) for record in records) / 1e6
    assert busy_ms == pytest.approx(5680)
    assert found.duration_s * 1000 == pytest.approx(5680 / 2, abs=64 / 2)
