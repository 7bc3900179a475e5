"""The alerts: the published six with their thresholds, metric names that exist, texts that say what to do."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from cadenza.observe.lint import SEVERITIES
from cadenza.observe.names import find_uses, find_wrong_names
from cadenza.observe.settings import Settings
from cadenza.observe.shipped import read_yaml, recorded_names, rules_of
from cadenza.telemetry.kernel.patterns import KINDS

ARTICLE = Path(__file__).parents[1] / "data" / "article" / "alerts.csv"
ALERTS: dict[str, Any] = {rule["alert"]: rule for rule in rules_of(read_yaml("rules/alerts.yml"))}
RECORDINGS: list[Any] = list(rules_of(read_yaml("rules/recording.yml")))
TESTS: list[Any] = read_yaml("rules/tests.yml")["tests"]
# The article's six by row: the alert, and the metric that its expression is about. Percentages are ratios here.
PUBLISHED = (
    ("GpusSaturated", "gpu_busy_ratio"),
    ("GpuMemoryNearlyFull", "gpu_memory_used_bytes"),
    ("EngineBatchLarge", "vllm:num_requests_running"),
    ("EngineQueueLong", "vllm:num_requests_waiting"),
    ("EngineKvCacheNearlyFull", "vllm:kv_cache_usage_perc"),
    ("EngineSlow", "vllm:generation_tokens_total"),
)
PROMISED = "EngineFirstTokenLate"
TEXTS = {"summary", "description", "runbook"}


def threshold(text: str) -> tuple[str, float]:
    """`> 98 % for 5 min` → (">", 0.98)."""
    match = re.match(r"([<>]) ([0-9.]+)( %)?", text)
    assert match is not None
    return match[1], float(match[2]) / (100 if match[3] else 1)


def expected(name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """(name of the test, alerts that it expects), for each test of an alert."""
    return [
        (test["name"], one["exp_alerts"])
        for test in TESTS
        for one in test.get("alert_rule_test", ())
        if one["alertname"] == name
    ]


@pytest.mark.parametrize("row", range(6))
def test_each_of_the_published_six_is_there_with_its_threshold(row: int) -> None:
    with ARTICLE.open(encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    assert len(published) == 6
    name, metric = PUBLISHED[row]
    sign, value = threshold(published[row]["threshold"])
    expr = ALERTS[name]["expr"]
    assert re.search(rf"{sign} {value:g}(\n|$)", expr)
    assert metric in {use.name for use in find_uses(expr)}
    if "5 min" in published[row]["threshold"]:
        assert ALERTS[name]["for"] == "5m"


def test_the_issue_s_others_are_there() -> None:
    assert ALERTS.keys() >= {
        *("GpuHung", "GpuThrottledByHeat", "EngineFirstTokenLate", "GpuLost", "ExporterDown", "EngineDown"),
        *("EngineKvCachePressure", "EnginePreemptionStorm", "GpuKernelEvents", "GpuUncorrectableErrors", "GpuHot"),
    }


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_uses_names_that_exist_and_has_its_texts(name: str) -> None:
    rule = ALERTS[name]
    assert find_wrong_names(rule["expr"]) == []
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == TEXTS
    assert all(rule["annotations"].values())
    assert len(rule["annotations"]["runbook"]) > 40


def filled(template: str, labels: dict[str, str]) -> str:
    """A pattern for an alert's text as Prometheus fills it in, whatever the value."""
    parts = re.split(r"{{ (.*?) }}", template)
    values = [
        re.escape(labels.get(field.removeprefix("$labels."), "")) if field.startswith("$labels.") else r"\d[\d.]*%?"
        for field in parts[1::2]
    ]
    return re.escape(parts[0]) + "".join(v + re.escape(text) for v, text in zip(values, parts[2::2], strict=True))


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_tests_in_which_it_fires_with_its_texts_and_in_which_it_is_silent(name: str) -> None:
    """That it does so on the tests' samples, promtool says."""
    tests = expected(name)
    assert {bool(alerts) for _, alerts in tests} == {True, False}
    for title, alerts in tests:
        assert title.startswith(f"{name} fires: " if alerts else f"{name} is silent: ")
        for alert in alerts:
            assert alert["exp_annotations"].keys() == TEXTS
            for text, template in ALERTS[name]["annotations"].items():
                used = set(re.findall(r"\$labels\.(\w+)", template))
                assert used <= alert["exp_labels"].keys()
                assert re.fullmatch(filled(template, alert["exp_labels"]), alert["exp_annotations"][text])


def test_the_tests_have_names_of_their_own_and_test_only_alerts_and_rules_that_exist() -> None:
    names = [test["name"] for test in TESTS]
    assert len(set(names)) == len(names)
    assert {one["alertname"] for test in TESTS for one in test.get("alert_rule_test", ())} == ALERTS.keys()
    for test in TESTS:
        for one in test.get("promql_expr_test", ()):
            assert find_wrong_names(one["expr"], recorded_names()) == []
        for one in test["input_series"]:
            assert find_wrong_names(one["series"]) == []


def test_no_ratio_divides_by_nothing() -> None:
    """Where rates are divided, the divisor is above 0; a quantile is of something."""
    rules = [(name, rule["expr"]) for name, rule in ALERTS.items()]
    for name, expr in rules + [(rule["record"], rule["expr"]) for rule in RECORDINGS]:
        if "histogram_quantile" in expr or re.search(r"/ .*rate", expr):
            assert "> 0" in expr, name


def test_the_hang_joins_card_and_engine_on_the_node() -> None:
    engine, card = ALERTS["GpuHung"]["expr"].split("and on (node)")
    assert set(re.findall(r"by \(([^)]*)\)", engine)) == {"node, instance, model_name, engine"}
    assert re.findall(r"by \(([^)]*)\)", card) == ["node"]


def test_a_lost_scrape_does_not_restart_the_wait_of_an_alert() -> None:
    """An engine's gauges are the last of 15 s; its counters are taken over a minute or more."""
    for name, rule in ALERTS.items():
        bare = re.findall(r"(?:vllm|sglang|llamacpp):\w+(?:\{[^}]*\})?(?![\w{\[])", rule["expr"])
        assert bare == [], name


def test_kernel_events_are_kinds_that_the_watcher_knows() -> None:
    listed = []
    for name in ("GpuKernelEvents", "GpuKernelWarnings"):
        (kinds,) = set(re.findall(r'event=~"([^"]*)"', ALERTS[name]["expr"]))
        listed += kinds.split("|")
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(KINDS)


def test_the_slo_is_that_of_the_settings() -> None:
    settings = Settings(slo_ttft_p99_s=0.75)
    (late,) = [one for one in rules_of(read_yaml("rules/alerts.yml", settings)) if one["alert"] == PROMISED]
    assert late["expr"].endswith(") > 0.75")
    assert "SLO 0.75 s" in late["annotations"]["description"]
    assert ALERTS[PROMISED]["expr"].endswith(") > 2")
    others = [one for one in rules_of(read_yaml("rules/alerts.yml", settings)) if one["alert"] != PROMISED]
    assert others == [rule for name, rule in ALERTS.items() if name != PROMISED]


def test_the_tests_of_the_slo_have_buckets_at_multiples_of_it() -> None:
    """Rank 99 of 100 is half way through a bucket from 1 to 3 SLOs: at 2 SLOs."""
    filled_in = read_yaml("rules/tests.yml", Settings(slo_ttft_p99_s=0.5))["tests"]
    changed = [new for new, old in zip(filled_in, TESTS, strict=True) if new != old]
    assert len(changed) == len(expected(PROMISED)) == 4
    (fires,) = [test for test in changed if "fires" in test["name"]]
    bounds = re.findall(r'le="([^"]*)"', "".join(one["series"] for one in fires["input_series"]))
    assert bounds == ["0.5", "1.5", "+Inf"]
    (alert,) = fires["alert_rule_test"][0]["exp_alerts"]
    assert "first token is 1.00 s, SLO 0.5 s." in alert["exp_annotations"]["description"]


def test_no_rule_is_there_twice() -> None:
    assert len(ALERTS) == len(list(rules_of(read_yaml("rules/alerts.yml"))))
    assert len(RECORDINGS) == len(recorded_names())


def test_recording_rules_have_three_part_names_over_names_that_exist() -> None:
    for rule in RECORDINGS:
        assert rule["record"].count(":") == 2
        assert find_wrong_names(rule["expr"], recorded_names()) == []


def test_the_page_lists_every_alert_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "observe.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([A-Z]\w+) \| (\w+) \| (\w+) \|", page, re.MULTILINE)
    rules = [(name, rule["labels"]["severity"], rule["for"]) for name, rule in ALERTS.items()]
    assert listed == rules
