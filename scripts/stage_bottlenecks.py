"""Stage situations whose cause is known, measure them, and see whether the report names that cause.

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
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from situations import SITUATIONS, Situation

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.board.faults import parse_fault

MODEL = "Qwen/Qwen3-8B"
CADENZA = (sys.executable, "-m", "cadenza")
UP_WITHIN_S, DOWN_WITHIN_S, RUN_WITHIN_S = 300.0, 30.0, 300.0
# The client runs for 10 ms, then stands still for 190 ms: a container with a CPU limit of 0.05 does so.
RUNS_S, STANDS_S = 0.01, 0.19
CARDS = ("mi50-32gb", "rx6900xt")
# A process that computes for nothing, at a low priority, and that ends by itself.
BURN = "import os, time; os.nice(19); end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


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


@contextlib.contextmanager
def delayed(url: str, delay_s: float) -> Iterator[str]:
    """A relay before the server at `url` that holds every byte for `delay_s`, each way; the relay's URL."""
    if not delay_s:
        yield url
        return
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        server = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
        carrier = threading.Thread(target=carry, args=(listener, server, delay_s, ended))
        carrier.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            ended.set()
            carrier.join()


def carry(listener: socket.socket, server: tuple[str, int], delay_s: float, ended: threading.Event) -> None:
    """Take connections and pass on what comes in, in both directions, until `ended`."""
    others: dict[socket.socket, socket.socket] = {}
    held: deque[tuple[float, socket.socket, bytes]] = deque()  # the same delay for all: in order
    with selectors.DefaultSelector() as ready, contextlib.ExitStack() as opened:
        ready.register(listener, selectors.EVENT_READ)
        while not ended.is_set():
            for key, _ in ready.select(min(0.05, max(0.0, held[0][0] - time.monotonic())) if held else 0.05):
                if key.fileobj is listener:
                    ends = (listener.accept()[0], socket.create_connection(server))
                    for one, other in (ends, ends[::-1]):
                        opened.enter_context(one).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        others[one] = other
                        ready.register(one, selectors.EVENT_READ)
                    continue
                (one,) = [known for known in others if known is key.fileobj]
                data = b""
                with contextlib.suppress(OSError):
                    data = one.recv(1 << 16)
                held.append((time.monotonic() + delay_s, others[one], data))
                if not data:
                    ready.unregister(one)
            while held and held[0][0] <= time.monotonic():
                _, to, data = held.popleft()
                with contextlib.suppress(OSError):
                    to.sendall(data) if data else to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    """So many processes that keep a core busy each."""
    started = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def heat(situation: Situation, url: str, out: Path) -> None:
    """Let the cards work for `heat_s` seconds of the engine's time; the run that does so is not looked at."""
    speed = float(situation.engine[situation.engine.index("--speed") + 1])
    work = ("-c", "4", "--duration", str(situation.heat_s / speed), "--output-tokens", "16")
    flags = ("--model", MODEL, *work, "--out", str(out), "--quiet")
    run_aside(url, flags)


def show_cards(root: Path, shares: Sequence[float]) -> Path:
    """Files of a simulated board beside the server, whose cards work for these `shares` of the time; for none: whose
    second card has worked without its fan until it throttles."""
    board = Board.for_devices(CARDS, seed=0)
    now_ns = 0
    if shares:
        board.advance(now_ns, [card.working(0.0, 0) for card in board.cards])
        board.advance(60 * NS_PER_S, [c.working(s, 8 << 30) for c, s in zip(board.cards, shares, strict=True)])
    else:
        board.inject(parse_fault("overheat:1"), 0)
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
    beside = any(told.startswith(f"also {situation.beside}:") for told in found["evidence"])
    right = bool(found["kind"] == situation.expected) and (beside or not situation.beside)
    evidence = "; ".join(found["evidence"]).replace("|", "\\|")
    print(
        f"| {situation.name} | {situation.staged} | **{found['kind']}**: {evidence} | {'yes' if right else 'NO'} |",
        flush=True,
    )
    return right


def stage(situation: Situation, url: str, flags: tuple[str, ...], out: Path, board: Path | None) -> bool:
    """Measure the server at `url` in the situation, the machine's cards being those of `board`; if right."""
    if board is not None:
        (board / "proc").symlink_to("/proc")  # the host is this one
    burners = os.cpu_count() or 1 if situation.burnt else 0
    with delayed(url, situation.delay_s) as asked, burning(burners):
        return tell(situation, measure(situation, asked, flags, out, board))


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
                if situation.cards:
                    board = show_cards(Path(folder) / "beside", situation.cards)
                flags = ("--model", MODEL, *situation.on_engine)
                verdicts.append(stage(situation, url, flags, out / f"engine-{name}", board))
    return verdicts


def on_vllm(chosen: list[Situation], url: str, serve: list[str] | None, out: Path) -> list[bool]:
    """Those that can be staged on a real server, each with the flags that it needs if it is started here."""
    verdicts = []
    for situation in chosen:
        name = situation.name.replace(" ", "-")
        log = out / f"vllm-{name}.log"
        start = contextlib.nullcontext(url) if serve is None else served([*serve, *(situation.vllm or ())], url, log)
        with start:
            prompts = () if "--prompts" in situation.on_vllm else ("--prompts", "random:64")
            flags = (*prompts, *situation.on_vllm)
            # The first answers of a server that has just begun are slower than all that follow.
            run_aside(url, ("--requests", "16", "-c", "4", "--out", str(out / f"vllm-{name}-warm"), "--quiet"))
            shown = situation.heat_s or situation.cards
            board = show_cards(out / f"board-{name}", situation.cards) if shown else None
            verdicts.append(stage(situation, url, flags, out / f"vllm-{name}", board))
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="base URL of a real vLLM; without: the embedded engine")
    parser.add_argument("--serve", help="command that serves it in the foreground; flags are appended")
    parser.add_argument("--only", help="names of situations, joined by commas")
    parser.add_argument("--list", action="store_true", help="what each needs, and no more")
    parser.add_argument("--out", type=Path, help="new folder for the runs (default: a temporary one)")
    args = parser.parse_args()
    real = args.list or args.url is not None
    possible = [situation for situation in SITUATIONS if situation.vllm is not None or not real]
    names = [situation.name for situation in possible] if args.only is None else args.only.split(",")
    chosen = [situation for situation in possible if situation.name in names]
    if len(chosen) != len(names):
        parser.error(f"--only takes {', '.join(situation.name for situation in possible)}")
    if args.list:
        for situation in chosen:
            print(f"{situation.name:14s} {' '.join(situation.vllm or ()) or 'no more flags'}")
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
