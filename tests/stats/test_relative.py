"""Scaling and drift on the founding article's own numbers, where it rounded wrongly and where not."""

import csv
import math
from pathlib import Path

import pytest

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import relate, summarise_point
from cadenza.record import LoadLabel, Point, PointStatus
from cadenza.stats.relative import drift_class, drift_ms, drift_pct, efficiency, falling_note, speedup, spread_pct
from support.columns import rec

RATE = "the rate sets the throughput"
SWEEP = Path(__file__).parents[1] / "data" / "article" / "sweep.csv"
ROWS = list(csv.DictReader(SWEEP.read_text().splitlines()))
BASE = {row["model"]: row for row in ROWS if row["concurrency"] == "1"}

# Recomputed by hand from the printed throughputs: model, C → efficiency in per cent, where the article's is off.
WRONG = {
    ("Qwen/Qwen3-8B", "2"): "94.1",
    ("Qwen/Qwen2.5-7B-Instruct", "4"): "96.9",
    ("Qwen/Qwen2.5-7B-Instruct", "8"): "95.8",
    ("Qwen/Qwen2.5-7B-Instruct", "16"): "88.7",
    ("google/gemma-4-E2B-it", "2"): "90.1",
    ("google/gemma-4-E2B-it", "4"): "97.7",
    ("google/gemma-4-E2B-it", "8"): "96.4",
}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['model']} C={row['concurrency']}" for row in ROWS])
def test_efficiency_comes_from_the_unrounded_speedup(row: dict[str, str]) -> None:
    own, first = float(row["throughput_tok_s"]), float(BASE[row["model"]]["throughput_tok_s"])
    found = f"{100 * efficiency(own, first, int(row['concurrency']), 1):.1f}"
    assert found == WRONG.get((row["model"], row["concurrency"]), row["efficiency_pct"])


def test_the_speedup_at_16_is_15_10() -> None:
    assert f"{speedup(189.26, 12.53):.2f}" == "15.10"


@pytest.mark.parametrize(
    ("model", "ms", "pct", "name"),
    [
        ("Qwen/Qwen3-8B", "2.81", "3.5", "ultra-flat"),
        ("Qwen/Qwen2.5-7B-Instruct", "8.46", "10.8", "stable"),
        ("google/gemma-4-E2B-it", "13.84", "14.9", "controlled"),
    ],
)
def test_drift_over_the_curve(model: str, ms: str, pct: str, name: str) -> None:
    curve = [float(row["tpot_mean_ms"]) for row in ROWS if row["model"] == model]
    assert f"{drift_ms(curve[-1], curve[0]):.2f}" == ms
    assert f"{drift_pct(curve[-1], curve[0]):.1f}" == pct
    assert drift_class(drift_pct(curve[-1], curve[0])) == name


def test_the_spread_sees_what_the_ends_hide() -> None:
    curve = [float(row["tpot_mean_ms"]) for row in ROWS if row["model"] == "Qwen/Qwen3-8B"]
    assert f"{spread_pct(curve):.1f}" == "5.4"


def test_classes_begin_at_their_bounds() -> None:
    names = ["ultra-flat", "stable", "stable", "controlled", "controlled", "degraded"]
    assert [drift_class(p) for p in (4.99, 5, 11.99, 12, 19.99, 20)] == names
    assert [drift_class(-p) for p in (4.99, 5, 11.99, 12, 19.99, 20)] == names  # the class is of the size


def test_a_cadence_that_falls_is_named_and_never_flat() -> None:
    """TPOT 10 ms at the base and 3.9 ms at C = 32: −61 %."""
    pct = drift_pct(3.9, 10)
    assert drift_class(pct) == "degraded"
    note = falling_note(pct, 1)
    assert note is not None
    assert "61.0 %" in note
    for cause in ("several tokens at once", "cold start at C = 1", "speculative decoding"):
        assert cause in note


@pytest.mark.parametrize(
    ("pct", "named"), [(-5.01, True), (-5.0, False), (0, False), (61, False), (float("nan"), False)]
)
def test_only_a_fall_of_more_than_5_per_cent_is_named(pct: float, named: bool) -> None:
    assert (falling_note(pct, 4) is not None) is named


def test_undefined_stays_undefined() -> None:
    assert math.isnan(speedup(1, 0))
    assert math.isnan(drift_pct(1, 0))
    assert math.isnan(spread_pct([1]))
    assert drift_class(float("nan")) is None


def measured(index: int, load: LoadLabel, slots: int | None, token_ms: float) -> PointSummary:
    """40 answers of two tokens, one after the other, with `token_ms` between these."""
    point = Point(index=index, model="m", load=load, concurrency=slots, planned=40, status=PointStatus.COMPLETE)
    point.rate_per_s, point.start_ns = (None if load is LoadLabel.CLOSED else 10.0), 0
    records = [rec(k, 100.0 * k, [100.0 * k + 20, 100.0 * k + 20 + token_ms]) for k in range(40)]
    return summarise_point(point, records)


def test_where_the_rate_sets_the_throughput_there_is_no_speedup() -> None:
    for load in (LoadLabel.CAPPED, LoadLabel.CLOSED):
        points = [measured(k, load, slots, token_ms) for k, (slots, token_ms) in enumerate(((1, 10), (8, 11)))]
        base, found = relate(points, simulated=False, tool={}).points
        assert (found.drift_ms, found.drift_pct) == pytest.approx((1, 10))  # at the same rate a cadence can drift
        if load is LoadLabel.CLOSED:
            assert (found.speedup, found.efficiency) == pytest.approx((1, 1 / 8), rel=0.05)
            continue
        for point in (base, found):
            assert math.isnan(point.speedup)
            assert math.isnan(point.efficiency)
            assert (point.undefined["speedup"], point.undefined["efficiency"]) == (RATE, RATE)
            assert "drift_pct" not in point.undefined
    (alone,) = relate([measured(0, LoadLabel.OPEN, None, 10)], simulated=False, tool={}).points
    assert (alone.undefined["speedup"], alone.undefined["efficiency"]) == (RATE, RATE)
    assert alone.undefined["drift_pct"] == "an open loop has no concurrency to compare by"


def test_the_point_whose_cadence_fell_carries_the_note_once() -> None:
    points = [measured(0, LoadLabel.CLOSED, 1, 10), measured(1, LoadLabel.CLOSED, 8, 3.9)]
    once = relate(points, simulated=False, tool={})
    for summary in (once, relate(once.points, simulated=False, tool={})):
        base, fallen = summary.points
        assert not any("falls" in note for note in base.notes)
        assert [note for note in fallen.notes if "falls" in note] == [falling_note(fallen.drift_pct, 1)]
        assert fallen.drift_pct == pytest.approx(-61)
        assert fallen.drift_class == "degraded"
