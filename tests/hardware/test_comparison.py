"""The published table digit for digit, the arithmetic behind each disagreement, and bad files."""

import csv
import io

import pytest

from cadenza.errors import UsageError
from cadenza.hardware.comparison import ComparedConfiguration, compare
from cadenza.hardware.published import comparison_names, load_comparison, parse_comparison

TABLE = """\
name,topology,supported_models,single_stream_tok_per_s,peak_tok_per_s,peak_concurrency,stated_bottleneck
Single Instinct MI50,1x MI50 (32GB HBM2),dense <= 14B,12.8,98.4,8,"compute bound (60 CUs, GCN 5.1)"
Single RX 6900 XT,1x RX 6900 XT (16GB GDDR6),dense <= 8B,14.2,52.1,4,VRAM capacity (16GB exhausts at C >= 6)
Heterogeneous TP=2 dense,MI50 + RX 6900 XT,dense <= 16B,12.5,189.26,16,none (PCIe active 0.015% of a step)
Heterogeneous TP=2 MoE (simulated),MI50 + RX 6900 XT,MoE <= 16B FP16,7.8,61.4,8,memory-bus straggler (MI50 stalled \
43.86% of a layer)
"""
PUBLISHED = load_comparison("article")
ROWS = compare(PUBLISHED).configurations
MI50, RX, PAIR, MIXTURE = ROWS
LEAST = """
title = "t"
source = "s"
context_tok = 256
gpu_memory_utilization = 0.9
eager = true
[[configurations]]
name = "one"
devices = ["mi50-32gb"]
model = "qwen3-8b"
single_stream_tok_per_s = 30
peak_tok_per_s = 200
peak_concurrency = 8
stated_bottleneck = "memory"
"""


def missing(row: ComparedConfiguration, *parts: str) -> list[str]:
    """Those of `parts` that stand in no sentence of the row."""
    text = "\n".join(row.disagreements)
    return [part for part in parts if part not in text]


def test_the_printed_table() -> None:
    for row, ours in zip(csv.DictReader(io.StringIO(TABLE)), PUBLISHED.configurations, strict=True):
        for name, value in row.items():
            kept = getattr(ours, name)
            assert type(kept)(value) == kept, name


def test_the_machine_repeats_the_three_single_streams_it_was_derived_from() -> None:
    singles = [row.machine.single_tok_per_s for row in (MI50, RX, PAIR) if row.machine]
    assert singles == pytest.approx([12.8, 14.2, 12.53], rel=3e-3)
    # Each printed step less the read of 15.14 GB at the data sheets' rates.
    assert PUBLISHED.machine is not None
    assert PUBLISHED.machine.own_step_s["mi50-32gb"] == pytest.approx(1 / 12.8 - 15.137e9 / 1024e9, abs=5e-5)
    assert PUBLISHED.machine.own_step_s["rx6900xt"] == pytest.approx(1 / 14.2 - 15.137e9 / 512e9, abs=5e-5)


def test_the_machine_predicts_the_printed_peaks_it_was_not_given() -> None:
    peaks = [row.machine.at_peak_tok_per_s for row in (MI50, RX, PAIR) if row.machine]
    assert peaks[0] == pytest.approx(98.4, rel=0.05)
    assert peaks[1] == pytest.approx(52.1, rel=0.10)
    assert peaks[2] == pytest.approx(189.26, rel=0.05)


def test_physics_is_not_tuned_to_the_article() -> None:
    for row in ROWS:
        assert row.physics.single_tok_per_s > 1.3 * row.printed.single_stream_tok_per_s
        assert missing(row, f"single stream: printed {row.printed.single_stream_tok_per_s:g} tok/s") == []


def test_equal_concurrency_gains_two_percent() -> None:
    assert round(100 * (100.37 / 98.4 - 1)) == 2
    assert round(100 * (189.26 / 98.4 - 1)) == 92
    assert missing(PAIR, "+2 %: 100.37 against 98.4 tok/s at C = 8", "+92 % compares C = 16 with C = 8") == []


def test_weights_that_do_not_fit() -> None:
    assert [row.fits for row in ROWS] == [True, False, True, False]
    assert missing(RX, "weights 15.26 GiB", "14.40 GiB") == []
    assert (
        missing(
            PAIR, f"{16e9 * 2 / 2 / 2**30:.1f} GiB of weights a card, and 0.9 of 16 GiB is 14.4 GiB: it does not fit"
        )
        == []
    )


def test_the_mi50_is_not_compute_bound() -> None:
    """98.4 tok/s of 15.14 GFLOP each are 1.49 TFLOPS, 5.6 % of 26.5."""
    assert round(98.4 * 15.14e9 / 1e12, 2) == 1.49
    assert round(100 * 1.49 / 26.5, 1) == 5.6
    assert missing(MI50, "1.49 TFLOPS, 5.6 % of the peak", "7.69 times a single stream at C = 8, 96 % of linear") == []


def test_a_card_with_half_the_bandwidth_that_is_faster_was_not_bound_by_it() -> None:
    assert missing(RX, "14.2 tok/s against 12.8", "512 against 1024 GB/s: memory bandwidth did not set the pace") == []


def test_the_straggler_of_25_57ths() -> None:
    assert round(100 * 25 / 57, 2) == 43.86
    assert missing(MIXTURE, "25/57", "by bandwidth alone 50 %", "16.4 % by physics", "0.0 % on that machine") == []
    assert MIXTURE.physics.stall[0] > 0 == MIXTURE.physics.stall[1]
    assert MIXTURE.machine is not None
    assert MIXTURE.machine.stall[1] > 0 == MIXTURE.machine.stall[0]


def test_the_mixture_scales_worse_than_printed() -> None:
    assert (
        missing(
            MIXTURE, "7.87 times a single stream at C = 8, 98 % of linear", "8 tokens meet 35 of 64 experts", "2:1 fits"
        )
        == []
    )
    assert MIXTURE.physics.at_peak_tok_per_s / MIXTURE.physics.single_tok_per_s < 61.4 / 7.8


def test_pcie_takes_more_than_0_015_percent() -> None:
    assert missing(PAIR, "36 all-reduces of 8 KiB, 11.9 µs of 79.65 ms", "There are 72") == []
    assert PAIR.physics.link_share > 72 * 30e-6 * PAIR.physics.single_tok_per_s
    # 73 calls of 124 µs in a step of 79.8 ms.
    assert PAIR.machine is not None
    assert PAIR.machine.link_share == pytest.approx(73 * 124e-6 / 79.8e-3, rel=0.01)


def test_a_file_without_a_machine_or_claims_is_compared_with_physics_alone() -> None:
    (row,) = compare(parse_comparison(LEAST, "own.toml")).configurations
    assert row.machine is None
    assert row.fits
    assert not any(sentence.startswith("single stream") for sentence in row.disagreements)  # 30.0 by physics


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("title =", "titel ="), ("titel",)),
        (("peak_concurrency = 8", "peak_concurrency = 0"), ("peak_concurrency", ">= 1")),
        (("= 0.9", "= 1.9"), ("gpu_memory_utilization", "<= 1.0")),
        (("= 30", '= "30"'), ("single_stream_tok_per_s", "float")),
        (('["mi50-32gb"]', "[]"), ("devices",)),
        (('= "memory"', '= "memory"\nclaims = [{ kind = "fast" }]'), ("fast", "claims")),
        (
            ('= "memory"', '= "memory"\nclaims = [{ kind = "faster-than", other = "on" }]'),
            ("'on'", "did you mean 'one'"),
        ),
        (
            ('= "memory"', '= "memory"\nclaims = [{ kind = "stall", device = "x", percent = 1 }]'),
            ("'x'", "mi50-32gb"),
        ),
        (("title =", "title"), ("own.toml",)),
    ],
)
def test_a_bad_file_is_refused_with_its_key(change: tuple[str, str], parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_comparison(LEAST.replace(*change, 1), "own.toml")
    assert all(part in str(refused.value) for part in parts), str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="mi50-33gb"):
        compare(parse_comparison(LEAST.replace("mi50-32gb", "mi50-33gb"), "own.toml"))


def test_shipped_comparisons_are_found_by_name() -> None:
    assert comparison_names() == ["article"]
    with pytest.raises(UsageError, match="did you mean 'article'"):
        load_comparison("artcle")
