"""The alerts: the published six with their thresholds, names that exist, and what every alert must tell."""

import csv
import re
from pathlib import Path

import pytest

from cadenza.observe.alerts import LOST, TROUBLE, Alert, alert_rules, alerts
from cadenza.observe.cases import cases
from cadenza.observe.names import find_uses, find_wrong_names
from cadenza.observe.rules import GROUPS, RECORDED
from cadenza.telemetry.kernel.patterns import KINDS

ARTICLE = Path(__file__).parents[1] / "data" / "article" / "alerts.csv"
ALL = alerts()
# What the article's six say, in names that exist. Percentages are ratios here.
NAMES = (
    "amdgpu_busy_ratio",
    "amdgpu_memory_used_bytes",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
)


def threshold(text: str) -> tuple[str, float]:
    """`> 98 % for 5 min` → (">", 0.98)."""
    found = re.match(r"([<>]) ([0-9.]+)( %)?", text)
    assert found is not None
    return found[1], float(found[2]) / (100 if found[3] else 1)


@pytest.mark.parametrize("row", range(6))
def test_each_of_the_published_six_is_there_with_its_threshold(row: int) -> None:
    with ARTICLE.open(encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    assert len(published) == 6
    (alert,) = [alert for alert in ALL if alert.article == row]
    sign, value = threshold(published[row]["threshold"])
    assert f"{sign} {value:g}" in alert.expr.splitlines()[0] + alert.expr.splitlines()[-1]
    assert NAMES[row] in {use.name for use in find_uses(alert.expr)}
    if "5 min" in published[row]["threshold"]:
        assert alert.hold == "5m"


def test_the_issue_s_others_are_there() -> None:
    assert {alert.name for alert in ALL} >= {
        *("GpuHung", "GpuThrottledByHeat", "EngineFirstTokenLate", "GpuLost", "ExporterDown", "EngineDown"),
        *("EngineKvCachePressure", "EnginePreemptionStorm", "GpuKernelEvents", "GpuUncorrectableErrors", "GpuHot"),
    }


@pytest.mark.parametrize("alert", ALL, ids=lambda alert: alert.name)
def test_an_alert_uses_names_that_exist_and_tells_what_to_do(alert: Alert) -> None:
    assert find_wrong_names(alert.expr) == []
    assert re.fullmatch(r"\d+[sm]", alert.hold)
    assert alert.summary
    assert alert.description
    assert len(alert.runbook) > 40
    told = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    fired = [case for case in cases(2.0) if case.alert == alert.name and case.labels is not None]
    assert fired
    for case in fired:
        assert told <= case.labels.keys() if case.labels is not None else False


def test_every_alert_has_a_case_in_which_it_is_silent() -> None:
    silent = {case.alert for case in cases(2.0) if case.labels is None}
    assert silent == {alert.name for alert in ALL}


def test_no_ratio_divides_by_nothing() -> None:
    """Where rates are divided, the divisor is above 0; a quantile is of something."""
    for name, expr in [(a.name, a.expr) for a in ALL] + [(r.record, r.expr) for g in GROUPS.values() for r in g]:
        if "histogram_quantile" in expr or re.search(r"/ .*rate", expr):
            assert "> 0" in expr, name


def test_the_hang_joins_card_and_engine_on_the_node() -> None:
    (hang,) = [alert for alert in ALL if alert.name == "GpuHung"]
    engine, card = hang.expr.split("and on (node)")
    assert set(re.findall(r"by \(([^)]*)\)", engine)) == {"node, instance, model_name, engine"}
    assert re.findall(r"by \(([^)]*)\)", card) == ["node"]


def test_no_alert_s_wait_begins_anew_with_a_scrape_that_is_lost() -> None:
    """An engine's gauges are its last of 15 s; its counters are taken over a minute or more."""
    for alert in ALL:
        bare = re.findall(r"(?:vllm|sglang|llamacpp):\w+(?:\{[^}]*\})?(?![\w{\[])", alert.expr)
        assert bare == [], alert.name


def test_kernel_events_are_kinds_that_the_watcher_knows() -> None:
    listed = [*LOST.split("|"), *TROUBLE.split("|")]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(KINDS)


def test_the_promise_is_the_one_given() -> None:
    (late,) = [alert for alert in alerts(0.75) if alert.name == "EngineFirstTokenLate"]
    assert late.expr.endswith("> 0.75")
    assert "0.75 s" in late.description


def test_every_alert_is_in_one_group() -> None:
    groups = alert_rules(2.0)["groups"]
    assert isinstance(groups, list)
    listed = [rule["alert"] for group in groups for rule in group["rules"]]
    assert sorted(listed) == sorted(alert.name for alert in ALL)
    assert len(RECORDED) == sum(len(group) for group in GROUPS.values())


def test_recording_rules_have_three_part_names_over_names_that_exist() -> None:
    for group in GROUPS.values():
        for rule in group:
            assert rule.record.count(":") == 2
            assert find_wrong_names(rule.expr, RECORDED) == []


def test_the_page_lists_every_alert_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "observe.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([A-Z]\w+) \| (\w+) \| (\w+) \|", page, re.MULTILINE)
    assert listed == [(alert.name, alert.severity, alert.hold) for alert in ALL]
