"""Our own lint: clean on what we make, and a sentence for each thing that can be wrong with it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cadenza.observe.bundle import write
from cadenza.observe.lint import COLUMNS, all_panels, fill_variables, lint, lint_dashboard
from cadenza.observe.settings import Settings
from cadenza.observe.shipped import DASHBOARDS, read_dashboard, recorded_names
from cadenza.telemetry.families import FAMILIES

# Units by Grafana's names (packages/grafana-data/src/valueFormats/categories.ts).
UNITS = {
    *("short", "s", "percentunit", "bytes", "Bps", "watt", "joule", "celsius", "hertz", "rotrpm", "reqps"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Settings(), tmp_path)
    return tmp_path


def test_a_bundle_as_made_is_clean(folder: Path) -> None:
    assert lint(folder) == []


def test_a_job_under_another_name_is_told(folder: Path) -> None:
    """An alert on it would never fire, and never err."""
    file = folder / "prometheus.yml"
    text = file.read_text(encoding="utf-8")
    assert "job_name: engine" in text
    file.write_text(text.replace("job_name: engine", "job_name: vllm"), encoding="utf-8")
    told = "prometheus.yml has no job engine, only exporter, prometheus, vllm: it would match nothing"
    assert lint(folder) == [f"rules/alerts.yml: {name}: {told}" for name in ("EngineDown", "EngineMetricsMissing")]


def test_recording_rules_that_are_missing_are_told_once(folder: Path) -> None:
    (folder / "rules" / "recording.yml").unlink()
    assert lint(folder) == [f"rules/recording.yml is missing: run `cadenza observe init {folder}`"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_in_the_classic_model(name: str) -> None:
    dashboard = read_dashboard(name)
    assert dashboard["schemaVersion"] == 39
    assert dashboard["id"] is None
    assert dashboard["uid"] == f"cadenza-{name}"
    assert dashboard["templating"]["list"][0] == {
        **dashboard["templating"]["list"][0],
        "type": "datasource",
        "name": "datasource",
        "query": "prometheus",
    }
    assert dashboard["annotations"]["list"][0]["name"] == "Load"
    assert lint_dashboard(dashboard, recorded_names()) == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_lines_of_24_columns_and_have_units_that_grafana_knows(name: str) -> None:
    lines: dict[int, int] = {}
    for panel in all_panels(read_dashboard(name)):
        place = panel["gridPos"]
        lines[place["y"]] = lines.get(place["y"], 0) + place["w"]
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
            assert panel["fieldConfig"]["defaults"]["noValue"]
    assert set(lines.values()) == {COLUMNS}


def test_the_cards_have_a_row_each() -> None:
    rows = [panel for panel in read_dashboard("gpu")["panels"] if panel["type"] == "row"]
    assert rows[0]["repeat"] == "gpu"
    assert [row.get("repeat") for row in rows[1:]] == [None] * (len(rows) - 1)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_runs_are_marked_by_name_with_labels_that_their_series_has(name: str) -> None:
    """Grafana writes a label's name in place of a label that is not there."""
    (note,) = [one for one in read_dashboard(name)["annotations"]["list"] if one["name"] == "Runs"]
    assert note["titleFormat"] == "{{run}}"
    used = set(re.findall(r"{{(\w+)}}", note["titleFormat"] + note["textFormat"]))
    assert {"model", "load"} <= used <= {"node", *FAMILIES["cadenza_run_info"].labels}
    assert used <= set(re.split(r"\W+", note["expr"]))
    assert note["expr"] == note["target"]["expr"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_what_idles_comes_last_in_the_legends(name: str) -> None:
    """`Last *` is what Grafana calls the column of lastNotNull (transformations/fieldReducer.ts)."""
    graphs = [panel for panel in all_panels(read_dashboard(name)) if panel["type"] == "timeseries"]
    assert graphs
    for panel in graphs:
        legend = panel["options"]["legend"]
        assert (legend["displayMode"], legend["sortBy"], legend["sortDesc"]) == ("table", "Last *", True)
        assert "lastNotNull" in legend["calcs"]


def first_panel(dashboard: dict[str, Any]) -> dict[str, Any]:
    return next(panel for panel in dashboard["panels"] if panel["type"] != "row")


def set_panel(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda dashboard: first_panel(dashboard).__setitem__(key, value)


def set_target(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda dashboard: first_panel(dashboard)["targets"][0].__setitem__(key, value)


def set_top(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda dashboard: dashboard.__setitem__(key, value)


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (set_top("id", 7), "id is not null"),
        (set_top("uid", "x" * 41), "uid"),
        (set_top("schemaVersion", None), "schemaVersion"),
        (set_top("__inputs", []), "__inputs"),
        (set_top("apiVersion", "dashboard.grafana.app/v2"), "classic"),
        (set_top("templating", {"list": []}), "variable `datasource`"),
        (set_panel("id", 1), "ids are not distinct"),
        (set_panel("gridPos", {"x": 20, "y": 1, "w": 8, "h": 4}), "within the 24 columns"),
        (set_panel("gridPos", {"x": 3, "y": 1, "w": 3, "h": 4}), "overlaps"),
        (set_panel("gridPos", None), "has no gridPos"),
        (set_panel("targets", []), "has no query"),
        (set_panel("datasource", {"type": "prometheus", "uid": "abc"}), "data source is not"),
        (set_panel("fieldConfig", {"defaults": {}}), "has no unit"),
        (set_target("expr", "vllm:gpu_cache_usage_factor"), "never existed"),
        (set_target("expr", "rate(vllm:generation_tokens_total[1m])"), "$__rate_interval"),
        (
            set_panel("fieldConfig", {"defaults": {"unit": "s", "thresholds": {"steps": [{"value": 0}]}}}),
            "first threshold",
        ),
    ],
)
def test_what_is_wrong_with_a_dashboard_is_told(spoil: Callable[[dict[str, Any]], None], part: str) -> None:
    dashboard = read_dashboard("cluster")
    spoil(dashboard)
    told = lint_dashboard(dashboard, recorded_names())
    assert any(part in sentence for sentence in told), told


@pytest.mark.parametrize(
    ("file", "text", "part"),
    [
        ("prometheus.yml", "a: [", "prometheus.yml, line 1: no YAML"),
        ("alertmanager.yml", "a: {b", "alertmanager.yml, line 1: no YAML"),
        ("rules/mine.yml", "groups: [{name: g, rules: [{record: x, expr: nothing_known}]}]", "is not exported by"),
        (
            "rules/mine.yml",
            "groups: [{name: g, rules: [{alert: A, expr: up == 0, labels: {severity: page}}]}]",
            "severity is none of",
        ),
        ("rules/mine.yml", "groups: [{name: g, rules: [{alert: A, expr: up}]}]", "no summary"),
        ("rules/mine.yml", "[1, 2", "no YAML"),
        ("grafana/dashboards/mine.json", "{", "no JSON"),
        ("grafana/dashboards/mine.json", "[]", "no dashboard"),
        ("grafana/dashboards/mine.json", "[" * 100_000, "no JSON"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_name(folder: Path, file: str, text: str, part: str) -> None:
    (folder / file).write_text(text, encoding="utf-8")
    told = lint(folder)
    assert any(part in sentence and file in sentence for sentence in told), told


def test_a_missing_file_is_told(folder: Path) -> None:
    (folder / "rules" / "alerts.yml").unlink()
    assert [sentence for sentence in lint(folder) if sentence.startswith("rules/alerts.yml is missing")]


def test_rules_of_one_s_own_may_use_what_the_bundle_records(folder: Path) -> None:
    rules = {"groups": [{"name": "g", "rules": [{"record": "a:b:c", "expr": "max(gpu:busy:ratio)"}]}]}
    (folder / "rules" / "mine.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    assert lint(folder) == []


def test_variables_are_filled_as_grafana_does() -> None:
    filled = fill_variables('rate(a{node=~"$node",model_name=~"$model"}[$__rate_interval]) * $__range_s offset $ago')
    assert filled == 'rate(a{node=~".*",model_name=~".*"}[1m]) * 900 offset 1h'
    for name in DASHBOARDS:
        for panel in all_panels(read_dashboard(name)):
            for target in panel.get("targets", ()):
                assert "$" not in fill_variables(target["expr"])
