"""What a bundle is made for, and prometheus.yml from it."""

import re
from typing import Any

import pytest

from cadenza.errors import UsageError
from cadenza.observe.settings import Settings, Target, check, find_alone, node_of, read_engine
from cadenza.observe.shipped import read_yaml


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("http", "127.0.0.1:8000", "/metrics")),
        ("http://box:8000/", Target("http", "box:8000", "/metrics")),
        ("http://box:8000/v1", Target("http", "box:8000", "/metrics")),
        ("http://box:8000/metrics", Target("http", "box:8000", "/metrics")),
        ("box:8000", Target("http", "box:8000", "/metrics")),
        ("https://llm.example/one/v1", Target("https", "llm.example:443", "/one/metrics")),
        ("http://box", Target("http", "box:80", "/metrics")),
        ("http://[::1]:8000", Target("http", "[::1]:8000", "/metrics")),
    ],
)
def test_an_engine_s_url_says_where_its_metrics_are(url: str, target: Target) -> None:
    assert read_engine(url) == target


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (Settings(engines=("ftp://box",)), "--engine-url"),
        (Settings(engines=("http://",)), "--engine-url"),
        (Settings(engines=("http://box:99999",)), "--engine-url"),
        (Settings(engines=("http://box:99999",)), "99999 is no port"),
        (Settings(engines=("http://me:secret@box:8000",)), "takes no password: write it into prometheus.yml"),
        (Settings(engines=("me:secret@box:8000",)), "takes no password"),
        (Settings(engines=("http://box:8000/?token=secret",)), "takes no password"),
        (Settings(exporters=("me:secret@box:9101",)), "takes no password"),
        (Settings(prometheus="me:secret@127.0.0.1:9090"), "takes no password"),
        (Settings(engines=("http://::1:8000",)), "IPv6 in brackets: [::1]:PORT"),
        (Settings(exporters=("::1:9101",)), "IPv6 in brackets: [::1]:PORT"),
        (Settings(engines=("http://[:::]:8000",)), "[:::] is no IPv6 address"),
        (Settings(prometheus="127.0.0.1:9090", alertmanager="127.0.0.1:9090"), "they need different ports"),
        (Settings(engines=("http://a b:8000",)), "--engine-url"),
        (Settings(exporters=("box",)), "--exporter"),
        (Settings(exporters=("http://box:9101",)), "--exporter"),
        (Settings(exporters=("box:0",)), "--exporter"),
        (Settings(prometheus="0.0.0.0:9090"), "reachable from other machines without a password"),
        (Settings(alertmanager="box:9093"), "reachable from other machines without a password"),
        (Settings(slo_ttft_p99_s=0.0), "--slo-ttft-p99-s"),
        (Settings(slo_ttft_p99_s=float("nan")), "--slo-ttft-p99-s"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Settings, part: str) -> None:
    with pytest.raises(UsageError, match=re.escape(part)) as refused:
        check(settings)
    assert "secret" not in str(refused.value)


def test_a_target_that_is_given_twice_is_one() -> None:
    settings = Settings(engines=("http://a:8000", "b:8000", "http://a:8000/v1"), exporters=("a:9101", "a:9101"))
    assert check(settings) == Settings(engines=("http://a:8000", "b:8000"), exporters=("a:9101",))


def test_an_engine_without_an_exporter_on_its_node_is_named() -> None:
    assert find_alone(Settings()) == []
    assert find_alone(Settings(engines=("http://localhost:8000", "http://[::1]:8001"))) == []
    assert find_alone(Settings(engines=("http://box:8000/v1",), exporters=("box:9101", "other:9101"))) == []
    (told,) = find_alone(Settings(engines=("http://box:8000", "http://127.0.0.1:8000")))
    assert told.startswith("no exporter is at box, where the engine box:8000 is")
    assert "--exporter box:9101" in told


def jobs(settings: Settings) -> dict[str, Any]:
    config: Any = read_yaml("prometheus.yml", settings)
    return {job["job_name"]: job for job in config["scrape_configs"]}


def relabel(address: str, rules: list[dict[str, Any]]) -> str:
    """The label `node` as Prometheus would set it: whole-text matches, later rules over earlier ones."""
    node = ""
    for rule in rules:
        assert rule["source_labels"] == ["__address__"]
        assert rule["target_label"] == "node"
        if found := re.fullmatch(rule["regex"], address):
            node = rule["replacement"].replace("$1", found[1])
    return node


def test_everything_is_scraped_every_second() -> None:
    config: Any = read_yaml("prometheus.yml", Settings())
    assert list(jobs(Settings())) == ["engine", "exporter", "prometheus"]
    # Each by itself: a job is copied into another Prometheus, which has an interval of its own.
    assert {job["scrape_interval"] for job in jobs(Settings()).values()} == {"1s"}
    assert config["rule_files"] == ["rules/recording.yml", "rules/alerts.yml"]


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("box:8000", "box"),
        ("box:9101", "box"),
        ("10.0.0.7:9101", "10.0.0.7"),
        ("127.0.0.1:8000", "localhost"),
        ("localhost:9101", "localhost"),
        ("[::1]:9101", "localhost"),
        ("host.docker.internal:8000", "localhost"),
        ("[fd00::1]:8000", "[fd00::1]"),
    ],
)
def test_the_node_is_the_host_without_the_port_on_both_sides(address: str, node: str) -> None:
    for job in jobs(Settings()).values():
        assert relabel(address, job["relabel_configs"]) == node
    assert node_of(address) == node


def test_engines_keep_their_scheme_and_path() -> None:
    settings = Settings(engines=("http://box:8000", "https://llm.example/one/v1"), exporters=("a:1", "b:2"))
    assert jobs(settings)["engine"]["static_configs"] == [
        {"targets": ["box:8000"]},
        {
            "targets": ["llm.example:443"],
            "labels": {
                "__scheme__": "https",
                "__metrics_path__": "/one/metrics",
                # Else two engines behind one gateway would tell the same series.
                "instance": "llm.example:443/one",
            },
        },
    ]
    assert jobs(settings)["exporter"]["static_configs"] == [{"targets": ["a:1", "b:2"]}]
