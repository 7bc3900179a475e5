"""The values of one card in one round: the first source of a series is kept, and impossible values are refused."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from cadenza.readings import Collected, Missing, Reading, Reason
from cadenza.telemetry.families import FAMILIES
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
    # The second die of an MI250 reports 0 W, its power is in the first one's; no card that is awake draws none.
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
    """What to read in every round, and what changes so slowly that it is read less often."""

    often: list[Attempt]
    seldom: list[Attempt]


class Findings:
    """Of the card at PCI address `gpu`. Labels are given in the family's order, without `gpu` and `vendor`.

    `known`: the readings of the round before, reused where a value has not changed.
    """

    def __init__(self, gpu: str, vendor: Vendor, known: Known | None = None) -> None:
        self.gpu = gpu
        self._vendor = vendor
        self._known = {} if known is None else known
        self._values: dict[_Key, float] = {}
        self._lacks: dict[_Key, Reason] = {}
        self._excused: set[str] = set()

    def give(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value, unless it is None or an earlier source had one; out_of_range where it is impossible."""
        key = name, labels
        if value is not None and key not in self._values:
            self._put(key, value)

    def lack(self, name: str, reason: Reason, *labels: str) -> None:
        """No value, and the reason; dropped if a later source has one. An absent file counts once a family."""
        self._lacks.setdefault((name, labels if reason != "absent" else ()), reason)

    def attempt(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """Add the value of `read`, or the reason why it has none."""
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
        """Add the values and reasons of an earlier round of the same card."""
        self._values = earlier._values | self._values
        self._lacks = earlier._lacks | self._lacks

    def excuse(self, name: str) -> None:
        """Do not report this family as missing."""
        self._excused.add(name)

    def answered(self, names: Iterable[str]) -> bool:
        """Whether any of these families has a value."""
        wanted = frozenset(names)
        return any(name in wanted for name, _ in self._values)

    def hopes(self) -> bool:
        """Whether a read failed for a reason that may have passed by the next round: a reset, or no answer."""
        return any(reason in ("asleep", "failed", "timeout") for reason in self._lacks.values())

    def failed(self, names: Iterable[str]) -> bool:
        """Whether a read of these families ended in an error or in none at all."""
        wanted = frozenset(names)
        return any(name in wanted and reason in ("failed", "timeout") for (name, _), reason in self._lacks.items())

    def collect(self, families: Iterable[str]) -> Collected:
        """All readings; and which of `families` are missing, with one reason for each series."""
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
        mentioned = given | self._excused | {lack.name for lack in missing}
        missing += [Missing(name, self.gpu, "absent") for name in families if name not in mentioned]
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
