"""Bits and residencies, against the tables of telemetry facts and against closed forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.telemetry.cards.gpu_metrics import GpuMetrics
from cadenza.telemetry.cards.throttling import Residency, decode


def metrics(
    status: int | None = None,
    independent: int | None = None,
    cycles: int | None = None,
    clock_s: float | None = None,
    **residencies: int,
) -> GpuMetrics:
    return GpuMetrics(
        version=(1, 6),
        clock_s=clock_s,
        temperatures_celsius={},
        busy_ratio=None,
        memory_busy_ratio=None,
        average_power_watts=None,
        instant_power_watts=None,
        energy_joules=None,
        clocks_hertz={},
        voltages_volts={},
        fan_rpm=None,
        link_width_lanes=None,
        link_speed_transfers_per_second=None,
        replays_total=None,
        throttle_status=status,
        indep_throttle_status=independent,
        cycles=cycles,
        residencies_cycles=residencies,
    )


def holding(reasons: dict[str, bool]) -> set[str]:
    return {reason for reason, holds in reasons.items() if holds}


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        *((0, "ppt0"), (3, "ppt3"), (4, "spl"), (5, "fppt"), (6, "sppt"), (7, "sppt_apu"), (16, "tdc_gfx")),
        *((17, "tdc_soc"), (18, "tdc_mem"), (19, "tdc_vdd"), (20, "tdc_cvip"), (21, "edc_cpu"), (22, "edc_gfx")),
        *((23, "apcc"), (32, "temp_gpu"), (33, "temp_core"), (34, "temp_mem"), (35, "temp_edge")),
        *((36, "temp_hotspot"), (37, "temp_soc"), (38, "temp_vr_gfx"), (39, "temp_vr_soc"), (40, "temp_vr_mem0")),
        *((41, "temp_vr_mem1"), (42, "temp_liquid0"), (43, "temp_liquid1"), (44, "vrhot0"), (45, "vrhot1")),
        *((46, "prochot_cpu"), (47, "prochot_gfx"), (56, "ppm"), (57, "fit"), (8, "other"), (63, "other")),
    ],
)
def test_the_kernels_bits_mean_the_same_on_every_chip(bit: int, reason: str) -> None:
    assert holding(decode(metrics(status=0xFF, independent=1 << bit), "gfx1030")) == {reason}


@pytest.mark.parametrize(
    ("gfx", "bit", "reason"),
    [
        *(("gfx1030", 1, "temp_edge"), ("gfx1030", 2, "temp_hotspot"), ("gfx1030", 3, "temp_mem")),
        *(("gfx1030", 7, "temp_vr_soc"), ("gfx1030", 11, "tdc_gfx"), ("gfx1030", 12, "tdc_soc")),
        *(("gfx1030", 13, "ppt0"), ("gfx1030", 16, "ppt3"), ("gfx1030", 17, "fit"), ("gfx1030", 19, "apcc")),
        *(("gfx1010", 10, "temp_plx"), ("gfx1010", 11, "temp_skin"), ("gfx1010", 12, "tdc_gfx")),
        *(("gfx1010", 14, "ppt0"), ("gfx1010", 20, "apcc")),
        *(("gfx908", 1, "temp_edge"), ("gfx908", 6, "temp_vr_soc"), ("gfx908", 7, "tdc_gfx"), ("gfx908", 8, "tdc_soc")),
        *(("gfx908", 9, "ppt0"), ("gfx908", 12, "ppt3"), ("gfx908", 13, "ppm"), ("gfx908", 15, "apcc")),
        *(("gfx942", 0, "prochot"), ("gfx942", 1, "ppt"), ("gfx942", 2, "thermal_socket")),
        *(("gfx942", 3, "thermal_vr"), ("gfx942", 4, "thermal_hbm"), ("gfx942", 30, "other")),
    ],
)
def test_a_chips_own_bits_are_read_by_its_family(gfx: str, bit: int, reason: str) -> None:
    assert holding(decode(metrics(status=1 << bit), gfx)) == {reason}


def test_the_samples_two_masks_say_the_same() -> None:
    """RX 6900 XT: throttle_status 8196 and indep_throttle_status 68719476737, of one file."""
    own, kernels = decode(metrics(status=8196), "gfx1030"), decode(metrics(independent=68719476737), "gfx1030")
    assert holding(own) == holding(kernels) == {"ppt0", "temp_hotspot"}


@pytest.mark.parametrize("gfx", ["gfx906", "gfx1100", "", "nonsense"])
def test_bits_that_nobody_knows_are_any(gfx: str) -> None:
    assert decode(metrics(status=0), gfx) == {"any": False}
    assert decode(metrics(status=1 << 9), gfx) == {"any": True}


def test_reasons_that_do_not_hold_stand_at_false() -> None:
    cool = decode(metrics(status=0), "gfx942")
    assert cool == dict.fromkeys(("prochot", "ppt", "thermal_socket", "thermal_vr", "thermal_hbm"), False)
    discrete = decode(metrics(independent=0), "gfx1030")
    assert {"ppt0", "temp_edge", "temp_hotspot", "temp_mem", "tdc_gfx"} <= discrete.keys()
    assert not any(discrete.values())
    assert "sppt_apu" not in discrete


def test_a_chip_that_does_not_tell_has_no_reasons() -> None:
    assert decode(metrics(), "gfx1030") == {}


@given(st.integers(0, 2**64 - 1), st.sampled_from(["gfx1030", "gfx908", "gfx942", "gfx906", ""]), st.booleans())
def test_any_mask_is_read(mask: int, gfx: str, independent: bool) -> None:
    found = decode(metrics(independent=mask) if independent else metrics(status=mask & 0xFFFF_FFFF), gfx)
    assert bool(holding(found)) == bool(mask if independent else mask & 0xFFFF_FFFF)


@pytest.mark.parametrize("cycle_s", [0.1, 0.001, 0.01])
def test_seconds_do_not_depend_on_how_long_a_cycle_is(cycle_s: float) -> None:
    """Throttled for a quarter of 8 s, whatever the counters count in."""
    residency = Residency()
    first = round(1000 / cycle_s)
    residency.add(metrics(cycles=first, clock_s=1000.0, ppt=77, thermal_vr=5))
    assert residency.seconds == {"ppt": 0.0, "thermal_vr": 0.0}
    assert residency.shares == {}
    residency.add(metrics(cycles=first + round(8 / cycle_s), clock_s=1008.0, ppt=77 + round(2 / cycle_s), thermal_vr=5))
    assert residency.seconds == {"ppt": pytest.approx(2.0), "thermal_vr": 0.0}
    assert residency.shares == {"ppt": pytest.approx(0.25), "thermal_vr": 0.0}


def test_a_file_that_was_not_filled_anew_changes_nothing() -> None:
    residency = Residency()
    residency.add(metrics(cycles=10, clock_s=1.0, ppt=1))
    residency.add(metrics(cycles=20, clock_s=2.0, ppt=6))
    residency.add(metrics(cycles=20, clock_s=2.0, ppt=6))
    residency.add(metrics(cycles=20, clock_s=2.005, ppt=6))
    assert residency.seconds == {"ppt": pytest.approx(0.5)}
    assert residency.shares == {"ppt": pytest.approx(0.5)}


@pytest.mark.parametrize(
    "after",
    [
        metrics(cycles=5, clock_s=2.0, ppt=1),  # the counter of cycles wrapped
        metrics(cycles=20, clock_s=2.0, ppt=1),  # that of the reason did
        metrics(cycles=20, clock_s=2.0, ppt=200),  # more than there were cycles
        metrics(cycles=20, clock_s=0.5, ppt=6),  # the host was rebooted
    ],
)
def test_an_interval_that_cannot_be_is_left_out(after: GpuMetrics) -> None:
    residency = Residency()
    residency.add(metrics(cycles=10, clock_s=1.0, ppt=5))
    residency.add(after)
    assert residency.seconds == {"ppt": 0.0}
    assert residency.shares == {}


def test_it_goes_on_after_one_that_was_left_out() -> None:
    residency = Residency()
    residency.add(metrics(cycles=4_294_967_290, clock_s=1.0, ppt=5))
    residency.add(metrics(cycles=4, clock_s=2.0, ppt=6))
    residency.add(metrics(cycles=14, clock_s=3.0, ppt=16))
    assert residency.seconds == {"ppt": pytest.approx(1.0)}


def test_a_version_without_counters_adds_nothing() -> None:
    residency = Residency()
    residency.add(metrics(clock_s=1.0))
    residency.add(metrics(cycles=5))
    assert residency.seconds == {}
