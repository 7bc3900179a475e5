"""Queueing theory as the judge: 20,000 requests to an M/M/4 queue, its wait as a client sees it against Erlang C."""

import math

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
from cadenza.record import Outcome, Phase, PointStatus, Record
from cadenza.spec import Credentials, Spec
from cadenza.stats.intervals import mean_interval
from support.queueing import QueueingPeer

SERVERS, RHO, SERVICE_S = 4, 0.8, 0.25
RATE_PER_S = RHO * SERVERS / SERVICE_S
REQUESTS, WARMUP, BATCHES = 20_000, 1_000, 30
# Student's t with 29 degrees of freedom, two-sided 99 % (any table of it).
T_99 = 2.756
SPEC = Spec(concurrency=(), rates_per_s=(RATE_PER_S,), requests=REQUESTS, warmup=WARMUP, output_tokens=(1, 1), seed=4)
TARGET = Target("http://queue", Origin("queue", ("127.0.0.1", 1)), "queue", "")
SERVICE_NS = np.rint(np.random.default_rng(44).exponential(SERVICE_S * 1e9, WARMUP + REQUESTS)).astype(np.int64)

Measured = tuple[PointSummary, list[Record], QueueingPeer]


@pytest.fixture(scope="module")
def measured() -> Measured:
    (point,) = lay_out(SPEC, ["m"])
    phrasing = Phrasing(SPEC, Credentials(), [TARGET])
    peer = QueueingPeer(SERVERS, lambda n: int(SERVICE_NS[n]))
    client = Client(MemoryTransport(peer), [TARGET.origin], phrasing.dialect, SPEC.timeouts)
    records: list[Record] = []

    def keep(exchange: Exchange) -> None:
        records.append(exchange.record(point.index, point.model))

    requests = (phrasing.put(request, options_for(SPEC, "m")) for request in draw_requests(SPEC, point))
    open_loop(client, requests, 0, keep, stop=lambda: False)
    point.status = PointStatus.COMPLETE
    return summarise_point(point, records), sorted(records, key=lambda record: record.index), peer


def erlang_c(servers: int = SERVERS) -> float:
    """The probability that an arrival of M/M/c has to wait (Erlang, 1917), with a = lambda / mu."""
    a = RATE_PER_S * SERVICE_S
    full = a**servers / math.factorial(servers) / (1 - a / servers)
    return full / (sum(a**k / math.factorial(k) for k in range(servers)) + full)


def mean_wait_s(servers: int = SERVERS) -> float:
    """W_q = C(c, a) / (c mu − lambda)."""
    return erlang_c(servers) / (servers / SERVICE_S - RATE_PER_S)


def batch_means(values: NDArray[np.float64]) -> tuple[float, float]:
    """A 99 % interval for the mean of a correlated series: t of the means of 30 batches, far longer than a wait."""
    means = np.array([batch.mean() for batch in np.array_split(values, BATCHES)])
    half = T_99 * means.std(ddof=1) / math.sqrt(BATCHES)
    return float(means.mean() - half), float(means.mean() + half)


def waits_s(records: list[Record]) -> NDArray[np.float64]:
    """TTFT less the service that the request was given: its time in the queue, as the client saw it."""
    mine = [record for record in records if record.phase is Phase.MEASURE and record.sent_ns is not None]
    return np.array([record.event_ns[0] - (record.sent_ns or 0) - SERVICE_NS[record.index] for record in mine]) / 1e9


def test_erlang_c_has_its_known_values() -> None:
    # a = 3.2 on 4 servers, worked out by fractions: (3.2^4/24)/0.2 = 21.845333, the sum of k < 4 is 14.781333.
    assert erlang_c() == pytest.approx(21.8453333 / 36.6266667, rel=1e-7)
    assert mean_wait_s() == pytest.approx(0.1863854, rel=1e-5)


def test_the_measured_wait_is_erlangs(measured: Measured) -> None:
    _, records, _ = measured
    waits = waits_s(records)
    assert len(waits) == REQUESTS
    low, high = batch_means(waits)
    assert low < mean_wait_s() < high
    assert mean_wait_s(5) < low  # narrow enough to tell four servers from five
    low, high = batch_means((waits > 1e-9).astype(np.float64))
    assert erlang_c(5) < low < erlang_c() < high


def test_the_interval_that_users_are_told_holds_erlangs_wait_too(measured: Measured) -> None:
    _, records, _ = measured
    told = mean_interval(waits_s(records), 0.99)
    assert told.low < mean_wait_s() < told.high
    assert mean_wait_s(5) < told.low
    assert told.n == REQUESTS
    # Waits of neighbours are nearly the same wait: at this load hundreds say as much as thousands would by themselves.
    assert told.n_effective < REQUESTS / 10


def test_what_the_client_saw_is_what_the_server_did(measured: Measured) -> None:
    _, records, peer = measured
    assert [record.outcome for record in records] == [Outcome.OK] * (WARMUP + REQUESTS)
    assert [record.sent_ns for record in records] == [record.intended_ns for record in records] == peer.arrived_ns
    assert [record.event_ns for record in records] == [[at] for at in peer.ended_ns]
    begun = np.array(peer.begun_ns)
    assert np.all(np.diff(begun) >= 0)  # first come, first served
    busy = np.searchsorted(np.sort(peer.ended_ns), begun, side="right")
    assert np.max(np.arange(1, len(begun) + 1) - busy) == SERVERS  # never more than four at once


def test_littles_law_holds_for_the_measured_run(measured: Measured) -> None:
    """L = lambda W, of three numbers that are measured apart: a time average, a count, and a mean of latencies."""
    found, _, _ = measured
    assert found.verdict == "VALID", found.reasons
    assert found.in_flight.mean == pytest.approx(found.requests_per_s * found.latency_ms.mean / 1000, rel=0.01)
    assert found.in_flight.mean == pytest.approx(found.achieved_per_s * found.ttft_ms.mean / 1000, rel=0.01)
    assert found.offered_per_s == pytest.approx(RATE_PER_S, rel=4 / math.sqrt(REQUESTS))
