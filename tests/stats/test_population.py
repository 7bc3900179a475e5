"""Who is counted, by hand: ended, censored, not yet due, not measured."""

import numpy as np

from cadenza.record import Outcome, Phase
from cadenza.stats.columns import Columns
from cadenza.stats.population import censored, follow, population
from support.columns import rec

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
    found = follow(COLUMNS, COLUMNS.first_ms - COLUMNS.intended_ms, COLUMNS.intended_ms, np.isfinite(COLUMNS.first_ms))
    assert found.values.tolist() == [20, 40]
    assert found.places.tolist() == [1, 2]
    assert sorted(found.lost.tolist()) == [10, 70]
