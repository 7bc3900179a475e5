"""alertmanager.yml: every severity has a route, and what inhibits what."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cadenza.observe.lint import SEVERITIES
from cadenza.observe.shipped import read_text, read_yaml, rules_of
from support.prometheus import needs

CONFIG: Any = read_yaml("alertmanager.yml")
ALERTS: dict[str, str] = {rule["alert"]: rule["labels"]["severity"] for rule in rules_of(read_yaml("rules/alerts.yml"))}


def matches(matchers: list[str], labels: dict[str, str]) -> bool:
    """As Alertmanager reads them: =, !=, =~ over the whole text."""
    for matcher in matchers:
        found = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher)
        assert found is not None
        value = labels.get(found[1], "")
        same = re.fullmatch(found[3], value) is not None if found[2] == "=~" else value == found[3]
        if same == (found[2] == "!="):
            return False
    return True


def inhibited(source: dict[str, str], target: dict[str, str]) -> bool:
    return any(
        matches(rule["source_matchers"], source)
        and matches(rule["target_matchers"], target)
        and all(source.get(name, "") == target.get(name, "") for name in rule["equal"])
        for rule in CONFIG["inhibit_rules"]
    )


def test_each_severity_has_a_receiver_of_its_own() -> None:
    routes = {route["matchers"][0]: route["receiver"] for route in CONFIG["route"]["routes"]}
    assert routes == {f'severity="{name}"': name for name in SEVERITIES}
    assert {receiver["name"] for receiver in CONFIG["receivers"]} == set(routes.values())


def test_an_exporter_that_is_down_silences_nothing() -> None:
    """It is a warning, and its node may have another exporter; what the kernel said of a card stands."""
    down = {"alertname": "ExporterDown", "node": "box", "instance": "box:9101", "severity": "warning"}
    for alert in ALERTS:
        here = {"alertname": alert, "node": "box", "instance": "box:9101", "gpu": "0000:43:00.0"}
        assert not inhibited(down, here), alert


def test_nothing_silences_what_is_worse() -> None:
    order = ["info", "warning", "critical"]
    severities = {alert: order.index(severity) for alert, severity in ALERTS.items()}
    labels = {"node": "box", "instance": "box:8000", "model_name": "m", "gpu": "0000:43:00.0"}
    silenced = [
        (one, other)
        for one in severities
        for other in severities
        if inhibited({"alertname": one} | labels, {"alertname": other} | labels)
    ]
    assert ("EngineDown", "EngineQueueLong") in silenced
    assert [pair for pair in silenced if severities[pair[0]] < severities[pair[1]]] == []
    assert [pair for pair in silenced if pair[0] == pair[1]] == []


def test_a_lost_card_silences_its_own_alerts_and_not_its_neighbour_s() -> None:
    lost = {"alertname": "GpuLost", "node": "box", "gpu": "0000:43:00.0"}
    assert inhibited(lost, {"alertname": "GpuHot", "node": "box", "gpu": "0000:43:00.0"})
    assert not inhibited(lost, {"alertname": "GpuHot", "node": "box", "gpu": "0000:03:00.0"})
    assert not inhibited(lost, lost)


def test_an_engine_that_is_down_silences_what_is_said_of_its_inside() -> None:
    down = {"alertname": "EngineDown", "node": "box", "instance": "box:8000"}
    assert inhibited(down, {"alertname": "EngineQueueLong", "node": "box", "instance": "box:8000"})
    assert not inhibited(down, {"alertname": "EngineQueueLong", "node": "box", "instance": "box:8001"})
    assert not inhibited(down, down)
    assert not inhibited(down, {"alertname": "GpuHot", "node": "box", "instance": "box:9101"})
    # Behind a gateway each engine is an instance of its own.
    assert not inhibited(down, {"alertname": "EngineQueueLong", "node": "box", "instance": "box:8000/b"})


def test_a_hang_silences_only_that_all_cards_are_busy() -> None:
    hung = {"alertname": "GpuHung", "node": "box", "instance": "box:8000", "model_name": "m", "engine": "0"}
    names = [alert for alert in ALERTS if inhibited(hung, {"alertname": alert, "node": "box"})]
    assert names == ["GpusSaturated"]


@pytest.mark.slow
@needs("amtool")
@pytest.mark.parametrize("labels", [*({"severity": name} for name in SEVERITIES), {}])
def test_amtool_sends_each_severity_to_its_receiver(tmp_path: Path, labels: dict[str, str]) -> None:
    file = tmp_path / "alertmanager.yml"
    file.write_text(read_text("alertmanager.yml"), encoding="utf-8")
    pairs = [f"{name}={value}" for name, value in {**labels, "alertname": "GpuHot", "node": "box"}.items()]
    done = subprocess.run(
        ["amtool", "config", "routes", "test", f"--config.file={file}", *pairs],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Who gives an alert no severity is heard all the same.
    assert (done.returncode, done.stdout.strip()) == (0, labels.get("severity", "info")), done.stderr
