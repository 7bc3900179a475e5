"""The program that plants faults: what it plants is what it says, and what counts as missed."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from cadenza.record import Outcome, Phase, Record
from support.columns import closed, rec

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return import_module("planted_faults")


def stamps_ms(records: list[Record]) -> list[float]:
    return [round((row.sent_ns or 0) / 1e6, 1) for row in records]


def test_half_as_fast_again_from_the_middle_on(planted: ModuleType) -> None:
    """Sent each 100 ms from 0 to 1,000 ms; from 500 ms on each takes 150 ms. What came before the start stays."""
    rows = [rec(k, 100.0 * k, [100.0 * k + 50]) for k in range(11)]
    rows.append(rec(11, -100.0, [-50.0], phase=Phase.WARMUP))
    _, moved = planted.warp((closed(), rows), planted.PACES["+50 % from the middle"])
    assert stamps_ms(moved) == [0, 100, 200, 300, 400, 500, 650, 800, 950, 1100, 1250, -100]
    assert [row.event_ns[0] / 1e6 for row in moved[:11:10]] == pytest.approx([50, 1325], abs=0.2)
    assert moved[10].done_ns == pytest.approx(1325e6, rel=1e-3)


def test_a_buffer_and_a_proxy(planted: ModuleType) -> None:
    whole, lumps = rec(0, 0, [10.0 * k for k in range(1, 11)]), rec(1, 0, [10.0 * k for k in range(1, 11)])
    planted.buffered(whole)
    planted.lumped(lumps)
    assert [ns / 1e6 for ns in whole.event_ns] == [100.0] * 10
    assert [ns / 1e6 for ns in lumps.event_ns] == [80.0] * 8 + [100.0] * 2


def test_hidden_reasoning_is_counted_and_not_streamed(planted: ModuleType) -> None:
    row = rec(0, 0, [10.0, 20.0, 30.0], tokens=3)
    planted.hidden(row, 8, told=True)
    assert (len(row.event_ns), row.text_bytes, row.outcome) == (3, 12, Outcome.OK)
    assert row.reasoning_tokens is not None
    assert row.output_tokens == 3 + row.reasoning_tokens > 3


def test_a_fault_of_the_stream_is_missed_where_tpot_is_wrong_and_valid(planted: ModuleType) -> None:
    assert planted.is_missed("VALID", [], 10.0, None)
    assert planted.is_missed("VALID", [], 10.6, 10.0)
    assert not planted.is_missed("VALID", [], 10.4, 10.0)
    assert not planted.is_missed("VALID", [], None, 10.0)
    assert not planted.is_missed("SUSPECT", ["streaming"], 20.0, 10.0)
