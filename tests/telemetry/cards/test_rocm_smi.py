"""rocm-smi's texts against what stands in them: every sample by hand, and any text whatever."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Collected, Missing
from cadenza.telemetry.cards import rocm_smi
from cadenza.telemetry.families import FAMILIES

DATA = Path(__file__).parents[2] / "data/telemetry/rocm_smi"
GIB = 2**30
Values = dict[tuple[str, ...], float]


def read(name: str) -> Collected:
    return rocm_smi.parse((DATA / name).read_text(encoding="utf-8"))


def values(collected: Collected) -> Values:
    """(family without its prefix, card, other labels …) → value; without `up` and `info`."""
    return {
        (name.removeprefix("gpu_"), *(text for label, text in labels if label != "vendor")): value
        for name, labels, value in collected.readings
        if name not in ("gpu_up", "gpu_info")
    }


def up(collected: Collected) -> dict[str, float]:
    return {labels[0][1]: value for name, labels, value in collected.readings if name == "gpu_up"}


def info(collected: Collected) -> list[tuple[str, ...]]:
    """gpu, card, node, gfx, product, driver, unique_id, serial, vbios, compute_partition, of each card."""
    rows = [labels for name, labels, _ in collected.readings if name == "gpu_info"]
    return [tuple(text for label, text in labels if label not in ("vendor", "uuid")) for labels in rows]


def missing(collected: Collected) -> set[tuple[str, str, str]]:
    """Without what this text was not asked for."""
    return {
        (lack.name.removeprefix("gpu_"), lack.gpu, lack.reason) for lack in collected.missing if lack.reason != "absent"
    }


def test_an_mi50_under_4_3() -> None:
    collected = read("rocm43_a_mi50.json")
    gpu = "0000:03:00.0"
    assert values(collected) == {
        ("busy_ratio", gpu): 0.0,
        ("memory_busy_ratio", gpu): 0.0,
        ("temperature_celsius", gpu, "edge"): 37.0,
        ("temperature_celsius", gpu, "junction"): 39.0,
        ("temperature_celsius", gpu, "mem"): 36.0,
        ("clock_hertz", gpu, "dcefclk"): 357e6,
        ("clock_hertz", gpu, "fclk"): 1080e6,
        ("clock_hertz", gpu, "mclk"): 350e6,
        ("clock_hertz", gpu, "sclk"): 930e6,
        ("clock_hertz", gpu, "socclk"): 309e6,
        ("pcie_link_speed_transfers_per_second", gpu, "current"): 8e9,
        ("pcie_link_width_lanes", gpu, "current"): 16.0,
        ("pcie_replays_total", gpu): 0.0,
        ("fan_ratio", gpu): 0.0,
        ("fan_speed_rpm", gpu): 0.0,
        ("power_watts", gpu, "average"): 21.0,
        ("power_cap_watts", gpu): 225.0,
        ("voltage_volts", gpu, "vddgfx"): 0.737,
        ("memory_size_bytes", gpu, "vram"): 34342961152.0,
        ("memory_used_bytes", gpu, "vram"): 11010048.0,
        ("memory_size_bytes", gpu, "vis_vram"): 34342961152.0,
        ("memory_used_bytes", gpu, "vis_vram"): 11010048.0,
        ("memory_size_bytes", gpu, "gtt"): 67421597696.0,
        ("memory_used_bytes", gpu, "gtt"): 17285120.0,
    }
    # One for each of the four HBM sensors that this version prints for every card.
    assert collected.missing == [Missing("gpu_temperature_celsius", gpu, "not_supported")] * 4
    facts = ("5.11.32", "1a2b3c4d5e6f7081", "0123456789ab", "113-D1631700-111", "")
    assert info(collected) == [(gpu, "card0", "", "", "Radeon Instinct MI50 32GB", *facts)]
    assert up(collected) == {gpu: 1.0}


def test_the_names_of_6_1_2() -> None:
    collected = read("rocm612_a_rx6900xt.json")
    gpu = "0000:43:00.0"
    told = values(collected)
    assert told["busy_ratio", gpu] == 0.03
    assert told["memory_busy_ratio", gpu] == 0.0  # Read/Write Activity; 4 % is what is allocated
    assert told["fan_ratio", gpu] == 0.14
    assert told["fan_speed_rpm", gpu] == 760.0
    assert told["clock_hertz", gpu, "sclk"] == 500e6
    assert told["pcie_link_speed_transfers_per_second", gpu, "current"] == 16e9
    assert told["memory_used_bytes", gpu, "vram"] == 746586112.0
    assert collected.missing == []
    product = "Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]"
    assert info(collected) == [(gpu, "card0", "2", "gfx1030", product, "6.7.0", "", "", "113-D4120500-101", "")]


def test_a_card_series_that_is_a_number_is_no_product() -> None:
    assert info(read("rocm43_a_rx6900xt_hbm_na.json"))[0][4] == ""


def test_cards_missing_from_the_middle() -> None:
    collected = read("rocm57_use_mem_temp_mixed_gap.json")
    assert up(collected) == {"card0": 1.0, "card2": 1.0}
    assert values(collected)["busy_ratio", "card0"] == 0.97
    assert values(collected)["temperature_celsius", "card2", "junction"] == 79.0
    assert missing(collected) == set()
    assert Missing("gpu_power_watts", "card2", "absent") in collected.missing


def test_csv_has_the_same_names() -> None:
    assert values(read("csv_use_mem_temp.csv")) == values(read("rocm57_use_mem_temp_mixed_gap.json"))


def test_the_second_die_has_no_power_of_its_own() -> None:
    collected = read("rocm60_mi250_secondary_die.json")
    told = values(collected)
    assert told["power_watts", "card0", "average"] == 96.0
    assert told["power_cap_watts", "card0"] == 560.0
    assert [told["temperature_celsius", "card0", f"hbm{n}"] for n in range(4)] == [41.0, 44.0, 42.0, 45.0]
    assert told["memory_size_bytes", "card1", "vram"] == 68702699520.0
    # "N/A (Secondary die)", and a limit of 0.0 W, which is none.
    assert missing(collected) == {
        ("power_watts", "card1", "not_supported"),
        ("power_cap_watts", "card1", "out_of_range"),
    }
    assert not any(key[:2] in {("power_watts", "card1"), ("power_cap_watts", "card1")} for key in told)


def test_whole_mi300x_have_instant_power_and_no_edge() -> None:
    collected = read("rocm62_mi300x_spx.json")
    told = values(collected)
    assert told["power_watts", "0000:0c:00.0", "instant"] == 137.0
    assert told["power_watts", "0000:22:00.0", "instant"] == 138.0
    assert ("temperature_celsius", "0000:0c:00.0", "edge") not in told
    assert told["memory_size_bytes", "0000:22:00.0", "vram"] == 206141652992.0
    assert info(collected)[1][-1] == "SPX"


def test_partitions_repeat_their_socket_which_is_told_once() -> None:
    collected = read("rocm63_mi300x_cpx_mirrored.json")
    told = values(collected)
    power = {key: value for key, value in told.items() if key[0] == "power_watts"}
    assert power == {("power_watts", "card0", "instant"): 139.0}
    assert {key[1] for key in told if key[0] in ("temperature_celsius", "busy_ratio")} == {"card0"}
    sizes = [told["memory_size_bytes", f"card{n}", "vram"] for n in range(8)]
    assert sum(sizes) == 192 * GIB
    assert up(collected) == {f"card{n}": 1.0 for n in range(8)}


def partition(watts: str, **keys: str) -> dict[str, str]:
    return {
        "Device ID": "0x74a1",
        "Current Socket Graphics Package Power (W)": watts,
        "GPU use (%)": "50",
        "VRAM Total Memory (B)": str(24 * GIB),
        "VRAM Total Used Memory (B)": str(3 * GIB),
        **keys,
    }


def test_two_sockets_in_partitions_have_two_powers_even_if_a_reading_changed_in_between() -> None:
    watts = ["139", "139", "139", "140", "140", "140", "140", "140", *["500"] * 8]
    cards = {f"card{n}": partition(watts[n]) for n in range(16)}
    del cards["card5"]
    told = values(rocm_smi.parse(json.dumps(cards)))
    assert {key: value for key, value in told.items() if key[0] == "power_watts"} == {
        ("power_watts", "card0", "instant"): 139.0,
        ("power_watts", "card8", "instant"): 500.0,
    }


def test_partitions_at_one_address_are_one_card_with_all_its_memory() -> None:
    cards = {f"card{n}": partition("300", **{"PCI Bus": "0000:0C:00.0"}) for n in range(8)}
    collected = rocm_smi.parse(json.dumps(cards))
    told = values(collected)
    assert told == {
        ("power_watts", "0000:0c:00.0", "instant"): 300.0,
        ("busy_ratio", "0000:0c:00.0"): 0.5,
        ("memory_size_bytes", "0000:0c:00.0", "vram"): 192.0 * GIB,
        ("memory_used_bytes", "0000:0c:00.0", "vram"): 24.0 * GIB,
    }
    assert up(collected) == {"0000:0c:00.0": 1.0}


def test_a_sum_that_lacks_a_part_is_none() -> None:
    cards = {f"card{n}": partition("300", **{"PCI Bus": "0000:0C:00.0"}) for n in range(8)}
    cards["card3"]["VRAM Total Used Memory (B)"] = "None"
    collected = rocm_smi.parse(json.dumps(cards))
    assert ("memory_used_bytes", "0000:0c:00.0", "vram") not in values(collected)
    assert missing(collected) == {("memory_used_bytes", "0000:0c:00.0", "failed")}


def test_partitions_that_differ_in_the_function_are_one_socket() -> None:
    cards = {f"card{n}": partition("300", **{"PCI Bus": f"0000:0C:00.{n}"}) for n in range(8)}
    told = values(rocm_smi.parse(json.dumps(cards)))
    assert [key for key in told if key[0] == "power_watts"] == [("power_watts", "0000:0c:00.0", "instant")]
    assert told["memory_size_bytes", "0000:0c:00.7", "vram"] == 24.0 * GIB


def test_whole_cards_with_equal_values_are_not_taken_for_partitions() -> None:
    card = {**partition("137"), "VRAM Total Memory (B)": "206141652992"}
    told = values(rocm_smi.parse(json.dumps({"card0": card, "card1": card})))
    assert [key[1] for key in told if key[0] == "power_watts"] == ["card0", "card1"]


def test_partitions_since_6_4_1_say_not_available() -> None:
    later = {"Device ID": "N/A", "Current Socket Graphics Package Power (W)": "N/A", "GPU use (%)": "N/A"}
    cards = {"card0": {**partition("300"), "Compute Partition": "CPX"}, "card1": {**partition("0"), **later}}
    collected = rocm_smi.parse(json.dumps(cards))
    assert [key[1] for key in values(collected) if key[0] == "power_watts"] == ["card0"]
    assert {("power_watts", "card1", "not_supported"), ("busy_ratio", "card1", "not_supported")} <= missing(collected)
    assert values(collected)["memory_size_bytes", "card1", "vram"] == 24.0 * GIB


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"GPU memory use (%)": "62"}, 0.62),  # until 6.0: how busy the memory is
        ({"GPU memory use (%)": "62", "GPU Memory Allocated (VRAM%)": "62"}, None),  # later: how full
        ({"GPU memory use (%)": "62", "GFX Version": "gfx942"}, None),
        ({"GPU memory use (%)": "62", "GPU Memory Read/Write Activity (%)": "7"}, 0.07),
        ({"GPU Memory Allocated (VRAM%)": "62"}, None),
    ],
)
def test_memory_use_is_activity_never_allocation(keys: dict[str, str], expected: float | None) -> None:
    told = values(rocm_smi.parse(json.dumps({"card0": keys})))
    assert told.get(("memory_busy_ratio", "card0")) == expected
    assert set(told) <= {("memory_busy_ratio", "card0")}


def test_older_and_newer_spellings() -> None:
    card = {
        "Temperature (Sensor mem) (c)": "44.0",
        "current_fan_speed (rpm)": "1900",
        "Fan Level": "42%",
        "sclk clock speed": "(1725Mhz)",
        "PCI Bus": "0000:C4:00.0",
        "gpu USE (%)": "7",
    }
    told = values(rocm_smi.parse(json.dumps({"card7": card})))
    gpu = "0000:c4:00.0"
    assert told == {
        ("temperature_celsius", gpu, "mem"): 44.0,
        ("fan_speed_rpm", gpu): 1900.0,
        ("fan_ratio", gpu): 0.42,
        ("clock_hertz", gpu, "sclk"): 1725e6,
        ("busy_ratio", gpu): 0.07,
    }


@pytest.mark.parametrize(
    ("key", "text", "family", "reason"),
    [
        ("GPU use (%)", "655", "busy_ratio", "out_of_range"),
        ("GPU use (%)", "Unsupported", "busy_ratio", "not_supported"),
        ("GPU use (%)", "", "busy_ratio", "not_supported"),
        ("GPU use (%)", "busy", "busy_ratio", "malformed"),
        ("GPU use (%)", "nan", "busy_ratio", "malformed"),
        ("Temperature (Sensor edge) (C)", "-273.15", "temperature_celsius", "out_of_range"),
        ("Average Graphics Package Power (W)", "4294967295", "power_watts", "not_supported"),
        ("Max Graphics Package Power (W)", "0.0", "power_cap_watts", "out_of_range"),
        ("VRAM Total Memory (B)", "0", "memory_size_bytes", "out_of_range"),
        ("VRAM Total Used Memory (B)", "None", "memory_used_bytes", "failed"),
        ("sclk clock speed:", "N/A", "clock_hertz", "not_supported"),
        ("sclk clock speed:", "1725", "clock_hertz", "malformed"),  # of what?
        ("pcie clock level", "Unknown", "pcie_link_width_lanes", "malformed"),
        ("pcie clock level", "0 (2.5GT/s x0)", "pcie_link_width_lanes", "out_of_range"),
    ],
)
def test_what_is_no_value_is_missing_with_its_reason(key: str, text: str, family: str, reason: str) -> None:
    collected = rocm_smi.parse(json.dumps({"card0": {key: text}}))
    assert family not in {name for name, *_ in values(collected)}
    assert (family, "card0", reason) in missing(collected)


def test_what_could_not_be_read_is_not_zero() -> None:
    collected = read("none_strings.json")
    assert collected.readings == []
    assert missing(collected) == {
        ("temperature_celsius", "card0", "failed"),
        ("busy_ratio", "card0", "not_supported"),
        ("memory_size_bytes", "card0", "failed"),
        ("memory_used_bytes", "card0", "failed"),
    }


def test_an_average_of_101_per_cent_is_full() -> None:
    assert values(read("only_vram_card.json")) == {
        ("memory_size_bytes", "card0", "vram"): 17163091968.0,
        ("memory_used_bytes", "card0", "vram"): 27262976.0,
        ("busy_ratio", "card1"): 1.0,
    }


def test_text_before_the_json() -> None:
    told = values(read("expected_integer.stdout.txt"))
    assert told == {
        ("busy_ratio", "card0"): 0.0,
        ("busy_ratio", "card1"): 0.05,
        ("temperature_celsius", "card1", "edge"): 33.0,
    }
    assert values(read("warning_before_json.stdout.txt"))["busy_ratio", "card0"] == 0.12


@pytest.mark.parametrize(
    "name",
    [
        *("init_failed.stdout.txt", "no_driver.stdout.txt", "no_driver.stderr.txt", "no_json_data.stderr.txt"),
        *("low_power.stderr.txt", "mutex_stale.stderr.txt"),
    ],
)
def test_a_tool_that_says_nothing_has_failed(name: str) -> None:
    assert read(name) == Collected([], [Missing("rocm_smi", "", "failed")])


def test_a_text_cut_short_is_malformed() -> None:
    text = (DATA / "rocm612_a_rx6900xt.json").read_text(encoding="utf-8")
    for end in range(1, len(text) - 1, 37):
        assert rocm_smi.parse(text[:end]) == Collected([], [Missing("rocm_smi", "", "malformed")])


def test_labels_are_one_printable_line() -> None:
    card = {"Card Series": "MI50\n\x1b[31m\ud800" + "x" * 500, "GPU use (%)": "1"}
    product = info(rocm_smi.parse(json.dumps({"card0": card})))[0][4]
    assert product.startswith("MI50 [31m xx")
    assert len(product) == 128
    assert product.encode()


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
    assert all(lack.name in FAMILIES or (lack.name, lack.gpu) == ("rocm_smi", "") for lack in collected.missing)
    assert collected.readings or collected.missing


SAMPLES = [
    json.loads((DATA / name).read_text(encoding="utf-8"))
    for name in ("rocm43_a_mi50.json", "rocm612_a_rx6900xt.json", "rocm62_mi300x_spx.json")
]
KEYS = sorted({key for sample in SAMPLES for key in sample["card0"]})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["N/A", "None", "", "0", "100", "-1", "4294967295", "1e308", "(1Mhz)", "1 (16.0GT/s x16)", "CPX"]),
    st.sampled_from(["0x74a1", "0000:0C:00.0", "0000:0C:00.1", "25769803776", "9" * 400]),
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner), max_leaves=9)
CARDS = st.dictionaries(
    st.sampled_from(["card0", "card1", "card2", "card9", "CARD3", "card99999", "system", "card"]),
    st.one_of(JSON, st.dictionaries(st.sampled_from(KEYS), st.one_of(SCALARS, JSON), max_size=12)),
)


@given(CARDS, st.sampled_from(["", "WARNING: x\n", "[drm] y\n", "{\n", "[1]\n"]), st.text(max_size=5))
def test_any_cards(cards: object, before: str, after: str) -> None:
    assert_sound(rocm_smi.parse(before + json.dumps(cards) + after))


@given(st.one_of(JSON, st.recursive(JSON, st.lists, max_leaves=3)))
def test_any_json(value: object) -> None:
    assert_sound(rocm_smi.parse(json.dumps(value)))


@given(st.text())
def test_any_text(text: str) -> None:
    assert_sound(rocm_smi.parse(text))
    assert_sound(rocm_smi.parse("device," + text))


@given(st.sampled_from(SAMPLES), st.data())
def test_a_value_that_is_not_there_changes_no_other(sample: dict[str, dict[str, str]], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(sample["card0"].keys() - {"PCI Bus"})))
    whole = values(rocm_smi.parse(json.dumps(sample)))
    card = {name: text for name, text in sample["card0"].items() if name != key}
    told = values(rocm_smi.parse(json.dumps({**sample, "card0": card})))
    assert told.items() <= whole.items()
    assert len(told) >= len(whole) - 2
