"""Sampling in real time: what goes to the file, and a process that nobody waits for and that may be killed."""

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from cadenza.clock import ManualClock, MonotonicClock
from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.errors import UsageError
from cadenza.load.fetch import Page
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import IN_PROCESS
from cadenza.readings import Collected, Collector, Missing, Reading, ReadingTable
from cadenza.store.telemetry import TELEMETRY, Header, TelemetryFile, read_telemetry
from cadenza.watch.machine import MachineWatch
from cadenza.watch.realtime import SAMPLER, Kept, SamplerProcess

PAGES = [Page(IN_PROCESS, "/metrics", ())]
CARD = "0000:43:00.0"
INTERVAL_S = 0.05


class Scripted(Collector):
    """A collector that brings the same every round."""

    name = "amdgpu"

    def __init__(self, collected: Collected) -> None:
        self.collected = collected

    def collect(self) -> Collected:
        return self.collected


class Hung(Collector):
    """A collector whose read never comes back."""

    name = "hung"

    def collect(self) -> Collected:
        time.sleep(3600)
        raise AssertionError


class Broken(Collector):
    name = "broken"

    def collect(self) -> Collected:
        raise RuntimeError("no")


BUSY = Collected(
    [Reading("gpu_busy_ratio", (("gpu", CARD), ("vendor", "amd")), 0.5)],
    [Missing("gpu_fan_ratio", CARD, "absent"), Missing("gpu_fan_ratio", CARD, "absent")],
)


def engine() -> MemoryTransport:
    return MemoryTransport(HttpApi(profile.load("mi50-rx6900xt")))


def kept(folder: Path) -> ReadingTable:
    found = read_telemetry(folder)
    assert found is not None
    return found


def sampled(
    folder: Path, collectors: Sequence[Collector], for_s: float = 0.5, say: Callable[[str], None] = print
) -> Iterator[tuple[MachineWatch, SamplerProcess]]:
    """A watch in real time, but over the engine in memory, so that there is no socket."""
    header = Header(interval_s=INTERVAL_S, server_here=True)
    clock = MonotonicClock()
    make = partial(
        SamplerProcess,
        folder,
        header,
        INTERVAL_S,
        clock,
        lambda: collectors,
        lambda: contextlib.nullcontext(engine()),
        say,
    )
    with MachineWatch(folder, header, engine(), clock, PAGES, make) as watch:
        assert isinstance(watch._sampling, SamplerProcess)
        yield watch, watch._sampling
        time.sleep(for_s)


def test_what_is_missing_is_told_once_and_counted_at_the_end(tmp_path: Path) -> None:
    clock = ManualClock(7)
    one = Kept(Scripted(BUSY), TelemetryFile(tmp_path, Header()), clock.now_ns)
    for _ in range(3):
        assert one.collect() is BUSY
    one.sum_up()
    lines = [json.loads(line) for line in (tmp_path / TELEMETRY).read_bytes().splitlines()[1:]]
    assert [line["values"] for line in lines if "values" in line] == [[0.5]] * 3
    gaps = [line["missing"] for line in lines if "missing" in line]
    assert gaps == [[["gpu_fan_ratio", CARD, "absent", 1]], [["gpu_fan_ratio", CARD, "absent", 6]]]
    assert kept(tmp_path).samples[0].series == (BUSY.readings[0].series,)


@pytest.mark.slow
def test_the_sampler_is_a_process_of_low_priority_on_the_runs_clock(tmp_path: Path) -> None:
    begun = time.monotonic_ns()
    for watch, sampler in sampled(tmp_path, [Scripted(BUSY)]):
        assert watch.description == "engine metrics; amdgpu (1 series)"
        child = sampler.pid or 0
        assert child not in (0, os.getpid())
        assert os.getpriority(os.PRIO_PROCESS, child) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    ended = time.monotonic_ns()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    found = kept(tmp_path)
    for source in ("amdgpu", "engine"):
        stamps = [s.at_ns for s in found.samples if s.source == source]
        assert len(stamps) >= 4
        assert begun < stamps[0]
        assert stamps[-1] < ended
        assert stamps == sorted(stamps)
    assert [gap.name for gap in found.missing] == ["gpu_fan_ratio"] * 2


@pytest.mark.slow
def test_a_collector_that_hangs_or_breaks_holds_up_nobody(tmp_path: Path) -> None:
    begun = time.monotonic()
    for watch, _ in sampled(tmp_path, [Hung(), Broken(), Scripted(BUSY)], 0.3):
        assert "amdgpu (1 series)" in watch.description
    assert time.monotonic() - begun < 15
    assert len([s for s in kept(tmp_path).samples if s.source == "amdgpu"]) >= 4


@pytest.mark.slow
def test_two_collectors_with_the_same_series_end_the_sweep_at_its_start(tmp_path: Path) -> None:
    other = Scripted(BUSY)
    other.name = "smi"
    before = children()
    with pytest.raises(UsageError, match="amdgpu and smi both have the series"):
        next(sampled(tmp_path, [Scripted(BUSY), other]))
    assert children() <= before  # other tests may have left children of this process


def children() -> set[str]:
    """Process ids of this process's children that run or have not been waited for."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def kill(pid: int | None) -> None:
    """kill -9, and wait until it is dead; who has to reap it still can."""
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.slow
def test_a_sampler_that_is_killed_is_noted_told_and_started_anew_three_times(tmp_path: Path) -> None:
    said: list[str] = []
    for watch, sampler in sampled(tmp_path, [Scripted(BUSY)], 0, said.append):
        pids = []
        for death in range(1, 5):
            pids.append(sampler.pid)
            kill(sampler.pid)
            with (tmp_path / TELEMETRY).open("ab") as file:
                file.write(b'{"at_ns":1,"sou')  # it was writing
            watch.edge(0)
            assert len(said) == death
        assert sampler.pid is None
        watch.edge(1)  # nobody is left to die
    assert len(set(pids)) == 4
    assert said == [
        *["  telemetry  the sampler ended early (killed by signal 9); restarting it"] * 3,
        "  telemetry  the sampler ended early (killed by signal 9); the machine is no longer sampled",
    ]
    found = kept(tmp_path)
    assert [(gap.source, gap.name, gap.gpu, gap.reason) for gap in found.missing if gap.source == SAMPLER] == [
        (SAMPLER, SAMPLER, "", "failed")
    ] * 4
    assert [s.point for s in found.samples if s.source == "edge"] == [0, 0, 0, 0, 1]
    # Every one of the four wrote its first round with its keys, and no line was lost to the one that was cut.
    told = [line for line in (tmp_path / TELEMETRY).read_bytes().splitlines() if b'"series"' in line]
    assert len([line for line in told if b'"source":"amdgpu"' in line]) == 4


def refuse() -> int:
    raise BlockingIOError(errno.EAGAIN, "too many processes")


def test_a_kernel_that_gives_no_process_leaves_the_run_without_a_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", refuse)
    before = sorted(Path("/proc/self/fd").iterdir())
    for watch, sampler in sampled(tmp_path, [Scripted(BUSY)], 0):
        assert watch.description == "engine metrics; the sampler did not start"
        assert sampler.pid is None
        watch.edge(0)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert [s.source for s in kept(tmp_path).samples] == ["edge"]


@pytest.mark.slow
def test_a_sampler_that_cannot_be_started_anew_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for watch, sampler in sampled(tmp_path, [Scripted(BUSY)], 0, said.append):
        monkeypatch.setattr(os, "fork", refuse)
        kill(sampler.pid)
        watch.edge(0)
        watch.edge(1)
    assert said[1:] == ["  telemetry  the sampler cannot be restarted; the machine is no longer sampled"]
    assert [s.point for s in kept(tmp_path).samples if s.source == "edge"] == [0, 1]


@pytest.mark.slow
def test_a_run_with_a_thousand_connections_starts_its_sampler_anew(tmp_path: Path) -> None:
    with contextlib.ExitStack() as many:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard > 0 else 4096, hard))
        many.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for watch, sampler in sampled(tmp_path, [Scripted(BUSY)]):
            while (number := os.open(os.devnull, os.O_RDONLY)) < 1100:
                many.callback(os.close, number)
            many.callback(os.close, number)
            kill(sampler.pid)
            watch.edge(0)
            child = sampler.pid or 0
            time.sleep(3 * INTERVAL_S)
            os.kill(child, 0)  # it lives
            watch.edge(1)
            assert sampler.pid == child
    assert len([gap for gap in kept(tmp_path).missing if gap.source == SAMPLER]) == 1


@pytest.mark.slow
def test_a_sampler_that_died_after_the_last_edge_is_told_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    for _, sampler in sampled(tmp_path, [Scripted(BUSY)], 0, said.append):
        kill(sampler.pid)
    assert len(said) == 1
    assert [gap.reason for gap in kept(tmp_path).missing if gap.source == SAMPLER] == ["failed"]


@pytest.mark.slow
def test_a_parent_that_is_killed_takes_the_sampler_with_it(tmp_path: Path) -> None:
    script = f"""
import contextlib, time
from functools import partial
from pathlib import Path
from cadenza.clock import MonotonicClock
from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.load.memory import MemoryTransport
from cadenza.store.telemetry import Header
from cadenza.watch.realtime import SamplerProcess
from cadenza.watch.machine import MachineWatch
make = lambda: contextlib.nullcontext(MemoryTransport(HttpApi(profile.load("mi50-rx6900xt"))))
folder, clock = Path({str(tmp_path)!r}), MonotonicClock()
sampling = partial(SamplerProcess, folder, Header(), 0.5, clock, tuple, make, print)
with MachineWatch(folder, Header(), make().enter_result, clock, [], sampling) as watch:
    print(watch._sampling.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(child, 0)  # it lives
        process.kill()
        # What the parent had open is not held open by the sampler: the pipe ends with the parent.
        assert process.stdout.read() == b""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def sampler_of(process: "subprocess.Popen[bytes]") -> int:
    """The child that is a fork of the sweep itself; the engine is another program's start."""
    own = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/cmdline").read_bytes() == own:
                    return int(child)
        time.sleep(0.02)
    raise AssertionError


def wait_for(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def sweeping(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Two points of four seconds each against the embedded engine, sampled ten times a second."""
    (folder / "spec.toml").write_text("[telemetry]\ninterval_s = 0.1\n", encoding="utf-8")
    command = [
        *(sys.executable, "-m", "cadenza", "sweep", "--spec", "spec.toml", "--model", "Qwen/Qwen3-8B", "--speed", "10"),
        *("-c", "2,4", "--requests", "1000000", "--duration", "40", "--warmup", "0", "--out", "run"),
    ]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def rebuilt(folder: Path) -> tuple[bytes, str]:
    """The run's summary, made anew, and its report."""
    show = [sys.executable, "-m", "cadenza", "show", "run"]
    texts = [subprocess.run([*show, *form], cwd=folder, check=False, capture_output=True) for form in (["--json"], [])]
    return texts[0].stdout, " ".join(texts[1].stdout.decode().split())


@pytest.mark.slow
def test_a_sweep_whose_sampler_is_killed_says_what_it_did_not_see(tmp_path: Path) -> None:
    with sweeping(tmp_path) as process:
        wait_for(tmp_path / "run" / "records.jsonl", 3)
        os.kill(sampler_of(process), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert b"the sampler ended early (killed by signal 9); restarting it" in err
    summary = (tmp_path / "run" / "summary.json").read_bytes()
    first, second = json.loads(summary)["points"]
    # Three answers had come by then, of 128 to 256 tokens of 80 ms each: half of the forty seconds at most.
    assert first["machine"]["unwatched_s"]["engine"] > 10
    assert "unwatched_s" not in second["machine"]
    assert second["machine"]["engine"]["running_peak"] == 4  # a new one watched
    json_text, text = rebuilt(tmp_path)
    assert json_text == summary
    assert "At C = 2 nothing was seen of engine, host, kernel for" in text
    assert "s unwatched): " in text
    assert "At C = 4 nothing was seen" not in text


@pytest.mark.slow
def test_a_sampler_that_is_stopped_for_a_while_leaves_a_gap_in_one_point(tmp_path: Path) -> None:
    with sweeping(tmp_path) as process:
        wait_for(tmp_path / "run" / "records.jsonl", 3)
        sampler = sampler_of(process)
        os.kill(sampler, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(sampler, signal.SIGCONT)
        _, err = process.communicate(timeout=60)
    assert b"ended early" not in err
    first, _ = json.loads((tmp_path / "run" / "summary.json").read_bytes())["points"]
    assert first["machine"]["unwatched_s"]["engine"] > 14  # of the engine's time, which goes ten times as fast
    assert "At C = 2 nothing was seen of engine, host" in rebuilt(tmp_path)[1]
