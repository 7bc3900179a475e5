"""A run may be stopped at any time, in any way, and there is a report of what was measured."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# Two points of many short answers each, on the embedded engine: some seconds in all.
SWEEP = ("sweep", "--speed", "20", "--model", "Qwen/Qwen3-8B", "-c", "2,4", "--requests", "60", "--output-tokens", "20")


def start(cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cadenza", *SWEEP, "--out", "run"]
    # A group of its own, as a terminal's foreground job is: Ctrl-C reaches every process of it.
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def records(cwd: Path) -> int:
    path = cwd / "run" / "records.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def wait_for_records(cwd: Path, n: int) -> None:
    deadline = time.monotonic() + 30
    while records(cwd) < n:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def show(cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cadenza", "show", "run", *flags]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30, check=False)


def test_after_kill_9_everything_that_had_ended_is_reported(tmp_path: Path) -> None:
    process = start(tmp_path)
    try:
        wait_for_records(tmp_path, 20)
    finally:
        process.kill()
        process.communicate()
    ended = records(tmp_path)
    text = show(tmp_path)
    assert "run: interrupted, 1 of 2 points begun" in text.stdout
    assert "interrupted after" in text.stdout
    (point,) = json.loads(show(tmp_path, "--json").stdout)["points"]
    assert point["status"] == "interrupted"
    assert point["requests"]["ok"] == ended - 4  # less two rounds of warm-up of two slots: nothing else is missing
    assert point["requests"]["dropped"] == 60 - point["requests"]["sent"]
    assert point["throughput_tok_per_s"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the process in /proc, which only Linux has")
def test_the_engine_does_not_outlive_a_killed_sweep(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_records(tmp_path, 1)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    )
    engine = int(children.stdout.split()[0])
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{engine}").exists() and Path(f"/proc/{engine}/status").read_text().find("Z (zombie)") < 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_a_full_report_and_130(number: int, tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_records(tmp_path, 20)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted after" in out
    (point,) = json.loads(show(tmp_path, "--json").stdout)["points"]
    assert point["verdict"] in ("SUSPECT", "CLIENT-LIMITED")  # never VALID, and what there is may be used
    requests = point["requests"]
    # Up to two were in flight; they are cancelled by us, not lost by the server.
    assert set(requests["outcomes"]) <= {"ok", "cancelled"}
    assert requests["planned"] == requests["sent"] + requests["dropped"] == 60
    assert (tmp_path / "run" / "summary.json").read_text() == show(tmp_path, "--json").stdout
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert [p.get("status", "pending") for p in manifest["points"]] == ["interrupted", "pending"]
