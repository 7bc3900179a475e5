"""One worker's part of a point: its slice of the plan, put on the server and written down."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Protocol

from cadenza.clock import NS_PER_S
from cadenza.load.client import Client
from cadenza.load.course import NEVER_NS, Course
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop, open_loop
from cadenza.load.shard import Board, Share
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from cadenza.spec import Spec
from cadenza.store.manifest import Server

Stop = Callable[[], bool]
# Requests that are made before the clock starts where nothing bounds the plan, and of the cooldown.
_READY = 1024


class Sink(Protocol):
    """Where records go."""

    def append(self, record: Record) -> None: ...


# Receives every record as it is made.
Receive = Callable[[Record], None]


def plan_share(spec: Spec, phrasing: Phrasing, server: Server, point: Point, share: Share) -> Iterator[Outgoing]:
    """The share's requests without end: what is measured, made before the clock starts, then the cooldown's."""
    options = options_for(spec, point.model, server)
    drawn = draw_requests(spec, point, share.worker, share.of, cooldown=True)
    made = (phrasing.put(request, options) for request in drawn)
    ready: list[Outgoing] = []
    bounded = point.planned is not None or (point.duration_s is not None and point.load is not LoadLabel.CLOSED)
    for outgoing in made if bounded else islice(made, _READY):
        ready.append(outgoing)
        if outgoing.request.phase is Phase.COOLDOWN:
            ready += islice(made, share.slots(point.concurrency or _READY))
            break
    return chain(ready, made)


class ShareRun:
    """Puts one share on the server through `client`; every record goes to `sink`, and to `receive`, as it is made."""

    def __init__(
        self, point: Point, share: Share, client: Client, sink: Sink, board: Board, stop: Stop, receive: Receive
    ) -> None:
        self._point = point
        self._share = share
        self._client = client
        self._sink = sink
        self._board = board
        self._stop = stop
        self._receive = receive

    def run(self, requests: Iterator[Outgoing], start_ns: int) -> None:
        """From `start_ns` on until every measured answer is in, or the cooldown's time is over."""
        point, client, course = self._point, self._client, self._course(start_ns)
        if point.load is LoadLabel.CLOSED:
            assert point.concurrency is not None
            slots = self._share.slots(point.concurrency)
            starts_ns = self._starts_ns(slots, start_ns)
            left = closed_loop(client, requests, slots, self._ended, self._stop, course, starts_ns)
        else:
            cap = None if point.concurrency is None else self._share.slots(point.concurrency)
            left = open_loop(client, requests, start_ns, self._ended, self._stop, cap, course)
        self._board.finish(self._share.worker)  # no other share waits for one with nothing to measure
        if point.planned is not None:
            left += _until_cooldown(requests) if self._stop() else ()
        else:  # no number was planned: only what was due by now is missing
            now_ns = client.now_ns()
            left = [o for o in left if o.request.due_ns is not None and start_ns + o.request.due_ns <= now_ns]
        for outgoing in left:
            self._drop(outgoing, start_ns)

    def _course(self, start_ns: int) -> Course:
        point = self._point
        seconds = point.duration_s if point.duration_s is not None else point.budget_s
        return Course(
            until_ns=NEVER_NS if seconds is None else start_ns + round(seconds * NS_PER_S),
            cooldown_ns=NEVER_NS if point.cooldown_s is None else round(point.cooldown_s * NS_PER_S),
            enough=lambda: self._board.enough,
            finished=lambda: self._board.finish(self._share.worker),
            all_finished=lambda: self._board.all_finished,
        )

    def _starts_ns(self, slots: int, start_ns: int) -> list[int]:
        """Slot n of the whole point is first filled n / C of the opening's time after the start."""
        apart_ns = self._point.opening_s * NS_PER_S / (self._point.concurrency or 1)
        return [start_ns + round(apart_ns * (self._share.worker + n * self._share.of)) for n in range(slots)]

    def _ended(self, exchange: Exchange) -> None:
        self._keep(exchange.record(self._point.index, self._point.model, self._share.worker))

    def _keep(self, record: Record) -> None:
        self._sink.append(record)
        self._board.count(
            self._share.worker,
            measured=record.phase is Phase.MEASURE,
            failed=record.outcome is not Outcome.OK,
            tokens=record.output_tokens or 0,
            now_ns=record.done_ns or self._client.now_ns(),
        )
        self._receive(record)

    def _drop(self, outgoing: Outgoing, start_ns: int) -> None:
        request, now_ns = outgoing.request, self._client.now_ns()
        interrupted = "the run was interrupted" if self._stop() else "the load ended while it queued at the client"
        self._keep(
            Record(
                point=self._point.index,
                index=request.index,
                phase=request.phase,
                model=self._point.model,
                outcome=Outcome.DROPPED,
                intended_ns=now_ns if request.due_ns is None else start_ns + request.due_ns,
                done_ns=now_ns,
                detail=f"never sent: {interrupted}",
                target=outgoing.target,
                worker=self._share.worker,
            )
        )


def _until_cooldown(requests: Iterable[Outgoing]) -> Iterator[Outgoing]:
    """What was planned and is left."""
    for outgoing in requests:
        if outgoing.request.phase is Phase.COOLDOWN:
            return
        yield outgoing
