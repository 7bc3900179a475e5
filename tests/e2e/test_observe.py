"""Everything together: the simulated board under a real sweep, the real exporter, a real Prometheus on a bundle.

Every panel's query and every alert expression is executed there; each alert is made to fire by a fault and to clear.
The bundle is the one that `cadenza observe init` writes, with times to wait of seconds instead of minutes.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.observe.alerts import alerts
from cadenza.observe.dashboards import DASHBOARDS
from cadenza.observe.lint import all_panels, fill_variables
from support.prometheus import free_port, needs
from support.watched import Page, Prometheus, Started, Watch, answers, hasten, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs("prometheus", "promtool")]

MODEL = "Qwen/Qwen3-8B"
# Panels that stay empty on this site, and why.
EMPTY = {
    ("gpu", "Kernel log lines lost"): "a file of kernel lines loses none; /dev/kmsg does",
    ("gpu", "Kernel events since the exporter started"): "none happens here before the faults of cards",
}
HEAT = ("GpuHot", "GpuThrottledByHeat", "GpuThrottled", "GpuLost")
KERNEL = ("GpuKernelEvents", "GpuKernelWarnings")
UNDER_LOAD = (
    *("GpusSaturated", "GpuMemoryNearlyFull", "EngineBatchLarge", "EngineQueueLong", "EngineKvCacheNearlyFull"),
    *("EngineFirstTokenLate", "EngineKvCachePressure", "EnginePreemptionStorm"),
)


class Site:
    """One machine: its engine, its exporter, Prometheus, and a page that stands for a second engine."""

    def __init__(self, folder: Path, board: Path) -> None:
        self.folder, self.board = folder, board
        self.engine_port, self.exporter_port, prometheus_port = free_port(), free_port(), free_port()
        self.page = Page()
        self.bundle = folder / "bundle"
        self.prometheus = Prometheus(f"http://127.0.0.1:{prometheus_port}")
        init = Started(
            folder / "init.log",
            *("observe", "init", str(self.bundle), "--prometheus", f"127.0.0.1:{prometheus_port}"),
            *("--alertmanager", f"127.0.0.1:{free_port()}", "--exporter", f"127.0.0.1:{self.exporter_port}"),
            *("--engine-url", f"http://127.0.0.1:{self.engine_port}", "--engine-url", f"http://{self.page.address}"),
        )
        assert init.process.wait(60) == 0, init.said()
        hasten(self.bundle)
        self.engine = self.start_engine("--gpu-memory-utilization", "0.97", "--set", "num_gpu_blocks=310")
        self.exporter = self.start_exporter()
        self.up = Started(folder / "up.log", "observe", "up", str(self.bundle))
        wait_for(self.prometheus.is_ready, 30, self.up.said)
        self.watch = Watch(self.prometheus)

    def start_engine(self, *arguments: str, speed: int = 10) -> Started:
        limits = ("--max-num-seqs", "40", "--set", "max_model_len=1024")
        where = ("--port", str(self.engine_port), "--board", str(self.board), "--speed", str(speed))
        engine = Started(self.folder / "engine.log", "engine", *where, *limits, *arguments)
        wait_for(lambda: answers(f"http://127.0.0.1:{self.engine_port}/health"), 20, engine.said)
        # The board has no host; this machine's is as good as any.
        if not (self.board / "proc").exists():
            (self.board / "proc").symlink_to("/proc")
        return engine

    def start_exporter(self) -> Started:
        where = ("--listen", f"127.0.0.1:{self.exporter_port}", "--root", str(self.board), "--interval", "0.2")
        log = ("--kernel-log", str(self.board / "kernel.log"))
        exporter = Started(self.folder / "exporter.log", "exporter", *where, *log)
        wait_for(lambda: answers(f"http://127.0.0.1:{self.exporter_port}/metrics"), 20, exporter.said)
        return exporter

    def sweep(self, concurrency: int, seconds: int) -> Started:
        name = f"sweep-{concurrency}-{seconds}"
        url = f"http://127.0.0.1:{self.engine_port}"
        load = ("-c", str(concurrency), "--duration", str(seconds), "--warmup", "0", "--quiet")
        out = ("--out", str(self.folder / name))
        return Started(self.folder / f"{name}.log", "sweep", "--url", url, "--model", MODEL, *load, *out)

    def card(self, number: int) -> Path:
        return self.board / "sys" / "class" / "drm" / f"card{number}" / "device"

    def close(self) -> None:
        self.watch.close()
        for one in (self.up, self.exporter, self.engine):
            one.stop()
        self.page.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    shared = Path("/dev/shm")
    board = Path(tempfile.mkdtemp(prefix="cadenza-board-", dir=shared if shared.is_dir() else None))
    folder = Path(tempfile.mkdtemp(prefix="cadenza-observe-"))
    try:
        running = Site(folder, board)
        try:
            yield running
        finally:
            running.close()
    finally:
        shutil.rmtree(board, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def slow(seconds: float) -> str:
    """An engine that makes 20 tokens a second for ten requests, of which one in six fails."""
    return (
        f'vllm:num_requests_running{{model_name="slow"}} 10\n'
        f'vllm:generation_tokens_total{{model_name="slow"}} {int(20 * seconds)}\n'
        f'vllm:request_success_total{{model_name="slow",finished_reason="error"}} {int(seconds)}\n'
        f'vllm:request_success_total{{model_name="slow",finished_reason="stop"}} {int(5 * seconds)}\n'
    )


def steady(running: int, tokens: int) -> Callable[[float], str]:
    """An engine that has made `tokens` tokens so far, and makes no more."""
    state = f'vllm:num_requests_running{{model_name="slow"}} {running}\n'
    return lambda _: f'{state}vllm:generation_tokens_total{{model_name="slow"}} {tokens}\n'


def rewrite(path: Path, text: str) -> None:
    """As the board writes: the old text or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.test")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def panels() -> Iterator[tuple[str, str, str]]:
    """(dashboard, panel, query as Grafana sends it)."""
    for name, make in DASHBOARDS.items():
        for panel in all_panels(make()):
            for target in panel.get("targets", ()):
                yield name, panel["title"], fill_variables(target["expr"], ago="8s", window="5s", span_s=15)


def test_every_panel_has_data_under_a_sweep_and_the_alerts_of_load_fire_and_clear(site: Site) -> None:
    site.watch.wait_for(20, "EngineMetricsMissing")
    site.page.text = slow
    rewrite(site.card(1) / "current_link_width", "8\n")
    rewrite(site.card(1) / "ras" / "umc_err_count", "ue: 1\nce: 0\n")
    sweep = site.sweep(64, 25)
    site.watch.wait_for(60, "EngineSlow", "EngineErrors", "GpuLinkNarrow", "GpuUncorrectableErrors", *UNDER_LOAD)

    def empty() -> list[str]:
        return [
            f"{name}: {title}: {query}"
            for name, title, query in panels()
            if (name, title) not in EMPTY and not site.prometheus.query_range(query, 15)
        ]

    # Those of `runs` want a load that began a while ago.
    wait_for(lambda: not empty(), 20, lambda: "no data:\n" + "\n".join(empty()))
    assert sweep.process.wait(60) in (0, 1), sweep.said()
    site.page.text = steady(0, 0)
    rewrite(site.card(1) / "current_link_width", "16\n")
    cleared = [name for name in UNDER_LOAD if name != "GpuMemoryNearlyFull"]
    others = ("EngineMetricsMissing", "EngineSlow", "EngineErrors", "GpuLinkNarrow", "GpuUncorrectableErrors")
    site.watch.wait_clear(40, *cleared, *others)


def test_a_hang_a_stuck_collector_and_an_exporter_that_is_down_fire_and_clear(site: Site) -> None:
    # No load: nobody but this test writes how busy the card is.
    site.page.text = steady(1, 100)
    rewrite(site.card(1) / "gpu_busy_percent", "100\n")
    site.watch.wait_for(30, "GpuHung")
    site.page.text = steady(0, 100)
    rewrite(site.card(1) / "gpu_busy_percent", "0\n")
    site.watch.wait_clear(20, "GpuHung")

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
    # Load, a card that is stuck and an exporter that comes back are no faults of the cards.
    assert site.watch.fired & {*HEAT, *KERNEL} == set()


def test_the_faults_of_cards_fire_and_clear(site: Site) -> None:
    site.engine.stop()
    site.watch.wait_for(20, "EngineDown")
    faults = ("overheat:0", "overheat:1", "ring-timeout:1@60s", "kfd-oom@60s")
    arguments = [text for fault in faults for text in ("--board-fault", fault)]
    site.engine = site.start_engine("--gpu-memory-utilization", "0.9", *arguments, speed=20)
    site.watch.wait_clear(20, "EngineDown", "GpuMemoryNearlyFull")
    sweep = site.sweep(16, 35)
    site.watch.wait_for(60, *KERNEL, *HEAT)
    sweep.stop()
    site.engine.stop()
    site.engine = site.start_engine("--gpu-memory-utilization", "0.9")
    site.watch.wait_clear(40, "EngineDown", *KERNEL, *HEAT)


def test_every_alert_has_fired_and_none_does_any_more(site: Site) -> None:
    assert {alert.name for alert in alerts()} - site.watch.fired == set()
    wait_for(lambda: not site.watch.firing, 20, lambda: f"still firing: {site.watch.firing}")


def test_no_rule_failed_and_no_scrape_was_cut(site: Site) -> None:
    groups: Any = site.prometheus._get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > len(alerts())
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    failures = "sum(prometheus_rule_evaluation_failures_total)"
    wait_for(lambda: bool(site.prometheus.query(failures)), 10)
    assert float(site.prometheus.query(failures)[0]["value"][1]) == 0
