"""What every law promises, and the horizon: one seed, one plan, whatever its length."""

import numpy as np
import pytest

from cadenza.arrivals.arrival import MAX_ARRIVALS, Arrival, for_horizon
from cadenza.arrivals.constant import Constant
from cadenza.arrivals.gamma import Gamma
from cadenza.arrivals.poisson import Poisson
from cadenza.errors import UsageError

OPEN: list[Arrival] = [Constant(), Poisson(), Gamma(0.1), Gamma(4.0)]


@pytest.mark.parametrize("arrival", OPEN, ids=lambda arrival: type(arrival).__name__)
def test_one_seed_one_plan_and_a_longer_plan_begins_with_it(arrival: Arrival) -> None:
    short = arrival.times_ns(np.random.default_rng(5), 3.0, 1000)
    long = arrival.times_ns(np.random.default_rng(5), 3.0, 2000)
    assert short.dtype == np.int64
    assert short.shape == (1000,)
    assert np.array_equal(short, long[:1000])
    assert np.all(np.diff(long) >= 0)
    assert long[0] >= 0


@pytest.mark.parametrize("arrival", OPEN, ids=lambda arrival: type(arrival).__name__)
def test_nothing_planned_is_nothing(arrival: Arrival) -> None:
    assert arrival.times_ns(np.random.default_rng(0), 1.0, 0).shape == (0,)


@pytest.mark.parametrize("arrival", OPEN, ids=lambda arrival: type(arrival).__name__)
def test_twice_the_rate_is_half_the_time(arrival: Arrival) -> None:
    slow = arrival.times_ns(np.random.default_rng(5), 10.0, 500)
    fast = arrival.times_ns(np.random.default_rng(5), 20.0, 500)
    assert np.max(np.abs(slow - 2 * fast)) <= 2  # each is rounded to a nanosecond


@pytest.mark.parametrize("arrival", OPEN, ids=lambda arrival: type(arrival).__name__)
@pytest.mark.parametrize("horizon_s", [0.0, 0.05, 1.0, 40.0])
def test_a_horizon_holds_exactly_the_arrivals_before_it(arrival: Arrival, horizon_s: float) -> None:
    times_ns = for_horizon(arrival, np.random.default_rng(7), 50.0, horizon_s)
    plan = arrival.times_ns(np.random.default_rng(7), 50.0, 20_000)
    assert plan[-1] > horizon_s * 1e9
    assert np.array_equal(times_ns, plan[plan < horizon_s * 1e9])


def test_a_horizon_leaves_the_generator_alone() -> None:
    rng = np.random.default_rng(7)
    first = for_horizon(Poisson(), rng, 50.0, 10.0)
    assert np.array_equal(first, for_horizon(Poisson(), rng, 50.0, 10.0))


def test_the_count_before_a_horizon_varies_as_a_poisson_count_does() -> None:
    # Rescaled to end at n / rate, as other tools do, every count would be the same.
    counts = [len(for_horizon(Poisson(), np.random.default_rng(seed), 50.0, 2.0)) for seed in range(400)]
    # Mean 100 ± 4 standard errors of 10 / sqrt(400); variance 100 ± 4 of 100 * sqrt(2 / 399).
    assert abs(np.mean(counts) - 100) < 2.0
    assert abs(np.var(counts, ddof=1) - 100) < 29


def test_the_last_arrival_is_not_fitted_to_the_rate() -> None:
    ends = [Poisson().times_ns(np.random.default_rng(seed), 50.0, 100)[-1] / 1e9 for seed in range(400)]
    # The sum of 100 exponential gaps: mean 2, standard deviation 0.2; 4 standard errors each.
    assert abs(np.mean(ends) - 2.0) < 0.04
    assert abs(np.std(ends, ddof=1) - 0.2) < 0.029


@pytest.mark.parametrize(("rate", "horizon_s"), [(1e9, 3600.0), (float("inf"), 1.0)])
def test_a_plan_that_no_memory_holds_is_refused_before_it_is_made(rate: float, horizon_s: float) -> None:
    with pytest.raises(UsageError, match=f"more than {MAX_ARRIVALS:,}"):
        for_horizon(Poisson(), np.random.default_rng(0), rate, horizon_s)
