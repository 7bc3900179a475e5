"""Step times against rooflines and closed forms, and what must hold for any batch."""

import timeit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.hardware import catalogue
from cadenza.hardware.batch import Batch
from cadenza.hardware.device import Device
from cadenza.hardware.link import Link
from cadenza.hardware.step import StepModel, decode_batch, prefill_batch, step_time
from cadenza.hardware.system import EAGER, GRAPH, IDEAL, System, best_shares, system

WIRE = Link(name="none", title="none", bandwidth_bytes_per_s=1e18, latency_s=0.0)
BATCHES = st.builds(
    Batch,
    sequences=st.integers(1, 256),
    decode_tok=st.integers(0, 256),
    prefill_tok=st.integers(0, 8192),
    context_tok=st.integers(0, 200_000),
    pairs=st.integers(0, 10_000_000),
)
SYSTEMS = st.sampled_from(
    [
        system("mi50-32gb,rx6900xt"),
        system("mi50-32gb,rx6900xt", split="2:1", host=EAGER),
        system("h100"),
        system("mi300x", tp=4),
    ]
)
MODELS = st.sampled_from([catalogue.model(name) for name in ("qwen3-8b", "llama-3.1-8b", "mixtral-8x7b")])


def perfect(name: str) -> Device:
    """A device that reaches its peaks: what a roofline supposes."""
    return msgspec.structs.replace(catalogue.device(name), bandwidth_efficiency=1.0, compute_efficiency=1.0)


def roofline_ms(model: str, *names: str, split: str | None = None) -> float:
    cards = system([perfect(name) for name in names], split=split, link=WIRE, host=IDEAL)
    return 1e3 * step_time(cards, catalogue.model(model), Batch(1, 1, 0, 0, 0)).total_s


# Table 4.2 of the simulation notes: ms of reading the weights.
@pytest.mark.parametrize(
    ("model", "mi50", "rx", "pair", "uneven", "mi300x"),
    [
        ("qwen3-8b", 14.8, 29.6, 14.8, 9.9, 2.86),
        ("qwen2.5-7b", 13.8, 27.6, 13.8, 9.2, 2.67),
        ("gemma-4-e2b", 4.5, 8.9, 4.5, 3.0, 0.86),
        ("llama-3.1-8b", 14.7, 29.3, 14.7, 9.8, 2.83),
    ],
)
def test_rooflines(model: str, mi50: float, rx: float, pair: float, uneven: float, mi300x: float) -> None:
    assert roofline_ms(model, "mi50-32gb") == pytest.approx(mi50, abs=0.05)
    assert roofline_ms(model, "rx6900xt") == pytest.approx(rx, abs=0.05)
    assert roofline_ms(model, "mi50-32gb", "rx6900xt") == pytest.approx(pair, abs=0.05)
    assert roofline_ms(model, "mi50-32gb", "rx6900xt", split="2:1") == pytest.approx(uneven, abs=0.05)
    assert roofline_ms(model, "mi300x") == pytest.approx(mi300x, abs=0.005)


def test_70b_on_one_mi300x() -> None:
    assert roofline_ms("llama-3.1-70b", "mi300x") == pytest.approx(26.2, abs=0.05)


def test_by_memory_alone_the_fast_card_waits_half_of_each_layer() -> None:
    pair = system([perfect("mi50-32gb"), perfect("rx6900xt")], link=WIRE, host=IDEAL)
    mi50, rx = step_time(pair, catalogue.model("qwen3-8b"), decode_batch(1, 0)).ranks
    assert mi50.stall_share == pytest.approx(1 - 512 / 1024)
    assert rx.stall_share == 0


def test_every_part_in_closed_form() -> None:
    model = catalogue.model("qwen3-8b")
    pair = system("mi50-32gb,rx6900xt")
    batch = Batch(sequences=9, decode_tok=8, prefill_tok=100, context_tok=5000, pairs=20_000)
    found = step_time(pair, model, batch)
    mi50, rx = found.ranks
    read = 2 * (8_190_735_360 - 151_936 * 4096)  # all weights but the embedding table
    assert mi50.memory_s == pytest.approx((read / 2 + 5000 * 147_456 / 2) / (0.75 * 1024e9))
    flop = 2 * (read / 2) * 108 + 4 * 36 * 32 * 128 * 20_000
    assert rx.compute_s == pytest.approx(flop / 2 / (0.4 * 46.1e12))
    assert mi50.overhead_s == pytest.approx(36 * 32e-6)
    reduces = 72 * (30e-6 + 108 * 4096 * 2 / 24.7e9)
    gather = 30e-6 + 9 * 151_936 * 2 / 2 / 24.7e9
    assert found.collectives_s == pytest.approx(reduces + gather)
    assert found.host_s == pytest.approx(126e-6 + 9 * 4e-6)
    slowest = max(max(rank.memory_s, rank.compute_s) + rank.overhead_s for rank in found.ranks)
    assert found.total_s == pytest.approx(slowest + found.collectives_s + found.host_s)
    assert found.link_share == pytest.approx(found.collectives_s / found.total_s)


def test_a_mixture_reads_the_experts_it_meets_and_pays_for_routing() -> None:
    model = catalogue.model("mixtral-8x7b")
    card = [perfect("mi300x")]
    two = 8 * (1 - (1 - 2 / 8) ** 2)
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 4096
    weights = 32 * (attention + 4096 * 8 + two * 3 * 4096 * 14336) + 4096 + 32_000 * 4096
    found = step_time(system(card, host=IDEAL), model, Batch(2, 2, 0, 0, 0))
    assert found.total_s == pytest.approx(2 * weights / 5.3e12)
    eager = step_time(system(card, host=EAGER), model, Batch(2, 2, 0, 0, 0))
    assert eager.ranks[0].overhead_s == pytest.approx(32 * (372e-6 + 100e-6))


def test_a_device_measured_in_its_box_keeps_its_own_launches() -> None:
    slow = msgspec.structs.replace(catalogue.device("mi50-32gb"), dispatch_s_per_layer=1e-3)
    found = step_time(system([slow]), catalogue.model("qwen3-8b"), decode_batch(1, 0))
    assert found.ranks[0].overhead_s == pytest.approx(36e-3)
    assert found.bottleneck == "launch"


def test_the_bottleneck_is_the_largest_part() -> None:
    model = catalogue.model("qwen3-8b")
    assert step_time(system("h100"), model, decode_batch(1, 100)).bottleneck == "memory"
    assert step_time(system("mi50-32gb"), model, prefill_batch(2048)).bottleneck == "compute"
    staged = system("mi300x", tp=2, link="pcie4-host-staged")
    assert step_time(staged, model, decode_batch(1, 100)).bottleneck == "link"
    host = msgspec.structs.replace(GRAPH, step_s=1.0)
    assert step_time(system("h100", host=host), model, decode_batch(1, 1)).bottleneck == "host"


def test_pairs_of_a_prefill_by_counting() -> None:
    whole = prefill_batch(7)
    assert whole.pairs == sum(range(1, 8))
    first, second = prefill_batch(3), prefill_batch(4, 3)
    assert first.pairs + second.pairs == whole.pairs
    assert second.context_tok == 7
    assert decode_batch(3, 50) == Batch(3, 3, 0, 150, 150)


@given(where=SYSTEMS, model=MODELS, batch=BATCHES)
def test_seconds_is_the_total_to_the_last_bit(where: System, model: object, batch: Batch) -> None:
    fast = StepModel(where, model)  # type: ignore[arg-type]
    assert fast.seconds(batch) == fast.time(batch).total_s


@given(where=SYSTEMS, model=MODELS, batch=BATCHES, field=st.sampled_from(Batch._fields), more=st.integers(1, 500))
def test_more_work_never_takes_less_time(where: System, model: object, batch: Batch, field: str, more: int) -> None:
    fast = StepModel(where, model)  # type: ignore[arg-type]
    larger = batch._replace(**{field: getattr(batch, field) + more})
    assert fast.seconds(larger) >= fast.seconds(batch)


@given(
    bandwidths=st.lists(st.floats(5e11, 3e12), min_size=4, max_size=4)
    | st.lists(st.floats(2e11, 5e12), min_size=2, max_size=2),
    cut=st.lists(st.floats(0.3, 1), min_size=4, max_size=4),
)
def test_no_split_beats_the_one_by_bandwidth_for_dense_decode(bandwidths: list[float], cut: list[float]) -> None:
    cards = [
        msgspec.structs.replace(catalogue.device("h100"), bandwidth_bytes_per_s=rate, fp16_flop_per_s=1e18)
        for rate in bandwidths
    ]
    model, batch = catalogue.model("qwen3-8b"), Batch(1, 1, 0, 0, 0)
    best = step_time(system(cards, split=best_shares(cards), host=IDEAL), model, batch)
    other = step_time(system(cards, split=cut[: len(cards)], host=IDEAL), model, batch)
    assert best.total_s <= other.total_s * (1 + 1e-12)
    # All ranks read equally long: nobody waits.
    assert max(rank.stall_share for rank in best.ranks) == pytest.approx(0, abs=1e-9)


def test_seconds_is_quick_enough_to_be_asked_at_every_step() -> None:
    fast, batch = StepModel(system("mi50-32gb,rx6900xt"), catalogue.model("qwen3-8b")), decode_batch(16, 500)
    # 1.3 µs where it was written; the bound leaves room for a busy machine.
    assert min(timeit.repeat(lambda: fast.seconds(batch), number=2000, repeat=5)) / 2000 < 20e-6
