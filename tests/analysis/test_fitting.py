"""What a fit takes from a point: loads, spreads and slopes against closed forms and hand-made records."""

import numpy as np
import pytest

from cadenza.analysis.fitting import Sample, fit_rows, fit_slope, spread, take_sample
from cadenza.record import Outcome, Phase, Record
from cadenza.stats.columns import Columns, Floats
from support.columns import rec


def sample(in_system: float, ttft: Floats, gaps: Floats, prompts: Floats | None = None) -> Sample:
    tok = np.full(len(ttft), np.nan) if prompts is None else prompts
    return Sample(
        in_system=in_system,
        ttft_ms=ttft,
        prompt_tok=tok,
        gap_ms=gaps,
        gap_level=np.full(len(gaps), round(in_system)),
        gap_request=np.zeros(len(gaps), dtype=np.int64),
        tpot_ms=float(gaps.mean()),
        tpot_each_ms=np.array([gaps.mean()]),
    )


def take(records: list[Record]) -> Sample:
    found = take_sample(Columns.of(records))
    assert found is not None
    return found


def test_a_sample_of_hand_made_records() -> None:
    # Two in flight until 40; the gaps' midpoints 25, 35 of the first and 35, 50 of the second see 2 2, 2 1.
    records = [rec(0, 0, [10, 20, 30, 40]), rec(1, 5, [20, 30, 40, 60])]
    found = take(records)
    assert found.in_system == pytest.approx(7 / 4)
    assert found.ttft_ms.tolist() == [10, 15]
    assert found.gap_ms.tolist() == [10, 10, 10, 20]
    assert found.tpot_ms == pytest.approx((10 + 40 / 3) / 2)
    assert found.tpot_each_ms == pytest.approx([10, 40 / 3])
    assert found.gap_level.tolist() == [2, 2, 2, 1]
    assert found.gap_request.tolist() == [0, 0, 1, 1]


def test_only_measured_requests_that_ended_well_count() -> None:
    records = [rec(0, 0, [10, 20]), rec(1, 0, [30, 90]), rec(2, 0, [5, 6], done=7), rec(3, 0, [], done=8, tokens=0)]
    records[1].phase = Phase.COOLDOWN
    records[2].outcome = Outcome.TRUNCATED
    assert take(records).gap_ms.tolist() == [10]
    assert take_sample(Columns.of(records[3:])) is None
    single = [rec(0, 0, [10], tokens=1)]
    assert take_sample(Columns.of(single)) is None


def test_gaps_of_events_with_several_tokens_are_per_token() -> None:
    found = take([rec(0, 0, [10, 35, 60, 85], tokens=10, event_tokens=[1, 3, 3, 3])])
    assert found.gap_ms == pytest.approx([25 / 3, 25 / 3])
    assert found.tpot_ms == pytest.approx(75 / 9)


def test_the_first_gap_counts_only_where_there_is_no_other() -> None:
    assert take([rec(0, 0, [10, 50, 60]), rec(1, 0, [10, 40])]).gap_ms.tolist() == [10]
    assert take([rec(0, 0, [10, 50]), rec(1, 0, [10, 40])]).gap_ms.tolist() == [40, 30]


def test_prompts_are_those_the_server_counted_or_else_those_aimed_at() -> None:
    records = [rec(k, 0, [10, 20]) for k in range(2)]
    assert np.isnan(take(records).prompt_tok).all()
    for record, aimed in zip(records, (100, 200), strict=True):
        record.aimed_prompt_tokens = aimed
    assert take(records).prompt_tok.tolist() == [100, 200]
    records[0].prompt_tokens = 104
    assert take(records).prompt_tok.tolist() == [100, 200]
    records[1].prompt_tokens = 210
    assert take(records).prompt_tok.tolist() == [104, 210]


def test_under_poisson_arrivals_the_load_is_one_more_than_the_time_average() -> None:
    # M/D/∞: the number in flight is Poisson with mean L = λ W = 8; a token sees its own request and the 8 others.
    rng = np.random.default_rng(3)
    starts = np.cumsum(rng.exponential(50.0, 4000))
    records = [rec(k, start, [start + 20 * j for j in range(1, 21)]) for k, start in enumerate(starts)]
    for record in records[:40]:  # the system fills
        record.phase = Phase.WARMUP
    for record in records[-40:]:  # nobody comes after them
        record.phase = Phase.COOLDOWN
    found = take(records)
    assert found.in_system == pytest.approx(9, rel=0.03)


def test_a_spread_by_shares() -> None:
    assert spread(np.array([4.0, 1.0, 3.0, 2.0]), 2) == pytest.approx([0.6, 1.4])  # means 1.5 and 3.5 over 2.5
    assert spread(np.array([1.0, 2.0, 6.0]), 2) == pytest.approx([(1 + 1) / 4.5, (1 + 6) / 4.5])  # 2 falls into both
    assert spread(np.array([7.0]), 4) == pytest.approx([1, 1, 1, 1])


def test_a_spread_of_an_exponential_is_its_closed_form() -> None:
    # The mean of a unit exponential between its quantiles a and b: [(1−a)(1 − ln(1−a)) − (1−b)(1 − ln(1−b))] / (b − a).
    n, shares = 320_000, 32
    values = -np.log1p(-(np.arange(n) + 0.5) / n)
    left = 1 - np.arange(shares + 1) / shares
    tail = np.where(left > 0, left * (1 - np.log(np.where(left > 0, left, 1))), 0)
    assert spread(values, shares) == pytest.approx((tail[:-1] - tail[1:]) * shares, rel=1e-4)


@pytest.mark.parametrize("n", [1, 5, 31, 32, 33, 1000])
def test_a_spread_rises_and_has_mean_1(n: int) -> None:
    shares = spread(np.random.default_rng(n).lognormal(0, 2, n))
    assert len(shares) == 32
    assert (np.diff(shares) >= 0).all()
    assert shares.mean() == pytest.approx(1, rel=1e-12)


def test_the_slope_is_within_groups() -> None:
    # Both groups lie on ms = tok / 10 + a constant of their own; across them it would fall.
    groups = [
        (np.array([10.0, 20, 30]), np.array([101.0, 102, 103])),
        (np.array([40.0, 50, 60]), np.array([4.0, 5, 6])),
    ]
    found = fit_slope(groups)
    assert found.estimate == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1)
    assert found.used == pytest.approx(0.1)


def test_the_slopes_interval_is_students_with_hc3() -> None:
    x, y = np.array([-2.0, -1, 0, 1, 2]), np.array([-1.0, 0, 1, 0, 0])
    found = fit_slope([(x, y)])
    # By hand: b = 2/10; residuals −.6 .2 1 −.2 −.4; leverages .6 .3 .2 .3 .6.
    errors = np.array([-0.6, 0.2, 1.0, -0.2, -0.4]) / (1 - np.array([0.6, 0.3, 0.2, 0.3, 0.6]))
    half = 5.840909 * np.sqrt(((x * errors) ** 2).sum()) / 10  # t of 3 degrees of freedom at 0.995
    assert found.estimate == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-5)
    assert found.used == 0


def test_a_slope_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    inside = 0
    for _ in range(1000):
        groups = []
        for load in (1, 4, 16):  # scatter grows with the load, and with the prompt
            tok = rng.integers(100, 1000, 40).astype(float)
            groups.append((tok, 50 * load + 0.05 * tok + rng.normal(0, load * tok / 100)))
        found = fit_slope(groups)
        inside += found.low <= 0.05 <= found.high
    assert inside / 1000 == pytest.approx(0.99, abs=0.008)


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [(np.array([5.0]), np.array([1.0]))],
        [(np.array([5.0, 5, 5, 5]), np.array([1.0, 2, 3, 4]))],
        [(np.array([5.0, 6]), np.array([1.0, 2]))],
        [(np.array([5.0, 5, 5, 900]), np.array([1.0, 2, 3, 50]))],  # one prompt alone would decide
    ],
)
def test_a_slope_that_nothing_tells_is_not_used(groups: list[tuple[Floats, Floats]]) -> None:
    found = fit_slope(groups)
    assert np.isnan(found.low)
    assert found.used == 0


def test_rows_rise_and_like_loads_are_pooled() -> None:
    samples = [
        sample(8.0, np.array([40.0, 60]), np.array([20.0, 22])),
        sample(1.0, np.array([10.0]), np.array([5.0])),
        sample(7.9, np.array([80.0]), np.array([24.0, 26, 28, 30])),
    ]
    fitted = fit_rows(samples)
    assert [row.samples for row in fitted.rows] == [(1,), (2, 0)]
    assert fitted.rows[1].in_system == pytest.approx((4 * 7.9 + 2 * 8) / 6)
    assert [row.ttft_ms for row in fitted.rows] == [10, 60]
    assert [row.step_ms for row in fitted.rows] == [5, 25]
    assert [(row.requests, row.gaps) for row in fitted.rows] == [(1, 1), (3, 6)]
    assert np.isnan(fitted.prompt_tok)
    assert np.isnan(fitted.slope.estimate)


def test_a_rows_ttft_is_for_the_mean_prompt() -> None:
    gaps = np.array([5.0])
    tok = np.array([100.0, 200, 300, 400])
    samples = [
        sample(1.0, 10 + tok / 10 + np.array([1.0, -1, -1, 1]), gaps, tok),
        sample(4.0, 20 + tok / 10 + np.array([1.0, -1, -1, 1]), gaps, tok + 0.0),
    ]
    fitted = fit_rows(samples)
    assert fitted.prompt_tok == 250
    assert fitted.slope.used == pytest.approx(0.1)
    assert [row.ttft_ms for row in fitted.rows] == pytest.approx([35, 45])
    assert fitted.rows[0].ttft_spread[[0, 31]] == pytest.approx([34 / 35, 36 / 35])
