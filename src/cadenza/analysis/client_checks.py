"""Is a figure the server's, or the client's own? Its lateness, its cores, its clock."""

import numpy as np

from cadenza.analysis.verdict import Check, Verdict, check
from cadenza.record import LoadLabel, Point
from cadenza.stats.columns import Columns
from cadenza.stats.distribution import Distribution
from cadenza.stats.latency import dispatch_lag_ms, itl_ms, latency_ms, ttft_ms, user_ttft_ms
from cadenza.stats.throughput import rate_per_s

# A dispatch this late, or this share of the mean TTFT, is large enough to be read as the server's.
MAX_LAG_MS, MAX_LAG_SHARE = 5.0, 0.05
# A closed loop's slot may stand empty for this share of its time, because the client was late to refill it.
MAX_IDLE_SHARE = 0.02
# Of the intended rate, in an open loop.
MIN_ACHIEVED_SHARE = 0.98
# Of the gap between tokens: read later than this, two of them begin to share a stamp.
MAX_READ_LAG_SHARE = 0.5
# A worker busier than this has no time left for a burst; one kept from its core for longer shares it with somebody.
MAX_CPU_SHARE, MAX_WAITED_SHARE = 0.9, 0.2
# Of what `cadenza calibrate` found that a worker can read.
MAX_CEILING_SHARE = 0.8


def check_client(point: Point, columns: Columns) -> list[Check]:
    """What `cadenza check` says of the client, in the order in which it is read."""
    if point.virtual:
        return _check_rate(point, columns)
    return [
        *_check_dispatch(point, columns),
        *_check_rate(point, columns),
        *_check_reads(columns),
        *_check_workers(point),
        *_check_ceiling(point, columns),
    ]


def stamps_are_kernels(columns: Columns) -> bool:
    """Whether every measured answer was stamped by the kernel throughout; stamping may begin during the warm-up."""
    came = columns.measured & np.isfinite(columns.first_ms)
    return bool(came.any() and np.isfinite(columns.read_lag_ms[came]).all())


def _check_dispatch(point: Point, columns: Columns) -> list[Check]:
    """The client's own lateness. Under a cap a late dispatch is the queue that the cap is for.

    In a closed loop TTFT counts from the dispatch and does not suffer, where the stamps are the kernel's; what suffers
    is the load, by the time that slots stand empty.
    """
    sent = columns.measured & np.isfinite(columns.sent_ms)
    closed = point.load is LoadLabel.CLOSED
    firsts = (ttft_ms if closed else user_ttft_ms)(columns)[sent & columns.ok]
    firsts = firsts[np.isfinite(firsts)]
    if not sent.any() or not len(firsts):
        return [Check("dispatch lag", None, "no answer to hold the client's lateness against")]
    lags = Distribution.of(dispatch_lag_ms(columns)[sent])
    # One hiccup among few requests is not the client's pace.
    name, lag = lags.headline, getattr(lags, lags.headline)
    if point.load is LoadLabel.CAPPED:
        return [Check("dispatch lag", None, f"the queue before the cap: dispatch lag {name} {lag:.1f} ms")]
    found = []
    if closed:
        busy = latency_ms(columns)[sent & columns.ok]
        busy_ms = float(busy[np.isfinite(busy)].mean())
        idle = lags.mean / (busy_ms + lags.mean)
        told = f"slots stood empty for {100 * idle:.2f} % of the time (allowed {100 * MAX_IDLE_SHARE:g} %)"
        late = idle > MAX_IDLE_SHARE
        found.append(check("empty slots", f"the client sent late: {told}" if late else told, late, _LIMITED))
        if stamps_are_kernels(columns):
            return [
                *found,
                Check("dispatch lag", Verdict.VALID, f"dispatch lag {name} {lag:.2f} ms, none of it in TTFT"),
            ]
    limit = max(MAX_LAG_MS, MAX_LAG_SHARE * float(firsts.mean()))
    late = lag > limit
    told = f"dispatch lag {name} {lag:.1f} ms, allowed {limit:.1f} ms"
    return [*found, check("dispatch lag", f"the client sent late: {told}" if late else told, late, _LIMITED)]


_LIMITED = Verdict.CLIENT_LIMITED


def _check_rate(point: Point, columns: Columns) -> list[Check]:
    if point.load is LoadLabel.CLOSED:
        return []
    sent = columns.measured & np.isfinite(columns.sent_ms)
    offered, achieved = rate_per_s(columns.intended_ms[sent]), rate_per_s(columns.sent_ms[sent])
    if not offered > 0:
        return [Check("rate", None, "fewer than two requests were sent at different times")]
    told = f"requests left at {achieved:.4g}/s where {offered:.4g}/s were due ({100 * achieved / offered:.2f} %)"
    if point.load is LoadLabel.CAPPED:
        return [Check("rate", None, told)]
    return [check("rate", told, achieved < MIN_ACHIEVED_SHARE * offered, _LIMITED)]


def _check_reads(columns: Columns) -> list[Check]:
    """Kernel stamps are right however late the read, up to the gap between two tokens of one answer."""
    answered = columns.measured & columns.ok & np.isfinite(columns.first_ms)
    if not answered.any():
        return []
    gaps = itl_ms(columns, columns.measured & columns.ok)
    together = float((gaps == 0).mean()) if len(gaps) else 0.0
    if not stamps_are_kernels(columns):
        own = int((~np.isfinite(columns.read_lag_ms[answered])).sum())
        told = f"{own} of {int(answered.sum())} answers were stamped by the client's reads, not by the kernel"
        return [Check("stamps", None, f"{told}: a busy client's lateness is in their latencies")]
    lags = Distribution.of(columns.read_lag_ms[answered])
    name, lag = lags.headline, getattr(lags, lags.headline)
    kernels = Check("stamps", Verdict.VALID, "every answer was stamped by the kernel as it came")
    if not len(gaps):
        return [kernels, Check("read lag", None, f"read lag {name} {lag:.2f} ms, and no gap to hold it against")]
    apart = gaps[gaps > 0]
    if not len(apart):
        return [kernels, Check("read lag", None, f"read lag {name} {lag:.2f} ms; each answer came in one piece")]
    gap = float(np.median(apart))
    told = f"read lag {name} {lag:.2f} ms of a gap of {gap:.2f} ms; {100 * together:.2f} % of events share a stamp"
    # Both: pieces read late and found together. Events that a server sends together are no fault of the client's.
    late = lag > MAX_READ_LAG_SHARE * gap and together > 0.01
    return [kernels, check("read lag", f"the client read late: {told}" if late else told, late, _LIMITED)]


def _check_workers(point: Point) -> list[Check]:
    found = []
    for worker in point.workers:
        if not worker.wall_s > 0:
            continue
        cpu = worker.cpu_s / worker.wall_s
        told = f"worker {worker.worker} used {100 * cpu:.0f} % of a core (allowed {100 * MAX_CPU_SHARE:.0f} %)"
        found.append(check("worker CPU", told, cpu > MAX_CPU_SHARE, _LIMITED))
        found.append(
            Check("loop lag", Verdict.VALID, f"worker {worker.worker} looked away for {worker.away_ms:.1f} ms at most")
        )
        if worker.waited_s is not None:
            waited = worker.waited_s / worker.wall_s
            told = f"worker {worker.worker} waited for its core {100 * waited:.0f} % of the time"
            limit = f"(allowed {100 * MAX_WAITED_SHARE:.0f} %)"
            busy = waited > MAX_WAITED_SHARE
            because = f"{told} {limit}: something else runs there" if busy else f"{told} {limit}"
            found.append(check("core", because, busy, Verdict.SUSPECT))
        if worker.clock_steps:
            told = f"the calendar clock jumped {worker.clock_steps} times: kernel stamps around it cannot be placed"
            found.append(Check("clock", Verdict.INVALID, told))
    if point.workers and not any(worker.clock_steps for worker in point.workers):
        found.append(Check("clock", Verdict.VALID, "the calendar clock did not jump"))
    return found


def ceiling_share(point: Point, columns: Columns) -> float:
    """**Share of the ceiling**: events a second of the whole point / what its workers can read, as calibrated.

    A fraction; NaN: the machine was not calibrated, or nobody knows how long the workers worked.
    """
    longest_s = max((worker.wall_s for worker in point.workers), default=0.0)
    if point.ceiling_events_per_s is None or not longest_s > 0:
        return float("nan")
    return len(columns.event_ms) / longest_s / (point.ceiling_events_per_s * len(point.workers))


def _check_ceiling(point: Point, columns: Columns) -> list[Check]:
    """How much of what this machine's client can do was asked of it."""
    if not point.workers:
        return []
    share = ceiling_share(point, columns)
    if point.ceiling_events_per_s is None or share != share:
        return [Check("ceiling", None, "not known: `cadenza calibrate` measures what this machine's client can hold")]
    ceiling = point.ceiling_events_per_s * len(point.workers)
    told = f"{share * ceiling:,.0f} events/s are {100 * share:.0f} % of the {ceiling:,.0f} that the client can read"
    if share > 1:
        return [Check("ceiling", _LIMITED, told)]
    return [check("ceiling", told, share > MAX_CEILING_SHARE, Verdict.SUSPECT)]
