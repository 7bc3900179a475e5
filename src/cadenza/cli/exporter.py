"""`cadenza exporter`: what the machine is doing, as a page for Prometheus."""

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from cadenza import __version__
from cadenza.errors import CadenzaError, UsageError
from cadenza.live.announce import RunCollector
from cadenza.measure.signals import stop_on_signals
from cadenza.telemetry.cards import amd_smi, rocm_smi
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.cards.drm import find_cards
from cadenza.telemetry.cards.nvml import NvmlCollector
from cadenza.telemetry.cards.pcie import PcieBandwidth
from cadenza.telemetry.cards.smi import TextCollector
from cadenza.telemetry.exporter import DEFAULT_LISTEN, Server, is_loopback, listen, parse_listen, url_of
from cadenza.telemetry.exposition import Table, render, tabulate
from cadenza.telemetry.host import HostCollector
from cadenza.telemetry.kernel.log import KernelLog
from cadenza.telemetry.kernel.sources import LogFile, find_log
from cadenza.telemetry.pages import Site
from cadenza.telemetry.reading import Collector
from cadenza.telemetry.sampler import DEFAULT_INTERVAL_S, Sampler, State
from cadenza.telemetry.web_config import Watch

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.05, 3600.0
# Rates and shares need two rounds. Whoever has not finished them by then is left out and named.
_ONCE_ROUNDS, _ONCE_S = 2, 25.0
_STOP_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Serve what the GPUs, the host and the kernel log say, as metrics for Prometheus. The drivers' files are read; "
        "rocm-smi or amd-smi is asked only where there are none."
    )
    parser.add_argument(
        "--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="where (default: %(default)s; :PORT: everywhere)"
    )
    parser.add_argument("--once", action="store_true", help="print one page and exit")
    parser.add_argument("--web-config", type=Path, metavar="FILE", help="TLS and passwords, as Prometheus's exporters")
    what = parser.add_argument_group("what")
    what.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="stands for / (default: /)")
    what.add_argument(
        "--smi-json", type=Path, metavar="FILE", help="a rocm-smi or amd-smi JSON text, read instead of running them"
    )
    what.add_argument(
        "--kernel-log", default="auto", metavar="FILE", help="a file as dmesg writes it, auto or none (default: auto)"
    )
    what.add_argument("--processes", action="store_true", help="tell each compute process's memory and copies")
    what.add_argument("--runs", type=Path, metavar="DIR", help="tell which run in this folder goes on, and its point")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--interval", type=float, default=DEFAULT_INTERVAL_S, metavar="S", help="between looks (default: %(default)s)"
    )
    how.add_argument(
        "--article-names", action="store_true", help="also rocm_gpu_busy_percent, rocm_vram_*, rocm_temperature_celsius"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted, or print one page; UsageError for arguments that make no sense. The exit code."""
    interval_s: float = args.interval
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S or math.isnan(interval_s):
        raise UsageError(
            f"--interval must be between {MIN_INTERVAL_S} and {MAX_INTERVAL_S:g} seconds, not {interval_s}"
        )
    _check("--root", args.root, "folder")
    if not os.access(args.root, os.X_OK):
        raise UsageError(f"--root {args.root} cannot be entered: permission denied")
    # A service may start before the first run, or the first text.
    log = None if args.kernel_log in ("auto", "none") else Path(args.kernel_log)
    for flag, path, what in (
        ("--runs", args.runs, "folder"),
        ("--smi-json", args.smi_json, "file"),
        ("--kernel-log", log, "file"),
    ):
        _check(flag, path, what, may_be_late=not args.once)
    host, port = parse_listen(args.listen)
    watch = Watch(args.web_config)
    if args.once:
        # Nobody waits an hour for the second round.
        return _print_page(args, Sampler(find_collectors(args), min(interval_s, DEFAULT_INTERVAL_S)))
    listener = listen(host, port)
    url = url_of(listener, watch.access())
    if not is_loopback(listener):
        open_ = "" if watch.access().asks else ", and nobody is asked for a password or a certificate (--web-config)"
        print(f"warning: listening on {url}, where other machines can reach it{open_}", file=sys.stderr)
    sampler = Sampler(find_collectors(args), interval_s)
    server = Server(listener, Site(sampler.states, _tabulation(args), __version__), watch)
    with stop_on_signals() as stop:
        sampler.start()
        try:
            print(f"{url}/metrics  every {interval_s:g} s: {', '.join(c.name for c in sampler.collectors)}")
            print("Ctrl-C stops it.", flush=True)
            server.run(stop)
        finally:
            server.close()
            for name in sampler.stop():
                print(f"warning: {name} was stuck and is left behind", file=sys.stderr)
            _close(sampler.collectors)
    return 0


def _tabulation(args: argparse.Namespace) -> Callable[[list[State], int], Table]:
    return lambda states, scrapes: tabulate(states, __version__, scrapes, article_names=args.article_names)


def _print_page(args: argparse.Namespace, sampler: Sampler) -> int:
    sampler.start()
    late = sampler.wait(_ONCE_ROUNDS, _ONCE_S)
    states = sampler.states()
    # Before the page is written: its reader may be gone, and a child of ours must not stay behind.
    sampler.stop()
    _close(sampler.collectors)
    for name in late:
        print(f"warning: {name} had no answer within {_ONCE_S:g} s", file=sys.stderr)
    for state in states:
        if not state.success and state.collector not in late:
            print(f"{state.collector} has nothing to tell: {', '.join(sorted(state.missing))}", file=sys.stderr)
    try:
        sys.stdout.write(render(_tabulation(args)(states, 0)).decode())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CadenzaError(f"the page cannot be written: {error.strerror}") from None
    return 0


def find_collectors(args: argparse.Namespace) -> list[Collector]:
    """The collectors that can see something here; where two tell the same, the first is believed."""
    root: Path = args.root
    cards = find_cards(root)
    is_here = root.resolve() == Path("/")
    # Without a card yet, its driver may still be loaded.
    found: list[Collector] = [AmdgpuCollector(root, processes=args.processes)]
    if not cards or any((card.device / "pcie_bw").exists() for card in cards):
        found.append(PcieBandwidth(root))
    if args.smi_json is not None:
        found.append(TextCollector(args.smi_json, {"rocm_smi": rocm_smi.parse, "amd_smi": amd_smi.parse}))
    elif is_here and not cards:
        # The tools take a second and wake cards that sleep: only where the files are out of sight, as in a container.
        tool = rocm_smi.collector() or amd_smi.collector()
        found += [] if tool is None else [tool]
    if is_here and importlib.util.find_spec("pynvml") is not None:
        found.append(NvmlCollector())
    if args.kernel_log != "none":
        source = find_log(root) if args.kernel_log == "auto" else LogFile(Path(args.kernel_log))
        found.append(KernelLog(source, [card.gpu for card in cards]))
    found.append(HostCollector(root))
    if args.runs is not None:
        found.append(RunCollector(args.runs))
    return found


def _close(collectors: Iterable[Collector]) -> None:
    """End what collectors started: threads, files, a child."""
    for collector in collectors:
        if isinstance(collector, PcieBandwidth):
            collector.stop(_STOP_S)
        elif isinstance(collector, KernelLog):
            collector.close()


def _check(flag: str, path: Path | None, what: str, *, may_be_late: bool = False) -> None:
    """UsageError where `path` is not what it should be. `may_be_late`: that there is nothing yet is only a warning."""
    if path is None:
        return
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not may_be_late:
            raise UsageError(f"{flag} {path}: there is no such {what}") from None
        print(f"warning: {flag} {path}: there is no such {what} yet; it is waited for", file=sys.stderr)
        return
    except OSError as error:
        raise UsageError(f"{flag} {path}: {(error.strerror or str(error)).lower()}") from None
    if what == "folder" and not S_ISDIR(mode):
        raise UsageError(f"{flag} {path} is no folder")
    # It is read again and again, which a pipe cannot be.
    if what == "file" and not S_ISREG(mode):
        raise UsageError(f"{flag} {path} is no regular file")
