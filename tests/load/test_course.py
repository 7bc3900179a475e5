"""The measured part, the cooldown and their ends, against closed forms on a virtual clock."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.load.course import DRAIN_NS, NEVER_NS, Course
from cadenza.load.exchange import Outgoing
from cadenza.load.issue import closed_loop, open_loop
from cadenza.record import Outcome, Phase, Record
from support.loops import MS, Bench, in_flight_at, plan_on
from support.scripted import Script, ScriptedPeer, stream

S = 1000 * MS
LOOK_NS = 100 * MS  # the longest wait of the client
NOTHING: Script = []


def ms_of(records: list[Record], name: str) -> list[float]:
    return [getattr(r, name) / MS for r in records]


def test_slots_are_refilled_until_the_last_measured_answer_has_ended() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(5, first_ms=20 + n % 7, gap_ms=10)))
    left = closed_loop(bench.client, plan_on(8, 20), 4, bench.emit, bench.never, Course())
    assert left == []
    measured, after = bench.of(Phase.MEASURE), bench.of(Phase.COOLDOWN)
    assert [r.outcome for r in measured] == [Outcome.OK] * 20
    last_ns = max(r.done_ns or 0 for r in measured)
    assert bench.greatest == 4
    assert all(in_flight_at(bench.records, at_ns) == 4 for at_ns in range(0, last_ns, MS))
    # The last measured request met three others: as many were sent after it, at least.
    assert len(after) >= 3
    assert all(r.sent_ns is not None and r.sent_ns < last_ns and r.outcome is Outcome.OK for r in after)


def test_arrivals_go_on_until_the_last_measured_answer_has_ended_and_no_longer() -> None:
    """One every 10 ms, 95 ms each: the fifth is due at 40 ms and ends at 135; until then 50, 60 … 130 are due."""
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=95)))
    assert open_loop(bench.client, plan_on(0, 5, 10.0), 0, bench.emit, bench.never, course=Course()) == []
    assert ms_of(bench.of(Phase.MEASURE), "done_ns") == [95, 105, 115, 125, 135]
    assert ms_of(bench.of(Phase.COOLDOWN), "sent_ns") == [50, 60, 70, 80, 90, 100, 110, 120, 130]
    assert {r.outcome for r in bench.records} == {Outcome.OK}
    assert bench.client.now_ns() == 225 * MS  # nothing is waited for once the last answer is in


def test_under_a_cap_the_cooldown_queues_behind_what_is_measured() -> None:
    """One slot of 30 ms, one arrival every 10 ms: four measured ones end at 120 ms, and none is sent after that."""
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=30)))
    assert open_loop(bench.client, plan_on(0, 4, 10.0), 0, bench.emit, bench.never, 1, Course()) == []
    assert ms_of(bench.of(Phase.MEASURE), "sent_ns") == [0, 30, 60, 90]
    assert bench.of(Phase.COOLDOWN) == []


def test_one_slot_has_no_cooldown() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(3)))
    closed_loop(bench.client, plan_on(1, 5), 1, bench.emit, bench.never, Course())
    assert [r.phase for r in bench.records] == [Phase.WARMUP] + [Phase.MEASURE] * 5


@pytest.mark.parametrize("every_ms", [None, 10.0], ids=["closed", "open"])
def test_the_cooldown_is_bounded(every_ms: float | None) -> None:
    """The third measured request never ends: it is cancelled 2 s after it was due, and says why."""
    bench = Bench(ScriptedPeer(lambda n: NOTHING if n == 2 else stream(1, first_ms=40)))
    course = Course(cooldown_ns=2 * S)
    if every_ms is None:
        closed_loop(bench.client, plan_on(0, 3), 2, bench.emit, bench.never, course)
    else:
        open_loop(bench.client, plan_on(0, 3, every_ms), 0, bench.emit, bench.never, course=course)
    measured = bench.of(Phase.MEASURE)
    assert [r.outcome for r in measured] == [Outcome.OK, Outcome.OK, Outcome.CANCELLED]
    assert measured[2].detail == "not ended when the load did"
    bound_ns = measured[2].intended_ns + 2 * S
    assert bound_ns - 10 * MS <= (measured[2].done_ns or 0) <= bound_ns + LOOK_NS
    # Its slot apart, the load went on all the time.
    assert all(in_flight_at(bench.records, at_ns) >= 2 for at_ns in range(100 * MS, bound_ns - 10 * MS, 10 * MS))


def test_what_still_queues_at_the_bound_comes_back() -> None:
    bench = Bench(ScriptedPeer(lambda n: NOTHING))
    left = open_loop(bench.client, plan_on(0, 5, 10.0), 0, bench.emit, bench.never, 2, Course(cooldown_ns=S))
    assert [(r.index, r.outcome) for r in bench.records] == [(0, Outcome.CANCELLED), (1, Outcome.CANCELLED)]
    assert [(o.request.index, o.request.phase) for o in left] == [(k, Phase.MEASURE) for k in (2, 3, 4)]


@pytest.mark.parametrize("every_ms", [None, 10.0], ids=["closed", "open"])
def test_unmeasured_answers_are_waited_for_ten_seconds(every_ms: float | None) -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=50 + 9 * (n % 2)) if n < 4 else NOTHING))
    if every_ms is None:
        closed_loop(bench.client, plan_on(0, 4), 2, bench.emit, bench.never, Course())
    else:
        open_loop(bench.client, plan_on(0, 4, every_ms), 0, bench.emit, bench.never, course=Course())
    over_ns = max(r.done_ns or 0 for r in bench.of(Phase.MEASURE))
    after = bench.of(Phase.COOLDOWN)
    assert {r.outcome for r in after} == {Outcome.CANCELLED}
    assert all(over_ns + DRAIN_NS <= (r.done_ns or 0) <= over_ns + DRAIN_NS + LOOK_NS for r in after)


@pytest.mark.parametrize("every_ms", [None, 7.0], ids=["closed", "open"])
def test_a_time_ends_what_is_measured(every_ms: float | None) -> None:
    """Of a plan without end what is due before 100 ms is measured, and followed to its end."""
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=30)))
    course = Course(until_ns=100 * MS)
    if every_ms is None:
        left = closed_loop(bench.client, plan_on(0, 10_000), 3, bench.emit, bench.never, course)
        measured = [0, 0, 0, 30, 30, 30, 60, 60, 60, 90, 90, 90]
    else:
        left = open_loop(bench.client, plan_on(0, 10_000, every_ms), 0, bench.emit, bench.never, course=course)
        measured = [7 * k for k in range(15)]  # 0 … 98
    assert left == []  # nothing else was due
    assert ms_of(bench.of(Phase.MEASURE), "intended_ns") == measured
    last_ns = max(r.done_ns or 0 for r in bench.of(Phase.MEASURE))
    assert all(100 * MS <= r.intended_ns <= last_ns for r in bench.of(Phase.COOLDOWN))


@pytest.mark.parametrize("every_ms", [None, 7.0], ids=["closed", "open"])
def test_so_does_the_word_that_it_is_enough(every_ms: float | None) -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=30 + n % 3)))
    finished: list[int] = []
    course = Course(enough=lambda: len(bench.records) >= 10, finished=lambda: finished.append(len(bench.records)))
    if every_ms is None:
        left = closed_loop(bench.client, plan_on(0, 10_000), 3, bench.emit, bench.never, course)
    else:
        left = open_loop(bench.client, plan_on(0, 10_000, every_ms), 0, bench.emit, bench.never, course=course)
    assert left == []
    measured, after = bench.of(Phase.MEASURE), bench.of(Phase.COOLDOWN)
    assert [r.index for r in measured] == list(range(len(measured)))
    assert 10 < len(measured) <= 10 + 5  # those that were in flight: three, or 32 ms of arrivals
    assert [r.index for r in after] == list(range(len(measured), len(measured) + len(after)))
    assert {r.outcome for r in bench.records} == {Outcome.OK}
    assert len(finished) == 1  # said once


def test_a_process_goes_on_until_the_others_have_finished() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=30)))
    finished: list[int] = []

    def others() -> bool:
        return bench.client.now_ns() >= 500 * MS

    course = Course(finished=lambda: finished.append(bench.client.now_ns()), all_finished=others)
    closed_loop(bench.client, plan_on(0, 4), 2, bench.emit, bench.never, course)
    assert finished == [60 * MS]  # two rounds of two
    after = bench.of(Phase.COOLDOWN)
    assert max(r.sent_ns or 0 for r in after) == 480 * MS
    assert all(in_flight_at(bench.records, at_ns) == 2 for at_ns in range(0, 500 * MS, MS))


STOPS = {"warm-up": 1, "measured part": 6, "cooldown": 12}


@pytest.mark.parametrize("ended", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("every_ms", [None, 10.0], ids=["closed", "capped"])
def test_an_interrupt_loses_nothing(ended: int, every_ms: float | None) -> None:
    """Three of warm-up, eight measured of which the last never ends: each has a record, or is left."""
    bench = Bench(ScriptedPeer(lambda n: NOTHING if n == 10 else stream(1, first_ms=35)))
    requests = plan_on(3, 8, every_ms)

    def stop() -> bool:
        return len(bench.records) >= ended

    if every_ms is None:
        left = closed_loop(bench.client, requests, 3, bench.emit, stop, Course())
    else:
        left = open_loop(bench.client, requests, 0, bench.emit, stop, 3, Course())
    assert Phase.COOLDOWN not in {outgoing.request.phase for outgoing in left}
    rest = rest_of(requests)
    kept = [r.index for r in bench.records if r.phase is not Phase.COOLDOWN]
    assert sorted([*kept, *(o.request.index for o in (*left, *rest))]) == list(range(11))
    cut = [r for r in bench.records if r.outcome is not Outcome.OK]
    assert {(r.outcome, r.detail) for r in cut} == {(Outcome.CANCELLED, "the run was interrupted")}


def rest_of(requests: Iterator[Outgoing]) -> list[Outgoing]:
    """What of the plan has not been drawn."""
    rest: list[Outgoing] = []
    for outgoing in requests:
        if outgoing.request.phase is Phase.COOLDOWN:
            break
        rest.append(outgoing)
    return rest


@settings(max_examples=80, deadline=None)
@given(
    slots=st.integers(1, 6),
    warmup=st.integers(0, 8),
    planned=st.integers(1, 25),
    answers=st.lists(st.integers(0, 200), min_size=1, max_size=12),
    every_ms=st.one_of(st.none(), st.integers(1, 40)),
    cap=st.one_of(st.none(), st.integers(1, 5)),
    cooldown_ms=st.sampled_from([0, 30, 500, NEVER_NS // MS]),
)
def test_every_measured_request_has_one_record_whatever_the_load(
    slots: int,
    warmup: int,
    planned: int,
    answers: list[int],
    every_ms: int | None,
    cap: int | None,
    cooldown_ms: int,
) -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=answers[n % len(answers)])))
    course = Course(cooldown_ns=cooldown_ms * MS)
    if every_ms is None:
        left = closed_loop(bench.client, plan_on(warmup, planned), slots, bench.emit, bench.never, course)
        most: int | None = slots
    else:
        left = open_loop(bench.client, plan_on(warmup, planned, every_ms), 0, bench.emit, bench.never, cap, course)
        most = cap
    kept = [r.index for r in bench.records if r.phase is not Phase.COOLDOWN]
    assert sorted([*kept, *(o.request.index for o in left)]) == list(range(warmup + planned))
    assert most is None or bench.greatest <= most
    measured = bench.of(Phase.MEASURE)
    # A cooldown request is due while something measured is out, or queues.
    last_ns = NEVER_NS if any(o.request.phase is Phase.MEASURE for o in left) else max(r.done_ns or 0 for r in measured)
    assert all(r.intended_ns <= last_ns and (r.sent_ns or 0) <= last_ns for r in bench.of(Phase.COOLDOWN))
    if cooldown_ms > 500:
        assert left == []
        assert {r.outcome for r in bench.records} == {Outcome.OK}


def test_a_bound_of_no_time_follows_nobody() -> None:
    bench = Bench(ScriptedPeer(lambda n: stream(1, first_ms=30)))
    closed_loop(bench.client, plan_on(0, 4), 2, bench.emit, bench.never, Course(cooldown_ns=0))
    assert [r.outcome for r in bench.of(Phase.MEASURE)] == [Outcome.OK, Outcome.OK] + [Outcome.CANCELLED] * 2
