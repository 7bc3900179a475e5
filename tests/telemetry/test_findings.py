"""First source wins, nothing impossible passes, and what is missing has a reason."""

import math

import pytest

from cadenza.readings import Missing, Reading, Reason
from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.findings import RANGES, Findings, Known
from cadenza.telemetry.root import UnreadableError

GPU = "0000:03:00.0"


def fail(reason: Reason) -> float:
    raise UnreadableError(reason)


def test_labels_are_the_familys_in_its_order() -> None:
    findings = Findings(GPU, "amd")
    findings.give("gpu_temperature_limit_celsius", 100, "edge", "crit")
    readings, missing = findings.collect(())
    labels = (("gpu", GPU), ("vendor", "amd"), ("sensor", "edge"), ("limit", "crit"))
    assert readings == [Reading("gpu_temperature_limit_celsius", labels, 100.0)]
    assert missing == []


def test_readings_that_a_look_leaves_to_the_next_say_what_is_so_then() -> None:
    known: Known = {}
    for watts, celsius in ((187, 40), (187, 41), (190, 41), (187, 40)):
        findings = Findings(GPU, "amd", known)
        findings.give("gpu_power_watts", watts, "average")
        findings.give("gpu_temperature_celsius", celsius, "edge")
        assert findings.collect(()).readings == [
            Reading("gpu_power_watts", (("gpu", GPU), ("vendor", "amd"), ("type", "average")), watts),
            Reading("gpu_temperature_celsius", (("gpu", GPU), ("vendor", "amd"), ("sensor", "edge")), celsius),
        ]
    assert Findings(GPU, "amd", known).collect(()).readings == []


def test_the_first_source_of_a_series_stands() -> None:
    findings = Findings(GPU, "amd")
    findings.give("gpu_power_watts", 187, "average")
    findings.give("gpu_power_watts", 250, "average")
    findings.give("gpu_power_watts", 190, "instant")
    assert [reading.value for reading in findings.collect(()).readings] == [187.0, 190.0]


def test_none_is_nothing() -> None:
    findings = Findings(GPU, "amd")
    findings.give("gpu_busy_ratio", None)
    assert findings.collect(("gpu_busy_ratio",)) == ([], [Missing("gpu_busy_ratio", GPU, "absent")])


@pytest.mark.parametrize(
    ("name", "value", "labels"),
    [
        ("gpu_busy_ratio", 1.02, ()),
        ("gpu_busy_ratio", 6.55, ()),
        ("gpu_busy_ratio", -0.01, ()),
        ("gpu_fan_ratio", 1.004, ()),
        ("gpu_temperature_celsius", -273.15, ("edge",)),
        ("gpu_temperature_celsius", 65535, ("edge",)),
        ("gpu_temperature_limit_celsius", 0, ("edge", "crit")),
        ("gpu_power_watts", 4294.967295, ("average",)),
        ("gpu_power_watts", -1, ("average",)),
        ("gpu_power_watts", 0, ("average",)),
        ("gpu_energy_joules_total", 0, ()),
        ("gpu_energy_joules_total", (2**64 - 1) * 2**-16, ()),
        ("gpu_power_cap_watts", 0, ()),
        ("gpu_clock_hertz", 65535e6, ("sclk",)),
        ("gpu_pcie_link_width_lanes", 0, ("current",)),
        ("gpu_pcie_link_width_lanes", 63, ("current",)),
        ("gpu_memory_used_bytes", -1, ("vram",)),
        ("gpu_memory_size_bytes", 0, ("vram",)),
        ("gpu_pcie_replays_total", -1, ()),
        ("gpu_pcie_replays_total", 2**32 - 1, ()),
        ("gpu_pcie_replays_total", 2**64 - 1, ()),
        ("gpu_power_watts", math.nan, ("average",)),
        ("gpu_power_watts", math.inf, ("average",)),
    ],
)
def test_what_cannot_be_is_out_of_range(name: str, value: float, labels: tuple[str, ...]) -> None:
    findings = Findings(GPU, "amd")
    findings.give(name, value, *labels)
    assert findings.collect((name,)) == ([], [Missing(name, GPU, "out_of_range")])


@pytest.mark.parametrize(
    ("name", "value", "labels", "told"),
    [
        ("gpu_busy_ratio", 1.01, (), 1.0),
        ("gpu_busy_ratio", 1.0, (), 1.0),
        ("gpu_busy_ratio", 0, (), 0.0),
        ("gpu_memory_busy_ratio", 1.01, (), 1.0),
        ("gpu_temperature_celsius", -12.5, ("edge",), -12.5),
        ("gpu_power_watts", 1400, ("instant",), 1400.0),
        ("gpu_clock_hertz", 0, ("vclk0",), 0.0),
        ("gpu_pcie_link_width_lanes", 1, ("current",), 1.0),
    ],
)
def test_what_can_be_is_told(name: str, value: float, labels: tuple[str, ...], told: float) -> None:
    findings = Findings(GPU, "amd")
    findings.give(name, value, *labels)
    assert [reading.value for reading in findings.collect((name,)).readings] == [told]


def test_a_later_source_makes_up_for_one_that_failed() -> None:
    findings = Findings(GPU, "amd")
    findings.attempt("gpu_busy_ratio", lambda: fail("malformed"))
    findings.give("gpu_busy_ratio", 0.5)
    readings, missing = findings.collect(("gpu_busy_ratio",))
    assert [reading.value for reading in readings] == [0.5]
    assert missing == []


def test_a_source_is_not_asked_for_what_is_known() -> None:
    findings = Findings(GPU, "amd")
    findings.give("gpu_busy_ratio", 0.5)
    findings.attempt("gpu_busy_ratio", lambda: fail("failed"))
    assert findings.collect(("gpu_busy_ratio",)).missing == []


def test_missing_is_told_by_series_but_absence_by_family() -> None:
    name = "gpu_temperature_celsius"
    findings = Findings(GPU, "amd")
    findings.attempt(name, lambda: fail("absent"), "edge")
    findings.attempt(name, lambda: fail("absent"), "mem")
    assert findings.collect((name,)).missing == [Missing(name, GPU, "absent")]
    findings.attempt(name, lambda: 40.0, "junction")
    assert findings.collect((name,)).missing == []
    findings.attempt(name, lambda: fail("malformed"), "hbm0")
    assert findings.collect((name,)).missing == [Missing(name, GPU, "malformed")]


def test_excused_is_not_missing() -> None:
    findings = Findings(GPU, "amd")
    findings.excuse("gpu_throttled")
    names = ("gpu_throttled", "gpu_fan_ratio")
    assert findings.collect(names).missing == [Missing("gpu_fan_ratio", GPU, "absent")]


def test_what_an_earlier_look_found_stands_beside_what_was_found_now() -> None:
    earlier, now = Findings(GPU, "amd"), Findings(GPU, "amd")
    earlier.give("gpu_power_cap_watts", 225)
    earlier.lack("gpu_fan_ratio", "denied")
    now.give("gpu_busy_ratio", 0.5)
    now.include(earlier)
    readings, missing = now.collect(())
    assert {reading.name: reading.value for reading in readings} == {
        "gpu_power_cap_watts": 225.0,
        "gpu_busy_ratio": 0.5,
    }
    assert missing == [Missing("gpu_fan_ratio", GPU, "denied")]
    assert [reading.name for reading in earlier.collect(()).readings] == ["gpu_power_cap_watts"]


@pytest.mark.parametrize(
    ("reason", "hopes"),
    [
        *(("asleep", True), ("failed", True), ("timeout", True)),
        *(("absent", False), ("not_supported", False), ("denied", False), ("malformed", False)),
    ],
)
def test_what_may_be_had_at_the_next_look(reason: Reason, hopes: bool) -> None:
    findings = Findings(GPU, "amd")
    findings.give("gpu_busy_ratio", 0.5)
    assert not findings.hopes()
    findings.lack("gpu_power_cap_watts", reason)
    assert findings.hopes() is hopes


def test_answered_and_failed() -> None:
    names = ("gpu_busy_ratio", "gpu_power_watts")
    findings = Findings(GPU, "amd")
    assert (findings.answered(names), findings.failed(names)) == (False, False)
    findings.lack("gpu_busy_ratio", "asleep")
    findings.lack("gpu_fan_ratio", "failed")
    assert (findings.answered(names), findings.failed(names)) == (False, False)
    findings.lack("gpu_power_watts", "failed", "average")
    assert (findings.answered(names), findings.failed(names)) == (False, True)
    findings.give("gpu_busy_ratio", 0)
    assert findings.answered(names)


def test_ranges_are_of_families_that_exist() -> None:
    assert RANGES.keys() <= FAMILIES.keys()
    assert all(low < high for low, high in RANGES.values())
