"""The article's whole campaign in virtual time, through the command line: 3 models x 5 concurrencies x 128 requests.

    python -m bench.campaign [--timing calibrated|calibrated:D|physics] [--seed S]

Prints the 45 values of the article's table (../tests/data/article/sweep.csv) beside the engine's own, with the
deviation of each, and the time it took. Throughput is steady state times phi: the article's client counted over a
window with ramp and drain in it, which is no business of the engine's. Phi comes from the same fit as the law; physics
is fitted to nothing and has the first fit's. Exit code 1: a value lies further away than the fit allows.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parents[1] / "tests" / "data" / "article" / "sweep.csv"
SWEEP = ("sweep", "--engine", "mi50-rx6900xt", "-c", "1,2,4,8,16", "--requests", "128", "--output-tokens", "128:256")


class Fit(NamedTuple):
    """What a law may be off by, in %, None: it is fitted to nothing; and phi by concurrency (alone: 1)."""

    allowed_pct: float | None
    phi: dict[int, float]


_B_PHI = dict.fromkeys((2, 4, 8, 16), 0.977)
FITS = {
    "calibrated": Fit(3.1, _B_PHI),
    "calibrated:D": Fit(1.6, {2: 0.9578, **dict.fromkeys((4, 8, 16), 0.9849)}),
    "physics": Fit(None, _B_PHI),
}


def sweep(timing: str, seed: int) -> tuple[list[dict[str, Any]], float]:
    """The points of the summary, and the seconds that the whole command took."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cadenza", *SWEEP, "--model", "all", "--virtual", "--timing", timing]
        command += ["--seed", str(seed), "--json", "--quiet", "--out", f"{folder}/run"]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False)
        took_s = time.perf_counter() - begun
    if done.returncode != 0:
        sys.exit(done.stderr.decode() or "a point is INVALID")
    points: list[dict[str, Any]] = json.loads(done.stdout)["points"]
    return points, took_s


def compare(row: dict[str, str], point: dict[str, Any], fit: Fit) -> list[tuple[float, float, float]]:
    """(printed, found, deviation in %) of throughput, mean TTFT and mean TPOT."""
    found = [
        point["throughput_tok_per_s"] * fit.phi.get(int(row["concurrency"]), 1.0),
        point["ttft_ms"]["mean"],
        point["tpot_ms"]["mean"],
    ]
    printed = [float(row[name]) for name in ("throughput_tok_s", "ttft_mean_ms", "tpot_mean_ms")]
    return [(old, new, 100 * (new / old - 1)) for old, new in zip(printed, found, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--timing", choices=FITS, default="calibrated", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    args = parser.parse_args()
    fit = FITS[args.timing]
    points, took_s = sweep(args.timing, args.seed)
    found = {(point["model"], point["concurrency"]): point for point in points}
    rows = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
    off: list[float] = []
    print(f"{args.timing}: printed, found, deviation in %  (SIMULATED)")
    print(f"{'model':<26} {'C':>2}  {'tok/s':>22}  {'TTFT ms':>22}  {'TPOT ms':>22}")
    for row in rows:
        three = compare(row, found[row["model"], int(row["concurrency"])], fit)
        cells = "  ".join(f"{old:7.2f} {new:7.2f} {pct:+6.1f}" for old, new, pct in three)
        print(f"{row['model']:<26} {row['concurrency']:>2}  {cells}")
        off += [abs(pct) for _, _, pct in three]
    worst = max(off)
    judged = "fitted to nothing" if fit.allowed_pct is None else f"allowed {fit.allowed_pct:g} %"
    tokens = sum(point["output_tokens"] for point in points)
    print(f"{len(off)} values, worst {worst:.2f} % ({judged}); {tokens:,} measured tokens in {took_s:.1f} s")
    return int(fit.allowed_pct is not None and worst > fit.allowed_pct)


if __name__ == "__main__":
    sys.exit(main())
