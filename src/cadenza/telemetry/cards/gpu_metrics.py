"""The driver's binary file `gpu_metrics`, v1_0 to v1_8, in SI units; values that the chip does not have are left out.

Layouts: `struct gpu_metrics_v1_*` of Linux `kgd_pp_interface.h`, little-endian, natively aligned. The driver fills the
whole with ones first, so a field of all ones is one that the chip does not have.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from cadenza.telemetry.root import UnreadableError

ENERGY_J = 2.0**-16  # unit of energy_accumulator: 15.259 µJ
_MHZ, _TENTH_GT = 1e6, 1e8
_PER_S, _PER_ONE, _PER_VOLT = 1e9, 100, 1000  # ns, percent, mV
_ONES = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFF_FFFF, "Q": 0xFFFF_FFFF_FFFF_FFFF}
# Where a chip has no energy counter, newer drivers store a 32-bit all-ones into the 64-bit field. The second die of an
# MI250 has neither power nor energy of its own, and the driver writes 0 for both (`aldebaran_get_gpu_metrics`).
_NARROW_ONES = 0xFFFF_FFFF

# name@offset, the struct code, and how often it comes; fields that have no series are left out. The first word is the
# structure's size. v1_0 has a 32-bit energy field that its only chip (Vega 20) does not fill, so it is no counter.
_HEAD_1_1 = """temperature_edge@4H temperature_hotspot@6H temperature_mem@8H temperature_vrgfx@10H
    temperature_vrsoc@12H temperature_vrmem@14H average_gfx_activity@16H average_umc_activity@18H
    average_socket_power@22H energy_accumulator@24Q system_clock_counter@32Q current_gfxclk@54H current_socclk@56H
    current_uclk@58H current_vclk0@60H current_dclk0@62H current_vclk1@64H current_dclk1@66H throttle_status@68I
    current_fan_speed@72H pcie_link_width@74H pcie_link_speed@76H temperature_hbm@88H4"""
_HEAD_1_4 = """temperature_hotspot@4H temperature_mem@6H temperature_vrsoc@8H curr_socket_power@10H
    average_gfx_activity@12H average_umc_activity@14H"""
_HEAD_1_7 = f"""{_HEAD_1_4} energy_accumulator@24Q system_clock_counter@32Q accumulation_counter@40I
    prochot_residency_acc@44I ppt_residency_acc@48I socket_thm_residency_acc@52I vr_thm_residency_acc@56I
    hbm_thm_residency_acc@60I pcie_link_width@68H pcie_link_speed@70H pcie_replay_count_acc@112Q current_gfxclk@296H8
    current_socclk@312H4 current_vclk0@320H4 current_dclk0@328H4 current_uclk@336H"""
_LAYOUTS = {
    (1, 0): """80 system_clock_counter@8Q temperature_edge@16H temperature_hotspot@18H temperature_mem@20H
        temperature_vrgfx@22H temperature_vrsoc@24H temperature_vrmem@26H average_gfx_activity@28H
        average_umc_activity@30H average_socket_power@34H current_gfxclk@54H current_socclk@56H current_uclk@58H
        current_vclk0@60H current_dclk0@62H current_vclk1@64H current_dclk1@66H throttle_status@68I
        current_fan_speed@72H pcie_link_width@74B pcie_link_speed@75B""",
    (1, 1): f"96 {_HEAD_1_1}",
    (1, 2): f"104 {_HEAD_1_1}",
    (1, 3): f"120 {_HEAD_1_1} voltage_soc@104H voltage_gfx@106H voltage_mem@108H indep_throttle_status@112Q",
    (1, 4): f"""288 {_HEAD_1_4} energy_accumulator@24Q system_clock_counter@32Q throttle_status@40I
        pcie_link_width@48H pcie_link_speed@50H pcie_replay_count_acc@88Q current_gfxclk@240H8 current_socclk@256H4
        current_vclk0@264H4 current_dclk0@272H4 current_uclk@280H""",
    (1, 5): f"""360 {_HEAD_1_4} energy_accumulator@88Q system_clock_counter@96Q throttle_status@104I
        pcie_link_width@112H pcie_link_speed@114H pcie_replay_count_acc@152Q current_gfxclk@312H8 current_socclk@328H4
        current_vclk0@336H4 current_dclk0@344H4 current_uclk@352H""",
    (1, 6): f"""1664 {_HEAD_1_4} energy_accumulator@16Q system_clock_counter@24Q accumulation_counter@32I
        prochot_residency_acc@36I ppt_residency_acc@40I socket_thm_residency_acc@44I vr_thm_residency_acc@48I
        hbm_thm_residency_acc@52I pcie_link_width@60H pcie_link_speed@62H pcie_replay_count_acc@104Q
        current_gfxclk@264H8 current_socclk@280H4 current_vclk0@288H4 current_dclk0@296H4 current_uclk@304H""",
    # What v1_8 has more stands behind all this, in the partitions' own part.
    (1, 7): f"2208 {_HEAD_1_7}",
    (1, 8): f"3872 {_HEAD_1_7}",
}
_SENSORS = {
    "temperature_edge": "edge",
    "temperature_hotspot": "junction",
    "temperature_mem": "mem",
    "temperature_vrgfx": "vrgfx",
    "temperature_vrsoc": "vrsoc",
    "temperature_vrmem": "vrmem",
    "temperature_hbm": "hbm",
}
_CLOCKS = {
    "current_gfxclk": "sclk",
    "current_uclk": "mclk",
    "current_socclk": "socclk",
    "current_vclk0": "vclk0",
    "current_dclk0": "dclk0",
    "current_vclk1": "vclk1",
    "current_dclk1": "dclk1",
}
_RAILS = {"voltage_gfx": "vddgfx", "voltage_soc": "soc", "voltage_mem": "mem"}
_RESIDENCIES = {
    "prochot_residency_acc": "prochot",
    "ppt_residency_acc": "ppt",
    "socket_thm_residency_acc": "thermal_socket",
    "vr_thm_residency_acc": "thermal_vr",
    "hbm_thm_residency_acc": "thermal_hbm",
}


class GpuMetricsError(UnreadableError):
    """Bytes that are no gpu_metrics (malformed), or of a revision that is not known here (not_supported)."""


class GpuMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One file. A value that is None, and a key that is not in its dict, is one that the chip does not have.

    version                  (format, content) revision
    clock_s                  when the driver filled it: its clock since boot
    temperatures_celsius     by sensor: edge, junction, mem, vrgfx, vrsoc, vrmem, hbm0 … hbm3
    busy_ratio, memory_busy_ratio   unclipped, so that a value above 1 can be seen
    average_power_watts, instant_power_watts   of the socket; a version has one of the two. An average of 0 is none
    energy_joules            since the driver was loaded; v1_1 on. Some chips count in 32 bits: it wraps at 65,536 J.
                             0 is none: a counter is never 0 once it can be read
    clocks_hertz             by domain: sclk, mclk, socclk, vclk0, …; sclk0 … sclk7 where each die has its own
    voltages_volts           by rail: vddgfx, soc, mem
    throttle_status          bits as the chip has them; indep_throttle_status: as the kernel has them, the same for all
    cycles                   of the chip's control loop (v1_6 on), of undocumented length; `residencies_cycles` by
                             reason are counted in the same, so that only the ratio of two differences has a meaning
    """

    version: tuple[int, int]
    clock_s: float | None
    temperatures_celsius: dict[str, float]
    busy_ratio: float | None
    memory_busy_ratio: float | None
    average_power_watts: float | None
    instant_power_watts: float | None
    energy_joules: float | None
    clocks_hertz: dict[str, float]
    voltages_volts: dict[str, float]
    fan_rpm: float | None
    link_width_lanes: int | None
    link_speed_transfers_per_second: float | None
    replays_total: int | None
    throttle_status: int | None
    indep_throttle_status: int | None
    cycles: int | None
    residencies_cycles: dict[str, int]


class _Layout(NamedTuple):
    """`names[i]` is the i-th unpacked value, `ones[i]` what it reads where it is not supported."""

    size: int
    fields: struct.Struct
    names: tuple[str, ...]
    ones: tuple[int, ...]


def _layout(text: str) -> _Layout:
    size, *words = text.split()
    places: list[tuple[int, str, str]] = []
    for word in words:
        name, at = word.split("@")
        offset = at.rstrip("0123456789").rstrip("BHIQ")
        code, count = at[len(offset)], at[len(offset) + 1 :]
        for index in range(int(count or 1)):
            place = int(offset) + index * struct.calcsize(code)
            places.append((place, code, f"{name}.{index}" if count else name))
    format_, here = "<", 0
    for place, code, _ in sorted(places):
        format_ += f"{place - here}x{code}"
        here = place + struct.calcsize(code)
    names = tuple(name for _, _, name in sorted(places))
    return _Layout(int(size), struct.Struct(format_), names, tuple(_ONES[code] for _, code, _ in sorted(places)))


_KNOWN = {version: _layout(text) for version, text in _LAYOUTS.items()}


def parse(data: bytes) -> GpuMetrics:
    """The file's fields in SI units.

    GpuMetricsError: not_supported for an empty file and for a revision that is not known; malformed for one whose size
    is not its revision's, or that is cut short.
    """
    if not data:
        raise GpuMetricsError("not_supported")
    if len(data) < 4:
        raise GpuMetricsError("malformed")
    size, format_revision, content_revision = struct.unpack_from("<HBB", data)
    layout = _KNOWN.get((format_revision, content_revision))
    if layout is None:
        raise GpuMetricsError("not_supported")
    if size != layout.size or len(data) < size:
        raise GpuMetricsError("malformed")
    values = zip(layout.names, layout.fields.unpack_from(data), layout.ones, strict=True)
    return _convert((format_revision, content_revision), {name: value for name, value, ones in values if value != ones})


def _convert(version: tuple[int, int], raw: Mapping[str, int]) -> GpuMetrics:
    energy, speed = raw.get("energy_accumulator"), raw.get("pcie_link_speed")
    return GpuMetrics(
        version=version,
        clock_s=_divide(raw.get("system_clock_counter"), _PER_S),
        temperatures_celsius=_group(raw, _SENSORS),
        busy_ratio=_divide(raw.get("average_gfx_activity"), _PER_ONE),
        memory_busy_ratio=_divide(raw.get("average_umc_activity"), _PER_ONE),
        average_power_watts=raw.get("average_socket_power") or None,
        instant_power_watts=raw.get("curr_socket_power"),
        energy_joules=None if energy in (None, 0, _NARROW_ONES) else energy * ENERGY_J,
        clocks_hertz={domain: mhz * _MHZ for domain, mhz in _group(raw, _CLOCKS).items()},
        voltages_volts={rail: mv / _PER_VOLT for rail, mv in _group(raw, _RAILS).items()},
        fan_rpm=raw.get("current_fan_speed"),
        link_width_lanes=raw.get("pcie_link_width"),
        link_speed_transfers_per_second=None if speed is None else speed * _TENTH_GT,
        replays_total=raw.get("pcie_replay_count_acc"),
        throttle_status=raw.get("throttle_status"),
        indep_throttle_status=raw.get("indep_throttle_status"),
        cycles=raw.get("accumulation_counter"),
        residencies_cycles={reason: raw[name] for name, reason in _RESIDENCIES.items() if name in raw},
    )


def _divide(value: int | None, parts: float) -> float | None:
    return None if value is None else value / parts


def _group(raw: Mapping[str, int], names: Mapping[str, str]) -> dict[str, float]:
    """Values under the names they have here; of an array, `current_gfxclk.3` is sclk3 and `current_vclk0.3` vclk3."""
    found: dict[str, float] = {}
    for key, value in raw.items():
        name, _, index = key.partition(".")
        if name in names:
            found[names[name].removesuffix("0") + index if index else names[name]] = value
    return found
