"""Four hours at C = 16 in virtual time, through the command line: how long it takes, how much room, and twice the same.

    python -m bench.soak [--hours H] [--seed S] [--timing LAW]

Peak memory is the child's own high-water mark (ru_maxrss, which is VmHWM). That one seed gives one course of events is
shown on a shorter soak, run twice. Exit code 1: a target was missed.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SOAK = ("sweep", "--engine", "mi50-rx6900xt", "--model", "Qwen/Qwen3-8B", "-c", "16", "--virtual", "--json", "--quiet")
MAX_S, MAX_MB = 60.0, 600.0
AGAIN_HOURS = 0.25


class Soak(NamedTuple):
    """One run: its only point, and what it took."""

    point: dict[str, Any]
    wall_s: float
    peak_mb: float
    sha256: str


def soak(hours: float, seed: int, flags: list[str]) -> Soak:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cadenza", *SOAK, "--duration", str(3600 * hours), "--seed", str(seed)]
        out, begun = Path(folder) / "summary.json", time.perf_counter()
        with out.open("wb") as stdout:
            process = subprocess.Popen([*command, *flags, "--out", f"{folder}/run"], stdout=stdout)
            _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"exit code {process.returncode}")
        with (Path(folder) / "run" / "records.jsonl").open("rb") as records:
            sha256 = hashlib.file_digest(records, "sha256").hexdigest()
        (point,) = json.loads(out.read_bytes())["points"]
    return Soak(point, wall_s, used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024), sha256)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=4.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--timing", help="default: the profile's own")
    args = parser.parse_args()
    flags = [] if args.timing is None else ["--timing", args.timing]
    done = soak(args.hours, args.seed, flags)
    point, tokens = done.point, done.point["output_tokens"]
    requests = point["requests"]
    print(f"{args.hours:g} h at C = 16  (SIMULATED), {point['verdict']}")
    print(f"requests  {requests['ok']:,} of {requests['sent']:,}")
    print(f"tokens    {tokens:,}  {point['throughput_tok_per_s']:.2f} tok/s in steady state")
    print(f"took      {done.wall_s:.1f} s, {1e6 * done.wall_s / tokens:.1f} us a token")
    print(f"memory    {done.peak_mb:.0f} MB at most")
    print(f"sha256    {done.sha256}")
    # The board's temperatures, settled, belong here: printed beside the article's soak, ±0.5 °C.
    again = [soak(AGAIN_HOURS, args.seed, flags).sha256 for _ in range(2)]
    other = soak(AGAIN_HOURS, args.seed + 1, flags).sha256
    same = again[0] == again[1] != other
    print(f"twice     {AGAIN_HOURS:g} h: {'the same bytes, and others for another seed' if same else 'NOT the same'}")
    return int(not same or done.wall_s > MAX_S or done.peak_mb > MAX_MB)


if __name__ == "__main__":
    sys.exit(main())
