"""The two loops. Both send what an iterator of ready requests gives them and hand on each exchange as it ends.

One request leaves between two looks at the sockets: where many are due at once, each connection that opens is then
noticed, and used, while the others are still being made.

A loop ends when its requests are used up and the last answer is in, or when its course is over (`load.course`), or
when `stop` says so: then nothing more is sent, what is in flight is cancelled, and the rest of the plan is left for the
caller to record as dropped.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from cadenza.clock import NS_PER_S
from cadenza.load.client import Client
from cadenza.load.course import NEVER_NS, Course
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.record import Phase

Emit = Callable[[Exchange], None]
Stop = Callable[[], bool]

NOW_NS = 0  # a wait until then is a look and no wait
# While all slots are busy the course is asked this often: every event passes through the loop.
LOOK_NS = NS_PER_S // 10
_INTERRUPTED = "the run was interrupted"
_LOAD_ENDED = "not ended when the load did"
_FAILED = "the measurement failed"


def closed_loop(
    client: Client,
    requests: Iterator[Outgoing],
    slots: int,
    emit: Emit,
    stop: Stop,
    course: Course | None = None,
    starts_ns: Sequence[int] = (),
) -> list[Outgoing]:
    """Hold `slots` requests in flight: the next one is due the moment an answer has ended.

    starts_ns   when each slot is first filled, ascending; empty: all of them at once

    Returns what was next and never sent because of `stop`.
    """
    course = course or Course()
    opening: deque[int] = deque(starts_ns or [client.now_ns()] * slots)
    free: deque[int] = deque()  # when each slot without a request fell free
    ended: deque[Exchange] = deque()
    look_ns = 0
    upcoming = next(requests, None)
    with _ending(client, ended, emit, stop):
        while (opening or free or client.in_flight or ended) and not stop():
            now_ns = client.now_ns()
            while opening and opening[0] <= now_ns:
                free.append(opening.popleft())
            if free or now_ns >= look_ns:
                look_ns = now_ns + LOOK_NS
                if upcoming is None or course.is_over(upcoming, now_ns, now_ns):
                    opening.clear()
                    free.clear()
                    if course.gives_up(now_ns):
                        break
                elif free:
                    client.start(course.admit(upcoming), free.popleft())
                    upcoming = next(requests, None)
                    look_ns = 0  # at what comes next, too
            wait_ns = opening[0] if opening else NEVER_NS
            for exchange in client.turn(NOW_NS if free or ended else wait_ns):
                course.leave(exchange.outgoing)
                free.append(exchange.done_ns if exchange.done_ns is not None else client.now_ns())
                ended.append(exchange)
            if not free:
                _emit_one(ended, emit)
    return _planned([upcoming] if course.measures else [])


def open_loop(
    client: Client,
    requests: Iterator[Outgoing],
    start_ns: int,
    emit: Emit,
    stop: Stop,
    cap: int | None = None,
    course: Course | None = None,
) -> list[Outgoing]:
    """Send each request when it is due (`due_ns` after `start_ns`), however many are in flight.

    With a `cap` at most that many are in flight; the others queue here, and their time still counts from when they
    were due. Returns what was due, or next, and never sent because of `stop` or the end of the cooldown's time.
    """
    course = course or Course()
    queue: deque[Outgoing] = deque()
    ended: deque[Exchange] = deque()
    upcoming = next(requests, None)
    with _ending(client, ended, emit, stop):
        while (upcoming is not None or queue or client.in_flight or ended) and not stop():
            now_ns = client.now_ns()
            while upcoming is not None and _due_ns(upcoming, start_ns) <= now_ns:
                if course.is_over(upcoming, _due_ns(upcoming, start_ns), now_ns):
                    break
                queue.append(course.admit(upcoming))
                upcoming = next(requests, None)
            if upcoming is not None and course.is_over(upcoming, _due_ns(upcoming, start_ns), now_ns):
                if not client.in_flight or course.gives_up(now_ns):
                    break
                queue.clear()
                next_ns = NEVER_NS
            else:
                next_ns = NEVER_NS if upcoming is None else _due_ns(upcoming, start_ns)
            if queue and (cap is None or client.in_flight < cap):
                outgoing = queue.popleft()
                client.start(outgoing, _due_ns(outgoing, start_ns))
            busy = ended or (queue and (cap is None or client.in_flight < cap))
            for exchange in client.turn(NOW_NS if busy else next_ns):
                course.leave(exchange.outgoing)
                ended.append(exchange)
            _emit_one(ended, emit)
    return _planned([*queue, upcoming] if course.measures else queue)


@contextlib.contextmanager
def _ending(client: Client, ended: deque[Exchange], emit: Emit, stop: Stop) -> Iterator[None]:
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
    for exchange in (*ended, *client.cancel(_INTERRUPTED if stop() else _LOAD_ENDED)):
        emit(exchange)


def _emit_one(ended: deque[Exchange], emit: Emit) -> None:
    """Read one answer, if there is one to read, and look at the sockets again.

    Reading takes a microsecond or two for each of its tokens. Where many answers end together, reading them all at
    once would keep the next requests waiting.
    """
    if ended:
        emit(ended.popleft())


def _planned(left: Iterable[Outgoing | None]) -> list[Outgoing]:
    """Without the cooldown, which is no part of a plan."""
    return [outgoing for outgoing in left if outgoing is not None and outgoing.request.phase is not Phase.COOLDOWN]


def _due_ns(outgoing: Outgoing, start_ns: int) -> int:
    return start_ns + (outgoing.request.due_ns or 0)
