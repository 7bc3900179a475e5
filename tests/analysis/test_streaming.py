"""What is said of streams that were not: few pieces, no text; and the denominator of TPOT on records made by hand."""

import msgspec
import numpy as np
import pytest

from cadenza.analysis.finding import Finding, Verdict
from cadenza.analysis.streaming import check_streaming, count_pieces, notes_streaming
from cadenza.record import Record
from cadenza.stats.columns import Columns
from cadenza.stats.latency import tpot_ms
from cadenza.stats.later_tokens import DEFINED, HIDDEN, UNKNOWN, WHOLE
from support.columns import rec


def named(name: str, records: list[Record]) -> Finding:
    (found,) = [check for check in check_streaming(Columns.of(records)) if check.name == name]
    return found


def lumps(index: int, sizes: list[int], apart: float = 80.0, lag_ms: float | None = 0.0) -> Record:
    """An answer whose pieces of so many events come `apart` ms after one another, the events of one within 20 µs."""
    stamps = [20 + apart * k + 0.02 * j for k, size in enumerate(sizes) for j in range(size)]
    one = rec(index, 0, stamps, tokens=len(stamps))
    return msgspec.structs.replace(one, read_lag_ns=None if lag_ms is None else round(lag_ms * 1e6))


def test_pieces_are_instants() -> None:
    records = [rec(0, 0, []), rec(1, 0, [5]), rec(2, 0, [5, 5, 5.05, 9]), rec(3, 0, [8, 18, 28]), rec(4, 0, [3, 3])]
    assert count_pieces(Columns.of(records)).tolist() == [0, 1, 2, 3, 1]
    assert count_pieces(Columns.of([])).tolist() == []


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        ([120], Verdict.SUSPECT),
        ([8] * 15, Verdict.SUSPECT),
        ([3] * 40, Verdict.SUSPECT),
        ([1] * 60 + [60], Verdict.VALID),  # half of it in one piece: a hiccup, the median ITL is still the stream's
        ([2] * 20 + [1] * 80, Verdict.VALID),
        ([1] * 120, Verdict.VALID),
        ([2], Verdict.SUSPECT),  # short answers, all of them whole
        ([1], None),  # one token has no cadence
    ],
)
def test_answers_in_few_pieces(sizes: list[int], verdict: Verdict | None) -> None:
    checks = check_streaming(Columns.of([lumps(k, sizes) for k in range(20)]))
    assert next((check.verdict for check in checks if check.name == "streaming"), None) is verdict


@pytest.mark.parametrize(("bad", "verdict"), [(2, Verdict.VALID), (3, Verdict.SUSPECT)])
def test_a_few_of_them_are_a_hiccup(bad: int, verdict: Verdict) -> None:
    records = [lumps(k, [40] if k < bad else [1] * 40) for k in range(20)]
    assert named("streaming", records).verdict is verdict


def test_a_late_client_is_no_proxy() -> None:
    late = [lumps(k, [8] * 10, lag_ms=70) for k in range(20)]
    assert named("streaming", late).verdict is None
    unknown = named("streaming", [lumps(k, [8] * 10, lag_ms=None) for k in range(20)])
    assert unknown.verdict is Verdict.SUSPECT
    assert "the stamps are not the kernel's" in unknown.message
    assert "not the kernel's" not in named("streaming", [lumps(k, [8] * 10) for k in range(20)]).message


@pytest.mark.parametrize(
    ("empty", "verdict"), [(0, Verdict.VALID), (1, Verdict.SUSPECT), (19, Verdict.SUSPECT), (20, Verdict.INVALID)]
)
def test_answers_without_text(empty: int, verdict: Verdict) -> None:
    records = [rec(k, 0, [] if k < empty else [10, 20], done=20, tokens=2) for k in range(20)]
    found = named("text", records)
    assert found.verdict is verdict
    if empty:
        assert found.message.startswith(f"{empty} of 20 answers carried no text")


def denominator(records: list[Record]) -> tuple[list[float], list[int]]:
    columns = Columns.of(records)
    return columns.later_tok.tolist(), columns.later_why.tolist()


def texts(records: list[Record], first: int, whole: int) -> list[Record]:
    return [msgspec.structs.replace(one, text_bytes=whole, first_text_bytes=first) for one in records]


def test_a_first_stamp_takes_all_its_events() -> None:
    # Lumps of 3 single tokens, 30 ms apart: 7 later tokens in 90 ms of which the last lump has one.
    one = rec(0, 0, [40, 40, 40, 70, 70, 70, 100, 100, 100, 130], tokens=10)
    assert denominator([one]) == ([7.0], [DEFINED])
    assert tpot_ms(Columns.of([one])) == pytest.approx([90 / 7])
    # Usage in each event: 2 + 3 tokens at the first stamp, 4 + 1 after it.
    assert denominator([rec(0, 0, [40, 40, 70, 100], tokens=10, event_tokens=[2, 3, 4, 1])]) == ([5.0], [DEFINED])


def test_usage_that_does_not_run_is_not_believed() -> None:
    # The final count in each event: 10, then nothing more. An event has a token at least.
    found, why = denominator([rec(0, 0, [40, 70, 100], tokens=10, event_tokens=[10, 0, 0])])
    assert np.isnan(found).all()
    assert why == [UNKNOWN]


def test_the_text_decides_between_ways_that_both_fit() -> None:
    # 49 tokens in 13 events: 4 an event, ⌈49 / 4⌉, or the first alone and 4 an event, 1 + ⌈48 / 4⌉.
    records = [rec(k, 0, [20.0 + 40 * j for j in range(13)], tokens=49) for k in range(20)]
    assert set(denominator(records)[1]) == {UNKNOWN}
    assert denominator(texts(records, 4 * 5, 49 * 5))[0] == [45.0] * 20
    assert denominator(texts(records, 5, 49 * 5))[0] == [48.0] * 20


def test_a_text_that_contradicts_every_way_leaves_it_open() -> None:
    # 50 tokens in 25 events: 2 an event fits, but a fifth of the text came first.
    records = texts([rec(k, 0, [20.0 + 10 * j for j in range(25)], tokens=50) for k in range(20)], 50, 250)
    assert denominator(records)[0] == [40.0] * 20


def test_a_text_smaller_than_a_byte_a_token_was_not_all_streamed() -> None:
    records = texts([rec(k, 0, [20.0 + 10 * j for j in range(20)], tokens=500) for k in range(20)], 5, 100)
    assert set(denominator(records)[1]) == {HIDDEN}
    assert named("streamed tokens", records).verdict is Verdict.SUSPECT
    assert "2000 bytes of text for 10000 tokens" in named("streamed tokens", records).message


def test_thinking_that_came_as_plain_text_is_not_hidden() -> None:
    one = rec(0, 0, [20.0 + 10 * j for j in range(20)], tokens=20)
    one.reasoning_tokens, one.text_bytes, one.first_text_bytes = 15, 100, 5
    assert denominator([one]) == ([19.0], [DEFINED])
    one.event_ns = one.event_ns[:5]  # now the 15 can be those that never came
    assert denominator([one]) == ([4.0], [DEFINED])
    (note, *_) = notes_streaming(Columns.of([one]))
    assert (note.code, note.numbers) == ("tokens-not-streamed", {"unstreamed": 15, "tokens": 20})


def test_an_end_token_that_no_event_carries() -> None:
    records = [rec(k, 0, [20.0 + 10 * j for j in range(30 + k)], tokens=31 + k) for k in range(20)]
    for one in records:
        one.finish_reason = "stop"
    assert tpot_ms(Columns.of(records)) == pytest.approx([10.0] * 20)


def test_one_stamp_or_one_event_has_no_cadence() -> None:
    records = [rec(0, 0, [20] * 9, tokens=9), rec(1, 0, [20, 20.05, 20.1], tokens=3), rec(2, 0, [20], tokens=9)]
    assert denominator(records)[1] == [WHOLE] * 3
    assert np.isnan(tpot_ms(Columns.of(records))).all()
