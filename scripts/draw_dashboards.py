"""Draw the dashboards of `cadenza observe` into docs/pictures, each panel from its own query on a real Prometheus.

    PATH=$(scripts/get_prometheus.sh FOLDER):$PATH python scripts/draw_dashboards.py        3 minutes, extra [bench]

The embedded engine with its simulated board is under two sweeps, read by the exporter; Prometheus runs on a bundle that
`observe init` wrote, with minutes of waiting and averaging made seconds. Grafana itself has no part in it: places,
titles, units, legends and queries are the dashboards', the drawing is scripts/panel_pictures.py.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from panel_pictures import Answers, draw  # noqa: E402

from cadenza.observe.lint import fill_variables  # noqa: E402
from cadenza.observe.shipped import DASHBOARDS  # noqa: E402
from support.prometheus import free_port  # noqa: E402
from support.watched import Prometheus, Started, answers, hasten, wait_for  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MODEL = "Qwen/Qwen3-8B"
SPEED = 10
POINT_S = 18
PAUSE_S = 11  # longer than rates look back
LOAD = ("-c", "4,16,32", "--duration", str(POINT_S), "--warmup", "0")
# Sixteen run at once, so at 32 a queue stands; the KV cache holds them with short prompts and does not with long ones.
LIMITS = ("--max-num-seqs", "16", "--set", "max_model_len=1024", "--set", "num_gpu_blocks=330")
RUNS = (("short", ("--cache", "reuse")), ("long", ("--prompts", "random:200")))
# In the engine's seconds: within the second run.
FAULTS = ("--board-fault", "overheat:1@950s", "--board-fault", "ring-timeout:0@1150s")
WINDOW = "5s"  # Grafana's $__rate_interval at one scrape and one point a second


class Stretch(NamedTuple):
    """A time range, in seconds since 1970."""

    start_s: float
    end_s: float


class Queries(Answers):
    """A dashboard's queries as Grafana would send them for `stretch`; `ago_s` is its variable of that name."""

    def __init__(self, prometheus: Prometheus, stretch: Stretch, ago_s: int) -> None:
        self.start_s, self.end_s = stretch
        self._prometheus, self._ago_s = prometheus, ago_s

    def fill(self, text: str) -> str:
        # One model is served under load; a reader would choose it.
        return fill_variables(
            text.replace("$model", MODEL), ago=f"{self._ago_s}s", window=WINDOW, span_s=round(self.end_s - self.start_s)
        )

    def over_time(self, expression: str) -> list[dict[str, Any]]:
        limits = {"start": f"{self.start_s}", "end": f"{self.end_s}", "step": "1"}
        found: list[dict[str, Any]] = self._prometheus._get(
            "/api/v1/query_range", query=self.fill(expression), **limits
        )["result"]
        return found

    def at_the_end(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._prometheus._get(
            "/api/v1/query", query=self.fill(expression), time=f"{self.end_s}"
        )["result"]
        return found


def port(usual: int) -> int:
    """The port that a reader knows, another one where that is taken."""
    with contextlib.suppress(OSError):
        return free_port(usual)
    return free_port()


class Site:
    """The engine with its board, the exporter and Prometheus."""

    def __init__(self, folder: Path, board: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port(8000)}"
        exporter, prometheus = f"127.0.0.1:{port(9101)}", f"127.0.0.1:{free_port()}"
        bundle = folder / "bundle"
        where = ("--prometheus", prometheus, "--alertmanager", f"127.0.0.1:{free_port()}")
        init = self.start(
            "init", "observe", "init", str(bundle), *where, "--engine-url", self.url, "--exporter", exporter
        )
        assert init.process.wait(60) == 0, init.said()
        hasten(bundle)
        self.running: list[Started] = []
        show = ("--port", self.url.rpartition(":")[2], "--board", str(board), "--speed", str(SPEED))
        self.keep(self.start("engine", "engine", *show, *LIMITS, *FAULTS), f"{self.url}/health")
        if not (board / "proc").exists():
            (board / "proc").symlink_to("/proc")  # the board has no host; this machine's is as good as any
        read = ("--root", str(board), "--interval", "0.2")
        read += ("--runs", str(folder))
        self.keep(self.start("exporter", "exporter", "--listen", exporter, *read), f"http://{exporter}/metrics")
        self.prometheus = Prometheus(f"http://{prometheus}")
        self.keep(self.start("up", "observe", "up", str(bundle)), f"http://{prometheus}/-/ready")

    def start(self, name: str, *arguments: str) -> Started:
        return Started(self.folder / f"{name}.log", *arguments)

    def keep(self, started: Started, url: str) -> None:
        self.running.append(started)
        wait_for(lambda: answers(url), 30, started.said)

    def sweep(self, name: str, arguments: tuple[str, ...]) -> Stretch:
        """Run it; from its first request to the last moment at which as many ran as ever."""
        start_s = time.time()
        out = ("--out", str(self.folder / name), "--quiet")
        sweep = self.start(name, "sweep", "--url", self.url, "--model", MODEL, *LOAD, *arguments, *out)
        assert sweep.process.wait(120) in (0, 1), sweep.said()
        everything = Queries(self.prometheus, Stretch(start_s, time.time()), 0)
        in_system = everything.over_time("sum(model:engine_requests_in_system:sum)")[0]["values"]
        most = max(float(value) for _, value in in_system)
        return Stretch(start_s, max(at_s for at_s, value in in_system if float(value) == most))

    def close(self) -> None:
        for started in reversed(self.running):
            started.stop()


@contextlib.contextmanager
def site() -> Iterator[Site]:
    shared = Path("/dev/shm")
    board = Path(tempfile.mkdtemp(prefix="cadenza-board-", dir=shared if shared.is_dir() else None))
    folder = Path(tempfile.mkdtemp(prefix="cadenza-pictures-"))
    try:
        running = Site(folder, board)
        try:
            yield running
        finally:
            running.close()
    finally:
        shutil.rmtree(board, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    if shutil.which("prometheus") is None:
        print("cadenza: no prometheus on PATH: PATH=$(scripts/get_prometheus.sh FOLDER):$PATH", file=sys.stderr)
        return 1
    PICTURES.mkdir(parents=True, exist_ok=True)
    note = (
        f"SIMULATED board and engine, {SPEED} times faster than real time: rates are {SPEED} times too high, "
        f"joules per token {SPEED} times too low\n"
        "python scripts/draw_dashboards.py, from Prometheus's answers and without Grafana; "
        "rules average over 10 s instead of 1 min"
    )
    with site() as running:
        time.sleep(5)  # the cards idle
        stretches = []
        for name, arguments in RUNS:
            stretches.append(running.sweep(name, arguments))
            time.sleep(PAUSE_S)
        first, second = stretches
        whole = Stretch(first.start_s - 5, second.end_s)
        for name in DASHBOARDS:
            dashboard = json.loads((running.folder / f"bundle/grafana/dashboards/{name}.json").read_bytes())
            stretch = second if name == "runs" else whole
            queries = Queries(running.prometheus, stretch, round(second.start_s - first.start_s))
            empty = draw(dashboard, queries, note, PICTURES / f"dashboard-{name}.png")
            print(f"{name}: {', '.join(empty) or 'nothing'} without data")
    return 0


if __name__ == "__main__":
    sys.exit(main())
