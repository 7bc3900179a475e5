"""An open loop at 2,000 requests a second: does it keep its rate, its times, and the randomness of its arrivals?

    python -m bench.open_loop [SECONDS] [WORKERS …]       default: 60 seconds; 1, 2 and 4 workers

Answers of 4 tokens (TTFT 5 ms, gap 2 ms), Poisson arrivals, the client's workers together on one core, the server on
the other. The index of dispersion (variance / mean of the counts in slots of that length; 1 for a Poisson process) of
what left is held against that of the plan, slot by slot the same: twelve slots of 5 s are too few for an index of their
own to say much. Last, the plan alone over 2,000 s, where every slot length has enough of them.
"""

import sys

import numpy as np
from bench.drive import run_ours, verdict
from bench.truth_server import TruthServer

from cadenza.arrivals.poisson import Poisson
from cadenza.stats.columns import Floats

RATE, TOKENS = 2000.0, 4
SLOTS_S = (0.1, 1.0, 5.0)
SERVER, CLIENT = 0, 1
LONG_S = 2000


def dispersion(times_s: Floats, slot_s: float, first_s: float, last_s: float) -> float:
    """Variance over mean of the counts in whole slots of that length between two times."""
    slots = int((last_s - first_s) / slot_s)
    counts = np.bincount(((times_s - first_s) / slot_s).astype(np.int64), minlength=slots)[:slots]
    return float(counts.var(ddof=1) / counts.mean()) if slots > 1 else float("nan")


def _ratio(sent: Floats, due: Floats, slot_s: float) -> str:
    """Of what left over of what was planned: 1 where nothing of the randomness is lost."""
    ours, planned = (dispersion(times, slot_s, due[0], due[-1]) for times in (sent, due))
    return f"{ours:4.2f}/{planned:4.2f} = {ours / planned:5.3f}"


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    workers = [int(text) for text in sys.argv[2:]] or [1, 2, 4]
    names = "   ".join(f"{slot:g} s" for slot in SLOTS_S)
    print(f"workers | sent     rate/s  of offered | lag p50    p99    max ms | dispersion at {names} | verdict")
    with TruthServer(ttft_ms=5, itl_ms=2, tokens=TOKENS, core=SERVER) as server:
        for n in workers:
            spec = {
                "urls": [server.url],
                "rates_per_s": [RATE],
                "requests": round(RATE * seconds),
                "output_tokens": [TOKENS, TOKENS],
                "workers": n,
                "seed": 1,
            }
            ours = run_ours(f"open-{n}", spec, CLIENT)
            measured = [record for record in ours.records() if record["phase"] == "measure"]
            due = np.sort(np.array([record["intended_ns"] for record in measured])) / 1e9
            sent = np.sort(np.array([record["sent_ns"] for record in measured])) / 1e9
            lag, point = ours.point["dispatch_lag_ms"], ours.point
            ratios = "  ".join(_ratio(sent, due, s) for s in SLOTS_S)
            print(
                f"{n:7d} | {len(measured):6,} {point['achieved_per_s']:8.1f} "
                f"{100 * point['achieved_per_s'] / point['offered_per_s']:9.3f} % |"
                f" {lag['p50']:7.2f} {lag['p99']:6.2f} {lag['max']:6.2f}    | {ratios} | {verdict(ours)}",
                flush=True,
            )
    times = Poisson().times_ns(np.random.default_rng(1), RATE, round(RATE * LONG_S)) / 1e9
    told = ", ".join(f"{dispersion(times, slot, times[0], times[-1]):.3f} at {slot:g} s" for slot in SLOTS_S)
    print(f"the plan alone over {LONG_S:,} s: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
