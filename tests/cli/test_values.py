"""The grammar of flags' texts: durations, lists and ranges."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.cli.values import MAX_LIST, duration_s, number, parse_slo, token_range, values, whole
from cadenza.errors import UsageError
from cadenza.spec import Slo

integers = values(whole)
floats = values(number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,4", (1, 2, 4)),
        ("1-8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("1:64:x2", (1, 2, 4, 8, 16, 32, 64)),
        ("1:10:+3", (1, 4, 7, 10)),
        ("1:60:x2", (1, 2, 4, 8, 16, 32)),  # 64 is above the end
        ("1-3,3,10:30:+10", (1, 2, 3, 10, 20, 30)),  # no value twice
        ("5-5", (5,)),
        (" 1 , 2 ", (1, 2)),
    ],
)
def test_a_list_of_whole_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert integers(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5:4:x2", (0.5, 1, 2, 4)),
        ("0.1:0.3:+0.1", (0.1, 0.2, 0.3)),  # decimal steps: no 0.30000000000000004
        ("1e-3", (0.001,)),  # an exponent and no range
        ("1-3", (1, 2, 3)),
    ],
)
def test_a_list_of_rates(text: str, expected: tuple[float, ...]) -> None:
    assert floats(text) == expected


@pytest.mark.parametrize("text", ["8-1", "1:8:x1", "1:8:x0.5", "0:8:x2", "1:8:+0", f"1-{MAX_LIST + 1}"])
def test_a_range_that_never_ends_or_is_empty_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        integers(text)


def test_a_text_of_another_kind_stays_a_text_for_the_spec_to_refuse() -> None:
    assert integers("4,x,1.5,") == (4, "x", "1.5", "")
    assert (duration_s("soon"), duration_s("5d"), token_range("a:2")) == ("soon", "5d", ("a", 2))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h", 3600), ("90", 90), ("0.5m", 30), ("250ms", 0.25), (" 2m ", 120), ("1.1m", 66)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@given(st.integers(1, 50), st.integers(0, 50))
def test_a_run_of_numbers_is_pythons_range(low: int, more: int) -> None:
    assert integers(f"{low}-{low + more}") == tuple(range(low, low + more + 1))


@given(st.integers(1, 9), st.integers(1, 500), st.integers(2, 9))
def test_a_geometric_list_grows_by_its_factor_up_to_its_end(low: int, high: int, factor: int) -> None:
    if low > high:
        return
    steps = integers(f"{low}:{high}:x{factor}")
    assert steps[0] == low
    assert all(b == a * factor for a, b in pairwise(steps))
    assert steps[-1] <= high < steps[-1] * factor


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        (
            "ttft=500ms,tpot=50ms,latency=9s,attainment=0.95",
            Slo(ttft_ms=500, tpot_ms=50, latency_ms=9000, attainment=0.95),
        ),
        ("ttft=500,tpot=50,latency=9000", Slo(ttft_ms=500, tpot_ms=50, latency_ms=9000)),
        (" ttft = 0.5 s , attainment = 1 ", Slo(ttft_ms=500, attainment=1)),
        ("latency=1.5e1s", Slo(latency_ms=15_000)),
        ("latency=8.2s,tpot=.25ms", Slo(latency_ms=8200, tpot_ms=0.25)),
        ("latency=1.001s", Slo(latency_ms=1001)),
    ],
)
def test_bounds_are_times_with_a_unit_and_a_bare_number_is_ms(text: str, slo: Slo) -> None:
    assert parse_slo(text) == slo
