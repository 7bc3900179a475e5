"""Checks of a bundle that need no other program: files present and readable, known metric names, valid dashboards."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cadenza.observe.names import find_wrong_names
from cadenza.observe.shipped import recorded_names

NEEDED = ("prometheus.yml", "rules/recording.yml", "rules/alerts.yml")
# Of Grafana's grid.
COLUMNS = 24
_UID_LENGTH = 40
_JOB = re.compile(r'\bjob="([^"]*)"')
SEVERITIES = ("critical", "warning", "info")


def lint(folder: Path) -> list[str]:
    """A sentence for each defect of the bundle in `folder`, file by file."""
    wrong = [
        f"{name} is missing: run `cadenza observe init {folder}`" for name in NEEDED if not (folder / name).is_file()
    ]
    rules: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / "rules").glob("*.yml")):
        name = f"rules/{path.name}"
        if path.name != "tests.yml":
            rules[name] = list(_rules(path, name, wrong))
    recorded = frozenset(str(rule["record"]) for group in rules.values() for rule in group if "record" in rule)
    if not rules.get("rules/recording.yml"):
        # Reported once, not for every panel as well.
        recorded |= recorded_names()
    jobs = _jobs(folder / "prometheus.yml", wrong)
    for name, group in rules.items():
        for rule in group:
            wrong += _lint_rule(name, rule, recorded, jobs)
    for path in sorted((folder / "grafana" / "dashboards").glob("*.json")):
        wrong += lint_dashboard_file(path, f"grafana/dashboards/{path.name}", recorded)
    for path in [folder / "alertmanager.yml", *sorted(folder.glob("grafana/provisioning/*/*.yml"))]:
        if path.is_file():
            read_yaml(path, str(path.relative_to(folder)), wrong)
    return wrong


def read_yaml(path: Path, name: str, wrong: list[str]) -> Any:
    """The file's values; None, with a sentence in `wrong`, if it is no YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        wrong.append(f"{name} cannot be read: {error.strerror}")
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark is not None else ""
        wrong.append(f"{name}{at}: no YAML: {getattr(error, 'problem', None) or 'not UTF-8, or nested too deeply'}")
    return None


def _rules(path: Path, name: str, wrong: list[str]) -> Iterator[dict[str, Any]]:
    value = read_yaml(path, name, wrong)
    groups = value.get("groups") if isinstance(value, dict) else None
    for group in groups if isinstance(groups, list) else ():
        rules = group.get("rules") if isinstance(group, dict) else None
        yield from (rule for rule in (rules if isinstance(rules, list) else ()) if isinstance(rule, dict))


def _jobs(path: Path, wrong: list[str]) -> frozenset[str]:
    """The names of prometheus.yml's jobs; none where it cannot be read."""
    config = read_yaml(path, path.name, wrong) if path.is_file() else None
    return frozenset(str(job["job_name"]) for job in _items(config, "scrape_configs") if "job_name" in job)


def _lint_rule(name: str, rule: dict[str, Any], recorded: frozenset[str], jobs: frozenset[str]) -> list[str]:
    what = str(rule.get("alert") or rule.get("record") or "a rule without a name")
    wrong = find_wrong_names(str(rule.get("expr", "")), recorded)
    for job in dict.fromkeys(_JOB.findall(str(rule.get("expr", "")))):
        if jobs and job not in jobs:
            wrong.append(f"prometheus.yml has no job {job}, only {', '.join(sorted(jobs))}: it would match nothing")
    if "alert" in rule:
        labels, texts = rule.get("labels") or {}, rule.get("annotations") or {}
        if labels.get("severity") not in SEVERITIES:
            wrong.append(f"its severity is none of {', '.join(SEVERITIES)}, which alertmanager.yml routes")
        wrong += [f"it has no {text}" for text in ("summary", "description", "runbook") if not texts.get(text)]
        if "for" not in rule:
            wrong.append("it has no `for`: use 0s to fire at once")
    return [f"{name}: {what}: {sentence}" for sentence in wrong]


def lint_dashboard_file(path: Path, name: str, recorded: frozenset[str]) -> list[str]:
    try:
        dashboard = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return [f"{name}: no JSON: {error}"]
    if not isinstance(dashboard, dict):
        return [f"{name}: no dashboard"]
    return [f"{name}: {sentence}" for sentence in lint_dashboard(dashboard, recorded)]


def lint_dashboard(dashboard: dict[str, Any], recorded: frozenset[str]) -> list[str]:
    """What Grafana would reject, show no data for, or show wrongly, in the classic model."""
    wrong = []
    if "apiVersion" in dashboard or "spec" in dashboard:
        return ["a resource, not the classic model: Grafana 10 to 13 do not all provision it from files"]
    if dashboard.get("id") is not None:
        wrong.append("its id is not null: it would overwrite another dashboard")
    uid = dashboard.get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= _UID_LENGTH:
        wrong.append(f"its uid is not a text of 1 to {_UID_LENGTH} characters: links to it would break")
    if not isinstance(dashboard.get("schemaVersion"), int):
        wrong.append("it has no schemaVersion")
    if "__inputs" in dashboard:
        wrong.append("it has __inputs (an export for sharing): its data source would be missing when provisioned")
    variables = _items(dashboard.get("templating"), "list")
    if not any(variable.get("type") == "datasource" and variable.get("name") == "datasource" for variable in variables):
        wrong.append("it has no variable `datasource`: it would use the data source of its author")
    for variable in variables:
        if (query := _definition(variable)) and (inner := query.partition("(")[2].rpartition(",")[0]):
            wrong += [f"variable {variable.get('name')}: {sentence}" for sentence in find_wrong_names(inner, recorded)]
    for note in _items(dashboard.get("annotations"), "list"):
        if isinstance(note.get("expr"), str):
            wrong += [f"annotation {note.get('name')}: {s}" for s in find_wrong_names(note["expr"], recorded)]
    panels = list(all_panels(dashboard))
    ids = [panel.get("id") for panel in panels]
    if len(ids) != len(set(map(str, ids))) or not all(isinstance(number, int) for number in ids):
        wrong.append("its panels' ids are not distinct integers")
    # Panels of a collapsed row overlap those below it until it opens.
    for group in (_items(dashboard, "panels"), *(_items(panel, "panels") for panel in panels)):
        wrong += _lint_places(group)
    for panel in panels:
        if panel.get("type") != "row":
            wrong += [f"panel {panel.get('title')!r}: {sentence}" for sentence in _lint_panel(panel, recorded)]
    return wrong


def all_panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, including rows and the panels of collapsed rows."""
    for panel in _items(dashboard, "panels"):
        yield panel
        yield from _items(panel, "panels")


def _items(value: Any, key: str) -> list[dict[str, Any]]:
    items = value.get(key) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _definition(variable: dict[str, Any]) -> str:
    definition = variable.get("definition")
    return definition if variable.get("type") == "query" and isinstance(definition, str) else ""


def _lint_panel(panel: dict[str, Any], recorded: frozenset[str]) -> list[str]:
    wrong = []
    targets = _items(panel, "targets")
    if not targets:
        wrong.append("it has no query")
    for target in [panel, *targets]:
        source = target.get("datasource")
        if not isinstance(source, dict) or source.get("uid") != "${datasource}":
            wrong.append("its data source is not ${datasource}")
            break
    for target in targets:
        expression = str(target.get("expr", ""))
        wrong += find_wrong_names(expression, recorded)
        if any(f"{function}(" in expression for function in ("rate", "increase")) and "$__" not in expression:
            wrong.append("a rate over a fixed window: use [$__rate_interval], which follows zoom and scrape interval")
    defaults = panel.get("fieldConfig")
    defaults = defaults.get("defaults") if isinstance(defaults, dict) else None
    if not isinstance(defaults, dict) or not defaults.get("unit"):
        wrong.append("it has no unit")
    else:
        steps = _items(defaults.get("thresholds"), "steps")
        if steps and steps[0].get("value") is not None:
            wrong.append("its first threshold step must have the value null")
    return wrong


def _lint_places(panels: list[dict[str, Any]]) -> list[str]:
    """Panels within 24 columns, without overlap."""
    wrong = []
    taken: dict[tuple[int, int], Any] = {}
    for panel in panels:
        title = panel.get("title")
        place = panel.get("gridPos")
        sides = [place.get(side) for side in "xywh"] if isinstance(place, dict) else []
        if len(sides) != 4 or not all(isinstance(side, int) and 0 <= side < 10_000 for side in sides):
            wrong.append(f"panel {title!r} has no gridPos with x, y, w, h")
            continue
        x, y, width, height = (int(side) for side in sides)  # type: ignore[arg-type]
        if x + width > COLUMNS or not width or not height:
            wrong.append(f"panel {title!r} is not within the {COLUMNS} columns")
            continue
        cells = [(column, line) for column in range(x, x + width) for line in range(y, y + min(height, 200))]
        if other := next((taken[cell] for cell in cells if cell in taken), None):
            wrong.append(f"panel {title!r} overlaps {other!r}")
        taken.update(dict.fromkeys(cells, title))
    return wrong


def expressions(folder: Path) -> list[tuple[str, str]]:
    """(where, PromQL) of every query in the dashboards, with Grafana's variables filled in.

    A dashboard that is no JSON is skipped: `lint` reports it.
    """
    queries = []
    for path in sorted((folder / "grafana" / "dashboards").glob("*.json")):
        try:
            dashboard = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        for panel in all_panels(dashboard if isinstance(dashboard, dict) else {}):
            for target in _items(panel, "targets"):
                where = f"{path.name}: {panel.get('title')} ({target.get('refId')})"
                queries.append((where, fill_variables(str(target.get("expr", "")))))
    return queries


def fill_variables(expression: str, ago: str = "1h", window: str = "1m", span_s: int = 900) -> str:
    """The expression as Grafana would send it, with `All` selected in every variable."""
    values = {
        "$__rate_interval": window,
        "$__range_s": str(span_s),
        "$__range": f"{span_s}s",
        "$__interval": window,
        "$ago": ago,
    }
    for name, value in values.items():
        expression = expression.replace(name, value)
    for name in ("node", "instance", "model", "gpu"):
        expression = expression.replace(f"${name}", ".*")
    return expression
