"""Both ways to watch sockets, on a real pair of them."""

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from cadenza.load.readiness import WRITABLE, Readiness, SelectorReadiness, make_readiness

pytestmark = pytest.mark.slow


@pytest.fixture(params=[make_readiness, SelectorReadiness], ids=["best", "selectors"])
def readiness(request: pytest.FixtureRequest) -> Iterator[Readiness]:
    make: Callable[[], Readiness] = request.param
    made = make()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        yield here, there


def flags(readiness: Readiness, wait_s: float) -> list[tuple[int, bool, bool]]:
    """(descriptor, for the read, for the write)"""
    return [(fd, ready != WRITABLE, bool(ready & WRITABLE)) for fd, ready in readiness.wait(wait_s)]


def test_input_and_room(readiness: Readiness, pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    readiness.watch(here.fileno(), read=True, write=False)
    assert flags(readiness, 0) == []
    there.send(b"x")
    assert flags(readiness, 1.0) == [(here.fileno(), True, False)]
    readiness.watch(here.fileno(), read=True, write=True)
    assert flags(readiness, 0.001) == [(here.fileno(), True, True)]
    readiness.forget(here.fileno())
    assert flags(readiness, 0) == []


def test_an_end_is_something_to_read(readiness: Readiness, pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    readiness.watch(here.fileno(), read=True, write=False)
    there.close()
    assert flags(readiness, 1.0) == [(here.fileno(), True, False)]


def test_a_wait_below_nothing_is_a_look(readiness: Readiness) -> None:
    assert flags(readiness, -5.0) == []


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's")
def test_linux_gets_epoll() -> None:
    made = make_readiness()
    assert not isinstance(made, SelectorReadiness)
    made.close()
