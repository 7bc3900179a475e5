"""What this machine's client can do, as `cadenza calibrate` found it: kept per machine, in the user's cache."""

import os
from pathlib import Path

import msgspec

from cadenza.errors import StoreError
from cadenza.store.environment import Environment, describe_environment
from cadenza.store.files import replace_file


class Calibration(msgspec.Struct, kw_only=True, frozen=True):
    """One process of the client on one core.

    events_per_s, requests_per_s   ceilings: what it reads, and what it sends and reads of one token each, at full load
    stamp_error_us_p50, _p99       event stamp − when the server handed the event to the kernel
    dispatch_lag_ms_p99            sent − when the slot fell free, at a quarter of the ceiling
    kernel_stamps                  whether the stamps are the kernel's
    environment                    what it was measured on; another one makes it void
    """

    measured: str
    events_per_s: float
    requests_per_s: float
    stamp_error_us_p50: float
    stamp_error_us_p99: float
    dispatch_lag_ms_p99: float
    kernel_stamps: bool
    environment: Environment


def calibration_path() -> Path:
    """`$XDG_CACHE_HOME/cadenza/calibration.json`, below `~/.cache` where that is not set."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "cadenza" / "calibration.json"


def keep_calibration(calibration: Calibration) -> Path:
    """Write it, and say where. StoreError where that cannot be."""
    path = calibration_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n")
    except OSError as error:
        raise StoreError(f"cannot keep the calibration in {path}: {error.strerror}") from None
    return path


def find_calibration() -> Calibration | None:
    """This machine's, if there is one and nothing that it rests on has changed: cadenza, Python, kernel, processor."""
    try:
        found = msgspec.json.decode(calibration_path().read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if _same(found.environment, describe_environment()) else None


def _same(one: Environment, other: Environment) -> bool:
    """Cores do not matter: the ceiling is one core's."""
    names = ("cadenza", "python", "os", "machine", "cpu", "libraries")
    return all(getattr(one, name) == getattr(other, name) for name in names)
