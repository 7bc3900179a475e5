"""Latencies against their definitions, on records made by hand, and the identity that ties them together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.record import Outcome
from cadenza.stats.columns import Columns
from cadenza.stats.latency import (
    dispatch_lag_ms,
    itl_ms,
    latency_ms,
    tpot_ms,
    ttft_ms,
    user_latency_ms,
    user_ttft_ms,
)
from support.columns import rec


def test_each_counts_from_where_its_definition_says() -> None:
    columns = Columns.of([rec(0, 10, [30, 40, 55], intended=4)])
    assert ttft_ms(columns) == pytest.approx([20])
    assert user_ttft_ms(columns) == pytest.approx([26])
    assert dispatch_lag_ms(columns) == pytest.approx([6])
    assert latency_ms(columns) == pytest.approx([45])
    assert user_latency_ms(columns) == pytest.approx([51])
    assert tpot_ms(columns) == pytest.approx([12.5])


def test_tpot_divides_by_tokens_and_not_by_events() -> None:
    assert tpot_ms(Columns.of([rec(0, 0, [20, 60], tokens=5, event_tokens=[1, 4])])) == pytest.approx([10])


@pytest.mark.parametrize(
    ("events", "tokens"), [([20.0], 1), ([], 0), ([20.0], 9), ([20.0, 30.0], 1)], ids=["one", "none", "whole", "odd"]
)
def test_tpot_is_undefined_and_never_zero(events: list[float], tokens: int) -> None:
    assert np.isnan(tpot_ms(Columns.of([rec(0, 0, events, tokens=tokens)])))


def test_without_an_event_there_is_no_ttft() -> None:
    columns = Columns.of([rec(0, 5, [], outcome=Outcome.HTTP_ERROR), rec(1, None, [], outcome=Outcome.DROPPED)])
    assert np.isnan(ttft_ms(columns)).all()
    assert np.isnan(user_latency_ms(columns)).all()
    assert dispatch_lag_ms(columns)[0] == 0
    assert np.isnan(dispatch_lag_ms(columns)[1])


def test_gaps_are_pooled_and_never_cross_requests() -> None:
    columns = Columns.of([rec(0, 0, [10, 20, 35]), rec(1, 0, []), rec(2, 0, [100]), rec(3, 0, [200, 207])])
    assert itl_ms(columns, np.ones(4, dtype=bool)) == pytest.approx([10, 15, 7])
    assert itl_ms(columns, np.array([False, True, True, True])) == pytest.approx([7])


def test_nothing_is_an_empty_array() -> None:
    columns = Columns.of([])
    for metric in (ttft_ms, user_ttft_ms, tpot_ms, latency_ms, user_latency_ms, dispatch_lag_ms):
        assert metric(columns).shape == (0,)
    assert itl_ms(columns, np.zeros(0, dtype=bool)).shape == (0,)


gaps = st.lists(st.integers(0, 10_000_000_000), min_size=0, max_size=30)


@given(st.lists(st.tuples(st.integers(0, 10**12), gaps), min_size=1, max_size=8))
def test_latency_less_ttft_is_the_sum_of_the_gaps(shapes: list[tuple[int, list[int]]]) -> None:
    records = []
    for index, (sent, steps) in enumerate(shapes):
        stamps = list(np.cumsum([sent, *steps])[1:] / 1e6)
        records.append(rec(index, sent / 1e6, [float(s) for s in stamps]))
    columns = Columns.of(records)
    difference = latency_ms(columns) - ttft_ms(columns)
    for index, (_, steps) in enumerate(shapes):
        mine = np.arange(len(shapes)) == index
        if steps:
            assert difference[index] == pytest.approx(float(np.sum(itl_ms(columns, mine))), abs=1e-3)
        else:
            assert np.isnan(difference[index])
