"""Every dashboard against Grafana's own types, which its SDK has as classes: keys and values that it does not know.

It is not Grafana, and says nothing about what a panel looks like.
"""

import copy
import enum
import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from cadenza.observe.lint import all_panels
from cadenza.observe.shipped import DASHBOARDS, read_dashboard

_WHY = "Grafana's types are not installed: pip install -e '.[dev]'"
classic = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=_WHY)
encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason=_WHY)
# Without them, the options of a panel would be taken as they come.
pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=_WHY).register_default_plugins()

Json = dict[str, Any]


def find_wrong(dashboard: Json) -> list[str]:
    """A sentence for each key that does not come back from Grafana's classes, and each value that is none of theirs."""
    model = classic.Dashboard.from_json(copy.deepcopy(dashboard))
    return [*lost(dashboard, to_json(model), ""), *wrong_fields(model, "")]


def to_json(model: Any) -> Any:
    return json.loads(encoder.JSONEncoder().encode(model))


def lost(before: Any, after: Any, at: str) -> Iterator[str]:
    """What is in `before` and not so in `after`. A key with null and none at all are one."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{at}.{key}")
            elif value is not None:
                yield f"{at}.{key} is not known"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{at}[{number}]")
    elif before != after or type(before) is not type(after):
        yield f"{at} came back as {after!r}, not {before!r}"


def wrong_fields(model: Any, at: str) -> Iterator[str]:
    """Fields whose values are none of their annotation's: the classes take what they are given."""
    for name, hint in typing.get_type_hints(type(model)).items():
        yield from wrong_value(getattr(model, name), hint, f"{at}.{name}")


def wrong_value(value: Any, hint: Any, at: str) -> Iterator[str]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(value, "to_json"):
        yield from wrong_fields(value, at)
    elif origin is typing.Union:
        # Of several that it may be, the one that fits best.
        yield from min((list(wrong_value(value, one, at)) for one in inner), key=len)
    elif origin is list and isinstance(value, list):
        for number, one in enumerate(value):
            yield from wrong_value(one, inner[0], f"{at}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, one in value.items():
            yield from wrong_value(one, inner[1], f"{at}.{key}")
    elif isinstance(value, dict) and hasattr(hint, "from_json"):
        # Kept by its parent as it was.
        model = hint.from_json(value)
        yield from lost(value, to_json(model), at)
        yield from wrong_fields(model, at)
    elif not _is_one(value, hint, inner):
        yield f"{at} is {value!r}, not {hint}"


def _is_one(value: Any, hint: Any, inner: tuple[Any, ...]) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in inner
    if typing.get_origin(hint) is not None or hint in (Any, object):
        return hint in (Any, object)
    if issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_every_key_and_value_of_a_dashboard(name: str) -> None:
    assert find_wrong(read_dashboard(name)) == []


def panel(dashboard: Json, kind: str) -> Json:
    return next(one for one in all_panels(dashboard) if one["type"] == kind)


KINDS = {"cluster": ("stat", "table", "timeseries"), "engine": ("heatmap",), "gpu": ("state-timeline",)}
PLACES: dict[str, tuple[str, typing.Callable[[Json], Any]]] = {
    "the dashboard": ("cluster", lambda d: d),
    "a row": ("cluster", lambda d: panel(d, "row")),
    "a link": ("cluster", lambda d: d["links"][0]),
    "an annotation": ("cluster", lambda d: d["annotations"]["list"][0]),
    "an annotation's query": ("cluster", lambda d: d["annotations"]["list"][0]["target"]),
    "a variable": ("cluster", lambda d: d["templating"]["list"][1]),
    "a place": ("cluster", lambda d: panel(d, "stat")["gridPos"]),
    "a query": ("cluster", lambda d: panel(d, "stat")["targets"][0]),
    "a field's defaults": ("cluster", lambda d: panel(d, "stat")["fieldConfig"]["defaults"]),
    "a threshold": ("cluster", lambda d: panel(d, "stat")["fieldConfig"]["defaults"]["thresholds"]["steps"][0]),
    "a graph's lines": ("cluster", lambda d: panel(d, "timeseries")["fieldConfig"]["defaults"]["custom"]),
    "a graph's legend": ("cluster", lambda d: panel(d, "timeseries")["options"]["legend"]),
    "a figure's choice": ("cluster", lambda d: panel(d, "stat")["options"]["reduceOptions"]),
    "a table's columns": ("cluster", lambda d: panel(d, "table")["transformations"][0]),
    "a heatmap's colours": ("engine", lambda d: panel(d, "heatmap")["options"]["color"]),
}


def options_of(kind: str) -> typing.Callable[[Json], Any]:
    return lambda dashboard: panel(dashboard, kind)["options"]


PLACES |= {f"the options of a {kind}": (name, options_of(kind)) for name, kinds in KINDS.items() for kind in kinds}


@pytest.mark.parametrize("place", PLACES)
def test_a_key_that_grafana_does_not_know_is_told(place: str) -> None:
    name, find = PLACES[place]
    dashboard = read_dashboard(name)
    find(dashboard)["misspelt"] = 1
    assert [sentence for sentence in find_wrong(dashboard) if "misspelt is not known" in sentence]


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("the dashboard", "graphTooltip", 3),
        ("the dashboard", "tags", ["cadenza", 1]),
        ("the dashboard", "editable", 1),
        ("a variable", "refresh", 3),
        ("a variable", "sort", "1"),
        ("a place", "w", "8"),
        ("a query", "instant", "yes"),
        ("a graph's lines", "drawStyle", "lines"),
        ("a graph's lines", "showPoints", "no"),
        ("a graph's legend", "displayMode", "tables"),
        ("a graph's legend", "calcs", "mean"),
        ("the options of a stat", "colorMode", "text"),
        ("the options of a table", "cellHeight", "small"),
        ("a table's columns", "topic", "rows"),
    ],
)
def test_a_value_that_grafana_does_not_take_is_told(place: str, key: str, value: object) -> None:
    name, find = PLACES[place]
    dashboard = read_dashboard(name)
    find(dashboard)[key] = value
    assert find_wrong(dashboard) != []
