"""Does watching the machine disturb the measurement? The same load with telemetry on and off, in turn.

    python -m bench.sampler [STREAMS] [PAIRS] [INTERVAL_S]       default: 64 streams, 3 pairs, every 0.5 s

The truth server (100 ms to the first of 256 tokens, 20 ms between two) on the first core, the client's worker on the
last one, and a simulated board with two cards under /dev/shm as the machine that is watched. The truth server has no
page of metrics of its own, so the engine's page is that of an embedded engine beside it. Each row has the server's own
figures beside the client's: what is left between the two is the client's error.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.drive import Ours, run_ours
from bench.truth_server import Truth, TruthServer

TOKENS = 256
HEADER = (
    "| pair | telemetry | samples | TTFT mean, ms (server) | p99 (server) | ITL mean, ms (server) | p99 (server) "
    "| CPU, µs/event |"
)


def row(pair: int, watched: bool, ours: Ours, truth: Truth) -> tuple[float, float, float]:
    """Print one run; client minus server of TTFT's and ITL's mean in ms, and µs of CPU an event."""
    assert truth.ttft_ms is not None
    assert truth.itl_ms is not None
    ttft, itl = ours.point["ttft_ms"], ours.point["itl_ms"]
    cpu_us = 1e6 * ours.cpu_s / ours.events
    samples = ours.point["machine"]["samples"] if watched else 0
    print(
        f"| {pair} | {'on' if watched else 'off'} | {samples} | {ttft['mean']:.3f} ({truth.ttft_ms.mean:.3f}) "
        f"| {ttft['p99']:.2f} ({truth.ttft_ms.p99:.2f}) | {itl['mean']:.4f} ({truth.itl_ms.mean:.4f}) "
        f"| {itl['p99']:.3f} ({truth.itl_ms.p99:.3f}) | {cpu_us:.2f} |",
        flush=True,
    )
    return ttft["mean"] - truth.ttft_ms.mean, itl["mean"] - truth.itl_ms.mean, cpu_us


def main() -> int:
    given = sys.argv[1:]
    streams, pairs = (int(given[n]) if len(given) > n else default for n, default in ((0, 64), (1, 3)))
    interval_s = float(given[2]) if len(given) > 2 else 0.5
    found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        TruthServer(ttft_ms=100, itl_ms=20, tokens=TOKENS) as server,
    ):
        board = str(Path(folder) / "board")
        command = [sys.executable, "-m", "cadenza", "engine", "--port", "0", "--board", board, "--exit-with-parent"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
            assert engine.stdout is not None
            page = json.loads(engine.stdout.readline())["url"] + "/metrics"
            print(f"{HEADER}\n|---:|:---|---:|---:|---:|---:|---:|---:|", flush=True)
            for pair in range(1, pairs + 1):
                for watched in (True, False) if pair % 2 else (False, True):
                    server.reset()
                    on: dict[str, Any] = {"root": board, "metrics_url": page, "interval_s": interval_s}
                    spec = {
                        "urls": [server.url],
                        "concurrency": [streams],
                        "requests": 2 * streams,
                        "output_tokens": [TOKENS, TOKENS],
                        "workers": 1,
                        "seed": 1,
                        "telemetry": on if watched else {"off": True},
                    }
                    ours = run_ours(f"sampler-{'on' if watched else 'off'}", spec)
                    found[watched].append(row(pair, watched, ours, server.truth()))
            engine.kill()
    names = ("client − server, TTFT mean, ms", "client − server, ITL mean, ms", "CPU, µs/event")
    for n, name in enumerate(names):
        on_mean, off_mean = (fmean(each[n] for each in found[watched]) for watched in (True, False))
        print(f"{name}: on {on_mean:.4f}, off {off_mean:.4f}, difference {on_mean - off_mean:+.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
