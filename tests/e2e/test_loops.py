"""The course of a point over sockets: freezes, cooldown and its bound, enough, budgets and interrupts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

MODEL = "Qwen/Qwen3-8B"
CADENZA = [sys.executable, "-m", "cadenza"]
# The engine runs 20 times faster than real time, and so do its faults: what follows is in real seconds.
SPEED = 20
RATE, REQUESTS = 20, 80


@contextlib.contextmanager
def engine(*faults: str) -> Iterator[str]:
    """Its base URL."""
    command = [*CADENZA, "engine", "--port", "0", "--speed", str(SPEED), "--exit-with-parent"]
    command += [flag for fault in faults for flag in ("--fault", fault)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.communicate()


def freeze(seconds: float, at: float) -> str:
    return f"freeze:{seconds * SPEED:g}@{at * SPEED:g}"


def start(cwd: Path, *flags: str, verb: str = "run") -> subprocess.Popen[str]:
    command = [*CADENZA, verb, "--model", MODEL, "--out", "run", "--json", *flags]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> tuple[dict[str, Any], str]:
    """The summary, and what was said; no verdict makes a run fail here."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert "Traceback" not in err
    assert out, err
    summary: dict[str, Any] = json.loads(out)
    return summary, err


def records(cwd: Path) -> list[dict[str, Any]]:
    files = sorted((cwd / "run").glob("records*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()[1:]]


def of(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [record for record in found if record["phase"] == phase]


def conserve(point: dict[str, Any], found: list[dict[str, Any]], workers: int = 1) -> None:
    """Planned = sent + dropped, and each measured request has one record, with no gap between a worker's numbers."""
    counts = point["requests"]
    assert counts["planned"] == counts["sent"] + counts["dropped"]
    assert counts["sent"] == counts["ok"] + counts["failed"] == sum(counts["outcomes"].values())
    for worker in range(workers):
        numbers = sorted(record["index"] for record in found if record.get("worker", 0) == worker)
        assert numbers == list(range(worker, worker + workers * len(numbers), workers))
    assert len(of(found, "measure")) == counts["planned"]


def in_flight_peak(found: list[dict[str, Any]]) -> int:
    edges = [(record["sent_ns"], 1) for record in found if "sent_ns" in record]
    edges += [(record["done_ns"], -1) for record in found if "sent_ns" in record]
    return int(np.cumsum([step for _, step in sorted(edges)]).max())


def user_ttft_ms(found: list[dict[str, Any]]) -> list[float]:
    return [(r["event_ns"][0] - r["intended_ns"]) / 1e6 for r in of(found, "measure") if r.get("event_ns")]


@pytest.mark.parametrize(
    ("flags", "at"), [((), 3.2), ((), 4.0), (("-c", "4"), 4.0)], ids=["open", "open, at the end", "capped, at the end"]
)
def test_a_frozen_server_is_in_the_figures_or_the_point_is_not_valid(
    flags: tuple[str, ...], at: float, tmp_path: Path
) -> None:
    """Two seconds of silence in four of arrivals, in the middle or over their end."""
    with engine(freeze(2.0, at)) as url:
        load = ("--rate", str(RATE), "--requests", str(REQUESTS), "--warmup", "5", "--output-tokens", "20", *flags)
        summary, err = finish(start(tmp_path, "--url", url, "--seed", "1", *load))
    (point,), found = summary["points"], records(tmp_path)
    conserve(point, found)
    waits = user_ttft_ms(found)
    assert len(waits) == point["requests"]["ok"] == REQUESTS, err
    assert max(waits) > 500  # the freeze met the run
    headline = point["user_ttft_ms"]
    assert headline["n"] == REQUESTS
    for name, q in (("p50", 50), ("p99", 99)):
        assert headline[name] == pytest.approx(np.percentile(waits, q), rel=0.001)
    after = of(found, "cooldown")
    last_ns = max(record["done_ns"] for record in of(found, "measure"))
    assert all(record["intended_ns"] <= last_ns + 1e8 for record in after)
    last_due_ns = max(record["intended_ns"] for record in of(found, "measure"))
    if not flags and last_ns - last_due_ns > 5e8:  # ten arrivals or so; under a cap they queue behind the measured ones
        assert after
    assert in_flight_peak(found) <= (4 if flags else 1000)


def test_a_server_that_hangs_at_the_end_gives_lower_bounds(tmp_path: Path) -> None:
    """From then on it is silent for ever: two seconds after the last request was due, those out are cancelled."""
    with engine(freeze(4000, 4.0)) as url:
        load = ("--rate", str(RATE), "--requests", str(REQUESTS), "--warmup", "5", "--output-tokens", "20")
        began = time.monotonic()
        summary, _ = finish(start(tmp_path, "--url", url, "--seed", "1", "--cooldown", "2s", *load))
        assert time.monotonic() - began < 20
    (point,), found = summary["points"], records(tmp_path)
    conserve(point, found)
    assert point["verdict"] != "VALID"
    measured = of(found, "measure")
    cut = [record for record in measured if record["outcome"] == "cancelled"]
    assert cut
    assert {record["detail"] for record in cut} == {"not ended when the load did"}
    last_due_ns = max(record["intended_ns"] for record in measured)
    assert all(1.9e9 <= record["done_ns"] - last_due_ns <= 2.5e9 for record in cut)
    waited = [record for record in cut if not record.get("event_ns")]
    headline = point["user_ttft_ms"]
    assert headline["censored"] == len(waited) > 1
    assert "p99" in headline["bounds"]
    # No smaller than if each of them had been answered the moment that it was given up.
    every = [*user_ttft_ms(found), *((r["done_ns"] - r["intended_ns"]) / 1e6 for r in waited)]
    assert headline["p99"] == pytest.approx(np.percentile(every, 99), rel=0.001)
    text = subprocess.run([*CADENZA, "show", "run"], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "≥" in text


def test_two_workers_until_it_is_enough(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("workers = 2\n")
    load = ("--requests", "auto", "--max-time", "8s", "-c", "4", "--output-tokens", "8:16", "--seed", "3")
    began = time.monotonic()
    summary, err = finish(start(tmp_path, "--spec", "spec.toml", "--speed", str(SPEED), *load))
    assert time.monotonic() - began < 25, err
    (point,), found = summary["points"], records(tmp_path)
    conserve(point, found, workers=2)
    assert {record.get("worker", 0) for record in found} == {0, 1}
    assert set(point["requests"]["outcomes"]) == {"ok"}
    assert point["requests"]["ok"] >= 130
    assert in_flight_peak(found) <= 4
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["spec"]["requests"], manifest["points"][0]["auto"]) == ("auto", True)


@pytest.mark.parametrize("phase", ["warmup", "measure", "cooldown"])
def test_ctrl_c_in_each_phase_is_a_report_and_130(phase: str, tmp_path: Path) -> None:
    """The server falls silent after 4 s, so that the cooldown lasts until somebody ends it."""
    with engine(freeze(4000, 4.0)) as url:
        warmup = 5000 if phase == "warmup" else 5
        # Five seconds of arrivals are not over before the server falls silent, and long over before the signal.
        requests = 100 if phase == "cooldown" else 5000
        load = ("--rate", str(RATE), "--requests", str(requests), "--warmup", str(warmup), "--output-tokens", "20")
        process = start(tmp_path, "--url", url, *load)
        deadline = time.monotonic() + 30
        while not (tmp_path / "run" / "records.jsonl").exists() or len(records_so_far(tmp_path)) < 20:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if phase == "cooldown":
            time.sleep(8)
        os.killpg(process.pid, signal.SIGINT)
        summary, err = finish(process)
    assert process.returncode == 130, err
    (point,), found = summary["points"], records(tmp_path)
    assert point["status"] == "interrupted"
    assert point["verdict"] != "VALID"
    counts = point["requests"]
    assert counts["planned"] == requests == counts["sent"] + counts["dropped"]
    assert counts["sent"] == sum(counts["outcomes"].values())
    numbers = sorted(record["index"] for record in found)
    assert numbers == list(range(len(numbers)))
    assert len(of(found, "measure")) == requests
    sent = [record for record in of(found, "measure") if "sent_ns" in record]
    assert (len(sent) == 0) == (phase == "warmup")
    assert (len(of(found, "cooldown")) > 0) == (phase == "cooldown")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"


def records_so_far(cwd: Path) -> list[str]:
    return (cwd / "run" / "records.jsonl").read_text().splitlines()[1:]


@pytest.mark.timeout(150)
def test_quick_says_how_long_it_takes_and_takes_no_longer(tmp_path: Path) -> None:
    load = ("--quick", "--speed", "5", "-c", "2,4", "--output-tokens", "8:16", "--seed", "3")
    began = time.monotonic()
    summary, err = finish(start(tmp_path, *load, verb="sweep"), 130)
    assert time.monotonic() - began < 120
    line = next(line for line in err.splitlines() if line.strip().startswith("time"))
    assert "at most 2 min (--max-time)" in line
    assert err.index(line) < err.index("[1/2]")
    assert [point["requests"]["ok"] >= 130 for point in summary["points"]] == [True, True]


def test_the_time_that_was_given_ends_a_sweep(tmp_path: Path) -> None:
    """Answers of half a second and more, of which no point gets 130 in its share of 9 s."""
    load = ("--max-time", "9s", "--speed", "5", "-c", "1,2,4", "--seed", "3", "--output-tokens", "40:80")
    began = time.monotonic()
    summary, _ = finish(start(tmp_path, *load, verb="sweep"))
    assert time.monotonic() - began < 9 + 5  # start-up and report
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    taken_s = (manifest["points"][-1]["end_ns"] - manifest["points"][0]["start_ns"]) / 1e9 / 5
    assert taken_s < 9 + 2
    assert all(0 < point["requests"]["ok"] < 130 for point in summary["points"])
