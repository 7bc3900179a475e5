"""One worker's part of a point: its slice of the plan, put on the server and written down."""

from collections.abc import Callable, Iterator
from typing import Protocol

from cadenza.clock import NS_PER_S
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import NEVER_NS, closed_loop, open_loop
from cadenza.load.shard import Share
from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from cadenza.spec import Spec
from cadenza.store.manifest import Server
from cadenza.sweep.plan import Phrasing, draw_requests, options_for

Stop = Callable[[], bool]


class Sink(Protocol):
    """Where records go."""

    def append(self, record: Record) -> None: ...


class Count(Protocol):
    """Who keeps the score."""

    def __call__(self, worker: int, *, measured: bool, failed: bool, tokens: int, now_ns: int) -> None: ...


def plan_share(spec: Spec, phrasing: Phrasing, server: Server, point: Point, share: Share) -> Iterator[Outgoing]:
    """The share's requests, made before the clock starts, but for a closed loop that only a duration bounds."""
    options = options_for(spec, point.model, server)
    made = (phrasing.put(request, options) for request in draw_requests(spec, point, share.worker, share.of))
    bounded = point.planned is not None or point.load is not LoadLabel.CLOSED
    return iter(list(made)) if bounded else made


class ShareRun:
    """Puts one share on the server through `client`; every record goes to `sink`, and is counted, as it is made."""

    def __init__(self, point: Point, share: Share, client: Client, sink: Sink, count: Count, stop: Stop) -> None:
        self._point = point
        self._share = share
        self._client = client
        self._sink = sink
        self._count = count
        self._stop = stop

    def run(self, requests: Iterator[Outgoing], start_ns: int) -> None:
        """From `start_ns` on until the requests, or their time, are used up and every answer is in."""
        point, client = self._point, self._client
        if point.load is LoadLabel.CLOSED:
            assert point.concurrency is not None
            until_ns = NEVER_NS if point.duration_s is None else start_ns + round(point.duration_s * NS_PER_S)
            closed_loop(client, requests, self._share.slots(point.concurrency), self._ended, self._stop, until_ns)
        else:
            cap = None if point.concurrency is None else self._share.slots(point.concurrency)
            for outgoing in open_loop(client, requests, start_ns, self._ended, self._stop, cap):
                self._drop(outgoing, start_ns)
        if point.planned is not None:
            for outgoing in requests:
                self._drop(outgoing, start_ns)

    def _ended(self, exchange: Exchange) -> None:
        self._keep(exchange.record(self._point.index, self._point.model, self._share.worker))

    def _keep(self, record: Record) -> None:
        self._sink.append(record)
        self._count(
            self._share.worker,
            measured=record.phase is Phase.MEASURE,
            failed=record.outcome is not Outcome.OK,
            tokens=record.output_tokens or 0,
            now_ns=record.done_ns or self._client.now_ns(),
        )

    def _drop(self, outgoing: Outgoing, start_ns: int) -> None:
        request = outgoing.request
        self._keep(
            Record(
                point=self._point.index,
                index=request.index,
                phase=request.phase,
                model=self._point.model,
                outcome=Outcome.DROPPED,
                intended_ns=self._client.now_ns() if request.due_ns is None else start_ns + request.due_ns,
                detail="never sent: the run was interrupted",
                target=outgoing.target,
                worker=self._share.worker,
            )
        )
