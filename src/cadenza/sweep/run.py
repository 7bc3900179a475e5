"""The loop over the points: plan, load, record, and a summary that is true whenever the run breaks off."""

from collections.abc import Callable, Iterator
from typing import Protocol

from cadenza.clock import NS_PER_S
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import NEVER_NS, closed_loop, open_loop
from cadenza.load.transport import Transport
from cadenza.record import LoadLabel, Outcome, Point, PointStatus, Record
from cadenza.spec import Spec
from cadenza.stats.summary import PointSummary, Summary, relate, summarise_point, to_json
from cadenza.store.rundir import RunWriter
from cadenza.sweep.plan import Phrasing, draw_requests, options_for

Stop = Callable[[], bool]


class Watcher(Protocol):
    """Who is told how a run goes. Called from the measuring loop: it has to be quick."""

    def point_started(self, point: Point, position: int, total: int) -> None: ...

    def request_ended(self, record: Record) -> None: ...

    def point_done(self, summary: PointSummary) -> None: ...


class Runner:
    """Measures the points of one manifest, in order, over one transport."""

    def __init__(
        self,
        spec: Spec,
        transport: Transport,
        phrasing: Phrasing,
        writer: RunWriter,
        watcher: Watcher,
        stop: Stop,
        tool: dict[str, str],
    ) -> None:
        self._spec = spec
        self._phrasing = phrasing
        self._writer = writer
        self._watcher = watcher
        self._stop = stop
        self._tool = tool
        self._done: list[PointSummary] = []
        origins = [target.origin for target in phrasing.targets]
        self._client = Client(transport, origins, phrasing.dialect, spec.timeouts)

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

    def _measure(self, point: Point) -> None:
        records: list[Record] = []

        def keep(record: Record) -> None:
            records.append(record)  # first, so that a full disk does not take it out of the report
            self._writer.append(record)
            self._watcher.request_ended(record)

        requests = self._requests(point)
        point.status, point.start_ns = PointStatus.RUNNING, self._client.now_ns()
        self._writer.save_manifest()
        try:
            for outgoing in self._load(
                point, requests, lambda exchange: keep(exchange.record(point.index, point.model))
            ):
                keep(self._dropped(point, outgoing))
            point.status = PointStatus.INTERRUPTED if self._stop() else PointStatus.COMPLETE
        except BaseException:
            point.status = PointStatus.FAILED
            raise
        finally:
            point.end_ns = self._client.now_ns()
            self._done.append(summarise_point(point, records))
        self._writer.save_manifest()
        self._watcher.point_done(self._done[-1])

    def _requests(self, point: Point) -> Iterator[Outgoing]:
        """Made before the clock starts, but for a closed loop that only a duration bounds."""
        options = options_for(self._spec, point.model, self._writer.manifest.server)
        made = (self._phrasing.put(request, options) for request in draw_requests(self._spec, point))
        bounded = point.planned is not None or point.load is not LoadLabel.CLOSED
        return iter(list(made)) if bounded else made

    def _load(self, point: Point, requests: Iterator[Outgoing], emit: Callable[[Exchange], None]) -> Iterator[Outgoing]:
        """Put the load on; what of the plan was never sent because of an interrupt."""
        start_ns = self._client.now_ns()
        if point.load is LoadLabel.CLOSED:
            assert point.concurrency is not None
            until_ns = NEVER_NS if point.duration_s is None else start_ns + round(point.duration_s * NS_PER_S)
            closed_loop(self._client, requests, point.concurrency, emit, self._stop, until_ns)
        else:
            yield from open_loop(self._client, requests, start_ns, emit, self._stop, point.concurrency)
        if point.planned is not None:
            yield from requests

    def _dropped(self, point: Point, outgoing: Outgoing) -> Record:
        now_ns = self._client.now_ns()
        request = outgoing.request
        return Record(
            point=point.index,
            index=request.index,
            phase=request.phase,
            model=point.model,
            outcome=Outcome.DROPPED,
            intended_ns=now_ns if request.due_ns is None else (point.start_ns or 0) + request.due_ns,
            detail="never sent: the run was interrupted",
            target=outgoing.target,
        )
