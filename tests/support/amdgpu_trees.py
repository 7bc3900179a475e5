"""Sample trees of AMD cards under a root, what a collector must make of them, and its readings as plain dicts."""

import shutil
from pathlib import Path

from cadenza.readings import Collected

SYSFS = Path(__file__).parents[1] / "data/sysfs"
TELEMETRY = Path(__file__).parents[1] / "data/telemetry"
BAD = TELEMETRY / "sysfs/bad_values"
MIXED = SYSFS / "mixed_mi50_rx6900xt"
PATHS = sorted(path.relative_to(MIXED) for path in MIXED.rglob("*") if path.is_file())
MI50, RX, MI300X = "0000:03:00.0", "0000:43:00.0", "0000:0c:00.0"

MI50_TOLD = {
    "suspended": 0,
    "up": 1,
    "busy_ratio": 0.97,
    "memory_busy_ratio": 0.31,
    "memory_size_bytes.vram": 34342961152,
    "memory_used_bytes.vram": 31138512896,
    "memory_size_bytes.vis_vram": 34342961152,
    "memory_used_bytes.vis_vram": 31138512896,
    "memory_size_bytes.gtt": 67421597696,
    "memory_used_bytes.gtt": 17285120,
    "temperature_celsius.edge": 41,
    "temperature_celsius.junction": 47,
    "temperature_celsius.mem": 44,
    "temperature_celsius.vrsoc": 52,
    "temperature_celsius.vrmem": 50,
    "temperature_limit_celsius.edge.crit": 100,
    "temperature_limit_celsius.edge.emergency": 105,
    "temperature_limit_celsius.junction.crit": 105,
    "temperature_limit_celsius.junction.emergency": 110,
    "temperature_limit_celsius.mem.crit": 94,
    "temperature_limit_celsius.mem.emergency": 99,
    "power_watts.average": 187,
    "power_cap_watts": 225,
    "clock_hertz.sclk": 1725e6,
    "clock_hertz.mclk": 1000e6,
    "clock_hertz.socclk": 1134e6,
    "clock_hertz.vclk0": 0,
    "clock_hertz.dclk0": 0,
    "voltage_volts.vddgfx": 1.093,
    "throttled.any": 0,
    "pcie_link_speed_transfers_per_second.current": 16e9,
    "pcie_link_speed_transfers_per_second.max": 16e9,
    "pcie_link_width_lanes.current": 16,
    "pcie_link_width_lanes.max": 16,
    "pcie_replays_total": 0,
    "ras_errors_total.gfx.uncorrectable": 0,
    "ras_errors_total.gfx.correctable": 0,
    "ras_errors_total.sdma.uncorrectable": 0,
    "ras_errors_total.sdma.correctable": 0,
    "ras_errors_total.umc.uncorrectable": 0,
    "ras_errors_total.umc.correctable": 3,
    "bad_pages.retired": 1,
    "bad_pages.pending": 0,
    "bad_pages.failed": 0,
}
MI50_MISSING = {
    ("ras_errors_total", "asleep"),  # xgmi_wafl: "Query currently inaccessible"
    ("energy_joules_total", "absent"),  # Vega 20 counts none
    ("fan_speed_rpm", "absent"),
    ("fan_ratio", "absent"),
    ("throttle_seconds_total", "absent"),
}
RX_TOLD = {
    "suspended": 0,
    "up": 1,
    "busy_ratio": 1.0,
    "memory_busy_ratio": 0.44,
    "memory_size_bytes.vram": 17163091968,
    "memory_used_bytes.vram": 15032385536,
    "memory_size_bytes.vis_vram": 268435456,
    "memory_used_bytes.vis_vram": 27262976,
    "memory_size_bytes.gtt": 67421597696,
    "memory_used_bytes.gtt": 22285120,
    "temperature_celsius.edge": 58,
    "temperature_celsius.junction": 79,
    "temperature_celsius.mem": 72,
    "temperature_celsius.vrgfx": 61,
    "temperature_celsius.vrsoc": 55,
    "temperature_celsius.vrmem": 58,
    "temperature_limit_celsius.edge.crit": 100,
    "temperature_limit_celsius.junction.crit": 110,
    "temperature_limit_celsius.mem.crit": 100,
    "power_watts.average": 254,
    "power_cap_watts": 255,
    "energy_joules_total": 2456789012 / 65536,
    "clock_hertz.sclk": 2312e6,
    "clock_hertz.mclk": 1000e6,
    "clock_hertz.socclk": 1200e6,
    **{f"clock_hertz.{domain}": 0 for domain in ("vclk0", "dclk0", "vclk1", "dclk1")},
    "fan_speed_rpm": 1870,
    "fan_ratio": 127 / 255,
    "voltage_volts.vddgfx": 1.131,
    "voltage_volts.soc": 1.018,
    "voltage_volts.mem": 1.350,
    **{f"throttled.ppt{number}": float(number == 0) for number in range(4)},
    "throttled.temp_hotspot": 1,
    **{f"throttled.temp_{sensor}": 0 for sensor in ("edge", "mem", "vr_gfx", "vr_soc", "vr_mem0", "vr_mem1")},
    **{f"throttled.{reason}": 0 for reason in ("tdc_gfx", "tdc_soc")},
    "pcie_link_speed_transfers_per_second.current": 16e9,
    "pcie_link_speed_transfers_per_second.max": 16e9,
    "pcie_link_width_lanes.current": 16,
    "pcie_link_width_lanes.max": 16,
    "pcie_replays_total": 2,
}
RX_MISSING = {("ras_errors_total", "absent"), ("bad_pages", "absent"), ("throttle_seconds_total", "absent")}


def stand(tree: Path, root: Path) -> Path:
    """A root whose sys is a copy of `tree`."""
    shutil.copytree(tree, root / "sys")
    return root


def device(root: Path, card: str = "card1") -> Path:
    return root / "sys/class/drm" / card / "device"


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def told(collected: Collected, gpu: str) -> dict[str, float]:
    """Values of one card by family and labels, without the gpu_ and without gpu_info."""
    return {
        ".".join([reading.name.removeprefix("gpu_"), *(value for _, value in reading.labels[2:])]): reading.value
        for reading in collected.readings
        if reading.labels[0] == ("gpu", gpu) and reading.name != "gpu_info"
    }


def missing(collected: Collected, gpu: str) -> set[tuple[str, str]]:
    return {(lack.name.removeprefix("gpu_"), lack.reason) for lack in collected.missing if lack.gpu == gpu}


def info(collected: Collected, gpu: str) -> dict[str, str]:
    found = [dict(r.labels) for r in collected.readings if r.name == "gpu_info" and r.labels[0] == ("gpu", gpu)]
    assert len(found) == 1
    return found[0]
