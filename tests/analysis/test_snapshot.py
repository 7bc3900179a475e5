"""Cards, host, engine and kernel log at an instant, and latencies in a few numbers."""

import numpy as np
import pytest

from cadenza.analysis.snapshot import Card, HostNow, cards, engine_figures, host, kernel, times
from cadenza.analysis.tracks import Track, track
from cadenza.readings import Sample, Series
from support.telemetry import engine, sample

A, B = "0000:03:00.0", "0000:43:00.0"


def row(name: str, value: float, **labels: str) -> tuple[Series, float]:
    return Series(name, tuple(labels.items())), value


def at_once(rows: list[tuple[Series, float]]) -> dict[Series, Track]:
    """Readings of one instant."""
    return track([Sample(7, "x", None, tuple(series for series, _ in rows), [value for _, value in rows])])


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
        row("gpu_info", 1, gpu=A, vendor="amd", product="MI50"),
        row("gpu_up", 1, gpu=A, vendor="amd"),
        row("gpu_busy_ratio", 0.5, gpu=A, vendor="amd"),
        row("gpu_memory_used_bytes", 7, gpu=A, vendor="amd", pool="gtt"),
        row("gpu_memory_used_bytes", 3, gpu=A, vendor="amd", pool="vram"),
        row("gpu_power_watts", 999, gpu=A, vendor="amd", type="instant"),
        row("gpu_power_watts", 180, gpu=A, vendor="amd", type="average"),
        row("gpu_temperature_celsius", 60, gpu=A, vendor="amd", sensor="edge"),
        row("gpu_temperature_limit_celsius", 90, gpu=A, vendor="amd", sensor="edge", limit="crit"),
        row("gpu_temperature_limit_celsius", 95, gpu=A, vendor="amd", sensor="edge", limit="emergency"),
        row("gpu_throttled", 1, gpu=A, vendor="amd", reason="ppt0"),
        row("gpu_throttled", 0, gpu=A, vendor="amd", reason="temp_edge"),
        row("gpu_clock_hertz", 8e8, gpu=A, vendor="amd", domain="mclk"),
        row("gpu_clock_hertz", 17e8, gpu=A, vendor="amd", domain="sclk"),
        row("gpu_busy_ratio", 1, gpu=B, vendor="nvidia"),
        row("gpu_power_watts", 60, gpu=B, vendor="nvidia", type="instant"),
        row("gpu_clock_hertz", 2e9, gpu=B, vendor="nvidia", domain="sm"),
        row("cadenza_kernel_events_total", 1, gpu="0000:99:00.0", event="ring_timeout"),
    ]
    assert cards(at_once(rows)) == [
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
        Card(gpu=B, busy=1, power_w=60, clock_hz=2e9),
    ]


def test_a_value_is_that_of_the_latest_instant() -> None:
    seen = track([sample("amdgpu", at_s, {f"gpu_busy_ratio{{gpu={A}}}": at_s / 10}) for at_s in (3, 7, 5)])
    assert cards(seen)[0].busy == 0.7


def test_a_card_may_sleep_or_be_gone() -> None:
    rows = [
        row("gpu_up", 0, gpu=A, vendor="amd"),
        row("gpu_up", 1, gpu=B, vendor="amd"),
        row("gpu_suspended", 1, gpu=B, vendor="amd"),
    ]
    assert [card.state for card in cards(at_once(rows))] == ["gone", "asleep"]


def test_the_host_is_busy_where_it_neither_idles_nor_waits() -> None:
    rows = [row("cadenza_host_cpu_ratio", share, mode=mode) for mode, share in (("idle", 0.5), ("iowait", 0.25))]
    assert host(at_once([*rows, row("cadenza_host_cores", 8)])) == HostNow(cpu_busy=0.25, cores=8)
    assert host(at_once([row("cadenza_host_network_sent_bytes_total", 8, device="lo")])) is None


def test_only_what_the_kernel_said_is_told() -> None:
    rows = [
        row("cadenza_kernel_events_total", 2, event="ring_timeout", gpu=A),
        row("cadenza_kernel_events_total", 0, event="aer", gpu=A),
    ]
    assert kernel(at_once(rows)) == {f"ring_timeout {A}": 2}


def test_figures_are_summed_over_the_base_urls() -> None:
    def both(one: float, other: float) -> dict[str | Series, float]:
        names = ("running", "generation_tokens_total", "kv_usage")
        return engine(dict.fromkeys(names, one)) | engine(dict.fromkeys(names, other), 1)

    samples = [sample("engine", 0, both(0.0, 0.1)), sample("engine", 2, both(0.5, 0.7))]
    found = engine_figures(samples, "m")
    assert found["running"] == pytest.approx(1.2)
    assert found["kv_usage"] == 0.7
    assert found["generation_tok_per_s"] == pytest.approx(1.1 / 2)
    assert engine_figures(samples, "other") == found  # the only model there is, under another name
    assert engine_figures([], "m") == {}


def test_a_counter_that_fell_is_left_out() -> None:
    samples = [sample("engine", at, engine({"running": 1, "generation_tokens_total": n})) for at, n in ((0, 9), (1, 2))]
    assert engine_figures(samples, "m") == {"running": 1}
