"""Which cards make a system, how a model is cut among them, and what cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.errors import UsageError
from cadenza.hardware import catalogue
from cadenza.hardware.system import best_shares, split_text, system

PAIR = "mi50-32gb,rx6900xt"


def test_two_names_are_two_ranks_evenly_split_over_the_bus() -> None:
    found = system(PAIR)
    assert (found.ranks, found.shares, found.even) == (2, (0.5, 0.5), True)
    assert found.link is not None
    assert found.link.name == "pcie4-x16"
    assert found.title == "Instinct MI50 32 GB + Radeon RX 6900 XT"


def test_one_name_stands_for_all_ranks_over_its_own_link() -> None:
    found = system("h100", tp=4)
    assert found.shares == (0.25,) * 4
    assert found.link is not None
    assert found.link.name == "nvlink4"
    assert found.title == "4x H100 SXM5 80 GB"


def test_a_single_card_has_no_link() -> None:
    assert system("h100", link="pcie4-x8").link is None


def test_unlike_cards_meet_on_the_slower_bus() -> None:
    found = system("h100,mi50-32gb")
    assert found.link is not None
    assert found.link.name == "pcie4-x16"


def test_a_split() -> None:
    found = system(PAIR, split="2:1")
    assert found.shares == pytest.approx((2 / 3, 1 / 3))
    assert not found.even
    assert found.title.endswith("split 2:1")
    assert system(PAIR, split=(10, 5)).shares == found.shares
    assert system(PAIR, split="best").shares == pytest.approx((2 / 3, 1 / 3))  # 1024 and 512 GB/s
    assert split_text((0.25, 0.5, 0.25)) == "1:2:1"


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_shares_sum_to_one(parts: list[float]) -> None:
    found = system("h100", tp=len(parts), split=parts)
    assert sum(found.shares) == pytest.approx(1, abs=1e-12)
    assert sum(best_shares(found.devices)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("devices", "arguments", "told"),
    [
        (PAIR, {"tp": 3}, "2 devices are named for a tensor-parallel size of 3"),
        ("h100", {"tp": 0}, "makes no sense"),
        (PAIR, {"split": "2"}, "has 1 parts for 2 ranks"),
        (PAIR, {"split": "2:1:1"}, "has 3 parts for 2 ranks"),
        (PAIR, {"split": "two:one"}, "is not a part for each rank"),
        (PAIR, {"split": "1:0"}, "is not a part for each rank"),
        (PAIR, {"split": "1:-1"}, "is not a part for each rank"),
        (PAIR, {"split": "nan:1"}, "is not a part for each rank"),
        (PAIR, {"split": "inf:1"}, "is not a part for each rank"),
        (PAIR, {"split": ""}, "is not a part for each rank"),
        (PAIR, {"link": "rope"}, "no link is called 'rope'"),
        ("mi50-32gb,", {}, "no device is called ''"),
    ],
)
def test_what_makes_no_system(devices: str, arguments: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        system(devices, **arguments)  # type: ignore[arg-type]


def test_heads_divide_as_vllm_demands() -> None:
    qwen = catalogue.model("qwen2.5-7b")  # 28 heads, 4 KV heads
    for fine in (1, 2, 4):
        system("h100", tp=fine).check(qwen)
    with pytest.raises(UsageError, match=r"28 heads and 4 KV heads.*8 ranks: use a tensor-parallel size of 1, 2, 4$"):
        system("h100", tp=8).check(qwen)
    with pytest.raises(UsageError, match="do not divide among 3 ranks"):
        system("h100", tp=3).check(qwen)
    gemma = catalogue.model("gemma-4-e2b")  # one KV head, replicated
    assert system("h100", tp=8).ranks == gemma.heads
    system("h100", tp=8).check(gemma)


def test_an_uneven_split_leaves_each_rank_a_head() -> None:
    qwen = catalogue.model("qwen3-8b")
    system("h100", tp=2, split="31:1").check(qwen)
    with pytest.raises(UsageError, match="one of 32 heads at least"):
        system("h100", tp=2, split="99:1").check(qwen)
