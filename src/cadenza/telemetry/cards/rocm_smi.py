"""Parser of rocm-smi's output: `--json` of versions 4 to 7, or `--csv`, whatever precedes it.

Every value in it is a text, and what could not be read is "N/A", "None" or not there. Names changed at 5.7, 6.0 and
6.1; they are compared without case. Source: ROCm/amdsmi `rocm_smi/python_smi_tools/rocm_smi.py`, and dumps of users.

`gpu` is the PCI address where the text has it (--showbus), else the tool's own name: card0. Partitions of one socket
(MI300 in DPX, QPX, CPX) repeat its power, temperatures, clocks and activity: those are reported once.
VRAM is each partition's own, and the sum of them where they share one address.
"""

import csv
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from cadenza.readings import Collected, Missing, Reading, Reason
from cadenza.telemetry.cards.smi import SmiCollector, find_roots, fold, label, number, pci_address, scaled, unique_id
from cadenza.telemetry.findings import Findings

# Flags that every version since 4 has. Not --showbw, which sleeps for a second a card.
FLAGS = (
    *("--showuse", "--showmemuse", "--showtemp", "--showpower", "--showmaxpower", "--showclocks", "--showfan"),
    *("--showvoltage", "--showreplaycount", "--showbus", "--showid", "--showproductname", "--showuniqueid"),
    *("--showserial", "--showvbios", "--showdriverversion", "--showmeminfo", "vram", "vis_vram", "gtt", "--json"),
)
_CARDS = 1024
_CARD = re.compile(r"card(\d{1,4})", re.ASCII)
_TEMPERATURE = re.compile(r"temperature \(sensor (edge|junction|memory|mem|hbm \d)\) \(c\)", re.ASCII)
_CLOCK = re.compile(r"(sclk|mclk|fclk|socclk|dcefclk|vclk[01]?|dclk[01]?) clock speed", re.ASCII)
_MHZ = re.compile(r"\(?(\d{1,9}(?:\.\d{1,9})?) ?mhz\)?", re.ASCII | re.IGNORECASE)
_LINK = re.compile(r"(?:\d{1,3} )?\(?(\d{1,4}(?:\.\d{1,4})?) ?GT/s x(\d{1,3})\)?", re.ASCII | re.IGNORECASE)

# key → family, labels after the card's, the tool's unit in the family's.
_PLAIN: dict[str, tuple[str, tuple[str, ...], float]] = {
    "gpu use (%)": ("gpu_busy_ratio", (), 0.01),
    "gpu memory read/write activity (%)": ("gpu_memory_busy_ratio", (), 0.01),
    "average graphics package power (w)": ("gpu_power_watts", ("average",), 1),
    "current socket graphics package power (w)": ("gpu_power_watts", ("instant",), 1),
    "max graphics package power (w)": ("gpu_power_cap_watts", (), 1),
    "fan rpm": ("gpu_fan_speed_rpm", (), 1),
    "current_fan_speed (rpm)": ("gpu_fan_speed_rpm", (), 1),
    "fan speed (%)": ("gpu_fan_ratio", (), 0.01),
    "fan level": ("gpu_fan_ratio", (), 0.01),
    "voltage (mv)": ("gpu_voltage_volts", ("vddgfx",), 0.001),
    "pcie replay count": ("gpu_pcie_replays_total", (), 1),
}
# Until 6.0 this was how busy the memory is; then the share in use took over, under a name of its own at first. Beside
# any name of the later versions it is taken for neither: the share in use stands in bytes.
_OLD_MEMORY_BUSY = "gpu memory use (%)"
_SINCE_6_1 = frozenset(
    {
        *("gpu memory allocated (vram%)", "gpu memory read/write activity (%)", "avg. memory bandwidth"),
        *("device name", "subsystem id", "guid", "node id", "gfx version"),
    }
)
_POOLS = ("vram", "vis_vram", "gtt")
_MEMORY = {
    f"{pool} {words} (b)": (f"gpu_memory_{what}_bytes", pool)
    for pool in _POOLS
    for words, what in (("total memory", "size"), ("total used memory", "used"))
}
_LINK_SPEED = "gpu_pcie_link_speed_transfers_per_second"
_LINK_WIDTH = "gpu_pcie_link_width_lanes"
_EXPECTED = (
    *dict.fromkeys(family for family, _, _ in _PLAIN.values()),
    *("gpu_memory_size_bytes", "gpu_memory_used_bytes", "gpu_temperature_celsius", "gpu_clock_hertz"),
    *(_LINK_SPEED, _LINK_WIDTH),
)
_OF_PARTITIONS = ("gpu_memory_size_bytes", "gpu_memory_used_bytes")
# VRAM of a whole socket, GiB, by PCI device id: MI300A, MI300X, MI308X, MI325X, MI350X, MI355X.
_WHOLE_GIB = {"0x74a0": 128, "0x74a1": 192, "0x74a2": 192, "0x74a5": 256, "0x75a0": 288, "0x75a3": 288}
_MODES = {"dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}


class SmiCard(NamedTuple):
    """`slot`: the tool's number. `gpu`: what it is called here. `keys`: its part of the text, folded."""

    name: str
    slot: int
    gpu: str
    keys: dict[str, object]


def parse(text: str) -> Collected:
    """Readings of any text; whatever is wrong with it is in `missing`, and nothing raises.

    A text without cards is one Missing "rocm_smi": malformed where it is broken JSON, else failed (the tool says
    nothing, and exits with 0, when there is no driver).
    """
    roots = find_roots(text)
    tables = _read_csv(text) if isinstance(roots, str) else [fold(root) for root in roots]
    for table in tables:
        cards = _find_cards(table)
        if cards:
            driver = label(fold(table.get("system")).get("driver version"))
            return _collect(cards, driver)
    return Collected([], [Missing("rocm_smi", "", roots if isinstance(roots, str) else "failed")])


def collector(which: Callable[[str], str | None] = shutil.which) -> SmiCollector | None:
    """Runs rocm-smi; None where it is not installed."""
    path = which("rocm-smi") or which("/opt/rocm/bin/rocm-smi")
    return None if path is None else SmiCollector((path, *FLAGS), parse, name="rocm_smi")


def _read_csv(text: str) -> list[dict[str, object]]:
    """The table of --csv, as --json would have it."""
    start = re.search(r"^device,", text, re.MULTILINE)
    if start is None:
        return []
    lines = (line for line in text[start.start() :].splitlines() if line.strip())
    try:
        return [{str(row.pop("device")).lower(): row for row in islice(csv.DictReader(lines), _CARDS)}]
    except csv.Error:
        return []


def _find_cards(table: Mapping[str, object]) -> list[SmiCard]:
    cards: list[SmiCard] = []
    for name, value in table.items():
        match = _CARD.fullmatch(name)
        if match and isinstance(value, dict) and len(cards) < _CARDS:
            keys = fold(value)
            cards.append(SmiCard(name, int(match[1]), pci_address(keys.get("pci bus")) or name, keys))
    return sorted(cards, key=lambda card: card.slot)


def _collect(cards: list[SmiCard], driver: str) -> Collected:
    firsts = _find_sockets(cards)
    by_card: dict[str, Findings] = {}
    members: dict[str, list[SmiCard]] = {}
    leaders: set[str] = set()
    for position, card in enumerate(cards):
        findings = by_card.setdefault(card.gpu, Findings(card.gpu, "amd"))
        members.setdefault(card.gpu, []).append(card)
        if firsts[position] == position:
            leaders.add(card.gpu)
            _read_card(card.keys, findings)
            _read_facts(card, driver, findings)
    result = Collected([], [])
    for gpu, findings in by_card.items():
        _read_memory(members[gpu], findings)
        readings, missing = findings.collect(_EXPECTED if gpu in leaders else _OF_PARTITIONS)
        if any(reading.name != "gpu_info" for reading in readings):
            readings.append(Reading("gpu_up", (("gpu", gpu), ("vendor", "amd")), 1.0))
        result.readings.extend(readings)
        result.missing.extend(missing)
    return result


def _find_sockets(cards: list[SmiCard]) -> list[int]:
    """For each card the position of the first one of its socket, mostly its own.

    Partitions of a socket have one PCI address, or differ in the function. Without addresses they are known by their
    VRAM, which is a whole fraction 1/n of what that device has: then n card numbers in a row are one socket.
    """
    firsts: list[int] = []
    by_address: dict[str, int] = {}
    start = 0  # of the row of partitions that goes on
    for position, card in enumerate(cards):
        parts = _count_parts(card.keys)
        if card.gpu != card.name:
            address = card.gpu.rpartition(".")[0] if parts > 1 else card.gpu
            firsts.append(by_address.setdefault(address, position))
            continue
        begun = cards[start]
        if not (
            parts > 1 and begun.gpu == begun.name and _kind(begun) == _kind(card) and card.slot - begun.slot < parts
        ):
            start = position
        firsts.append(start)
    return firsts


def _kind(card: SmiCard) -> tuple[object, int]:
    return (card.keys.get("device id"), _count_parts(card.keys))


def _count_parts(keys: Mapping[str, object]) -> int:
    """Into how many partitions the card's socket is split; 1: into none, or the text does not let one know."""
    mode = _MODES.get(str(keys.get("compute partition")).strip().lower(), 1)
    whole_gib = _WHOLE_GIB.get(str(keys.get("device id")).strip().lower())
    size = number(keys.get("vram total memory (b)"))
    if whole_gib is None or isinstance(size, str) or size <= 0:
        return mode
    # Below half of the whole, and a little above it: firmware keeps some for itself.
    return max(mode, min(8, round((whole_gib << 30) / size)))


def _read_card(keys: Mapping[str, object], findings: Findings) -> None:
    for key, value in keys.items():
        if key in _PLAIN:
            family, labels, unit = _PLAIN[key]
            _give(findings, family, number(value.rstrip("% ") if isinstance(value, str) else value), labels, unit)
        elif match := _TEMPERATURE.fullmatch(key):
            sensor = "mem" if match[1].startswith("mem") else match[1].replace(" ", "")
            _give(findings, "gpu_temperature_celsius", number(value), (sensor,))
        elif match := _CLOCK.fullmatch(key):
            _give(findings, "gpu_clock_hertz", _find(_MHZ, value), (match[1],), 1e6)
        elif key == "pcie clock level":
            _give(findings, _LINK_SPEED, _find(_LINK, value), ("current",), 1e9)
            _give(findings, _LINK_WIDTH, _find(_LINK, value, 2), ("current",))
    if _OLD_MEMORY_BUSY in keys and not keys.keys() & _SINCE_6_1:
        _give(findings, "gpu_memory_busy_ratio", number(keys[_OLD_MEMORY_BUSY]), (), 0.01)


def _give(findings: Findings, family: str, value: float | Reason, labels: tuple[str, ...], unit: float = 1) -> None:
    if isinstance(value, str):
        findings.lack(family, value, *labels)
    else:
        findings.give(family, scaled(value, unit), *labels)


def _find(pattern: re.Pattern[str], value: object, group: int = 1) -> float | Reason:
    match = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        return float(match[group])
    reason = number(value)
    return reason if isinstance(reason, str) else "malformed"


def _read_memory(cards: list[SmiCard], findings: Findings) -> None:
    """The sum of the memory of cards that share an address; missing if one of them lacks it."""
    for key, (family, pool) in _MEMORY.items():
        values = [number(card.keys[key]) for card in cards if key in card.keys]
        reasons = [value for value in values if isinstance(value, str)]
        if reasons or 0 < len(values) < len(cards):
            findings.lack(family, reasons[0] if reasons else "absent", pool)
        elif values:
            findings.give(family, sum(value for value in values if not isinstance(value, str)), pool)


def _read_facts(card: SmiCard, driver: str, findings: Findings) -> None:
    """`gpu_info`, where there is a fact; `card` in it is the tool's number, which need not be the kernel's."""
    keys = {name: label(value) for name, value in card.keys.items()}
    names = (keys.get(name, "") for name in ("card series", "device name", "card model"))
    facts = (
        keys.get("node id", ""),
        keys.get("gfx version", ""),
        next((name for name in names if name and not name.lower().startswith("0x")), ""),
        driver,
        unique_id(card.keys.get("unique id")),
        keys.get("serial number", ""),
        keys.get("vbios version", ""),
        keys.get("compute partition", ""),
        "",  # uuid
    )
    if any(facts):
        findings.give("gpu_info", 1.0, card.name, *facts)
