"""Lockstep against closed forms."""

import numpy as np
import pytest

from cadenza.stats.load_checks import lockstep


def test_all_at_once_is_one_and_evenly_spaced_is_none() -> None:
    starts = np.arange(12.0) * 100
    assert lockstep(np.asarray(np.repeat(starts, 8), dtype=np.float64), 8) == pytest.approx(1)
    assert lockstep(np.arange(96.0) * 12.5, 8) == pytest.approx(0, abs=1e-9)


def test_half_of_a_round_is_two_over_pi() -> None:
    """Spread evenly over half a circle: the resultant is (2 / π) of all, for many slots."""
    inside = np.arange(1000.0) / 1000 * 50
    assert lockstep((np.arange(5.0)[:, None] * 100 + inside).ravel(), 1000) == pytest.approx(2 / np.pi, rel=0.01)


def test_fewer_than_two_rounds_are_not_judged() -> None:
    assert np.isnan(lockstep(np.arange(16.0), 8))
