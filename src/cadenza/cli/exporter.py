"""`cadenza exporter`: what the machine is doing, as a page for Prometheus."""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from cadenza import __version__
from cadenza.errors import CadenzaError, UsageError
from cadenza.live.announce import RunCollector
from cadenza.measure.signals import stop_on_signals
from cadenza.readings import DEFAULT_INTERVAL_S, Collector
from cadenza.telemetry.collectors import find_collectors
from cadenza.telemetry.exporter import DEFAULT_LISTEN, MetricsServer, is_loopback, listen, parse_listen, url_of
from cadenza.telemetry.exposition import Table, render, tabulate
from cadenza.telemetry.pages import Site
from cadenza.telemetry.sampler import Sampler, State, check_series
from cadenza.telemetry.web_config import ConfigWatch

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.05, 3600.0
# Rates and shares need two rounds. Whoever has not finished them by then is left out and named.
_ONCE_ROUNDS, _ONCE_S = 2, 25.0
_FIRST_ROUND_S = 2.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Serve metrics of the GPUs, the host and the kernel log for Prometheus. Values come from the drivers' files; "
        "rocm-smi or amd-smi is run only where there are none."
    )
    parser.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help="address (default: %(default)s; :PORT: all interfaces)",
    )
    parser.add_argument("--once", action="store_true", help="print one page and exit")
    parser.add_argument("--web-config", type=Path, metavar="FILE", help="TLS and passwords, as Prometheus's exporters")
    what = parser.add_argument_group("what")
    what.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="read DIR instead of / (default: /)")
    what.add_argument(
        "--smi-json", type=Path, metavar="FILE", help="a rocm-smi or amd-smi JSON text, read instead of running them"
    )
    what.add_argument(
        "--kernel-log", default="auto", metavar="FILE", help="a file as dmesg writes it, auto or none (default: auto)"
    )
    what.add_argument("--processes", action="store_true", help="add the memory and copy time of each compute process")
    what.add_argument("--runs", type=Path, metavar="DIR", help="add the run in progress in this folder, and its point")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--interval",
        type=float,
        default=DEFAULT_INTERVAL_S,
        metavar="S",
        help="interval between rounds (default: %(default)s)",
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
    watch = ConfigWatch(args.web_config)
    if args.once:
        # Nobody waits an hour for the second round.
        return _print_page(args, Sampler(make_collectors(args), min(interval_s, DEFAULT_INTERVAL_S)))
    listener = listen(host, port)
    url = url_of(listener, watch.access())
    if not is_loopback(listener):
        open_ = "" if watch.access().is_required else ", without a password or a certificate (--web-config)"
        print(f"warning: listening on {url}, where other machines can reach it{open_}", file=sys.stderr)
    sampler = Sampler(make_collectors(args), interval_s)
    server = MetricsServer(listener, Site(sampler.states, _tabulation(args), __version__), watch)
    with stop_on_signals() as stop:
        sampler.start()
        try:
            sampler.check(_FIRST_ROUND_S)
            print(f"{url}/metrics  every {interval_s:g} s: {', '.join(c.name for c in sampler.collectors)}")
            print("Ctrl-C stops it.", flush=True)
            server.run(stop)
        finally:
            server.close()
            for name in sampler.stop():
                print(f"warning: {name} did not stop: a read is blocked", file=sys.stderr)
    return 0


def _tabulation(args: argparse.Namespace) -> Callable[[list[State], int], Table]:
    return lambda states, scrapes: tabulate(states, __version__, scrapes, article_names=args.article_names)


def _print_page(args: argparse.Namespace, sampler: Sampler) -> int:
    sampler.start()
    late = sampler.wait(_ONCE_ROUNDS, _ONCE_S)
    states = sampler.states()
    # Before the page is written: its reader may be gone, and no child process may stay behind.
    sampler.stop()
    check_series(states)
    for name in late:
        print(f"warning: {name} did not finish within {_ONCE_S:g} s", file=sys.stderr)
    for state in states:
        if not state.success and state.collector not in late:
            print(f"{state.collector}: {explain(state)}", file=sys.stderr)
    try:
        sys.stdout.write(render(_tabulation(args)(states, 0)).decode())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CadenzaError(f"the page cannot be written: {error.strerror}") from None
    return 0


def explain(state: State) -> str:
    """Why a collector returned no readings."""
    if state.missing.keys() == {"absent"}:
        return "no devices found"
    return f"no readings ({', '.join(sorted(state.missing))})"


def make_collectors(args: argparse.Namespace) -> list[Collector]:
    """The collectors that the flags ask for."""
    collectors = find_collectors(
        args.root, lasting=True, processes=args.processes, smi_json=args.smi_json, kernel_log=args.kernel_log
    )
    return collectors if args.runs is None else [*collectors, RunCollector(args.runs)]


def _check(flag: str, path: Path | None, what: str, *, may_be_late: bool = False) -> None:
    """UsageError where `path` is not what it should be. `may_be_late`: that there is nothing yet is only a warning."""
    if path is None:
        return
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not may_be_late:
            raise UsageError(f"{flag} {path}: there is no such {what}") from None
        print(f"warning: {flag} {path}: there is no such {what} yet; waiting for it", file=sys.stderr)
        return
    except OSError as error:
        raise UsageError(f"{flag} {path}: {(error.strerror or str(error)).lower()}") from None
    if what == "folder" and not S_ISDIR(mode):
        raise UsageError(f"{flag} {path} is not a folder")
    # It is read again and again, which a pipe cannot be.
    if what == "file" and not S_ISREG(mode):
        raise UsageError(f"{flag} {path} is not a regular file")
