"""The sensors of a card's hwmon folder, whose number changes with every boot: the one whose `name` is amdgpu.

Units: https://docs.kernel.org/gpu/amdgpu/thermal.html (millidegrees, microwatts, millivolts, hertz).
"""

import re
from pathlib import Path

from cadenza.telemetry.cards.drm import clean, scaled
from cadenza.telemetry.findings import Plan
from cadenza.telemetry.root import UnreadableError, read_integer, read_text

_SENSOR = re.compile(r"(temp|freq|in)([0-9]{1,2})_input", re.ASCII)
_DEFAULTS = {
    "temp": {"1": "edge", "2": "junction", "3": "mem"},
    "freq": {"1": "sclk", "2": "mclk"},
    "in": {"0": "vddgfx", "1": "vddnb"},
}
_FAMILIES = {
    "temp": ("gpu_temperature_celsius", 1000),
    "freq": ("gpu_clock_hertz", 1),
    "in": ("gpu_voltage_volts", 1000),
}
_PER_WATT = 1_000_000
_PWM_MAX = 255


class Hwmon:
    """The sensors of the card with this device folder; which there are is looked up once for each hwmon folder."""

    def __init__(self, device: Path) -> None:
        self._above = device / "hwmon"
        self._folder: Path | None = None
        self._plan = Plan([], [])

    def plan(self) -> Plan:
        """How to read a card that is awake: often its temperatures, power, clocks and voltages; seldom its limits, the
        power cap and the fan, which follows the temperatures within seconds."""
        if self._folder is None or not self._folder.exists():
            self._folder = self._find()
            self._plan = Plan([], []) if self._folder is None else _plan(self._folder)
        return self._plan

    def _find(self) -> Path | None:
        try:
            names = sorted(entry.name for entry in self._above.iterdir())
        except OSError:
            return None
        folders = (self._above / name for name in names if name.startswith("hwmon"))
        return next(filter(_is_amdgpu, folders), None)


def _is_amdgpu(folder: Path) -> bool:
    try:
        return read_text(folder / "name") == "amdgpu"
    except UnreadableError:
        return False


def _plan(folder: Path) -> Plan:
    """What can be read there, with its labels."""
    often, seldom = plan = Plan([], [])
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return plan
    for name in names:
        match = _SENSOR.fullmatch(name)
        if match is None:
            continue
        kind, number = match.groups()
        label = _label(folder / f"{kind}{number}_label") or _DEFAULTS[kind].get(number, f"{kind}{number}")
        family, parts = _FAMILIES[kind]
        often.append((family, scaled(folder / name, parts), (label,)))
        for limit in ("crit", "emergency"):
            if kind == "temp" and f"temp{number}_{limit}" in names:
                path = folder / f"temp{number}_{limit}"
                seldom.append(("gpu_temperature_limit_celsius", scaled(path, 1000), (label, limit)))
    if "power1_average" in names:
        often.append(("gpu_power_watts", scaled(folder / "power1_average", _PER_WATT), ("average",)))
    if "power1_input" in names:
        often.append(("gpu_power_watts", scaled(folder / "power1_input", _PER_WATT), ("instant",)))
    if "power1_cap" in names:
        seldom.append(("gpu_power_cap_watts", scaled(folder / "power1_cap", _PER_WATT), ()))
    if "fan1_input" in names:
        seldom.append(("gpu_fan_speed_rpm", scaled(folder / "fan1_input", 1), ()))
    if "pwm1" in names:
        seldom.append(("gpu_fan_ratio", scaled(folder / "pwm1", _pwm_max(folder)), ()))
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
