"""Blocks by hand, and the published cases of what fits."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.hardware import catalogue
from cadenza.hardware.memory import RUNTIME_BYTES, room
from cadenza.hardware.system import system

GIB = 1 << 30
QWEN = catalogue.model("qwen3-8b")


def test_a_single_card_by_hand() -> None:
    plan = room(system("mi50-32gb"), QWEN, 0.9, 16, 2048, 256)
    (rank,) = plan.ranks
    # 2048 tokens of 4 x 4096 and 2 x 12288 values of 2 bytes; 256 rows of 151936 logits of 8 bytes.
    working = GIB + 2048 * (16_384 + 24_576) * 2 + 256 * 151_936 * 8
    assert RUNTIME_BYTES == GIB
    assert rank.working == working
    kv = 0.9 * 32 * GIB - 8_190_735_360 * 2 - working
    assert plan.blocks == math.floor(kv / (16 * 147_456))
    assert plan.kv_tok == 16 * plan.blocks
    assert plan.fits
    assert plan.reason == ""
    # The simulation notes put it at about 88,000 tokens.
    assert plan.kv_tok == pytest.approx(88_000, rel=0.03)


def test_8b_does_not_fit_16_gb() -> None:
    plan = room(system("rx6900xt"), QWEN, 0.9)
    assert not plan.fits
    assert plan.blocks == plan.kv_tok == 0
    assert "weights 15.26 GiB" in plan.reason
    assert "0.9 of its 16 GiB is 14.40 GiB" in plan.reason
    lacking = 8_190_735_360 * 2 + plan.ranks[0].working - 0.9 * 16 * GIB
    assert f"{lacking / GIB:.2f} GiB are lacking" in plan.reason


def test_the_smallest_rank_decides() -> None:
    plan = room(system("mi50-32gb,rx6900xt"), QWEN)
    assert plan.blocks == plan.ranks[1].blocks < plan.ranks[0].blocks
    for rank in plan.ranks:
        assert rank.weights == 8_190_735_360


def test_dense_16b_does_not_fit_an_even_pair_but_a_split_of_2_to_1() -> None:
    half = msgspec.structs.replace(QWEN, layers=75)
    assert 15.5e9 < half.params < 16.2e9
    even = room(system("mi50-32gb,rx6900xt"), half, 0.9)
    assert not even.fits
    assert "Radeon RX 6900 XT (rank 1)" in even.reason
    assert room(system("mi50-32gb,rx6900xt", split="2:1"), half, 0.9).fits


def test_one_kv_head_is_held_by_both_ranks() -> None:
    gemma = catalogue.model("gemma-4-e2b")
    (first, second) = room(system("h100", tp=2), gemma).ranks
    assert first.blocks == second.blocks == math.floor(first.kv / (16 * 18_432))


def test_sequences_leave_the_null_block_out() -> None:
    plan = room(system("mi50-32gb"), QWEN)
    assert plan.sequences(16) == plan.blocks - 1
    assert plan.sequences(17) == (plan.blocks - 1) // 2
    assert plan.sequences(10**9) == 0


@given(utilisation=st.floats(0.5, 0.99), block_size=st.sampled_from([8, 16, 32, 64]))
def test_what_is_planned_stays_in_the_budget(utilisation: float, block_size: int) -> None:
    pair = system("mi50-32gb,rx6900xt")
    plan = room(pair, QWEN, utilisation, block_size)
    for device, rank in zip(pair.devices, plan.ranks, strict=True):
        used = rank.weights + rank.working + plan.blocks * block_size * 147_456 / 2
        assert not plan.fits or used <= utilisation * device.vram_bytes
    more = room(pair, QWEN, min(0.995, utilisation + 0.005), block_size)
    assert more.blocks >= plan.blocks
