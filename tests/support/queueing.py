"""A server in virtual time that is a queue and nothing else: c servers, first come first served, service times given.

Queueing theory says what a client must measure of it, so that the client is checked against a closed form.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from support.scripted import DONE, END, HEAD, token, usage

# One token, whole at the end of its service: its TTFT is the time that it spent here.
ANSWER = HEAD + token(finish="length") + usage(5, 1) + DONE + END


class Freeze(NamedTuple):
    """No work is done in [start, end): what is in service then takes that much longer, and nothing else begins."""

    start_ns: int
    end_ns: int

    def delay(self, begin_ns: int, service_ns: int) -> tuple[int, int]:
        """When a service that could begin at `begin_ns` does begin, and when it ends."""
        if self.start_ns <= begin_ns < self.end_ns:
            begin_ns = self.end_ns
        end_ns = begin_ns + service_ns
        return begin_ns, end_ns + (self.end_ns - self.start_ns if begin_ns < self.start_ns < end_ns else 0)


NEVER = Freeze(0, 0)


class QueueingPeer:
    """`servers` of them (None: as many as there are requests); the n-th request to arrive needs `service_ns(n)`.

    The times are the peer's own, per request in the order of arrival: `arrived_ns`, `begun_ns` (in service),
    `ended_ns` (answered, in one piece).
    """

    def __init__(self, servers: int | None, service_ns: Callable[[int], int], freeze: Freeze = NEVER) -> None:
        self.arrived_ns: list[int] = []
        self.begun_ns: list[int] = []
        self.ended_ns: list[int] = []
        self._free: list[int] | None = None if servers is None else [0] * servers  # when each server is next free
        self._service_ns = service_ns
        self._freeze = freeze
        self._due: list[tuple[int, int, int]] = []  # (when, request, connection)
        self._gone: set[int] = set()

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        if not data:
            self._gone.add(connection)
            return
        n = len(self.arrived_ns)
        free_ns = now_ns if self._free is None else heapq.heappop(self._free)
        begin_ns, end_ns = self._freeze.delay(max(now_ns, free_ns), self._service_ns(n))
        if self._free is not None:
            heapq.heappush(self._free, end_ns)
        self.arrived_ns.append(now_ns)
        self.begun_ns.append(begin_ns)
        self.ended_ns.append(end_ns)
        heapq.heappush(self._due, (end_ns, n, connection))

    def next_ns(self) -> int | None:
        return self._due[0][0] if self._due else None

    def take(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        taken: list[tuple[int, bytes | None]] = []
        while self._due and self._due[0][0] <= now_ns:
            _, _, connection = heapq.heappop(self._due)
            if connection not in self._gone:
                taken.append((connection, ANSWER))
        return taken
