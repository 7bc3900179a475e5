"""Calibration: what a step concludes from records and truth by hand, and a small one on the real thing."""

import numpy as np
import pytest

from cadenza.engine.api.null import NullPlan
from cadenza.measure.calibrate import _conclude, _measure
from cadenza.record import WorkerHealth
from support.columns import rec

MS = 1_000_000


def test_a_step_by_hand() -> None:
    records = [rec(0, 0, [20, 30, 40], intended=0), rec(1, 41, [61, 71, 81], intended=40)]
    # handed over 50 and 100 µs before the stamp; the second answer's last gap was 16 ms at the server
    truth = {0: [20 * MS - 50_000, 30 * MS - 50_000, 40 * MS - 50_000], 1: [61 * MS - 100_000, 65 * MS, 81 * MS]}
    step = _conclude(NullPlan(3, 20, 10), 1, records, truth, WorkerHealth(worker=0, wall_s=2.0, cpu_s=0.5))
    assert (step.events_per_s, step.requests_per_s, step.cpu_share) == (3.0, 1.0, 0.25)
    assert step.stamp_error_us.tolist() == [50, 50, 50, 100, 6000, 0]
    assert step.lag_ms.tolist() == [1.0]
    assert step.server_late == pytest.approx(1 / 5)


@pytest.mark.slow
def test_a_small_one_against_the_null_server() -> None:
    step = _measure(NullPlan(tokens=10, first_ms=5, gap_ms=5), 4, 12, None, lambda: False)
    assert step.streams == 4
    assert len(step.stamp_error_us) == 12 * 10
    assert (step.stamp_error_us >= 0).all()  # nothing arrives before it was sent
    assert np.isfinite(step.lag_ms).all()
    assert len(step.lag_ms) == 12 - 4
    assert 0 < step.cpu_share <= 1.05
