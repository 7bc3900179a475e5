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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.scheduler_replay import first_difference, replay
from support.scheduler_workloads import GOLDEN, NAMED, Workload, drawn

_QUIET = {"VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def record(python: str, model: str, workloads: dict[str, Workload]) -> dict[str, dict[str, Any]]:
    """The workloads with the steps of the vLLM that `python` runs."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "workloads.json", Path(folder) / "traces.json"
        source.write_text(json.dumps(workloads))
        command = [python, "-m", "bench.scheduler.record_vllm", model, str(source), str(target)]
        subprocess.run(command, check=True, env=os.environ | _QUIET, stderr=subprocess.DEVNULL)
        traces: dict[str, dict[str, Any]] = json.loads(target.read_text())
    return traces


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
