"""`cadenza check`: every check in a line, and an exit code that a script can use."""

import json
from pathlib import Path

import msgspec
import pytest

from cadenza.cli.main import main
from cadenza.record import Outcome, PointStatus
from cadenza.store.manifest import RunStatus
from cadenza.store.rundir import create_run
from support.runs import manifest, record


def write(path: Path, n: int, failed: int = 0) -> str:
    kept = manifest()
    kept.points[0] = msgspec.structs.replace(kept.points[0], planned=n, status=PointStatus.COMPLETE, start_ns=0)
    writer = create_run(path, kept)
    for k in range(n):
        one = msgspec.structs.replace(record(k), read_lag_ns=50_000)
        writer.append(msgspec.structs.replace(one, outcome=Outcome.HTTP_ERROR) if k < failed else one)
    writer.close(RunStatus.COMPLETE)
    return str(path)


def test_a_good_run_is_0_and_every_check_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", write(tmp_path / "run", 60)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "m  C = 1  VALID"
    told = [line.split("  ")[1].strip() for line in lines[3:]]
    assert set(told) == {"ok"}
    text = "\n".join(lines)
    for what in ("60 planned, 60 sent, 0 dropped", "L differs from λ W by", "latency − TTFT sums to 1200.0 ms"):
        assert what in text


def test_a_suspect_run_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", write(tmp_path / "run", 60, failed=2)]) == 1
    told = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    (failures,) = [line for line in told if line[1:2] == ["failures"]]
    assert failures[0] == "SUSPECT"
    assert failures[2].startswith("2 of 60 requests failed (3.3 %)")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", write(tmp_path / "run", 60), "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)
    assert (point["model"], point["verdict"], point["status"]) == ("m", "VALID", "complete")
    assert {"name", "verdict", "message"} == set(point["checks"][0])


def test_what_is_no_run_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_a_point_that_was_never_begun_is_not_good(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", 60)
    kept = json.loads((tmp_path / "run" / "manifest.json").read_text())
    kept["points"].append({**kept["points"][0], "index": 1, "status": "pending", "start_ns": None})
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(kept))
    assert main(["check", folder]) == 1
