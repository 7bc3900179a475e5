"""How often `stats.steady` sees a planted change, and how often one that is none; beside an older version of it.

    git show main:src/cadenza/stats/steady.py > before.py
    PYTHONPATH=src:tests python scripts/steady_power.py --seeds 200 --before before.py

Without `--before` only the present version is tabled. The healthy servers need tests/support/batching.py.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cadenza.record import Outcome, Phase, Record
from cadenza.stats.columns import Floats
from cadenza.stats.steady import LONGER_MEMORY, closed_round, find_change, memory_of

Judge = Callable[[Floats, float, float, float], bool]
# A healthy point: its TTFT and TPOT, requests to a round, and what is added to the lag-1 correlation.
Series = tuple[Floats, Floats, float, float]
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "no change": lambda t: np.ones_like(t),
    "+50 % in the last tenth": lambda t: 1 + 0.5 * (t >= 0.9),
    "+50 % in the first tenth": lambda t: 1 + 0.5 * (t < 0.1),
    "+50 % from the middle": lambda t: 1 + 0.5 * (t >= 0.5),
    "dip of 25 % over a tenth": lambda t: 1 - 0.25 * ((t >= 0.45) & (t < 0.55)),
    "dip of 50 % over a tenth": lambda t: 1 - 0.5 * ((t >= 0.45) & (t < 0.55)),
    "sine ±25 %, 1 period": lambda t: 1 + 0.25 * np.sin(2 * np.pi * t),
    "sine ±50 %, 1 period": lambda t: 1 + 0.5 * np.sin(2 * np.pi * t),
    "sine ±25 %, 3 periods": lambda t: 1 + 0.25 * np.sin(6 * np.pi * t),
    "sine ±50 %, 3 periods": lambda t: 1 + 0.5 * np.sin(6 * np.pi * t),
    "trend +20 %": lambda t: 1 + 0.2 * t,
    "trend +50 %": lambda t: 1 + 0.5 * t,
}
# Series: coefficient of variation, smallest change that counts, requests in flight.
SERIES = (
    ("TPOT-like", 0.07, 0.05, 1),
    ("TPOT-like, C = 16", 0.07, 0.05, 16),
    ("TTFT-like", 0.3, 0.25, 1),
    ("TTFT-like", 0.6, 0.25, 1),
)


def now(values: Floats, round_size: float, material: float, memory: float = LONGER_MEMORY) -> bool:
    return find_change(values, round_size=round_size, material=material, memory=memory) is not None


def load_before(path: Path) -> Judge:
    spec = importlib.util.spec_from_file_location("steady_before", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["steady_before"] = module
    spec.loader.exec_module(module)
    return lambda values, _, material, __: module.examine_series(values, material)[1] is not None


def lognormal(rng: np.random.Generator, cv: float, n: int) -> Floats:
    sigma = np.sqrt(np.log1p(cv * cv))
    return rng.lognormal(-(sigma**2) / 2, sigma, n)


def autoregressive(rng: np.random.Generator, phi: float, n: int) -> Floats:
    shocks, values, value = rng.standard_normal(n + 200), np.empty(n + 200), 0.0
    for i in range(n + 200):
        values[i] = value = phi * value + np.sqrt(1 - phi**2) * shocks[i]
    return values[200:]


def power(judges: list[Judge], sizes: list[int], seeds: int) -> None:
    print("| shape | series | cv | " + " | ".join(f"n = {n}" for n in sizes) + " |")
    print("| :--- | :--- | ---: |" + " ---: |" * len(sizes))
    for shape, law in SHAPES.items():
        for name, cv, material, around in SERIES:
            cells = []
            for n in sizes:
                drawn = [law(np.arange(n) / n) * lognormal(np.random.default_rng(s), cv, n) for s in range(seeds)]
                seen = [100 * sum(judge(v, around, material, LONGER_MEMORY) for v in drawn) / seeds for judge in judges]
                cells.append(" → ".join(f"{percent:.0f}" for percent in seen))
            print(f"| {shape} | {name} | {cv} | " + " | ".join(cells) + " |", flush=True)


def alarms(name: str, judges: list[Judge], pairs: list[Series]) -> None:
    cells = []
    for judge in judges:
        ttft = [judge(a, around, 0.25, memory) for a, _, around, memory in pairs]
        tpot = [judge(b, around, 0.05, memory) for _, b, around, memory in pairs]
        both = [x or y for x, y in zip(ttft, tpot, strict=True)]
        cells.append(" / ".join(f"{100 * sum(seen) / len(pairs):.1f}" for seen in (ttft, tpot, both)))
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def series_of(records: list[Record], slots: int | None) -> Series:
    rows = [row for row in records if row.phase is Phase.MEASURE and row.outcome is Outcome.OK]
    sent = np.array([row.sent_ns for row in rows], dtype=np.float64)
    done = np.array([row.done_ns for row in rows], dtype=np.float64)
    ttft = np.array([row.event_ns[0] - row.intended_ns for row in rows], dtype=np.float64)
    gaps = [(row.event_ns[-1] - row.event_ns[0], len(row.event_ns) - 1) for row in rows]
    tpot = np.array([span / count if count else np.nan for span, count in gaps])
    if slots is None:
        return ttft, tpot, float((done - sent).sum() / (sent.max() - sent.min())), LONGER_MEMORY
    tokens = np.array([row.output_tokens for row in rows], dtype=np.float64)
    return ttft, tpot, closed_round(slots, tokens), memory_of(slots, tokens)


def healthy(judges: list[Judge], sizes: list[int], seeds: range) -> None:
    for n in sizes:
        for phi in (0.0, 0.5, 0.7, 0.85):
            drawn = [1 + 0.2 * autoregressive(np.random.default_rng(s), phi, n) for s in seeds]
            alarms(f"AR(1), {phi}, n = {n}", judges, [(v, v, 1.0, LONGER_MEMORY) for v in drawn])
        exponential = [np.random.default_rng(s).exponential(size=n) for s in seeds]
        alarms(f"exponential, n = {n}", judges, [(v, v, 1.0, LONGER_MEMORY) for v in exponential])
    from support.batching import Server, closed_records, fixed, heavy, open_records, uniform

    for n in sizes:
        for label, lengths in (("uniform", uniform()), ("fixed", fixed()), ("heavy", heavy())):
            for slots in (c for c in (4, 16, 64) if n >= 6 * c):
                runs = (
                    closed_records(Server(seed=s), slots, lengths, warmup=2 * slots, measured=n, seed=s) for s in seeds
                )
                alarms(f"closed C = {slots}, {label}, n = {n}", judges, [series_of(r, slots) for r in runs])
            for load in (0.3, 0.5, 0.6, 0.8):
                pairs = []
                for s in seeds:
                    rng, server = np.random.default_rng(s + 10**6), Server(seed=s)
                    due = np.cumsum(rng.exponential(1000 / (load * server.capacity_per_s(32.0)), n + 656))
                    drawn_lengths = lengths(rng, n + 656)
                    pairs.append(series_of(open_records(server, due, drawn_lengths, warmup=256, measured=n), None))
                alarms(f"open ρ = {load}, {label}, n = {n}", judges, pairs)


def closed(seeds: range) -> None:
    """Heavy-tailed lengths in closed loops, healthy and with planted shapes: a round of C, memory 0.1 → both by CV."""
    from support.batching import Server, closed_records, heavy

    shapes = [shape for shape in SHAPES if shape != "no change"]
    print("| TPOT of a closed loop | runs | no change | " + " | ".join(shapes) + " |")
    print("| :--- |" + " ---: |" * (2 + len(shapes)))
    for slots, n in ((4, 128), (16, 192), (16, 500), (64, 768)):
        records = (closed_records(Server(seed=s), slots, heavy(), warmup=2 * slots, measured=n, seed=s) for s in seeds)
        runs = [series_of(rows, slots)[1:] for rows in records]
        cells = []
        for shape in ("no change", *shapes):
            drawn = [(SHAPES[shape](np.arange(len(v)) / len(v)) * v, around, memory) for v, around, memory in runs]
            pairs = [(now(v, slots, 0.05), now(v, around, 0.05, memory)) for v, around, memory in drawn]
            percents = 100 * np.mean(pairs, axis=0)
            cells.append(" → ".join(f"{percent:.{shape == 'no change':d}f}" for percent in percents))
        print(f"| C = {slots}, heavy, n = {n} | {len(runs)} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed of the healthy series")
    parser.add_argument("--sizes", type=int, nargs="*", default=[128, 256, 500, 1000])
    parser.add_argument("--healthy-sizes", type=int, nargs="*", default=[128, 500])
    parser.add_argument("--before", type=Path, help="an older steady.py, with examine_series")
    parser.add_argument("--closed", action="store_true", help="only: closed loops with heavy-tailed lengths")
    given = parser.parse_args()
    if given.closed:
        closed(range(given.first, given.first + given.seeds))
        return
    judges = [*([load_before(given.before)] if given.before else []), now]
    if given.sizes:
        power(judges, given.sizes, given.seeds)
    if given.healthy_sizes:
        columns = ["before", "now"][-len(judges) :]
        print("\n| healthy series | " + " | ".join(columns) + " |\n| :--- |" + " ---: |" * len(judges))
        healthy(judges, given.healthy_sizes, range(given.first, given.first + given.seeds))


if __name__ == "__main__":
    main()
