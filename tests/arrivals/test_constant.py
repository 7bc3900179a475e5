"""A metronome has no variance at all."""

import numpy as np

from cadenza.arrivals.constant import Constant

RNG = np.random.default_rng(0)


def test_the_first_at_once_and_then_every_period() -> None:
    assert Constant().times_ns(RNG, 4.0, 5).tolist() == [0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000]


def test_gaps_differ_by_rounding_only_and_no_error_adds_up() -> None:
    times_ns = Constant().times_ns(RNG, 3.0, 300_001)
    assert set(np.diff(times_ns)) == {333_333_333, 333_333_334}
    assert times_ns[-1] == 100_000 * 1_000_000_000


def test_counts_are_not_dispersed() -> None:
    times_s = Constant().times_ns(RNG, 50.0, 50_000) / 1e9
    for width_s in (1.0, 10.0, 100.0):
        counts = np.bincount((times_s / width_s).astype(int))
        assert np.var(counts) / np.mean(counts) < 1e-3


def test_no_draw_is_made() -> None:
    rng = np.random.default_rng(1)
    Constant().times_ns(rng, 1.0, 10)
    assert rng.random() == np.random.default_rng(1).random()
