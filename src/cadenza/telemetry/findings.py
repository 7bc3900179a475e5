"""What one look at one card brought together: the first source of a series stands, and nothing impossible passes."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.reading import Collected, Missing, Reading, Reason
from cadenza.telemetry.root import UnreadableError

# What a number can be, by family and in its unit; beyond it is a sentinel, another unit or a dead bus: out_of_range.
# 4 kW is three times the largest card, and less than a 32-bit all-ones in µW (4295 W). 0 limits are unset ones. A link
# without lanes is none, and 63 is what a card that fell off the bus reads. 0 hertz and 0 volts are a gated domain.
RANGES: dict[str, tuple[float, float]] = {
    "gpu_busy_ratio": (0, 1),
    "gpu_memory_busy_ratio": (0, 1),
    "gpu_fan_ratio": (0, 1),
    "gpu_temperature_celsius": (-50, 200),
    "gpu_temperature_limit_celsius": (1, 200),
    # 0 W is what the second die of an MI250 tells, whose power is the first one's; no card that is awake takes none.
    "gpu_power_watts": (0.001, 4000),
    "gpu_power_cap_watts": (1, 4000),
    "gpu_clock_hertz": (0, 10e9),
    "gpu_voltage_volts": (0, 20),
    "gpu_fan_speed_rpm": (0, 50_000),
    "gpu_memory_size_bytes": (1, 2.0**50),
    "gpu_memory_used_bytes": (0, 2.0**50),
    "gpu_pcie_link_speed_transfers_per_second": (1e9, 1e12),
    "gpu_pcie_link_width_lanes": (1, 32),
    # 0 is no counter, and all ones are none either: of energy, a unit of 2^-16 J, and of a bus that is gone.
    "gpu_energy_joules_total": (2.0**-16, 1e13),
    "gpu_pcie_replays_total": (0, 2.0**32 - 2),
    "gpu_pcie_received_bytes_per_second": (0, 1e12),
    "gpu_pcie_sent_bytes_per_second": (0, 1e12),
}
_ANY = (0, 2.0**64)
# Averages of the firmware were seen at 101 %, which is full; 655 % was seen too, which is another unit.
_RATIOS = frozenset({"gpu_busy_ratio", "gpu_memory_busy_ratio"})
_ROUNDED_UP = 1.01

Vendor = Literal["amd", "nvidia"]
_Key = tuple[str, tuple[str, ...]]
Known = dict[_Key, Reading]
# A family, how to read it, and its labels without the card's.
Attempt = tuple[str, Callable[[], float], tuple[str, ...]]


class Plan(NamedTuple):
    """What to attempt at every look, and what changes so slowly that its last answer stands for a while."""

    often: list[Attempt]
    seldom: list[Attempt]


class Findings:
    """Of the card at PCI address `gpu`. Labels are given in the family's order, without `gpu` and `vendor`.

    `known` are the readings that one look at a card leaves to the next: most of them say the same again.
    """

    def __init__(self, gpu: str, vendor: Vendor, known: Known | None = None) -> None:
        self.gpu = gpu
        self._vendor = vendor
        self._known = {} if known is None else known
        self._values: dict[_Key, float] = {}
        self._lacks: dict[_Key, Reason] = {}
        self._excused: set[str] = set()

    def give(self, name: str, value: float | None, *labels: str) -> None:
        """A value, of which None is nothing; ignored where an earlier source had one, out_of_range if it cannot be."""
        key = name, labels
        if value is not None and key not in self._values:
            self._put(key, value)

    def lack(self, name: str, reason: Reason, *labels: str) -> None:
        """Nothing, and why; forgotten if a later source has it. That a file is absent is told of no single label."""
        self._lacks.setdefault((name, labels if reason != "absent" else ()), reason)

    def attempt(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """What `read` gives, or why it does not."""
        key = name, labels
        if key in self._values:
            return
        try:
            value = read()
        except UnreadableError as error:
            self.lack(name, error.reason, *labels)
        else:
            self._put(key, value)

    def include(self, earlier: "Findings") -> None:
        """What an earlier look at the same card found and did not find, as if it had been found now."""
        self._values = earlier._values | self._values
        self._lacks = earlier._lacks | self._lacks

    def excuse(self, name: str) -> None:
        """It is not missing if it is not there."""
        self._excused.add(name)

    def answered(self, names: Iterable[str]) -> bool:
        """Whether any of these families was had."""
        asked = frozenset(names)
        return any(name in asked for name, _ in self._values)

    def hopes(self) -> bool:
        """Whether a read ended in what may have passed at the next look: the card was resetting, or did not answer."""
        return any(reason in ("asleep", "failed", "timeout") for reason in self._lacks.values())

    def failed(self, names: Iterable[str]) -> bool:
        """Whether a read of these families ended in an error or in none at all."""
        asked = frozenset(names)
        return any(name in asked and reason in ("failed", "timeout") for (name, _), reason in self._lacks.items())

    def collect(self, families: Iterable[str]) -> Collected:
        """All readings; and of `families` what is missing, each with one reason a series that could not be read."""
        readings = []
        for key, value in self._values.items():
            reading = self._known.get(key)
            if reading is None:
                labels = tuple(zip(FAMILIES[key[0]].labels, (self.gpu, self._vendor, *key[1]), strict=True))
                reading = self._known[key] = Reading(key[0], labels, value)
            elif reading.value != value:
                reading = self._known[key] = Reading(key[0], reading.labels, value)
            readings.append(reading)
        given = {name for name, _ in self._values}
        missing = [
            Missing(name, self.gpu, reason)
            for (name, labels), reason in self._lacks.items()
            if (name, labels) not in self._values and not (reason == "absent" and name in given)
        ]
        told = given | self._excused | {lack.name for lack in missing}
        missing += [Missing(name, self.gpu, "absent") for name in families if name not in told]
        return Collected(readings, missing)

    def _put(self, key: _Key, value: float) -> None:
        name = key[0]
        if name in _RATIOS and 1 < value <= _ROUNDED_UP:
            value = 1.0
        low, high = RANGES.get(name, _ANY)
        if low <= value <= high:
            self._values[key] = float(value)
        else:
            self.lack(name, "out_of_range", *key[1])
