"""Grafana: panels and dashboards in the classic model (which Grafana 10 to 13 provision from files)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]

COLUMNS = 24
SCHEMA_VERSION = 39
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """`legend`: may contain {{label}}; in a table the column's name, with its `unit`; `instant`: not over time."""

    expr: str
    legend: str = ""
    instant: bool = False
    unit: str = ""


class Panel(NamedTuple):
    """`type` timeseries, stat, table, heatmap or state-timeline.

    steps  from which value on which colour; below the first: green
    empty  the text where there is no data
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    type: str = "timeseries"
    width: int = 8
    height: int = 8
    description: str = ""
    steps: tuple[tuple[float, str], ...] = ()
    maximum: float | None = None
    empty: str = "no traffic"
    stacked: bool = False


class Section(NamedTuple):
    """A row and its panels; `repeat`: once per value of this variable."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""
    collapsed: bool = False


def variable(name: str, label: str, query: str) -> Json:
    """A multi-select of label values, all by default; `All` includes series without the label."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
    }


def text_variable(name: str, label: str, value: str) -> Json:
    option = {"selected": True, "text": value, "value": value}
    return {"type": "textbox", "name": name, "label": label, "query": value, "current": option, "options": [option]}


def annotation(name: str, expr: str, text: str, colour: str, title: str = "") -> Json:
    """A region for as long as a series of `expr` is above 0. `title`: may contain {{label}}; default `name`.

    Grafana shows a label's name where a series has no such label.
    """
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "step": "5s",
        "titleFormat": title or name,
        "textFormat": text,
        "target": {"expr": expr, "refId": "Anno", "interval": "5s"},
    }


def dashboard(
    uid: str,
    title: str,
    description: str,
    sections: Sequence[Section],
    variables: Sequence[Json],
    notes: Sequence[Json],
) -> Json:
    """A dashboard; panels are placed left to right, on a new line where the next does not fit."""
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["cadenza"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "timepicker": {"refresh_intervals": ["1s", "5s", "10s", "30s", "1m", "5m"]},
        "links": [
            {
                "type": "dashboards",
                "title": "cadenza",
                "tags": ["cadenza"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "annotations": {"list": list(notes)},
        "templating": {"list": [_datasource_variable(), *variables]},
        "panels": _lay_out(sections),
    }


def _datasource_variable() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
    }


def _lay_out(sections: Sequence[Section]) -> list[Json]:
    panels: list[Json] = []
    number = y = 0
    for section in sections:
        number += 1
        row: Json = {
            "id": number,
            "type": "row",
            "title": section.title,
            "collapsed": section.collapsed,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        if section.repeat:
            row["repeat"] = section.repeat
        y += 1
        x = line = 0
        below: list[Json] = []
        for panel in section.panels:
            number += 1
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            below.append(_panel(panel, number, x, y))
            x, line = x + panel.width, max(line, panel.height)
        y += line
        panels.append(row)
        # Grafana keeps the panels of a collapsed row inside it, those of an open row after it.
        row["panels"] = below if section.collapsed else []
        panels += [] if section.collapsed else below
    return panels


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    return {
        "id": number,
        "type": panel.type,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [_target(query, chr(ord("A") + i), panel.type) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    } | ({"transformations": _TABLE} if panel.type == "table" else {})


def _target(query: Query, ref: str, panel: str) -> Json:
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "range": not query.instant,
        "instant": query.instant,
        "format": panel if panel in ("table", "heatmap") else "time_series",
    }


def _defaults(panel: Panel) -> Json:
    steps = [{"color": "green", "value": None}, *({"color": c, "value": v} for v, c in panel.steps)]
    defaults: Json = {
        "unit": panel.unit,
        "noValue": panel.empty,
        "color": {"mode": "thresholds" if panel.type in ("stat", "state-timeline") else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        # PromQL returns NaN for 0 / 0.
        "mappings": [{"type": "special", "options": {"match": "nan", "result": {"text": panel.empty, "index": 0}}}],
    }
    if panel.unit != "celsius":
        defaults["min"] = 0
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.type == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            # Fill stacked or single curves only: areas of crossing curves hide each other.
            "fillOpacity": 30 if panel.stacked else 10 if len(panel.queries) == 1 else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.steps else "off"},
        }
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    """Names and units of a table's value columns."""
    if panel.type != "table":
        return []
    alone = len(panel.queries) == 1
    return [
        {
            "matcher": {"id": "byName", "options": "Value" if alone else f"Value #{chr(ord('A') + i)}"},
            "properties": [
                {"id": "displayName", "value": query.legend},
                {"id": "unit", "value": query.unit or panel.unit},
            ],
        }
        for i, query in enumerate(panel.queries)
    ]


def _options(panel: Panel) -> Json:
    if panel.type == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
        }
    if panel.type == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    if panel.type == "heatmap":
        return {"calculate": False, "yAxis": {"unit": panel.unit}, "cellGap": 0, "color": {"scheme": "Blues"}}
    legend = {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": ["mean", "max", "lastNotNull"],
        # By the last value: idle models and cards come last.
        "sortBy": "Last *",
        "sortDesc": True,
    }
    if panel.type == "state-timeline":
        names = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        return {"mergeValues": True, "showValue": "never", "legend": names}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


_TABLE = [
    {"id": "merge", "options": {}},
    {"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True, "job": True}}},
]
