"""Spoil every telemetry sample that the repository holds, and hold the parsers to what they promise.

    python scripts/fuzz_parsers.py [--seconds S | --rounds N] [--seed K] [--json]
    python scripts/fuzz_parsers.py --replay FILE

Of the samples as they are: typical values, in the family's unit. Of any bytes whatever: no exception but the parser's
own, a bounded time and memory, no reading that cannot be, and the same as a second opinion where there is one
(prometheus_client for engine pages, struct.unpack at the documented offsets for gpu_metrics). Of a sample from which
one value was taken: no 0 in its place, and no series that goes without a reason. A seed and a number of rounds are the
same inputs on every machine. Failures are told on stdout, one input of each problem is written to
`fuzz-TARGET-SEED-ROUND.json` here, and the exit code is 1.
"""

import argparse
import base64
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from fuzz_mutations import erase_name, erase_value, mutate, mutate_tree, truncate, without_zeros
from fuzz_targets import Target, make_targets, pack, tree_without_zeros, unpack

# A parse, on a core that may be a slow one: so long, and for each MiB of the input; a tree's collector runs five times.
PARSE_S, MIB_S, TREE_S = 0.5, 1.0, 2.0
# Of Python's own memory at its peak: the most is a JSON text of nothing but brackets.
PEAK_BYTES, PEAK_PER_BYTE = 32 << 20, 100
_MEASURED_EVERY = 16  # tracemalloc makes everything three times as slow
_STUCK_S = 30
_ADDRESS_SPACE = 4 << 30
_TOLD = 20
AS_IT_IS = "as it is"


class Case(NamedTuple):
    """One input. `before`: the same with the value that was taken away; None: none was, it is just spoilt."""

    target: str
    sample: str
    how: str
    data: bytes
    before: bytes | None


class Failure(NamedTuple):
    case: Case
    seed: int
    round: int
    problem: str


def make_case(target: Target, seed: int, number: int, visit: int) -> Case:
    """The input of round `number`, which is this target's `visit`th."""
    rng = Random(f"{seed} {number}")
    names = sorted(target.samples)
    if visit < len(names):
        return Case(target.name, names[visit], AS_IT_IS, target.samples[names[visit]], None)
    sample = rng.choice(names)
    data, others = target.samples[sample], list(target.samples.values())
    if target.erased is not None and visit % 3 == 0:
        found: tuple[bytes, str] | None
        if target.kind == "tree":
            whole = tree_without_zeros(unpack(data))
            tree, how = mutate_tree(rng, whole, [whole], erase=True)
            base, found = pack(whole), (pack(tree), how)
        else:
            base = without_zeros(data)
            found = (erase_value if target.kind == "json" else erase_name)(rng, base)
        if found is not None:
            return Case(target.name, sample, found[1], found[0], base)
    if target.kind == "tree":
        tree, how = mutate_tree(rng, unpack(data), [unpack(other) for other in others], erase=False)
        return Case(target.name, sample, how, pack(tree), None)
    data, how = truncate(data, visit // 4) if visit % 4 == 1 else mutate(rng, data, others, target.kind)
    return Case(target.name, sample, how, data, None)


def run_case(target: Target, case: Case, measure: bool) -> Iterator[str]:
    """What is wrong with what the parser makes of it."""
    began_s = time.thread_time()
    if measure:
        tracemalloc.start()
    guarded = signal.getsignal(signal.SIGALRM) is _stop
    if guarded:
        signal.alarm(_STUCK_S)
    try:
        problems = target.check(case.data)
        took_s = time.thread_time() - began_s
        if case.before is not None and target.erased is not None:
            problems += target.erased(case.before, case.data)
        if case.how == AS_IT_IS:
            problems += target.unspoilt(case.data)
        yield from problems
    except Exception:
        yield traceback.format_exc(limit=-4)
        return
    finally:
        if guarded:
            signal.alarm(0)
        peak = tracemalloc.get_traced_memory()[1] if measure else 0
        tracemalloc.stop()
    size = len(case.data)
    if not measure and took_s > (TREE_S if target.kind == "tree" else PARSE_S) + MIB_S * size / (1 << 20):
        yield f"took {took_s:.1f} s for {size} bytes"
    if peak > PEAK_BYTES + PEAK_PER_BYTE * size:
        yield f"took {peak >> 20} MiB for {size} bytes"


class StuckError(Exception):
    """A parse that goes on for half a minute."""


def _stop(number: int, frame: object) -> None:
    raise StuckError(f"no end after {_STUCK_S} s")


def fuzz(
    targets: list[Target], seed: int, rounds: int | None, seconds: float | None
) -> tuple[list[Failure], Counter[str]]:
    """Round for round the next target, until there were so many or the time is up; failures, and inputs by target."""
    failures: list[Failure] = []
    done: Counter[str] = Counter()
    until_s = None if seconds is None else time.monotonic() + seconds
    told_s = time.monotonic()
    number = 0
    while (rounds is None or number < rounds) and (until_s is None or time.monotonic() < until_s):
        target = targets[number % len(targets)]
        case = make_case(target, seed, number, done[target.name])
        problems = run_case(target, case, measure=done[target.name] % _MEASURED_EVERY == 0)
        failures += [Failure(case, seed, number, problem) for problem in problems]
        done[target.name] += 1
        number += 1
        if time.monotonic() - told_s > 5:
            told_s = time.monotonic()
            print(f"{number} inputs, {len(failures)} problems", file=sys.stderr)
    return failures, done


def write(failure: Failure) -> Path:
    """The input as a file that --replay reads."""
    case = failure.case
    path = Path(f"fuzz-{case.target}-{failure.seed}-{failure.round}.json")
    fields = {**case._asdict(), "seed": failure.seed, "round": failure.round, "problem": failure.problem}
    for name in ("data", "before"):
        fields[name] = None if fields[name] is None else base64.b64encode(fields[name]).decode()
    path.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return path


def replay(targets: list[Target], path: Path) -> list[str]:
    """What is wrong with the input that `write` wrote."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    data, before = (None if fields[name] is None else base64.b64decode(fields[name]) for name in ("data", "before"))
    case = Case(fields["target"], fields["sample"], fields["how"], data or b"", before)
    (target,) = (target for target in targets if target.name == case.target)
    return [*run_case(target, case, measure=False), *run_case(target, case, measure=True)]


def tell(failures: list[Failure], done: Counter[str], seed: int, as_json: bool) -> None:
    """One input of each problem, of a parser that has many the first ones."""
    first: dict[tuple[str, str], Failure] = {}
    for failure in failures:
        first.setdefault((failure.case.target, failure.problem.split(":")[0]), failure)
    told = [(failure, write(failure)) for failure in list(first.values())[:_TOLD]]
    if as_json:
        rows = [
            {"target": f.case.target, "sample": f.case.sample, "mutation": f.case.how, "round": f.round}
            | {"problem": f.problem, "input": str(path)}
            for f, path in told
        ]
        print(json.dumps({"seed": seed, "inputs": done, "problems": len(failures), "failures": rows}))
        return
    for f, path in told:
        print(f"{f.case.target}, {f.case.sample}, seed {seed}, round {f.round}, {f.case.how}:\n  {f.problem[:2000]}")
        print(f"  again: python scripts/fuzz_parsers.py --replay {path}")
    print(f"{sum(done.values())} inputs, {len(failures)} problems (seed {seed})")


def main() -> int:
    parser = argparse.ArgumentParser(description="Spoil every telemetry sample and hold the parsers to their promises.")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--seconds", type=float, help="how long")
    bound.add_argument("--rounds", type=int, help="how many inputs (default 20000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="an input that failed, once again")
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        targets = make_targets(Path(folder))
        if args.replay is not None:
            problems = replay(targets, args.replay)
            print("\n".join(problems) or "nothing wrong with it")
            return 1 if problems else 0
        rounds = args.rounds if args.rounds is not None or args.seconds is not None else 20_000
        failures, done = fuzz(targets, args.seed, rounds, args.seconds)
    tell(failures, done, args.seed, args.json)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
