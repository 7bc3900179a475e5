"""The binary file `gpu_metrics`: little-endian, each field at its offset, all ones where not supported."""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cadenza.engine.board.card import CardModel
from cadenza.engine.board.state import CardState

Value = int | Sequence[int | None] | None

_ENERGY_J = 2**-16  # unit of energy_accumulator
_TEN_NS = 10  # unit of firmware_timestamp

# name@offset and the struct codes of the field, as in the kernel's kgd_pp_interface.h; what is padding is left out.
_LAYOUTS = {
    "v1_0": """80
        system_clock_counter@8Q temperature_edge@16H temperature_hotspot@18H temperature_mem@20H temperature_vrgfx@22H
        temperature_vrsoc@24H temperature_vrmem@26H average_gfx_activity@28H average_umc_activity@30H
        average_mm_activity@32H average_socket_power@34H energy_accumulator@36I average_gfxclk_frequency@40H
        average_socclk_frequency@42H average_uclk_frequency@44H average_vclk0_frequency@46H average_dclk0_frequency@48H
        average_vclk1_frequency@50H average_dclk1_frequency@52H current_gfxclk@54H current_socclk@56H current_uclk@58H
        current_vclk0@60H current_dclk0@62H current_vclk1@64H current_dclk1@66H throttle_status@68I
        current_fan_speed@72H pcie_link_width@74B pcie_link_speed@75B""",
    "v1_3": """120
        temperature_edge@4H temperature_hotspot@6H temperature_mem@8H temperature_vrgfx@10H temperature_vrsoc@12H
        temperature_vrmem@14H average_gfx_activity@16H average_umc_activity@18H average_mm_activity@20H
        average_socket_power@22H energy_accumulator@24Q system_clock_counter@32Q average_gfxclk_frequency@40H
        average_socclk_frequency@42H average_uclk_frequency@44H average_vclk0_frequency@46H average_dclk0_frequency@48H
        average_vclk1_frequency@50H average_dclk1_frequency@52H current_gfxclk@54H current_socclk@56H current_uclk@58H
        current_vclk0@60H current_dclk0@62H current_vclk1@64H current_dclk1@66H throttle_status@68I
        current_fan_speed@72H pcie_link_width@74H pcie_link_speed@76H gfx_activity_acc@80I mem_activity_acc@84I
        temperature_hbm@88HHHH firmware_timestamp@96Q voltage_soc@104H voltage_gfx@106H voltage_mem@108H
        indep_throttle_status@112Q""",
    "v1_5": """360
        temperature_hotspot@4H temperature_mem@6H temperature_vrsoc@8H curr_socket_power@10H average_gfx_activity@12H
        average_umc_activity@14H vcn_activity@16HHHH jpeg_activity@24HHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHH
        energy_accumulator@88Q system_clock_counter@96Q throttle_status@104I gfxclk_lock_status@108I
        pcie_link_width@112H pcie_link_speed@114H xgmi_link_width@116H xgmi_link_speed@118H gfx_activity_acc@120I
        mem_activity_acc@124I pcie_bandwidth_acc@128Q pcie_bandwidth_inst@136Q pcie_l0_to_recov_count_acc@144Q
        pcie_replay_count_acc@152Q pcie_replay_rover_count_acc@160Q pcie_nak_sent_count_acc@168I
        pcie_nak_rcvd_count_acc@172I xgmi_read_data_acc@176QQQQQQQQ xgmi_write_data_acc@240QQQQQQQQ
        firmware_timestamp@304Q current_gfxclk@312HHHHHHHH current_socclk@328HHHH current_vclk0@336HHHH
        current_dclk0@344HHHH current_uclk@352H""",
}
# Bits of the mask that means the same on every chip.
_INDEPENDENT_BITS = {"ppt": 0, "memory": 34, "edge": 35, "junction": 36}


class Field(NamedTuple):
    """`length` values of one struct code at a byte offset."""

    offset: int
    code: str
    length: int


def _parse(text: str) -> tuple[int, dict[str, Field]]:
    size, *words = text.split()
    fields = {}
    for word in words:
        name, at = word.split("@")
        digits = at.rstrip("BHIQ")
        codes = at[len(digits) :]
        fields[name] = Field(int(digits), codes[0], len(codes))
    return int(size), fields


LAYOUTS = {version: _parse(text) for version, text in _LAYOUTS.items()}


def encode(version: str, values: Mapping[str, Value]) -> bytes:
    """The file of that version; a field that is missing or None, or an element that is None, reads as all ones.

    KeyError for a version or a field that does not exist.
    """
    size, fields = LAYOUTS[version]
    data = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", data, 0, size, *(int(part) for part in version[1:].split("_")))
    for name, value in values.items():
        offset, code, length = fields[name]
        for place, element in enumerate(value if isinstance(value, Sequence) else (value,) * length):
            if element is not None:
                struct.pack_into("<" + code, data, offset + place * struct.calcsize(code), element)
    return bytes(data)


def measure(card: CardModel, state: CardState) -> dict[str, Value]:
    """The fields that the card's version has and the model knows; what it does not model is left out."""
    at_work, metrics, link = state.at_work, card.metrics, card.link
    activity, memory = round(100 * state.busy), round(100 * state.memory_busy)
    shared: dict[str, Value] = {
        "system_clock_counter": state.at_ns,
        "temperature_hotspot": round(state.junction_c),
        "temperature_mem": round(state.memory_c),
        "average_gfx_activity": activity,
        "average_umc_activity": memory,
        "throttle_status": sum(1 << metrics.bits[reason] for reason in state.throttling if reason in metrics.bits),
        "pcie_link_width": link.width,
        "pcie_link_speed": link.tenths_gt_s if at_work else link.idle_tenths_gt_s,
    }
    sclk, mclk, soc = round(state.sclk_mhz), state.mclk_mhz, card.clock.soc_mhz
    if metrics.version == "v1_5":
        return shared | {
            "curr_socket_power": round(state.power_w),
            "energy_accumulator": round(state.energy_j / _ENERGY_J),
            "firmware_timestamp": state.at_ns // _TEN_NS,
            "vcn_activity": (0,) * 4,
            "jpeg_activity": (0,) * 32,
            "gfxclk_lock_status": 0,
            "current_gfxclk": (sclk,) * 8,
            "current_socclk": (soc,) * 4,
            "current_uclk": mclk,
        }
    shared |= {
        "temperature_edge": round(state.edge_c),
        "average_socket_power": round(state.power_w),
        "average_gfxclk_frequency": sclk,
        "average_socclk_frequency": soc,
        "average_uclk_frequency": mclk,
        "current_gfxclk": sclk,
        "current_socclk": soc,
        "current_uclk": mclk,
        "current_vclk0": 0,
        "current_dclk0": 0,
        "current_fan_speed": round(state.fan_rpm),
    }
    if metrics.version == "v1_0":
        return shared | {"throttle_status": int(bool(state.throttling))}
    return shared | {
        "average_mm_activity": 0,
        "energy_accumulator": round(state.energy_j / _ENERGY_J),
        "voltage_gfx": round(state.core_mv),
        "indep_throttle_status": sum(1 << _INDEPENDENT_BITS[reason] for reason in state.throttling),
    }
