"""When the measured part of a point is over, and when its load is: measured requests are followed to their end.

While measured requests are out the same load goes on unmeasured (the cooldown), so that the last of them see the load
that the first saw. It ends when nothing measured is out any more, in any of the processes that share the load, or
when its time is over.
"""

from collections.abc import Callable

import msgspec

from cadenza.clock import NS_PER_S
from cadenza.load.exchange import Outgoing
from cadenza.record import Phase

NEVER_NS = 1 << 62
# How long unmeasured requests are waited for once the load has ended: cutting them off would leave work at the server.
DRAIN_NS = 10 * NS_PER_S


def _never() -> bool:
    return False


def _always() -> bool:
    return True


class Course:
    """One process's view of a point's course.

    until_ns       what is due (closed loop: sent) from then on is not measured
    cooldown_ns    how long measured requests are followed after the last of them was due
    enough         True: no further request is measured
    finished       called once, when nothing measured is out any more
    all_finished   whether that holds for all processes of the load
    """

    def __init__(
        self,
        until_ns: int = NEVER_NS,
        cooldown_ns: int = NEVER_NS,
        enough: Callable[[], bool] = _never,
        finished: Callable[[], None] = lambda: None,
        all_finished: Callable[[], bool] = _always,
    ) -> None:
        self._until_ns = until_ns
        self._cooldown_ns = cooldown_ns
        self._enough = enough
        self._finished = finished
        self._all_finished = all_finished
        self._out = 0
        self._has_finished = False
        self._bound_ns: int | None = None  # of the cooldown; None: still measuring
        self._over_ns: int | None = None

    @property
    def measures(self) -> bool:
        """Whether what is due next is still measured; else it is part of the cooldown, which is in no plan."""
        return self._bound_ns is None

    def admit(self, outgoing: Outgoing) -> Outgoing:
        """`outgoing` is due now: as it is, or as part of the cooldown."""
        phase = outgoing.request.phase
        if self._bound_ns is not None and phase is not Phase.COOLDOWN:
            request = msgspec.structs.replace(outgoing.request, phase=Phase.COOLDOWN)
            return outgoing._replace(request=request)
        self._out += phase is Phase.MEASURE
        return outgoing

    def leave(self, outgoing: Outgoing) -> None:
        """An admitted request has ended, however."""
        self._out -= outgoing.request.phase is Phase.MEASURE

    def is_over(self, upcoming: Outgoing, due_ns: int, now_ns: int) -> bool:
        """Whether the load ends before `upcoming`, which is due at `due_ns`."""
        if self._over_ns is not None:
            return True
        if self._bound_ns is None:
            measures = upcoming.request.phase is not Phase.COOLDOWN and due_ns < self._until_ns
            if measures and not self._enough():
                return False
            self._bound_ns = now_ns + self._cooldown_ns
        if self._out == 0 and not self._has_finished:
            self._has_finished = True
            self._finished()
        if now_ns >= self._bound_ns or (self._out == 0 and self._all_finished()):
            self._over_ns = now_ns
        return self._over_ns is not None

    def gives_up(self, now_ns: int) -> bool:
        """Whether what is still in flight is not waited for: the cooldown's time is over, or the drain's."""
        if self._bound_ns is None or self._over_ns is None:
            return False
        return now_ns >= self._bound_ns or now_ns >= self._over_ns + DRAIN_NS
