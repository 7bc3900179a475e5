"""The same server measured many times: how far each headline figure spreads, against the interval printed beside it.

    PYTHONPATH=src:tests python -m bench.aa [--server engine|batching] [--runs N] [--requests N|auto] [--points P,…]

Whole runs in this process and in virtual time: plan, loop, records on disk and summary are those of `cadenza sweep` at
its defaults, without the preflight screen and the report. `engine` is a model of the embedded engine's profile
mi50-rx6900xt; `batching` is tests/support/batching.py with 16 slots, which shares no code with the engine. Run k has
seed k for its plan and for the server's noise. `open` is a Poisson load of half of what 16 in flight complete.

A row is one figure over all runs of a point: mean, standard deviation, mean half-width of the 95 % intervals that have
both ends (all three in % of the mean from the second on), the share of intervals that hold the mean of all runs
(a missing end counts as infinite), the share without either end, and the share with one end only.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.clock import anchor
from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.text import output_token
from cadenza.engine.build import build_core
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import IN_PROCESS
from cadenza.measure.forecast import response_s
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing
from cadenza.measure.preflight import examine
from cadenza.measure.run import Access, Runner
from cadenza.report.columns import headline_percentile, label, ttft_headline
from cadenza.report.live import Progress
from cadenza.spec import Credentials, Spec, Telemetry
from cadenza.stats.distribution import Distribution
from cadenza.store.environment import describe_environment
from cadenza.store.manifest import Manifest, RunStatus, Server
from cadenza.store.rundir import create_run
from support import batching
from support.runs import server as known_server

PROFILE, MODEL = "mi50-rx6900xt", "Qwen/Qwen3-8B"
SLOTS, MEAN_TOKENS = 16, 192
# Half of what 16 in flight complete. Of the engine: its profile's row for C = 16, 152 ms + 191 · 82.5 ms an answer.
RATES_PER_S = {"engine": 0.5, "batching": round(batching.Server(slots=SLOTS).capacity_per_s(MEAN_TOKENS) / 2, 1)}
# Longer than any point needs: how long `auto` goes on by itself is what is looked at.
MAX_TIME_S = 604_800.0


class Figure(NamedTuple):
    """One figure of one run, with its interval; NaN: not determinable."""

    value: float
    low: float
    high: float


def _engine(seed: int, spec: Spec, phrasing: Phrasing) -> tuple[MemoryTransport, Server]:
    found = profile.load(PROFILE)
    core = build_core(found, None, seed=seed, output_token=output_token)
    transport = MemoryTransport(HttpApi(found, core=core))
    return transport, examine(transport, phrasing, spec, Credentials())


def _batching(seed: int, spec: Spec, phrasing: Phrasing) -> tuple[MemoryTransport, Server]:
    server = batching.Server(slots=SLOTS, seed=seed)
    first_ms = server.step_ms(1) + server.prefill_ms
    trial = {"trial_first_s": first_ms / 1000, "trial_token_s": server.step_ms(1) / 1000}
    return MemoryTransport(batching.BatchingPeer(server)), known_server(models=[MODEL], **trial)


SERVERS: dict[str, Callable[[int, Spec, Phrasing], tuple[MemoryTransport, Server]]] = {
    "engine": _engine,
    "batching": _batching,
}


def spec_of(server: str, point: str, requests: str, seed: int, rate_per_s: float | None) -> Spec:
    """One point at the defaults: `point` is a concurrency, or `open`."""
    rate = RATES_PER_S[server] if rate_per_s is None else rate_per_s
    return Spec(
        engine=PROFILE,
        virtual=True,
        models=(MODEL,),
        concurrency=() if point == "open" else (int(point),),
        rates_per_s=(rate,) if point == "open" else (),
        requests="auto" if requests == "auto" else int(requests) if requests != "default" else None,
        max_time_s=MAX_TIME_S,
        seed=seed,
        telemetry=Telemetry(off=True),
    )


def measure(server: str, spec: Spec, folder: Path) -> PointSummary:
    """One run of one point."""
    phrasing = Phrasing(spec, Credentials(), [IN_PROCESS])
    transport, found = SERVERS[server](spec.seed, spec, phrasing)
    manifest = Manifest(
        status=RunStatus.RUNNING,
        simulated=True,
        started="",
        anchor=anchor(transport.clock),
        argv=[],
        spec=spec,
        dataset_sha256=None,
        environment=describe_environment(),
        server=found,
        points=lay_out(spec, [MODEL], response_s(spec, found, MODEL)),
    )
    writer = create_run(folder / str(spec.seed), manifest)
    quiet = Progress(sys.stderr, quiet=True)
    (summary,) = Runner(spec, Access(transport, phrasing), writer, quiet, lambda: False, {}).run().points
    writer.close(RunStatus.COMPLETE)
    return summary


def figures(point: PointSummary, high: tuple[str, str]) -> dict[str, Figure]:
    """The headline figures; `high`: the percentiles of TTFT and TPOT that all runs carry."""
    interval = point.throughput_interval
    found = {"tok/s": Figure(point.throughput_tok_per_s, interval.low, interval.high)}
    for name, values, percentile in (
        ("TTFT", ttft_headline(point), high[0]),
        ("TPOT", point.tpot_ms, high[1]),
    ):
        for figure in dict.fromkeys(("mean", "p50", "p90", percentile)):
            found[f"{name} {figure.upper() if figure != 'mean' else figure}"] = _figure(values, figure)
    return found


def _figure(values: Distribution, name: str) -> Figure:
    low, high = values.intervals.get(name, (math.nan, math.nan))
    return Figure(getattr(values, name), low, high)


def rows(points: Sequence[PointSummary]) -> list[str]:
    """The table of one point."""
    high = headline_percentile([ttft_headline(p) for p in points]), headline_percentile([p.tpot_ms for p in points])
    runs = [figures(point, high) for point in points]
    lines = []
    for name in runs[0]:
        each = np.array([run[name] for run in runs])
        values, low, upper = each.T
        truth = float(values.mean())
        none, both = np.isnan(low) & np.isnan(upper), np.isfinite(low) & np.isfinite(upper)
        held = ~((truth < low) | (truth > upper))[~none]
        half = float(((upper - low) / 2)[both].mean()) if both.any() else math.nan
        covered = f"{100 * held.mean():.0f}" if len(held) else "–"
        spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
        lines.append(
            f"| {label(points[0])} | {name} | {truth:.4g} | {100 * spread / truth:.2f} | {100 * half / truth:.2f} |"
            f" {covered} | {100 * none.mean():.0f} | {100 * (~none & ~both).mean():.0f} |"
        )
    return lines


def remarks(points: Sequence[PointSummary]) -> str:
    """How many requests the runs took, and their verdicts with the reasons."""
    n = np.array([point.requests.sent for point in points])
    valid = 100 * np.mean([point.verdict is Verdict.VALID for point in points])
    reasons = Counter(check.name for point in points for check in point.checks if check.verdict not in (None, "VALID"))
    told = ", ".join(f"{name} {count}" for name, count in reasons.most_common()) or "none"
    least, low, middle, upper, most = np.percentile(n, [0, 5, 50, 95, 100])
    return (
        f"{label(points[0])}: {len(points)} runs, {valid:.0f} % VALID (checks that failed: {told}); measured requests "
        f"{least:.0f} to {most:.0f}, median {middle:.0f} (5 % {low:.0f}, 95 % {upper:.0f}); "
        f"{np.mean([point.duration_s for point in points]):.0f} s of virtual time"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=list(SERVERS), default="engine", help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--requests", default="default", help="N or auto (default: 128, at least 12 a slot)")
    parser.add_argument("--points", default="1,4,16,open", help="default: %(default)s")
    parser.add_argument("--rate", type=float, help="requests a second of the open point (default: half of capacity)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (default: %(default)s)")
    options = parser.parse_args()
    print(f"\n{options.server}, --requests {options.requests}, {options.runs} runs (SIMULATED)\n")
    print("| load | figure | mean | sd % | half-width % | covered % | neither end % | one end % |")
    print("| ---: | :--- | ---: | ---: | ---: | ---: | ---: | ---: |")
    told = []
    for name in options.points.split(","):
        begun = time.perf_counter()
        points = []
        for seed in range(options.seed, options.seed + options.runs):
            with TemporaryDirectory() as folder:
                spec = spec_of(options.server, name, options.requests, seed, options.rate)
                points.append(measure(options.server, spec, Path(folder)))
        print("\n".join(rows(points)), flush=True)
        told.append(remarks(points))
        print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    print("\n" + "\n".join(f"- {line}" for line in told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
