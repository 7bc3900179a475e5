"""The verdicts and figures of `analysis.summary` held against a simulated batching server, as Markdown tables.

    PYTHONPATH=src:tests python scripts/verdict_tables.py --seeds 100 --only load --n 128

Tables: `load` (offered load against capacity), `healthy` (false alarms), `silence` (a server that stops answering),
`bias` (opening and lengths of a closed loop) and `lockstep`. The server is tests/support/batching.py, which shares no
code with `stats`; what is true is computed here from its records, or from separate long runs.
"""

import argparse
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import summarise_point
from cadenza.record import LoadLabel, Outcome, Phase, Point, PointStatus, Record
from cadenza.spec import Slo
from support.batching import MS, Lengths, Server, closed_records, fixed, heavy, open_records, uniform

Floats = NDArray[np.float64]
LENGTHS: dict[str, Lengths] = {"uniform": uniform(), "fixed": fixed(), "heavy": heavy()}
MEAN_TOKENS = 32.0
GAPS: dict[str, float] = {"poisson": 1.0, "gamma:0.25": 0.25}  # the shape of the gamma law of the gaps
LOADS = (0.3, 0.5, 0.6, 0.8, 0.9, 1.1, 1.2, 1.5, 2.0, 3.0)
SLOTS = (1, 8, 16, 32)
SIZES = (128, 500, 2000)
# As `sweep` has them by default: warm-up of an open loop in seconds and in response times, and the cooldown's bound.
WARMUP_S, WARMUP_RESPONSES, COOLDOWN_S = 1.0, 3.0, 60.0
SHOWN = ("stability", "steady state", "followed", "window", "in flight", "Little's law", "lockstep")


def table(*columns: str) -> None:
    print("\n| " + " | ".join(columns) + " |")
    print("|" + " :--- |" + " ---: |" * (len(columns) - 1), flush=True)


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def percent(count: float, of: float) -> str:
    return f"{100 * count / of:.1f}" if of else "-"


def alarms(summary: PointSummary) -> set[str]:
    """Names of the checks that failed."""
    return {check.name for check in summary.checks if check.verdict not in (None, Verdict.VALID)}


def rate_at(server: Server, load: float) -> float:
    return load * server.capacity_per_s(MEAN_TOKENS)


def open_run(
    server: Server, law: str, gaps: str, load: float, n: int, seed: int, cap: int | None = None
) -> tuple[Point, list[Record]]:
    """An open or capped point as `cadenza sweep` would measure it, each measured request followed to its end."""
    rng, shape, rate = np.random.default_rng([seed, round(100 * load)]), GAPS[gaps], rate_at(server, load)
    warmup = math.ceil(rate * max(WARMUP_S, WARMUP_RESPONSES * server.response_ms(MEAN_TOKENS, 1) / 1000))
    silent_s = 0.0 if server.silence is None else (server.silence[1] - server.silence[0]) / 1000
    total = 400 + math.ceil((warmup + n) * max(1.0, 1.3 * load) + 2 * rate * silent_s)
    due_ms = np.cumsum(rng.gamma(shape, 1000 / (shape * rate), total))
    records = open_records(
        dataclasses.replace(server, seed=seed), due_ms, LENGTHS[law](rng, total), warmup=warmup, measured=n, cap=cap
    )
    label = LoadLabel.OPEN if cap is None else LoadLabel.CAPPED
    return _point(label, n, concurrency=cap, rate_per_s=rate), records


def closed_run(
    law: str, slots: int, n: int, seed: int, *, rounds: int = 2, opening: Literal["residual", "together"] = "residual"
) -> tuple[Point, list[Record]]:
    """A closed point with a warm-up of `rounds` requests a slot."""
    server = Server(seed=seed)
    records = closed_records(
        server, slots, LENGTHS[law], opening=opening, warmup=rounds * slots, measured=n, seed=seed + 10**6
    )
    return _point(LoadLabel.CLOSED, n, concurrency=slots), records


def _point(load: LoadLabel, n: int, *, concurrency: int | None, rate_per_s: float | None = None) -> Point:
    return Point(
        index=0,
        model="m",
        load=load,
        concurrency=concurrency,
        rate_per_s=rate_per_s,
        planned=n,
        status=PointStatus.COMPLETE,
        start_ns=0,
        cooldown_s=COOLDOWN_S,
        virtual=True,
    )


def cut(records: list[Record], cooldown_s: float) -> list[Record]:
    """The same run, had the client stopped waiting `cooldown_s` after the last measured request was due."""
    last = max(row.intended_ns for row in records if row.phase is Phase.MEASURE)
    over = last + round(cooldown_s * 1e9)
    return [_cut_off(row, over) for row in records if row.intended_ns <= over]


def _cut_off(record: Record, over_ns: int) -> Record:
    if record.done_ns is not None and record.done_ns <= over_ns:
        return record
    kept = [ns for ns in record.event_ns if ns <= over_ns]
    sent = record.sent_ns is not None and record.sent_ns <= over_ns
    return Record(
        point=0,
        index=record.index,
        phase=record.phase,
        model="m",
        outcome=Outcome.CANCELLED if sent else Outcome.DROPPED,
        intended_ns=record.intended_ns,
        sent_ns=record.sent_ns if sent else None,
        event_ns=kept,
        output_tokens=len(kept),
        done_ns=over_ns,
    )


def load_table(seeds: range, sizes: list[int], loads: Sequence[float] = LOADS) -> None:
    print("\n## Offered load")
    print("\nPercent of runs; pooled over servers and lengths, and the server and lengths with the most of them.")
    table("load, arrivals, n", "runs", "VALID", "highest in one cell", *SHOWN[:4], "others")
    for n in sizes:
        for gaps in GAPS:
            for load in loads:
                cells: dict[str, list[set[str]]] = {}
                for slots in SLOTS:
                    for law in LENGTHS:
                        cells[f"{slots} slots, {law}"] = [
                            alarms(_summary_at(Server(slots=slots), law, gaps, load, n, seed)) for seed in seeds
                        ]
                _row_of_load(f"{load:g}, {gaps}, {n}", cells)


def _summary_at(server: Server, law: str, gaps: str, load: float, n: int, seed: int) -> PointSummary:
    point, records = open_run(server, law, gaps, load, n, seed)
    return summarise_point(point, cut(records, COOLDOWN_S))


def _row_of_load(name: str, cells: dict[str, list[set[str]]]) -> None:
    valid = {cell: sum(not fired for fired in runs) for cell, runs in cells.items()}
    most, each = max(valid, key=lambda cell: valid[cell]), len(next(iter(cells.values())))
    least = min(valid, key=lambda cell: valid[cell])
    every = [fired for runs in cells.values() for fired in runs]
    counts = Counter(check for fired in every for check in fired)
    others = sum(bool(fired - set(SHOWN[:4])) for fired in every)
    extreme = f"{percent(valid[most], each)} ({most}); lowest {percent(valid[least], each)} ({least})"
    shares = [percent(counts[check], len(every)) for check in SHOWN[:4]]
    row(name, len(every), percent(sum(valid.values()), len(every)), extreme, *shares, percent(others, len(every)))


def healthy_runs(seeds: range) -> Iterator[tuple[str, list[set[str]]]]:
    for slots in (1, 2, 4, 16, 64):
        for law in LENGTHS:
            n = max(128, 12 * slots)
            yield (
                f"closed C = {slots}, {law}, n = {n}",
                [alarms(summarise_point(*closed_run(law, slots, n, seed))) for seed in seeds],
            )
    for load in (0.3, 0.5, 0.6):
        for law in LENGTHS:
            for gaps in GAPS:
                found = [alarms(_summary_at(Server(slots=16), law, gaps, load, 128, seed)) for seed in seeds]
                yield f"open ρ = {load}, {law}, {gaps}, n = 128", found


def healthy_table(seeds: range, _: list[int]) -> None:
    print("\n## False alarms")
    print("\nPercent of healthy runs in which a check fails, and in which any does.")
    table("configuration", "not VALID", *SHOWN, "others")
    total: Counter[str] = Counter()
    n = 0
    for name, runs in healthy_runs(seeds):
        counts = Counter(check for fired in runs for check in fired)
        others = sum(bool(fired - set(SHOWN)) for fired in runs)
        wrong = sum(bool(fired) for fired in runs)
        total += counts + Counter({"any": wrong, "other": others})
        n += len(runs)
        row(
            name, percent(wrong, len(runs)), *(percent(counts[c], len(runs)) for c in SHOWN), percent(others, len(runs))
        )
    row("all", percent(total["any"], n), *(percent(total[c], n) for c in SHOWN), percent(total["other"], n))


SLO = Slo(ttft_ms=100.0, latency_ms=1000.0)
# Where the silence begins, in spans of the measured part from its begin; it lasts 0.4 of them.
SILENCES = {"in the warm-up": -0.3, "at the start": 0.0, "in the middle": 0.3, "at the end": 0.6, "over the end": 0.8}
SILENT_SHARE = 0.4


def truth(records: list[Record]) -> dict[str, float]:
    """User TTFT, user latency and goodput share of all measured requests, from the stamps."""
    rows = [row for row in records if row.phase is Phase.MEASURE]
    ttft = [(row.event_ns[0] - row.intended_ns) / MS for row in rows]
    latency = [(row.event_ns[-1] - row.intended_ns) / MS for row in rows]
    good = [t <= 100.0 and whole <= 1000.0 for t, whole in zip(ttft, latency, strict=True)]
    found = {"share": sum(good) / len(good)}
    for q in (50, 99):
        found |= {f"ttft p{q}": float(np.percentile(ttft, q)), f"latency p{q}": float(np.percentile(latency, q))}
    return found


def reported(summary: PointSummary) -> dict[str, float]:
    assert summary.goodput is not None
    found = {"share": summary.goodput.share}
    for q in ("p50", "p99"):
        found |= {f"ttft {q}": getattr(summary.user_ttft_ms, q), f"latency {q}": getattr(summary.user_latency_ms, q)}
    return found


def silence_table(seeds: range, sizes: list[int]) -> None:
    n = sizes[0]
    print(f"\n## A silent server\n\nn = {n}, 16 slots, uniform lengths, silent for 40 % of the measured part.")
    print("Deviation of the reported from the true P50 and P99, the largest of all runs, and of the goodput share in")
    print("points. `cut`: the client stops waiting after 10 % of the measured part, so that requests are censored.")
    table(
        "silence, load", "runs", "VALID", "user TTFT, %", "user latency, %", "goodput", "cut: censored", "not bounded"
    )
    for where, at in SILENCES.items():
        for load in (0.3, 0.6):
            for cap in (None, 16):
                pairs = [_silent(at, load, n, seed, cap) for seed in seeds]
                _row_of_silence(f"{where}, ρ = {load}" + ("" if cap is None else f", capped at {cap}"), pairs)


def _silent(at: float, load: float, n: int, seed: int, cap: int | None) -> tuple[Point, list[Record], float]:
    server = Server(slots=16)
    rate = rate_at(server, load)
    span_ms = 1000 * n / rate
    begin_ms = 1000 * WARMUP_S + at * span_ms
    silence = (max(0.0, begin_ms), max(0.0, begin_ms) + SILENT_SHARE * span_ms)
    server = dataclasses.replace(server, silence=silence)
    point, records = open_run(server, "uniform", "poisson", load, n, seed, cap)
    return point, records, span_ms / 1000


def _row_of_silence(name: str, runs: list[tuple[Point, list[Record], float]]) -> None:
    valid, censored, wrong, off = 0, 0, 0, dict.fromkeys(("ttft", "latency", "share"), 0.0)
    for point, records, span_s in runs:
        true = truth(records)
        summary = summarise_point(point, records, SLO)
        valid += summary.verdict is Verdict.VALID
        for figure, value in reported(summary).items():
            kind = figure.split()[0]
            deviation = value - true[figure] if kind == "share" else value / true[figure] - 1
            off[kind] = max(off[kind], 100 * abs(deviation))
        told = summarise_point(point, cut(records, 0.1 * span_s), SLO)
        censored += told.user_latency_ms.censored > 0
        wrong += not _bounded(told, true)
    shares = [f"{off[kind]:.2g}" for kind in ("ttft", "latency", "share")]
    row(name, len(runs), percent(valid, len(runs)), *shares, percent(censored, len(runs)), percent(wrong, len(runs)))


def _bounded(summary: PointSummary, true: dict[str, float]) -> bool:
    """No figure is above the truth, each below it by more than 5 % is marked as a bound, and then it is not VALID."""
    fair = True
    for kind, found in (("ttft", summary.user_ttft_ms), ("latency", summary.user_latency_ms)):
        for q in ("p50", "p99"):
            value, right = getattr(found, q), true[f"{kind} {q}"]
            fair &= value <= right * (1 + 1e-9) and (value >= 0.95 * right or q in found.bounds)
    return fair and (not summary.user_latency_ms.censored or summary.verdict is not Verdict.VALID)


FIGURES: dict[str, Callable[[PointSummary], float]] = {
    "TTFT mean": lambda s: s.ttft_ms.mean,
    "TTFT P95": lambda s: s.ttft_ms.p95,
    "latency mean": lambda s: s.latency_ms.mean,
    "latency P95": lambda s: s.latency_ms.p95,
    "requests/s": lambda s: s.requests_per_s,
}


# Mean output tokens of each law; of the lognormal, rounded up: Σ P(L > k), k = 0, 1, …
MEANS = {"uniform": 32.0, "fixed": 32.0, "heavy": 32.49999}


def long_run(law: str, slots: int, seeds: range) -> dict[str, float]:
    """What is true of a closed loop, from long runs with other seeds: all sent after 20 rounds, 60 rounds of them.

    Requests/s are in closed form, of the law's mean length with all slots taken, and mean latency is C over those
    (Little's law; a slot is refilled at once): heavy-tailed runs would miss the truth by 1 to 5 % themselves. With
    equal lengths a run keeps its draw of the slots' phases: a percentile is the mean of the runs' own.
    """
    ttft: list[Floats] = []
    latency: list[Floats] = []
    for seed in seeds:
        _, records = closed_run(law, slots, 60 * slots, 10**7 + seed, rounds=20)
        rows = [row for row in records if row.phase is Phase.MEASURE and row.sent_ns is not None]
        ttft.append(np.array([(row.event_ns[0] - (row.sent_ns or 0)) / MS for row in rows]))
        latency.append(np.array([(row.event_ns[-1] - (row.sent_ns or 0)) / MS for row in rows]))
    per_s = Server(slots=slots).capacity_per_s(MEANS[law])
    found = {"TTFT mean": float(np.mean(np.concatenate(ttft))), "latency mean": 1000 * slots / per_s}
    for name, runs in (("TTFT P95", ttft), ("latency P95", latency)):
        each = runs if law == "fixed" else [np.concatenate(runs)]
        found[name] = float(np.mean([np.percentile(run, 95) for run in each]))
    return found | {"requests/s": per_s}


def bias_table(seeds: range, _: list[int]) -> None:
    print("\n## Opening and lengths of a closed loop")
    print(
        "\nBias in percent: mean over the runs of n = max(128, 12 C) against long runs; ± its standard error, the long"
    )
    print("runs' not included.")
    table("configuration", "warm-up", *FIGURES)
    for slots in (4, 16, 64):
        for law in LENGTHS:
            true = long_run(law, slots, seeds)
            for rounds in (1, 2, 3):
                some = seeds if rounds == 2 else seeds[: len(seeds) // 4]  # 2 is what `sweep` has
                runs = [
                    summarise_point(*closed_run(law, slots, max(128, 12 * slots), seed, rounds=rounds)) for seed in some
                ]
                cells = []
                for figure, read in FIGURES.items():
                    off = 100 * (np.array([read(run) for run in runs]) / true[figure] - 1)
                    cells.append(f"{off.mean():+.1f} ± {off.std() / math.sqrt(len(off)):.1f}")
                row(f"C = {slots}, {law}", f"{rounds} C", *cells)


def lockstep_table(seeds: range, _: list[int]) -> None:
    print("\n## Lockstep")
    print("\nPercent of runs. Together: all slots sent at once, a warm-up of C. Residual: as `sweep` opens a point.")
    table("configuration", "lockstep", "not VALID")
    for slots in (4, 8, 16, 32, 64):
        for opening, law, rounds in (("together", "fixed", 1), ("residual", "fixed", 2), ("residual", "uniform", 2)):
            runs = [
                alarms(
                    summarise_point(
                        *closed_run(
                            law,
                            slots,
                            max(128, 12 * slots),
                            seed,
                            rounds=rounds,
                            opening="together" if opening == "together" else "residual",
                        )
                    )
                )
                for seed in seeds
            ]
            named = sum("lockstep" in fired for fired in runs)
            wrong = sum(bool(fired) for fired in runs)
            row(f"C = {slots}, {opening}, {law}", percent(named, len(runs)), percent(wrong, len(runs)))


TABLES: dict[str, Callable[[range, list[int]], None]] = {
    "load": load_table,
    "healthy": healthy_table,
    "silence": silence_table,
    "bias": bias_table,
    "lockstep": lockstep_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help="runs of each configuration")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--n", type=int, nargs="*", default=list(SIZES), help="measured requests of an open point")
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS), help="offered loads, for `load`")
    given = parser.parse_args()
    for name in given.only:
        seeds = range(given.first, given.first + given.seeds)
        if name == "load":
            load_table(seeds, given.n, given.loads)
        else:
            TABLES[name](seeds, given.n)


if __name__ == "__main__":
    main()
