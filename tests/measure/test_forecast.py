"""How long a sweep takes: by hand, from an answer's time, and corrected by what was measured."""

import pytest

from cadenza.measure.forecast import Forecast, response_s
from cadenza.measure.grid import lay_out
from cadenza.record import Point
from cadenza.spec import Spec
from support.runs import server

URL = ("http://a:1",)


def forecast(spec: Spec, answer_s: float | None = 2.0) -> tuple[Forecast, list[Point]]:
    points = lay_out(spec, ["m"])
    return Forecast(spec, points, answer_s), points


def test_an_answer_is_its_first_token_and_the_rest_at_the_trials_pace() -> None:
    spec = Spec(urls=URL, output_tokens=(100, 100))
    trial = server(trial_first_s=0.5, trial_token_s=0.02)
    assert response_s(spec, trial, "m") == pytest.approx(0.5 + 100 * 0.02)
    assert response_s(spec, server(), "m") is None


def test_the_trial_of_a_faster_engine_is_on_the_runs_clock() -> None:
    """Timed in real time, in which an engine of speed 10 answers ten times faster than by its own."""
    spec = Spec(engine="e", speed=10.0, output_tokens=(100, 100))
    assert response_s(spec, server(trial_first_s=0.05, trial_token_s=0.002), "m") == pytest.approx(2.5)


def test_a_closed_loop_takes_its_rounds() -> None:
    """C = 4: 8 of warm-up and 100 measured are 27 rounds of 2 s, and the last answer is followed to its end."""
    found, points = forecast(Spec(concurrency=(4, 1), requests=100))
    assert found.point_s(points[0]) == pytest.approx(27 * 2 + 2)
    assert found.point_s(points[1]) == pytest.approx(102 * 2 + 2)
    assert found.left_s(0) == pytest.approx(56 + 206)
    assert found.left_s(1) == pytest.approx(206)
    assert found.left_s(2) == 0


@pytest.mark.parametrize("concurrency", [(), (4,)], ids=["open", "capped"])
def test_a_rate_takes_its_arrivals_whatever_the_answers(concurrency: tuple[int, ...]) -> None:
    spec = Spec(concurrency=concurrency, rates_per_s=(5.0,), requests=100, warmup=10)
    found, points = forecast(spec)
    assert found.point_s(points[0]) == pytest.approx(110 / 5 + 2)
    found, points = forecast(spec, None)
    assert found.point_s(points[0]) == pytest.approx(110 / 5)


def test_a_duration_is_what_it_says() -> None:
    found, points = forecast(Spec(concurrency=(4,), duration_s=30.0))
    assert found.point_s(points[0]) == pytest.approx(32)
    assert found.budget_s(points[0]) is None


def test_without_a_trial_nothing_is_known_of_a_closed_loop() -> None:
    found, points = forecast(Spec(concurrency=(4, 1), requests=100), None)
    assert found.point_s(points[0]) is None
    assert found.left_s(0) is None


def test_auto_takes_130_requests_or_sixteen_rounds_and_no_more_than_its_share() -> None:
    found, points = forecast(Spec(urls=URL, concurrency=(1, 16), max_time_s=600.0))
    assert found.point_s(points[0]) == pytest.approx(132 * 2 + 2)
    assert found.point_s(points[1]) == pytest.approx((32 + 256) / 16 * 2 + 2)
    found, points = forecast(Spec(urls=URL, concurrency=(1, 16), max_time_s=100.0))
    assert found.point_s(points[0]) == 50
    assert found.left_s(0) == pytest.approx(50 + 38)
    found, points = forecast(Spec(urls=URL, concurrency=(1, 2, 4, 8, 16), max_time_s=900.0), None)
    assert found.left_s(0) == pytest.approx(900)  # all of it, where nothing is known


def test_a_points_time_is_an_equal_share_less_two_answers() -> None:
    """Its last answers are followed to their end, and so are those that were sent meanwhile: a quarter at most."""
    found, points = forecast(Spec(urls=URL, concurrency=(1, 2, 4), max_time_s=90.0))
    assert [found.budget_s(point) for point in points] == [26.0] * 3
    found, points = forecast(Spec(urls=URL, concurrency=(1, 2, 4), max_time_s=9.0))
    assert [found.budget_s(point) for point in points] == [2.25] * 3
    found, points = forecast(Spec(urls=URL, concurrency=(1, 2, 4), max_time_s=90.0), None)
    assert [found.budget_s(point) for point in points] == [30.0] * 3


def test_a_point_that_ends_early_leaves_more_to_the_later_ones() -> None:
    found, points = forecast(Spec(urls=URL, concurrency=(1, 2, 4), max_time_s=90.0), None)
    found.done(points[0], 10.0)
    assert [found.budget_s(point) for point in points[1:]] == [40.0] * 2
    found.done(points[1], 60.0)  # and one that takes longer leaves them less
    assert found.budget_s(points[2]) == 20
    found.done(points[2], 40.0)
    assert found.budget_s(points[2]) == 0


def test_the_budget_is_real_time_and_the_points_are_on_the_runs_clock() -> None:
    found, points = forecast(Spec(engine="e", speed=20.0, requests="auto", concurrency=(1, 2), max_time_s=10.0), None)
    assert found.speed == 20
    assert [found.budget_s(point) for point in points] == [100.0] * 2


def test_what_a_point_took_corrects_those_after_it() -> None:
    """Expected: 10 rounds of 2 s and 2 s more; it took twice as long, and so will the next ones."""
    found, points = forecast(Spec(concurrency=(1, 2, 4), requests=8, warmup=2))
    assert [found.point_s(point) for point in points] == pytest.approx([22, 12, 7])
    found.done(points[0], 44.0)
    assert found.left_s(1) == pytest.approx(24 + 14)
    found.done(points[1], 24.0)  # as expected now
    assert found.left_s(2) == pytest.approx(14)


def test_a_point_that_was_ended_by_its_time_shows_no_pace_that_is_faster() -> None:
    found, points = forecast(Spec(urls=URL, concurrency=(1, 16), max_time_s=200.0))
    before = found.point_s(points[1])
    assert before == pytest.approx(38)
    found.done(points[0], 100.0)  # of the 266 s that 132 answers take
    assert found.point_s(points[1]) == before


def test_a_rate_says_nothing_of_the_servers_pace() -> None:
    found, points = forecast(Spec(concurrency=(2,), rates_per_s=(1.0, 2.0), requests=8, warmup=2))
    found.done(points[0], 100.0)
    assert found.point_s(points[1]) == pytest.approx(10 / 2 + 2)
