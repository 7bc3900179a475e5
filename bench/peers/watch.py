"""Run one tool on one core, and say what it cost, all its processes included. Linux."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.truth_server import pinned

SAMPLE_EVERY_S = 0.1
LOOK_FOR_CHILDREN_EVERY = 10
# The middle nine tenths of the server's work: start-up and report of the tool lie outside.
FROM, TO = 0.05, 0.95
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """`cpu_s`: the tool's CPU time from start to end, its children's included (RUSAGE_CHILDREN).

    `loaded_cpu_s`: what it would have been for the requests alone: its CPU time over the middle nine tenths of the
    server's work, / 0.9; NaN where that went by too fast to see. `exit_code` None: ended by us, past the time limit.
    """

    exit_code: int | None
    wall_s: float
    cpu_s: float
    loaded_cpu_s: float


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from field 3 on (state, parent, group, session, …); empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _family(root: int) -> list[int]:
    """`root`, its descendants, and whoever is left of its session."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = {pid: fields for pid in pids if (fields := _stat(pid))}
    family = {root}
    while more := {pid for pid, f in stats.items() if int(f[1]) in family or int(f[3]) == root} - family:
        family |= more
    return sorted(family)


def _cpu_of(pids: list[int]) -> float:
    """CPU seconds of the processes and of the children they have waited for."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / _TICKS_PER_S


def _server_cpu_ns(pid: int) -> int:
    """Time on a core of a process of one thread, ns: finer than /proc/PID/stat, which counts ticks."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _loaded_cpu_s(server_ns: list[int], tool_s: list[float]) -> float:
    """The tool's CPU time while the server did its work, from samples of both taken together."""
    work = np.asarray(server_ns, np.float64) - server_ns[0]
    if work[-1] <= 0:
        return float("nan")
    inside = int(np.count_nonzero((work > FROM * work[-1]) & (work < TO * work[-1])))
    if inside < 5:
        return float("nan")
    begun, ended = np.interp([FROM * work[-1], TO * work[-1]], work, np.maximum.accumulate(tool_s))
    return float(ended - begun) / (TO - FROM)


def watched(
    command: list[str], environment: Mapping[str, str], core: int, log: Path, timeout_s: float, server_pid: int
) -> Cost:
    """Run `command` on the nth core, its output into `log`; ended, with all it started, after `timeout_s`."""
    before_s, begun = _children_cpu_s(), time.monotonic()
    server_ns, tool_s = [_server_cpu_ns(server_pid)], [0.0]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=log.parent,
            start_new_session=True,
            preexec_fn=pinned(core),
        )
    exit_code, family, rounds = None, [process.pid], 0
    try:
        while (exit_code := process.poll()) is None and time.monotonic() - begun < timeout_s:
            if rounds % LOOK_FOR_CHILDREN_EVERY == 0:
                family = _family(process.pid)
            rounds += 1
            server_ns.append(_server_cpu_ns(server_pid))
            tool_s.append(_cpu_of(family))
            time.sleep(SAMPLE_EVERY_S)
    finally:
        if exit_code is None:
            for pid in _family(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()
    wall_s = time.monotonic() - begun
    return Cost(exit_code, wall_s, _children_cpu_s() - before_s, _loaded_cpu_s(server_ns, tool_s))
