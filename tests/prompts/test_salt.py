"""The salt is one to one, and no salt begins with another."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cadenza.prompts.salt import salt
from cadenza.prompts.words import WORDS

NUMBER = st.integers(0, 2000) | st.integers(0, 2**70)
PLACE = st.tuples(st.integers(-(2**70), 2**70) | st.integers(-3, 3), NUMBER, NUMBER)


def decode(words: list[str]) -> tuple[int, int, int]:
    """The inverse, written from the salt's description."""
    numbers, number, digits = [], 0, 0
    for word in words:
        at = WORDS.index(word)
        number += (at % 512) * 512**digits
        digits += 1
        if at >= 512:
            numbers.append(number)
            number = digits = 0
    index, point, signed = numbers
    return (signed // 2 if signed % 2 == 0 else -(signed + 1) // 2), point, index


@given(PLACE)
def test_it_can_be_decoded(place: tuple[int, int, int]) -> None:
    assert decode(salt(*place).split()) == place


@given(PLACE, PLACE)
def test_none_is_the_beginning_of_another(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    if one != other:
        first, second = salt(*one).split(), salt(*other).split()
        shorter = min(len(first), len(second))
        assert first[:shorter] != second[:shorter]


def test_small_numbers_take_few_words_and_neighbours_differ_in_the_first() -> None:
    salts = [salt(0, 3, index).split() for index in range(512)]
    assert {len(words) for words in salts} == {3}
    assert len({words[0] for words in salts}) == 512


def test_all_of_a_sweep_differ() -> None:
    places = list(itertools.product((0, 1, -1), range(12), range(600)))
    assert len({salt(*place) for place in places}) == len(places)
