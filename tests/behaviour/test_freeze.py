"""Coordinated omission: a server that freezes shows in the headline, as long as its users would have waited."""

import heapq

import numpy as np
import pytest
from numpy.typing import NDArray

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import summarise_point
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange
from cadenza.load.issue import open_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.record import LoadLabel, Outcome, PointStatus, Record
from cadenza.spec import Credentials, Spec
from support.queueing import Freeze, QueueingPeer

S = 1_000_000_000
RATE_PER_S, CAP, DURATION_S, SERVICE_NS = 12.0, 16, 120.0, S
FREEZE = Freeze(50 * S, 56 * S)
SPEC = Spec(
    concurrency=(CAP,), rates_per_s=(RATE_PER_S,), duration_s=DURATION_S, warmup=0, output_tokens=(1, 1), seed=3
)
TARGET = Target("http://queue", Origin("queue", ("127.0.0.1", 1)), "queue", "")


@pytest.fixture(scope="module")
def measured() -> tuple[PointSummary, list[Record]]:
    """The run, as `cadenza run --rate 12 -c 16 --duration 120` makes it, against the frozen server."""
    (point,) = lay_out(SPEC, ["m"])
    phrasing = Phrasing(SPEC, Credentials(), [TARGET])
    transport = MemoryTransport(QueueingPeer(None, lambda n: SERVICE_NS, FREEZE))
    client = Client(transport, [TARGET.origin], phrasing.dialect, SPEC.timeouts)
    records: list[Record] = []

    def keep(exchange: Exchange) -> None:
        records.append(exchange.record(point.index, point.model))

    requests = [phrasing.put(request, options_for(SPEC, "m")) for request in draw_requests(SPEC, point)]
    left = open_loop(client, iter(requests), 0, keep, stop=lambda: False, cap=point.concurrency)
    assert left == []
    point.status = PointStatus.COMPLETE
    return summarise_point(point, records), sorted(records, key=lambda record: record.index)


def arrivals_ns() -> NDArray[np.int64]:
    """A Poisson process over the duration, as its definition has it: sums of exponential gaps."""
    gaps_s = np.random.default_rng([SPEC.seed, 0]).standard_exponential(3000) / RATE_PER_S
    times_ns = np.rint(np.cumsum(gaps_s) * S).astype(np.int64)
    return times_ns[times_ns < DURATION_S * S]


def simulate(arrived_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same queue by hand: 16 slots, each busy for 1 s, the 6 s of the freeze not counted; (sent, ended)."""
    slots = [0] * CAP
    sent, ended = np.zeros_like(arrived_ns), np.zeros_like(arrived_ns)
    for k, at in enumerate(arrived_ns):
        sent[k] = max(int(at), heapq.heappop(slots))
        work = sent[k] - np.clip(sent[k] - FREEZE.start_ns, 0, 6 * S)  # on a clock that stands still in the freeze
        done = work + SERVICE_NS
        ended[k] = done + (6 * S if done > FREEZE.start_ns else 0)
        heapq.heappush(slots, int(ended[k]))
    return sent, ended


def test_every_request_is_what_a_queue_by_hand_makes_of_it(measured: tuple[PointSummary, list[Record]]) -> None:
    _, records = measured
    due = arrivals_ns()
    sent, ended = simulate(due)
    assert [record.outcome for record in records] == [Outcome.OK] * len(due)
    # A plan rounds its times once; nothing else may differ, and nobody may notice a microsecond here.
    assert np.array([record.intended_ns for record in records]) == pytest.approx(due, abs=1000)
    assert np.array([record.sent_ns for record in records]) == pytest.approx(sent, abs=1_000_000)
    assert np.array([record.event_ns[0] for record in records]) == pytest.approx(ended, abs=1_000_000)


def test_no_arrival_is_lost(measured: tuple[PointSummary, list[Record]]) -> None:
    found, records = measured
    n = len(arrivals_ns())
    assert abs(n - RATE_PER_S * DURATION_S) < 4 * np.sqrt(RATE_PER_S * DURATION_S)
    assert [record.index for record in records] == list(range(n))
    requests = found.requests
    assert (requests.planned, requests.sent, requests.ok, requests.dropped) == (n, n, n, 0)
    assert requests.outcomes == {"ok": n}
    assert found.in_flight.peak == CAP
    assert found.load is LoadLabel.CAPPED


def test_the_headline_has_the_freeze_in_it_and_plain_ttft_has_not(measured: tuple[PointSummary, list[Record]]) -> None:
    found, _ = measured
    due = arrivals_ns()
    sent, ended = simulate(due)
    user_ms, plain_ms = (ended - due) / 1e6, (ended - sent) / 1e6  # of all that were due, however late they ended
    assert found.user_ttft_ms.n == len(user_ms)
    for name, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(found.user_ttft_ms, name) == pytest.approx(np.percentile(user_ms, q), abs=1.0)
        assert getattr(found.ttft_ms, name) == pytest.approx(np.percentile(plain_ms, q), abs=1.0)
    assert found.dispatch_lag_ms.p99 == pytest.approx(np.percentile((sent - due) / 1e6, 99), abs=1.0)
    # For these arrivals. Over 300 seeds the p95 by hand is 5.6 s on average, 4.5 to 6.6 s for nine in ten of them.
    assert 5900 < found.user_ttft_ms.p95 < 6600
    # Only the 16 that filled the cap saw the freeze themselves: 1.1 % of the sample, which a p95 leaves out.
    assert found.ttft_ms.p95 == pytest.approx(1000, abs=1)
    assert found.dispatch_lag_ms.p99 > 5000
