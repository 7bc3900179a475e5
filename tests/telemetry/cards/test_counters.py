"""Counters that wrap, restart or jump, against arithmetic."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Missing
from cadenza.telemetry.cards.counters import EnergyCounter, ErrorCounters
from cadenza.telemetry.findings import Findings

GPU = "0000:03:00.0"
SECOND = 10**9
ERRORS = "gpu_ras_errors_total"


@given(watts=st.floats(5, 500), step_s=st.floats(0.2, 20), rounds=st.integers(2, 60), start=st.floats(0, 65_000))
def test_energy_in_32_bits_is_unwrapped(watts: float, step_s: float, rounds: int, start: float) -> None:
    """At constant power the total is a straight line, through however many wraps."""
    counter = EnergyCounter()
    for step in range(rounds):
        true_j = start + watts * step_s * step
        told = counter.add(true_j % 65_536, step * step_s)
        assert told == pytest.approx(true_j, abs=1e-3)


def test_a_chip_that_began_anew_goes_on_from_where_it_stood() -> None:
    counter = EnergyCounter()
    assert counter.add(30_000.0, 100.0) == 30_000.0
    assert counter.add(50.0, 100.5) == 30_050.0
    assert counter.add(150.0, 101.0) == 30_150.0


def test_a_card_that_slept_has_not_wrapped() -> None:
    """An hour would be time enough for a wrap; and what only stood still goes on from where it stood."""
    counter = EnergyCounter()
    counter.add(1_000.0, 100.0)
    counter.rest()
    assert counter.add(5.0, 3700.0) == 1_005.0
    counter.rest()
    assert counter.add(6.0, 7300.0) == 1_006.0
    assert counter.add(65_500.0, 7500.0) == 66_500.0
    assert counter.add(64.0, 7500.5) == 1_000 + 65_536 + 64


def test_a_wide_counter_that_falls_began_anew() -> None:
    counter = EnergyCounter()
    counter.add(1_883_801.0, 10.0)
    assert counter.add(100.0, 10.5) == 1_883_901.0


def test_without_a_clock_a_fall_is_a_new_beginning() -> None:
    counter = EnergyCounter()
    counter.add(65_500.0, None)
    assert counter.add(20.0, None) == 65_520.0


def counted(device: Path, counters: ErrorCounters, now_s: float) -> tuple[dict[str, float], list[Missing]]:
    findings = Findings(GPU, "amd")
    counters.read(device, round(now_s * SECOND), findings)
    readings, missing = findings.collect(())
    told = {".".join(value for _, value in reading.labels[2:]): reading.value for reading in readings}
    return told, [lack for lack in missing if lack.name == ERRORS]


def write(device: Path, text: str) -> None:
    (device / "ras").mkdir(exist_ok=True)
    (device / "ras/umc_err_count").write_text(text, encoding="ascii")


def test_errors_are_asked_for_every_ten_seconds(tmp_path: Path) -> None:
    counters = ErrorCounters()
    write(tmp_path, "ue: 0\nce: 3\n")
    assert counted(tmp_path, counters, 0)[0] == {"umc.uncorrectable": 0, "umc.correctable": 3}
    write(tmp_path, "ue: 1\nce: 4\n")
    assert counted(tmp_path, counters, 9.9)[0] == {"umc.uncorrectable": 0, "umc.correctable": 3}
    assert counted(tmp_path, counters, 10)[0] == {"umc.uncorrectable": 1, "umc.correctable": 4}


def test_a_bogus_million_is_not_believed_and_not_kept(tmp_path: Path) -> None:
    counters = ErrorCounters()
    write(tmp_path, "ue: 2\nce: 3\n")
    counted(tmp_path, counters, 0)
    write(tmp_path, "ue: 1048562\nce: 4\n")
    told, missing = counted(tmp_path, counters, 10)
    assert told == {"umc.correctable": 4}
    assert missing == [Missing(ERRORS, GPU, "out_of_range")]
    write(tmp_path, "ue: 1048563\nce: 4\n")
    assert counted(tmp_path, counters, 20) == ({"umc.uncorrectable": 3, "umc.correctable": 4}, [])
    write(tmp_path, "ue: 2097123\nce: 4\n")  # once more 1048560
    assert counted(tmp_path, counters, 30)[0] == {"umc.correctable": 4}
    write(tmp_path, "ue: 2097123\nce: 4\n")
    assert counted(tmp_path, counters, 40)[0]["umc.uncorrectable"] == 3


def test_a_million_at_first_sight_is_not_believed_either(tmp_path: Path) -> None:
    counters = ErrorCounters()
    write(tmp_path, "ue: 1048560\nce: 0\n")
    assert counted(tmp_path, counters, 0)[0] == {"umc.correctable": 0}
    write(tmp_path, "ue: 1048561\nce: 0\n")
    assert counted(tmp_path, counters, 10)[0] == {"umc.uncorrectable": 1, "umc.correctable": 0}


def test_a_driver_that_was_loaded_anew_counts_from_there(tmp_path: Path) -> None:
    counters = ErrorCounters()
    write(tmp_path, "ue: 0\nce: 1048560\n")
    counted(tmp_path, counters, 0)
    write(tmp_path, "ue: 0\nce: 2\n")
    assert counted(tmp_path, counters, 10)[0]["umc.correctable"] == 2


def test_a_block_that_cannot_be_asked_now_is_missing_and_comes_back(tmp_path: Path) -> None:
    counters = ErrorCounters()
    write(tmp_path, "Query currently inaccessible\n")
    assert counted(tmp_path, counters, 0) == ({}, [Missing(ERRORS, GPU, "asleep")])
    write(tmp_path, "ue: 0\nce: 0\nde: 5\n")
    told, missing = counted(tmp_path, counters, 10)
    assert told == {"umc.uncorrectable": 0, "umc.correctable": 0, "umc.deferred": 5}
    assert missing == []
