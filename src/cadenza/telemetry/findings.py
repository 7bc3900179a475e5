"""What one look at one card brought together: the first source of a series stands, and nothing impossible passes."""

from collections.abc import Callable, Iterable

from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.reading import Collected, Labels, Missing, Reading, Reason
from cadenza.telemetry.root import UnreadableError

# What a number can be, by family and in its unit; beyond it is a sentinel, another unit or a dead bus: out_of_range.
# 4 kW is three times the largest card, and less than a 32-bit all-ones in µW (4295 W). 0 limits are unset ones. A link
# without lanes is none, and 63 is what a card that fell off the bus reads. 0 hertz and 0 volts are a gated domain.
RANGES: dict[str, tuple[float, float]] = {
    "amdgpu_busy_ratio": (0, 1),
    "amdgpu_memory_busy_ratio": (0, 1),
    "amdgpu_fan_ratio": (0, 1),
    "amdgpu_temperature_celsius": (-50, 200),
    "amdgpu_temperature_limit_celsius": (1, 200),
    "amdgpu_power_watts": (0, 4000),
    "amdgpu_power_cap_watts": (1, 4000),
    "amdgpu_clock_hertz": (0, 10e9),
    "amdgpu_voltage_volts": (0, 20),
    "amdgpu_fan_speed_rpm": (0, 50_000),
    "amdgpu_memory_size_bytes": (1, 2.0**50),
    "amdgpu_memory_used_bytes": (0, 2.0**50),
    "amdgpu_pcie_link_speed_transfers_per_second": (1e9, 1e12),
    "amdgpu_pcie_link_width_lanes": (1, 32),
    "amdgpu_pcie_received_bytes_per_second": (0, 1e12),
    "amdgpu_pcie_sent_bytes_per_second": (0, 1e12),
}
_ANY = (0, 2.0**64)
# Averages of the firmware were seen at 101 %, which is full; 655 % was seen too, which is another unit.
_RATIOS = frozenset({"amdgpu_busy_ratio", "amdgpu_memory_busy_ratio"})
_ROUNDED_UP = 1.01

_Key = tuple[str, tuple[str, ...]]
# A family, how to read it, and its labels without the card's.
Attempt = tuple[str, Callable[[], float], tuple[str, ...]]


class Findings:
    """Of the card at PCI address `gpu`. Labels are given in the family's order, without the card's.

    `known` are labels by what they were given as, which one look at a card can leave to the next.
    """

    def __init__(self, gpu: str, known: dict[_Key, Labels] | None = None) -> None:
        self.gpu = gpu
        self._labels = {} if known is None else known
        self._values: dict[_Key, float] = {}
        self._lacks: dict[_Key, Reason] = {}
        self._excused: set[str] = set()

    def give(self, name: str, value: float | None, *labels: str) -> None:
        """A value, of which None is nothing; ignored where an earlier source had one, out_of_range if it cannot be."""
        if value is None or (name, labels) in self._values:
            return
        if name in _RATIOS and 1 < value <= _ROUNDED_UP:
            value = 1.0
        low, high = RANGES.get(name, _ANY)
        if low <= value <= high:
            self._values[name, labels] = float(value)
        else:
            self.lack(name, "out_of_range", *labels)

    def lack(self, name: str, reason: Reason, *labels: str) -> None:
        """Nothing, and why; forgotten if a later source has it. That a file is absent is told of no single label."""
        self._lacks.setdefault((name, labels if reason != "absent" else ()), reason)

    def attempt(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """What `read` gives, or why it does not."""
        if (name, labels) in self._values:
            return
        try:
            value = read()
        except UnreadableError as error:
            self.lack(name, error.reason, *labels)
        else:
            self.give(name, value, *labels)

    def excuse(self, name: str) -> None:
        """It is not missing if it is not there."""
        self._excused.add(name)

    def answered(self, names: Iterable[str]) -> bool:
        """Whether any of these families was had."""
        asked = frozenset(names)
        return any(name in asked for name, _ in self._values)

    def failed(self, names: Iterable[str]) -> bool:
        """Whether a read of these families ended in an error or in none at all."""
        asked = frozenset(names)
        return any(name in asked and reason in ("failed", "timeout") for (name, _), reason in self._lacks.items())

    def collect(self, families: Iterable[str]) -> Collected:
        """All readings; and of `families` what is missing, each with one reason a series that could not be read."""
        readings = [Reading(key[0], self._label(key), value) for key, value in self._values.items()]
        given = {name for name, _ in self._values}
        missing = [
            Missing(name, self.gpu, reason)
            for (name, labels), reason in self._lacks.items()
            if (name, labels) not in self._values and not (reason == "absent" and name in given)
        ]
        told = given | self._excused | {lack.name for lack in missing}
        missing += [Missing(name, self.gpu, "absent") for name in families if name not in told]
        return Collected(readings, missing)

    def _label(self, key: _Key) -> Labels:
        labels = self._labels.get(key)
        if labels is None:
            labels = self._labels[key] = tuple(zip(FAMILIES[key[0]].labels, (self.gpu, *key[1]), strict=True))
        return labels
