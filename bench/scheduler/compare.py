"""Our scheduler beside vLLM's: the same workloads, decision by decision.

    python -m bench.scheduler.compare PYTHON_OF_VLLM MODEL [SEEDS]      default: 300 drawn workloads beside the named
    python -m bench.scheduler.compare --golden FOLDER PYTHON_OF_VLLM MODEL     writes the traces that the tests read

PYTHON_OF_VLLM is the interpreter of an environment with vLLM 0.32 (`pip install vllm==0.32.0`; a CPU build does, for
no model is run), MODEL any dense checkpoint that it knows, a folder or a name: only its config is read. Prints a row
per workload and the first step that differs, if one does; exits 1 then.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from bench.scheduler.workloads import (
    GOLDEN,
    NAMED,
    Workload,
    accepted_tokens,
    block_sum,
    drawn,
    output_token,
    prompt_tokens,
)

from cadenza.engine.core.scheduler import Scheduler, Step
from cadenza.engine.core.sequence import Limits, Sequence

_QUIET = {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
_KEYS = ("preempted", "scheduled", "admitted", "running", "waiting", "kv_usage", "blocks", "finished")


def record(python: str, model: str, workloads: dict[str, Workload]) -> dict[str, dict[str, Any]]:
    """The workloads with the steps of the vLLM that `python` runs."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "workloads.json", Path(folder) / "traces.json"
        source.write_text(json.dumps(workloads))
        command = [python, "-m", "bench.scheduler.record_vllm", model, str(source), str(target)]
        subprocess.run(command, check=True, env=os.environ | _QUIET, stderr=subprocess.DEVNULL)
        traces: dict[str, dict[str, Any]] = json.loads(target.read_text())
    return traces


class _Replay:
    """Our scheduler, driven as vLLM's engine core drives its own."""

    def __init__(self, workload: Workload) -> None:
        self._requests = workload["requests"]
        limits = Limits(**workload["limits"])
        self._scheduler = Scheduler(limits, output_token=lambda sequence, n: output_token(sequence.id, n))
        self._flying: deque[tuple[Step, dict[int, int]]] = deque()
        self._depth = 2 if limits.async_scheduling else 1
        self._produced: dict[int, int] = {}

    def turn(self, number: int) -> dict[str, Any]:
        scheduler = self._scheduler
        for request in self._requests:
            if request["arrives_at_step"] == number:
                scheduler.add(
                    Sequence(
                        id=request["id"],
                        prompt=prompt_tokens(request["prompt"]),
                        output_tokens=request["max_tokens"],
                        priority=request["priority"],
                        arrival_ns=request["id"],
                    )
                )
        self._abort("abort_at_step", number)
        step = scheduler.schedule()
        scheduled = [] if step is None else step.scheduled
        entry: dict[str, Any] = {
            "scheduled": [[sequence.id, tokens] for sequence, tokens in scheduled],
            "admitted": [],
            "preempted": [],
            "finished": [],
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_usage": round(scheduler.kv_usage, 9),
            "blocks": block_sum([sequence.blocks for sequence in scheduler.running]),
        }
        if step is not None:
            starts = {work.sequence.id: work.start for work in step.works}
            entry["admitted"] = [[sequence.id, starts[sequence.id]] for sequence in step.admitted]
            entry["preempted"] = [sequence.id for sequence in step.preempted]
            if scheduled:
                self._flying.append((step, self._accept(step)))
        self._abort("abort_in_step", number)
        if self._flying and (len(self._flying) == self._depth or not scheduled):
            told = scheduler.update(*self._flying.popleft())
            entry["finished"] = [sequence.id for sequence in told if sequence.ended]
        return {key: value for key, value in entry.items() if value != []}

    def _accept(self, step: Step) -> dict[int, int]:
        fresh = {sequence.id for sequence in step.admitted}
        accepted = {}
        for work in step.works:
            if work.yields:
                number = work.sequence.id
                produced = self._produced.get(number, 0)
                right = 0 if number in fresh else accepted_tokens(number, produced, work.drafts)
                self._produced[number] = produced + right + 1
                accepted[number] = right
        return accepted

    def _abort(self, key: str, number: int) -> None:
        for request in self._requests:
            if request.get(key) == number:
                self._scheduler.abort(request["id"])


def replay(workload: Workload, steps: int) -> list[dict[str, Any]]:
    """What our scheduler decides in the first `steps` turns, in the form of a trace's "steps"."""
    ours = _Replay(workload)
    return [ours.turn(number) for number in range(steps)]


def first_difference(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str | None:
    """The first step that differs, in words; None where all are alike."""
    for number, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        for key in _KEYS:
            if left.get(key) != right.get(key):
                return f"step {number}, {key}: vLLM {left.get(key, [])}, ours {right.get(key, [])}"
    return None


def compare(trace: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Our steps for a trace's workload, and the first difference; our own failure is one."""
    theirs = trace["steps"]
    try:
        ours = replay(trace, len(theirs))
    except Exception as error:
        return [], f"ours failed: {type(error).__name__} {error}"
    return ours, first_difference(theirs, ours)


def figures(steps: list[dict[str, Any]]) -> tuple[int, int, int, int, float]:
    """Admissions, preemptions, peak of running, peak of waiting, peak KV usage."""
    return (
        sum(len(step.get("admitted", ())) for step in steps),
        sum(len(step.get("preempted", ())) for step in steps),
        max((step["running"] for step in steps), default=0),
        max((step["waiting"] for step in steps), default=0),
        max((step["kv_usage"] for step in steps), default=0.0),
    )


def write(trace: dict[str, Any], path: Path) -> None:
    """A trace with a line per request and step."""
    lines = []
    for key, value in trace.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f'"{key}":[\n{rows}\n]')
        else:
            lines.append(f'"{key}":{json.dumps(value, separators=(",", ":"))}')
    path.write_text("{" + ",\n".join(lines) + "}\n")


def _family(limits: dict[str, Any]) -> str:
    words = [limits["scheduling_policy"], "async" if limits["async_scheduling"] else "sync"]
    if limits["num_speculative_tokens"]:
        words.append("speculative")
    return ", ".join(words)


def _pair(left: Any, right: Any) -> str:
    return f"{left} / {right}"


def print_named(traces: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each workload, vLLM / ours; the differences."""
    titles = ("requests", "steps", "admissions", "preemptions", "peak running", "peak waiting", "peak KV usage")
    print(f"| workload | {' | '.join(titles)} | alike |")
    print(f"| :--- |{' ---: |' * len(titles)} :--- |")
    found = []
    for name, trace in traces.items():
        ours, difference = compare(trace)
        left, right = figures(trace["steps"]), figures(ours)
        cells = [_pair(a, b) for a, b in zip(left[:4], right[:4], strict=True)]
        cells.append(f"{left[4]:.3f} / {right[4]:.3f}")
        alike = "every step" if difference is None else "no"
        print(f"| {name} | {len(trace['requests'])} | {len(trace['steps'])} | {' | '.join(cells)} | {alike} |")
        if difference is not None:
            found.append(f"{name}: {difference}")
    return found


def print_drawn(traces: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each family of drawn workloads; the differences."""
    print("| drawn workloads | workloads | requests | steps | admissions | preemptions | alike in every step |")
    print("| :--- | ---: | ---: | ---: | ---: | ---: | ---: |")
    families: dict[str, list[str]] = {}
    for name, trace in traces.items():
        families.setdefault(_family(trace["limits"]), []).append(name)
    found = []
    for family, names in sorted(families.items()):
        alike = requests = steps = admissions = preemptions = 0
        for name in names:
            trace = traces[name]
            difference = compare(trace)[1]
            alike += difference is None
            if difference is not None:
                found.append(f"{name} ({family}): {difference}")
            requests += len(trace["requests"])
            steps += len(trace["steps"])
            admissions += figures(trace["steps"])[0]
            preemptions += figures(trace["steps"])[1]
        print(f"| {family} | {len(names)} | {requests} | {steps} | {admissions} | {preemptions} | {alike} |")
    return found


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[0] == "--golden":
        folder, python, model = arguments[1:]
        for name, trace in record(python, model, {name: NAMED[name] for name in GOLDEN}).items():
            write(trace, Path(folder) / f"{name}.json")
        return 0
    python, model, *rest = arguments
    seeds = int(rest[0]) if rest else 300
    named = record(python, model, NAMED)
    found = print_named(named)
    print()
    found += print_drawn(record(python, model, {f"seed {seed}": drawn(seed) for seed in range(seeds)}))
    print()
    for difference in found:
        print(difference)
    print(f"{len(found)} workloads differ" if found else "no workload differs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
