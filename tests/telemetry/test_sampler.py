"""The sampler on a clock of ours. Threads are real where they are the point, and waited for by events."""

import threading
from collections.abc import Callable

import pytest

from cadenza.clock import NS_PER_S, ManualClock
from cadenza.errors import UsageError
from cadenza.readings import Collected, Collector, Missing, Reading, Reason
from cadenza.telemetry.sampler import STALE_S, Sampler, State

GPU = (("gpu", "0000:43:00.0"), ("vendor", "amd"))
MS = 1_000_000


def busy(value: float, gpu: str = "0000:43:00.0") -> Reading:
    return Reading("gpu_busy_ratio", (("gpu", gpu), ("vendor", "amd")), value)


class Scripted(Collector):
    """Brings home what its script says, round by round, the last of it for ever; a callable in it is called."""

    def __init__(self, name: str, *script: Collected | Callable[[], Collected]) -> None:
        self.name = name
        self.calls = 0
        self._script = script

    def collect(self) -> Collected:
        step = self._script[min(self.calls, len(self._script) - 1)]
        self.calls += 1
        return step() if callable(step) else step


def only(sampler: Sampler) -> State:
    (state,) = sampler.states()
    return state


def test_before_the_first_round_there_is_nothing_but_age() -> None:
    clock = ManualClock(7)
    sampler = Sampler([Scripted("a", Collected([busy(1)], []))], clock=clock)
    clock.advance_to(7 + 3 * NS_PER_S)
    assert only(sampler) == State("a", False, 3.0, None, {}, [], None)


def test_a_round_is_kept_with_its_duration_and_grows_old() -> None:
    clock = ManualClock()

    def slow() -> Collected:
        clock.advance_to(clock.now_ns() + 250 * MS)
        return Collected([busy(0.5)], [Missing("gpu_fan_ratio", GPU[0][1], "absent")])

    sampler = Sampler([Scripted("a", slow)], clock=clock)
    sampler.poll()
    clock.advance_to(clock.now_ns() + 2 * NS_PER_S)
    state = only(sampler)
    assert (state.success, state.age_s, state.duration_s) == (True, 2.0, 0.25)
    assert state.readings == [busy(0.5)]
    assert state.missing == {"absent": 1}
    assert state.last_round is not None
    assert (state.last_round.number, state.last_round.began_ns, state.last_round.ended_ns) == (1, 0, 250 * MS)


def test_what_is_missing_is_counted_by_reason_over_all_rounds() -> None:
    reasons: list[Reason] = ["absent", "absent", "denied"]
    missing = [Missing("gpu_fan_ratio", "", reason) for reason in reasons]
    sampler = Sampler([Scripted("a", Collected([], missing), Collected([], missing[:1]), Collected([busy(1)], []))])
    for _ in range(3):
        sampler.poll()
    assert only(sampler).missing == {"absent": 3, "denied": 1}


def test_a_round_that_brings_nothing_is_no_success_and_the_next_one_may_be() -> None:
    sampler = Sampler([Scripted("a", Collected([], []), Collected([busy(0)], []))], clock=ManualClock())
    sampler.poll()
    assert not only(sampler).success
    sampler.poll()
    assert only(sampler).success


def test_the_series_of_a_card_that_vanished_are_gone_and_its_up_is_what_the_collector_says() -> None:
    up = Reading("gpu_up", GPU, 1.0)
    there = Collected([up, busy(1), busy(1, "0000:03:00.0")], [])
    gone = Collected([up._replace(value=0.0), busy(1, "0000:03:00.0")], [])
    sampler = Sampler([Scripted("amdgpu", there, gone)], clock=ManualClock())
    sampler.poll()
    assert busy(1) in only(sampler).readings
    sampler.poll()
    assert only(sampler).readings == [up._replace(value=0.0), busy(1, "0000:03:00.0")]


def test_readings_that_are_stale_are_told_no_more() -> None:
    clock = ManualClock()
    sampler = Sampler([Scripted("a", Collected([busy(1)], []))], clock=clock)
    sampler.poll()
    clock.advance_to(round(STALE_S * NS_PER_S))
    assert only(sampler).readings == [busy(1)]
    clock.advance_to(round(STALE_S * NS_PER_S) + 1)
    state = only(sampler)
    assert (state.success, state.readings) == (False, [])
    assert state.age_s > STALE_S
    assert state.last_round is not None


def test_at_a_long_interval_readings_may_be_as_old_as_twenty_of_it() -> None:
    clock = ManualClock()
    sampler = Sampler([Scripted("a", Collected([busy(1)], []))], interval_s=5, clock=clock)
    sampler.poll()
    clock.advance_to(100 * NS_PER_S)
    assert only(sampler).success
    clock.advance_to(100 * NS_PER_S + 1)
    assert not only(sampler).success


def test_a_collector_that_raises_fails_alone_and_is_asked_again() -> None:
    def broken() -> Collected:
        raise OSError("its promise was not to")

    sampler = Sampler(
        [Scripted("bad", broken, Collected([busy(1)], [])), Scripted("good", Collected([busy(0)], []))],
        clock=ManualClock(),
    )
    sampler.poll()
    bad, good = sampler.states()
    assert (bad.success, bad.missing) == (False, {"failed": 1})
    assert good.success
    sampler.poll()
    assert sampler.states()[0].success


@pytest.mark.parametrize(
    "reading",
    [
        Reading("gpu_nonsense", GPU, 1.0),
        Reading("gpu_busy_ratio", (), 1.0),
        Reading("gpu_busy_ratio", (*GPU, ("more", "x")), 1.0),
        Reading("gpu_temperature_celsius", (("sensor", "edge"), *GPU), 1.0),
        Reading("gpu_busy_ratio", GPU, float("nan")),
        Reading("gpu_busy_ratio", GPU, float("inf")),
        Reading("gpu_busy_ratio", (("gpu", "\udcff"), ("vendor", "amd")), 1.0),
    ],
)
def test_what_no_page_could_show_is_missing_and_counted(reading: Reading) -> None:
    sampler = Sampler([Scripted("a", Collected([reading, busy(1)], []))], clock=ManualClock())
    sampler.poll()
    state = only(sampler)
    assert state.readings == [busy(1)]
    assert state.missing == {"malformed": 1}


@pytest.mark.parametrize(
    "second",
    [
        Reading("gpu_busy_ratio", GPU, float("nan")),
        Reading("gpu_nonsense", GPU, 1.0),
        Reading("gpu_busy_ratio", (*GPU, ("more", "x")), 1.0),
    ],
)
def test_what_fitted_in_the_round_before_is_looked_at_again(second: Reading) -> None:
    rounds = [Collected(readings, []) for readings in ([busy(1), busy(1, "0000:03:00.0")], [second], [busy(2)])]
    sampler = Sampler([Scripted("a", *rounds)], clock=ManualClock())
    told = []
    for _ in rounds:
        sampler.poll()
        told.append(only(sampler).readings)
    assert told == [rounds[0].readings, [], [busy(2)]]
    assert only(sampler).missing == {"malformed": 1}


def test_a_day_of_rounds_leaves_no_more_behind_than_one() -> None:
    rounds = 0

    def churn() -> Collected:
        nonlocal rounds
        rounds += 1
        pid = Reading("gpu_process_memory_bytes", (*GPU, ("pid", str(rounds))), 1.0)
        return Collected([pid], [Missing("gpu_fan_ratio", str(rounds), "absent")])

    sampler = Sampler([Scripted("a", churn)], clock=ManualClock())
    for _ in range(5000):
        sampler.poll()
    state = only(sampler)
    assert [reading.labels[-1] for reading in state.readings] == [("pid", "5000")]
    assert state.missing == {"absent": 5000}


def follow_the_grid(*durations_ms: int) -> list[int]:
    """When rounds begin, in ms, at an interval of 500 ms, where each lasts so long."""
    clock = ManualClock()
    begun: list[int] = []

    def collect() -> Collected:
        begun.append(clock.now_ns() // MS)
        clock.advance_to(clock.now_ns() + durations_ms[len(begun) - 1] * MS)
        return Collected([], [])

    def wait(seconds: float) -> bool:
        clock.advance_to(clock.now_ns() + round(seconds * NS_PER_S))
        return len(begun) == len(durations_ms)

    Sampler([Scripted("a", collect)], interval_s=0.5, clock=clock)._sample(0, wait)
    return begun


def test_rounds_keep_to_the_grid_of_their_beginning_and_do_not_drift() -> None:
    assert follow_the_grid(0, 100, 499, 3, 0) == [0, 500, 1000, 1500, 2000]


def test_a_round_that_takes_longer_skips_its_turns() -> None:
    assert follow_the_grid(501, 500, 1700, 0) == [0, 1000, 1500, 3500]


def test_one_that_hangs_delays_no_other_and_is_left_behind() -> None:
    clock = ManualClock()
    release, stuck, thrice = threading.Event(), threading.Event(), threading.Event()

    def hang() -> Collected:
        stuck.set()
        release.wait()
        return Collected([busy(1)], [])

    class Quick(Scripted):
        def collect(self) -> Collected:
            if self.calls == 2:
                thrice.set()
            return super().collect()

    sampler = Sampler(
        [Scripted("rocm-smi", hang), Quick("amdgpu", Collected([busy(0.5)], []))], interval_s=0, clock=clock
    )
    sampler.start()
    assert stuck.wait(10)
    assert thrice.wait(10)
    assert sampler.wait(3, timeout_s=0) == ["rocm-smi"]
    clock.advance_to(5 * NS_PER_S)
    hung, quick = sampler.states()
    assert (hung.success, hung.age_s, hung.readings, hung.last_round) == (False, 5.0, [], None)
    assert quick.readings == [busy(0.5)]
    # The rest of the stop's patience passes on the manual clock, that is, at once.
    release.set()
    assert sampler.stop() == []


def test_waiting_ends_with_the_last_collectors_round() -> None:
    sampler = Sampler([Scripted(name, Collected([busy(1)], [])) for name in "ab"], interval_s=0)
    sampler.start()
    assert sampler.wait(2, timeout_s=10) == []
    assert sampler.stop() == []
    assert all(state.last_round is not None and state.last_round.number >= 2 for state in sampler.states())


def test_stopping_names_who_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.telemetry.sampler._STOP_S", 0.0)
    release, stuck = threading.Event(), threading.Event()

    def hang() -> Collected:
        stuck.set()
        release.wait()
        return Collected([], [])

    sampler = Sampler([Scripted("rocm-smi", hang)])
    sampler.start()
    assert stuck.wait(10)
    assert sampler.stop() == ["rocm-smi"]
    release.set()


def test_stop_closes_every_collector_once() -> None:
    closed: list[str] = []

    class Closing(Scripted):
        def close(self) -> None:
            closed.append(self.name)

    sampler = Sampler([Closing(name, Collected([busy(1)], [])) for name in ("a", "b")])
    sampler.start()
    assert sampler.wait(1, 5) == []
    assert closed == []
    assert sampler.stop() == []
    assert closed == ["a", "b"]


def test_two_collectors_with_the_same_series_are_an_error_that_names_both() -> None:
    other = Reading("gpu_busy_ratio", (("gpu", "0000:44:00.0"), ("vendor", "amd")), 1.0)
    sampler = Sampler([Scripted("one", Collected([busy(1)], [])), Scripted("other", Collected([other], []))])
    sampler.poll()
    sampler.check(0)
    sampler = Sampler([Scripted("one", Collected([busy(1)], [])), Scripted("other", Collected([other, busy(0)], []))])
    sampler.poll()
    with pytest.raises(UsageError, match=r"collectors one and other .* gpu_busy_ratio"):
        sampler.check(0)
