"""A calibration is kept for a machine, and void on another one."""

from pathlib import Path

import msgspec
import pytest

from cadenza.errors import StoreError
from cadenza.store.calibration import Calibration, calibration_path, find_calibration, keep_calibration
from cadenza.store.environment import describe_environment


def calibration() -> Calibration:
    return Calibration(
        measured="2026-11-30T00:00:00+0000",
        events_per_s=60_000.0,
        requests_per_s=9_000.0,
        stamp_error_us_p50=5.0,
        stamp_error_us_p99=40.0,
        dispatch_lag_ms_p99=0.5,
        kernel_stamps=True,
        environment=describe_environment(),
    )


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_kept_and_found() -> None:
    assert find_calibration() is None
    assert keep_calibration(calibration()) == calibration_path()
    assert find_calibration() == calibration()


def test_another_processor_or_release_makes_it_void() -> None:
    for changes in ({"cpu": "another"}, {"os": "Linux 1.0"}, {"cadenza": "0.0.0"}, {"python": "CPython 2.7"}):
        other = msgspec.structs.replace(describe_environment(), **changes)
        keep_calibration(msgspec.structs.replace(calibration(), environment=other))
        assert find_calibration() is None
    more = msgspec.structs.replace(describe_environment(), cpus=512, cpus_usable=1)
    keep_calibration(msgspec.structs.replace(calibration(), environment=more))
    assert find_calibration() is not None  # the ceiling is one core's


def test_a_damaged_one_is_none() -> None:
    keep_calibration(calibration())
    calibration_path().write_bytes(b"{")
    assert find_calibration() is None


def test_no_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="cannot keep the calibration"):
        keep_calibration(calibration())
