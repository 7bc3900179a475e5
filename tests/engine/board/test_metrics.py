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
U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
HEAD = [("structure_size", U16), ("format_revision", U8), ("content_revision", U8)]
CLOCKS = [(f"average_{n}_frequency", U16) for n in ["gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1"]]
CLOCKS += [(f"current_{n}", U16) for n in ["gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1"]]
TEMPERATURES = [(f"temperature_{n}", U16) for n in ["edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem"]]
ACTIVITY = [(f"average_{n}", U16) for n in ["gfx_activity", "umc_activity", "mm_activity", "socket_power"]]


def struct_of(name: str, fields: list[tuple[str, Any]]) -> type[ctypes.LittleEndianStructure]:
    return type(name, (ctypes.LittleEndianStructure,), {"_fields_": fields})


STRUCTS = {
    "v1_0": struct_of(
        "v1_0",
        [*HEAD, ("system_clock_counter", U64), *TEMPERATURES, *ACTIVITY, ("energy_accumulator", U32), *CLOCKS]
        + [("throttle_status", U32), ("current_fan_speed", U16), ("pcie_link_width", U8), ("pcie_link_speed", U8)],
    ),
    "v1_3": struct_of(
        "v1_3",
        [*HEAD, *TEMPERATURES, *ACTIVITY, ("energy_accumulator", U64), ("system_clock_counter", U64), *CLOCKS]
        + [("throttle_status", U32), ("current_fan_speed", U16), ("pcie_link_width", U16), ("pcie_link_speed", U16)]
        + [("padding", U16), ("gfx_activity_acc", U32), ("mem_activity_acc", U32), ("temperature_hbm", U16 * 4)]
        + [("firmware_timestamp", U64), ("voltage_soc", U16), ("voltage_gfx", U16), ("voltage_mem", U16)]
        + [("padding1", U16), ("indep_throttle_status", U64)],
    ),
    "v1_5": struct_of(
        "v1_5",
        [*HEAD, ("temperature_hotspot", U16), ("temperature_mem", U16), ("temperature_vrsoc", U16)]
        + [("curr_socket_power", U16), ("average_gfx_activity", U16), ("average_umc_activity", U16)]
        + [("vcn_activity", U16 * 4), ("jpeg_activity", U16 * 32), ("energy_accumulator", U64)]
        + [("system_clock_counter", U64), ("throttle_status", U32), ("gfxclk_lock_status", U32)]
        + [(f"{bus}_link_{what}", U16) for bus in ("pcie", "xgmi") for what in ("width", "speed")]
        + [("gfx_activity_acc", U32), ("mem_activity_acc", U32), ("pcie_bandwidth_acc", U64)]
        + [("pcie_bandwidth_inst", U64), ("pcie_l0_to_recov_count_acc", U64), ("pcie_replay_count_acc", U64)]
        + [("pcie_replay_rover_count_acc", U64), ("pcie_nak_sent_count_acc", U32), ("pcie_nak_rcvd_count_acc", U32)]
        + [("xgmi_read_data_acc", U64 * 8), ("xgmi_write_data_acc", U64 * 8), ("firmware_timestamp", U64)]
        + [("current_gfxclk", U16 * 8), ("current_socclk", U16 * 4), ("current_vclk0", U16 * 4)]
        + [("current_dclk0", U16 * 4), ("current_uclk", U16), ("padding", U16)],
    ),
}


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
