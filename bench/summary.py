"""Time and memory of one point's summary, against another revision of this repository, in turn.

    python -m bench.summary [--base REVISION] [--requests N] [--events M] [--repeats K] [--load closed|open …]

N requests of M events each (default 100,000 of 100), made up here: TTFT 50 ms and gaps of 10 ms, both lognormal, at
64 in flight (closed) or as Poisson arrivals that keep about 64 in flight (open). Each summary is made in a process of
its own: base, now, base, now, … Seconds are CPU seconds of `summarise_point` alone, MiB the most that the process held
above what it held with the records read (VmHWM, Linux), and in all. The last two lines are ratios of the medians.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cadenza.analysis.summary import summarise_point
from cadenza.record import LoadLabel, Outcome, Phase, Point, PointStatus, Record, TokenSource

ROOT = Path(__file__).parents[1]
SLOTS, TTFT_MS, GAP_MS = 64, 50.0, 10.0
MS = 1_000_000
# Fields and phases that the base may not have.
_TEXT = {"text_bytes", "first_text_bytes"} <= set(Record.__struct_fields__)
_COOLDOWN = getattr(Phase, "COOLDOWN", Phase.MEASURE)


def make_records(load: str, requests: int, events: int) -> tuple[Point, list[Record]]:
    """The point and its records, in the order in which they ended; the same for all revisions."""
    rng = np.random.default_rng(1)
    warmup, cooldown = 2 * SLOTS, SLOTS
    n = warmup + requests + cooldown
    due_ns = _due_ns(load, n, events, rng)
    records = []
    for index, due in enumerate(due_ns.tolist()):
        gaps = np.concatenate([TTFT_MS * rng.lognormal(0, 0.2, 1), GAP_MS * rng.lognormal(0, 0.1, events - 1)])
        stamps = (due + np.cumsum(gaps) * MS).astype(np.int64).tolist()
        phase = Phase.WARMUP if index < warmup else Phase.MEASURE if index < n - cooldown else _COOLDOWN
        record = Record(
            point=0, index=index, phase=phase, model="m", outcome=Outcome.OK, intended_ns=due, sent_ns=due + 20_000,
            headers_ns=stamps[0], event_ns=stamps, done_ns=stamps[-1] + 10_000, prompt_tokens=20, output_tokens=events,
            token_source=TokenSource.USAGE, asked_output_tokens=events, aimed_prompt_tokens=20, read_lag_ns=50_000,
            finish_reason="length", status=200,
        )  # fmt: skip
        if _TEXT:
            record.text_bytes, record.first_text_bytes = 4 * events, 4
        records.append(record)
    records.sort(key=lambda record: record.done_ns or 0)
    closed = load == "closed"
    point = Point(
        index=0, model="m", load=LoadLabel.CLOSED if closed else LoadLabel.OPEN, concurrency=SLOTS if closed else None,
        rate_per_s=None if closed else _rate_per_s(events), planned=requests, warmup=warmup,
        status=PointStatus.COMPLETE, start_ns=0, end_ns=records[-1].done_ns,
    )  # fmt: skip
    return point, records


def _rate_per_s(events: int) -> float:
    return 1000 * SLOTS / (TTFT_MS + GAP_MS * (events - 1))


def _due_ns(load: str, n: int, events: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Closed: 64 slots that send again every response time, evenly shifted; the lognormal's mean is above its median,
    so that a few answers overlap in a slot, which costs nothing here."""
    if load == "open":
        return np.cumsum(rng.exponential(1e9 / _rate_per_s(events), n)).astype(np.int64)
    return (np.arange(n) * (1e9 / _rate_per_s(events)) * 1.05).astype(np.int64)


def measure_one(load: str, requests: int, events: int) -> dict[str, float]:
    """In this process: seconds and MiB."""
    point, records = make_records(load, requests, events)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins again here
    before = _status_mib("VmRSS")
    begun = time.process_time()
    summary = summarise_point(point, records)
    spent = time.process_time() - begun
    most = _status_mib("VmHWM")
    return {"s": spent, "above": most - before, "in all": most, "n": summary.ttft_ms.n}


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def in_process(source: Path, load: str, options: argparse.Namespace) -> dict[str, float]:
    """With the package below `source`."""
    command = [sys.executable, "-P", __file__, "--one", load]
    command += ["--requests", str(options.requests), "--events", str(options.events)]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONPATH": str(source)}, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.decode(errors="replace"))
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(load: str, base: Path, options: argparse.Namespace) -> None:
    found: dict[str, list[dict[str, float]]] = {"base": [], "now": []}
    for _ in range(options.repeats):
        for name, source in (("base", base), ("now", ROOT / "src")):
            one = in_process(source, load, options)
            found[name].append(one)
            print(
                f"{load:6s} {name:4s} {one['s']:7.2f} s {one['above']:7.0f} MiB above the records, "
                f"{one['in all']:7.0f} MiB in all, {one['n']:,.0f} values of TTFT",
                flush=True,
            )
    ratios = [median(o[key] for o in found["now"]) / median(o[key] for o in found["base"]) for key in ("s", "above")]
    whole = median(o["in all"] for o in found["now"]) / median(o["in all"] for o in found["base"])
    print(f"{load:6s} now / base: time {ratios[0]:.2f}, memory above the records {ratios[1]:.2f}, in all {whole:.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="5273661", help="revision to compare with (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--events", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--load", nargs="+", choices=("closed", "open"), default=["closed", "open"])
    parser.add_argument("--one", choices=("closed", "open"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one, options.requests, options.events)))
        return 0
    with TemporaryDirectory() as folder:
        tree = subprocess.run(["git", "archive", options.base, "src"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=tree.stdout, check=True)
        for load in options.load:
            compare(load, Path(folder) / "src", options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
