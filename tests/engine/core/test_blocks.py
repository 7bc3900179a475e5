"""The pool of KV blocks by hand: who is found, who is reused first, and that block 0 is nobody's."""

import pytest

from cadenza.engine.core.blocks import Blocks
from cadenza.errors import CadenzaError


def test_usage_is_of_what_can_be_held() -> None:
    blocks = Blocks(11, caching=True)
    assert (blocks.free, blocks.usage) == (10, 0.0)
    taken = blocks.take(4)
    assert taken == [1, 2, 3, 4]
    assert blocks.usage == pytest.approx(0.4)
    blocks.give_back(taken)
    assert blocks.usage == 0.0
    with pytest.raises(CadenzaError, match="null block"):
        Blocks(1, caching=True)


def test_blocks_without_a_prefix_are_reused_first_and_prefixes_by_age_the_tail_of_each_before_its_head() -> None:
    blocks = Blocks(8, caching=True)
    first, second = blocks.take(3), blocks.take(2)
    for block, key in ((1, 11), (2, 12), (4, 21)):
        blocks.register(block, key)
    blocks.give_back(first)  # 3 has no hash; 2 goes before 1, as a shorter prefix is worth more
    blocks.give_back(second)  # 5 has none
    assert blocks.take(7) == [5, 3, 6, 7, 2, 1, 4]


def test_a_prefix_is_found_as_far_as_it_goes_until_its_block_is_taken() -> None:
    blocks = Blocks(6, caching=True)
    for block, key in zip(blocks.take(3), (11, 12, 13), strict=True):
        blocks.register(block, key)
    assert blocks.find((11, 12, 13)) == [1, 2, 3]
    assert blocks.find((11, 99, 13)) == [1]
    blocks.give_back([1, 2, 3])
    assert blocks.idle([1, 2]) == 2
    blocks.share(blocks.find((11, 12)))
    assert (blocks.free, blocks.idle([1, 2])) == (3, 0)
    assert blocks.take(3) == [4, 5, 3]
    assert blocks.find((11, 12, 13)) == [1, 2]


def test_equal_prefixes_are_kept_beside_each_other_and_the_first_is_found() -> None:
    blocks = Blocks(4, caching=True)
    taken = blocks.take(2)
    for block in taken:
        blocks.register(block, 7)
    assert blocks.find((7,)) == [1]
    blocks.give_back([1])
    assert blocks.take(2) == [3, 1]
    assert blocks.find((7,)) == [2]


def test_forgetting_everything_waits_for_everybody_to_leave() -> None:
    blocks = Blocks(3, caching=True)
    taken = blocks.take(1)
    blocks.register(taken[0], 7)
    assert blocks.reset() is False
    blocks.give_back(taken)
    assert blocks.find((7,)) == [1]
    assert blocks.reset() is True
    assert blocks.find((7,)) == []
