"""gpu_metrics against the samples, and against the offsets that ctypes computed from the kernel's structs."""

import contextlib
import json
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.telemetry.cards.gpu_metrics import GpuMetrics, GpuMetricsError, parse

DATA = Path(__file__).parents[2] / "data"
SAMPLES = {
    "mi50_v1_0": DATA / "sysfs/gpu_metrics",
    "rx6900xt_v1_3": DATA / "sysfs/gpu_metrics",
    "mi300x_v1_4": DATA / "telemetry/gpu_metrics",
    "mi300x_v1_6": DATA / "telemetry/gpu_metrics",
}
# What a field of the kernel's struct is here: attribute, key (arrays count on from their name), and its unit.
MEANINGS: dict[str, tuple[str, str | None, float]] = {
    "temperature_edge": ("temperatures_celsius", "edge", 1),
    "temperature_hotspot": ("temperatures_celsius", "junction", 1),
    "temperature_mem": ("temperatures_celsius", "mem", 1),
    "temperature_vrgfx": ("temperatures_celsius", "vrgfx", 1),
    "temperature_vrsoc": ("temperatures_celsius", "vrsoc", 1),
    "temperature_vrmem": ("temperatures_celsius", "vrmem", 1),
    "temperature_hbm": ("temperatures_celsius", "hbm", 1),
    "average_gfx_activity": ("busy_ratio", None, 1e-2),
    "average_umc_activity": ("memory_busy_ratio", None, 1e-2),
    "average_socket_power": ("average_power_watts", None, 1),
    "curr_socket_power": ("instant_power_watts", None, 1),
    "energy_accumulator": ("energy_joules", None, 2**-16),
    "system_clock_counter": ("clock_s", None, 1e-9),
    "current_gfxclk": ("clocks_hertz", "sclk", 1e6),
    "current_socclk": ("clocks_hertz", "socclk", 1e6),
    "current_uclk": ("clocks_hertz", "mclk", 1e6),
    "current_vclk0": ("clocks_hertz", "vclk0", 1e6),
    "current_dclk0": ("clocks_hertz", "dclk0", 1e6),
    "current_vclk1": ("clocks_hertz", "vclk1", 1e6),
    "current_dclk1": ("clocks_hertz", "dclk1", 1e6),
    "throttle_status": ("throttle_status", None, 1),
    "indep_throttle_status": ("indep_throttle_status", None, 1),
    "current_fan_speed": ("fan_rpm", None, 1),
    "pcie_link_width": ("link_width_lanes", None, 1),
    "pcie_link_speed": ("link_speed_transfers_per_second", None, 1e8),
    "pcie_replay_count_acc": ("replays_total", None, 1),
    "voltage_gfx": ("voltages_volts", "vddgfx", 1e-3),
    "voltage_soc": ("voltages_volts", "soc", 1e-3),
    "voltage_mem": ("voltages_volts", "mem", 1e-3),
    "accumulation_counter": ("cycles", None, 1),
    "prochot_residency_acc": ("residencies_cycles", "prochot", 1),
    "ppt_residency_acc": ("residencies_cycles", "ppt", 1),
    "socket_thm_residency_acc": ("residencies_cycles", "thermal_socket", 1),
    "vr_thm_residency_acc": ("residencies_cycles", "thermal_vr", 1),
    "hbm_thm_residency_acc": ("residencies_cycles", "thermal_hbm", 1),
}
# Beside all ones.
NONE = {"energy_accumulator": (0, 0xFFFF_FFFF), "average_socket_power": (0,)}
DICTS = ("temperatures_celsius", "clocks_hertz", "voltages_volts", "residencies_cycles")
SCALARS = tuple(name for name in GpuMetrics.__struct_fields__ if name not in (*DICTS, "version"))


class Field(NamedTuple):
    """`length` numbers of `each` bytes."""

    name: str
    offset: int
    each: int
    length: int


def read_layouts() -> dict[str, tuple[int, list[Field]]]:
    """version → (size, fields). One number reaches to the next field, as far as its alignment lets it.

    An array has its length with it; those that matter here are of 16-bit numbers.
    """
    layouts = {}
    for line in (DATA / "sysfs/gpu_metrics/offsets.txt").read_text(encoding="ascii").splitlines():
        version, size, rest = re.fullmatch(r"(\S+) size=(\d+): (.*)", line).groups()  # type: ignore[union-attr]
        places = [re.fullmatch(r"(\w+)@(\d+)(?:\[(\d+)B\])?", word).groups() for word in rest.split()]  # type: ignore[union-attr]
        ends = [int(offset) for _, offset, _ in places[1:]] + [int(size)]
        fields = []
        for (name, offset, length), end in zip(places, ends, strict=True):
            here = int(offset)
            aligned = min(8, end - here, (here & -here) or 8)
            each = 2 if length else 1 << (aligned.bit_length() - 1)
            fields.append(Field(str(name), here, each, int(length) // 2 if length else 1))
        layouts[str(version)] = (int(size), fields)
    return layouts


LAYOUTS = read_layouts()
FIELDS = [
    (version, field)
    for version, (_, fields) in LAYOUTS.items()
    for field in fields
    if field.name in MEANINGS and (version, field.name) != ("v1_0", "energy_accumulator")
]


def blank(version: str) -> bytearray:
    data = bytearray(b"\xff" * LAYOUTS[version][0])
    struct.pack_into("<HBB", data, 0, len(data), *map(int, version[1:].split("_")))
    return data


def flatten(metrics: GpuMetrics) -> dict[str, float]:
    """Everything that was told, by attribute or attribute.key."""
    told: dict[str, float] = {name: getattr(metrics, name) for name in SCALARS if getattr(metrics, name) is not None}
    for name in DICTS:
        told |= {f"{name}.{key}": value for key, value in getattr(metrics, name).items()}
    return told


def place(field: str, index: int | None) -> str:
    attribute, key, _ = MEANINGS[field]
    if key is None:
        return attribute
    return f"{attribute}.{key}" if index is None else f"{attribute}.{key.removesuffix('0')}{index}"


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_is_what_stands_beside_it(sample: str) -> None:
    expected: dict[str, Any] = json.loads((SAMPLES[sample] / f"{sample}.expected.json").read_text(encoding="utf-8"))
    metrics = parse((SAMPLES[sample] / f"{sample}.bin").read_bytes())
    told: dict[str, float] = {}
    for field, value in expected.items():
        if field in MEANINGS:
            cells = enumerate(value) if isinstance(value, list) else [(None, value)]
            told |= {place(field, index): cell * MEANINGS[field][2] for index, cell in cells if cell is not None}
    assert flatten(metrics) == pytest.approx(told, rel=1e-12)
    assert metrics.version == (expected["format_revision"], expected["content_revision"])


def test_units_of_one_sample_by_hand() -> None:
    metrics = parse((SAMPLES["rx6900xt_v1_3"] / "rx6900xt_v1_3.bin").read_bytes())
    assert metrics.temperatures_celsius["junction"] == 79.0
    assert metrics.average_power_watts == 254
    assert metrics.instant_power_watts is None
    assert metrics.energy_joules == pytest.approx(2456789012 * 15.2587890625e-6)
    assert metrics.clocks_hertz["sclk"] == 2.4e9
    assert metrics.voltages_volts == {"vddgfx": 1.131, "soc": 1.018, "mem": 1.35}
    assert metrics.link_speed_transfers_per_second == 16e9
    assert metrics.link_width_lanes == 16
    assert metrics.busy_ratio == 1.0
    assert metrics.clock_s == 7200.0
    assert metrics.cycles is None


@pytest.mark.parametrize(
    ("version", "field"), FIELDS, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_a_field_stands_at_its_offset_and_nowhere_else(version: str, field: Field) -> None:
    data = blank(version)
    expected = {}
    for index in range(field.length):
        at = field.offset + index * field.each
        data[at : at + field.each] = (3 + index).to_bytes(field.each, "little")
        expected[place(field.name, index if field.length > 1 else None)] = (3 + index) * MEANINGS[field.name][2]
    assert flatten(parse(bytes(data))) == pytest.approx(expected)


def test_every_version_is_covered_field_by_field() -> None:
    assert {version for version, *_ in FIELDS} == {f"v1_{content}" for content in range(9)}
    assert len(FIELDS) > 120


@pytest.mark.parametrize("version", LAYOUTS)
def test_all_ones_is_nothing_and_never_zero(version: str) -> None:
    assert flatten(parse(bytes(blank(version)))) == {}


@pytest.mark.parametrize("version", LAYOUTS)
def test_zeros_are_told_as_zeros(version: str) -> None:
    data = bytearray(LAYOUTS[version][0])
    data[:4] = blank(version)[:4]
    assert set(flatten(parse(bytes(data))).values()) == {0}


def test_the_second_die_of_an_mi250_has_no_power_of_its_own() -> None:
    """`aldebaran_get_gpu_metrics` fills v1_3 with 0 W and 0 J there, and only there."""
    data = blank("v1_3")
    struct.pack_into("<HHHQ", data, 18, 0, 0, 0, 0)
    metrics = parse(bytes(data))
    assert (metrics.average_power_watts, metrics.energy_joules, metrics.memory_busy_ratio) == (None, None, 0.0)
    struct.pack_into("<HQ", data, 22, 1, 1)
    assert parse(bytes(data)).average_power_watts == 1
    struct.pack_into("<Q", data, 24, 1)
    assert parse(bytes(data)).energy_joules == 2**-16


def test_v1_8_is_v1_7_with_more_of_each_partition() -> None:
    fields = {version: fields[:-2] for version, (_, fields) in LAYOUTS.items()}
    assert fields["v1_7"] == fields["v1_8"]
    assert [LAYOUTS[version][0] for version in ("v1_7", "v1_8")] == [2208, 3872]


def test_vega20s_energy_is_no_counter() -> None:
    data = blank("v1_0")
    struct.pack_into("<I", data, 36, 123456)
    assert parse(bytes(data)).energy_joules is None


def test_a_narrow_all_ones_is_no_energy_either() -> None:
    data = blank("v1_3")
    struct.pack_into("<Q", data, 24, 0xFFFF_FFFF)
    assert parse(bytes(data)).energy_joules is None
    struct.pack_into("<Q", data, 24, 0xFFFF_FFFE)
    assert parse(bytes(data)).energy_joules == pytest.approx(65536.0, rel=1e-9)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not_supported"),
        (b"\x78", "malformed"),
        (b"\x78\x00\x01", "malformed"),
        ((DATA / "telemetry/gpu_metrics/empty.bin").read_bytes(), "not_supported"),
        ((DATA / "telemetry/gpu_metrics/bad_size_header_v1_3.bin").read_bytes(), "malformed"),
        ((DATA / "telemetry/gpu_metrics/bad_truncated_v1_3.bin").read_bytes(), "malformed"),
        ((DATA / "telemetry/gpu_metrics/future_v1_42.bin").read_bytes(), "not_supported"),
        (struct.pack("<HBB", 4000, 1, 9) + bytes(3996), "not_supported"),
        (struct.pack("<HBB", 2200, 1, 7) + bytes(2204), "malformed"),
        (struct.pack("<HBB", 120, 2, 3) + bytes(116), "not_supported"),
        (struct.pack("<HBB", 119, 1, 3) + bytes(116), "malformed"),
        (struct.pack("<HBB", 121, 1, 3) + bytes(117), "malformed"),
    ],
)
def test_what_is_no_gpu_metrics_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(GpuMetricsError) as caught:
        parse(data)
    assert caught.value.reason == reason


def test_bytes_behind_the_structure_do_not_matter() -> None:
    data = (SAMPLES["mi300x_v1_6"] / "mi300x_v1_6.bin").read_bytes()
    assert parse(data + b"\x00" * 4096) == parse(data)


@given(st.binary(max_size=2048))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    with contextlib.suppress(GpuMetricsError):
        assert "v{}_{}".format(*parse(data).version) in LAYOUTS


@given(version=st.sampled_from(sorted(LAYOUTS)), body=st.data())
def test_any_body_is_told_in_its_units(version: str, body: st.DataObject) -> None:
    size = LAYOUTS[version][0]
    data = bytes(blank(version)[:4]) + body.draw(st.binary(min_size=size - 4, max_size=size - 4))
    expected = {}
    for field in [field for known, field in FIELDS if known == version]:
        for index in range(field.length):
            at = field.offset + index * field.each
            raw = int.from_bytes(data[at : at + field.each], "little")
            none = {256**field.each - 1, *NONE.get(field.name, ())}
            if raw not in none:
                expected[place(field.name, index if field.length > 1 else None)] = raw * MEANINGS[field.name][2]
    assert flatten(parse(data)) == pytest.approx(expected)
