"""Every series that cadenza exports or keeps: name, type, labels, meaning. Units as Prometheus has them.

The exporter's HELP lines, the dashboards' queries, the alerts and the lint over them all come from this one table.
Names: base units, one unit a name, `_total` for counters, constant facts in an `_info` series. `gpu` is the card's PCI
address (0000:43:00.0), which survives a reboot; card numbers, tool indices and KFD nodes do not, and stand in
`amdgpu_info`. NVIDIA cards have the same families under `nvidia_`.
"""

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "info"]


class Family(NamedTuple):
    """`labels` beside which there are no others, in this order."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_GPU = ("gpu",)

_AMDGPU = (
    Family(
        "amdgpu_info",
        "info",
        (*_GPU, "card", "kfd_node", "gfx", "product", "driver", "unique_id", "serial", "vbios", "compute_partition"),
        "Constant facts of a card; what it does not tell is empty.",
    ),
    Family(
        "amdgpu_up", "gauge", _GPU, "1 if the card answered at the last look, 0 if it was there before and is gone."
    ),
    Family("amdgpu_suspended", "gauge", _GPU, "1 if the card is asleep: nothing else of it is read then."),
    Family("amdgpu_busy_ratio", "gauge", _GPU, "Share of the last moment in which the card computed, or spun."),
    Family("amdgpu_memory_busy_ratio", "gauge", _GPU, "Share of the last moment in which the memory was at work."),
    Family(
        "amdgpu_memory_size_bytes",
        "gauge",
        (*_GPU, "pool"),
        "Memory by pool: vram, vis_vram, gtt; xcp0, … of partitions.",
    ),
    Family("amdgpu_memory_used_bytes", "gauge", (*_GPU, "pool"), "Memory in use by pool."),
    Family(
        "amdgpu_temperature_celsius", "gauge", (*_GPU, "sensor"), "Temperature by sensor: edge, junction, mem, hbm0."
    ),
    Family(
        "amdgpu_temperature_limit_celsius",
        "gauge",
        (*_GPU, "sensor", "limit"),
        "At `crit` the driver throttles, at `emergency` it shuts down.",
    ),
    Family(
        "amdgpu_power_watts", "gauge", (*_GPU, "type"), "Power of the package: average or instant, as the chip has it."
    ),
    Family("amdgpu_power_cap_watts", "gauge", _GPU, "The power limit in force."),
    Family(
        "amdgpu_energy_joules_total", "counter", _GPU, "Energy since the driver was loaded, where the chip counts it."
    ),
    Family("amdgpu_clock_hertz", "gauge", (*_GPU, "domain"), "Current clock by domain: sclk, mclk, socclk, …"),
    Family("amdgpu_fan_speed_rpm", "gauge", _GPU, "Speed of the card's own fan."),
    Family("amdgpu_fan_ratio", "gauge", _GPU, "Fan PWM, 0 to 1."),
    Family("amdgpu_voltage_volts", "gauge", (*_GPU, "rail"), "Voltage by rail."),
    Family("amdgpu_throttled", "gauge", (*_GPU, "reason"), "1 while the chip lowers its clock for this reason."),
    Family(
        "amdgpu_throttle_seconds_total",
        "counter",
        (*_GPU, "reason"),
        "Time for which it did, where the chip counts it.",
    ),
    Family(
        "amdgpu_pcie_link_speed_transfers_per_second",
        "gauge",
        (*_GPU, "state"),
        "Link speed: current or max. An idle link slows down.",
    ),
    Family("amdgpu_pcie_link_width_lanes", "gauge", (*_GPU, "state"), "Link width: current or max."),
    Family("amdgpu_pcie_replays_total", "counter", _GPU, "Replayed packets since the driver was loaded."),
    Family(
        "amdgpu_pcie_received_bytes_per_second",
        "gauge",
        _GPU,
        "Upper bound: messages in a sampled second, each taken for the largest. Only on chips that count them.",
    ),
    Family("amdgpu_pcie_sent_bytes_per_second", "gauge", _GPU, "As received, the other way."),
    Family(
        "amdgpu_ras_errors_total",
        "counter",
        (*_GPU, "block", "severity"),
        "Memory and logic errors by block: correctable, uncorrectable, deferred.",
    ),
    Family("amdgpu_bad_pages", "gauge", (*_GPU, "state"), "Pages of VRAM: retired, pending, failed."),
    Family("amdgpu_process_memory_bytes", "gauge", (*_GPU, "pid"), "VRAM of a compute process. On request."),
    Family("amdgpu_process_sdma_seconds_total", "counter", (*_GPU, "pid"), "Time of its copies. On request."),
)

_SHARED = frozenset(
    {
        *("up", "busy_ratio", "memory_busy_ratio", "memory_size_bytes", "memory_used_bytes", "temperature_celsius"),
        *("temperature_limit_celsius", "power_watts", "power_cap_watts", "energy_joules_total", "clock_hertz"),
        *("fan_ratio", "throttled", "pcie_link_speed_transfers_per_second", "pcie_link_width_lanes"),
        *("pcie_replays_total", "pcie_received_bytes_per_second", "pcie_sent_bytes_per_second"),
    }
)
_NVIDIA = (
    Family("nvidia_info", "info", (*_GPU, "product", "driver", "uuid", "vbios"), "Constant facts of a card."),
    *(
        family._replace(name=family.name.replace("amdgpu_", "nvidia_", 1))
        for family in _AMDGPU
        if family.name.removeprefix("amdgpu_") in _SHARED
    ),
)

_HOST = (
    Family(
        "cadenza_host_cpu_ratio",
        "gauge",
        ("mode",),
        "Share of all cores' time since the last look: user, system, iowait, steal, idle.",
    ),
    Family("cadenza_host_cores", "gauge", (), "Cores that are online."),
    Family("cadenza_host_memory_size_bytes", "gauge", (), "Memory of the machine."),
    Family("cadenza_host_memory_available_bytes", "gauge", (), "What could be had without swapping."),
    Family("cadenza_host_swap_used_bytes", "gauge", (), "Swap in use."),
    Family("cadenza_host_network_received_bytes_total", "counter", ("device",), "Bytes received."),
    Family("cadenza_host_network_sent_bytes_total", "counter", ("device",), "Bytes sent."),
)

_OWN = (
    Family("cadenza_kernel_events_total", "counter", ("event", "gpu"), "Kernel log lines that mean trouble, by kind."),
    Family(
        "cadenza_kernel_log_lost_total",
        "counter",
        (),
        "Kernel log records that were gone before they were read.",
    ),
    Family(
        "cadenza_collector_success",
        "gauge",
        ("collector",),
        "1 if the collector's last round brought anything, and is not too old to show.",
    ),
    Family("cadenza_collector_duration_seconds", "gauge", ("collector",), "How long that round took."),
    Family(
        "cadenza_collector_age_seconds", "gauge", ("collector",), "Since the end of that round: a stuck one grows old."
    ),
    Family("cadenza_collector_missing_total", "counter", ("collector", "reason"), "Values that were not to be had."),
    Family("cadenza_runs_running", "gauge", (), "Runs that go on now, in the folder that is watched for them."),
    Family("cadenza_run_start_time_seconds", "gauge", ("run",), "When a run that goes on began, since 1970."),
    Family(
        "cadenza_run_info",
        "info",
        ("run", "point", "model", "concurrency", "load"),
        "The point that a run measures now, counted from 1; concurrency is empty where nothing bounds it.",
    ),
    Family("cadenza_exporter_info", "info", ("version",), "This exporter."),
    Family("cadenza_exporter_scrapes_total", "counter", (), "Pages served."),
)

FAMILIES: dict[str, Family] = {family.name: family for family in (*_AMDGPU, *_NVIDIA, *_HOST, *_OWN)}
