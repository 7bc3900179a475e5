"""What each load generator reports, against a server whose times are known: one table.

    python bench/peers/run.py [--tools vllm,guidellm,aiperf,httpx,cadenza] [--concurrency 16,128,512] [--keep DIR]

Each tool is installed once into a virtual environment of its own under build/peers (about 6 GB for all), then runs on
one core while the server runs on another. What is compared, and how fair it is: bench/peers/README.md.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # run by its path, it would find its own folder only

import msgspec
from bench.peers.tokenizer import write_hub_cache, write_tokenizer
from bench.peers.tools import HUB_NAME, TOKENS, TOOLS, Run, Told
from bench.peers.watch import Cost, watched
from bench.truth_server import BUILD, CORES, Truth, TruthServer, pin

HOME = BUILD / "peers"
TTFT_MS, ITL_MS = 20.0, 10.0
SERVER_CORE, TOOL_CORE = 0, 1
REQUESTS_A_SLOT, LEAST_REQUESTS = 4, 64
RUN_TIMEOUT_S = 180.0
INSTALL_TIMEOUT_S = 900.0
LATE_P99_MS = 5.0  # half a gap: beyond it the server's own lateness shows in the comparison


@dataclass(frozen=True)
class Row:
    """One tool at one concurrency; `failure` says why there is nothing else."""

    tool: str
    concurrency: int
    truth: Truth | None = None
    told: Told | None = None
    cost: Cost | None = None
    failure: str = ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def last_line(log: Path) -> str:
    """The last line of a log that names an error, else its last line; shortened."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:160]


def install(name: str) -> str:
    """Set up the environment of a tool unless it stands; '' or why that failed."""
    installs = TOOLS[name].installs
    if installs is None:
        return ""
    environment, log = HOME / name, HOME / f"{name}-install.log"
    stamp = environment / "installed.json"
    wanted = json.dumps(installs)
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    say(f"{name}: installing into {environment}")
    shutil.rmtree(environment, ignore_errors=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    with log.open("wb") as out:
        for command in [[sys.executable, "-m", "venv", str(environment)], *([*pip, *step] for step in installs)]:
            try:
                ended = subprocess.run(command, stdout=out, stderr=out, timeout=INSTALL_TIMEOUT_S).returncode
            except subprocess.TimeoutExpired:
                return f"not installed within {INSTALL_TIMEOUT_S:.0f} s"
            if ended:
                return f"not installed: {last_line(log)}"
    stamp.write_text(wanted)
    return ""


def surroundings() -> dict[str, str]:
    """The environment of every tool: no keys of ours, offline but for the loopback, and telling nobody."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_KEY", "_TOKEN"))}
    return kept | {
        "HF_HOME": str(HOME / "hub"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "COLUMNS": "200",
        "PYTHONPATH": "",
    }


def measure(name: str, concurrency: int, results: Path) -> Row:
    """One tool at one concurrency, against a server of its own."""
    folder = results / f"{name}-c{concurrency}"
    shutil.rmtree(folder, ignore_errors=True)  # a result left from before must not pass for this one
    folder.mkdir(parents=True)
    log = folder / "log.txt"
    requests = max(LEAST_REQUESTS, REQUESTS_A_SLOT * concurrency)
    with TruthServer(TTFT_MS, ITL_MS, TOKENS, core=SERVER_CORE) as server:
        run = Run(server.url, concurrency, requests, folder, HOME / "tokenizer", HOME / name)
        cost = watched(TOOLS[name].command(run), surroundings(), TOOL_CORE, log, RUN_TIMEOUT_S, server.pid)
        truth = server.truth()
    (folder / "truth.json").write_bytes(msgspec.json.format(msgspec.json.encode(truth)))
    if cost.exit_code is None:
        return Row(name, concurrency, truth, failure=f"ended after {RUN_TIMEOUT_S:.0f} s without a result")
    try:
        told = TOOLS[name].read(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = last_line(log) if cost.exit_code else f"{type(error).__name__} in its result: {error}"
        return Row(name, concurrency, truth, failure=f"exit code {cost.exit_code}: {why}")
    return Row(name, concurrency, truth, told, cost)


HEAD = (
    ("tool", 9, "<"),
    ("C", 4, ">"),
    ("TTFT ms", 8, ">"),
    ("true", 6, ">"),
    ("ratio", 6, ">"),
    ("ITL p50/p99 ms", 15, ">"),
    ("true", 12, ">"),
    ("in flight", 9, ">"),
    ("answered", 9, ">"),
    ("CPU µs/event", 12, ">"),
    ("loaded", 7, ">"),
    ("late p99", 8, ">"),
    ("", 0, "<"),
)


def cells(row: Row) -> list[str]:
    if row.told is None or row.cost is None or row.truth is None or row.truth.ttft_ms is None:
        return [row.tool, str(row.concurrency), row.failure or "the server saw no request"]
    told, truth = row.told, row.truth
    assert truth.ttft_ms is not None
    itl = f"{truth.itl_ms.p50:.1f}/{truth.itl_ms.p99:.1f}" if truth.itl_ms else "-"
    late = truth.late_ms.p99 if truth.late_ms else float("nan")
    loaded = 1e6 * row.cost.loaded_cpu_s / truth.chunks
    notes = [told.note] if told.note else []
    if late > LATE_P99_MS:
        notes.append("the server was late: compare nothing here")
    return [
        row.tool,
        str(row.concurrency),
        f"{told.ttft_mean_ms:.1f}",
        f"{truth.ttft_ms.mean:.1f}",
        f"{told.ttft_mean_ms / truth.ttft_ms.mean:.2f}",
        f"{told.itl_p50_ms:.1f}/{told.itl_p99_ms:.1f}",
        itl,
        f"{truth.max_concurrent}/{row.concurrency}",
        f"{told.answered}",
        f"{1e6 * row.cost.cpu_s / truth.chunks:.0f}",
        "-" if loaded != loaded else f"{loaded:.0f}",
        f"{late:.1f}",
        "; ".join(notes),
    ]


def table(rows: Iterable[Row]) -> str:
    """Every row, one a line."""
    lines = ["  ".join(f"{title:{align}{width}}" for title, width, align in HEAD).rstrip()]
    for row in rows:
        shown = cells(row)
        if len(shown) < len(HEAD):
            lines.append(f"{shown[0]:<9}  {shown[1]:>4}  {shown[2]}")
        else:
            lines.append("  ".join(f"{c:{a}{w}}" for c, (_, w, a) in zip(shown, HEAD, strict=True)).rstrip())
    return "\n".join(lines)


def legend(cores: int) -> str:
    shared = "" if cores > 1 else " THERE IS ONE CORE ONLY: server and tool shared it, so trust no row."
    return (
        f"{platform.machine()}, {cores} cores, Linux {platform.release()}, Python {platform.python_version()}. "
        f"Server on one core: TTFT {TTFT_MS:g} ms, gap {ITL_MS:g} ms, {TOKENS} tokens; "
        f"each tool on another, {REQUESTS_A_SLOT} C requests, at least {LEAST_REQUESTS}.{shared}\n"
        "TTFT: mean, as reported; true: what the server did in that very run; in flight: its peak / asked. CPU:\n"
        "a token event, all the tool's processes, start-up and report included; loaded: only while the server worked."
    )


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=listed, default=list(TOOLS), help=f"of {','.join(TOOLS)} (default: all)")
    parser.add_argument("--concurrency", type=listed, default=["16", "128", "512"], help="default: 16,128,512")
    parser.add_argument("--keep", type=Path, default=HOME / "results", help="where results and logs stay")
    asked = parser.parse_args()
    if unknown := set(asked.tools) - set(TOOLS):
        parser.error(f"no such tool: {', '.join(sorted(unknown))}; there are {', '.join(TOOLS)}")
    if not all(c.isdigit() and int(c) > 0 for c in asked.concurrency):
        parser.error("--concurrency takes whole numbers, comma-separated, e.g. 16,128")
    return asked


def main() -> int:
    asked = arguments()
    results = asked.keep.resolve()
    results.mkdir(parents=True, exist_ok=True)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    write_tokenizer(HOME / "tokenizer")
    write_hub_cache(HOME / "hub" / "hub", HUB_NAME)
    missing = {name: why for name in asked.tools if (why := install(name))}
    pin(2 if len(CORES) > 2 else TOOL_CORE)  # ourselves: anywhere but where the server is
    rows = []
    for concurrency in map(int, asked.concurrency):
        for name in asked.tools:
            say(f"{name}: C={concurrency}")
            rows.append(
                Row(name, concurrency, failure=missing[name])
                if name in missing
                else measure(name, concurrency, results)
            )
    (results / "rows.json").write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    print(legend(len(CORES)), table(rows), sep="\n\n")
    ours = [row for row in rows if row.tool == "cadenza"]
    return 0 if all(row.told is not None for row in ours) else 1


if __name__ == "__main__":
    sys.exit(main())
