"""Repeats against a textbook: Student's t over K values."""

import math

import pytest

from cadenza.analysis.summary import relate, summarise_point
from cadenza.record import LoadLabel, Point, PointStatus
from cadenza.stats.repeats import compare
from support.columns import rec


def test_three_values() -> None:
    # mean 100, s = 2, t(0.975, 2) = 4.302653: half-width 4.302653 · 2 / √3
    found = compare([98.0, 100.0, 102.0])
    assert (found.mean, found.low, found.high) == pytest.approx((100, 100 - 4.968275, 100 + 4.968275), abs=1e-4)
    assert found.drift_pct == pytest.approx(100 * (102 / 98 - 1))


def test_one_value_has_no_interval_and_undefined_ones_are_left_out() -> None:
    one = compare([math.nan, 5.0])
    assert one.mean == 5
    assert math.isnan(one.low)
    assert math.isnan(one.drift_pct)
    assert math.isnan(compare([math.nan]).mean)


def test_each_repeat_is_a_curve_of_its_own() -> None:
    """Twice C = 1 and 2, the second time at half the speed: each speedup is against its own base."""
    points, summaries = [], []
    for index, (repeat, slots, gap) in enumerate([(0, 1, 10.0), (0, 2, 10.0), (1, 2, 20.0), (1, 1, 20.0)]):
        point = Point(
            index=index, model="m", load=LoadLabel.CLOSED, repeat=repeat, concurrency=slots, planned=20, start_ns=0,
            status=PointStatus.COMPLETE,
        )  # fmt: skip
        records = [
            rec(k, 4 * gap * (k // slots), [4 * gap * (k // slots) + gap * j for j in (1, 2, 3, 4)]) for k in range(20)
        ]
        points.append(point)
        summaries.append(summarise_point(point, records))
    found = relate(summaries, simulated=False, tool={})
    assert [p.speedup for p in found.points] == pytest.approx([1, 2, 2, 1], rel=0.06)
    assert [(r.concurrency, r.points) for r in found.repeats] == [(1, [0, 3]), (2, [1, 2])]
    assert [r.tpot_mean_ms.drift_pct for r in found.repeats] == pytest.approx([100, 100])
