"""Which sockets have something to say: epoll where there is one, else the standard selectors (kqueue, on macOS).

epoll counts its waits in milliseconds; its descriptor can be waited for by `select`, which has microseconds.
"""

import select
import selectors
import sys
from typing import Protocol

# (file descriptor, what it is ready for). Anything but WRITABLE alone is for the read: that tells what an error is.
Ready = tuple[int, int]
READABLE, WRITABLE = 1, 4  # epoll's numbers, so that its answer needs no translation


class Readiness(Protocol):
    """Watches descriptors for input, and for room where asked."""

    def watch(self, fd: int, *, read: bool, write: bool) -> None:
        """Begin to watch, or change what is watched for."""
        ...

    def forget(self, fd: int) -> None: ...

    def wait(self, wait_s: float) -> list[Ready]:
        """What is ready, after `wait_s` at most, or sooner; no wait where that is not above 0."""
        ...

    def close(self) -> None: ...


def make_readiness() -> Readiness:
    """The best of this system."""
    return EpollReadiness() if sys.platform == "linux" else SelectorReadiness()


class SelectorReadiness:
    """`selectors.DefaultSelector`: portable, and half a microsecond an event slower."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, *, read: bool, write: bool) -> None:
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        if fd in self._selector.get_map():
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)

    def forget(self, fd: int) -> None:
        self._selector.unregister(fd)

    def wait(self, wait_s: float) -> list[Ready]:
        return [
            (key.fd, (READABLE if e & selectors.EVENT_READ else 0) | (WRITABLE if e & selectors.EVENT_WRITE else 0))
            for key, e in self._selector.select(max(0.0, wait_s))
        ]

    def close(self) -> None:
        self._selector.close()


if sys.platform == "linux":
    assert (select.EPOLLIN, select.EPOLLOUT) == (READABLE, WRITABLE)
    _TICK_S = 0.001

    class EpollReadiness:
        """epoll, level-triggered."""

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self._own = [self._epoll.fileno()]
            self._watched: set[int] = set()

        def watch(self, fd: int, *, read: bool, write: bool) -> None:
            events = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
            if fd in self._watched:
                self._epoll.modify(fd, events)
            else:
                self._epoll.register(fd, events)
                self._watched.add(fd)

        def forget(self, fd: int) -> None:
            self._watched.discard(fd)
            self._epoll.unregister(fd)

        def wait(self, wait_s: float) -> list[Ready]:
            if wait_s > 2 * _TICK_S:
                return self._epoll.poll(wait_s - _TICK_S)  # rounded up, so early; the caller comes again for the rest
            if wait_s > 0:
                select.select(self._own, (), (), wait_s)
            return self._epoll.poll(0)

        def close(self) -> None:
            self._epoll.close()
