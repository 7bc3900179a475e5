"""Scaling and drift on the founding article's own numbers, where it rounded wrongly and where not."""

import csv
import math
from pathlib import Path

import pytest

from cadenza.stats.relative import drift_class, drift_ms, drift_pct, efficiency, speedup, spread_pct

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
    assert [drift_class(p) for p in (-3, 4.99, 5, 11.99, 12, 19.99, 20)] == [
        *("ultra-flat", "ultra-flat", "stable", "stable", "controlled", "controlled", "degraded"),
    ]


def test_undefined_stays_undefined() -> None:
    assert math.isnan(speedup(1, 0))
    assert math.isnan(drift_pct(1, 0))
    assert math.isnan(spread_pct([1]))
    assert drift_class(float("nan")) is None
