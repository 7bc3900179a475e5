"""Parameters, bytes and FLOP against the numbers that the models' publishers give, and closed forms."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.hardware import catalogue
from cadenza.hardware.architecture import Architecture

# Total weights in the checkpoints' own safetensors indices.
WEIGHTS = {
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
}
# Table of the simulation notes: GB in FP16, GB read by a decode step, bytes of KV a token.
TABLE = {
    "qwen3-8b": (16.38, 15.14, 147_456),
    "qwen2.5-7b": (15.23, 14.14, 57_344),
    "llama-3.1-8b": (16.06, 15.01, 131_072),
    "llama-3.1-70b": (141.1, 139.0, 327_680),
    "gemma-4-e2b": (10, 4.56, 18_432),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_to_the_last_one(name: str) -> None:
    assert catalogue.model(name).params == WEIGHTS[name]


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    model = catalogue.model(name)
    size, read, kv = TABLE[name]
    assert model.weight_bytes / 1e9 == pytest.approx(size, rel=0.02 if name == "gemma-4-e2b" else 5e-4)
    assert model.read_bytes_per_step(1) / 1e9 == pytest.approx(read, rel=5e-4)
    assert model.kv_bytes_per_tok == kv
    assert model.flop_per_tok == pytest.approx(model.read_bytes_per_step(1), rel=1e-12)  # 2 FLOP and 2 bytes a weight


def test_qwen3_8b_is_15_26_gib() -> None:
    assert catalogue.model("qwen3-8b").weight_bytes / (1 << 30) == pytest.approx(15.26, abs=0.005)


def test_the_active_weights_of_qwen3_30b_a3b_are_3_3_b() -> None:
    """Its card says 3.3 B activated; that counts the embedding table, which no step reads whole."""
    model = catalogue.model("qwen3-30b-a3b")
    assert (model.active_params + model.embedding_params) / 1e9 == pytest.approx(3.3, abs=0.06)


def test_mixtral_meets_12_9_b_a_token() -> None:
    model = catalogue.model("mixtral-8x7b")
    assert (model.active_params + model.embedding_params) / 1e9 == pytest.approx(12.9, abs=0.05)


def test_the_stand_in_mixture_stays_below_16_b_and_says_what_it_is() -> None:
    model = catalogue.model("moe-16b-synthetic")
    assert 15e9 < model.params < 16e9
    assert "synthetic" in model.title


def test_distinct_experts_by_enumeration() -> None:
    """Two tokens that each pick 1 of 2 experts meet 1 or 2, each as likely: 1.5."""
    model = msgspec.structs.replace(catalogue.model("mixtral-8x7b"), experts=2, active_experts=1)
    assert [model.distinct_experts(n) for n in (0, 1, 2, 3)] == [0, 1, 1.5, 1.75]


@given(tokens=st.integers(1, 5000))
def test_distinct_experts_grow_from_k_to_all(tokens: int) -> None:
    model = catalogue.model("qwen3-30b-a3b")
    met = model.distinct_experts(tokens)
    assert 8 - 1e-9 <= met <= 128
    assert met <= 8 * tokens + 1e-9
    assert met <= model.distinct_experts(tokens + 1)


def test_a_mixture_that_meets_all_experts_reads_all_but_the_embedding() -> None:
    model = catalogue.model("mixtral-8x7b")
    assert model.read_bytes_per_step(10_000) == pytest.approx(model.weight_bytes - 2 * model.embedding_params)


def test_quantised_layers_leave_embedding_head_and_last_norm_in_16_bits() -> None:
    model = catalogue.model("llama-3.1-8b")
    half = 2 * model.vocab * model.hidden + model.hidden
    for width in (1.0, 0.5):
        smaller = msgspec.structs.replace(model, bytes_per_weight=width)
        assert smaller.weight_bytes == (model.params - half) * width + 2 * half
        assert smaller.flop_per_tok == model.flop_per_tok


def test_tied_embeddings_count_once_and_are_read_as_the_head() -> None:
    model = catalogue.model("llama-3.1-8b")
    tied = msgspec.structs.replace(model, tied=True)
    assert model.params - tied.params == model.embedding_params
    assert tied.read_bytes_per_step(1) == model.read_bytes_per_step(1) == tied.weight_bytes


def test_kv_heads_are_replicated_where_there_are_fewer_than_ranks() -> None:
    assert catalogue.model("qwen3-8b").kv_share(1 / 2) == 1 / 2
    assert catalogue.model("qwen3-8b").kv_share(1 / 16) == 1 / 8
    assert catalogue.model("gemma-4-e2b").kv_share(1 / 2) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kv_heads": 7}, "no multiple of kv_heads"),
        ({"experts": 4}, "active_experts"),
        ({"experts": 4, "active_experts": 5, "expert_ffn": 10}, "active_experts"),
        ({"moe_layers": 3}, "needs experts"),
        ({"moe_layers": 99}, "moe_layers"),
        ({"ffn": 0}, "need ffn"),
        ({"layers": 0}, "layers"),
    ],
)
def test_a_shape_that_is_none_is_refused(change: dict[str, int], told: str) -> None:
    fields = {**msgspec.to_builtins(catalogue.model("qwen3-8b")), **change}
    with pytest.raises(msgspec.ValidationError, match=told):
        msgspec.convert(fields, Architecture)
