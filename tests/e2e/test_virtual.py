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
    monkeypatch.setattr("cadenza.measure.reach.child.start", forbidden)  # imports what would else be imported below
    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "create_connection", forbidden)
    monkeypatch.setattr(time, "sleep", forbidden)


def files(out: str) -> tuple[bytes, bytes, bytes]:
    """(records.jsonl, summary.json, telemetry.jsonl)."""
    names = ("records.jsonl", "summary.json", "telemetry.jsonl")
    records, summary, telemetry = (Path(out, name).read_bytes() for name in names)
    return records, summary, telemetry


def measure(out: str, *flags: str) -> tuple[bytes, bytes, bytes]:
    """The files of a run that went well."""
    assert main([*SWEEP, "--out", out, *flags]) == 0
    return files(out)


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
    assert files("d") == first


def test_the_run_is_whole_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    before_ns = time.time_ns()
    _, summary, _ = measure("run", "--seed", "7")
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


def test_engine_and_simulated_cards_are_sampled_in_the_runs_own_time() -> None:
    _, summary, telemetry = measure("run", "--seed", "7")
    head, *lines = (json.loads(line) for line in telemetry.splitlines())
    assert (head["simulated"], head["server_here"], head["interval_s"]) == (True, True, 0.5)
    points = manifest("run")["points"]
    stamps = [line["at_ns"] for line in lines if line["source"] == "engine"]
    assert stamps == [stamps[0] + n * 500_000_000 for n in range(len(stamps))]
    assert stamps[0] <= points[0]["start_ns"]  # after the preflight, which takes time, too
    assert points[-1]["end_ns"] - stamps[-1] <= 500_000_000
    assert {line["source"] for line in lines} == {"engine", "amdgpu", "edge"}
    for point, slots in zip(json.loads(summary)["points"], (2, 4), strict=True):
        machine = point["machine"]
        assert machine["virtual"] is True
        assert "host" not in machine
        # Forty answers keep all slots taken but for the last few, and all of them are in one batch.
        assert machine["engine"]["running_peak"] == slots
        assert machine["engine"]["running_mean"] == pytest.approx(slots, rel=0.05)
        assert machine["engine"]["waiting_peak"] <= slots
        assert 0 < machine["engine"]["kv_usage_peak"] < 0.1
        mi50, rx6900xt = machine["gpus"]
        assert (mi50["product"], rx6900xt["product"]) == ("AMD Instinct MI60 / MI50", "AMD Radeon RX 6900 XT")
        for gpu, gib in ((mi50, 32), (rx6900xt, 16)):
            assert gpu["busy_mean"] > 0.95
            assert 0.85 * gib < gpu["vram_peak_bytes"] / 2**30 < gib
            assert gpu["throttled_share"] == 0
            assert gpu["temperature_max_c"]["junction"] < gpu["temperature_limit_c"]["junction"]
        power_w = mi50["power_mean_w"] + rx6900xt["power_mean_w"]
        assert machine["joules_per_tok"] == pytest.approx(power_w / point["throughput_tok_per_s"])
        assert point["bottleneck"]["evidence"]


def test_whoever_watches_changes_nothing_and_may_be_sent_away() -> None:
    watched = measure("a", "--seed", "7")
    Path("off.toml").write_text("[telemetry]\noff = true\n", encoding="utf-8")
    assert main([*SWEEP, "--spec", "off.toml", "--seed", "7", "--out", "b"]) == 0
    assert Path("b/records.jsonl").read_bytes() == watched[0]
    assert not Path("b/telemetry.jsonl").exists()
    assert not any("machine" in point for point in json.loads(Path("b/summary.json").read_bytes())["points"])


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
        (("--virtual", "--timing", "magic"), 2, "--timing 'magic' is not one of calibrated"),
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
    assert point["requests"]["ok"] >= 50 - 1 - 16  # the lines less the first and two for each slot of warm-up
    assert set(point["requests"]["outcomes"]) <= {"ok", "cancelled"}
    assert (tmp_path / "run" / "summary.json").read_bytes() == out
