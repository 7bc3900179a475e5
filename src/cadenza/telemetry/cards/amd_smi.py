"""Parser of amd-smi's output: `metric --json`, with `static --json` before it or alone, or `monitor --json`.

The root is a list of cards up to version 6.4, an object with `gpu_data` since 7.0; errors are objects too, on stdout.
A leaf is {"value": N, "unit": "W"}, "N/A", or a bare number, and a whole section can be "N/A". Memory word to be in MB
is in MiB. Source: ROCm/amdsmi `amdsmi_cli/amdsmi_commands.py`, and texts of users.

`gpu` is the PCI address where the text has it (`bus.bdf` of static, or `bdf`), else gpu0, by the tool's number. Several
texts one after the other are one: the cards' sections are put together by that number. What belongs to a socket that is
split into partitions is reported once, as in `rocm_smi`.

Left out: `pcie.bandwidth` and `current_bandwidth_*` (no source settles their unit and direction), and the residency
counters of `throttle` (in cycles of unknown length).
"""

import re
import shutil
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from cadenza.readings import Collected, Missing, Reading, Reason
from cadenza.telemetry.cards.smi import SmiCollector, find_roots, fold, label, number, pci_address, scaled, unique_id
from cadenza.telemetry.findings import Findings

Units = Mapping[str, float]

# A unit as the tool writes it, in lower case → in the family's unit. The first is that of a bare number.
_RATIO: Units = {"%": 0.01}
_WATTS: Units = {"w": 1, "mw": 0.001}
_CELSIUS: Units = {"c": 1, "°c": 1}
_HERTZ: Units = {"mhz": 1e6, "ghz": 1e9, "hz": 1}
_VOLTS: Units = {"mv": 0.001, "v": 1}
_JOULES: Units = {"j": 1, "kj": 1e3}
_BYTES: Units = {"mb": 2**20, "mib": 2**20, "b": 1, "kb": 2**10, "kib": 2**10, "gb": 2**30, "gib": 2**30}
_RPM: Units = {"rpm": 1}
_TRANSFERS: Units = {"gt/s": 1e9, "mt/s": 1e6}
_COUNT: Units = {"": 1}


class _Leaf(NamedTuple):
    section: str
    key: str
    family: str
    labels: tuple[str, ...]
    units: Units


_METRIC = (
    _Leaf("usage", "gfx_activity", "gpu_busy_ratio", (), _RATIO),
    _Leaf("usage", "umc_activity", "gpu_memory_busy_ratio", (), _RATIO),
    _Leaf("power", "gfx_voltage", "gpu_voltage_volts", ("vddgfx",), _VOLTS),
    _Leaf("power", "soc_voltage", "gpu_voltage_volts", ("soc",), _VOLTS),
    _Leaf("power", "mem_voltage", "gpu_voltage_volts", ("mem",), _VOLTS),
    _Leaf("temperature", "edge", "gpu_temperature_celsius", ("edge",), _CELSIUS),
    _Leaf("temperature", "hotspot", "gpu_temperature_celsius", ("junction",), _CELSIUS),
    _Leaf("temperature", "mem", "gpu_temperature_celsius", ("mem",), _CELSIUS),
    _Leaf("pcie", "width", "gpu_pcie_link_width_lanes", ("current",), _COUNT),
    _Leaf("pcie", "speed", "gpu_pcie_link_speed_transfers_per_second", ("current",), _TRANSFERS),
    _Leaf("pcie", "replay_count", "gpu_pcie_replays_total", (), _COUNT),
    _Leaf("fan", "rpm", "gpu_fan_speed_rpm", (), _RPM),
    _Leaf("fan", "usage", "gpu_fan_ratio", (), _RATIO),
    _Leaf("energy", "total_energy_consumption", "gpu_energy_joules_total", (), _JOULES),
)
_LIMIT = "gpu_temperature_limit_celsius"
_SENSORS = {"edge": "edge", "hotspot": "junction", "vram": "mem", "mem": "mem"}
_STATIC = (
    _Leaf("bus", "max_pcie_width", "gpu_pcie_link_width_lanes", ("max",), _COUNT),
    _Leaf("bus", "max_pcie_speed", "gpu_pcie_link_speed_transfers_per_second", ("max",), _TRANSFERS),
    _Leaf("limit", "socket_power", "gpu_power_cap_watts", (), _WATTS),
    *(
        _Leaf("limit", f"{does}_{name}_temperature", _LIMIT, (sensor, limit), _CELSIUS)
        for does, limit in (("slowdown", "crit"), ("shutdown", "emergency"))
        for name, sensor in _SENSORS.items()
    ),
)
_MEMORY = {
    f"{what}_{name}": (f"gpu_memory_{family}_bytes", pool)
    for what, family in (("total", "size"), ("used", "used"))
    for name, pool in (("vram", "vram"), ("visible_vram", "vis_vram"), ("gtt", "gtt"))
}
_OF_PARTITIONS = ("gpu_memory_size_bytes", "gpu_memory_used_bytes")
_EXPECTED = (
    *dict.fromkeys(leaf.family for leaf in _METRIC),
    *("gpu_power_watts", "gpu_clock_hertz", "gpu_throttled", "gpu_ras_errors_total"),
    *_OF_PARTITIONS,
)
# What a section brings that is not a leaf of the table: missing as a whole where the section is "N/A".
_OF_SECTIONS = {
    "power": "gpu_power_watts",
    "clock": "gpu_clock_hertz",
    "throttle": "gpu_throttled",
    "ecc": "gpu_ras_errors_total",
}
_MONITOR = {
    "power_usage": ("power", "socket_power"),
    "hotspot_temperature": ("temperature", "hotspot"),
    "memory_temperature": ("temperature", "mem"),
    "gfx": ("usage", "gfx_activity"),
    "mem": ("usage", "umc_activity"),
    "gfx_clock": ("clock", "gfx_0"),
    "mem_clock": ("clock", "mem_0"),
    "vram_used": ("mem_usage", "used_vram"),
    "vram_total": ("mem_usage", "total_vram"),
    "pcie_replay": ("pcie", "replay_count"),
    "single_bit_ecc": ("ecc", "total_correctable_count"),
    "double_bit_ecc": ("ecc", "total_uncorrectable_count"),
}
_REASONS_TO_THROTTLE = {
    "prochot": "prochot",
    "ppt": "ppt",
    "socket_thermal": "thermal_socket",
    "vr_thermal": "thermal_vr",
    "hbm_thermal": "thermal_hbm",
}
_CLOCK = re.compile(r"(gfx|mem|soc|vclk|dclk)_?(\d{0,2})", re.ASCII)
_DOMAINS = {"gfx": "sclk", "mem": "mclk", "soc": "socclk"}
_BLOCK = re.compile(r"[a-z0-9_]{1,24}", re.ASCII)
_VALUE = re.compile(r"([+-]?\d{1,40}(?:\.\d{1,40})?) ?([^\d\s]{1,8})", re.ASCII)
_CARDS = 1024
_BLOCKS = 64
_DEVICE_NOT_FOUND = -3
_MOST_BEFORE_MI300 = 64 << 30  # bytes of each half of an MI250
_SPLIT = ("dpx", "tpx", "qpx", "cpx")


def parse(text: str) -> Collected:
    """Readings of any text; whatever is wrong with it is in `missing`, and nothing raises.

    A text without cards is one Missing "amd_smi": absent for an unknown card, malformed for broken JSON, else failed.
    `gpu_up` is 1 for a card with more than its constant facts.
    """
    roots = find_roots(text)
    if isinstance(roots, str):
        return Collected([], [Missing("amd_smi", "", roots)])
    cards, errors = _find_cards(roots)
    result = Collected([], [Missing("amd_smi", "", reason) for reason in errors])
    if not cards and not errors:
        result.missing.append(Missing("amd_smi", "", "failed"))
    names = {index: _name(index, card) for index, card in cards.items()}
    firsts = _find_sockets(cards, names)
    members: dict[str, list[int]] = {}
    for index, gpu in names.items():
        members.setdefault(gpu, []).append(index)
    for gpu, numbers in members.items():
        findings = Findings(gpu, "amd")
        leaders = [index for index in numbers if firsts[index] == index]
        for index in leaders:
            _read_card(cards[index], findings)
        _read_memory([_section(cards[index], "mem_usage") for index in numbers], findings)
        readings, missing = findings.collect(_EXPECTED if leaders else _OF_PARTITIONS)
        if readings:
            result.readings.append(Reading("gpu_up", (("gpu", gpu), ("vendor", "amd")), 1.0))
        facts = Findings(gpu, "amd")
        for index in leaders:
            _read_facts(index, cards[index], facts)
        result.readings.extend([*readings, *facts.collect(()).readings])
        result.missing.extend([*missing, *facts.collect(()).missing])
    return result


def collector(which: Callable[[str], str | None] = shutil.which) -> SmiCollector | None:
    """Runs amd-smi; None where it is not installed."""
    path = which("amd-smi") or which("/opt/rocm/bin/amd-smi")
    if path is None:
        return None
    return SmiCollector((path, "metric", "--json"), parse, name="amd_smi", facts=(path, "static", "--json"))


def _find_cards(roots: list[object]) -> tuple[dict[int, dict[str, object]], list[Reason]]:
    """Cards by the tool's number, of a later text the later section; and the errors that stood between them."""
    cards: dict[int, dict[str, object]] = {}
    errors: list[Reason] = []
    for root in roots:
        keys = fold(root)
        entries = root if isinstance(root, list) else keys.get("gpu_data", [root] if keys else [])
        for entry in entries if isinstance(entries, list) else []:
            card = fold(entry)
            index = card.get("gpu")
            if "error" in card:
                errors.append("absent" if card.get("code") == _DEVICE_NOT_FOUND else "failed")
            elif isinstance(index, int) and not isinstance(index, bool) and 0 <= index < _CARDS:
                cards.setdefault(index, {}).update(_from_monitor(card) if "vram_total" in card else card)
    return cards, errors[:1]


def _from_monitor(card: Mapping[str, object]) -> dict[str, object]:
    """A row of `monitor` in the form of `metric`."""
    sections: dict[str, dict[str, object]] = {}
    for key, (section, name) in _MONITOR.items():
        if key in card:
            sections.setdefault(section, {})[name] = card[key]
    return {**({"ecc": card["ecc"]} if "ecc" in card else {}), **sections}


def _name(index: int, card: Mapping[str, object]) -> str:
    bus = fold(card.get("bus"))
    return pci_address(bus.get("bdf")) or pci_address(card.get("bdf")) or f"gpu{index}"


def _find_sockets(cards: Mapping[int, Mapping[str, object]], names: Mapping[int, str]) -> dict[int, int]:
    """For each card the number of the first one of its socket, mostly its own.

    Partitions have one PCI address, or differ in the function. Without addresses, the first one's usage counts them:
    it has a list for each (xcp_0, xcp_1, …).
    """
    firsts: dict[int, int] = {}
    by_address: dict[str, int] = {}
    until, first = 0, 0
    for index in sorted(cards):
        name = names[index]
        if name != f"gpu{index}":
            partition = fold(cards[index].get("partition"))
            mode = partition.get("accelerator_partition", partition.get("compute_partition"))
            address = name.rpartition(".")[0] if str(mode).lower() in _SPLIT else name
            firsts[index] = by_address.setdefault(address, index)
            continue
        if index >= until:
            lists = fold(fold(cards[index].get("usage")).get("gfx_busy_inst"))
            partitions = [key for key, busy in lists.items() if key.startswith("xcp_") and _is_used(busy)]
            until, first = index + len(partitions[:8]), index
        firsts[index] = first if index < until else index
    return firsts


def _is_used(busy: object) -> bool:
    return isinstance(busy, list) and any(not isinstance(_measure(one, _RATIO), str) for one in busy)


def _section(card: Mapping[str, object], name: str) -> dict[str, object] | Reason:
    """A section by key, or why there is none."""
    if name not in card:
        return "absent"
    value = card[name]
    if isinstance(value, dict):
        return fold(value)
    reason = number(value)
    return reason if isinstance(reason, str) else "malformed"


def _measure(leaf: object, units: Units) -> float | Reason:
    """A leaf in the family's unit. A unit that is not known is malformed: a guess could be wrong by a thousand."""
    unit: object = None
    if isinstance(leaf, dict):
        keys = fold(leaf)
        if "value" not in keys:
            return "malformed"
        leaf, unit = keys["value"], keys.get("unit")
    elif isinstance(leaf, str) and (match := _VALUE.fullmatch(leaf.strip())):
        leaf, unit = match[1], match[2]
    value = number(leaf)
    if isinstance(value, str):
        return value
    spelling = next(iter(units)) if unit is None else str(unit).strip().lower()
    return scaled(value, units[spelling]) if spelling in units else "malformed"


def _give(findings: Findings, family: str, value: float | Reason, *labels: str) -> None:
    if isinstance(value, str):
        findings.lack(family, value, *labels)
    else:
        findings.give(family, value, *labels)


def _read_card(card: Mapping[str, object], findings: Findings) -> None:
    """Values of `metric`, without memory."""
    sections = {name: _section(card, name) for name in {*_OF_SECTIONS, *(leaf.section for leaf in _METRIC)}}
    for leaf in _METRIC:
        section = sections[leaf.section]
        if isinstance(section, str):
            findings.lack(leaf.family, section, *leaf.labels)
        elif leaf.key in section:
            _give(findings, leaf.family, _measure(section[leaf.key], leaf.units), *leaf.labels)
    for name, family in _OF_SECTIONS.items():
        section = sections[name]
        if isinstance(section, str) and section != "absent":
            findings.lack(family, section)
    power, clock, throttle = (fold(card.get(name)) for name in ("power", "clock", "throttle"))
    if "socket_power" in power:
        _give(findings, "gpu_power_watts", _measure(power["socket_power"], _WATTS), _type_of_power(card))
    _read_clocks(clock, findings)
    _read_throttling(power, throttle, findings)
    _read_errors(fold(card.get("ecc_blocks")), fold(card.get("ecc")), findings)


def _type_of_power(card: Mapping[str, object]) -> str:
    """The tool shows the instant power where the chip has it (from MI300 on), else the average.

    Those are known by their gfx name, by having no edge sensor, or in the rows of monitor, which have no edge for any
    card, by more memory than any before them.
    """
    gfx = str(fold(card.get("asic")).get("target_graphics_version")).lower()
    if gfx.startswith("gfx"):
        return "instant" if gfx.startswith(("gfx94", "gfx95")) else "average"
    edge = fold(card.get("temperature")).get("edge")
    if edge is not None:
        return "instant" if _measure(edge, _CELSIUS) == "not_supported" else "average"
    size = _measure(fold(card.get("mem_usage")).get("total_vram"), _BYTES)
    return "instant" if not isinstance(size, str) and size > _MOST_BEFORE_MI300 else "average"


def _read_clocks(clock: Mapping[str, object], findings: Findings) -> None:
    matches = [(match, value) for key, value in clock.items() if (match := _CLOCK.fullmatch(key))]
    found = {match: _measure(fold(value).get("clk", value), _HERTZ) for match, value in matches}
    several = len([1 for match, value in found.items() if match[1] == "gfx" and not isinstance(value, str)]) > 1
    for match, value in found.items():
        domain, index = _DOMAINS.get(match[1], match[1]), match[2]
        if domain in _DOMAINS.values() and not (domain == "sclk" and several):
            if index not in ("", "0"):
                continue
            index = ""
        _give(findings, "gpu_clock_hertz", value, domain + index)


def _read_throttling(power: Mapping[str, object], throttle: Mapping[str, object], findings: Findings) -> None:
    states = {"any": power.get("throttle_status")}
    for name, reason in _REASONS_TO_THROTTLE.items():
        states[reason] = throttle.get(f"{name}_violation_status")
    for reason, state in states.items():
        if state is None:
            continue
        word = state.strip().upper() if isinstance(state, str) else ""
        if word in ("THROTTLED", "ACTIVE"):
            findings.give("gpu_throttled", 1.0, reason)
        elif word in ("UNTHROTTLED", "NOT ACTIVE"):
            findings.give("gpu_throttled", 0.0, reason)
        else:
            found = number(state)
            findings.lack("gpu_throttled", found if isinstance(found, str) else "malformed", reason)


def _read_errors(blocks: Mapping[str, object], total: Mapping[str, object], findings: Findings) -> None:
    """By block; where the text has no blocks, all of them together as the block "all"."""
    named = (
        (name, fold(value)) for name, value in blocks.items() if isinstance(value, dict) and _BLOCK.fullmatch(name)
    )
    counts = dict(islice(named, _BLOCKS))
    if not counts:
        counts["all"] = {key.removeprefix("total_"): value for key, value in total.items() if key.startswith("total_")}
    for block, keys in counts.items():
        for severity in ("correctable", "uncorrectable", "deferred"):
            if f"{severity}_count" in keys:
                value = _measure(keys[f"{severity}_count"], _COUNT)
                _give(findings, "gpu_ras_errors_total", value, block, severity)


def _read_memory(sections: list[dict[str, object] | Reason], findings: Findings) -> None:
    """The sum of the memory of cards that share an address; missing if one of them lacks it."""
    for key, (family, pool) in _MEMORY.items():
        values = [
            section if isinstance(section, str) else _measure(section[key], _BYTES) if key in section else "absent"
            for section in sections
        ]
        reasons = [value for value in values if isinstance(value, str)]
        _give(findings, family, reasons[0] if reasons else sum(v for v in values if not isinstance(v, str)), pool)


def _read_facts(index: int, card: Mapping[str, object], findings: Findings) -> None:
    """Values of `static`: limits, the link's maximum, and `gpu_info`."""
    for leaf in _STATIC:
        section = _section(card, leaf.section)
        if not isinstance(section, str) and leaf.key in section:
            _give(findings, leaf.family, _measure(section[leaf.key], leaf.units), *leaf.labels)
    ppt = fold(fold(card.get("limit")).get("ppt0"))
    if "socket_power_limit" in ppt:
        _give(findings, "gpu_power_cap_watts", _measure(ppt["socket_power_limit"], _WATTS))
    asic, board, driver, partition = (fold(card.get(name)) for name in ("asic", "board", "driver", "partition"))
    vbios = fold(card.get("ifwi", card.get("vbios")))
    facts = (
        label(card.get("node_id")),
        label(asic.get("target_graphics_version")),
        label(asic.get("market_name")) or label(board.get("product_name")),
        label(driver.get("version", driver.get("driver_version"))),
        unique_id(asic.get("asic_serial")),
        label(board.get("product_serial")),
        label(vbios.get("part_number")),
        label(partition.get("accelerator_partition", partition.get("compute_partition"))),
        "",  # uuid
    )
    if any(facts):
        findings.give("gpu_info", 1.0, f"gpu{index}", *facts)
