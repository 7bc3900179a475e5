"""Is a figure the server's, or the client's own? Its lateness, its cores, its clock."""

import numpy as np

from cadenza.analysis.finding import Finding, Verdict, check, unjudged, valid
from cadenza.record import LoadLabel, Point, WorkerHealth
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


def check_client(point: Point, columns: Columns) -> list[Finding]:
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


def _check_dispatch(point: Point, columns: Columns) -> list[Finding]:
    """The client's own lateness. Under a cap a late dispatch is the queue that the cap is for.

    In a closed loop TTFT counts from the dispatch and does not suffer, where the stamps are the kernel's; what suffers
    is the load, by the time that slots stand empty.
    """
    sent = columns.measured & np.isfinite(columns.sent_ms)
    closed = point.load is LoadLabel.CLOSED
    firsts = (ttft_ms if closed else user_ttft_ms)(columns)[sent & columns.ok]
    firsts = firsts[np.isfinite(firsts)]
    if not sent.any() or not len(firsts):
        return [unjudged("dispatch-lag", "no answer to hold the client's lateness against")]
    lags = Distribution.of(dispatch_lag_ms(columns)[sent])
    # One hiccup among few requests is not the client's pace.
    name, lag = lags.headline, getattr(lags, lags.headline)
    if point.load is LoadLabel.CAPPED:
        return [unjudged("dispatch-lag", f"the queue before the cap: dispatch lag {name} {lag:.1f} ms", lag_ms=lag)]
    findings = []
    if closed:
        busy = latency_ms(columns)[sent & columns.ok]
        busy_ms = float(busy[np.isfinite(busy)].mean())
        idle = lags.mean / (busy_ms + lags.mean)
        message = f"slots stood empty for {100 * idle:.2f} % of the time (allowed {100 * MAX_IDLE_SHARE:g} %)"
        late = idle > MAX_IDLE_SHARE
        message = f"the client sent late: {message}" if late else message
        shares = {"share": idle, "allowed_share": MAX_IDLE_SHARE}
        findings.append(check("empty-slots", message, late, _LIMITED, **shares))
        if stamps_are_kernels(columns):
            message = f"dispatch lag {name} {lag:.2f} ms, none of it in TTFT"
            return [*findings, valid("dispatch-lag", message, lag_ms=lag)]
    limit = max(MAX_LAG_MS, MAX_LAG_SHARE * float(firsts.mean()))
    late = lag > limit
    message = f"dispatch lag {name} {lag:.1f} ms, allowed {limit:.1f} ms"
    message = f"the client sent late: {message}" if late else message
    return [*findings, check("dispatch-lag", message, late, _LIMITED, lag_ms=lag, allowed_ms=limit)]


_LIMITED = Verdict.CLIENT_LIMITED


def _check_rate(point: Point, columns: Columns) -> list[Finding]:
    if point.load is LoadLabel.CLOSED:
        return []
    sent = columns.measured & np.isfinite(columns.sent_ms)
    offered, achieved = rate_per_s(columns.intended_ms[sent]), rate_per_s(columns.sent_ms[sent])
    if not offered > 0:
        return [unjudged("dispatch-rate", "fewer than two requests were sent at different times")]
    message = f"requests left at {achieved:.4g}/s where {offered:.4g}/s were due ({100 * achieved / offered:.2f} %)"
    numbers = {"achieved_per_s": achieved, "offered_per_s": offered}
    if point.load is LoadLabel.CAPPED:
        return [unjudged("dispatch-rate", message, **numbers)]
    return [check("dispatch-rate", message, achieved < MIN_ACHIEVED_SHARE * offered, _LIMITED, **numbers)]


def _check_reads(columns: Columns) -> list[Finding]:
    """Kernel stamps are right however late the read, up to the gap between two tokens of one answer."""
    answered = columns.measured & columns.ok & np.isfinite(columns.first_ms)
    if not answered.any():
        return []
    gaps = itl_ms(columns, columns.measured & columns.ok)
    together = float((gaps == 0).mean()) if len(gaps) else 0.0
    if not stamps_are_kernels(columns):
        own = int((~np.isfinite(columns.read_lag_ms[answered])).sum())
        n = int(answered.sum())
        message = f"{own} of {n} answers were stamped by the client's reads, not by the kernel"
        message += ": a busy client's lateness is in their latencies"
        return [unjudged("kernel-stamps", message, without=own, answers=n)]
    lags = Distribution.of(columns.read_lag_ms[answered])
    name, lag = lags.headline, getattr(lags, lags.headline)
    kernels = valid("kernel-stamps", "every answer was stamped by the kernel as it came", without=0)
    if not len(gaps):
        message = f"read lag {name} {lag:.2f} ms, and no gap to hold it against"
        return [kernels, unjudged("read-lag", message, lag_ms=lag)]
    apart = gaps[gaps > 0]
    if not len(apart):
        message = f"read lag {name} {lag:.2f} ms; each answer came in one piece"
        return [kernels, unjudged("read-lag", message, lag_ms=lag)]
    gap = float(np.median(apart))
    message = f"read lag {name} {lag:.2f} ms of a gap of {gap:.2f} ms; {100 * together:.2f} % of events share a stamp"
    # Both: pieces read late and found together. Events that a server sends together are no fault of the client's.
    late = lag > MAX_READ_LAG_SHARE * gap and together > 0.01
    message = f"the client read late: {message}" if late else message
    numbers = {"lag_ms": lag, "gap_ms": gap, "shared_stamp_share": together}
    return [kernels, check("read-lag", message, late, _LIMITED, **numbers)]


def _check_workers(point: Point) -> list[Finding]:
    workers = [worker for worker in point.workers if worker.wall_s > 0]
    findings = [finding for worker in workers for finding in _check_worker(worker)]
    if point.workers and not any(worker.clock_steps for worker in point.workers):
        findings.append(valid("clock-steps", "the calendar clock did not jump", steps=0))
    return findings


def _check_worker(worker: WorkerHealth) -> list[Finding]:
    n, cpu = worker.worker, worker.cpu_s / worker.wall_s
    message = f"worker {n} used {100 * cpu:.0f} % of a core (allowed {100 * MAX_CPU_SHARE:.0f} %)"
    numbers = {"worker": n, "share": cpu, "allowed_share": MAX_CPU_SHARE}
    findings = [check("worker-cpu", message, cpu > MAX_CPU_SHARE, _LIMITED, **numbers)]
    message = f"worker {n}: longest gap between polls {worker.away_ms:.1f} ms"
    findings.append(valid("loop-lag", message, worker=n, longest_ms=worker.away_ms))
    if worker.waited_s is not None:
        waited = worker.waited_s / worker.wall_s
        busy = waited > MAX_WAITED_SHARE
        message = f"worker {n} waited for its core {100 * waited:.0f} % of the time "
        message += f"(allowed {100 * MAX_WAITED_SHARE:.0f} %)" + (": something else runs there" if busy else "")
        numbers = {"worker": n, "share": waited, "allowed_share": MAX_WAITED_SHARE}
        findings.append(check("shared-core", message, busy, Verdict.SUSPECT, **numbers))
    if worker.clock_steps:
        message = f"the calendar clock jumped {worker.clock_steps} times: kernel stamps around it cannot be placed"
        findings.append(Finding("clock-steps", Verdict.INVALID, message, {"worker": n, "steps": worker.clock_steps}))
    return findings


def ceiling_share(point: Point, columns: Columns) -> float:
    """**Share of the ceiling**: events a second of the whole point / what its workers can read, as calibrated.

    A fraction; NaN: the machine was not calibrated, or nobody knows how long the workers worked.
    """
    longest_s = max((worker.wall_s for worker in point.workers), default=0.0)
    if point.ceiling_events_per_s is None or not longest_s > 0:
        return float("nan")
    return len(columns.event_ms) / longest_s / (point.ceiling_events_per_s * len(point.workers))


def _check_ceiling(point: Point, columns: Columns) -> list[Finding]:
    """How much of what this machine's client can do was asked of it."""
    if not point.workers:
        return []
    share = ceiling_share(point, columns)
    if point.ceiling_events_per_s is None or share != share:
        message = "not known: `cadenza calibrate` measures what this machine's client can hold"
        return [unjudged("client-ceiling", message)]
    ceiling = point.ceiling_events_per_s * len(point.workers)
    message = f"{share * ceiling:,.0f} events/s are {100 * share:.0f} % of the {ceiling:,.0f} that the client can read"
    verdict = _LIMITED if share > 1 else Verdict.SUSPECT
    numbers = {"events_per_s": share * ceiling, "ceiling_events_per_s": ceiling, "share": share}
    return [check("client-ceiling", message, share > MAX_CEILING_SHARE, verdict, **numbers)]
