"""How often the printed intervals hold the truth, under load of a simulated batching server (`tests/support/batching`).

For each configuration `--seeds` independent runs: the figures of the measured requests, in order of dispatch, at the
size that an automatic stop would choose (throughput and the means of TTFT and TPOT within ±5 %, 130 requests for a P95)
or at the sizes given. The truth is the figure over all runs together, at their full length. A row says for each figure
which percentage of the determinable intervals hold it (`-`: none is), then the percentage of runs in which neither
end, and in which only one end could be determined. A missing end counts as infinite.

    PYTHONPATH=src:tests python scripts/coverage.py --seeds 100 --law uniform
"""

import argparse
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cadenza.record import Record
from cadenza.stats import latency
from cadenza.stats.columns import Columns, Floats
from cadenza.stats.distribution import FLOORS
from cadenza.stats.intervals import (
    Interval,
    mean_interval,
    phases_seen,
    quantile_interval,
    rate_interval,
    round_of,
)
from support.batching import Lengths, Server, closed_records, fixed, heavy, open_records, uniform

LAWS: dict[str, Lengths] = {"uniform": uniform(), "fixed": fixed(), "heavy": heavy()}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
SERIES = ("ttft", "tpot", "latency")
FIGURES = ("tok/s", *(f"{name} {figure}" for name in SERIES for figure in ("mean", *QUANTILES)))
TARGET = 0.05


class Run(NamedTuple):
    """The measured requests of one run, in order of dispatch, and all its events."""

    series: dict[str, Floats]
    sent_ms: Floats
    tokens: Floats
    event_ms: Floats
    event_tok: Floats


class Load(NamedTuple):
    name: str
    law: str
    slots: int | None  # closed loop
    rho: float | None  # open loop

    def records(self, seed: int, measured: int, open_slots: int, shape: float = 1.0) -> list[Record]:
        lengths = LAWS[self.law]
        if self.slots is not None:
            server = Server(slots=self.slots, seed=10_000 + seed)
            return closed_records(server, self.slots, lengths, warmup=2 * self.slots, measured=measured, seed=seed)
        rng, server = np.random.default_rng(seed), Server(slots=open_slots, seed=10_000 + seed)
        mean = float(lengths(np.random.default_rng(0), 200_000).mean())
        n, warmup = round(1.1 * measured) + 1000, 500
        gap_ms = 1000 / ((self.rho or 0) * server.capacity_per_s(mean))
        due = np.cumsum(rng.exponential(gap_ms, n) if shape == 1 else rng.gamma(shape, gap_ms / shape, n))
        return open_records(server, due, lengths(rng, n), warmup=warmup, measured=measured)


def run_of(records: list[Record]) -> Run:
    columns = Columns.of(records)
    chosen = np.flatnonzero(columns.measured & columns.ok)
    chosen = chosen[np.argsort(columns.sent_ms[chosen], kind="stable")]
    series = {"ttft": latency.ttft_ms, "tpot": latency.tpot_ms, "latency": latency.latency_ms}
    return Run(
        {name: metric(columns)[chosen] for name, metric in series.items()},
        columns.sent_ms[chosen],
        columns.output_tok[chosen].astype(np.float64),
        columns.event_ms,
        columns.event_tok,
    )


def intervals(load: Load, run: Run, n: int, only_means: bool = False) -> dict[str, Interval]:
    tokens, span_ms = run.tokens[:n], float(run.sent_ms[n - 1] - run.sent_ms[0])
    phases = math.inf
    if load.slots is not None:
        a_round, phases = round_of(load.slots, tokens), phases_seen(load.slots, tokens)
    else:
        in_flight = n / span_ms * float(run.series["latency"][:n].mean())
        a_round = round_of(in_flight, tokens, is_open=True)
    slice_ms = 2 * a_round * span_ms / n
    start = float(run.sent_ms[0])
    found = {"tok/s": rate_interval(run.event_ms, run.event_tok, start, start + span_ms, min_slice_ms=slice_ms)}
    for name in SERIES:
        values = run.series[name][:n]
        found[f"{name} mean"] = mean_interval(values, round_size=a_round, phases=phases)
        if only_means:
            continue
        for figure, q in QUANTILES.items():
            if n >= FLOORS.get(figure, 0):
                found[f"{name} {figure}"] = quantile_interval(values, q, round_size=a_round, phases=phases)
    return found


def is_enough(found: dict[str, Interval]) -> bool:
    """Within ±5 % of their own middle."""
    chosen = [found[name] for name in ("tok/s", "ttft mean", "tpot mean")]
    return all((one.high - one.low) / 2 <= TARGET * (one.high + one.low) / 2 for one in chosen)


def sizes(most: int) -> Iterator[int]:
    n = 130.0
    while n < most:
        yield round(n)
        n *= 1.3
    yield most


def chosen_size(load: Load, run: Run, most: int) -> int:
    return next((n for n in sizes(most) if is_enough(intervals(load, run, n, only_means=True))), most)


def truths(runs: list[Run]) -> dict[str, float]:
    found = {}
    rates = []
    for run in runs:
        start, end = run.sent_ms[0], run.sent_ms[-1]
        inside = (run.event_ms > start) & (run.event_ms <= end)
        rates.append(1000 * run.event_tok[inside].sum() / (end - start))
    found["tok/s"] = float(np.mean(rates))
    for name in SERIES:
        values = np.concatenate([run.series[name] for run in runs])
        values = values[np.isfinite(values)]
        found[f"{name} mean"] = float(values.mean())
        for figure, q in QUANTILES.items():
            found[f"{name} {figure}"] = float(np.quantile(values, q))
    return found


def is_inside(one: Interval, truth: float) -> bool:
    """A missing bound is infinite. The truth of a percentile among ties may be off by rounding."""
    slack = 1e-9 * abs(truth)
    return not (truth < one.low - slack or truth > one.high + slack)


def row(load: Load, options: argparse.Namespace) -> list[str]:
    runs = [run_of(load.records(seed, options.most, options.slots, options.shape)) for seed in range(options.seeds)]
    truth = truths(runs)
    lines = []
    for size in options.sizes or [0]:
        chosen = [size or chosen_size(load, run, options.most) for run in runs]
        found = [intervals(load, run, n) for run, n in zip(runs, chosen, strict=True)]
        cells = []
        for figure in FIGURES:
            held = [
                is_inside(one[figure], truth[figure]) for one in found if figure in one and _determined(one[figure])
            ]
            given = sum(figure in one for one in found)
            one_end = sum(
                figure in one and math.isnan(one[figure].low) != math.isnan(one[figure].high) for one in found
            )
            share = f"{100 * np.mean(held):.0f}" if held else "-"
            cells.append(f"{share}/{100 * (1 - len(held) / given):.0f}/{100 * one_end / given:.0f}" if given else "")
        lines.append(f"{load.name:16s} {int(np.median(chosen)):6d} " + " ".join(f"{cell:>9s}" for cell in cells))
    return lines


def _determined(one: Interval) -> bool:
    return not (math.isnan(one.low) and math.isnan(one.high))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help="runs of each configuration")
    parser.add_argument("--law", choices=list(LAWS), action="append", help="output lengths (default: all)")
    parser.add_argument("--only", help="configurations whose name has this in it")
    parser.add_argument("--sizes", type=int, nargs="*", help="requests (default: what an automatic stop chooses)")
    parser.add_argument("--most", type=int, default=4000, help="requests that a run has, at most")
    parser.add_argument("--slots", type=int, default=16, help="slots of the server in an open loop")
    parser.add_argument("--shape", type=float, default=1.0, help="of the gamma law of an open loop's gaps (1: Poisson)")
    options = parser.parse_args()
    print(f"{'':16s} {'n':>6s} " + " ".join(f"{figure.replace('latency', 'lat'):>9s}" for figure in FIGURES))
    for law in options.law or list(LAWS):
        loads = [Load(f"{law} C={slots}", law, slots, None) for slots in (4, 16, 64)]
        loads += [Load(f"{law} rho={rho}", law, None, rho) for rho in (0.5, 0.8)]
        for load in loads:
            if not options.only or options.only in load.name:
                print("\n".join(row(load, options)), flush=True)


if __name__ == "__main__":
    main()
