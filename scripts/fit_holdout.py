"""Out-of-sample errors of `cadenza fit` on simulated servers, and what the tool says about each.

These are the tables of docs/how-to/simulate-a-server.md.

    python scripts/fit_holdout.py [--servers physics,calibrated] [--requests 256] [--seeds 1,2,3] [--margins]

A profile is fitted to a closed-loop sweep at C = 1, 4, 16 of one server, in virtual time. Then server and profile are
measured under the same load (same seeds), inside and outside of what was fitted. Errors are (profile − server) / server
in %, the mean over the seeds; of percentiles, the largest of them. `--margins` varies one length by 5 to 50 % instead,
which is where the margins of `analysis.extrapolation` come from.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cadenza.cli.main import main as cadenza

MODEL = "Qwen/Qwen3-8B"
PROMPTS, OUTPUT = "random:200:800", "64:128"
ENGINE = "mi50-rx6900xt"
Summary = dict[str, Any]


class Case(NamedTuple):
    title: str
    load: tuple[str, ...]
    prompts: str = PROMPTS
    output: str = OUTPUT


CASES = (
    Case("C = 4, as measured", ("-c", "4")),
    Case("C = 2, between rows", ("-c", "2")),
    Case("C = 8, between rows", ("-c", "8")),
    Case("C = 12, between rows", ("-c", "12")),
    Case("C = 24, beyond the last row", ("-c", "24")),
    Case("C = 64, beyond the last row", ("-c", "64")),
    Case("C = 8, outputs 8:24", ("-c", "8"), output="8:24"),
    Case("C = 8, outputs 256:512", ("-c", "8"), output="256:512"),
    Case("C = 8, prompts of 50", ("-c", "8"), prompts="random:50"),
    Case("C = 8, prompts of 3,000", ("-c", "8"), prompts="random:3000"),
    Case("open loop, 0.5/s", ("--rate", "0.5")),
    Case("open loop, 1/s", ("--rate", "1")),
    Case("open loop, 2/s", ("--rate", "2")),
    Case("capped at 16, 1/s, gamma 0.25", ("--rate", "1", "-c", "16", "--arrivals", "gamma:0.25")),
)
COLUMNS = (
    ("tok/s", ("throughput_tok_per_s",)),
    ("TTFT mean", ("ttft_ms", "mean")),
    ("TPOT mean", ("tpot_ms", "mean")),
    ("TPOT P50", ("tpot_ms", "p50")),
    ("TPOT P95", ("tpot_ms", "p95")),
    ("ITL P50", ("itl_ms", "p50")),
    ("ITL P95", ("itl_ms", "p95")),
    ("ITL P99", ("itl_ms", "p99")),
)


def margin_cases() -> Iterator[Case]:
    """C = 8 with one length other by a known share, all lengths fixed."""
    for pct in (-50, -20, -15, -10, -5, 5, 10, 15, 20, 50):
        yield Case(f"outputs {pct:+d} %", ("-c", "8"), "random:500", str(round(96 * (1 + pct / 100))))
    for pct in (-50, -20, -15, -10, -5, 5, 10, 15, 20, 50):
        yield Case(f"prompts {pct:+d} %", ("-c", "8"), f"random:{round(500 * (1 + pct / 100))}", "96")


def run(*argv: str) -> str:
    """The stdout of a command; exits where it fails by more than a verdict."""
    out, err = io.StringIO(), io.StringIO()
    raw = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(raw), contextlib.redirect_stderr(err):
        code = cadenza(list(argv))
    if code not in (0, 1):
        sys.exit(f"{' '.join(argv)}: exit {code}\n{err.getvalue()}")
    raw.seek(0)
    return out.getvalue() + raw.read()


def sweep(folder: Path, names: Iterator[int], engine: tuple[str, ...], case: Case, seed: int, n: int) -> Path:
    out = folder / str(next(names))
    load = ("--requests", str(n), "--seed", str(seed), "--prompts", case.prompts, "--output-tokens", case.output)
    run("sweep", "--virtual", "--model", MODEL, *engine, *case.load, *load, "--out", str(out), "--quiet", "--json")
    return out


def read(path: Path) -> Summary:
    point: Summary = json.loads((path / "summary.json").read_bytes())["points"][0]
    return point


def pick(point: Summary, path: tuple[str, ...]) -> float:
    value: Any = point
    for name in path:
        value = value[name]
    return float("nan") if value is None else float(value)


def compare(
    folder: Path, names: Iterator[int], server: tuple[str, ...], base: Case, cases: list[Case], args: Any
) -> None:
    """One table: a row a case, the profile against the server."""
    profiles = {}
    for seed in args.seeds:
        source = sweep(folder, names, server, base, seed, args.requests)
        profiles[seed] = folder / f"{next(names)}.toml"
        run("fit", str(source), "-o", str(profiles[seed]))
    head = [name for name, _ in COLUMNS]
    print(f"| load | {' | '.join(head)} | verdict | extrapolated | said not to be known |")
    print(f"|---|{'---:|' * len(head)}---|---|---|")
    for case in cases:
        errors: dict[str, list[float]] = {name: [] for name in head}
        verdicts: Counter[str] = Counter()
        reasons: dict[str, None] = {}
        unknown: Counter[str] = Counter()
        for seed, profile in profiles.items():
            # Another seed than the fit's: the load is drawn anew.
            true = read(sweep(folder, names, server, case, seed + 1000, args.requests))
            fitted = (*server[:2], "--engine", str(profile), "--timing", "measured")
            point = read(sweep(folder, names, fitted, case, seed + 1000, args.requests))
            for name, path in COLUMNS:
                errors[name].append(100 * (pick(point, path) / pick(true, path) - 1))
            verdicts[point["verdict"]] += 1
            # Of one seed only: the lengths in the sentences differ a little from one to the next.
            reasons = reasons or dict.fromkeys(one for one in point["reasons"] if one.startswith("extrapolated"))
            for note in point["notes"]:
                unknown.update(re.findall(r"(?:TPOT|ITL|TTFT) (?:P\d+|mean)", note))
        cells = [
            f"{max(kept, key=abs):+.1f}" if "P" in name.split()[-1] else f"{sum(kept) / len(kept):+.1f}"
            for name, kept in errors.items()
        ]
        told = "; ".join(reasons).replace("extrapolated: ", "") or "–"
        stamp = ", ".join(f"{verdict} {n}/{len(profiles)}" for verdict, n in verdicts.items())
        noted = ", ".join(f"{name} {n}/{len(profiles)}" for name, n in sorted(unknown.items())) or "–"
        print(f"| {case.title} | {' | '.join(cells)} | {stamp} | {told} | {noted} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="physics,calibrated", help="timing laws of the engine that is measured")
    parser.add_argument("--requests", type=int, default=256, help="measured requests a point (256)")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--margins", action="store_true", help="vary one length at a time instead")
    args = parser.parse_args()
    cases = list(margin_cases()) if args.margins else list(CASES)
    prompts, output = ("random:500", "96") if args.margins else (PROMPTS, OUTPUT)
    names = itertools.count()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name
        off = Path(name) / "off.toml"
        off.write_text("[telemetry]\noff = true\n", encoding="utf-8")
        for law in args.servers.split(","):
            print(f"\n{ENGINE}, {law} law, {args.requests} requests a point, {len(args.seeds)} seeds, errors in %:\n")
            server = ("--spec", str(off), "--engine", ENGINE, "--timing", law)
            base = Case("", ("-c", "1,4,16"), prompts, output)
            compare(Path(name), names, server, base, cases, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
