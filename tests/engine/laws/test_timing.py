"""Shapes and decks against their closed forms, on the published table's rows."""

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.engine.laws.timing import Deck, Shape, between, shape

SWEEP = Path(__file__).parents[2] / "data" / "article" / "sweep.csv"
with SWEEP.open(newline="") as _file:
    ROWS = list(csv.DictReader(_file))


def test_the_lowest_value_is_the_one_that_makes_the_mean_right() -> None:
    # Worked by hand for Qwen3 at C = 1: 4·112.4 - 2·110.2 - (110.2 + 11.2·0.5/0.49) = 107.57 ms.
    assert shape(112.4, 110.2, 121.4).low * 112.4 == pytest.approx(107.57, abs=0.01)


def test_shapes_are_interpolated_between_rows_and_kept_beyond_them() -> None:
    rows = [(8.0, Shape(0.8, 0.9, 1.4)), (16.0, Shape(0.6, 1.0, 1.4))]
    assert between(rows, 10) == pytest.approx((0.75, 0.925, 1.4))
    assert between(rows, 3) == rows[0][1]
    assert between(rows, 8) == rows[0][1]
    assert between(rows, 400) == rows[1][1]


@settings(deadline=None)
@given(skip=st.integers(0, 100), seed=st.text(max_size=5), row=st.sampled_from(ROWS))
def test_any_32_draws_in_a_row_have_the_laws_mean(skip: int, seed: str, row: dict[str, str]) -> None:
    deck = Deck(seed)
    for _ in range(skip):
        deck.draw()
    noise = shape(*(float(row[f"ttft_{part}_ms"]) for part in ("mean", "p50", "p99")))
    drawn = [deck.draw() for _ in range(32)]
    assert sorted(drawn) == [(tile + 0.5) / 32 for tile in range(32)]
    assert math.fsum(noise.at(quantile) for quantile in drawn) / 32 == pytest.approx(1, abs=1e-12)


@given(seed=st.text(max_size=5), part=st.sampled_from([2, 4, 8, 16]))
def test_parts_of_a_deck_are_spread_as_the_whole(seed: str, part: int) -> None:
    deck = Deck(seed)
    for _ in range(32 // part):
        assert sorted(int(deck.draw() * part) for _ in range(part)) == list(range(part))


def test_one_seed_one_order() -> None:
    first, again, other = ([deck.draw() for _ in range(32)] for deck in (Deck("a"), Deck("a"), Deck("b")))
    assert first == again
    assert first != other
