"""What the exporter takes: of a core and of memory, for two cards and for fifty, and whether a day makes it grow.

    python -m bench.exporter [--seconds S] [--hours H]

The verb runs as a process on a simulated board whose cards move, and is scraped every second as Prometheus does it;
its processor time and peak memory are the kernel's (/proc). The day is simulated: every round that a day has at 0.5 s,
by a scripted collector whose processes come and go, and every scrape at 15 s, over a socket, each after a round of the
real collector. Exit code 1: a target was missed.
"""

import argparse
import gc
import http.client
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import Activity
from cadenza.readings import Collected, Collector, Missing, Reading
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.exporter import MetricsServer, listen
from cadenza.telemetry.exposition import tabulate
from cadenza.telemetry.pages import Site
from cadenza.telemetry.sampler import Sampler
from cadenza.telemetry.web_config import ConfigWatch

DEVICES = ("mi50-32gb", "rx6900xt")
MAX_CPU, MAX_MB, MAX_GROWTH_MB = 0.01, 60.0, 1.0
ACCEPT = {"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1", "Accept-Encoding": "gzip"}
ROUND_S, SCRAPE_S = 0.5, 15.0
WARM_UP_S = 3.0
MB = 1e6
SHARED_MEMORY = Path("/dev/shm")


class Taken(NamedTuple):
    """Of one process: share of a core, peak memory, and its page. Times are medians."""

    cpu: float
    peak_mb: float
    series: int
    page_kb: float
    scrape_ms: float


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int | str, which: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024 / MB
    raise ValueError(which)


def scrape(client: http.client.HTTPConnection, headers: dict[str, str]) -> bytes:
    client.request("GET", "/metrics", headers=headers)
    return client.getresponse().read()


def pause(seconds: float) -> None:
    select.select([], [], [], max(0.0, seconds))


class Machine:
    """A board of two cards below `root`, and more under addresses of their own; and this machine's /proc.

    The two of the board move with every `tick`, and with them the others, whose files are links to theirs.
    """

    def __init__(self, root: Path, cards: int) -> None:
        self._root = root
        self._board = Board.for_devices(DEVICES, seed=1)
        self._chance = random.Random(1)
        self._minutes = 0
        self.tick()
        drm = root / "sys/class/drm"
        for number in range(len(DEVICES) + 1, cards + 1):
            shutil.copytree(drm / f"card{number % 2 + 1}", drm / f"card{number}", copy_function=os.symlink)
            uevent = drm / f"card{number}/device/uevent"
            text = re.sub("PCI_SLOT_NAME=.*", f"PCI_SLOT_NAME=0001:{number:02x}:00.0", uevent.read_text())
            uevent.unlink()
            uevent.write_text(text)

    def tick(self) -> None:
        """A minute under another load."""
        self._minutes += 1
        shares = [self._chance.random() for _ in DEVICES]
        loads = [Activity(share, share / 2, round(share * 10e9)) for share in shares]
        self._board.advance(self._minutes * 60 * NS_PER_S, loads)
        self._board.write(self._root)
        for name in ("stat", "meminfo", "net/dev"):
            file = self._root / "proc" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Path("/proc", name).read_text())


def measure(cards: int, seconds: float) -> Taken:
    """The verb on a machine of `cards`, scraped once a second for that long."""
    folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as root:
        machine = Machine(Path(root), cards)
        command = [sys.executable, "-m", "cadenza", "exporter", "--root", root, "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("/metrics")[0].rpartition(":")[2])
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                pause(WARM_UP_S)
                plain = scrape(client, {})
                before_s, begun_s = cpu_s(process.pid), time.perf_counter()
                scrapes_ms = []
                for second in range(1, round(seconds) + 1):
                    pause(begun_s + second - time.perf_counter())
                    asked_s = time.perf_counter()
                    scrape(client, ACCEPT)
                    scrapes_ms.append(1e3 * (time.perf_counter() - asked_s))
                    machine.tick()
                cpu = (cpu_s(process.pid) - before_s) / (time.perf_counter() - begun_s)
                peak_mb = memory_mb(process.pid, "VmHWM")
            finally:
                client.close()
                process.terminate()
    series = sum(not line.startswith(b"#") for line in plain.splitlines())
    return Taken(cpu, peak_mb, series, len(plain) / 1e3, sorted(scrapes_ms)[len(scrapes_ms) // 2])


class Churn(Collector):
    """Sixty series of two cards, and processes of which every round has others."""

    name = "churn"

    def __init__(self) -> None:
        self._round = 0

    def collect(self) -> Collected:
        self._round += 1
        readings = [
            Reading(
                "gpu_clock_hertz",
                (("gpu", f"0000:0{card}:00.0"), ("vendor", "amd"), ("domain", f"clock{n}")),
                self._round + n,
            )
            for card in range(2)
            for n in range(30)
        ]
        readings += [
            Reading(
                "gpu_process_memory_bytes",
                (("gpu", "0000:00:00.0"), ("vendor", "amd"), ("pid", str(self._round + n))),
                1e9,
            )
            for n in range(8)
        ]
        return Collected(readings, [Missing("gpu_fan_ratio", "0000:00:00.0", "absent")])


def live(hours: float) -> tuple[float, float, int, int]:
    """MB after the first third of that time and at its end, rounds and scrapes."""
    with tempfile.TemporaryDirectory() as root:
        Board.for_devices(DEVICES, seed=1).write(Path(root))
        churn, real = Sampler([Churn()]), Sampler([AmdgpuCollector(Path(root))])
        site = Site(
            lambda: [*real.states(), *churn.states()],
            lambda states, scrapes: tabulate(states, "bench", scrapes),
            "bench",
        )
        listener = listen("127.0.0.1", 0)
        server, done = MetricsServer(listener, site, ConfigWatch(None)), threading.Event()
        thread = threading.Thread(target=server.run, args=(done.is_set,))
        thread.start()
        client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=10)
        scrapes = round(3600 * hours / SCRAPE_S)
        early_mb = 0.0
        for number in range(scrapes):
            for _ in range(round(SCRAPE_S / ROUND_S)):
                churn.poll()
            real.poll()
            scrape(client, ACCEPT if number % 2 else {})
            if number % 10 == 0:
                client.close()
            if number == scrapes // 3:
                gc.collect()
                early_mb = memory_mb("self", "VmRSS")
        gc.collect()
        late_mb = memory_mb("self", "VmRSS")
        client.close()
        done.set()
        thread.join()
        server.close()
    return early_mb, late_mb, scrapes * round(SCRAPE_S / ROUND_S), scrapes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of cards (default: %(default)s)")
    parser.add_argument("--hours", type=float, default=24.0, help="to simulate (default: %(default)s)")
    args = parser.parse_args()
    kept = True
    for cards in (len(DEVICES), 50):
        taken = measure(cards, args.seconds)
        print(
            f"{cards:>2} cards   {100 * taken.cpu:.2f} % of a core, {taken.peak_mb:.1f} MB at most; page of "
            f"{taken.series:,} series, {taken.page_kb:.0f} kB, in {taken.scrape_ms:.1f} ms",
            flush=True,
        )
        if cards == len(DEVICES):
            kept &= taken.cpu < MAX_CPU and taken.peak_mb < MAX_MB
    begun_s = time.perf_counter()
    early_mb, late_mb, rounds, scrapes = live(args.hours)
    print(
        f"{args.hours:g} h      {rounds:,} rounds and {scrapes:,} scrapes in {time.perf_counter() - begun_s:.0f} s: "
        f"{early_mb:.2f} MB after {args.hours / 3:g} h, {late_mb:.2f} MB at the end"
    )
    kept &= late_mb - early_mb < MAX_GROWTH_MB
    print("all targets kept" if kept else "a target was MISSED")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
