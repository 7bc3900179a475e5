"""alertmanager.yml: every severity has a route, and what inhibits what."""

import re
from typing import Any, get_args

from cadenza.observe.alertmanager import alertmanager_config
from cadenza.observe.alerts import Severity, alerts

CONFIG: Any = alertmanager_config()


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
    assert routes == {f'severity="{name}"': name for name in get_args(Severity)}
    assert {receiver["name"] for receiver in CONFIG["receivers"]} == set(routes.values())


def test_an_exporter_that_is_down_silences_its_cards_and_no_others() -> None:
    down = {"alertname": "ExporterDown", "node": "box", "instance": "box:9101"}
    for alert in alerts():
        here = {"alertname": alert.name, "node": "box", "gpu": "0000:43:00.0"}
        wanted = alert.name.startswith("Gpu") or alert.name == "CollectorStuck"
        assert inhibited(down, here) is wanted, alert.name
        assert not inhibited(down, here | {"node": "other"})


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
