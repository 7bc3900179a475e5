"""The loop over the points: plan, load, record, and a summary that is true whenever the run breaks off."""

import time
from collections.abc import Callable
from typing import Protocol

from cadenza.clock import MonotonicClock
from cadenza.load.client import Client
from cadenza.load.health import HealthMeter, undisturbed
from cadenza.load.shard import Board, Share, Tally, run_shards, wait_until
from cadenza.load.sockets import SocketTransport
from cadenza.load.transport import Transport
from cadenza.record import Point, PointStatus, WorkerHealth
from cadenza.spec import Spec
from cadenza.stats.summary import PointSummary, Summary, relate, summarise_point, to_json
from cadenza.store.rundir import RunWriter
from cadenza.sweep.plan import Phrasing
from cadenza.sweep.share import ShareRun, Stop, plan_share
from cadenza.sweep.watch import MachineWatch

# What every process needs to get ready, as a common start for all of them.
_READY_NS = 50_000_000


class Watcher(Protocol):
    """Who is told how a run goes. Called from the measuring loop: it has to be quick."""

    def point_started(self, point: Point, position: int, total: int) -> None: ...

    def point_goes_on(self, tally: Tally) -> None: ...

    def point_done(self, summary: PointSummary) -> None: ...


class Runner:
    """Measures the points of one manifest, in order: over `transport`, or from several processes with one each.

    make_transport   makes the transport of a process of its own; None (virtual time): there is only this one
    count_workers    how many processes a point takes
    machine          who watches the machine meanwhile; None: nobody
    """

    def __init__(
        self,
        spec: Spec,
        transport: Transport,
        phrasing: Phrasing,
        writer: RunWriter,
        watcher: Watcher,
        stop: Stop,
        tool: dict[str, str],
        make_transport: Callable[[], SocketTransport] | None = None,
        count_workers: Callable[[Point], int] = lambda point: 1,
        machine: MachineWatch | None = None,
    ) -> None:
        self._spec = spec
        self._transport = transport
        self._phrasing = phrasing
        self._writer = writer
        self._watcher = watcher
        self._stop = stop
        self._tool = tool
        self._make_transport = make_transport
        self._count_workers = count_workers
        self._machine = machine
        self._done: list[PointSummary] = []
        self._client = self._client_over(transport)

    def run(self) -> Summary:
        """Measure until done or stopped; the summary so far is on disk after every point."""
        points = self._writer.manifest.points
        try:
            for position, point in enumerate(points, start=1):
                if self._stop():
                    break
                self._watcher.point_started(point, position, len(points))
                self._measure(point)
                self._writer.save_summary(to_json(self.summary()))
        finally:
            self._client.close()
        return self.summary()

    def summary(self) -> Summary:
        """Of the points that have been begun."""
        return relate(self._done, simulated=self._writer.manifest.simulated, tool=self._tool)

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

        def count(worker: int, *, measured: bool, failed: bool, tokens: int, now_ns: int) -> None:
            board.count(worker, measured=measured, failed=failed, tokens=tokens, now_ns=now_ns)
            self._watcher.point_goes_on(board.total())

        self._begin(point, self._client.now_ns())
        with undisturbed():
            meter = HealthMeter(self._transport.counters) if self._transport.counters is not None else None
            start_ns = point.start_ns = self._client.now_ns()
            ShareRun(point, share, self._client, self._writer, count, self._stop).run(requests, start_ns)
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
                ShareRun(point, share, client, sink, board.count, stop).run(plans[share.worker], start_ns)
                client.close()
                return meter.read(share.worker)

        with undisturbed():
            point.workers = run_shards(workers, work, board, self._watcher.point_goes_on, self._stop)
