"""Everything together: the simulated board under a real sweep, the real exporter, a real Prometheus on a bundle.

Every panel's query and every alert expression is executed there; each alert is made to fire by a fault and to clear.
The faults are the engine's and the board's own, or files of the board that change as a driver's would. The bundle is
the one that `cadenza observe init` writes, with times to wait of seconds instead of minutes.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.observe.lint import all_panels, fill_variables
from cadenza.observe.shipped import DASHBOARDS, read_dashboard, read_yaml, rules_of
from support.prometheus import free_port, needs
from support.watched import Prometheus, Started, Watch, answers, hasten, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs("prometheus", "promtool")]

MODEL = "Qwen/Qwen3-8B"
ALERTS = {rule["alert"] for rule in rules_of(read_yaml("rules/alerts.yml"))}
# Panels of what has not happened yet when the others are looked at.
LATER = {("gpu", "Kernel events since exporter start")}
HEAT = ("GpuHot", "GpuThrottledByHeat", "GpuThrottled", "GpuLost")
KERNEL = ("GpuKernelEvents", "GpuKernelWarnings")
UNDER_LOAD = (
    *("GpusSaturated", "GpuMemoryNearlyFull", "EngineBatchLarge", "EngineQueueLong", "EngineKvCacheNearlyFull"),
    *("EngineFirstTokenLate", "EngineKvCachePressure", "EnginePreemptionStorm"),
)


class Site:
    """One machine: an engine on a board, its exporter, Prometheus, and a second engine, which is ill."""

    def __init__(self, folder: Path, board: Path) -> None:
        self.folder, self.board = folder, board
        self.started: list[Started] = []
        self.engine_port, self.ill_port = free_port(), free_port()
        self.exporter_port, prometheus_port = free_port(), free_port()
        self.bundle = folder / "bundle"
        (folder / "runs").mkdir()
        self.prometheus = Prometheus(f"http://127.0.0.1:{prometheus_port}")
        self.watch = Watch(self.prometheus)
        init = self.start(
            "init.log",
            *("observe", "init", str(self.bundle), "--prometheus", f"127.0.0.1:{prometheus_port}"),
            *("--alertmanager", f"127.0.0.1:{free_port()}", "--exporter", f"127.0.0.1:{self.exporter_port}"),
            *(
                "--engine-url",
                f"http://127.0.0.1:{self.engine_port}",
                "--engine-url",
                f"http://127.0.0.1:{self.ill_port}",
            ),
        )
        assert init.process.wait(60) == 0, init.said()
        hasten(self.bundle)

    def open(self) -> None:
        """Start all of it; whatever was started ends with `close`."""
        self.engine = self.start_engine("--gpu-memory-utilization", "0.97", "--set", "num_gpu_blocks=310")
        self.ill = self.start_ill("--disable-log-stats")
        self.exporter = self.start_exporter()
        up = self.start("up.log", "observe", "up", str(self.bundle))
        wait_for(self.prometheus.is_ready, 30, up.said)

    def start(self, log: str, *arguments: str) -> Started:
        self.started.append(Started(self.folder / log, *arguments))
        return self.started[-1]

    def start_engine(self, *arguments: str, speed: int = 10) -> Started:
        limits = ("--max-num-seqs", "40", "--set", "max_model_len=1024")
        shown = ("--board", str(self.board), "--speed", str(speed))
        engine = self._start_engine(self.engine_port, *shown, *limits, *arguments)
        # The board has no host; this machine's is as good as any.
        if not (self.board / "proc").exists():
            (self.board / "proc").symlink_to("/proc")
        return engine

    def start_ill(self, *arguments: str) -> Started:
        return self._start_engine(self.ill_port, *arguments)

    def _start_engine(self, port: int, *arguments: str) -> Started:
        engine = self.start(f"engine-{port}.log", "engine", "--port", str(port), *arguments)
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), 20, engine.said)
        return engine

    def start_exporter(self) -> Started:
        where = ("--listen", f"127.0.0.1:{self.exporter_port}", "--root", str(self.board), "--interval", "0.2")
        exporter = self.start("exporter.log", "exporter", *where, "--runs", str(self.folder / "runs"))
        wait_for(lambda: answers(f"http://127.0.0.1:{self.exporter_port}/metrics"), 20, exporter.said)
        return exporter

    def sweep(self, concurrency: int, seconds: int, port: int | None = None) -> Started:
        name = f"c{concurrency}-{seconds}s-{port or self.engine_port}"
        url = f"http://127.0.0.1:{port or self.engine_port}"
        load = ("-c", str(concurrency), "--duration", str(seconds), "--warmup", "0", "--quiet")
        out = ("--out", str(self.folder / "runs" / name))
        return self.start(f"{name}.log", "sweep", "--url", url, "--model", MODEL, *load, *out)

    def card(self, number: int) -> Path:
        return self.board / "sys" / "class" / "drm" / f"card{number}" / "device"

    def close(self) -> None:
        self.watch.close()
        for one in reversed(self.started):
            one.stop()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    shared = Path("/dev/shm")
    board = Path(tempfile.mkdtemp(prefix="cadenza-board-", dir=shared if shared.is_dir() else None))
    folder = Path(tempfile.mkdtemp(prefix="cadenza-observe-"))
    try:
        running = Site(folder, board)
        try:
            running.open()
            yield running
        finally:
            running.close()
    finally:
        shutil.rmtree(board, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def rewrite(path: Path, text: str) -> None:
    """As the board writes: the old text or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.test")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def panels() -> Iterator[tuple[str, str, str]]:
    """(dashboard, panel, query as Grafana sends it)."""
    for name in DASHBOARDS:
        for panel in all_panels(read_dashboard(name)):
            for target in panel.get("targets", ()):
                yield name, panel["title"], fill_variables(target["expr"], ago="8s", window="5s", span_s=15)


def empty(site: Site) -> list[tuple[str, str, str]]:
    """The panels whose query has no data."""
    return [panel for panel in panels() if not site.prometheus.query_range(panel[2], 15)]


def test_every_panel_has_data_under_a_sweep_and_the_alerts_of_load_fire_and_clear(site: Site) -> None:
    site.watch.wait_for(20, "EngineMetricsMissing")
    site.ill.stop()
    # 12 streams at a fifth of the speed make 30 tokens a second.
    site.ill = site.start_ill("--fault", "error-event:0.3", "--fault", "slow:86400@0x5")
    rewrite(site.card(1) / "current_link_width", "8\n")
    rewrite(site.card(1) / "ras" / "umc_err_count", "ue: 1\nce: 0\n")
    ill, sweep = site.sweep(12, 25, site.ill_port), site.sweep(64, 25)
    site.watch.wait_for(60, "EngineSlow", "EngineErrors", "GpuLinkNarrow", "GpuUncorrectableErrors", *UNDER_LOAD)
    # Those of `runs` want a load that began a while ago.
    wait_for(lambda: {panel[:2] for panel in empty(site)} <= LATER, 20, lambda: f"no data: {empty(site)}")
    for one in (ill, sweep):
        assert one.process.wait(90) in (0, 1), one.said()
    rewrite(site.card(1) / "current_link_width", "16\n")
    cleared = [name for name in UNDER_LOAD if name != "GpuMemoryNearlyFull"]
    others = ("EngineMetricsMissing", "EngineSlow", "EngineErrors", "GpuLinkNarrow", "GpuUncorrectableErrors")
    site.watch.wait_clear(40, *cleared, *others)


def test_a_hang_a_stuck_collector_and_an_exporter_that_is_down_fire_and_clear(site: Site) -> None:
    site.engine.stop()
    site.engine = site.start_engine("--gpu-memory-utilization", "0.9", "--fault", "hang:86400@100")
    sweep = site.sweep(4, 25)
    site.watch.wait_for(40, "GpuHung")
    sweep.stop()  # and with its client every request ends
    site.watch.wait_clear(20, "GpuHung")
    assert site.watch.fired & {*HEAT, *KERNEL} == set()

    lanes = site.card(2) / "current_link_width"
    pipe = lanes.with_name(".pipe")
    os.mkfifo(pipe)
    pipe.replace(lanes)  # whoever reads it now waits for a writer
    site.watch.wait_for(20, "CollectorStuck")
    with lanes.open("wb", buffering=0) as writer:
        rewrite(lanes, "16\n")
        writer.write(b"16\n")
    site.watch.wait_clear(20, "CollectorStuck")

    site.exporter.stop()
    site.watch.wait_for(20, "ExporterDown")
    site.exporter = site.start_exporter()
    site.watch.wait_clear(20, "ExporterDown")
    # Load, an engine that hangs and an exporter that comes back are no faults of the cards.
    assert site.watch.fired & {*HEAT, *KERNEL} == set()


def test_the_faults_of_cards_fire_and_clear(site: Site) -> None:
    site.engine.stop()
    site.watch.wait_for(20, "EngineDown")
    faults = ("overheat:0", "overheat:1", "ring-timeout:1@60s", "kfd-oom@60s", "log-overrun@60s")
    arguments = [text for fault in faults for text in ("--board-fault", fault)]
    site.engine = site.start_engine("--gpu-memory-utilization", "0.9", *arguments, speed=20)
    site.watch.wait_clear(20, "EngineDown", "GpuMemoryNearlyFull")
    sweep = site.sweep(16, 35)
    site.watch.wait_for(60, *KERNEL, *HEAT)
    assert {panel[:2] for panel in empty(site)} & LATER == set()
    lost = site.prometheus.query("max(cadenza_kernel_log_lost_total)")
    assert [sample["value"][1] for sample in lost] == ["100"]
    sweep.stop()
    site.engine.stop()
    site.engine = site.start_engine("--gpu-memory-utilization", "0.9")
    # A card that is lost takes the engine with it: until it is started anew, that is a hang.
    site.watch.wait_clear(40, "EngineDown", "GpuHung", *KERNEL, *HEAT)


def test_every_alert_has_fired_and_none_does_any_more(site: Site) -> None:
    assert ALERTS - site.watch.fired == set()
    wait_for(lambda: not site.watch.firing, 20, lambda: f"still firing: {site.watch.firing}")


def test_no_rule_failed_and_no_scrape_was_cut(site: Site) -> None:
    groups: Any = site.prometheus._get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > len(ALERTS)
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    failures = "sum(prometheus_rule_evaluation_failures_total)"
    wait_for(lambda: bool(site.prometheus.query(failures)), 10)
    assert float(site.prometheus.query(failures)[0]["value"][1]) == 0
