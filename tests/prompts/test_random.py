"""Random prompts: as many words as asked for, out of the list, different each time."""

import pytest

from cadenza.errors import UsageError
from cadenza.prompts.random import RandomSource, parse_random
from cadenza.prompts.salt import salt
from cadenza.prompts.source import Draw
from cadenza.prompts.words import WORDS
from cadenza.record import Request


def requests(low: int, high: int, draw: Draw, count: int) -> list[Request]:
    return [RandomSource(low, high, draw).request(index) for index in range(count)]


@pytest.mark.parametrize("unique", [True, False])
def test_a_prompt_has_as_many_words_of_the_list_as_it_says(unique: bool) -> None:
    for request in requests(10, 20, Draw(seed=1, point=0, unique=unique), 200):
        words = request.messages[0].content.split(" ")
        assert request.prompt_tokens == len(words)
        assert 10 <= len(words) <= 20
        assert set(words) <= set(WORDS)


def test_lengths_are_uniform_over_the_range() -> None:
    counts = [request.prompt_tokens or 0 for request in requests(10, 20, Draw(seed=1, point=0), 2000)]
    assert set(counts) == set(range(10, 21))
    # Mean 15, variance (11^2 - 1) / 12 = 10; 4 standard errors.
    assert abs(sum(counts) / 2000 - 15) < 4 * (10 / 2000) ** 0.5


def test_the_salt_counts_among_the_words_and_is_the_least_there_is() -> None:
    (request,) = requests(1, 1, Draw(seed=1, point=2), 1)
    assert request.messages[0].content == salt(1, 2, 0)
    assert request.prompt_tokens == 3
    (longer,) = requests(8, 8, Draw(seed=1, point=2), 1)
    assert longer.messages[0].content.startswith(salt(1, 2, 0) + " ")
    assert longer.prompt_tokens == 8


def test_no_prompt_repeats_whatever_its_length() -> None:
    texts = [r.messages[0].content for point in range(3) for r in requests(1, 4, Draw(seed=0, point=point), 300)]
    assert len(set(texts)) == 900


def test_the_same_place_gives_the_same_request() -> None:
    draw = Draw(seed=1, point=0, output_tokens=(3, 300))
    assert requests(5, 50, draw, 20) == requests(5, 50, draw, 20)
    assert requests(5, 50, draw, 1) != requests(5, 50, Draw(seed=2, point=0, output_tokens=(3, 300)), 1)


@pytest.mark.parametrize(("argument", "expected"), [("7", {7}), ("7:9", {7, 8, 9})])
def test_arguments(argument: str, expected: set[int]) -> None:
    source = parse_random(argument, Draw(seed=0, point=0))
    assert {source.request(index).prompt_tokens for index in range(60)} == expected


@pytest.mark.parametrize(
    "argument", [None, "", "0", "-5", "x", "1.5", "9:7", "1:2:3", "5:", ":5", "²", "10_0", "1000001", "1:1000001"]
)
def test_bad_arguments_get_a_sentence(argument: str | None) -> None:
    with pytest.raises(UsageError, match=r"give random:N or random:LO:HI, tokens from 1 to 1,000,000"):
        parse_random(argument, Draw(seed=0, point=0))
