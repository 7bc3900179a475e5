"""gpu_metrics against the sample files, and against structs that ctypes lays out from the kernel's field order."""

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import Activity
from cadenza.engine.board.metrics import LAYOUTS, encode

DATA = Path(__file__).parents[2] / "data" / "sysfs"
# Fields in the kernel's order, by type; ctypes finds the offsets.
KINDS = {"u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64}
_HEAD = "u16 structure_size u8 format_revision content_revision "
_TEMPERATURES = " ".join(f"temperature_{part}" for part in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem")) + " "
_DOMAINS = ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")
_CLOCKS = " ".join([*(f"average_{d}_frequency" for d in _DOMAINS), *(f"current_{d}" for d in _DOMAINS)]) + " "
_ACTIVITY = "average_gfx_activity average_umc_activity average_mm_activity average_socket_power "
FIELDS = {
    "v1_0": f"{_HEAD} u64 system_clock_counter u16 {_TEMPERATURES}{_ACTIVITY} u32 energy_accumulator u16 {_CLOCKS}"
    "u32 throttle_status u16 current_fan_speed u8 pcie_link_width pcie_link_speed",
    "v1_3": f"{_HEAD} u16 {_TEMPERATURES}{_ACTIVITY} u64 energy_accumulator system_clock_counter u16 {_CLOCKS}"
    "u32 throttle_status u16 current_fan_speed pcie_link_width pcie_link_speed padding "
    "u32 gfx_activity_acc mem_activity_acc u16 temperature_hbm*4 u64 firmware_timestamp "
    "u16 voltage_soc voltage_gfx voltage_mem padding1 u64 indep_throttle_status",
    "v1_5": f"{_HEAD} u16 temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power "
    "average_gfx_activity average_umc_activity vcn_activity*4 jpeg_activity*32 "
    "u64 energy_accumulator system_clock_counter u32 throttle_status gfxclk_lock_status "
    "u16 pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed u32 gfx_activity_acc mem_activity_acc "
    "u64 pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc "
    "pcie_replay_rover_count_acc u32 pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc "
    "u64 xgmi_read_data_acc*8 xgmi_write_data_acc*8 firmware_timestamp "
    "u16 current_gfxclk*8 current_socclk*4 current_vclk0*4 current_dclk0*4 current_uclk padding",
}


def struct_of(version: str) -> type[ctypes.LittleEndianStructure]:
    fields, kind = [], KINDS["u8"]
    for word in FIELDS[version].split():
        name, _, length = word.partition("*")
        if word in KINDS:
            kind = KINDS[word]
        else:
            fields.append((name, kind * int(length) if length else kind))
    return type(version, (ctypes.LittleEndianStructure,), {"_fields_": fields})


STRUCTS = {version: struct_of(version) for version in FIELDS}


def decode(version: str, data: bytes) -> dict[str, Any]:
    """Every field; None where all bits of it, or of the element, are one."""
    struct = STRUCTS[version]
    assert len(data) == ctypes.sizeof(struct)
    record = struct.from_buffer_copy(data)
    found: dict[str, Any] = {}
    for name, kind in struct._fields_:  # type: ignore[misc]
        value = getattr(record, name)
        elements = list(value) if isinstance(value, ctypes.Array) else [value]
        ones = 2 ** (8 * ctypes.sizeof(kind) // len(elements)) - 1
        known = [None if element == ones else element for element in elements]
        found[name] = known if isinstance(value, ctypes.Array) else known[0]
    return found


def without_frame(values: dict[str, Any]) -> dict[str, Any]:
    frame = {"structure_size", "format_revision", "content_revision", "padding", "padding1"}
    return {name: value for name, value in values.items() if name not in frame}


@pytest.mark.parametrize(("version", "sample"), [("v1_0", "mi50_v1_0"), ("v1_3", "rx6900xt_v1_3")])
def test_the_samples_expected_values_give_the_samples_bytes(version: str, sample: str) -> None:
    expected = json.loads((DATA / "gpu_metrics" / f"{sample}.expected.json").read_text())
    data = (DATA / "gpu_metrics" / f"{sample}.bin").read_bytes()
    assert encode(version, without_frame(expected)) == data
    assert decode(version, data) == expected


@pytest.mark.parametrize(
    ("version", "path"),
    [
        ("v1_0", "mixed_mi50_rx6900xt/class/drm/card1"),
        ("v1_3", "mixed_mi50_rx6900xt/class/drm/card2"),
        ("v1_5", "mi300x_spx/class/drm/card1"),
    ],
)
def test_the_sample_trees_bytes_survive_a_round_trip(version: str, path: str) -> None:
    data = (DATA / path / "device" / "gpu_metrics").read_bytes()
    assert encode(version, without_frame(decode(version, data))) == data


@pytest.mark.parametrize("version", ["v1_0", "v1_3", "v1_5"])
def test_every_offset_is_the_listed_one(version: str) -> None:
    lines = (DATA / "gpu_metrics" / "offsets.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{version} ")]
    size = int(re.findall(r"size=(\d+)", line)[0])
    listed = {name: int(at) for name, at in re.findall(r"(\w+)@(\d+)", line)}
    ours = {name: field.offset for name, field in LAYOUTS[version][1].items()}
    frame = {"structure_size": 0, "format_revision": 2, "content_revision": 3}
    padding = {name: at for name, at in listed.items() if name.startswith("padding")}
    assert LAYOUTS[version][0] == size
    assert ours | frame | padding == listed


def test_what_is_not_given_reads_as_not_supported() -> None:
    found = without_frame(decode("v1_3", encode("v1_3", {"temperature_edge": 41})))
    assert found.pop("temperature_edge") == 41
    assert found.pop("temperature_hbm") == [None] * 4
    assert set(found.values()) == {None}


@pytest.mark.parametrize(("version", "name"), [("v9_9", "temperature_edge"), ("v1_5", "temperature_edge")])
def test_an_unknown_version_or_field_is_an_error(version: str, name: str) -> None:
    with pytest.raises(KeyError):
        encode(version, {name: 1})


def test_a_boards_file_tells_its_state(tmp_path: Path) -> None:
    board = Board.for_devices(["mi50-32gb", "rx6900xt", "mi300x"], seed=1)
    board.advance(0, [Activity(0, 0, 0)] * 3)
    board.advance(600 * 10**9, [Activity(0.79, 0.18, 0, 0.21), Activity(1.0, 1.0, 0), Activity(1.0, 0.38, 0)])
    board.write(tmp_path / "board")
    drm = tmp_path / "board" / "sys" / "class" / "drm"
    versions = ("v1_0", "v1_3", "v1_5")
    found = [decode(v, (drm / f"card{at}/device/gpu_metrics").read_bytes()) for at, v in enumerate(versions, 1)]
    for metrics, state in zip(found, board.read(), strict=True):
        assert metrics["temperature_hotspot"] == round(state.junction_c)
        assert metrics["temperature_mem"] == round(state.memory_c)
        assert metrics["average_gfx_activity"] == 100
        assert metrics["system_clock_counter"] == 600 * 10**9
        assert metrics["pcie_link_width"] == 16
    assert [(m["format_revision"], m["content_revision"]) for m in found] == [(1, 0), (1, 3), (1, 5)]
    assert found[0]["average_socket_power"] == round(21 + 155 * (0.79 + 0.15 * 0.21) + 50 * 0.18)
    assert (found[0]["throttle_status"], found[0]["energy_accumulator"]) == (0, None)
    # the RX would draw 277 W and is capped at 255: PPT0, bit 13 of its own mask and bit 0 of the common one
    assert (found[1]["average_socket_power"], found[1]["throttle_status"]) == (255, 1 << 13)
    assert found[1]["indep_throttle_status"] == 1
    assert found[1]["energy_accumulator"] == pytest.approx(255 * 600 * 65536, rel=0.001)
    assert found[2]["curr_socket_power"] == 612
    assert found[2]["current_gfxclk"] == [2100] * 8
