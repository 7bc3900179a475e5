"""amd-smi's texts against what stands in them: every sample by hand, and any text whatever."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Collected, Missing
from cadenza.telemetry.cards import amd_smi
from cadenza.telemetry.families import FAMILIES

DATA = Path(__file__).parents[2] / "data/telemetry/amd_smi"
MIB = 2**20
Values = dict[tuple[str, ...], float]


def read(name: str) -> Collected:
    return amd_smi.parse((DATA / name).read_text(encoding="utf-8"))


def parse(*cards: dict[str, Any]) -> Collected:
    return amd_smi.parse(json.dumps(cards))


def values(collected: Collected) -> Values:
    """(family without its prefix, card, other labels …) → value; without `up` and `info`."""
    return {
        (name.removeprefix("gpu_"), *(text for label, text in labels if label != "vendor")): value
        for name, labels, value in collected.readings
        if name not in ("gpu_up", "gpu_info")
    }


def up(collected: Collected) -> dict[str, float]:
    return {labels[0][1]: value for name, labels, value in collected.readings if name == "gpu_up"}


def missing(collected: Collected) -> set[tuple[str, str, str]]:
    return {(lack.name.removeprefix("gpu_"), lack.gpu, lack.reason) for lack in collected.missing}


MI300X: Values = {
    ("busy_ratio",): 0.97,
    ("memory_busy_ratio",): 0.31,
    ("temperature_celsius", "junction"): 63.0,
    ("temperature_celsius", "mem"): 55.0,
    **{("clock_hertz", f"sclk{die}"): (2098 + die) * 1e6 for die in range(8)},
    ("clock_hertz", "mclk"): 1300e6,
    ("pcie_link_width_lanes", "current"): 16.0,
    ("pcie_link_speed_transfers_per_second", "current"): 32e9,
    ("pcie_replays_total",): 0.0,
    ("energy_joules_total",): 1883800.034,
    **{("memory_size_bytes", pool): 196592.0 * MIB for pool in ("vram", "vis_vram")},
    **{("memory_used_bytes", pool): 183024.0 * MIB for pool in ("vram", "vis_vram")},
    ("memory_size_bytes", "gtt"): 1031840.0 * MIB,
    ("memory_used_bytes", "gtt"): 20.0 * MIB,
    **{("throttled", reason): 0.0 for reason in ("prochot", "thermal_socket", "thermal_vr", "thermal_hbm")},
    ("throttled", "ppt"): 1.0,
    **{("ras_errors_total", "umc", severity): 0.0 for severity in ("correctable", "uncorrectable", "deferred")},
    **{("ras_errors_total", "sdma", severity): 0.0 for severity in ("correctable", "uncorrectable", "deferred")},
}


def of(gpu: str, told: Values) -> Values:
    return {(name, *rest): value for (name, card, *rest), value in told.items() if card == gpu}


def test_an_mi300x_in_a_list() -> None:
    collected = read("metric_rocm63_mi300x_list.json")
    assert of("gpu0", values(collected)) == {
        **MI300X,
        ("power_watts", "instant"): 612.0,
        ("throttled", "any"): 0.0,
    }
    names = ("voltage_volts", "temperature_celsius", "fan_speed_rpm", "fan_ratio")  # the temperature is edge's
    assert missing(collected) == {(name, "gpu0", "not_supported") for name in names}
    assert up(collected) == {"gpu0": 1.0}


def test_gpu_data_of_version_7() -> None:
    collected = read("metric_rocm70_mi300x_gpu_data.json")
    assert of("gpu0", values(collected))["power_watts", "instant"] == 612.0
    # The second one says nothing of throttling as a whole.
    assert of("gpu1", values(collected)) == {**MI300X, ("power_watts", "instant"): 137.0}
    assert ("throttled", "gpu1", "not_supported") in missing(collected)


def test_an_mi50_has_no_usage() -> None:
    collected = read("metric_rocm63_mi50_usage_na.json")
    told = of("gpu0", values(collected))
    assert told["power_watts", "average"] == 21.0
    assert told["voltage_volts", "vddgfx"] == 0.737
    assert told["temperature_celsius", "edge"] == 37.0
    assert told["memory_size_bytes", "vram"] == 32752.0 * MIB
    assert not {key[0] for key in told} & {"busy_ratio", "memory_busy_ratio", "clock_hertz", "energy_joules_total"}
    names = {name for name, _, reason in missing(collected) if reason == "not_supported"}
    assert {"busy_ratio", "memory_busy_ratio", "clock_hertz", "throttled", "energy_joules_total"} <= names


def test_the_rows_of_monitor() -> None:
    collected = read("monitor_rocm63.json")
    told = of("gpu0", values(collected))
    assert told == {
        ("power_watts", "instant"): 612.0,  # 192 GiB: none before MI300 has so much
        ("temperature_celsius", "junction"): 63.0,
        ("temperature_celsius", "mem"): 55.0,
        ("busy_ratio",): 0.97,
        ("clock_hertz", "sclk"): 2098e6,
        ("clock_hertz", "mclk"): 1300e6,
        ("pcie_replays_total",): 0.0,
        ("ras_errors_total", "all", "correctable"): 0.0,
        ("ras_errors_total", "all", "uncorrectable"): 0.0,
        **{key: value for key, value in MI300X.items() if key[0].startswith("memory_") and key[-1] == "vram"},
        ("memory_busy_ratio",): 0.31,
    }
    assert of("gpu1", values(collected)) == {}
    assert up(collected) == {"gpu0": 1.0}
    not_supported = {name for name, gpu, reason in missing(collected) if (gpu, reason) == ("gpu1", "not_supported")}
    assert not_supported == {
        *("power_watts", "temperature_celsius", "busy_ratio", "memory_busy_ratio", "clock_hertz"),
        *("pcie_replays_total", "ras_errors_total", "memory_size_bytes", "memory_used_bytes"),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ((DATA / "error_device_not_found.json").read_text(encoding="utf-8"), "absent"),
        ('{"error": "Command \'x\' is invalid", "code": -1}', "failed"),
        ((DATA / "driver_not_loaded.stdout.txt").read_text(encoding="utf-8"), "failed"),
        ("", "failed"),
        ("{}", "failed"),
        ("[]", "failed"),
        ('[{"gpu": 0, "usage"', "malformed"),
        ('{"card0": {"GPU use (%)": "1"}}', "failed"),
    ],
)
def test_a_text_without_cards(text: str, reason: Any) -> None:
    assert amd_smi.parse(text) == Collected([], [Missing("amd_smi", "", reason)])


LIMITS = {"slowdown_hotspot": 100, "slowdown_vram": 105, "shutdown_hotspot": 110, "shutdown_vram": 115}
STATIC: dict[str, Any] = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xDEAD", "target_graphics_version": "gfx942"},
    "bus": {"bdf": "0000:0C:00.0", "max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}},
    "vbios": {"name": "N/A", "part_number": "113-M3000100-101", "version": "022.040.003.043.000001"},
    "limit": {
        "max_power": {"value": 750, "unit": "W"},
        "socket_power": {"value": 600, "unit": "W"},
        "slowdown_edge_temperature": "N/A",
        **{f"{limit}_temperature": {"value": celsius, "unit": "C"} for limit, celsius in LIMITS.items()},
    },
    "driver": {"name": "amdgpu", "version": "6.12.12"},
    "board": {"product_serial": "692400001", "product_name": "AMD Instinct MI300X OAM"},
    "clock": {"sys": {"frequency_levels": {"Level 0": "132 MHz"}}},
    "partition": {"compute_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
}


def test_static_before_metric_gives_the_address_and_the_facts() -> None:
    metric = (DATA / "metric_rocm63_mi300x_list.json").read_text(encoding="utf-8")
    collected = amd_smi.parse(json.dumps([STATIC], indent=4) + "\n" + metric)
    gpu = "0000:0c:00.0"
    assert of(gpu, values(collected)) == {
        **MI300X,
        ("power_watts", "instant"): 612.0,
        ("throttled", "any"): 0.0,
        ("power_cap_watts",): 600.0,
        ("pcie_link_width_lanes", "max"): 16.0,
        ("pcie_link_speed_transfers_per_second", "max"): 32e9,
        ("temperature_limit_celsius", "junction", "crit"): 100.0,
        ("temperature_limit_celsius", "junction", "emergency"): 110.0,
        ("temperature_limit_celsius", "mem", "crit"): 105.0,
        ("temperature_limit_celsius", "mem", "emergency"): 115.0,
    }
    facts = [tuple(text for _, text in labels) for name, labels, _ in collected.readings if name == "gpu_info"]
    ids = ("dead", "692400001", "113-M3000100-101")
    assert facts == [(gpu, "amd", "gpu0", "", "gfx942", "AMD Instinct MI300X", "6.12.12", *ids, "SPX", "")]


def test_constant_facts_alone_are_no_sign_of_life() -> None:
    collected = parse(STATIC)
    assert up(collected) == {}
    assert ("busy_ratio", "0000:0c:00.0", "absent") in missing(collected)


def test_limits_since_7_2() -> None:
    limit = {"ppt0": {"socket_power_limit": {"value": 1000, "unit": "W"}}, "ppt1": "N/A"}
    assert values(parse({"gpu": 3, "limit": limit})) == {("power_cap_watts", "gpu3"): 1000.0}


def partition(index: int, watts: int, lists: int, bdf: str | None = None) -> dict[str, Any]:
    card: dict[str, Any] = {
        "gpu": index,
        "usage": {"gfx_busy_inst": {f"xcp_{n}": [{"value": 50, "unit": "%"}, "N/A"] for n in range(lists)}},
        "power": {"socket_power": {"value": watts, "unit": "W"}},
        "mem_usage": {"total_vram": {"value": 98296, "unit": "MB"}},
    }
    if bdf is not None:
        card |= {"bus": {"bdf": bdf}, "partition": {"accelerator_partition": "DPX"}}
    return card


def power(collected: Collected) -> Values:
    return {key: value for key, value in values(collected).items() if key[0] == "power_watts"}


def test_mirrored_partitions_are_told_once_a_socket() -> None:
    collected = parse(*(partition(n, 300 + n, 2) for n in range(4)))
    assert power(collected) == {
        ("power_watts", "gpu0", "instant"): 300.0,
        ("power_watts", "gpu2", "instant"): 302.0,
    }
    assert values(collected)["memory_size_bytes", "gpu1", "vram"] == 98296.0 * MIB
    assert not any(lack.gpu == "gpu1" and lack.name == "gpu_power_watts" for lack in collected.missing)


def test_whole_sockets_each_tell_their_own() -> None:
    assert len(power(parse(*(partition(n, 300, 1) for n in range(4))))) == 4
    assert len(power(parse(*(partition(n, 300, 0) for n in range(4))))) == 4


def test_partitions_with_an_address() -> None:
    one = parse(partition(0, 300, 2, "0000:0C:00.0"), partition(1, 301, 2, "0000:0C:00.0"))
    assert power(one) == {("power_watts", "0000:0c:00.0", "instant"): 300.0}
    assert values(one)["memory_size_bytes", "0000:0c:00.0", "vram"] == 2 * 98296.0 * MIB
    two = parse(partition(0, 300, 2, "0000:0C:00.0"), partition(1, 301, 2, "0000:0C:00.1"))
    assert power(two) == {("power_watts", "0000:0c:00.0", "instant"): 300.0}
    assert values(two)["memory_size_bytes", "0000:0c:00.1", "vram"] == 98296.0 * MIB


@pytest.mark.parametrize(
    ("section", "key", "leaf", "expected"),
    [
        ("usage", "gfx_activity", 97, {("busy_ratio", "gpu0"): 0.97}),
        ("usage", "gfx_activity", "97 %", {("busy_ratio", "gpu0"): 0.97}),
        ("usage", "gfx_activity", {"value": "97", "unit": "%"}, {("busy_ratio", "gpu0"): 0.97}),
        ("mem_usage", "used_vram", {"value": 2, "unit": "GB"}, {("memory_used_bytes", "gpu0", "vram"): 2.0**31}),
        ("mem_usage", "used_vram", {"value": 5, "unit": "B"}, {("memory_used_bytes", "gpu0", "vram"): 5.0}),
        ("clock", "gfx_0", {"clk": {"value": 2, "unit": "GHz"}}, {("clock_hertz", "gpu0", "sclk"): 2e9}),
        ("clock", "vclk_1", {"clk": {"value": 29, "unit": "MHz"}}, {("clock_hertz", "gpu0", "vclk1"): 29e6}),
        ("power", "soc_voltage", {"value": 806, "unit": "mV"}, {("voltage_volts", "gpu0", "soc"): 0.806}),
        ("fan", "usage", {"value": 43.14, "unit": "%"}, {("fan_ratio", "gpu0"): 0.4314}),
        ("fan", "rpm", 1900, {("fan_speed_rpm", "gpu0"): 1900.0}),
        ("power", "throttle_status", "THROTTLED", {("throttled", "gpu0", "any"): 1.0}),
    ],
)
def test_forms_of_a_leaf(section: str, key: str, leaf: object, expected: Values) -> None:
    assert values(parse({"gpu": 0, section: {key: leaf}})) == expected


@pytest.mark.parametrize(
    ("section", "key", "leaf", "family", "reason"),
    [
        ("power", "socket_power", {"value": "N/A", "unit": "W"}, "power_watts", "not_supported"),
        ("power", "socket_power", {"value": 612, "unit": "kW"}, "power_watts", "malformed"),
        ("power", "socket_power", {"unit": "W"}, "power_watts", "malformed"),
        ("power", "socket_power", [612], "power_watts", "malformed"),
        ("power", "socket_power", True, "power_watts", "malformed"),
        ("power", "socket_power", None, "power_watts", "failed"),
        ("power", "socket_power", {"value": 4294967295, "unit": "W"}, "power_watts", "not_supported"),
        ("power", "socket_power", {"value": 65535, "unit": "W"}, "power_watts", "out_of_range"),
        ("usage", "gfx_activity", {"value": 6553, "unit": "%"}, "busy_ratio", "out_of_range"),
        ("temperature", "hotspot", {"value": -274, "unit": "C"}, "temperature_celsius", "out_of_range"),
        ("clock", "gfx_0", {"clk": "N/A"}, "clock_hertz", "not_supported"),
        ("throttle", "ppt_violation_status", "N/A", "throttled", "not_supported"),
        ("throttle", "ppt_violation_status", "MAYBE", "throttled", "malformed"),
        ("mem_usage", "total_vram", {"value": 0, "unit": "MB"}, "memory_size_bytes", "out_of_range"),
        ("pcie", "width", 0, "pcie_link_width_lanes", "out_of_range"),
        ("usage", "gfx_activity", 10**400, "busy_ratio", "out_of_range"),
    ],
)
def test_what_is_no_value_is_missing_with_its_reason(
    section: str, key: str, leaf: object, family: str, reason: str
) -> None:
    collected = parse({"gpu": 0, section: {key: leaf}})
    assert collected.readings == []
    assert (family, "gpu0", reason) in missing(collected)


def test_pcie_throughput_is_left_out_since_nobody_knows_its_unit() -> None:
    pcie = {"bandwidth": {"value": 17, "unit": "Mb/s"}, "current_bandwidth_sent": {"value": 9, "unit": "Mb/s"}}
    assert values(parse({"gpu": 0, "pcie": pcie})) == {}


def strip(value: object) -> object:
    """The same shape with nothing in it."""
    if isinstance(value, dict):
        return {key: member if key in ("gpu", "unit") else strip(member) for key, member in value.items()}
    if isinstance(value, list):
        return [strip(member) for member in value]
    return "N/A"


def test_a_text_of_nothing_but_na_has_no_values() -> None:
    for name in ("metric_rocm63_mi300x_list.json", "metric_rocm70_mi300x_gpu_data.json", "monitor_rocm63.json"):
        text = (DATA / name).read_text(encoding="utf-8")
        collected = amd_smi.parse(json.dumps(strip(json.loads(text))))
        assert collected.readings == []
        assert {lack.reason for lack in collected.missing} <= {"not_supported", "absent"}


def test_text_around_the_json() -> None:
    text = (DATA / "metric_rocm63_mi300x_list.json").read_text(encoding="utf-8")
    around = f"WARNING: not in the render group\n[warn] x\n{text}\ntrailing }}"
    assert amd_smi.parse(around) == amd_smi.parse(text)


def assert_sound(collected: Collected) -> None:
    """Every series once, of a family, with its labels, finite; what is missing is of a family or the tool's own."""
    keys = [(name, labels) for name, labels, _ in collected.readings]
    assert len(set(keys)) == len(keys)
    for name, labels, value in collected.readings:
        assert tuple(label for label, _ in labels) == FAMILIES[name].labels
        assert all(text.isprintable() and len(text) <= 128 for _, text in labels)
        assert math.isfinite(value)
        assert value >= (-50 if name == "gpu_temperature_celsius" else 0)
        assert not name.endswith("_ratio") or value <= 1
    assert all(lack.name in FAMILIES or (lack.name, lack.gpu) == ("amd_smi", "") for lack in collected.missing)
    assert collected.readings or collected.missing


SECTIONS = (
    *("asic", "bus", "bdf", "board", "clock", "driver", "ecc", "ecc_blocks", "energy", "error", "fan", "gpu"),
    *("ifwi", "limit", "mem_usage", "partition", "pcie", "power", "temperature", "throttle", "usage", "vbios"),
    *("vram_total", "vram_used", "gfx", "power_usage", "node_id", "Usage"),
)
LEAVES = (
    *("gfx_activity", "gfx_busy_inst", "xcp_0", "socket_power", "throttle_status", "gfx_0", "gfx_1", "mem_0", "vclk_7"),
    *("clk", "edge", "hotspot", "mem", "width", "speed", "replay_count", "rpm", "usage", "total_energy_consumption"),
    *("total_vram", "used_gtt", "ppt_violation_status", "UMC", "correctable_count", "total_correctable_count", "bdf"),
    *("max_pcie_speed", "ppt0", "socket_power_limit", "slowdown_edge_temperature", "market_name", "value", "unit"),
    *("accelerator_partition", "target_graphics_version"),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.sampled_from(["N/A", "%", "W", "MHz", "C", "MB", "GT/s", "J", "ACTIVE", "THROTTLED", "0000:0c:00.0", "CPX"]),
    st.sampled_from([0, 1, 65535, 2**32 - 1, 2**64 - 1, 10**400, -3, "97 %", "gfx942"]),
)
MEASURES = st.fixed_dictionaries({"value": SCALARS, "unit": SCALARS})
JSON = st.recursive(
    SCALARS | MEASURES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(LEAVES), inner, max_size=6),
    max_leaves=12,
)
CARDS = st.builds(
    lambda index, card: {**card, "gpu": index},
    st.integers(-1, 9) | SCALARS,
    st.dictionaries(st.sampled_from(SECTIONS), JSON, max_size=8),
)


@given(st.lists(CARDS, max_size=5), st.booleans(), st.sampled_from(["", "WARN\n", "[{\n", '{"error": 1, "code": 2}\n']))
def test_any_cards(cards: list[dict[str, object]], is_object: bool, before: str) -> None:
    assert_sound(amd_smi.parse(before + json.dumps({"gpu_data": cards} if is_object else cards)))


@given(JSON)
def test_any_json(value: object) -> None:
    assert_sound(amd_smi.parse(json.dumps(value)))
    assert_sound(amd_smi.parse(json.dumps({"gpu_data": value})))


@given(st.text())
def test_any_text(text: str) -> None:
    assert_sound(amd_smi.parse(text))


@given(st.data())
def test_a_section_that_is_not_there_changes_no_other(data: st.DataObject) -> None:
    card = json.loads((DATA / "metric_rocm63_mi300x_list.json").read_text(encoding="utf-8"))[0]
    name = data.draw(st.sampled_from(sorted(card.keys() - {"gpu", "temperature", "ecc_blocks"})))
    whole, told = values(parse(card)), values(parse({key: value for key, value in card.items() if key != name}))
    assert told.items() <= whole.items()
