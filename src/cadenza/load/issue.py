"""The two loops. Both send what an iterator of ready requests gives them and hand on each exchange as it ends.

One request leaves between two looks at the sockets: where many are due at once, each connection that opens is then
noticed, and used, while the others are still being made.

A loop ends when its requests are used up and the last answer is in, or when `stop` says so: then nothing more is
sent, what is in flight is cancelled, and the rest of the plan is left in the iterator for the caller to record as
dropped. `until_ns` ends the sending only: answers that are under way are waited for.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing

Emit = Callable[[Exchange], None]
Stop = Callable[[], bool]

NEVER_NS = 1 << 62
NOW_NS = 0  # a wait until then is a look and no wait
_INTERRUPTED = "the run was interrupted"
_FAILED = "the measurement failed"


def closed_loop(
    client: Client, requests: Iterator[Outgoing], slots: int, emit: Emit, stop: Stop, until_ns: int = NEVER_NS
) -> None:
    """Hold `slots` requests in flight: the next one is due the moment an answer has ended."""
    free: deque[int] = deque([client.now_ns()] * slots)  # when each slot without a request fell free
    ended: deque[Exchange] = deque()
    with _ending(client, ended, emit):
        while (free or client.in_flight or ended) and not stop():
            if free and not _start_next(client, requests, free.popleft(), until_ns):
                free.clear()
            for exchange in client.turn(NOW_NS if free or ended else NEVER_NS):
                free.append(exchange.done_ns if exchange.done_ns is not None else client.now_ns())
                ended.append(exchange)
            if not free:
                _emit_one(ended, emit)


def open_loop(
    client: Client,
    requests: Iterator[Outgoing],
    start_ns: int,
    emit: Emit,
    stop: Stop,
    cap: int | None = None,
) -> list[Outgoing]:
    """Send each request when it is due (`due_ns` after `start_ns`), however many are in flight.

    With a `cap` at most that many are in flight; the others queue here, and their time still counts from when they
    were due. Returns what was queued and never sent because of `stop`.
    """
    queue: deque[Outgoing] = deque()
    ended: deque[Exchange] = deque()
    upcoming = next(requests, None)
    with _ending(client, ended, emit):
        while (upcoming is not None or queue or client.in_flight or ended) and not stop():
            now_ns = client.now_ns()
            while upcoming is not None and _due_ns(upcoming, start_ns) <= now_ns:
                queue.append(upcoming)
                upcoming = next(requests, None)
            if queue and (cap is None or client.in_flight < cap):
                outgoing = queue.popleft()
                client.start(outgoing, _due_ns(outgoing, start_ns))
            busy = ended or (queue and (cap is None or client.in_flight < cap))
            next_ns = NEVER_NS if upcoming is None else _due_ns(upcoming, start_ns)
            ended.extend(client.turn(NOW_NS if busy else next_ns))
            _emit_one(ended, emit)
    return list(queue) + ([upcoming] if upcoming is not None else [])


@contextlib.contextmanager
def _ending(client: Client, ended: deque[Exchange], emit: Emit) -> Iterator[None]:
    """However the loop ends: what has ended, and what is cut off, is handed on, and no connection stays open after a
    failure of our own, which may be that there are no more files to open.
    """
    try:
        yield
    except BaseException:
        cut = client.cancel(_FAILED)
        client.close()
        with contextlib.suppress(Exception):  # the first failure is the one to tell
            for exchange in (*ended, *cut):
                emit(exchange)
        raise
    for exchange in (*ended, *client.cancel(_INTERRUPTED)):
        emit(exchange)


def _emit_one(ended: deque[Exchange], emit: Emit) -> None:
    """Read one answer, if there is one to read, and look at the sockets again.

    Reading takes a microsecond or two for each of its tokens. Where many answers end together, reading them all at
    once would keep the next requests waiting.
    """
    if ended:
        emit(ended.popleft())


def _start_next(client: Client, requests: Iterator[Outgoing], intended_ns: int, until_ns: int) -> bool:
    if client.now_ns() >= until_ns or (outgoing := next(requests, None)) is None:
        return False
    client.start(outgoing, intended_ns)
    return True


def _due_ns(outgoing: Outgoing, start_ns: int) -> int:
    return start_ns + (outgoing.request.due_ns or 0)
