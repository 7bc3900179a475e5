"""A closed loop has no plan of time."""

import numpy as np

from cadenza.arrivals.closed import Closed


def test_all_are_due_at_once() -> None:
    assert Closed().times_ns(np.random.default_rng(0), 0.0, 3).tolist() == [0, 0, 0]
