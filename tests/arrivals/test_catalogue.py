"""The names of the laws, and what is said to a name that is none."""

import pytest

from cadenza.arrivals.catalogue import ARRIVALS, parse
from cadenza.arrivals.constant import Constant
from cadenza.arrivals.gamma import Gamma
from cadenza.arrivals.poisson import Poisson
from cadenza.errors import UsageError
from cadenza.spec import Spec


def test_names() -> None:
    assert isinstance(parse("poisson"), Poisson)
    assert isinstance(parse(" constant "), Constant)
    gamma = parse("gamma:0.25")
    assert isinstance(gamma, Gamma)
    assert gamma.shape == 0.25
    assert set(ARRIVALS) == {"poisson", "constant", "gamma"}


def test_the_default_of_the_spec_is_a_name() -> None:
    assert isinstance(parse(Spec().arrivals), Poisson)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "give poisson, constant or gamma:K"),
        ("weibull", "'weibull' are not known: give poisson, constant or gamma:K"),
        ("Poisson", "give poisson"),
        ("gamma", "need a shape K"),
        ("gamma:", "need a shape K"),
        ("gamma:two", "need a shape K"),
        ("gamma:0", "from 0.01 to 10000"),
        ("gamma:-1", "need a shape K"),
        ("gamma:nan", "need a shape K"),
        ("gamma:inf", "need a shape K"),
        ("gamma:1:2", "need a shape K"),
        ("poisson:2", "take no argument"),
        ("constant:", "take no argument"),
        ("a\x1b[31m\n" * 50, "are not known"),
    ],
)
def test_bad_text_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert sentence in str(refused.value)
    assert str(refused.value).isprintable()
