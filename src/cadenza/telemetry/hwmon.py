"""The sensors of a card's hwmon folder, whose number changes with every boot: the one whose `name` is amdgpu.

Units: https://docs.kernel.org/gpu/amdgpu/thermal.html (millidegrees, microwatts, millivolts, hertz).
"""

import re
from pathlib import Path

from cadenza.telemetry.drm import clean, once, scaled
from cadenza.telemetry.findings import Attempt, Findings
from cadenza.telemetry.root import UnreadableError, read_integer, read_text

_SENSOR = re.compile(r"(temp|freq|in)([0-9]{1,2})_input", re.ASCII)
_DEFAULTS = {
    "temp": {"1": "edge", "2": "junction", "3": "mem"},
    "freq": {"1": "sclk", "2": "mclk"},
    "in": {"0": "vddgfx", "1": "vddnb"},
}
_FAMILIES = {
    "temp": ("amdgpu_temperature_celsius", 1000),
    "freq": ("amdgpu_clock_hertz", 1),
    "in": ("amdgpu_voltage_volts", 1000),
}
_PER_WATT = 1_000_000
_PWM_MAX = 255


class Hwmon:
    """The sensors of the card with this device folder; which there are is looked up once for each hwmon folder."""

    def __init__(self, device: Path) -> None:
        self._above = device / "hwmon"
        self._seen: list[str] = []
        self._attempts: list[Attempt] = []

    def read(self, findings: Findings) -> None:
        """Temperatures, their limits, power, clocks, voltages and fan of a card that is awake."""
        try:
            seen = sorted(entry.name for entry in self._above.iterdir())
        except OSError:
            seen = []
        if seen != self._seen:
            self._seen, self._attempts = [], []
            for name in seen:
                if name.startswith("hwmon") and _is_amdgpu(self._above / name):
                    self._attempts = _plan(self._above / name)
                    self._seen = seen
                    break
        for name, read, labels in self._attempts:
            findings.attempt(name, read, *labels)


def _is_amdgpu(folder: Path) -> bool:
    try:
        return read_text(folder / "name") == "amdgpu"
    except UnreadableError:
        return False


def _plan(folder: Path) -> list[Attempt]:
    """What can be read there, with its labels."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    plan: list[Attempt] = []
    for name in names:
        match = _SENSOR.fullmatch(name)
        if match is None:
            continue
        kind, number = match.groups()
        label = _label(folder / f"{kind}{number}_label") or _DEFAULTS[kind].get(number, f"{kind}{number}")
        family, parts = _FAMILIES[kind]
        plan.append((family, scaled(folder / name, parts), (label,)))
        for limit in ("crit", "emergency"):
            if kind == "temp" and f"temp{number}_{limit}" in names:
                path = folder / f"temp{number}_{limit}"
                plan.append(("amdgpu_temperature_limit_celsius", once(scaled(path, 1000)), (label, limit)))
    if "power1_average" in names:
        plan.append(("amdgpu_power_watts", scaled(folder / "power1_average", _PER_WATT), ("average",)))
    if "power1_input" in names:
        plan.append(("amdgpu_power_watts", scaled(folder / "power1_input", _PER_WATT), ("instant",)))
    if "power1_cap" in names:
        plan.append(("amdgpu_power_cap_watts", scaled(folder / "power1_cap", _PER_WATT), ()))
    if "fan1_input" in names:
        plan.append(("amdgpu_fan_speed_rpm", scaled(folder / "fan1_input", 1), ()))
    if "pwm1" in names:
        plan.append(("amdgpu_fan_ratio", scaled(folder / "pwm1", _pwm_max(folder)), ()))
    return plan


def _label(path: Path) -> str:
    try:
        return clean(read_text(path))
    except UnreadableError:
        return ""


def _pwm_max(folder: Path) -> int:
    try:
        most = read_integer(folder / "pwm1_max")
    except UnreadableError:
        return _PWM_MAX
    return most if 0 < most <= 1 << 16 else _PWM_MAX
