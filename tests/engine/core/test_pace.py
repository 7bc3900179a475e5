"""Pace: what it promises of any stretches, and both clocks under it, against timelines worked out by hand."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.clock import NS_PER_S
from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.outbox import Token
from cadenza.engine.core.pace import FULL, STOPPED, Pace, Stretch
from cadenza.engine.core.sequence import Limits
from cadenza.hardware.batch import Batch

MS = 1_000_000
PACES = st.one_of(
    st.just(STOPPED),
    st.just(FULL),
    st.integers(1, 50).map(lambda factor: Fraction(1, factor)),
    st.floats(0, 1).map(Fraction),
)
STRETCHES = st.lists(
    st.builds(lambda at, length, pace: Stretch(at, at + length, pace), st.integers(0, 400), st.integers(0, 200), PACES),
    max_size=5,
)
TIMES = st.integers(0, 700)


class Law:
    """`prefill` ms to the first token (None: 1 ms a prompt token, in the step), 10 ms to each that follows."""

    def __init__(self, prefill: int | None) -> None:
        self.prefill = prefill

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return 10 * MS + (batch.prefill_tok * MS if self.prefill is None else 0)

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int | None:
        return None if self.prefill is None else self.prefill * in_system * MS

    def request_ns(self) -> int:
        return 0


BESIDE, STEPPED = Law(100), Law(None)


def core_of(law: Law, *stretches: Stretch, **limits: object) -> Core:
    core = Core({"m": Instance("m", law, Limits(**limits))})  # type: ignore[arg-type]
    if stretches:
        core.set_pace(Pace(stretches))
    return core


def drain(core: Core) -> dict[int, list[int]]:
    """Times in ns of each request's tokens."""
    times: dict[int, list[int]] = {}
    while (due := core.next_ns()) is not None:
        for token in core.advance(due):
            times.setdefault(token.request_id, []).append(token.at_ns)
    return times


def in_ms(stretch: tuple[int, int], pace: Fraction) -> Stretch:
    return Stretch(stretch[0] * MS, stretch[1] * MS, pace)


def end(pace: Pace, begin_ns: int, work_ns: int) -> int:
    at = pace.when_ns(pace.done_ns(begin_ns) + work_ns, begin_ns)
    assert at is not None
    return at


def integral(stretches: list[Stretch], begin_ns: int, end_ns: int) -> tuple[Fraction, int]:
    """Of the slowest pace at each moment, exactly; and how many edges lie in between."""
    inside = {edge for stretch in stretches for edge in stretch[:2] if begin_ns < edge < end_ns}
    total = Fraction(0)
    for at, until in pairwise(sorted({begin_ns, end_ns} | inside)):
        slowest = min((s.pace for s in stretches if s.at_ns <= at < s.until_ns), default=FULL)
        total += slowest * (until - at)
    return total, len(inside)


@given(TIMES, TIMES)
def test_a_healthy_engine_takes_as_long_as_the_law_says(begin_ns: int, work_ns: int) -> None:
    assert end(Pace(), begin_ns, work_ns) == begin_ns + work_ns
    # Before and after all faults, too.
    pace = Pace([Stretch(1_000, 2_000, Fraction(1, 3))])
    assert end(pace, begin_ns, 1_000 - begin_ns) == 1_000
    assert end(pace, 2_000 + begin_ns, work_ns) == 2_000 + begin_ns + work_ns


@pytest.mark.parametrize(
    ("stretches", "begin", "work", "expected"),
    [
        ([(8, 20, 0, 1)], 5, 10, 27),  # 3 before the hang and 7 after it
        ([(8, 20, 0, 1)], 10, 1, 21),  # begun in the hang
        ([(8, 20, 0, 1)], 5, 3, 8),  # done just before it
        ([(10, 50, 1, 4)], 5, 20, 55),  # 5, then 10 in 40, then 5
        ([(10, 50, 1, 4)], 10, 2, 18),
        ([(10, 50, 1, 4), (22, 30, 0, 1)], 10, 5, 38),  # 3 in 12, none in 8, 2 in 8
        ([(10, 50, 1, 2), (20, 30, 1, 5)], 10, 8, 32),  # 5, 2 and 1
        ([(10, 20, 0, 1), (15, 40, 0, 1)], 9, 2, 41),
        ([(10, 10, 0, 1)], 9, 2, 11),
    ],
)
def test_stretches_by_hand(stretches: list[tuple[int, int, int, int]], begin: int, work: int, expected: int) -> None:
    pace = Pace([Stretch(at, until, Fraction(num, den)) for at, until, num, den in stretches])
    assert end(pace, begin, work) == expected


@given(STRETCHES, TIMES, TIMES)
def test_work_is_the_integral_of_the_pace(stretches: list[Stretch], begin_ns: int, work_ns: int) -> None:
    end_ns = end(Pace(stretches), begin_ns, work_ns)
    done, changes = integral(stretches, begin_ns, end_ns)
    assert abs(done - work_ns) <= 1 + changes


@given(STRETCHES, TIMES, TIMES, TIMES)
def test_work_in_two_parts_ends_when_it_does_in_one(
    stretches: list[Stretch], begin_ns: int, first_ns: int, second_ns: int
) -> None:
    pace = Pace(stretches)
    assert end(pace, end(pace, begin_ns, first_ns), second_ns) == end(pace, begin_ns, first_ns + second_ns)


@given(STRETCHES, TIMES, TIMES, TIMES)
def test_later_or_longer_ends_no_sooner(stretches: list[Stretch], begin_ns: int, later_ns: int, work_ns: int) -> None:
    pace = Pace(stretches)
    ended = end(pace, begin_ns, work_ns)
    assert ended >= begin_ns + work_ns
    assert end(pace, begin_ns, work_ns + 1) > ended
    assert end(pace, begin_ns + later_ns, work_ns) >= ended


@given(STRETCHES, TIMES)
def test_of_several_at_once_the_slowest_counts(stretches: list[Stretch], at_ns: int) -> None:
    active = [stretch.pace for stretch in stretches if stretch.at_ns <= at_ns < stretch.until_ns]
    assert Pace(stretches).at(at_ns) == min([FULL, *active])


@given(STRETCHES, TIMES)
def test_work_goes_on_at_the_first_moment_with_a_pace(stretches: list[Stretch], now_ns: int) -> None:
    pace = Pace(stretches)
    assert pace.goes_ns(now_ns) == next(at_ns for at_ns in range(now_ns, 1_400) if pace.at(at_ns))
    assert pace.limited(STOPPED, now_ns).goes_ns(now_ns) is None


@given(STRETCHES, TIMES, TIMES, PACES, TIMES)
def test_a_limit_for_a_while_is_a_stretch(
    stretches: list[Stretch], at_ns: int, length_ns: int, limit: Fraction, done_ns: int
) -> None:
    until_ns = at_ns + length_ns
    told = Pace(stretches).limited(limit, at_ns).limited(FULL, until_ns)
    planned = Pace([*stretches, Stretch(at_ns, until_ns, limit)])
    # Each may have lost a fraction of a ns where the other has an edge.
    assert abs(told.done_ns(until_ns) - planned.done_ns(until_ns)) <= 2 + 2 * len(stretches)
    begun = told.done_ns(until_ns)
    assert told.when_ns(begun + done_ns, until_ns) == Pace(stretches).limited(FULL, until_ns).when_ns(
        Pace(stretches).done_ns(until_ns) + done_ns, until_ns
    )


def test_what_a_stopped_engine_has_not_done_it_never_does() -> None:
    stopped = Pace().limited(STOPPED, 100)
    assert stopped.when_ns(100, 150) == 150
    assert stopped.when_ns(101, 150) is None
    assert stopped.done_ns(10**12) == 100


@pytest.mark.parametrize("law", [BESIDE, STEPPED])
@pytest.mark.parametrize(
    ("stretch", "expected"),
    [
        (in_ms((104, 154), STOPPED), [100, 160, 170, 180]),
        (in_ms((50, 1050), STOPPED), [1100, 1110, 1120, 1130]),
        (in_ms((0, 7), STOPPED), [107, 117, 127, 137]),
        # 5 of 10 done; 5 take 15; the next has 5 done by then, and 5 more at full pace.
        (in_ms((105, 135), Fraction(1, 3)), [100, 120, 140, 150]),
        (in_ms((0, 1000), Fraction(1, 2)), [200, 220, 240, 260]),
    ],
)
def test_one_stream_by_hand(law: Law, stretch: Stretch, expected: list[int]) -> None:
    core = core_of(law, stretch)
    core.submit(1, "m", range(90), 4, 0)
    # The first token takes 100 ms either way: 90 of prompt and the 10 of any step, or a prefill beside.
    assert drain(core) == {1: [at * MS for at in expected]}


SCALED = STRETCHES.map(lambda stretches: [Stretch(s.at_ns * MS, s.until_ns * MS, s.pace) for s in stretches])


@given(SCALED, st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=6))
def test_a_burst_goes_through_the_same_steps_at_another_pace(
    stretches: list[Stretch], requests: list[tuple[int, int]]
) -> None:
    for law in (BESIDE, STEPPED):
        healthy, ill = core_of(law, max_num_seqs=3), core_of(law, *stretches, max_num_seqs=3)
        for core in (healthy, ill):
            for number, (prompt_tok, output_tok) in enumerate(requests):
                core.submit(number, "m", range(prompt_tok), output_tok, 0)
        pace = Pace(stretches)
        expected = {number: [pace.when_ns(at_ns, 0) for at_ns in times] for number, times in drain(healthy).items()}
        assert drain(ill) == expected


@pytest.mark.parametrize("law", [BESIDE, STEPPED])
def test_an_engine_that_hangs_is_busy(law: Law) -> None:
    core = core_of(law, in_ms((105, 605), STOPPED))
    core.submit(1, "m", range(90), 3, 0)
    assert [core.busy_ns(at_ms * MS) // MS for at_ms in (50, 105, 300, 600, 610, 700)] == [50, 105, 300, 600, 610, 620]


@pytest.mark.parametrize("law", [BESIDE, STEPPED])
def test_a_limit_holds_for_the_step_under_way(law: Law) -> None:
    core = core_of(law)
    core.submit(1, "m", range(90), 5, 0)
    core.limit_pace(Fraction(1, 2), 105 * MS)
    core.limit_pace(STOPPED, 125 * MS)
    # 110 became 115; of the step that began then 5 ms are done, and when it will end nobody knows.
    assert [token.at_ns // MS for token in core.advance(10_000 * MS)] == [100, 115]
    assert core.next_ns() is None
    assert core.busy_ns(10_000 * MS) == 10_000 * MS
    core.submit(2, "m", range(90), 1, 10_000 * MS)
    core.limit_pace(FULL, 20_000 * MS)
    assert core.next_ns() == 20_005 * MS
    times = drain(core)
    assert [at // MS for at in times[1][:1]] == [20_005]
    assert len(times[1]) == 3
    assert len(times[2]) == 1


def test_a_limit_leaves_alone_what_has_been_told_already() -> None:
    core = core_of(BESIDE)
    core.submit(1, "m", range(1), 4, 0)
    assert len(core.advance(110 * MS)) == 2
    core.limit_pace(Fraction(1, 2), 106 * MS)
    assert [at // MS for at in drain(core)[1]] == [130, 150]


def test_whoever_comes_during_a_hang_waits_for_its_end() -> None:
    core = core_of(STEPPED, in_ms((105, 1105), STOPPED), async_scheduling=False)
    core.submit(1, "m", range(90), 3, 0)
    core.submit(2, "m", range(200, 230), 1, 500 * MS)
    instance = core.instances["m"]
    core.advance(1_000 * MS)
    assert (len(instance.scheduler.running), len(instance.scheduler.waiting)) == (1, 1)
    # The step under way ends at 1110; the next has the new prompt, 30 ms, in it.
    assert {number: [at // MS for at in times] for number, times in drain(core).items()} == {1: [1110, 1150], 2: [1150]}


def queued(core: Core) -> tuple[int, int]:
    """How many run and how many wait."""
    _, gauges = core.instances["m"].read()
    return gauges.running, gauges.waiting


def test_whoever_comes_during_a_hang_is_admitted_at_its_end_where_the_prefill_runs_beside() -> None:
    core = core_of(BESIDE, in_ms((105, 605), STOPPED), in_ms((600, 1105), STOPPED))
    core.submit(1, "m", range(90), 3, 0)
    core.submit(2, "m", range(200, 230), 1, 500 * MS)
    core.advance(1_104 * MS)
    assert queued(core) == (1, 1)
    assert core.next_ns() == 1_105 * MS
    core.advance(1_105 * MS)
    assert queued(core) == (2, 0)
    # A prefill of 200 ms with two admitted: 15 of them are done as the first request ends, and 185 / 2 are left.
    assert drain(core) == {1: [1_110 * MS, 1_120 * MS], 2: [1_212 * MS + MS // 2]}
    queue = core.instances["m"].metrics.histograms["request_queue_time_seconds"]
    assert queue.sum == 605 * MS


def test_whoever_comes_during_a_hang_without_an_end_is_admitted_once_there_is_one() -> None:
    core = core_of(BESIDE)
    core.submit(1, "m", range(90), 3, 0)
    core.limit_pace(STOPPED, 50 * MS)
    core.submit(2, "m", range(200, 230), 1, 60 * MS)
    assert (core.next_ns(), queued(core)) == (None, (1, 1))
    core.limit_pace(FULL, 1_050 * MS)
    assert queued(core) == (2, 0)
    # Half of the first prefill was done alone; the rest takes twice as long.
    assert drain(core)[1][0] == 1_150 * MS


@pytest.mark.parametrize("law", [BESIDE, STEPPED])
def test_an_idle_engine_that_hangs_is_busy_as_soon_as_there_is_work(law: Law) -> None:
    core = core_of(law, in_ms((0, 1000), STOPPED))
    core.submit(1, "m", range(90), 1, 400 * MS)
    assert [core.busy_ns(at_ms * MS) // MS for at_ms in (400, 900)] == [0, 500]
    assert queued(core) == (1, 0)
    assert drain(core) == {1: [1100 * MS]}
    assert core.busy_ns(2_000 * MS) == 700 * MS


# Of 0 to 20 ms later: a request of so many tokens, a limit of the pace, or one that gives up.
DEEDS = st.lists(
    st.tuples(
        st.integers(0, 20 * MS),
        st.one_of(
            st.tuples(st.integers(1, 90), st.integers(1, 30)), st.sampled_from([STOPPED, FULL, FULL / 3]), st.just(None)
        ),
    ),
    max_size=12,
)


def live(core: Core, deeds: list[tuple[int, tuple[int, int] | Fraction | None]], looks: Iterator[float]) -> list[Token]:
    """All tokens; between two events somebody looks, after these shares of the time until the next."""
    now_ns, tokens, requests = 0, [], 0
    for after_ns, deed in [*deeds, (100 * MS, FULL), (1000 * NS_PER_S, None)]:
        until_ns = now_ns + after_ns
        while now_ns < until_ns:
            due = core.next_ns()
            at_ns = until_ns if due is None else min(due, until_ns)
            seen_ns = now_ns + int((at_ns - now_ns) * next(looks, 0))
            core.busy_ns(seen_ns)
            core.instances["m"].read()
            now_ns = at_ns
            if at_ns == due:
                tokens += core.advance(at_ns)
            elif due is None:
                break
        now_ns = until_ns
        if isinstance(deed, tuple):
            requests += 1
            core.submit(requests, "m", range(deed[0]), deed[1], now_ns)
        elif isinstance(deed, Fraction):
            core.limit_pace(deed, now_ns)
        else:
            core.abort(requests // 2, now_ns)
    return tokens


@given(SCALED, DEEDS, st.lists(st.floats(0, 1), max_size=100))
def test_whoever_looks_changes_nothing_and_all_blocks_come_back(
    stretches: list[Stretch], deeds: list[tuple[int, tuple[int, int] | Fraction | None]], looks: list[float]
) -> None:
    for law in (BESIDE, STEPPED):
        # Room for little more than one of the longest: there are preemptions, too.
        limits = {"num_gpu_blocks": 12, "max_model_len": 128}
        alone, watched = core_of(law, *stretches, **limits), core_of(law, *stretches, **limits)
        assert live(watched, deeds, iter(looks)) == live(alone, deeds, iter(()))
        scheduler = watched.instances["m"].scheduler
        assert (watched.in_system(), scheduler.kv_usage) == (0, 0)


def test_a_request_can_be_aborted_during_a_hang() -> None:
    for law in (BESIDE, STEPPED):
        core = core_of(law, in_ms((105, 1105), STOPPED))
        core.submit(1, "m", range(90), 30, 0)
        core.abort(1, 500 * MS)
        assert core.in_system() == 0
        core.advance(5_000 * MS)
        assert core.next_ns() is None
