"""The files of a bundle: shipped under data/ as they are for the default settings, with what differs filled in.

Values are replaced in the parsed file. A file in which none differs is copied as it is; of the others only the comment
at the top is kept.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from cadenza.observe.settings import Settings, Target, read_engine
from cadenza.observe.yaml_text import render

# Where the shipped files have the bundle.
FOLDER = "/srv/cadenza-observe"
SLO_ALERT = "EngineFirstTokenLate"
DASHBOARDS = ("cluster", "engine", "gpu", "runs")

_DATA = resources.files("cadenza.observe") / "data"
_DEFAULTS = Settings()
_YAML = (
    *("prometheus.yml", "rules/recording.yml", "rules/alerts.yml", "rules/tests.yml", "alertmanager.yml"),
    *("compose.yml", "grafana/provisioning/datasources/cadenza.yml", "grafana/provisioning/dashboards/cadenza.yml"),
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def lay_out(settings: Settings, folder: Path) -> dict[str, str]:
    """The text of every file, by its path within the bundle. `folder`: where it will lie, for Grafana to find it."""
    files = {name: _fill_yaml(name, settings, folder) for name in _YAML}
    files["README.md"] = _fill_readme(settings, folder)
    return files | {name: read_text(name) for name in map(dashboard_path, DASHBOARDS)}


def read_text(name: str) -> str:
    """A shipped file, by its path within the bundle."""
    return (_DATA / name).read_text(encoding="utf-8")


def read_yaml(name: str, settings: Settings = _DEFAULTS, folder: Path = Path(FOLDER)) -> Any:
    """The values of a shipped YAML file, filled in."""
    # Only what `_load` cached is shared: filling makes new values.
    return _FILL.get(name, _fill_addresses)(_load(name), settings, folder)


def dashboard_path(name: str) -> str:
    """The path of a dashboard within the bundle."""
    return f"grafana/dashboards/{name}.json"


def read_dashboard(name: str) -> dict[str, Any]:
    """A shipped dashboard, one of DASHBOARDS."""
    dashboard: dict[str, Any] = json.loads(read_text(dashboard_path(name)))
    return dashboard


def rules_of(file: Any) -> Iterator[dict[str, Any]]:
    """The rules of a rule file's values, group by group."""
    for group in file["groups"]:
        yield from group["rules"]


@cache
def recorded_names() -> frozenset[str]:
    """The names that the shipped recording rules make."""
    return frozenset(rule["record"] for rule in rules_of(_load("rules/recording.yml")))


@cache
def _load(name: str) -> Any:
    return yaml.load(read_text(name), _LOADER)


def _fill_yaml(name: str, settings: Settings, folder: Path) -> str:
    text = read_text(name)
    filled = read_yaml(name, settings, folder)
    if filled == _load(name):
        return text
    head = "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))
    return head + render(filled, "")


def substitute(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with `change` applied to every text in it but the keys."""
    if isinstance(value, dict):
        return {key: substitute(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [substitute(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


def _replace(text: str, values: Mapping[str, str]) -> str:
    """All keys at once: a value that holds another key stays as it is."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], text)


def _fill_addresses(value: Any, settings: Settings, folder: Path) -> Any:
    values = {
        FOLDER: str(folder),
        _DEFAULTS.prometheus: settings.prometheus,
        _DEFAULTS.alertmanager: settings.alertmanager,
    }
    return substitute(value, lambda text: _replace(text, values))


def _fill_prometheus(value: Any, settings: Settings, folder: Path) -> Any:
    filled = _fill_addresses(value, settings, folder)
    targets = {
        "engine": [_engine(read_engine(url)) for url in settings.engines],
        "exporter": [{"targets": list(settings.exporters)}],
    }
    for job in filled["scrape_configs"]:
        job["static_configs"] = targets.get(job["job_name"], job["static_configs"])
    return filled


def _engine(target: Target) -> dict[str, object]:
    labels = {}
    if target.scheme != "http":
        labels["__scheme__"] = target.scheme
    if target.path != "/metrics":
        labels["__metrics_path__"] = target.path
        labels["instance"] = target.instance
    return {"targets": [target.address]} | ({"labels": labels} if labels else {})


def _fill_slo(value: Any, settings: Settings, _: Path) -> Any:
    """The alert on the SLO with the settings' one."""
    filled = substitute(value, str)
    for rule in rules_of(filled):
        if rule["alert"] == SLO_ALERT:
            rule["expr"] = rule["expr"].removesuffix(f"{_DEFAULTS.slo_ttft_p99_s:g}") + f"{settings.slo_ttft_p99_s:g}"
            rule["annotations"] = substitute(rule["annotations"], lambda text: _slo_text(text, settings))
    return filled


def _fill_slo_tests(value: Any, settings: Settings, _: Path) -> Any:
    """The tests of that alert, with buckets and values at the same multiples of the settings' SLO."""
    scale = settings.slo_ttft_p99_s / _DEFAULTS.slo_ttft_p99_s

    def change(text: str) -> str:
        text = re.sub(r'(?<=,le=")[\d.]+', lambda match: f"{float(match[0]) * scale:g}", text)
        text = re.sub(r"(?<=token is )[\d.]+", lambda match: f"{float(match[0]) * scale:.2f}", text)
        return _slo_text(text, settings)

    filled = substitute(value, str)
    for test in filled["tests"]:
        if any(one["alertname"] == SLO_ALERT for one in test.get("alert_rule_test", ())):
            test.update(substitute(test, change))
    return filled


def _slo_text(text: str, settings: Settings) -> str:
    return text.replace(f"SLO {_DEFAULTS.slo_ttft_p99_s:g} s", f"SLO {settings.slo_ttft_p99_s:g} s")


_FILL: Mapping[str, Callable[[Any, Settings, Path], Any]] = {
    "prometheus.yml": _fill_prometheus,
    "rules/alerts.yml": _fill_slo,
    "rules/tests.yml": _fill_slo_tests,
}


def _fill_readme(settings: Settings, folder: Path) -> str:
    rows = "\n".join(
        f"| {rule['alert']} | {rule['labels']['severity']} | {rule['for']} | {_plain(rule['annotations']['summary'])} |"
        for rule in rules_of(_load("rules/alerts.yml"))
    )
    values = {
        "{engines}": " ".join(settings.engines),
        "{exporters}": " ".join(settings.exporters),
        "{prometheus}": settings.prometheus,
        "{alertmanager}": settings.alertmanager,
        "{folder}": str(folder),
        "{quoted}": shlex.quote(str(folder)),
        "{alerts}": rows,
        "{slo}": f"{settings.slo_ttft_p99_s:g}",
    }
    return _replace(read_text("README.md"), values)


def _plain(template: str) -> str:
    return template.replace("{{ $labels.", "<").replace(" }}", ">")
