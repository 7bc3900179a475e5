"""Cards, host and kernel log out of series by key, and latencies in a few numbers."""

import numpy as np
import pytest

from cadenza.analysis.snapshot import Card, HostNow, Row, cards, host, kernel, times

A, B = "0000:03:00.0", "0000:43:00.0"


def row(name: str, value: float, **labels: str) -> Row:
    return name, labels, value


def test_percentiles_interpolate_between_order_statistics_and_leave_out_nan() -> None:
    found = times(np.array([4.0, np.nan, 2.0, 1.0, 3.0, 5.0]))
    assert found is not None
    # Of 1 … 5: the 99th percentile lies at position 0.99 · 4 = 3.96.
    assert (found.n, found.mean, found.p50) == (5, 3.0, 3.0)
    assert found.p99 == pytest.approx(4.96)


def test_no_value_is_no_latency() -> None:
    assert times(np.array([np.nan])) is None
    assert times(np.zeros(0)) is None


def test_a_card_is_what_its_series_say_and_the_rest_is_not_there() -> None:
    rows = [
        row("amdgpu_info", 1, gpu=A, product="MI50"),
        row("amdgpu_up", 1, gpu=A),
        row("amdgpu_busy_ratio", 0.5, gpu=A),
        row("amdgpu_memory_used_bytes", 7, gpu=A, pool="gtt"),
        row("amdgpu_memory_used_bytes", 3, gpu=A, pool="vram"),
        row("amdgpu_power_watts", 180, gpu=A, type="instant"),
        row("amdgpu_temperature_celsius", 60, gpu=A, sensor="edge"),
        row("amdgpu_temperature_limit_celsius", 90, gpu=A, sensor="edge", limit="crit"),
        row("amdgpu_temperature_limit_celsius", 95, gpu=A, sensor="edge", limit="emergency"),
        row("amdgpu_throttled", 1, gpu=A, reason="ppt0"),
        row("amdgpu_throttled", 0, gpu=A, reason="temp_edge"),
        row("amdgpu_clock_hertz", 8e8, gpu=A, domain="mclk"),
        row("amdgpu_clock_hertz", 17e8, gpu=A, domain="sclk"),
        row("nvidia_busy_ratio", 1, gpu=B),
        row("nvidia_clock_hertz", 2e9, gpu=B, domain="sm"),
        row("cadenza_kernel_events_total", 1, gpu="0000:99:00.0", event="ring_timeout"),
    ]
    assert cards(rows) == [
        Card(
            gpu=A,
            product="MI50",
            busy=0.5,
            vram_used_bytes=3,
            power_w=180,
            temperatures_c={"edge": 60},
            limits_c={"edge": 90},
            throttled=["ppt0"],
            clock_hz=17e8,
        ),
        Card(gpu=B, busy=1, clock_hz=2e9),
    ]


def test_of_two_collectors_the_first_is_believed() -> None:
    assert cards([row("amdgpu_busy_ratio", 0.5, gpu=A), row("amdgpu_busy_ratio", 0.7, gpu=A)])[0].busy == 0.5


def test_a_card_may_sleep_or_be_gone() -> None:
    rows = [row("amdgpu_up", 0, gpu=A), row("amdgpu_up", 1, gpu=B), row("amdgpu_suspended", 1, gpu=B)]
    assert [card.state for card in cards(rows)] == ["gone", "asleep"]


def test_the_host_is_busy_where_it_neither_idles_nor_waits() -> None:
    rows = [row("cadenza_host_cpu_ratio", share, mode=mode) for mode, share in (("idle", 0.5), ("iowait", 0.25))]
    assert host([*rows, row("cadenza_host_cores", 8)]) == HostNow(cpu_busy=0.25, cores=8)
    assert host([row("cadenza_host_network_sent_bytes_total", 8, device="lo")]) is None


def test_only_what_the_kernel_said_is_told() -> None:
    rows = [
        row("cadenza_kernel_events_total", 2, event="ring_timeout", gpu=A),
        row("cadenza_kernel_events_total", 0, event="aer", gpu=A),
    ]
    assert kernel(rows) == {f"ring_timeout {A}": 2}
