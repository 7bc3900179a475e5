"""The client measured against a server of known timing: its ceiling, the error of its stamps, its lateness."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cadenza.clock import NS_PER_MS
from cadenza.engine.api.null import NullPlan, Truth, serve
from cadenza.load.client import Client
from cadenza.load.exchange import Outgoing
from cadenza.load.health import HealthMeter, undisturbed
from cadenza.load.issue import closed_loop
from cadenza.load.sockets import SocketTransport
from cadenza.load.transport import Origin
from cadenza.record import Message, Outcome, Record, Request, WorkerHealth
from cadenza.spec import Timeouts
from cadenza.stats.columns import Columns, Floats
from cadenza.stats.latency import dispatch_lag_ms
from cadenza.store.calibration import Calibration
from cadenza.store.environment import describe_environment
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import encode_request

# Streams of one token every 10 ms: 100 events a second each, doubled until the client, or the server, has no more.
STREAMS = (16, 32, 64, 128, 256, 512)
PACE = NullPlan(tokens=100, first_ms=20, gap_ms=10, spread_ms=500)
# Short answers: the cost of a request apart from its tokens.
SHORT = NullPlan(tokens=1, first_ms=1, gap_ms=1)
SHORT_STREAMS, SHORT_REQUESTS = 32, 6000
# Above this share of a core a step shows the limit of the client; the next one would only exceed it.
FULL = 0.85
# A server that sent more of its tokens than this late by half a gap was itself the bottleneck.
LATE_SHARE = 0.02
_MODEL = "null"


class Step(NamedTuple):
    """One load held for a moment.

    events_per_s, cpu_share   what came, and the share of a core that the client took for it
    stamp_error_us            (events,) stamp − handed to the kernel
    lag_ms                    (requests,) dispatch lag of all but the opening ones
    read_lag_ms               (requests,) longest read lag, NaN without kernel stamps
    server_late               share of the server's gaps that were half too long
    """

    streams: int
    events_per_s: float
    requests_per_s: float
    cpu_share: float
    stamp_error_us: Floats
    lag_ms: Floats
    read_lag_ms: Floats
    server_late: float


Watch = Callable[[Step], None]


def calibrate(watch: Watch, stop: Callable[[], bool]) -> Calibration:
    """Measure; `watch` hears each step. Takes about half a minute, and two cores if they are there.

    The ceiling is the events a second of the greatest load that the null server held, over the client's share of a
    core: what it would read with the whole of it. Greater loads cost less an event, so it errs on the low side.
    """
    steps: list[Step] = []
    with _cores() as server_core:
        for streams in STREAMS:
            step = _measure(PACE, streams, 2 * streams, server_core, stop)
            watch(step)
            if steps and step.server_late > LATE_SHARE:
                break  # the limit of the server, not of the client
            steps.append(step)
            if step.cpu_share > FULL or stop():
                break
        short = _measure(SHORT, SHORT_STREAMS, SHORT_REQUESTS, server_core, stop)
        watch(short)
    last = steps[-1]
    ceiling = last.events_per_s / last.cpu_share
    calm = [step for step in steps if step.events_per_s <= ceiling / 4] or steps[:1]
    return Calibration(
        measured=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        events_per_s=round(ceiling),
        requests_per_s=round(short.requests_per_s / short.cpu_share),
        stamp_error_us_p50=float(np.percentile(last.stamp_error_us, 50)),
        stamp_error_us_p99=float(np.percentile(last.stamp_error_us, 99)),
        dispatch_lag_ms_p99=float(np.percentile(calm[-1].lag_ms, 99)),
        kernel_stamps=bool(np.isfinite(last.read_lag_ms).all()),
        environment=describe_environment(),
    )


@contextlib.contextmanager
def _cores() -> Iterator[int | None]:
    """This process on the last core, the first for the server; as before at the end. None: there is one core only."""
    if not hasattr(os, "sched_setaffinity"):
        yield None
        return
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[-1]})
    try:
        yield cores[0] if len(cores) > 1 else None
    finally:
        os.sched_setaffinity(0, before)


def _measure(pace: NullPlan, streams: int, requests: int, server_core: int | None, stop: Callable[[], bool]) -> Step:
    records: list[Record] = []
    with serve(pace, server_core) as server, SocketTransport() as transport:
        origin = Origin("127.0.0.1", ("127.0.0.1", server.port))
        client = Client(transport, [origin], DIALECTS["chat"], Timeouts())
        plan = iter([_phrase(n, pace, server.port) for n in range(requests)])
        with undisturbed():
            meter = HealthMeter(transport.counters)
            closed_loop(client, plan, streams, lambda ended: records.append(ended.record(0, _MODEL)), stop)
            health = meter.read(0)
        return _conclude(pace, streams, records, server.truth(), health)


def _phrase(n: int, pace: NullPlan, port: int) -> Outgoing:
    request = Request(index=n, messages=(Message("user", "tick"),), output_tokens=pace.tokens)
    data = encode_request("POST", f"{DIALECTS['chat'].path}?n={n}", f"127.0.0.1:{port}", (), b"{}")
    return Outgoing(request, data)


def _conclude(pace: NullPlan, streams: int, records: list[Record], truth: Truth, health: WorkerHealth) -> Step:
    whole = [r for r in records if r.outcome is Outcome.OK and len(r.event_ns) == len(truth.get(r.index, ()))]
    columns = Columns.of(sorted(whole, key=lambda record: record.index))
    stamps = np.array([ns for record in whole for ns in record.event_ns], dtype=np.int64)
    handed = np.array([ns for record in whole for ns in truth[record.index]], dtype=np.int64)
    gaps_ms = [np.diff(truth[record.index]) / NS_PER_MS for record in whole]
    late = np.concatenate([np.zeros(1), *gaps_ms]) > 1.5 * pace.gap_ms
    events = len(stamps)
    return Step(
        streams=streams,
        events_per_s=events / health.wall_s,
        requests_per_s=len(whole) / health.wall_s,
        cpu_share=health.cpu_s / health.wall_s,
        stamp_error_us=(stamps - handed) / (NS_PER_MS / 1000),
        lag_ms=dispatch_lag_ms(columns)[streams:],
        read_lag_ms=columns.read_lag_ms,
        server_late=float(late.mean()),
    )
