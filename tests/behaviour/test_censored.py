"""What never ends moves every figure that it could move: none is printed as if the slow answers had not been there."""

import numpy as np
import pytest

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import relate, summarise_point
from cadenza.load.client import Client
from cadenza.load.course import Course
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Origin
from cadenza.record import LoadLabel, Message, Outcome, Phase, Point, PointStatus, Record, Request
from cadenza.spec import Timeouts
from cadenza.wire.dialects import DIALECTS
from support.scripted import HEAD, Script, ScriptedPeer, stream, token

REQUESTS, TOKENS, COOLDOWN_S = 64, 10, 3
TRICKLE = 8  # every so many-th answer
GAP_MS, SLOW_GAP_MS = 10.0, 2000.0
# If the slow answers were followed to their end: a mean over the population, of the server's own times.
TRUE_TPOT_MS = (GAP_MS * (TRICKLE - 1) + SLOW_GAP_MS) / TRICKLE


def script(n: int) -> Script:
    """Ten tokens 10 ms apart, or two seconds apart: those are cut off before they are whole."""
    if n % TRICKLE:
        return stream(TOKENS, first_ms=20, gap_ms=GAP_MS)
    return [(20, HEAD), *((20 + k * SLOW_GAP_MS, token()) for k in range(TOKENS))]


@pytest.fixture(scope="module")
def measured() -> tuple[PointSummary, list[Record]]:
    """A slot for each request: all begin at once, and the load ends three seconds after the last of them was sent."""
    client = Client(
        MemoryTransport(ScriptedPeer(script)), [Origin("test", ("127.0.0.1", 1))], DIALECTS["chat"], Timeouts()
    )
    records: list[Record] = []

    def keep(exchange: Exchange) -> None:
        records.append(exchange.record(0, "m"))

    def plan(n: int) -> Outgoing:
        phase = Phase.MEASURE if n < REQUESTS else Phase.COOLDOWN
        request = Request(index=n, messages=(Message("user", "hi"),), output_tokens=TOKENS, phase=phase)
        return Outgoing(request, b"POST / HTTP/1.1\r\n\r\n")

    course = Course(cooldown_ns=COOLDOWN_S * 10**9)
    closed_loop(client, map(plan, range(10_000)), REQUESTS, keep, lambda: False, course)
    point = Point(
        index=0,
        model="m",
        load=LoadLabel.CLOSED,
        concurrency=REQUESTS,
        planned=REQUESTS,
        status=PointStatus.COMPLETE,
        cooldown_s=COOLDOWN_S,
        start_ns=0,
    )
    return summarise_point(point, records), records


def test_the_slow_ones_are_cut_off_and_counted(measured: tuple[PointSummary, list[Record]]) -> None:
    found, records = measured
    cut = [r for r in records if r.phase is Phase.MEASURE and r.outcome is Outcome.CANCELLED]
    assert len(cut) == REQUESTS // TRICKLE
    assert found.verdict != "VALID"
    assert found.tpot_ms.censored == found.latency_ms.censored == found.itl_ms.censored == len(cut)


def test_no_figure_that_they_could_move_is_printed_as_known(measured: tuple[PointSummary, list[Record]]) -> None:
    found, _ = measured
    for figure, true_ms in (("tpot_ms", TRUE_TPOT_MS), ("latency_ms", 20 + (TOKENS - 1) * TRUE_TPOT_MS)):
        dist = getattr(found, figure)
        assert "mean" in dist.bounds
        assert dist.mean <= true_ms
    assert "mean" in found.itl_ms.bounds
    # An eighth of the answers: they reach P90 and leave the median alone.
    assert {"p90", "p95", "p99"} <= set(found.tpot_ms.bounds)
    assert "p50" not in found.tpot_ms.bounds
    assert found.tpot_ms.p50 == pytest.approx(GAP_MS)
    # All had their first token: of TTFT nothing is censored.
    assert (found.ttft_ms.censored, found.ttft_ms.n, found.ttft_ms.bounds) == (0, REQUESTS, ())
    assert found.ttft_ms.mean == pytest.approx(20)


def test_a_bound_is_as_if_the_rest_had_come_at_the_cut(measured: tuple[PointSummary, list[Record]]) -> None:
    """(cut − first token) / (tokens asked for − 1), 20 ms after the dispatch at the earliest."""
    found, records = measured
    cut_ms = [(r.done_ns or 0) / 1e6 for r in records if r.phase is Phase.MEASURE and r.outcome is Outcome.CANCELLED]
    bounds = [(at - 20) / (TOKENS - 1) for at in cut_ms]
    known = [GAP_MS] * (REQUESTS - len(cut_ms))
    assert found.tpot_ms.mean == pytest.approx(np.mean([*known, *bounds]))


def test_no_drift_is_told_of_a_bound(measured: tuple[PointSummary, list[Record]]) -> None:
    found, _ = measured
    (related,) = relate([found], simulated=False, tool={}).points
    assert np.isnan(related.drift_pct)
    assert related.drift_class is None
    assert "known" in related.undefined["drift_pct"]
