"""The kernel's calendar stamps on the run's clock, with clocks that do what the test says."""

import struct

from cadenza.load.stamps import Ancillary, ArrivalClock

S = 1_000_000_000
BASE = 1_700_000_000 * S  # calendar − monotonic


class Clocks:
    """Both clocks of a machine; `offset_ns` is what an administrator, or NTP, may step."""

    def __init__(self) -> None:
        self.monotonic_ns = 5 * S
        self.offset_ns = BASE

    def wall(self) -> int:
        return self.monotonic_ns + self.offset_ns

    def monotonic(self) -> int:
        return self.monotonic_ns


def stamp(wall_ns: int, kind: int = 35) -> Ancillary:
    return [(1, kind, struct.pack("@ll", wall_ns // S, wall_ns % S))]


def made(clocks: Clocks) -> ArrivalClock:
    return ArrivalClock(clocks.wall, clocks.monotonic)


def test_a_stamp_is_put_on_the_monotonic_clock() -> None:
    clocks = Clocks()
    arrivals = made(clocks)
    assert not arrivals.look()
    arrived_wall = clocks.wall() - 3_000_000
    assert arrivals.arrival_ns(stamp(arrived_wall), clocks.monotonic_ns) == clocks.monotonic_ns - 3_000_000


def test_no_stamp_or_another_message_is_not_known() -> None:
    clocks = Clocks()
    arrivals = made(clocks)
    assert arrivals.arrival_ns([], clocks.monotonic_ns) is None
    assert arrivals.arrival_ns(stamp(clocks.wall(), kind=29), clocks.monotonic_ns) is None
    assert arrivals.arrival_ns([(1, 35, b"short")], clocks.monotonic_ns) is None


def test_a_step_is_noticed_once_and_nothing_of_that_look_is_believed() -> None:
    clocks = Clocks()
    arrivals = made(clocks)
    before_step = clocks.wall()
    clocks.offset_ns += 2 * S
    assert arrivals.look()
    assert arrivals.arrival_ns(stamp(before_step), clocks.monotonic_ns) is None
    assert not arrivals.look()
    clocks.monotonic_ns += 1000
    assert arrivals.arrival_ns(stamp(clocks.wall() - 1000), clocks.monotonic_ns) == clocks.monotonic_ns - 1000


def test_a_small_adjustment_is_followed() -> None:
    clocks = Clocks()
    arrivals = made(clocks)
    clocks.offset_ns -= 100_000
    assert not arrivals.look()
    assert arrivals.arrival_ns(stamp(clocks.wall()), clocks.monotonic_ns) == clocks.monotonic_ns


def test_a_stamp_from_the_future_is_the_reads_own_time_or_unknown() -> None:
    clocks = Clocks()
    arrivals = made(clocks)
    assert arrivals.arrival_ns(stamp(clocks.wall() + 1000), clocks.monotonic_ns) == clocks.monotonic_ns
    assert arrivals.arrival_ns(stamp(clocks.wall() + S), clocks.monotonic_ns) is None


def test_an_interruption_between_the_clocks_is_not_taken_for_a_step() -> None:
    clocks = Clocks()
    arrivals = made(clocks)
    slow = iter([20_000_000, 0, 0, 0])

    def interrupted() -> int:
        clocks.monotonic_ns += next(slow, 0)
        return clocks.wall()

    arrivals._wall_ns = interrupted
    assert not arrivals.look()
