"""Loads and halves that are left out: predictions against closed forms."""

import numpy as np
import pytest

from cadenza.analysis.fitting import Sample, fit_rows
from cadenza.domain import FIGURES
from cadenza.measure.holdout import hold_out, law_of, reproduce, split_sample, worst
from cadenza.record import Record
from cadenza.stats.columns import Columns, Floats
from support.columns import rec


def sample(load: int, ttft_ms: float, gaps: Floats, tpot: Floats | None = None) -> Sample:
    """One load; 32 gaps a request."""
    requests = np.arange(len(gaps)) // 32
    return Sample(
        in_system=float(load),
        ttft_ms=np.full(4, ttft_ms),
        prompt_tok=np.full(4, np.nan),
        gap_ms=gaps,
        gap_level=np.full(len(gaps), load),
        gap_request=requests,
        tpot_ms=float(gaps.mean()),
        tpot_each_ms=gaps.reshape(-1, 32).mean(axis=1) if tpot is None else tpot,
    )


def flat(ms: float) -> Floats:
    return np.full(128, ms)


def test_a_row_that_was_left_out_lies_on_the_line_between_its_neighbours() -> None:
    samples = [sample(1, 100, flat(20)), sample(4, 120, flat(21)), sample(16, 400, flat(50))]
    (found,) = hold_out(samples, [None] * 3)
    assert (found.kind, found.in_system, found.samples, found.requests) == ("loads", 4, (1,), 4)
    # By the others at 4: TTFT 100 + 300 · 3/15 = 160, a step 20 + 30 · 3/15 = 26.
    assert found.predicted["ttft_mean"] == pytest.approx(160)
    assert found.error_pct("ttft_mean") == pytest.approx(100 * (160 / 120 - 1))
    for name in FIGURES[1:]:
        assert found.error_pct(name) == pytest.approx(100 * (26 / 21 - 1)), name


def test_the_law_of_a_line_has_no_error() -> None:
    samples = [sample(n, 40 + 4 * n, flat(20 + 0.5 * n)) for n in (1, 2, 4, 8)]
    found = hold_out(samples, [None] * 4)
    assert [one.in_system for one in found] == [2, 4]
    assert all(abs(pct) < 1e-9 for pct in worst(found).values())
    assert set(worst(found)) == set(FIGURES)


def test_what_makes_a_request_slow_for_all_of_its_tokens_is_not_predicted() -> None:
    # Requests of 10 and of 30 ms a token: as a mean over 32 draws of one spread, every TPOT is 20.
    gaps = np.repeat([10.0, 30.0, 10.0, 30.0], 32)
    (found,) = hold_out([sample(n, 100, gaps) for n in (1, 4, 16)], [None] * 3)
    assert found.error_pct("tpot_mean") == pytest.approx(0)
    assert found.predicted["tpot_p95"] == pytest.approx(20)
    assert found.error_pct("tpot_p95") == pytest.approx(100 * (20 / 30 - 1))
    assert found.error_pct("itl_p95") == pytest.approx(0)


def test_a_fit_gives_back_its_rows_but_not_the_spread_between_requests() -> None:
    gaps = np.repeat([10.0, 30.0, 10.0, 30.0], 32)
    found = reproduce([sample(1, 100, gaps), sample(8, 200, flat(40))])
    assert [(one.kind, one.in_system) for one in found] == [("rows", 1), ("rows", 8)]
    for name in ("ttft_mean", "tpot_mean", "itl_p50", "itl_p95"):
        assert found[0].error_pct(name) == pytest.approx(0), name
    assert found[0].error_pct("tpot_p95") == pytest.approx(100 * (20 / 30 - 1))
    assert all(found[1].error_pct(name) == pytest.approx(0) for name in FIGURES)


def test_with_two_rows_the_odd_blocks_are_predicted_by_the_even_ones() -> None:
    even, odd = sample(4, 100, flat(20)), sample(4, 110, flat(25))
    both = sample(4, 105, flat(22.5))
    found = hold_out([both, sample(1, 90, flat(10))], [(even, odd), None])
    assert [(one.kind, one.samples) for one in found] == [("blocks", (0,))]
    assert found[0].error_pct("ttft_mean") == pytest.approx(100 * (100 / 110 - 1))
    assert found[0].error_pct("tpot_mean") == pytest.approx(-20)
    assert hold_out([both], [None]) == []


def test_a_sample_is_split_by_blocks_in_the_order_of_dispatch() -> None:
    # Sixteen requests in eight blocks of two; the TTFT of each tells which it is. Records are not in order.
    records: list[Record] = [rec(n, 100.0 * n, [100 * n + 10 + n, 100 * n + 50]) for n in range(16)]
    halves = split_sample(Columns.of(records[::-1]))
    assert halves is not None
    even, odd = (sorted((one.ttft_ms - 10).round().astype(int).tolist()) for one in halves)
    assert even == [0, 1, 4, 5, 8, 9, 12, 13]
    assert odd == [2, 3, 6, 7, 10, 11, 14, 15]
    assert split_sample(Columns.of(records[:1])) is None


def test_a_law_without_the_rounding_of_a_file() -> None:
    law = law_of(fit_rows([sample(1, 100 / 3, flat(20 / 3)), sample(3, 200 / 3, flat(40 / 3))]))
    assert law.step_ms(2, 0.5) == pytest.approx(10, rel=1e-12)
    assert law.ttft_ms(1, 2, 0.5) == pytest.approx(50, rel=1e-12)


def test_a_figure_that_took_no_time_has_no_error() -> None:
    (found,) = hold_out([sample(n, 100, np.tile([0.0, 0.0, 0.0, 4.0], 32)) for n in (1, 4, 16)], [None] * 3)
    assert np.isnan(found.error_pct("itl_p50"))
    assert "itl_p50" not in worst([found])
