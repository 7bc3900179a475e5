"""What the client does to its own process while measuring, and what it says that it used."""

import gc

import pytest

from cadenza.load.health import HealthMeter, undisturbed
from cadenza.load.transport import Counters


def test_garbage_collection_rests_and_comes_back_whatever_happens() -> None:
    assert gc.isenabled()
    with undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), undisturbed():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_meter_begins_at_zero_and_tells_what_the_transport_counted() -> None:
    counters = Counters(reads=7, away_ns=9, clock_steps=1, left_ns=5)
    meter = HealthMeter(counters)
    assert counters == Counters()
    counters.reads, counters.away_ns, counters.clock_steps = 3, 2_500_000, 2
    health = meter.read(4)
    assert (health.worker, health.reads, health.away_ms, health.clock_steps) == (4, 3, 2.5, 2)
    assert health.cpu_s >= 0
    assert health.wall_s > 0
