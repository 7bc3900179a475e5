"""The loop over the points: plan, load, record, and a summary that is true whenever the run breaks off."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import Summary, relate, summarise_point, to_json
from cadenza.clock import NS_PER_S, MonotonicClock
from cadenza.load.client import Client
from cadenza.load.health import HealthMeter, undisturbed
from cadenza.load.shard import Board, Share, Tally, run_shards, wait_until
from cadenza.load.sockets import SocketTransport
from cadenza.load.transport import Transport
from cadenza.measure.enough import Enough
from cadenza.measure.forecast import Forecast, response_s
from cadenza.measure.plan import Phrasing
from cadenza.measure.share import ShareRun, Stop, plan_share
from cadenza.readings import ReadingTable
from cadenza.record import LoadLabel, Point, PointStatus, Record, WorkerHealth
from cadenza.spec import Spec
from cadenza.store.rundir import RunWriter
from cadenza.store.tail import RunTail

# What every process needs to get ready, as a common start for all of them.
_READY_NS = 50_000_000
# However short a point's share of the time is.
_LEAST_COOLDOWN_S = 10.0
# Of a point's time, what its opening may take, and two rounds of warm-up; else it is one round.
_WARMUP_SHARE = 1 / 3


class Watcher(Protocol):
    """Receives the progress of a run. Called from the measuring loop: it must be quick."""

    def point_started(self, point: Point, position: int, total: int, forecast: Forecast) -> None: ...

    def point_goes_on(self, tally: Tally) -> None: ...

    def point_done(self, summary: PointSummary) -> None: ...


class Machine(Protocol):
    """Samples the machine while the run goes on: `watch.machine.MachineWatch`."""

    def edge(self, point: int) -> None:
        """The point begins, or has ended: read the engine's counters now."""
        ...

    def seen(self) -> ReadingTable:
        """All samples until now."""
        ...


class Access(NamedTuple):
    """How requests reach the server.

    make_transport   makes the transport of a further process; None (virtual time): there is only this one
    count_workers    how many processes a point takes
    """

    transport: Transport
    phrasing: Phrasing
    make_transport: Callable[[], SocketTransport] | None = None
    count_workers: Callable[[Point], int] = lambda point: 1


class Runner:
    """Measures the points of one manifest, in order: over one transport, or from several processes with one each.

    machine   samples the machine meanwhile; None: nothing does
    """

    def __init__(
        self,
        spec: Spec,
        access: Access,
        writer: RunWriter,
        watcher: Watcher,
        stop: Stop,
        tool: dict[str, str],
        machine: Machine | None = None,
    ) -> None:
        self._spec = spec
        self._transport = access.transport
        self._phrasing = access.phrasing
        self._writer = writer
        self._watcher = watcher
        self._stop = stop
        self._tool = tool
        self._make_transport = access.make_transport
        self._count_workers = access.count_workers
        self._machine = machine
        self._done: list[PointSummary] = []
        self._tail = RunTail(writer.path)
        self._client = self._client_over(access.transport)

    def run(self) -> Summary:
        """Measure until done or stopped; the summary so far is on disk after every point."""
        manifest = self._writer.manifest
        points = manifest.points
        answer_s = response_s(self._spec, manifest.server, points[0].model) if points else None
        forecast = Forecast(self._spec, points, answer_s)
        try:
            for position, point in enumerate(points, start=1):
                if self._stop():
                    break
                began_ns = self._client.now_ns()
                self._plan_time(point, forecast, answer_s)
                self._watcher.point_started(point, position, len(points), forecast)
                self._measure(point)
                forecast.done(point, (self._client.now_ns() - began_ns) / NS_PER_S)
                self._writer.save_summary(to_json(self.summary()))
        finally:
            self._client.close()
        return self.summary()

    def summary(self) -> Summary:
        """Of the points that have been begun."""
        return relate(self._done, simulated=self._writer.manifest.simulated, tool=self._tool)

    def _plan_time(self, point: Point, forecast: Forecast, answer_s: float | None) -> None:
        """How long the point may take, and over which time its slots are first filled: about that of one answer."""
        point.budget_s = forecast.budget_s(point)
        if point.budget_s is not None and point.cooldown_s is not None:
            point.cooldown_s = min(point.cooldown_s, max(_LEAST_COOLDOWN_S, point.budget_s))
        slots = point.concurrency or 1
        if point.load is not LoadLabel.CLOSED or point.warmup < slots:
            return
        latest = [done.latency_ms.mean for done in self._done if done.model == point.model and done.latency_ms.n]
        answer_s = latest[-1] / 1000 if latest else answer_s or 0.0
        point.opening_s = answer_s if point.budget_s is None else min(answer_s, _WARMUP_SHARE * point.budget_s)
        rounds_s = point.warmup / slots * answer_s
        if point.budget_s is not None and self._spec.warmup is None and rounds_s > _WARMUP_SHARE * point.budget_s:
            point.warmup = slots  # the residual lengths alone: they are those of the steady state

    def _client_over(self, transport: Transport) -> Client:
        origins = [target.origin for target in self._phrasing.targets]
        return Client(transport, origins, self._phrasing.dialect, self._spec.timeouts)

    def _measure(self, point: Point) -> None:
        begin = self._writer.mark()
        point.status = PointStatus.RUNNING
        try:
            if self._machine is not None:
                self._machine.edge(point.index)
            workers = self._count_workers(point) if self._make_transport else 1
            (self._measure_here if workers == 1 else self._measure_in_processes)(point, workers)
            point.status = PointStatus.INTERRUPTED if self._stop() else PointStatus.COMPLETE
        except BaseException:
            point.status = PointStatus.FAILED
            raise
        finally:
            point.end_ns = self._client.now_ns()
            if self._machine is not None and point.status is not PointStatus.FAILED:
                self._machine.edge(point.index)
            seen = None if self._machine is None else self._machine.seen()
            self._done.append(summarise_point(point, list(self._writer.read_since(begin)), self._spec.slo, seen))
        self._writer.save_manifest()
        self._watcher.point_done(self._done[-1])

    def _begin(self, point: Point, start_ns: int) -> None:
        point.start_ns = start_ns
        self._writer.save_manifest()

    def _measure_here(self, point: Point, workers: int) -> None:
        share, board = Share(), Board(workers)
        requests = plan_share(self._spec, self._phrasing, self._writer.manifest.server, point, share)
        enough = Enough(point) if point.auto else None

        def receive(record: Record) -> None:
            if enough is not None:
                enough.add(record)
                if enough.is_met():
                    board.say_enough()
            self._watcher.point_goes_on(board.total())

        self._begin(point, self._client.now_ns())
        with undisturbed():
            meter = HealthMeter(self._transport.counters) if self._transport.counters is not None else None
            start_ns = point.start_ns = self._client.now_ns()
            ShareRun(point, share, self._client, self._writer, board, self._stop, receive).run(requests, start_ns)
            if meter is not None:
                point.workers = [meter.read(share.worker)]

    def _measure_in_processes(self, point: Point, workers: int) -> None:
        make_transport = self._make_transport
        assert make_transport is not None
        server = self._writer.manifest.server
        clock = self._transport.clock
        assert isinstance(clock, MonotonicClock)
        plans = [plan_share(self._spec, self._phrasing, server, point, Share(w, workers)) for w in range(workers)]
        start_ns = clock.at_ns(time.monotonic_ns() + workers * _READY_NS)
        self._begin(point, start_ns)
        board = Board(workers)

        def work(share: Share, stop: Stop) -> WorkerHealth:
            with make_transport() as transport, self._writer.open_share(share.worker) as sink, undisturbed():
                client = self._client_over(transport)
                wait_until(client.now_ns, start_ns)
                meter = HealthMeter(transport.counters)
                run = ShareRun(point, share, client, sink, board, stop, lambda record: None)
                run.run(plans[share.worker], start_ns)
                client.close()
                return meter.read(share.worker)

        enough = Enough(point) if point.auto else None

        def watch(tally: Tally) -> None:
            if enough is not None and self._has_enough(enough, point):
                board.say_enough()
            self._watcher.point_goes_on(tally)

        with undisturbed():
            point.workers = run_shards(workers, work, board, watch, self._stop)

    def _has_enough(self, enough: Enough, point: Point) -> bool:
        """Of the records that the workers have written by now."""
        fresh = self._tail.read()
        for record in fresh.records:
            if record.point == point.index:
                enough.add(record)
        return not fresh.behind and enough.is_met()
