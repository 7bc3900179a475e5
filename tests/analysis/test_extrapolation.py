"""A domain and points around it: what lies outside is found with its numbers, what lies inside never is."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.analysis.extrapolation import (
    Workload,
    check_extrapolation,
    describe_workload,
    find_extrapolation,
    note_unknown,
    span_domain,
)
from cadenza.analysis.finding import Verdict
from cadenza.domain import Domain, Lengths
from cadenza.record import LoadLabel, Point, Record
from cadenza.stats.columns import Columns, Ints
from support.columns import closed, rec

DOMAIN = Domain(
    in_system=(1.0, 4.0, 16.0),
    peak_in_flight=16,
    loads=("CLOSED",),
    prompt_tok=Lengths(mean=(510.0, 520.0), range=(210.0, 820.0)),
    aimed_prompt_tok=Lengths(mean=(490.0, 510.0), range=(200.0, 800.0)),
    output_tok=Lengths(mean=(95.0, 97.0), range=(64.0, 128.0)),
    holdout="loads",
    holdout_pct={"tpot_mean": 1.0, "tpot_p95": -12.0, "itl_p50": 0.1, "itl_p95": 40.0},
    rows_pct={"tpot_mean": 0.1, "tpot_p95": -16.0, "itl_p95": 3.0},
)
RATED = msgspec.structs.replace(
    DOMAIN, loads=("OPEN",), arrivals=("poisson",), rates_per_s=(0.5, 2.0), in_system=(2.0, 8.0), peak_in_flight=14
)


def filled(level: int, n: int = 100) -> Ints:
    return np.full(n, level, dtype=np.int64)


INSIDE = Workload(
    load=LoadLabel.CLOSED,
    arrivals=None,
    rate_per_s=None,
    in_system=8.0,
    level=filled(8),
    peak=8,
    prompt_tok=np.linspace(210, 820, 50),
    aimed_prompt_tok=np.linspace(200, 800, 50),
    output_tok=np.linspace(64, 128, 50),
)
OPEN = msgspec.structs.replace(
    INSIDE, load=LoadLabel.OPEN, arrivals="poisson", rate_per_s=1.0, in_system=5.0, level=filled(5), peak=12
)


ABOVE, BELOW, RATE = "extrapolated-load-above", "extrapolated-load-below", "extrapolated-rate"


def codes(domain: Domain, workload: Workload, **changes: object) -> list[str]:
    return [one.code for one in find_extrapolation(domain, msgspec.structs.replace(workload, **changes))]


def test_inside_is_inside() -> None:
    assert codes(DOMAIN, INSIDE) == []
    assert codes(RATED, OPEN) == []


@pytest.mark.parametrize(("level", "found"), [(0.4, [BELOW]), (0.6, []), (16.7, []), (16.9, [ABOVE]), (33, [ABOVE])])
def test_half_a_request_and_five_percent_of_scatter_are_allowed(level: float, found: list[str]) -> None:
    assert codes(DOMAIN, INSIDE, in_system=level) == found


def test_a_finding_has_its_numbers_and_says_them() -> None:
    (found,) = find_extrapolation(DOMAIN, msgspec.structs.replace(INSIDE, in_system=33.0))
    assert found.numbers == {"in_system": 33.0, "lowest_in_system": 1.0, "highest_in_system": 16.0}
    assert found.message == "extrapolated: 33 requests in flight, the profile was measured up to 16"


def test_more_than_a_twentieth_of_the_tokens_above_the_peak_is_another_load() -> None:
    mixed = filled(8)
    mixed[:5] = 17
    assert codes(DOMAIN, INSIDE, level=mixed, peak=17) == []
    mixed[:6] = 17
    (found,) = find_extrapolation(DOMAIN, msgspec.structs.replace(INSIDE, level=mixed, peak=17))
    assert found.code == "extrapolated-peak-above"
    assert found.numbers["share"] == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([440.0] * 50, ["extrapolated-prompt-mean"]),  # 490 · 0.9 = 441
        ([442.0] * 50, []),
        ([562.0] * 50, ["extrapolated-prompt-mean"]),  # 510 · 1.1 = 561
        ([560.0] * 50, []),
        (
            [30.0] * 25 + [970.0] * 25,
            ["extrapolated-prompt-range"],
        ),  # a mean of 500, by lengths that were never measured
    ],
)
def test_lengths_by_their_mean_and_their_range(tokens: list[float], found: list[str]) -> None:
    assert codes(DOMAIN, INSIDE, aimed_prompt_tok=np.array(tokens)) == found
    same = msgspec.structs.replace(DOMAIN, output_tok=DOMAIN.aimed_prompt_tok)
    assert codes(same, INSIDE, output_tok=np.array(tokens)) == [code.replace("prompt", "output") for code in found]


def test_a_mean_that_scatters_has_its_standard_errors_allowed() -> None:
    # Mean 580 is 19 less than 510 · 1.1 + 3 · σ / √n with σ = 90, n = 50: 561 + 38.2.
    assert codes(DOMAIN, INSIDE, aimed_prompt_tok=np.array([490.0, 670.0] * 25)) == []
    assert codes(DOMAIN, INSIDE, aimed_prompt_tok=np.array([580.0] * 50)) == ["extrapolated-prompt-mean"]


def test_prompts_are_compared_as_aimed_at_or_else_as_counted() -> None:
    assert codes(DOMAIN, INSIDE, prompt_tok=np.full(50, 5000.0)) == []
    blind = np.full(50, np.nan)
    assert codes(DOMAIN, INSIDE, aimed_prompt_tok=blind, prompt_tok=np.full(50, 5000.0)) == ["extrapolated-prompt-mean"]
    # 520 · 1.1 + 32: a template's tokens are no other prompt
    assert codes(DOMAIN, INSIDE, aimed_prompt_tok=blind, prompt_tok=np.full(50, 603.0)) == []
    assert codes(DOMAIN, INSIDE, aimed_prompt_tok=blind, prompt_tok=np.full(50, 605.0)) == ["extrapolated-prompt-mean"]


def test_another_loop_and_another_arrival_law() -> None:
    assert codes(DOMAIN, OPEN) == ["extrapolated-loop"]
    assert codes(RATED, OPEN, load=LoadLabel.CAPPED) == ["extrapolated-loop"]
    assert codes(RATED, INSIDE) == ["extrapolated-loop"]
    assert codes(RATED, OPEN, arrivals="gamma:0.25") == ["extrapolated-arrivals"]


@pytest.mark.parametrize(("rate", "found"), [(0.45, [RATE]), (0.5, []), (2.0, []), (2.2, [RATE])])
def test_a_rate_that_was_measured_may_scatter_in_flight_and_another_may_not(rate: float, found: list[str]) -> None:
    swinging = {"in_system": 12.7, "level": filled(20), "peak": 20}
    assert codes(RATED, OPEN, rate_per_s=rate, **swinging) == found
    swinging["in_system"] = 12.9  # 8 · 1.6 = 12.8
    assert codes(RATED, OPEN, rate_per_s=rate, **swinging) == (found or ["extrapolated-load-above"])


def test_what_is_not_recorded_is_not_judged_and_that_is_said() -> None:
    old = Domain(in_system=(1.0, 16.0))
    assert codes(old, OPEN, prompt_tok=np.full(50, 9000.0)) == []
    assert codes(old, OPEN, in_system=40.0) == ["extrapolated-load-above"]
    point = closed()
    point.domain = old
    (found,) = check_extrapolation(point, Columns.of([rec(0, 0, [10, 20])]))
    assert (found.name, found.verdict) == ("extrapolation", None)
    assert "does not record" in found.message


@given(
    load=st.sampled_from(list(LoadLabel)),
    rows=st.lists(st.floats(0.5, 500), min_size=1, max_size=6, unique=True).map(sorted),
    where=st.floats(0, 1),
    lengths=st.lists(st.floats(1, 1e5), min_size=1, max_size=40),
    points=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_a_point_of_the_domain_is_inside_of_it(
    load: LoadLabel, rows: list[float], where: float, lengths: list[float], points: int, seed: int
) -> None:
    """Of the points that span it each is inside, and so is any load between the rows."""
    rng = np.random.default_rng(seed)
    rates = None if load is LoadLabel.CLOSED else 1.0
    made = []
    for k in range(points):
        tokens = np.array(lengths) * (1 + k)
        made.append(
            Workload(
                load=load,
                arrivals=None if rates is None else "poisson",
                rate_per_s=None if rates is None else rates + k,
                in_system=rows[0] + where * (rows[-1] - rows[0]),
                level=rng.integers(0, 10 * (k + 1), 30),
                peak=10 * (k + 1),
                prompt_tok=tokens,
                aimed_prompt_tok=tokens + 1 if seed % 2 else np.full(len(tokens), np.nan),
                output_tok=tokens,
            )
        )
    domain = span_domain(made, tuple(rows))
    for one in made:
        assert find_extrapolation(domain, one) == []


def test_a_workload_of_hand_made_records() -> None:
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=2.0, planned=3)
    records: list[Record] = [rec(0, 0, [10, 20, 30]), rec(1, 5, [15, 45]), rec(2, 6, [], done=50)]
    records[1].prompt_tokens = 7
    records[2].outcome = records[2].outcome.__class__.TRUNCATED
    found = describe_workload(point, Columns.of(records), "poisson")
    assert found is not None
    # Midpoints 15, 25 of the first and 30 of the second: all three are out at 15 and 25, two of them at 30.
    assert found.level.tolist() == [3, 3, 2]
    assert found.in_system == pytest.approx(8 / 3)
    assert (found.peak, found.arrivals, found.rate_per_s) == (3, "poisson", 2.0)
    assert found.output_tok.tolist() == [3, 2]
    assert np.isnan(found.prompt_tok[0])
    assert found.prompt_tok[1] == 7
    assert describe_workload(point, Columns.of(records[2:])) is None


def test_a_closed_loops_load_is_its_slots_though_it_drains() -> None:
    found = describe_workload(closed(slots=4), Columns.of([rec(0, 0, [10, 20])]))
    assert found is not None
    assert found.in_system == 4


def of_domain(domain: Domain | None, slots: int) -> Point:
    point = closed(slots=slots)
    point.domain = domain
    return point


def test_a_check_is_suspect_outside_valid_inside_and_none_without_a_domain() -> None:
    records = [rec(k, 0, [10.0 * n for n in range(1, 97)], tokens=96) for k in range(4)]
    for record in records:
        record.aimed_prompt_tokens = 500
    columns = Columns.of(records)
    assert [one.verdict for one in check_extrapolation(of_domain(DOMAIN, 4), columns)] == [Verdict.VALID]
    (found,) = check_extrapolation(of_domain(DOMAIN, 32), columns)
    assert (found.verdict, found.message) == (
        Verdict.SUSPECT,
        "extrapolated: 32 requests in flight, the profile was measured up to 16",
    )
    assert check_extrapolation(of_domain(None, 32), columns) == []
    assert check_extrapolation(of_domain(DOMAIN, 32), Columns.of([])) == []


def test_figures_that_are_not_known_are_named() -> None:
    columns = Columns.of([rec(0, 0, [10, 20])])
    (at_row,) = note_unknown(of_domain(DOMAIN, 4), columns)
    assert at_row.code == "profile-errors"
    assert at_row.numbers == pytest.approx({"tpot_p95_pct": -16}, abs=0.5)
    (between,) = note_unknown(of_domain(DOMAIN, 8), columns)
    assert between.message.endswith(": TPOT P95 -16 %, ITL P95 +40 %")
    known = msgspec.structs.replace(
        DOMAIN, holdout_pct={"tpot_p95": 4.9, "itl_p95": -4.9, "ttft_mean": 9.9}, rows_pct={}
    )
    assert note_unknown(of_domain(known, 8), columns) == []
    (untested,) = note_unknown(of_domain(Domain(in_system=(1.0, 16.0)), 8), columns)
    assert untested.code == "profile-percentiles-unknown"
    halves = msgspec.structs.replace(known, holdout="blocks")
    (interpolated,) = note_unknown(of_domain(halves, 8), columns)
    assert interpolated.code == "profile-interpolated"
    assert note_unknown(of_domain(halves, 4), columns) == []
    assert note_unknown(of_domain(None, 8), columns) == []
