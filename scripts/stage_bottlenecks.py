"""Stage situations that have one cause each, measure them, and see whether the report names that cause.

    python scripts/stage_bottlenecks.py                                  the embedded engine with a simulated board
    python scripts/stage_bottlenecks.py --list                           the flags that a real vLLM needs for each
    python scripts/stage_bottlenecks.py --url URL --only NAME[,NAME…]    a server that runs with those flags
    python scripts/stage_bottlenecks.py --url URL --serve 'COMMAND'      start and stop it for each, flags appended

Prints a Markdown table: situation, what was staged, the verdict and its evidence, right or not; exit code 1 where
one is wrong. The server must have no other traffic, and its machine nothing else to do. Runs are kept below --out.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.board.faults import parse_fault

MODEL = "Qwen/Qwen3-8B"
CADENZA = (sys.executable, "-m", "cadenza")
UP_WITHIN_S, DOWN_WITHIN_S, RUN_WITHIN_S = 300.0, 30.0, 300.0
# The client runs for 10 ms, then stands still for 190 ms: a container with a CPU limit of 0.05 does so.
RUNS_S, STANDS_S = 0.01, 0.19


class Situation(NamedTuple):
    """One cause.

    expected   the verdict's kind
    engine     flags of `cadenza engine`; heat_s: seconds that its cards work before the run (a server without cards is
               given those of a simulated board, overheated)
    vllm       flags of `vllm serve`
    run        flags of `cadenza run`; `on_engine`, `on_vllm`: more of them there
    """

    name: str
    expected: str
    staged: str
    run: tuple[str, ...]
    engine: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()
    on_engine: tuple[str, ...] = ()
    on_vllm: tuple[str, ...] = ()
    starved: bool = False
    heat_s: float = 0.0


SITUATIONS = (
    Situation(
        name="client",
        expected="client",
        staged="C = 32, and the client stands still for 190 of each 200 ms, as behind a CPU limit of 0.05",
        run=("-c", "32", "--output-tokens", "16"),
        engine=("--speed", "20"),
        on_engine=("--requests", "256"),
        on_vllm=("--requests", "256"),
        starved=True,
    ),
    Situation(
        name="queue",
        expected="queue",
        staged="C = 16 where 2 may run: `--max-num-seqs 2`",
        run=("-c", "16", "--output-tokens", "64:128"),
        engine=("--speed", "5", "--max-num-seqs", "2"),
        vllm=("--max-num-seqs", "2"),
        on_engine=("--requests", "32"),
        on_vllm=("--requests", "128"),
    ),
    Situation(
        name="KV cache",
        expected="KV capacity",
        staged="C = 8, answers of 256 tokens, and KV blocks for 1,024 tokens in all",
        run=("-c", "8", "--output-tokens", "256"),
        engine=("--speed", "5", "--set", "num_gpu_blocks=65", "--set", "max_model_len=512"),
        vllm=("--num-gpu-blocks-override", "33", "--block-size", "32", "--max-model-len", "512"),  # 32: what a CPU has
        on_engine=("--requests", "24"),
        on_vllm=("--requests", "96"),
    ),
    Situation(
        name="decode",
        expected="decode bandwidth",
        staged="C = 4, short prompts, answers of 128 to 256 tokens, and room for all of it",
        run=("-c", "4", "--output-tokens", "128:256"),
        engine=("--speed", "5"),
        on_engine=("--requests", "24"),
        on_vllm=("--requests", "128"),
    ),
    Situation(
        name="throttle",
        expected="thermal throttle",
        staged="C = 4, and the fan of the second simulated card stands still: `--board-fault overheat:1`",
        run=("-c", "4", "--output-tokens", "128:256"),
        engine=("--speed", "5", "--board-fault", "overheat:1"),
        on_engine=("--requests", "24"),
        on_vllm=("--requests", "64"),
        heat_s=280.0,
    ),
)


@contextlib.contextmanager
def embedded(flags: tuple[str, ...], board: Path) -> Iterator[str]:
    """The embedded engine in a process of its own, its cards' files below `board`; its URL."""
    command = [*CADENZA, "engine", "--port", "0", "--board", str(board), *flags, "--exit-with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()


@contextlib.contextmanager
def served(command: list[str], url: str, log: Path) -> Iterator[str]:
    """`command` in a process group of its own, until /health answers; the group ends with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + UP_WITHIN_S
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not come up; what it said is in {log}")
            time.sleep(0.5)
        yield url
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DOWN_WITHIN_S)


def answers(url: str) -> bool:
    """Whether the server says that it is well."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            status = int(answer.status)
            return status == 200
    except (urllib.error.URLError, OSError):
        return False


def measure(situation: Situation, url: str, flags: tuple[str, ...], out: Path, board: Path | None) -> dict[str, Any]:
    """The only point of a run of `cadenza`; its machine is that of `board`, where there is one."""
    telemetry = "" if board is None else f"root = {json.dumps(str(board))}\n"
    spec = out.with_suffix(".toml")
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(f"[telemetry]\ninterval_s = 0.1\n{telemetry}", encoding="utf-8")
    given = ("--url", url, "--spec", str(spec), "--out", str(out), "--seed", "7", "--json", "--quiet")
    command = [*CADENZA, "run", *given, *situation.run, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    ended = threading.Event()
    brake = threading.Thread(target=starve, args=(process.pid, ended))
    if situation.starved:
        brake.start()
    try:
        told, _ = process.communicate(timeout=RUN_WITHIN_S)
    finally:
        ended.set()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not told:
        sys.exit(f"cadenza did not report on {situation.name}")
    (point,) = json.loads(told)["points"]
    found: dict[str, Any] = point
    return found


def starve(group: int, ended: threading.Event) -> None:
    """Stop and continue the process group until `ended`."""
    with contextlib.suppress(ProcessLookupError):
        while not ended.is_set():
            os.killpg(group, signal.SIGSTOP)
            ended.wait(STANDS_S)
            os.killpg(group, signal.SIGCONT)
            ended.wait(RUNS_S)


def heat(situation: Situation, url: str, out: Path) -> None:
    """Let the cards work for `heat_s` seconds of the engine's time; the run that does so is not looked at."""
    speed = float(situation.engine[situation.engine.index("--speed") + 1])
    flags = ("--model", MODEL, "-c", "4", "--duration", str(situation.heat_s / speed), "--out", str(out), "--quiet")
    run_aside(url, flags)


def overheat(root: Path) -> Path:
    """For a server without cards: a simulated board whose second card has worked without its fan until it throttles."""
    board = Board.for_devices(["mi50-32gb", "rx6900xt"], seed=0)
    board.inject(parse_fault("overheat:1"), 0)
    now_ns = 0
    while not board.read()[1].throttling:
        now_ns += 10 * NS_PER_S
        board.advance(now_ns, [card.working(1.0, 8 << 30) for card in board.cards])
    board.write(root)
    return root


def run_aside(url: str, flags: tuple[str, ...]) -> None:
    """A run for what it does to the server."""
    null = subprocess.DEVNULL
    subprocess.run([*CADENZA, "run", "--url", url, *flags], check=False, stdout=null, stderr=null)


def tell(situation: Situation, point: dict[str, Any]) -> bool:
    """Print the row; whether the verdict is the expected one."""
    found = point["bottleneck"]
    right = bool(found["kind"] == situation.expected)
    evidence = "; ".join(found["evidence"]).replace("|", "\\|")
    print(
        f"| {situation.name} | {situation.staged} | **{found['kind']}**: {evidence} | {'yes' if right else 'NO'} |",
        flush=True,
    )
    return right


def on_engine(chosen: list[Situation], out: Path) -> list[bool]:
    """Every situation on the embedded engine, over sockets."""
    room = "/dev/shm" if Path("/dev/shm").is_dir() else None
    verdicts = []
    for situation in chosen:
        with tempfile.TemporaryDirectory(dir=room) as folder:
            board = Path(folder) / "board"
            with embedded(situation.engine, board) as url:
                name = situation.name.replace(" ", "-")
                if situation.heat_s:
                    heat(situation, url, out / f"engine-{name}-heat")
                flags = ("--model", MODEL, *situation.on_engine)
                verdicts.append(tell(situation, measure(situation, url, flags, out / f"engine-{name}", board)))
    return verdicts


def on_vllm(chosen: list[Situation], url: str, serve: list[str] | None, out: Path) -> list[bool]:
    """Those that can be staged on a real server, each with the flags that it needs if it is started here."""
    verdicts = []
    for situation in chosen:
        name = situation.name.replace(" ", "-")
        log = out / f"vllm-{name}.log"
        start = contextlib.nullcontext(url) if serve is None else served([*serve, *situation.vllm], url, log)
        with start:
            flags = ("--prompts", "random:64", *situation.on_vllm)
            # The first answers of a server that has just begun are slower than all that follow.
            run_aside(url, ("--requests", "16", "-c", "4", "--out", str(out / f"vllm-{name}-warm"), "--quiet"))
            board = overheat(out / "board") if situation.heat_s else None
            verdicts.append(tell(situation, measure(situation, url, flags, out / f"vllm-{name}", board)))
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="base URL of a real vLLM; without: the embedded engine")
    parser.add_argument("--serve", help="command that serves it in the foreground; flags are appended")
    parser.add_argument("--only", help="names of situations, joined by commas")
    parser.add_argument("--list", action="store_true", help="what each needs, and no more")
    parser.add_argument("--out", type=Path, help="new folder for the runs (default: a temporary one)")
    args = parser.parse_args()
    names = [situation.name for situation in SITUATIONS] if args.only is None else args.only.split(",")
    chosen = [situation for situation in SITUATIONS if situation.name in names]
    if len(chosen) != len(names):
        parser.error(f"--only takes {', '.join(situation.name for situation in SITUATIONS)}")
    if args.list:
        for situation in chosen:
            print(f"{situation.name:9s} {' '.join(situation.vllm) or 'no more flags'}")
        return 0
    if args.url is not None and args.serve is None and len({situation.vllm for situation in chosen}) > 1:
        parser.error("these need servers with different flags: choose with --only (see --list), or give --serve")
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        print("| situation | staged | verdict and evidence | right |\n|:---|:---|:---|:---|", flush=True)
        if args.url is None:
            verdicts = on_engine(chosen, out)
        else:
            serve = None if args.serve is None else shlex.split(args.serve)
            verdicts = on_vllm(chosen, args.url.rstrip("/"), serve, out)
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
