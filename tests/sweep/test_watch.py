"""Watching: what goes to the file, what is told once and counted, and a sampler that nobody has to wait for."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cadenza.clock import ManualClock, MonotonicClock
from cadenza.engine import profile
from cadenza.engine.face import Face
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import IN_PROCESS, Target
from cadenza.load.transport import Origin
from cadenza.spec import Telemetry
from cadenza.store.telemetry import TELEMETRY, Header, TelemetryFile, TelemetryLog, read_telemetry
from cadenza.sweep.watch import EDGE, Kept, MachineWatch, Page, find_collectors, find_pages, flatten, scrape
from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.telemetry.reading import Collected, Collector, Missing, Reading

PAGES = [Page(IN_PROCESS, "/metrics", ())]
NOWHERE = [Page(IN_PROCESS, "/no/such/page", ())]
CARD = "0000:43:00.0"


class Scripted:
    """A collector that brings the same every round."""

    name = "amdgpu"

    def __init__(self, collected: Collected) -> None:
        self.collected = collected

    def collect(self) -> Collected:
        return self.collected


BUSY = Collected(
    [Reading("amdgpu_busy_ratio", (("gpu", CARD),), 0.5)],
    [Missing("amdgpu_fan_ratio", CARD, "absent"), Missing("amdgpu_fan_ratio", CARD, "absent")],
)


def engine() -> MemoryTransport:
    return MemoryTransport(Face(profile.load("mi50-rx6900xt")))


def kept(folder: Path) -> TelemetryLog:
    found = read_telemetry(folder)
    assert found is not None
    return found


def test_a_state_is_values_by_key_and_silence_is_not_zero() -> None:
    state = EngineState(engine="vllm", running=2.0, ttft_s=Histogram((0.1, float("inf")), (3.0, 4.0), 1.5))
    labels = "engine=vllm,target=0"
    assert flatten(state, labels, "m", whole=False) == {
        "running{engine=vllm,target=0,model=m}": 2,
        "ttft_s_count{engine=vllm,target=0,model=m}": 4,
        "ttft_s_sum{engine=vllm,target=0,model=m}": 1.5,
    }
    whole = flatten(state, labels, "m", whole=True)
    assert whole["ttft_s_bucket{engine=vllm,target=0,le=0.1,model=m}"] == 3
    assert whole["ttft_s_bucket{engine=vllm,target=0,le=inf,model=m}"] == 4
    assert len(whole) == 5


def test_the_engines_page_is_read_over_any_transport() -> None:
    found = scrape(engine(), PAGES, whole=False)
    assert found.missing is None
    assert found.values["running{engine=vllm,target=0,model=Qwen/Qwen3-8B}"] == 0
    assert found.values["requests_total{engine=vllm,target=0,model=Qwen/Qwen3-8B}"] == 0
    gone = scrape(engine(), NOWHERE, whole=False)
    assert (gone.values, gone.missing) == ({}, "absent")
    assert scrape(engine(), [], whole=True) == ({}, None)


def test_what_is_missing_is_told_once_and_counted_at_the_end(tmp_path: Path) -> None:
    clock = ManualClock(7)
    one = Kept(Scripted(BUSY), TelemetryFile(tmp_path, Header()), clock.now_ns)
    for _ in range(3):
        assert one.collect() is BUSY
    one.sum_up()
    lines = [json.loads(line) for line in (tmp_path / TELEMETRY).read_bytes().splitlines()[1:]]
    assert [line["values"] for line in lines if "values" in line] == [[0.5]] * 3
    gaps = [line["missing"] for line in lines if "missing" in line]
    assert gaps == [[["amdgpu_fan_ratio", CARD, "absent", 1]], [["amdgpu_fan_ratio", CARD, "absent", 6]]]
    assert kept(tmp_path).samples[0].series == (f"amdgpu_busy_ratio{{gpu={CARD}}}",)


def test_in_virtual_time_there_are_edges_and_no_process(tmp_path: Path) -> None:
    transport = engine()
    with MachineWatch(Telemetry(), tmp_path, transport, transport.clock, PAGES, False) as watch:
        assert watch.told == "engine metrics; nothing of the machine: time is virtual"
        watch.edge(0)
        assert [(s.at_ns, s.source, s.point) for s in watch.seen().samples] == [(0, EDGE, 0)]
        watch.edge(0)
        watch.edge(1)
        assert [s.point for s in watch.seen().samples] == [0, 0, 1]
    assert [s.point for s in kept(tmp_path).samples] == [0, 0, 1]
    assert transport.clock.now_ns() == 0  # asking took no time of the engine's


def test_an_engine_without_metrics_is_told_once_and_not_asked_again(tmp_path: Path) -> None:
    with MachineWatch(Telemetry(), tmp_path, engine(), ManualClock(), NOWHERE, False) as watch:
        assert watch.told.startswith("no engine metrics (absent); ")
        for _ in range(3):
            watch.edge(0)
    found = kept(tmp_path)
    assert found.samples == []
    assert [(gap.source, gap.name, gap.reason) for gap in found.missing] == [(EDGE, "page", "absent")]


def test_metrics_elsewhere_get_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(url: str) -> Target:
        host = url.split("/")[2]
        return Target(url, Origin(host, ("10.0.0.1", 1)), host, "/" + url.split("/", 3)[3])

    monkeypatch.setattr("cadenza.sweep.watch.resolve", resolve)
    base, key = Target("http://a", Origin("a", ("10.0.0.1", 1)), "a", "/v"), (("Authorization", "Bearer s"),)
    assert find_pages(Telemetry(), [base, base], key) == [Page(base, "/metrics", key)] * 2
    (same,) = find_pages(Telemetry(metrics_url="http://a/stats"), [base], key)
    assert (same.target.path(same.path), same.headers) == ("/stats", key)
    (other,) = find_pages(Telemetry(metrics_url="http://b/metrics"), [base], key)
    assert (other.target.path(other.path), other.headers) == ("/metrics", ())


def test_the_embedded_engine_is_not_served_by_the_cards_of_this_machine(tmp_path: Path) -> None:
    names = [collector.name for collector in find_collectors(Path("/"), embedded=True)]
    assert names == ["host", "kernel"]
    names = [collector.name for collector in find_collectors(tmp_path, embedded=True)]
    assert names == ["host", "kernel", "amdgpu"]


class Hung:
    """A collector whose read never comes back."""

    name = "hung"

    def collect(self) -> Collected:
        time.sleep(3600)
        raise AssertionError


class Broken:
    name = "broken"

    def collect(self) -> Collected:
        raise RuntimeError("no")


def sampled(folder: Path, collectors: Sequence[Collector], for_s: float = 0.5) -> Iterator[MachineWatch]:
    """A watch in real time, but over the engine in memory, so that there is no socket."""
    watch = MachineWatch(
        Telemetry(interval_s=0.05),
        folder,
        engine(),
        MonotonicClock(),
        PAGES,
        server_here=True,
        make_collectors=lambda: collectors,
        make_transport=lambda: contextlib.nullcontext(engine()),
    )
    with watch:
        yield watch
        time.sleep(for_s)


@pytest.mark.slow
def test_the_sampler_is_a_process_of_low_priority_on_the_runs_clock(tmp_path: Path) -> None:
    begun = time.monotonic_ns()
    for watch in sampled(tmp_path, [Scripted(BUSY)]):
        assert watch.told == "engine metrics; amdgpu (1 series)"
        assert watch._child is not None
        child = watch._child[0]
        assert child != os.getpid()
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
    assert [gap.name for gap in found.missing] == ["amdgpu_fan_ratio"] * 2


@pytest.mark.slow
def test_a_collector_that_hangs_or_breaks_holds_up_nobody(tmp_path: Path) -> None:
    begun = time.monotonic()
    for watch in sampled(tmp_path, [Hung(), Broken(), Scripted(BUSY)], 0.3):
        assert "amdgpu (1 series)" in watch.told
    assert time.monotonic() - begun < 15
    assert len([s for s in kept(tmp_path).samples if s.source == "amdgpu"]) >= 4


@pytest.mark.slow
def test_a_parent_that_is_killed_takes_the_sampler_with_it(tmp_path: Path) -> None:
    script = f"""
import contextlib, sys, time
from pathlib import Path
from cadenza.clock import MonotonicClock
from cadenza.engine import profile
from cadenza.engine.face import Face
from cadenza.load.memory import MemoryTransport
from cadenza.spec import Telemetry
from cadenza.sweep.watch import MachineWatch
make = lambda: contextlib.nullcontext(MemoryTransport(Face(profile.load("mi50-rx6900xt"))))
folder, clock = Path({str(tmp_path)!r}), MonotonicClock()
with MachineWatch(Telemetry(), folder, make().enter_result, clock, [], True, tuple, make) as watch:
    print(watch._child[0], flush=True)
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
