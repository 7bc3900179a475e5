"""Virtual time through the whole command line: no socket, no waiting, and one seed is one run, byte for byte."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli.main import main

QWEN = "Qwen/Qwen3-8B"
SWEEP = ("sweep", "--virtual", "--model", QWEN, "-c", "2,4", "--requests", "40", "--json", "--quiet")


def forbidden(*arguments: object, **named: object) -> None:
    raise AssertionError("nothing waits, and nothing leaves this process")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, and neither engine process nor socket nor sleep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("cadenza.cli.reach.child.start", forbidden)  # imports what would else be imported below
    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "create_connection", forbidden)
    monkeypatch.setattr(time, "sleep", forbidden)


def measure(out: str, *flags: str) -> tuple[bytes, bytes]:
    """(records.jsonl, summary.json) of a run that went well."""
    assert main([*SWEEP, "--out", out, *flags]) == 0
    return Path(out, "records.jsonl").read_bytes(), Path(out, "summary.json").read_bytes()


def manifest(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(out, "manifest.json").read_bytes())
    return found


def test_one_seed_is_one_run_and_another_seed_another() -> None:
    first = measure("a", "--seed", "7")
    assert measure("b", "--seed", "7") == first
    other = measure("c", "--seed", "8")
    assert other[0] != first[0]
    assert other[1] != first[1]
    assert main(["sweep", "--spec", "a/manifest.json", "--out", "d", "--json", "--quiet"]) == 0
    assert (Path("d/records.jsonl").read_bytes(), Path("d/summary.json").read_bytes()) == first


def test_the_run_is_whole_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    before_ns = time.time_ns()
    _, summary = measure("run", "--seed", "7")
    after_ns = time.time_ns()
    assert capsys.readouterr().out.encode() == summary
    assert main(["show", "run", "--json"]) == 0
    assert capsys.readouterr().out.encode() == summary
    told = json.loads(summary)
    assert told["simulated"] is True
    for point, slots in zip(told["points"], (2, 4), strict=True):
        assert (point["verdict"], point["requests"]["outcomes"]) == ("VALID", {"ok": 40})
        assert point["in_flight"]["peak"] == slots
        assert point["dispatch_lag_ms"]["max"] == 0  # no client can be late in virtual time
        # 40 answers and the warm-up of 128 to 256 tokens, each after a step of about 80 ms
        assert point["duration_s"] > 40 * 128 * 0.07 / slots
        assert not {"worker CPU", "loop lag", "core", "clock", "ceiling"} & {check["name"] for check in point["checks"]}
    kept = manifest("run")
    assert (kept["status"], kept["simulated"], kept["spec"]["virtual"]) == ("complete", True, True)
    assert kept["anchor"]["monotonic_ns"] == 0
    assert before_ns <= kept["anchor"]["wall_ns"] <= after_ns
    assert kept["points"][1]["start_ns"] >= kept["points"][0]["end_ns"] > kept["points"][0]["start_ns"] >= 0
    assert not any("workers" in point or "ceiling_events_per_s" in point for point in kept["points"])


def test_an_open_loop_keeps_its_rate() -> None:
    measure("run", "--seed", "7", "--rate", "1.5", "--arrivals", "constant", "-c", "8")
    (point,) = json.loads(Path("run/summary.json").read_bytes())["points"]
    assert point["load"] == "CAPPED"
    assert point["offered_per_s"] == pytest.approx(1.5)
    assert main(["run", "--virtual", "--model", QWEN, "--rate", "1", "--arrivals", "constant", "--out", "open"]) == 0
    (point,) = json.loads(Path("open/summary.json").read_bytes())["points"]
    assert point["load"] == "OPEN"
    assert point["achieved_per_s"] == pytest.approx(1)


def test_a_duration_is_in_virtual_time() -> None:
    begun = time.monotonic()
    measure("run", "--seed", "7", "--requests", "1000000", "--duration", "600", "-c", "1")
    assert time.monotonic() - begun < 60
    (point,) = manifest("run")["points"]
    # The sending ends after 600 s; the answer that was under way is waited for: 256 steps of 84 ms at most.
    assert 600 <= (point["end_ns"] - point["start_ns"]) / 1e9 < 600 + 256 * 0.084 + 1


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (("--virtual", "--engine", "none-such"), 2, "none-such"),
        (("--virtual", "--model", "none-such"), 3, "the embedded engine has no model 'none-such'; it has: Qwen/"),
        (("--virtual", "--url", "http://localhost:1"), 2, "--virtual is for the embedded engine"),
        (("--virtual", "--speed", "10"), 2, "--virtual and --speed exclude each other"),
        (("--virtual", "--timing", "magic"), 2, "--timing knows calibrated, physics and measured, not 'magic'"),
        (("--virtual", "--prompts", "jsonl:none-such"), 2, "none-such"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(
    flags: tuple[str, ...], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *flags, "--quiet", "--out", "run"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_progress_tells_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    loud = [flag for flag in SWEEP if flag not in ("--json", "--quiet")]
    assert main([*loud, "--out", "run"]) == 0
    out, err = capsys.readouterr()
    assert "SIMULATED" in out
    assert "clock      virtual: nothing waits" in err
    assert "[2/2] Qwen/Qwen3-8B C=4" in err


@pytest.mark.slow
def test_ctrl_c_is_a_full_report_and_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    command = [sys.executable, "-m", "cadenza", "run", "--virtual", "--model", QWEN, "-c", "8", "--duration", "1e9"]
    with subprocess.Popen(
        [*command, "--out", "run", "--json", "--quiet"], cwd=tmp_path, stdout=-1, stderr=-1
    ) as process:
        records, deadline = tmp_path / "run" / "records.jsonl", time.monotonic() + 30
        while not records.exists() or records.read_bytes().count(b"\n") < 50:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (point,) = json.loads(out)["points"]
    assert point["status"] == "interrupted"
    assert point["requests"]["ok"] >= 40  # the lines less the first and eight of warm-up
    assert set(point["requests"]["outcomes"]) <= {"ok", "cancelled"}
    assert (tmp_path / "run" / "summary.json").read_bytes() == out
