"""The overview dashboard: all nodes, engines and cards."""

from observe_data.grafana import Json, Panel, Query, Section, dashboard
from observe_data.panels import ALERT_NOTE, CARD, EVENT_NOTE, LOAD_NOTE, MODEL, NODES, ON_NODE, RUN_NOTE, gauge
from observe_data.vocabulary import card

_FIRING = f'sort_desc(sum by (severity, alertname, node, instance, gpu) (ALERTS{{alertstate="firing",{ON_NODE}}}))'


def cluster() -> Json:
    """The dashboard as Grafana reads it."""
    firing = Query(_FIRING, "firing", True)
    alarm = Panel("Firing alerts", (firing,), type="table", width=24, height=7, empty="none")
    sections = (
        Section("Current values", _figures()),
        Section("Alerts", (alarm,)),
        Section("Engines", _engines()),
        Section("Cards", _cards()),
    )
    text = "All engines and cards. Regions: blue load, purple runs by name, red alerts."
    return dashboard(
        "cadenza-cluster", "cadenza: cluster", text, sections, (NODES,), (LOAD_NOTE, RUN_NOTE, ALERT_NOTE, EVENT_NOTE)
    )


def _figures() -> tuple[Panel, ...]:
    def answering(job: str) -> str:
        up = f'up{{job="{job}",{ON_NODE}}}'
        return f"sum({up}) / count({up})"

    def total(record: str) -> str:
        return f"sum({record}{{{ON_NODE}}})"

    pause = "needs 1 min of load"
    wanted = (
        ("Engines up", answering("engine"), "percentunit", "none"),
        ("Exporters up", answering("exporter"), "percentunit", "none"),
        ("Cards up", f"sum({card('up', ON_NODE)})", "short", "no card"),
        ("Tokens per second", total("model:engine_generation_tokens:rate1m"), "short", "no traffic"),
        ("Requests running", total("model:engine_requests_running:sum"), "short", "no engine"),
        ("Requests waiting", total("model:engine_requests_waiting:sum"), "short", "no engine"),
        ("Card power", total("node:gpu_power_watts:sum"), "watt", "no card"),
        ("Energy per token", f"max(node:gpu_energy_per_token:joules{{{ON_NODE}}})", "joule", pause),
    )
    return tuple(
        Panel(title, (Query(expr),), unit, "stat", width=3, height=4, empty=empty)
        for title, expr, unit, empty in wanted
    )


def _engines() -> tuple[Panel, ...]:
    queue = (
        gauge("model:engine_requests_running:sum", ON_NODE, f"running {MODEL}"),
        gauge("model:engine_requests_waiting:sum", ON_NODE, f"waiting {MODEL}"),
    )
    tokens, usage = (gauge(f"model:engine_{name}", ON_NODE) for name in ("generation_tokens:rate1m", "kv_usage:max"))
    first, gap = (gauge(f"model:engine_{name}_seconds:p99_rate1m", ON_NODE) for name in ("ttft", "itl"))
    full = ((0.92, "orange"),)
    return (
        Panel("Generated tokens per second", (tokens,), width=12, stacked=True),
        Panel("Requests running and waiting", queue, width=12),
        Panel("TTFT P99", (first,), "s"),
        Panel("ITL P99", (gap,), "s"),
        Panel("KV cache usage, fullest engine", (usage,), "percentunit", maximum=1, steps=full),
    )


def _cards() -> tuple[Panel, ...]:
    wanted = (
        ("Card utilization", "gpu:busy:ratio", "percentunit", 1),
        ("Card memory usage", "gpu:memory_used:ratio", "percentunit", 1),
        ("Card power", "gpu:power_watts:max", "watt", None),
        ("Margin to temperature limit", "gpu:temperature_margin_celsius:min", "celsius", None),
    )
    return tuple(
        Panel(title, (gauge(name, ON_NODE, CARD),), unit, width=6, maximum=most, empty="no card")
        for title, name, unit, most in wanted
    )
