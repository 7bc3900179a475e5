"""TTFT P95 of a closed loop with equal lengths: how far runs differ that differ by their draw of the slots' phases.

    PYTHONPATH=src:tests python scripts/phase_draws.py --seeds 600

With equal lengths each slot keeps its distance to the others for ever, so that a run is one draw of C positions. The
server is tests/support/batching.py.
"""

import argparse
import math

import numpy as np
from verdict_tables import Floats, closed_run, row, table

from cadenza.record import Phase


def phases_table(seeds: range) -> None:
    print("\n## Equal lengths: one draw of phases")
    print(
        "\nTTFT P95 of a run of n = max(128, 12 C) requests of 32 tokens against 40 rounds of the same draw, 18 rounds"
    )
    print("later, and against other draws; percent.")
    columns = ("own draw: mean ± error", "own draw: spread", "between draws: spread", "mean over draws ± error")
    table("configuration", "runs", *columns, "pooled over draws")
    for slots in (4, 16, 64):
        short = [_ttft_ms(slots, max(128, 12 * slots), seed, 2) for seed in seeds]
        later = [_ttft_ms(slots, 40 * slots, seed, 20) for seed in seeds]
        other = [_ttft_ms(slots, 40 * slots, 10**7 + seed, 20) for seed in seeds]
        own, then, others = (np.array([np.percentile(run, 95) for run in runs]) for runs in (short, later, other))
        off, root = 100 * (own / then - 1), math.sqrt(len(own))
        error = 100 * math.hypot(own.std(), others.std()) / others.mean() / root
        pooled = [float(np.percentile(np.concatenate(runs), 95)) for runs in (short, other)]
        row(
            f"C = {slots}",
            len(own),
            f"{off.mean():+.2f} ± {off.std() / root:.2f}",
            f"{off.std():.1f}",
            f"{100 * own.std() / own.mean():.1f}",
            f"{100 * (own.mean() / others.mean() - 1):+.1f} ± {error:.1f}",
            f"{100 * (pooled[0] / pooled[1] - 1):+.1f}",
        )


def _ttft_ms(slots: int, n: int, seed: int, rounds: int) -> Floats:
    _, records = closed_run("fixed", slots, n, seed, rounds=rounds)
    rows = [row for row in records if row.phase is Phase.MEASURE]
    return np.array([(row.event_ns[0] - (row.sent_ns or 0)) / 1e6 for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=600, help="runs of each configuration")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    given = parser.parse_args()
    phases_table(range(given.first, given.first + given.seeds))


if __name__ == "__main__":
    main()
