"""The sentence of each finding, exactly, with the numbers that it is made of; one example for every code.

Other tests read codes and numbers, so that a sentence is reworded in one example and nowhere else.
"""

import pytest

from cadenza.analysis.codes import CODES
from support.other_findings import BOTTLENECK, PROFILES, SERVER
from support.point_findings import LOAD, POINTS, RELATED, STREAMS, Examples

EXAMPLES: Examples = POINTS | LOAD | STREAMS | RELATED | PROFILES | SERVER | BOTTLENECK


def test_every_code_has_an_example() -> None:
    assert EXAMPLES.keys() == CODES.keys()


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_finding_has_these_numbers_and_this_sentence(code: str) -> None:
    make, numbers, sentence = EXAMPLES[code]
    findings = make()
    (finding,) = [one for one in findings if one.code == code]
    assert finding.numbers == pytest.approx(numbers)
    assert finding.message == sentence


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_table_names_the_numbers_of_all_findings_of_an_example(code: str) -> None:
    for one in EXAMPLES[code][0]():
        assert set(one.numbers) <= set(CODES[one.code].numbers), one.code
