"""A server frozen for six seconds under an open loop: what a user felt, and what a naive client would say.

    python -m bench.freeze

12 requests a second (Poisson), at most 16 in flight, 120 s, a server that takes a second for each of its answers (two
tokens at the end of it) and is stopped (SIGSTOP) for 6 s. The naive figure counts from when a request could leave, ours
from when it was due. What the sweep in virtual time says of the same case: tests/behaviour/test_freeze.py.
"""

import os
import signal
import sys
import time

from bench.drive import run_ours, verdict
from bench.truth_server import TruthServer

RATE, CAP, SECONDS, FROZEN_S, AFTER_S = 12.0, 16, 120.0, 6.0, 40.0


def main() -> int:
    with TruthServer(ttft_ms=1000, itl_ms=1, tokens=2) as server:

        def freeze() -> None:
            time.sleep(AFTER_S)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            os.kill(server.pid, signal.SIGCONT)

        spec = {
            "urls": [server.url],
            "concurrency": [CAP],
            "rates_per_s": [RATE],
            "requests": round(RATE * SECONDS),
            "output_tokens": [2, 2],
            "seed": 3,
        }
        ours = run_ours("freeze", spec, during=freeze)
    user, naive = ours.point["user_ttft_ms"], ours.point["ttft_ms"]
    print(f"          p50 ms    p95 ms    p99 ms   ({user['n']} answers, {ours.point['requests']['sent']} sent of "
          f"{ours.point['requests']['planned']} due)")  # fmt: skip
    for name, found in (("user TTFT", user), ("naive", naive)):
        print(f"{name:9s} {found['p50']:7.0f} {found['p95']:9.0f} {found['p99']:9.0f}")
    print(f"ratio at p95: {user['p95'] / naive['p95']:.1f}\n{verdict(ours)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
