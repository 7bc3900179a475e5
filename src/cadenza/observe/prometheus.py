"""prometheus.yml: who is scraped, every second, and how the series of one machine find each other."""

from cadenza.observe.settings import Settings, Target, read_engine

SCRAPE_INTERVAL_S = 1
EVALUATION_INTERVAL_S = 5
RULE_FILES = ("rules/recording.yml", "rules/alerts.yml")

# The exporter's port and the engine's differ, so `instance` never matches between them; `node` is the host alone.
# The later rule wins: the names of this machine are one.
_NODE = [
    {
        "source_labels": ["__address__"],
        "regex": r"(.*):\d+",
        "target_label": "node",
        "replacement": "$1",
    },
    {
        "source_labels": ["__address__"],
        "regex": r"(localhost|127\.[\d.]+|\[::1\]|host\.docker\.internal):\d+",
        "target_label": "node",
        "replacement": "localhost",
    },
]


def prometheus_config(settings: Settings) -> dict[str, object]:
    """prometheus.yml as plain values."""
    return {
        "global": {"evaluation_interval": f"{EVALUATION_INTERVAL_S}s"},
        "rule_files": list(RULE_FILES),
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [settings.alertmanager]}]}]},
        "scrape_configs": [
            _job("engine", [_engine(read_engine(url)) for url in settings.engines]),
            _job("exporter", [{"targets": list(settings.exporters)}]),
            _job("prometheus", [{"targets": [settings.prometheus]}]),
        ],
    }


def _job(name: str, targets: list[dict[str, object]]) -> dict[str, object]:
    # The interval stands in the job, so that it comes along where a job is copied.
    interval = f"{SCRAPE_INTERVAL_S}s"
    return {
        "job_name": name,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": targets,
        "relabel_configs": _NODE,
    }


def _engine(target: Target) -> dict[str, object]:
    labels = {}
    if target.scheme != "http":
        labels["__scheme__"] = target.scheme
    if target.path != "/metrics":
        labels["__metrics_path__"] = target.path
        labels["instance"] = target.instance
    return {"targets": [target.address]} | ({"labels": labels} if labels else {})
