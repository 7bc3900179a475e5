"""Who is counted, by hand: ended, censored, not yet due, not measured."""

import numpy as np

from cadenza.analysis.summary import summarise_point
from cadenza.record import Outcome, Phase, PointStatus
from cadenza.stats.columns import Columns
from cadenza.stats.population import censored, follow_itl, follow_latency, follow_tpot, follow_ttft, population
from support.columns import closed, rec

COLUMNS = Columns.of(
    [
        rec(0, 0, [10, 20], phase=Phase.WARMUP),
        rec(1, 10, [30, 50]),
        rec(2, 20, [60], done=100, outcome=Outcome.CANCELLED),  # it has its first token
        rec(3, 30, [], done=100, outcome=Outcome.CANCELLED),
        rec(4, None, [], intended=90, done=100, outcome=Outcome.DROPPED),  # due, never sent
        rec(5, None, [], intended=110, done=100, outcome=Outcome.DROPPED),  # interrupted before it was due
        rec(6, 95, [99], phase=Phase.COOLDOWN),
    ]
)


def test_the_population_is_what_was_due() -> None:
    assert np.flatnonzero(population(COLUMNS)).tolist() == [1, 2, 3, 4]
    assert np.flatnonzero(censored(COLUMNS)).tolist() == [2, 3, 4]


def test_a_first_token_that_came_stands_and_the_rest_are_bounds() -> None:
    found = follow_ttft(COLUMNS, user=True)
    assert found.values.tolist() == [20, 40]
    assert found.places.tolist() == [1, 2]
    assert sorted(found.lost.tolist()) == [10, 70]


def test_from_sent_counts_only_what_was_sent() -> None:
    found = follow_latency(COLUMNS, user=False)
    assert found.values.tolist() == [40]
    assert sorted(found.lost.tolist()) == [70, 80]


def test_tpot_and_itl_of_what_was_cut_off() -> None:
    """Cut at 100 ms, 40 ms after its only token; it had asked for 11, the others do not say, or have none."""
    cut = rec(2, 20, [60], done=100, outcome=Outcome.CANCELLED)
    cut.asked_output_tokens = 11
    columns = Columns.of([rec(1, 10, [30, 50]), cut, rec(3, 30, [], done=100, outcome=Outcome.CANCELLED)])
    tpot = follow_tpot(columns)
    assert tpot.values.tolist() == [20]
    assert sorted(tpot.lost.tolist()) == [0, 4]
    gaps, open_gaps = follow_itl(columns)
    assert (gaps.tolist(), open_gaps.tolist()) == ([20], [40])


def test_what_an_interrupt_left_in_the_plan_of_a_closed_loop_was_never_due() -> None:
    """It is recorded as dropped at the instant of the interrupt, which stands for both its start and its end."""
    sent = [rec(k, 50.0 * k, [50.0 * k + 20, 50.0 * k + 40]) for k in range(20)]
    left = [rec(k, None, [], intended=1000, done=1000, outcome=Outcome.DROPPED) for k in range(20, 100)]
    columns = Columns.of([*sent, *left])
    assert np.flatnonzero(population(columns)).tolist() == list(range(20))
    found = summarise_point(closed(1, 100, PointStatus.INTERRUPTED), [*sent, *left])
    assert (found.user_ttft_ms.n, found.user_ttft_ms.censored, found.user_ttft_ms.bounds) == (20, 0, ())
    assert found.user_ttft_ms.mean == 20
