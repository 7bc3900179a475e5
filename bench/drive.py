"""cadenza as its users run it, in a process of its own, pinned or not: what its report and its manifest say.

Imported by the scripts beside it, which run as `python -m bench.NAME`. A run is kept below build/bench/ and replaced by
the next of the same name.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from bench.truth_server import BUILD, pinned

WITHIN_S = 300.0


class Ours(msgspec.Struct):
    """One point: its summary as `--json` prints it, its workers from the manifest, and its folder."""

    point: dict[str, Any]
    workers: list[dict[str, Any]]
    folder: Path

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all workers while they measured."""
        return float(sum(worker["cpu_s"] for worker in self.workers))

    @property
    def wall_s(self) -> float:
        """Seconds of the longest worker."""
        return float(max(worker["wall_s"] for worker in self.workers))

    @property
    def events(self) -> int:
        """Token events of all answers, warm-up too."""
        return sum(len(record.get("event_ns", ())) for record in self.records())

    def records(self) -> list[dict[str, Any]]:
        """All records, worker after worker."""
        files = sorted(self.folder.glob("records*.jsonl"))
        return [msgspec.json.decode(line) for file in files for line in file.read_bytes().splitlines()[1:]]


def run_ours(
    name: str, spec: dict[str, Any], core: int | None = None, during: Callable[[], None] | None = None
) -> Ours:
    """Measure `spec` (fields of `cadenza.spec.Spec`, one point) on the nth core; `during` is called once it runs."""
    folder = BUILD / "bench" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    given = folder.with_suffix(".json")
    given.write_bytes(msgspec.json.encode({"concurrency": (), **spec}))
    files = ["--spec", str(given), "--out", str(folder)]
    command = [sys.executable, "-m", "cadenza", "run", *files, "--json", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=pinned(core))
    if during is not None:
        while not (folder / "records.jsonl").exists() and process.poll() is None:
            time.sleep(0.01)
        during()
    out, err = process.communicate(timeout=WITHIN_S)
    if not out:
        sys.exit(f"cadenza did not report on {name}: {err.decode(errors='replace').strip()}")
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    return Ours(msgspec.json.decode(out)["points"][0], manifest["points"][0]["workers"], folder)


def verdict(ours: Ours) -> str:
    """The point's verdict, with its worst reason."""
    reasons = ours.point["reasons"]
    return str(ours.point["verdict"]) + (f": {reasons[0]}" if reasons else "")
