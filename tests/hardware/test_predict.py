"""Predictions against the step model they rest on, in every case of what limits them."""

import msgspec
import pytest

from cadenza.hardware import catalogue
from cadenza.hardware.predict import LABEL, SchedulerLimits, WhatIf, default_limits, predict, ttft_s
from cadenza.hardware.step import StepModel, decode_batch, prefill_batch
from cadenza.hardware.system import system

QWEN = catalogue.model("qwen3-8b")
PAIR = system("mi50-32gb,rx6900xt")


def what_if(found: tuple[WhatIf, ...], change: str) -> WhatIf:
    (one,) = [entry for entry in found if change in entry.change]
    return one


def test_points_are_sequences_over_seconds() -> None:
    found = predict(PAIR, QWEN, (1, 8), context_tok=500)
    model = StepModel(PAIR, QWEN)
    assert found.label == LABEL == "predicted (physics), not measured"
    assert found.fits
    for point, c in zip(found.points, (1, 8), strict=True):
        seconds = model.seconds(decode_batch(c, 500))
        assert (point.concurrency, point.running, point.limited_by) == (c, c, "")
        assert point.tok_per_s == pytest.approx(c / seconds)
        assert point.tpot_ms == pytest.approx(1e3 * seconds)
    assert found.single_tok_per_s == found.points[0].tok_per_s


def test_the_kv_room_limits_and_the_rest_queues() -> None:
    found = predict(PAIR, QWEN, (500,), context_tok=1024)
    (point,) = found.points
    assert point.running == found.sequences == found.memory.sequences(1024) < 256
    assert point.limited_by == "kv room"
    assert found.peak is not None
    assert (found.peak.concurrency, found.peak.limited_by) == (found.sequences, "kv room")


def test_max_num_seqs_limits() -> None:
    limits = SchedulerLimits(max_num_seqs=4)
    found = predict(PAIR, QWEN, (8,), limits=limits)
    assert (found.points[0].running, found.points[0].limited_by) == (4, "max_num_seqs")
    assert found.peak is not None
    assert (found.peak.concurrency, found.peak.limited_by) == (4, "max_num_seqs")


def test_a_compute_bound_peak_is_flat() -> None:
    """MI50 alone: from C where 2 FLOP a weight outlast its read, twice the requests take nearly twice the time."""
    found = predict(system("mi50-32gb"), QWEN, (1,), context_tok=64)
    assert found.peak is not None
    assert found.peak.flat
    model = StepModel(system("mi50-32gb"), QWEN)
    at_flat = found.peak.flat_from / model.seconds(decode_batch(found.peak.flat_from, 64))
    before = found.peak.flat_from - 1
    assert at_flat >= 0.95 * found.peak.tok_per_s > before / model.seconds(decode_batch(before, 64))
    assert found.peak_bottleneck is not None
    assert "compute of Instinct MI50" in found.peak_bottleneck


def test_ttft_is_the_request_and_its_chunks() -> None:
    model = StepModel(PAIR, QWEN)
    chunks = model.seconds(prefill_batch(2048)) + model.seconds(prefill_batch(952, 2048))
    assert ttft_s(model, 3000, 2048) == pytest.approx(chunks)
    found = predict(PAIR, QWEN, (1,), prompt_tok=3000)
    assert found.ttft_ms == pytest.approx(15.6 + 1e3 * chunks)


def test_what_does_not_fit_is_an_answer() -> None:
    found = predict(system("rx6900xt"), QWEN)
    assert not found.fits
    assert "GiB are lacking" in found.reason
    assert (found.points, found.peak, found.single_tok_per_s, found.ttft_ms) == ((), None, None, None)
    assert what_if(found.what_ifs, "FP8").fits
    assert what_if(found.what_ifs, "INT4").single_tok_per_s is not None
    assert what_if(found.what_ifs, "INT4").single_pct is None


def test_a_context_longer_than_the_room_does_not_fit() -> None:
    found = predict(PAIR, QWEN, context_tok=1_000_000)
    assert not found.fits
    assert "no sequence of 1,000,000" in found.reason


def test_what_another_split_link_or_card_would_change() -> None:
    found = predict(PAIR, QWEN, (1,))
    assert found.single_tok_per_s is not None
    split = what_if(found.what_ifs, "split 2:1")
    then = predict(system("mi50-32gb,rx6900xt", split="2:1"), QWEN, (1,))
    assert split.single_tok_per_s == then.single_tok_per_s
    assert split.single_pct == pytest.approx(100 * (then.single_tok_per_s / found.single_tok_per_s - 1))  # type: ignore[operator]
    assert split.single_pct is not None
    assert split.single_pct > 0
    staged = what_if(found.what_ifs, "host memory")
    assert staged.single_pct is not None
    assert staged.single_pct < 0
    assert not what_if(found.what_ifs, "RX 6900 XT alone").fits
    alone = predict(system("mi50-32gb"), QWEN, (1,))
    assert what_if(found.what_ifs, "MI50 32 GB alone").single_tok_per_s == alone.single_tok_per_s
    assert "split" not in {entry.kind for entry in then.what_ifs}


def test_like_cards_get_no_better_split_and_nobody_waits() -> None:
    found = predict(system("h100", tp=2), catalogue.model("llama-3.1-8b"))
    assert {entry.kind for entry in found.what_ifs} == {"link", "alone", "host"}
    assert found.straggler_share == 0
    assert found.link_share is not None
    assert 0 < found.link_share < 1


def test_a_split_that_leaves_a_rank_without_a_head_is_not_proposed() -> None:
    gemma = catalogue.model("gemma-4-e2b")  # 8 heads; 512 of 5,812 GB/s is 0.7 of one
    found = predict(system("mi300x,rx6900xt"), gemma)
    assert found.fits
    assert "split" not in {entry.kind for entry in found.what_ifs}


def test_limits_follow_vllms_defaults() -> None:
    def told(names: str) -> tuple[int, int]:
        limits = default_limits(system(names))
        return limits.max_num_batched_tokens, limits.max_num_seqs

    assert told("mi50-32gb,rx6900xt") == (2048, 256)
    assert told("a100") == (2048, 256)
    assert told("h100") == (8192, 1024)
    assert told("mi300x") == (16384, 1024)
    assert told("mi300x,mi50-32gb") == (2048, 256)


@pytest.mark.parametrize(
    ("device", "model", "low", "high"),
    [
        # Single streams that others report for vLLM: 320 on an MI300X, and 13 ms for 7 B on an A800 with graphs.
        ("mi300x", "llama-3.1-8b", 150, 320),
        ("a100", "qwen2.5-7b", 70, 110),
    ],
)
def test_single_streams_are_of_the_size_that_others_see(device: str, model: str, low: float, high: float) -> None:
    found = predict(system(device), catalogue.model(model), (1,))
    assert found.single_tok_per_s is not None
    assert low < found.single_tok_per_s < high


def test_it_is_strict_json() -> None:
    found = predict(PAIR, QWEN)
    again = msgspec.json.decode(msgspec.json.encode(found))
    assert again["points"][0]["tok_per_s"] == found.points[0].tok_per_s
    assert again["fits"] is True
