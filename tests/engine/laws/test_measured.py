"""The measured law: its rows exactly, straight lines between them, and data that make no sense refused."""

import msgspec
import pytest

from cadenza.domain import Domain, Lengths
from cadenza.engine.laws.measured import Measured, MeasuredFit, MeasuredRow
from cadenza.hardware.batch import Batch

MS = 1_000_000
DECK = [(tile + 0.5) / 32 for tile in range(32)]


def row(in_system: float, ttft_ms: float, step_ms: float, **spreads: tuple[float, ...]) -> MeasuredRow:
    return MeasuredRow(in_system=in_system, ttft_ms=ttft_ms, step_ms=step_ms, **spreads)  # type: ignore[arg-type]


def batch(sequences: int) -> Batch:
    return Batch(sequences, decode_tok=sequences, prefill_tok=0, context_tok=0, pairs=0)


def law(*rows: MeasuredRow, **more: float) -> Measured:
    return Measured(MeasuredFit(rows=rows, **more))  # type: ignore[arg-type]


TWO = (row(2, 100, 20), row(6, 140, 24))


@pytest.mark.parametrize(("n", "step_ms"), [(1, 20), (2, 20), (3, 21), (4, 22), (6, 24), (8, 26), (106, 124)])
def test_a_step_is_linear_between_rows_constant_below_and_goes_on_above(n: int, step_ms: float) -> None:
    assert law(*TWO).step_ns(batch(n), 0.3) == step_ms * MS


@pytest.mark.parametrize(("n", "ttft_ms"), [(1, 100), (2, 100), (5, 130), (6, 140), (7, 150)])
def test_a_first_token_too(n: int, ttft_ms: float) -> None:
    assert law(*TWO).prefill_ns(500, n, 0.7) == ttft_ms * MS


def test_beyond_the_last_row_it_never_falls() -> None:
    falling = law(row(1, 100, 20), row(2, 90, 25), row(4, 80, 23))
    assert falling.step_ns(batch(3), 0.5) == 24 * MS
    assert falling.step_ns(batch(40), 0.5) == 23 * MS
    assert falling.prefill_ns(1, 40, 0.5) == 80 * MS


def test_one_row_is_constant() -> None:
    one = law(row(4, 100, 20))
    assert {one.step_ns(batch(n), 0.5) for n in (1, 4, 400)} == {20 * MS}


def test_a_law_keeps_where_it_was_measured_or_else_the_loads_of_its_rows() -> None:
    old = law(*TWO).domain
    assert old == Domain(in_system=(2, 6))
    assert not old.recorded
    measured = Domain(in_system=(2.0, 6.0), peak_in_flight=7, loads=("CLOSED",))
    assert Measured(MeasuredFit(rows=TWO, domain=measured)).domain is measured
    assert measured.recorded


@pytest.mark.parametrize("ends", [(5.0, 4.0), (-1.0, 4.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_lengths_that_make_no_sense_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="the lower one first"):
        Lengths(mean=(1, 2), range=ends)


def test_a_longer_prompt_takes_longer_by_the_slope() -> None:
    sloped = law(*TWO, prompt_tok=1000.0, ttft_ms_per_prompt_tok=0.05)
    assert sloped.prefill_ns(1000, 2, 0.5) == 100 * MS
    assert sloped.prefill_ns(3000, 2, 0.5) == 200 * MS
    assert sloped.prefill_ns(200, 4, 0.5) == 80 * MS
    steep = law(*TWO, prompt_tok=1000.0, ttft_ms_per_prompt_tok=0.5)
    assert steep.prefill_ns(1, 2, 0.5) == 1  # 100 ms − 499.5 ms: no time is below none


def test_a_spread_is_dealt_by_equal_shares() -> None:
    wide = law(row(1, 100, 20, ttft_spread=(0.5, 1.5), step_spread=(0.2, 0.4, 0.4, 3.0)))
    assert [wide.step_ns(batch(1), q) for q in (0.1, 0.3, 0.74, 0.76, 0.999)] == [4 * MS, *[8 * MS] * 2, *[60 * MS] * 2]
    assert [wide.prefill_ns(1, 1, q) for q in (0.49, 0.51)] == [50 * MS, 150 * MS]


def test_a_decks_32_draws_give_the_mean_between_rows_too() -> None:
    heavy = tuple(k**4 for k in range(32))
    scale = sum(heavy) / 32
    rows = (
        row(1, 100, 10, step_spread=tuple(value / scale for value in heavy)),
        row(3, 100, 30, step_spread=(0.8, 0.9, 1.1, 1.2)),
    )
    both = law(*rows)
    assert sum(both.step_ns(batch(2), q) for q in DECK) / 32 == pytest.approx(20 * MS, rel=1e-6)
    assert sum(both.step_ns(batch(1), q) for q in DECK) / 32 == pytest.approx(10 * MS, rel=1e-6)


def test_the_mean_survives_the_rounding_of_a_file() -> None:
    rounded = law(row(1, 100, 20, step_spread=(0.667, 0.667, 1.667)))  # sums to 3.001
    assert sum(rounded.step_ms(1, (k + 0.5) / 3) for k in range(3)) / 3 == pytest.approx(20, rel=1e-12)


def test_no_step_is_without_length() -> None:
    bursts = law(row(1, 100, 20, step_spread=(0.0, 2.0)))
    assert bursts.step_ns(batch(1), 0.1) == 1


def test_it_reads_from_a_table() -> None:
    table = {"prompt_tok": 12, "rows": [{"in_system": 1, "ttft_ms": 100, "step_ms": 20.5, "step_spread": [0.9, 1.1]}]}
    fit = msgspec.convert(table, MeasuredFit)
    assert fit.rows[0].step_spread == (0.9, 1.1)
    assert Measured(fit).step_ns(batch(1), 0.9) == pytest.approx(22.55 * MS)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"rows": []}, "at least one"),
        ({"rows": [{"in_system": 2, "ttft_ms": 1, "step_ms": 1}] * 2}, "has to rise"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 0}]}, "step_ms has to be a number above 0"),
        ({"rows": [{"in_system": 1, "ttft_ms": float("nan"), "step_ms": 1}]}, "ttft_ms has to be"),
        ({"rows": [{"in_system": 1, "ttft_ms": float("inf"), "step_ms": 1}]}, "ttft_ms has to be"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 1, "step_spread": []}]}, "step_spread: at least one"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 1, "step_spread": [-1.0, 3.0]}]}, "none negative"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 1, "ttft_spread": [1.5, 0.5]}]}, "has to rise"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 1, "ttft_spread": [1.0, 2.0]}]}, "mean has to be 1"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 1, "tpot_ms": 1}]}, "unknown field"),
        ({"rows": [{"in_system": 1, "ttft_ms": 1, "step_ms": 1}], "ttft_ms_per_prompt_tok": -1.0}, "at least 0"),
    ],
)
def test_data_that_make_no_sense_are_refused(table: dict[str, object], told: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=told):
        msgspec.convert(table, MeasuredFit)
