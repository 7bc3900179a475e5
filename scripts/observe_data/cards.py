"""The dashboard of the cards: one row per card, then kernel log, host and exporter."""

from observe_data.grafana import Json, Panel, Query, Section, dashboard
from observe_data.panels import ALERT_NOTE, EVENT_NOTE, GPUS, LOAD_NOTE, NODES, OF_CARD, ON_NODE, RUN_NOTE, WINDOW
from observe_data.recording import CRITICAL, VRAM
from observe_data.vocabulary import card, card_over

_NONE = "not reported by this card"


def gpu() -> Json:
    """The dashboard as Grafana reads it."""
    sections = (
        Section("Card $gpu", (*_work(), *_link()), repeat="gpu"),
        Section("Kernel log", _kernel()),
        Section("Host", _host()),
        Section("Exporter", _exporter()),
    )
    text = "One row per card, by PCI address; kernel log, host and exporter below."
    return dashboard(
        "cadenza-gpu", "cadenza: cards", text, sections, (NODES, GPUS), (LOAD_NOTE, RUN_NOTE, ALERT_NOTE, EVENT_NOTE)
    )


def _of(name: str, legend: str, where: str = "") -> Query:
    return Query(card(name, f"{OF_CARD},{where}" if where else OF_CARD), legend)


def _work() -> tuple[Panel, ...]:
    busy = (_of("busy_ratio", "core"), _of("memory_busy_ratio", "memory"))
    memory = (_of("memory_used_bytes", "used {{pool}}"), _of("memory_size_bytes", "size", VRAM))
    heat = (
        _of("temperature_celsius", "{{sensor}}"),
        _of("temperature_limit_celsius", "{{sensor}} {{limit}}", CRITICAL),
    )
    power = (_of("power_watts", "{{type}}"), _of("power_cap_watts", "cap"))
    throttled, red = _of("throttled", "{{reason}}"), ((1, "red"),)
    rpm = Query(card("fan_speed_rpm", OF_CARD), "fan")
    fanless = "no fan"
    return (
        Panel("Utilization", busy, "percentunit", width=6, maximum=1, empty=_NONE),
        Panel("Memory usage", memory, "bytes", width=6, empty=_NONE),
        Panel("Temperature", heat, "celsius", width=6, empty=_NONE),
        Panel("Power", power, "watt", width=6, empty=_NONE),
        Panel("Clocks", (_of("clock_hertz", "{{domain}}"),), "hertz", width=6, empty=_NONE),
        Panel("Throttling by reason", (throttled,), type="state-timeline", width=6, steps=red, maximum=1, empty=_NONE),
        Panel("Fan duty", (_of("fan_ratio", "fan"),), "percentunit", width=6, maximum=1, empty=fanless),
        Panel("Fan speed", (rpm,), "rotrpm", width=6, empty=fanless),
    )


def _link() -> tuple[Panel, ...]:
    traffic = (_of("pcie_received_bytes_per_second", "received"), _of("pcie_sent_bytes_per_second", "sent"))
    replays = Query(card_over("rate", "pcie_replays_total", WINDOW, OF_CARD), "replays per second")
    ras = Query(f"sum by (block, severity) (gpu_ras_errors_total{{{OF_CARD}}})", "{{severity}} in {{block}}")
    speed = _of("pcie_link_speed_transfers_per_second", "{{state}}")
    idle = "The link speed drops at idle by design."
    facts = Query(card("info", OF_CARD), "present", True)
    return (
        Panel("PCIe link width", (_of("pcie_link_width_lanes", "{{state}}"),), width=6, empty=_NONE),
        Panel("PCIe link speed, transfers per second", (speed,), width=6, empty=_NONE, description=idle),
        Panel("PCIe traffic (upper bound)", traffic, "Bps", width=6, empty=_NONE),
        Panel("PCIe replays", (replays,), width=6, empty=_NONE),
        Panel("Memory errors", (ras,), width=6, empty=_NONE),
        Panel("Card details", (facts,), type="table", width=18, empty=_NONE),
    )


def _kernel() -> tuple[Panel, ...]:
    events = Query(f"sum by (event, gpu) (cadenza_kernel_events_total{{{ON_NODE}}}) > 0", "{{event}} {{gpu}}")
    lost = Query(f"cadenza_kernel_log_lost_total{{{ON_NODE}}}", "{{node}}")
    since = "Kernel events since exporter start"
    return (
        Panel(since, (events,), width=12, empty="none"),
        Panel("Kernel log lines lost", (lost,), width=12, empty="not reported by the journal or by dmesg"),
    )


def _host() -> tuple[Panel, ...]:
    cpu = Query(f'cadenza_host_cpu_ratio{{mode!="idle",{ON_NODE}}}', "{{mode}} {{node}}")
    memory = tuple(
        Query(f"cadenza_host_{name}_bytes{{{ON_NODE}}}", f"{legend} {{{{node}}}}")
        for name, legend in (("memory_size", "size"), ("memory_available", "available"), ("swap_used", "swap used"))
    )
    network = tuple(
        Query(f"rate(cadenza_host_network_{way}_bytes_total{{{ON_NODE}}}[{WINDOW}])", f"{way} {{{{device}}}}")
        for way in ("received", "sent")
    )
    return (
        Panel("Host CPU", (cpu,), "percentunit", maximum=1, stacked=True, empty="no data"),
        Panel("Host memory", memory, "bytes", empty="no data"),
        Panel("Host network", network, "Bps", empty="no data"),
    )


def _exporter() -> tuple[Panel, ...]:
    collector = "{{collector}}"
    # Reversed: the lowest step of a panel is green.
    fails = Query(f"1 - cadenza_collector_success{{{ON_NODE}}}", collector)
    takes, age = (
        Query(f"cadenza_collector_{name}{{{ON_NODE}}}", collector) for name in ("duration_seconds", "age_seconds")
    )
    missing = f"sum by (collector, reason) (rate(cadenza_collector_missing_total{{{ON_NODE}}}[{WINDOW}]))"
    failed, old = ((1, "red"),), ((30, "red"),)
    return (
        Panel("Failing collectors", (fails,), type="state-timeline", width=6, steps=failed, empty="no exporter"),
        Panel("Collector round duration", (takes,), "s", width=6, empty="no exporter"),
        Panel("Age of collected values", (age,), "s", width=6, steps=old, empty="no exporter"),
        Panel("Unreadable values by reason", (Query(missing, "{{reason}} {{collector}}"),), width=6, empty="none"),
    )
