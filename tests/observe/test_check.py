"""All checks of a bundle, with the programs and without them."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from cadenza.errors import UsageError
from cadenza.observe import check as checking
from cadenza.observe import programs
from cadenza.observe.bundle import write
from cadenza.observe.check import Check, check
from cadenza.observe.settings import Settings
from support.prometheus import needs

PROGRAMS = (
    *("promtool check config", "promtool check rules --lint=all", "promtool test rules"),
    *("PromQL of the dashboards (promtool)", "amtool check-config"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(Settings(), tmp_path)
    return tmp_path


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    return {one.name: one for one in checks}


@pytest.mark.slow
@needs("promtool", "amtool")
@pytest.mark.parametrize("slo_s", [2.0, 0.3])
def test_prometheus_itself_is_content_with_a_bundle(tmp_path: Path, slo_s: float) -> None:
    write(Settings(slo_ttft_p99_s=slo_s, engines=("https://llm.example/a", "http://[::1]:8000")), tmp_path)
    checks = by_name(check(tmp_path))
    assert set(PROGRAMS) < checks.keys()
    assert [one for one in checks.values() if one.wrong or one.skipped] == []


@pytest.mark.slow
@needs("promtool", "amtool")
@pytest.mark.parametrize(
    ("file", "old", "new", "name", "part"),
    [
        ("prometheus.yml", "scrape_interval: 1s", "scrape_interval: soon", PROGRAMS[0], "duration"),
        ("rules/alerts.yml", "== 0", "=== 0", PROGRAMS[1], "could not parse expression"),
        # An engine that is always down.
        ("rules/alerts.yml", 'up{job="engine"} == 0', 'up{job="engine"} >= 0', PROGRAMS[2], "EngineDown"),
        ("grafana/dashboards/engine.json", '"expr": "', '"expr": "((', PROGRAMS[3], "engine.json: "),
        ("alertmanager.yml", "receiver: info", "receiver: nobody", PROGRAMS[4], "nobody"),
    ],
)
def test_what_prometheus_finds_is_told(folder: Path, file: str, old: str, new: str, name: str, part: str) -> None:
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    if name != PROGRAMS[2]:
        # They take the longest, and are sound.
        (folder / "rules" / "tests.yml").unlink()
    assert part in "\n".join(by_name(check(folder))[name].wrong)


def test_rules_that_do_not_parse_are_told_once_and_not_tested(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """promtool's own words, as 2.42 prints them."""
    words = "Checking rules/alerts.yml\n  FAILED:\nline 1: cannot unmarshal\nline 1: cannot unmarshal\n"
    commands: list[str] = []

    def run_program(path: str, *arguments: str) -> programs.ProgramResult:
        commands.append(" ".join(arguments[:2]))
        return programs.ProgramResult("rules" not in arguments, words)

    monkeypatch.setattr(checking, "run_program", run_program)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    checks = by_name(check(folder))
    assert checks[PROGRAMS[1]].wrong == ["Checking rules/alerts.yml", "FAILED:", "line 1: cannot unmarshal"]
    assert checks[PROGRAMS[2]] == Check(PROGRAMS[2], [], "fix the rules first")
    assert "test rules" not in commands


def test_a_dashboard_that_is_no_json_does_not_end_the_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "grafana" / "dashboards" / "gpu.json").write_text("{", encoding="utf-8")
    monkeypatch.setattr(checking, "run_program", lambda *arguments: programs.ProgramResult(True, ""))
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    own, *others = check(folder)
    assert own.wrong[0].startswith("grafana/dashboards/gpu.json: no JSON")
    assert [one.name for one in others] == list(PROGRAMS)
    assert [one for one in others if one.wrong] == []


def test_without_the_programs_the_lint_still_runs_and_the_rest_is_said_to_be_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    own, *others = check(folder)
    assert (own.wrong, own.skipped) == ([], "")
    assert [one.name for one in others] == ["promtool", "amtool check-config"]
    for one in others:
        assert "apt-get install prometheus" in one.skipped
        assert one.wrong == []


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cadenza observe init"):
        check(tmp_path / "nowhere")


def test_a_query_that_does_not_parse_is_told_with_its_panel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """promtool's own words, as 2.42 prints them."""
    words = 'x.yml: 5:15: group "queries", rule 1, "query:0:shown": could not parse expression: 1:3: parse error: no'
    monkeypatch.setattr(checking, "run_program", lambda *arguments: programs.ProgramResult(False, words))
    told = checking._check_queries("promtool", folder).wrong
    assert len(told) == 1
    assert re.fullmatch(r"cluster\.json: .+ \(A\): 1:3: parse error: no", told[0])


def test_a_program_that_cannot_be_run_is_no_crash(tmp_path: Path) -> None:
    result = programs.run_program(str(tmp_path / "none"))
    assert not result.ok
    assert "could not be run" in result.text
