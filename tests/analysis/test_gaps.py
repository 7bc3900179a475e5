"""Stretches in which nobody looked: by hand, and against counting the moments one by one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cadenza.analysis.gaps import GAP_INTERVALS, unwatched_s
from cadenza.readings import ReadingTable
from support.telemetry import S, sample


def unwatched(stamps_s: dict[str, list[float]], start_s: float, end_s: float) -> dict[str, float]:
    """With half a second aimed at between two looks."""
    samples = [sample(source, at_s, {"a": 1.0}) for source, stamps in stamps_s.items() for at_s in stamps]
    return unwatched_s(ReadingTable(True, samples, [], 0.5), round(start_s * S), round(end_s * S))


def every(interval_s: float, start_s: float, end_s: float) -> list[float]:
    return [start_s + n * interval_s for n in range(round((end_s - start_s) / interval_s) + 1)]


def test_samples_at_their_interval_leave_nothing_unwatched() -> None:
    assert unwatched({"host": every(0.5, 0, 20)}, 0, 20) == {}
    assert unwatched({"host": every(0.5, 0, 18)}, 0, 20) == {}  # late by four intervals, as on a busy machine
    assert unwatched({}, 0, 20) == {}


def test_a_sampler_that_was_stopped_leaves_a_gap_and_one_that_died_the_rest() -> None:
    assert unwatched({"host": every(0.5, 0, 4) + every(0.5, 16, 20)}, 0, 20) == {"host": 12}
    assert unwatched({"host": every(0.5, 0, 8)}, 0, 20) == {"host": 12}
    assert unwatched({"host": every(0.5, 12, 20)}, 0, 20) == {"host": 12}
    assert unwatched({"host": every(0.5, 0, 8), "engine": every(0.5, 0, 20)}, 0, 20) == {"host": 12}


def test_a_gap_counts_with_what_of_it_is_in_the_point() -> None:
    seen = {"host": every(0.5, 0, 10) + every(0.5, 22, 30)}
    assert unwatched(seen, 0, 12) == {}  # at its end nobody could know
    assert unwatched(seen, 0, 16) == {"host": 6}
    assert unwatched(seen, 16, 30) == {"host": 6}
    assert unwatched(seen, 14, 15) == {"host": 1}
    assert unwatched(seen, 22, 30) == {}


def test_what_is_slow_by_nature_is_judged_by_its_own_interval() -> None:
    assert unwatched({"rocm_smi": every(4, 0, 100)}, 0, 100) == {}
    assert unwatched({"rocm_smi": every(4, 0, 40) + every(4, 70, 100)}, 0, 100) == {"rocm_smi": 30}


def test_a_page_at_an_edge_is_no_look_in_between() -> None:
    rows = [sample("host", 0, {"a": 1.0}), sample("edge", 20, {"a": 1.0}, 0)]
    assert unwatched_s(ReadingTable(True, rows, [], 0.5), 0, 20 * S) == {"host": 20}


def test_a_point_that_broke_off_ends_with_the_last_sample() -> None:
    rows = [sample("host", at_s, {"a": 1.0}) for at_s in (*every(0.5, 0, 2), 9)]
    assert unwatched_s(ReadingTable(True, rows, [], 0.5), 0, 2**63 - 1) == {"host": 7}
    assert unwatched_s(ReadingTable(True, [], [], 0.5), 0, 2**63 - 1) == {}


@given(st.lists(st.integers(0, 200), min_size=1, max_size=60), st.integers(0, 100), st.integers(1, 100))
def test_it_is_the_time_whose_next_sample_is_far_from_its_last(stamps: list[int], start: int, length: int) -> None:
    """Each second of the point counts if the samples around it are too far apart; so does one before or after all."""
    end = start + length
    seen = sorted(at for at in stamps if at <= end)
    between = sorted(b - a for a, b in pairwise(seen))
    middle = len(between) // 2
    median = 0.0 if not between else (between[middle] + between[~middle]) / 2
    far = GAP_INTERVALS * max(1.0, median)
    lonely = 0
    for second in range(start, end):
        last = max((at for at in seen if at <= second), default=min(start, seen[0]) if seen else start)
        following = min((at for at in seen if at > second), default=end)
        lonely += following - last > far
    rows = [sample("x", at, {"a": 1.0}) for at in stamps]
    expected = {"x": lonely} if lonely and seen else {}
    assert unwatched_s(ReadingTable(True, rows, [], 1.0), start * S, end * S) == expected
