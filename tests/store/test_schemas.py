"""Runs of every schema that was ever written can be read: one of each is kept, as it was written then."""

import json
from pathlib import Path

import pytest

from cadenza.analysis.codes import CODES
from cadenza.cli.main import main
from cadenza.record import SCHEMA, Outcome, Phase
from cadenza.store import telemetry
from cadenza.store.rundir import read_run

RUNS = Path(__file__).parents[1] / "golden" / "runs"
TELEMETRY_RUNS = Path(__file__).parents[1] / "golden" / "telemetry"


def test_there_is_one_of_each() -> None:
    assert sorted(path.name for path in RUNS.iterdir()) == [f"schema-{n}" for n in range(1, SCHEMA + 1)]


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_its_records_and_its_figures_are_what_they_were(schema: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Held against what the version that wrote it said itself: counts, and figures whose definition has not changed."""
    folder = RUNS / f"schema-{schema}"
    run = read_run(folder)
    records = list(run.records())
    assert run.broken_lines == 0
    assert {record.outcome for record in records} == {Outcome.OK}
    then = json.loads((folder / "summary.json").read_text())
    main(["show", str(folder), "--json"])
    now = json.loads(capsys.readouterr().out)
    assert len(now["points"]) == len(then["points"]) == 2
    for new, old in zip(now["points"], then["points"], strict=True):
        for name in ("model", "concurrency", "requests", "output_tokens", "throughput_tok_per_s", "speedup"):
            assert new[name] == old[name], name
        # The population is all measured requests, since schema 2; before, those that ended in the window.
        mine = [r for r in records if r.point == new["index"] and r.phase is Phase.MEASURE and r.sent_ns is not None]
        ttft = [(record.event_ns[0] - (record.sent_ns or 0)) / 1e6 for record in mine]
        assert new["ttft_ms"]["n"] == len(mine) == new["requests"]["ok"]
        assert new["ttft_ms"]["mean"] == pytest.approx(sum(ttft) / len(ttft))
        gaps = sum(len(record.event_ns) - 1 for record in mine)
        spans = sum(record.event_ns[-1] - record.event_ns[0] for record in mine) / 1e6
        assert new["itl_ms"]["n"] == gaps
        assert new["itl_ms"]["mean"] == pytest.approx(spans / gaps)


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_findings_carry_the_sentences_of_checks_and_notes(schema: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`findings` has the sentences of `checks` and `notes`, in their order, with codes and numbers of the table."""
    folder = RUNS / f"schema-{schema}"
    main(["show", str(folder), "--json"])
    for new in json.loads(capsys.readouterr().out)["points"]:
        checks = [(check["verdict"], check["message"]) for check in new["checks"]]
        notes = [(None, note) for note in new["notes"]]
        assert [(one["verdict"], one["message"]) for one in new["findings"]] == checks + notes
        assert set(new["checks"][0]) == {"name", "verdict", "message"}
        for one in new["findings"]:
            assert set(one["numbers"]) <= set(CODES[one["code"]].numbers)


def test_there_is_a_run_for_each_schema_of_its_telemetry() -> None:
    assert sorted(path.name for path in TELEMETRY_RUNS.iterdir()) == [
        f"schema-{n}" for n in range(1, telemetry.SCHEMA + 1)
    ]


@pytest.mark.parametrize("schema", range(1, telemetry.SCHEMA + 1))
def test_the_machine_is_what_the_version_that_wrote_the_telemetry_had(
    schema: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run, written by schema 1 and by schema 2, held against the summary that schema 1's writer made of it."""
    then = json.loads((TELEMETRY_RUNS / "schema-1" / "summary.json").read_text())
    main(["show", str(TELEMETRY_RUNS / f"schema-{schema}"), "--json"])
    now = json.loads(capsys.readouterr().out)
    assert len(now["points"]) == 2
    for new, old in zip(now["points"], then["points"], strict=True):
        assert len(old["machine"]["gpus"]) == 2
        assert new["machine"] == old["machine"]
        assert new["reconciliation"] == old["reconciliation"]
