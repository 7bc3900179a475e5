"""`cadenza top`: the present state of a server, or of a run in progress."""

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console, ConsoleDimensions

    from cadenza.analysis.snapshot import Snapshot

DEFAULT_URL = "http://localhost:8000"
MIN_INTERVAL_S, MAX_INTERVAL_S, MAX_WINDOW_S = 0.2, 3600.0, 3600.0
_SLICE_S = 0.1


class View(Protocol):
    """Where snapshots come from: `wait` until there are rates; `over`: nothing more will come."""

    @property
    def over(self) -> bool: ...

    def wait(self) -> None: ...

    def snapshot(self) -> "Snapshot": ...


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    from cadenza.cli.flags import add_key_file

    parser.description = (
        "Watch a server, or a run in progress: streams, tokens per second, TTFT and TPOT, KV cache, each GPU, host. "
        "q or Ctrl-C ends it."
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="URL|RUN",
        help=f"base URL, or a run: folder, name, latest (default: the run in progress below runs/, else {DEFAULT_URL})",
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="between two updates (default: 1)")
    parser.add_argument(
        "--window", type=float, default=10.0, metavar="S", help="window of rates and latencies (default: 10)"
    )
    form = parser.add_argument_group("output")
    form.add_argument("--once", action="store_true", help="one update, after one interval, and exit")
    form.add_argument("--json", action="store_true", help="a JSON object an update, one a line")
    server = parser.add_argument_group("a server")
    add_key_file(server)
    server.add_argument("--header", action="append", metavar="'N: V'", help="extra header")
    server.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    server.add_argument(
        "--root", type=Path, metavar="DIR", help="read its cards and host below DIR (default: / for a local server)"
    )


def run(args: argparse.Namespace) -> int:
    """Show it until interrupted, or until the run is over. UsageError for arguments that make no sense; TargetError
    for a server that is not there at the beginning. The exit code."""
    from cadenza.measure.signals import stop_on_signals

    _check(args)
    with contextlib.ExitStack() as stack:
        view = _open(args, stack)
        with stop_on_signals() as stop:
            if args.once or not _is_terminal(args):
                _print_looks(view, args, stop)
            else:
                _draw(view, args, stop)
    return 0


def _check(args: argparse.Namespace) -> None:
    from cadenza.errors import UsageError

    for flag, value, low, high in (
        ("--interval", args.interval, MIN_INTERVAL_S, MAX_INTERVAL_S),
        ("--window", args.window, MIN_INTERVAL_S, MAX_WINDOW_S),
    ):
        if math.isnan(value) or not low <= value <= high:
            raise UsageError(f"{flag} must be between {low} and {high:g} seconds, not {value}")
    if args.root is not None and not args.root.is_dir():
        raise UsageError(f"--root {args.root} is no folder")


def _open(args: argparse.Namespace, stack: contextlib.ExitStack) -> View:
    from cadenza.errors import UsageError
    from cadenza.live.run import RunView, find_running
    from cadenza.record import printable
    from cadenza.store.names import RUNS, find_run

    what: str | Path = args.what or find_running(RUNS) or DEFAULT_URL
    if isinstance(what, str) and "://" in what:
        return _open_server(what, args, stack)
    try:
        return stack.enter_context(RunView(find_run(what), args.window))
    except UsageError as error:
        if Path(what).exists():
            raise
        raise UsageError(f"{printable(str(error))}; write a server as http://HOST:PORT") from None


def _open_server(url: str, args: argparse.Namespace, stack: contextlib.ExitStack) -> View:
    from functools import partial

    from cadenza.cli.options import read_credentials
    from cadenza.live.server import ServerView
    from cadenza.load.sockets import SocketTransport
    from cadenza.load.target import resolve
    from cadenza.load.tls import tls_context
    from cadenza.measure.workers import is_here
    from cadenza.telemetry.collectors import find_collectors

    credentials = read_credentials(args)
    target = resolve(url)
    transport = stack.enter_context(SocketTransport(make_context=partial(tls_context, not args.insecure)))
    watched = args.root is not None or is_here([target])
    view = ServerView(
        transport,
        target,
        credentials.as_headers(),
        args.interval,
        args.window,
        partial(find_collectors, args.root or Path("/"), embedded=False) if watched else tuple,
        None if watched else "The server is on another machine: its GPUs and host are seen from there only.",
        simulated=args.root is not None and (args.root / "SIMULATED").exists(),
    )
    return stack.enter_context(view)


def _is_terminal(args: argparse.Namespace) -> bool:
    return not args.json and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _print_looks(view: View, args: argparse.Namespace, stop: Callable[[], bool]) -> None:
    """A snapshot an interval, one after the other, so that a pipe can read them."""
    import msgspec

    from cadenza.report.top import to_text

    view.wait()
    due_s = time.monotonic()
    number = 0
    while not stop():
        snapshot = view.snapshot()
        if args.json:
            sys.stdout.buffer.write(msgspec.json.encode(snapshot) + b"\n")
        else:
            sys.stdout.write(f"{'' if number == 0 else chr(10)}{to_text(snapshot, args.interval)}")
        sys.stdout.flush()
        number += 1
        if args.once or view.over:
            return
        due_s = max(due_s + args.interval, time.monotonic())
        wait_until(due_s, stop)


def _draw(view: View, args: argparse.Namespace, stop: Callable[[], bool]) -> None:
    """The terminal's second screen, drawn anew each interval and when it changes size; the last look stays behind."""
    from functools import partial

    from rich.console import Console
    from rich.live import Live

    from cadenza.report.top import render, render_screen

    console = Console(highlight=False, markup=False, emoji=False)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with _watch_keys() as quits, live:
        due_s = time.monotonic()
        snapshot = view.snapshot()
        while not stop() and not quits():
            live.update(render_screen(snapshot, console, args.interval), refresh=True)
            if view.over:
                break
            if wait_until(due_s + args.interval, partial(_is_disturbed, console, console.size, stop, quits)):
                continue
            due_s = max(due_s + args.interval, time.monotonic() - args.interval)
            snapshot = view.snapshot()
    console.print(render(snapshot, console.width, args.interval))


def _is_disturbed(
    console: "Console", size: "ConsoleDimensions", stop: Callable[[], bool], quits: Callable[[], bool]
) -> bool:
    return stop() or quits() or console.size != size


@contextlib.contextmanager
def _watch_keys() -> Iterator[Callable[[], bool]]:
    """A predicate that turns true at `q`; keys are not shown meanwhile. Only where the terminal's keys are ours: asking
    for them from the background would stop the process."""
    import select
    import termios
    import tty

    try:
        keys = sys.stdin.fileno()
        if os.tcgetpgrp(keys) != os.getpgrp():
            raise OSError
        before = termios.tcgetattr(keys)
        tty.setcbreak(keys, termios.TCSANOW)
    except (OSError, ValueError, AttributeError, termios.error):  # no terminal, closed, none at all
        yield lambda: False
        return
    pressed = bytearray()

    def quits() -> bool:
        while b"q" not in pressed and select.select([keys], [], [], 0)[0]:
            if not (data := os.read(keys, 64)):  # it is gone; a hang-up ends us otherwise
                break
            pressed[:] = data
        return b"q" in pressed

    try:
        yield quits
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def wait_until(due_s: float, stop: Callable[[], bool]) -> bool:
    """Until then on the monotonic clock, or until `stop` says so, which is the answer."""
    while not (stopped := stop()) and (left_s := due_s - time.monotonic()) > 0:
        time.sleep(min(_SLICE_S, left_s))
    return stopped
