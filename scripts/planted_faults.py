"""How often a planted fault is missed, by this version of `stats` and by an older one, on the same runs.

    export PYTHONPATH=src:tests
    python scripts/planted_faults.py make runs.msgpack --seeds 100
    python scripts/planted_faults.py judge runs.msgpack now.json
    PYTHONPATH=OLDER/src python scripts/planted_faults.py judge runs.msgpack before.json --no-cooldown
    python scripts/planted_faults.py table before.json now.json

`make` runs the batching server of tests/support/batching.py and plants one fault in each run. `judge` asks the verdict
of the package on the path; `--no-cooldown` leaves out what was sent after the last measured request, since older
versions sent nothing then. `table` prints the share of runs in which the fault was missed: the point was VALID, and
where the fault is one of the stream, mean TPOT differed from the truth by more than 5 % besides.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cadenza.analysis.summary import summarise_point
from cadenza.record import Outcome, Phase, Point, Record

Floats = NDArray[np.float64]
Run = tuple[Point, list[Record]]
# Milliseconds that each moment of the measured part (0 to 1) lasts: the whole closed loop is slower or faster then.
PACES: dict[str, Callable[[Floats], NDArray[np.floating]]] = {
    "none": np.ones_like,
    "+50 % in the last tenth": lambda t: 1 + 0.5 * (t >= 0.9),
    "+50 % from the middle": lambda t: 1 + 0.5 * (t >= 0.5),
    "dip: twice as fast for a tenth": lambda t: 1 - 0.5 * ((t >= 0.45) & (t < 0.55)),
    "slow wave: ±25 %, one period": lambda t: 1 + 0.25 * np.sin(2 * np.pi * t) * ((t >= 0) & (t <= 1)),
    "slow wave: ±25 %, three periods": lambda t: 1 + 0.25 * np.sin(6 * np.pi * t) * ((t >= 0) & (t <= 1)),
}
MEAN_TOKENS = 32
SILENT_SHARES = (0.1, 0.4)
CLOSED = (("uniform", 4), ("uniform", 16), ("heavy", 16))
SIZES = (128, 500)


class Planted(msgspec.Struct):
    """One run; `tpot_ms` is the true mean where the fault is one of the stream."""

    fault: str
    point: Point
    records: list[Record]
    tpot_ms: float | None = None


def warp(run: Run, pace: Callable[[Floats], NDArray[np.floating]]) -> Run:
    """The same run, had the whole closed loop gone at `pace`: it has no clock but its own."""
    point, records = run
    sent = [record.sent_ns for record in records if record.phase is Phase.MEASURE and record.sent_ns is not None]
    start, span = min(sent), max(sent) - min(sent)
    grid = np.linspace(-2, 4, 60_001)
    local = pace(grid)
    passed = np.concatenate([[0.0], np.cumsum((local[1:] + local[:-1]) / 2 * np.diff(grid))]) + grid[0]

    def moved(stamps: list[int]) -> list[int]:
        places = (np.array(stamps, dtype=np.float64) - start) / span
        return [start + round(float(t) * span) for t in np.interp(places, grid, passed)]

    for record in records:
        stamps = [record.intended_ns, record.sent_ns or 0, record.done_ns or 0, *record.event_ns]
        intended, sent_at, done, *events = moved(stamps)
        record.intended_ns, record.event_ns = intended, events
        record.sent_ns = None if record.sent_ns is None else sent_at
        record.done_ns = None if record.done_ns is None else done
        record.headers_ns = events[0] if events else None
    return point, records


def tpot_of(records: list[Record]) -> float:
    """Mean ms a token after the first; each event is one token."""
    rows = [row for row in records if row.phase is Phase.MEASURE and len(row.event_ns) > 1]
    return float(np.mean([(row.event_ns[-1] - row.event_ns[0]) / (len(row.event_ns) - 1) / 1e6 for row in rows]))


def buffered(record: Record) -> None:
    record.event_ns = record.event_ns[-1:] * len(record.event_ns)


def lumped(record: Record) -> None:
    """A proxy passes on what it has each eight events, and at the end."""
    last = len(record.event_ns) - 1
    record.event_ns = [record.event_ns[min(last, 8 * (k // 8) + 7)] for k in range(last + 1)]


def hidden(record: Record, times: float, *, told: bool) -> None:
    """Before the answer the model thought: counted, and never streamed, `times` the mean answer with a CV of 0.5.

    A token of the answer has four bytes of text.
    """
    rng = np.random.default_rng([record.index, round(times)])
    thought = round(rng.gamma(4.0, times * MEAN_TOKENS / 4))
    record.output_tokens = len(record.event_ns) + thought
    record.reasoning_tokens = thought if told else None
    record.text_bytes, record.first_text_bytes = 4 * len(record.event_ns), 4


def streams(law: str, slots: int, n: int, seed: int) -> Iterator[Planted]:
    from verdict_tables import closed_run

    changes: dict[str, Callable[[Record], None]] = {
        "answers buffered whole": buffered,
        "answers in lumps of 8 events": lumped,
        "hidden reasoning, counted apart": lambda record: hidden(record, 8, told=True),
        "hidden reasoning, 8 times the answer, not counted apart": lambda record: hidden(record, 8, told=False),
        "hidden reasoning, as long as the answer, not counted apart": lambda record: hidden(record, 1, told=False),
    }
    for fault, change in changes.items():
        point, records = closed_run(law, slots, n, seed)
        true = tpot_of(records)  # each event is one token, as sent
        for record in records:
            if record.outcome is Outcome.OK:
                change(record)
        yield Planted(f"{fault}; closed C = {slots}, {law}, n = {n}", point, records, true)


def closed_faults(n: int, seed: int) -> Iterator[Planted]:
    from verdict_tables import closed_run

    for law, slots in CLOSED:
        size = max(n, 12 * slots)
        for fault, pace in PACES.items():
            run = warp(closed_run(law, slots, size, seed), pace)
            yield Planted(f"{fault}; closed C = {slots}, {law}, n = {size}", *run)
    point, records = closed_run("fixed", 16, max(n, 192), seed, rounds=1, opening="together")
    yield Planted(f"lockstep; closed C = 16, fixed, n = {max(n, 192)}", point, records)
    yield from streams("uniform", 16, max(n, 192), seed)


def open_faults(n: int, seed: int) -> Iterator[Planted]:
    from verdict_tables import WARMUP_S, open_run, rate_at

    from support.batching import Server

    server, where = Server(slots=16), {"start": 0.0, "middle": 0.45, "end": 0.8}
    yield Planted(f"none; open ρ = 0.6, n = {n}", *open_run(server, "uniform", "poisson", 0.6, n, seed))
    for load in (1.1, 1.5, 2.0, 3.0):
        run = open_run(server, "uniform", "poisson", load, n, seed)
        yield Planted(f"overload, ρ = {load:g}; open, n = {n}", *run)
    for share in SILENT_SHARES:
        span_ms = 1000 * n / rate_at(server, 0.6)
        for place, at in where.items():
            begin_ms = 1000 * WARMUP_S + at * span_ms
            silent = dataclasses.replace(server, silence=(begin_ms, begin_ms + share * span_ms))
            run = open_run(silent, "uniform", "poisson", 0.6, n, seed)
            yield Planted(f"silent for {share:.0%} at the {place}; open ρ = 0.6, n = {n}", *run)


def make(path: Path, seeds: range) -> None:
    encoder = msgspec.msgpack.Encoder()
    with path.open("wb") as out:
        for n in SIZES:
            for seed in seeds:
                for planted in [*open_faults(n, seed), *closed_faults(n, seed)]:
                    data = encoder.encode(planted)
                    out.write(len(data).to_bytes(4, "big") + data)


def read(path: Path, *, cooldown: bool) -> Iterator[Planted]:
    with path.open("rb") as source:
        while head := source.read(4):
            raw: dict[str, Any] = msgspec.msgpack.decode(source.read(int.from_bytes(head, "big")))
            if not cooldown:
                raw["records"] = [row for row in raw["records"] if row["phase"] != "cooldown"]
                raw["point"]["cooldown_s"] = None
            yield msgspec.convert(raw, Planted)


def judge(path: Path, out: Path, *, cooldown: bool) -> None:
    found: dict[str, list[tuple[str, list[str], float | None, float | None]]] = {}
    for run in read(path, cooldown=cooldown):
        summary = summarise_point(run.point, run.records)
        failed = sorted({one.name for one in summary.checks if one.verdict not in (None, "VALID")})
        tpot = summary.tpot_ms.mean
        row = (str(summary.verdict), failed, tpot if tpot == tpot else None, run.tpot_ms)
        found.setdefault(run.fault, []).append(row)
    out.write_text(json.dumps(found))


def is_missed(verdict: str, _: list[str], tpot_ms: float | None, true_ms: float | None) -> bool:
    if verdict != "VALID":
        return False
    return true_ms is None or (tpot_ms is not None and abs(tpot_ms / true_ms - 1) > 0.05)


def table(before: Path, now: Path) -> None:
    old, new = (json.loads(path.read_text()) for path in (before, now))
    print("| fault; load | runs | missed before, % | missed now, % | named by now |")
    print("| :--- | ---: | ---: | ---: | :--- |")
    for fault, runs in new.items():
        cells = [100 * sum(is_missed(*run) for run in found) / len(found) for found in (old[fault], runs)]
        names = [name for run in runs for name in run[1]]
        named = ", ".join(f"{name} {100 * names.count(name) / len(runs):.0f} %" for name in sorted(set(names)))
        print(f"| {fault} | {len(runs)} | {cells[0]:.0f} | {cells[1]:.0f} | {named} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "judge", "table"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=100, help="runs of each fault")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument(
        "--no-cooldown", action="store_true", help="leave out what was sent after the measured requests"
    )
    given = parser.parse_args()
    if given.action == "make":
        make(given.files[0], range(given.first, given.first + given.seeds))
    elif given.action == "judge":
        judge(given.files[0], given.files[1], cooldown=not given.no_cooldown)
    else:
        table(given.files[0], given.files[1])


if __name__ == "__main__":
    main()
