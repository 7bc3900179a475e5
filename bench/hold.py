"""A thousand streams of 50 tokens a second: are 50,000 events a second held, and if not, does the run say so?

    python -m bench.hold [STREAMS] [WORKERS]       default: 1000 streams, as many workers as it takes (at most 2)

TTFT 100 ms, gap 20 ms, 256 tokens. Client and server share both cores, none is pinned; the server's own CPU time is
printed beside the client's, and what it leaves of the machine is what the client could have.
"""

import os
import sys

from bench.drive import run_ours, verdict
from bench.truth_server import TruthServer

TOKENS = 256


def main() -> int:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    cores = os.cpu_count() or 1
    with TruthServer(ttft_ms=100, itl_ms=20, tokens=TOKENS, core=None) as server:
        for workers in [int(sys.argv[2])] if len(sys.argv) > 2 else [1, 2]:
            server.reset()
            before = server.truth().cpu_s
            spec = {
                "urls": [server.url],
                "concurrency": [streams],
                "requests": 3 * streams,
                "output_tokens": [TOKENS, TOKENS],
                "workers": workers,
            }
            ours = run_ours(f"hold-{workers}", spec)
            truth, point = server.truth(), ours.point
            assert truth.itl_ms is not None
            assert truth.late_ms is not None
            serving = (truth.cpu_s - before) / ours.wall_s
            client = ours.cpu_s / ours.wall_s
            most = streams * TOKENS / (0.1 + (TOKENS - 1) * 0.02)  # one answer after the other on each stream
            print(
                f"{workers} workers: {point['throughput_tok_per_s']:,.0f} events/s of {most:,.0f} possible, "
                f"client {client:.2f} cores of the {cores - serving:.2f} that the server left, "
                f"{1e6 * ours.cpu_s / ours.events:.1f} µs an event\n"
                f"  TTFT {point['ttft_ms']['mean']:.2f} ms, ITL p50 {point['itl_ms']['p50']:.2f} "
                f"p99 {point['itl_ms']['p99']:.2f} ms (server {truth.itl_ms.p99:.2f}, late p99 "
                f"{truth.late_ms.p99:.2f} ms), {point['in_flight']['mean']:.1f} in flight\n  {verdict(ours)}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
