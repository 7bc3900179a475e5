"""Every series that cadenza exports or keeps: name, type, labels, meaning. Units as Prometheus has them.

The exporter's HELP lines, the dashboards' queries, the alerts and the lint over them all come from this one table.
Names: base units, one unit a name, `_total` for counters, constant facts in an `_info` series. `gpu` is the card's PCI
address (0000:43:00.0), which survives a reboot; card numbers, tool indices and KFD nodes do not, and stand in
`gpu_info`. `vendor` is amd or nvidia. docs/how-to/export-metrics.md maps them to OpenTelemetry.
"""

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "info"]


class Family(NamedTuple):
    """`labels`: all labels of each of its series, in this order. `help`: what it measures, readable on its own."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_CARD = ("gpu", "vendor")
_FACTS = ("card", "kfd_node", "gfx", "product", "driver", "unique_id", "serial", "vbios", "compute_partition", "uuid")

_CARDS = (
    Family("gpu_info", "info", (*_CARD, *_FACTS), "Constant facts of a card; empty where the card does not have one."),
    Family(
        "gpu_up", "gauge", _CARD, "1 if the card answered in the last round, 0 if it was present before and is not."
    ),
    Family("gpu_suspended", "gauge", _CARD, "1 if the card is suspended; no other value of it is read then."),
    Family("gpu_busy_ratio", "gauge", _CARD, "Compute utilization of the card over its last sampling period, 0 to 1."),
    Family(
        "gpu_memory_busy_ratio",
        "gauge",
        _CARD,
        "Share of the last sampling period in which the card's memory controller was active, 0 to 1.",
    ),
    Family(
        "gpu_memory_size_bytes",
        "gauge",
        (*_CARD, "pool"),
        "Card memory size in bytes, by pool: vram, vis_vram, gtt; xcp0, … for partitions.",
    ),
    Family("gpu_memory_used_bytes", "gauge", (*_CARD, "pool"), "Card memory in use in bytes, by pool."),
    Family(
        "gpu_temperature_celsius",
        "gauge",
        (*_CARD, "sensor"),
        "Card temperature in degrees Celsius, by sensor: edge, junction, mem, hbm0, gpu.",
    ),
    Family(
        "gpu_temperature_limit_celsius",
        "gauge",
        (*_CARD, "sensor", "limit"),
        "Card temperature limit in degrees Celsius, by sensor: crit (clocks are reduced), emergency (shutdown).",
    ),
    Family("gpu_power_watts", "gauge", (*_CARD, "type"), "Card power draw in watts: average or instant."),
    Family("gpu_power_cap_watts", "gauge", _CARD, "Card power limit in force, in watts."),
    Family(
        "gpu_energy_joules_total",
        "counter",
        _CARD,
        "Energy consumed by the card since its driver was loaded, in joules (chips with an energy counter).",
    ),
    Family("gpu_clock_hertz", "gauge", (*_CARD, "domain"), "Current card clock in hertz, by domain: sclk, mclk, sm, …"),
    Family("gpu_fan_speed_rpm", "gauge", _CARD, "Card fan speed in revolutions per minute."),
    Family("gpu_fan_ratio", "gauge", _CARD, "Card fan duty cycle, 0 to 1."),
    Family("gpu_voltage_volts", "gauge", (*_CARD, "rail"), "Card voltage in volts, by rail."),
    Family("gpu_throttled", "gauge", (*_CARD, "reason"), "1 while the card reduces its core clock for this reason."),
    Family(
        "gpu_throttle_seconds_total",
        "counter",
        (*_CARD, "reason"),
        "Seconds the core clock was reduced, by reason (chips with residency counters).",
    ),
    Family(
        "gpu_pcie_link_speed_transfers_per_second",
        "gauge",
        (*_CARD, "state"),
        "PCIe link speed of the card in transfers per second: current or max. An idle link slows down.",
    ),
    Family(
        "gpu_pcie_link_width_lanes",
        "gauge",
        (*_CARD, "state"),
        "PCIe link width of the card in lanes: current or max.",
    ),
    Family("gpu_pcie_replays_total", "counter", _CARD, "PCIe packets replayed since the card's driver was loaded."),
    Family(
        "gpu_pcie_received_bytes_per_second",
        "gauge",
        _CARD,
        "PCIe bytes received by the card per second; on AMD an upper bound: packets in a sampled second, each counted "
        "at the maximum payload.",
    ),
    Family(
        "gpu_pcie_sent_bytes_per_second",
        "gauge",
        _CARD,
        "PCIe bytes sent by the card per second; on AMD an upper bound: packets in a sampled second, each counted at "
        "the maximum payload.",
    ),
    Family(
        "gpu_ras_errors_total",
        "counter",
        (*_CARD, "block", "severity"),
        "Memory and logic errors of the card, by block and severity: correctable, uncorrectable, deferred.",
    ),
    Family("gpu_bad_pages", "gauge", (*_CARD, "state"), "VRAM pages out of use, by state: retired, pending, failed."),
    Family(
        "gpu_process_memory_bytes",
        "gauge",
        (*_CARD, "pid"),
        "VRAM in use by a compute process, in bytes (only with --processes).",
    ),
    Family(
        "gpu_process_sdma_seconds_total",
        "counter",
        (*_CARD, "pid"),
        "SDMA copy time of a compute process, in seconds (only with --processes).",
    ),
)

_HOST = (
    Family(
        "cadenza_host_cpu_ratio",
        "gauge",
        ("mode",),
        "Share of the CPU time of all cores since the last round, by mode: user, system, iowait, steal, idle.",
    ),
    Family("cadenza_host_cores", "gauge", (), "CPU cores online."),
    Family("cadenza_host_memory_size_bytes", "gauge", (), "Host memory size in bytes."),
    Family("cadenza_host_memory_available_bytes", "gauge", (), "Host memory available without swapping, in bytes."),
    Family("cadenza_host_swap_used_bytes", "gauge", (), "Host swap space in use, in bytes."),
    Family(
        "cadenza_host_network_received_bytes_total", "counter", ("device",), "Bytes received by a network interface."
    ),
    Family("cadenza_host_network_sent_bytes_total", "counter", ("device",), "Bytes sent by a network interface."),
)

_EXPORTER = (
    Family(
        "cadenza_kernel_events_total",
        "counter",
        ("event", "gpu"),
        "Kernel log lines that report a GPU fault, by kind of fault and card.",
    ),
    Family(
        "cadenza_kernel_log_lost_total",
        "counter",
        (),
        "Kernel log records overwritten before they were read.",
    ),
    Family(
        "cadenza_collector_success",
        "gauge",
        ("collector",),
        "1 if the collector's last round returned readings and is recent enough to be shown.",
    ),
    Family("cadenza_collector_duration_seconds", "gauge", ("collector",), "Duration of the collector's last round."),
    Family(
        "cadenza_collector_age_seconds",
        "gauge",
        ("collector",),
        "Seconds since the end of the collector's last round; grows while a round is blocked.",
    ),
    Family(
        "cadenza_collector_missing_total",
        "counter",
        ("collector", "reason"),
        "Values that could not be read, by reason.",
    ),
    Family("cadenza_runs_running", "gauge", (), "Load-test runs in progress in the watched folder."),
    Family("cadenza_run_start_time_seconds", "gauge", ("run",), "Start of a run in progress, in seconds since 1970."),
    Family(
        "cadenza_run_info",
        "info",
        ("run", "point", "model", "concurrency", "load"),
        "The point that a run measures now, counted from 1; concurrency is empty for an open loop.",
    ),
    Family("cadenza_exporter_info", "info", ("version",), "Version of the exporter."),
    Family("cadenza_exporter_scrapes_total", "counter", (), "Scrapes of /metrics that the exporter has answered."),
)

FAMILIES: dict[str, Family] = {family.name: family for family in (*_CARDS, *_HOST, *_EXPORTER)}
