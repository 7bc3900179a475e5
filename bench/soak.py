"""Four hours at C = 16 in virtual time, through the command line: how long it takes, how much room, and twice the same.

    python -m bench.soak [--hours H] [--seed S] [--timing LAW]

Peak memory is the child's own high-water mark (ru_maxrss, which is VmHWM). That one seed gives one course of events is
shown on a shorter soak, run twice. Exit code 1: a target was missed.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.board.shadow import Shadow
from cadenza.engine.board.state import CardState
from cadenza.engine.build import build_core
from cadenza.engine.profile import load

SOAK = ("sweep", "--engine", "mi50-rx6900xt", "--model", "Qwen/Qwen3-8B", "-c", "16", "--virtual", "--json", "--quiet")
MAX_S, MAX_MB, MAX_OFF_C = 60.0, 600.0, 0.5
# Edge, junction and memory after 240 minutes, as published.
PUBLISHED_C = {
    "mi50-32gb": {"edge": 68.4, "junction": 76.1, "memory": 64.2},
    "rx6900xt": {"edge": 72.1, "junction": 88.6},
}
AGAIN_HOURS = 0.25


class Soak(NamedTuple):
    """One run: its only point, and what it took."""

    point: dict[str, Any]
    wall_s: float
    peak_mb: float
    sha256: str


def soak(hours: float, seed: int, flags: list[str]) -> Soak:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cadenza", *SOAK, "--duration", str(3600 * hours), "--seed", str(seed)]
        out, begun = Path(folder) / "summary.json", time.perf_counter()
        with out.open("wb") as stdout:
            process = subprocess.Popen([*command, *flags, "--out", f"{folder}/run"], stdout=stdout)
            _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"exit code {process.returncode}")
        with (Path(folder) / "run" / "records.jsonl").open("rb") as records:
            sha256 = hashlib.file_digest(records, "sha256").hexdigest()
        (point,) = json.loads(out.read_bytes())["points"]
    return Soak(point, wall_s, used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024), sha256)


def settle(hours: float) -> tuple[CardState, ...]:
    """The profile's cards after `hours` of a closed loop at C = 16, the engine driven without its HTTP face."""
    profile = load("mi50-rx6900xt")
    assert profile.system is not None
    model = profile.models[0].name
    core = build_core(profile)
    board = Board.for_devices(profile.system.devices, seed=0)
    shadow = Shadow(core, board, profile.limits.gpu_memory_utilization)
    lengths, count = random.Random(1), 0

    def submit(now_ns: int) -> None:
        nonlocal count
        count += 1
        core.submit(count, model, range(count << 10, (count << 10) + 40), lengths.randint(128, 256), now_ns)

    for _ in range(16):
        submit(0)
    for second in range(round(3600 * hours)):
        until_ns = (second + 1) * NS_PER_S
        while (due := core.next_ns()) is not None and due <= until_ns:
            for token in core.advance(due):
                if token.is_last:
                    submit(due)
        shadow.tick(until_ns)
    return board.read()


def show_board(hours: float) -> bool:
    """Print the cards beside the published soak; whether they are within its half degree, throttling never."""
    fits = True
    for card in settle(hours):
        published = PUBLISHED_C[card.name]
        found = {"edge": card.edge_c, "junction": card.junction_c, "memory": card.memory_c}
        told = "  ".join(f"{sensor} {found[sensor]:.1f} ({at:g})" for sensor, at in published.items())
        fan = f"  fan {100 * card.pwm:.0f} % PWM" if card.fan_rpm else ""
        print(f"board     {card.name}: {told} C{fan}  throttled {card.throttle_events} times  (published)")
        fits &= not card.throttle_events and all(abs(found[s] - at) <= MAX_OFF_C for s, at in published.items())
    return fits


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=4.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--timing", help="default: the profile's own")
    args = parser.parse_args()
    flags = [] if args.timing is None else ["--timing", args.timing]
    done = soak(args.hours, args.seed, flags)
    point, tokens = done.point, done.point["output_tokens"]
    requests = point["requests"]
    print(f"{args.hours:g} h at C = 16  (SIMULATED), {point['verdict']}")
    print(f"requests  {requests['ok']:,} of {requests['sent']:,}")
    print(f"tokens    {tokens:,}  {point['throughput_tok_per_s']:.2f} tok/s in steady state")
    print(f"took      {done.wall_s:.1f} s, {1e6 * done.wall_s / tokens:.1f} us a token")
    print(f"memory    {done.peak_mb:.0f} MB at most")
    print(f"sha256    {done.sha256}")
    cards_fit = show_board(args.hours)
    again = [soak(AGAIN_HOURS, args.seed, flags).sha256 for _ in range(2)]
    other = soak(AGAIN_HOURS, args.seed + 1, flags).sha256
    same = again[0] == again[1] != other
    print(f"twice     {AGAIN_HOURS:g} h: {'the same bytes, and others for another seed' if same else 'NOT the same'}")
    return int(not (same and cards_fit) or done.wall_s > MAX_S or done.peak_mb > MAX_MB)


if __name__ == "__main__":
    sys.exit(main())
