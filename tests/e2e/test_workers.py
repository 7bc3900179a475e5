"""Several processes of the client, through the command line: one plan, one report, and no run that hangs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SPEC = """
engine = "mi50-rx6900xt"
models = ["Qwen/Qwen3-8B"]
speed = 20.0
concurrency = [4]
requests = 60
output_tokens = [20, 20]
seed = 7
workers = {workers}
"""


def start(cwd: Path, workers: int) -> subprocess.Popen[str]:
    (cwd / "spec.toml").write_text(SPEC.format(workers=workers))
    command = [sys.executable, "-m", "cadenza", "run", "--spec", "spec.toml", "--out", "run", "--json"]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def show(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cadenza", "show", "run", "--json"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def test_three_workers_one_plan(tmp_path: Path) -> None:
    process = start(tmp_path, 3)
    out, err = process.communicate(timeout=90)
    (point,) = json.loads(out)["points"]
    assert process.returncode in (0, 1), err
    assert point["requests"]["outcomes"] == {"ok": 60}
    assert point["in_flight"]["peak"] <= 4
    files = [tmp_path / "run" / name for name in ("records.jsonl", "records-1.jsonl", "records-2.jsonl")]
    found = [[json.loads(line) for line in file.read_text().splitlines()[1:]] for file in files]
    for worker, records in enumerate(found):
        assert {record["index"] % 3 for record in records} == {worker}
        assert {record.get("worker", 0) for record in records} == {worker}
    planned = [record["index"] for records in found for record in records if record["phase"] != "cooldown"]
    assert sorted(planned) == list(range(8 + 60))  # two rounds of warm-up, and what was asked for
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [worker["worker"] for worker in manifest["points"][0]["workers"]] == [0, 1, 2]
    assert show(tmp_path).stdout == out


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in Linux's /proc")
def test_a_killed_worker_is_an_invalid_run_with_a_report(tmp_path: Path) -> None:
    process = start(tmp_path, 2)
    while lines(tmp_path / "run" / "records-1.jsonl") < 4 + 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    children = [
        int(child)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if b"engine" not in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    os.kill(children[-1], signal.SIGKILL)  # the first one watches the machine
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "worker 1 of the client was killed by SIGKILL" in err
    (point,) = json.loads(out)["points"]
    assert (point["verdict"], point["status"]) == ("INVALID", "failed")
    assert point["requests"]["ok"] >= 3
    again = show(tmp_path)
    assert (again.stdout, again.returncode) == (out, 1)


def test_an_interrupt_reaches_all_workers(tmp_path: Path) -> None:
    process = start(tmp_path, 2)
    while lines(tmp_path / "run" / "records.jsonl") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (point,) = json.loads(out)["points"]
    assert point["status"] == "interrupted"
    counts = point["requests"]
    assert counts["planned"] == 60 == counts["sent"] + counts["dropped"]
    assert counts["dropped"] > 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in Linux's /proc")
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    process = start(tmp_path, 2)
    while lines(tmp_path / "run" / "records-1.jsonl") < 4 + 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (point,) = json.loads(show(tmp_path).stdout)["points"]
    assert point["status"] == "interrupted"
    assert point["requests"]["ok"] >= 3
