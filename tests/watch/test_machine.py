"""Watching: the engine's page at the edges of points, what it is made of, and who samples in between."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cadenza.clock import Clock, ManualClock
from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.load.fetch import Page
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import IN_PROCESS, Target
from cadenza.load.transport import Origin
from cadenza.readings import Reading, ReadingTable
from cadenza.spec import Telemetry
from cadenza.store.telemetry import Header, TelemetryFile, read_telemetry
from cadenza.telemetry.collectors import find_collectors
from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.watch.machine import EDGE, MachineWatch, find_pages, read_state, scrape

PAGES = [Page(IN_PROCESS, "/metrics", ())]
NOWHERE = [Page(IN_PROCESS, "/no/such/page", ())]


class Noted:
    """A sampling that notes what it is told."""

    def __init__(self, file: TelemetryFile, pages: Sequence[Page]) -> None:
        self.pages = pages
        self.told: list[object] = []

    def start(self) -> str:
        self.told.append("start")
        return "all of it"

    def poll(self, now_ns: int) -> None:
        self.told.append(now_ns)

    def end(self) -> None:
        self.told.append("end")


def watching(folder: Path, transport: MemoryTransport, clock: Clock, pages: Sequence[Page]) -> MachineWatch:
    return MachineWatch(folder, Header(), transport, clock, pages, Noted)


def engine() -> MemoryTransport:
    return MemoryTransport(HttpApi(profile.load("mi50-rx6900xt")))


def kept(folder: Path) -> ReadingTable:
    found = read_telemetry(folder)
    assert found is not None
    return found


def test_a_state_is_readings_and_what_is_none_is_left_out() -> None:
    state = EngineState(engine="vllm", running=2.0, ttft_s=Histogram((0.1, float("inf")), (3.0, 4.0), 1.5))
    labels = (("engine", "vllm"), ("target", "3"), ("model", "m"))
    plain = [Reading("running", labels, 2), Reading("ttft_s_count", labels, 4), Reading("ttft_s_sum", labels, 1.5)]
    assert read_state(state, 3, "m", whole=False) == plain
    buckets = [Reading("ttft_s_bucket", (*labels, ("le", bound)), n) for bound, n in (("0.1", 3), ("inf", 4))]
    assert read_state(state, 3, "m", whole=True) == plain + buckets


def test_the_engines_page_is_read_over_any_transport() -> None:
    found = scrape(engine(), PAGES, whole=False)
    assert found.missing is None
    labels = (("engine", "vllm"), ("target", "0"), ("model", "Qwen/Qwen3-8B"))
    assert Reading("running", labels, 0) in found.readings
    assert Reading("requests_total", labels, 0) in found.readings
    gone = scrape(engine(), NOWHERE, whole=False)
    assert (gone.readings, gone.missing) == ([], "absent")
    assert scrape(engine(), [], whole=True) == ([], None)


def test_an_edge_is_the_whole_page_and_whoever_samples_hears_of_it(tmp_path: Path) -> None:
    transport, clock = engine(), ManualClock(7)
    with watching(tmp_path, transport, clock, PAGES) as watch:
        assert watch.description == "engine metrics; all of it"
        watch.edge(0)
        assert [(s.at_ns, s.source, s.point) for s in watch.seen().samples] == [(7, EDGE, 0)]
        clock.advance_to(9)
        watch.edge(0)
        watch.edge(1)
        assert [(s.at_ns, s.point) for s in watch.seen().samples] == [(7, 0), (9, 0), (9, 1)]
        sampling = watch._sampling
        assert isinstance(sampling, Noted)
    assert sampling.told == ["start", 7, 9, 9, "end"]
    assert sampling.pages == PAGES
    assert [s.point for s in kept(tmp_path).samples] == [0, 0, 1]
    assert transport.clock.now_ns() == 0  # asking took no time of the engine's


def test_an_engine_without_metrics_is_told_once_and_not_asked_again(tmp_path: Path) -> None:
    with watching(tmp_path, engine(), ManualClock(), NOWHERE) as watch:
        assert watch.description == "no engine metrics (absent); all of it"
        assert isinstance(watch._sampling, Noted)
        assert watch._sampling.pages == ()
        for _ in range(3):
            watch.edge(0)
    found = kept(tmp_path)
    assert found.samples == []
    assert [(gap.source, gap.name, gap.reason) for gap in found.missing] == [(EDGE, "page", "absent")]


def test_metrics_elsewhere_get_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(url: str) -> Target:
        host = url.split("/")[2]
        return Target(url, Origin(host, ("10.0.0.1", 1)), host, "/" + url.split("/", 3)[3])

    monkeypatch.setattr("cadenza.watch.machine.resolve", resolve)
    base, key = Target("http://a", Origin("a", ("10.0.0.1", 1)), "a", "/v"), (("Authorization", "Bearer s"),)
    assert find_pages(Telemetry(), [base, base], key) == [Page(base, "/metrics", key)] * 2
    (same,) = find_pages(Telemetry(metrics_url="http://a/stats"), [base], key)
    assert (same.target.path(same.path), same.headers) == ("/stats", key)
    (other,) = find_pages(Telemetry(metrics_url="http://b/metrics"), [base], key)
    assert (other.target.path(other.path), other.headers) == ("/metrics", ())


def test_the_embedded_engine_is_not_served_by_the_cards_of_this_machine(tmp_path: Path) -> None:
    names = [collector.name for collector in find_collectors(Path("/"), embedded=True)]
    assert names == ["kernel", "host"]
    names = [collector.name for collector in find_collectors(tmp_path, embedded=True)]
    assert names == ["amdgpu", "kernel", "host"]
