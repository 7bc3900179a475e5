"""What `sweep` and `run` do: settings → server → run directory → points → report → exit code."""

import argparse
import contextlib
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path

from cadenza import __version__
from cadenza.cli.main import EXIT_INTERRUPTED
from cadenza.cli.signals import stop_on_signals
from cadenza.clock import MonotonicClock, anchor
from cadenza.engine import child
from cadenza.errors import CadenzaError, StoreError
from cadenza.load.sockets import SocketTransport
from cadenza.load.target import resolve
from cadenza.load.tls import tls_context
from cadenza.prompts.catalogue import digest
from cadenza.report import terminal
from cadenza.report.live import Progress
from cadenza.report.server import describe_server
from cadenza.spec import Credentials, Spec
from cadenza.stats.summary import Summary, to_json
from cadenza.stats.verdict import Verdict
from cadenza.store.calibration import find_calibration
from cadenza.store.environment import describe_environment, usable_cores
from cadenza.store.manifest import Manifest, RunStatus, Server
from cadenza.store.rundir import RunWriter, create_run
from cadenza.sweep.grid import lay_out
from cadenza.sweep.plan import Phrasing, draw_requests
from cadenza.sweep.preflight import choose_models, examine
from cadenza.sweep.run import Runner
from cadenza.sweep.share import Stop
from cadenza.sweep.workers import count_workers, is_here

RUNS = Path("runs")


def measure(spec: Spec, credentials: Credentials, args: argparse.Namespace) -> int:
    """Run `spec` and report it on stdout; the exit code as `cadenza --help` has it."""
    with contextlib.ExitStack() as stack:
        urls = spec.urls
        if spec.engine is not None:
            urls = (stack.enter_context(child.start(spec.engine, spec.speed)).url,)
            credentials = Credentials()  # a key is for servers out there
        targets = [resolve(url) for url in urls]
        make_context = partial(tls_context, spec.verify_tls)
        phrasing = Phrasing(spec, credentials, targets)
        with SocketTransport(make_context=make_context) as transport:
            server = examine(transport, phrasing, spec, credentials)
        clock = MonotonicClock(spec.speed)
        make_transport = partial(SocketTransport, clock, make_context)
        transport = stack.enter_context(make_transport())
        talk = _silent if args.quiet else _say
        talk(describe_server(server, spec.engine or ", ".join(spec.urls)))
        manifest = _manifest(spec, server, transport)
        writer = create_run(_out(spec, args.out), manifest)
        if spec.speed != 1:
            talk(
                f"  {'speed':<10} {spec.speed:g} times faster than real time; every figure is in the engine's own time"
            )
        talk(f"  {'run':<10} {writer.path}  (seed {spec.seed}, prompts {spec.prompts}, {_cache(spec)})\n")
        with stop_on_signals() as stop:
            progress = Progress(sys.stderr, quiet=args.quiet)
            workers = partial(count_workers, spec, cores=usable_cores(), server_here=is_here(targets))
            runner = Runner(spec, transport, phrasing, writer, progress, stop, tool(), make_transport, workers)
            return _finish(runner, writer, stop, args)


def tool() -> dict[str, str]:
    """Who made a summary."""
    return {"name": "cadenza", "version": __version__}


def _finish(runner: Runner, writer: RunWriter, stop: Stop, args: argparse.Namespace) -> int:
    """Run, and report whatever came of it, on every way out."""
    status = RunStatus.FAILED
    try:
        summary = runner.run()
        status = RunStatus.INTERRUPTED if stop() else RunStatus.COMPLETE
    except CadenzaError:
        report(runner.summary(), writer.path, as_json=args.json)
        raise
    finally:
        with contextlib.suppress(StoreError) if status is RunStatus.FAILED else contextlib.nullcontext():
            writer.close(status)
    report(summary, writer.path, as_json=args.json)
    if status is RunStatus.INTERRUPTED:
        return EXIT_INTERRUPTED
    return int(any(point.verdict is Verdict.INVALID for point in summary.points))


def report(summary: Summary, path: Path, *, as_json: bool) -> None:
    """Print the summary on stdout, and what to type next on stderr."""
    if as_json:
        sys.stdout.buffer.write(to_json(summary))
        sys.stdout.flush()
        return
    terminal.show(summary)
    program = _program()
    _say(f"\nKept in {path}. Next:")
    _say(f"  {program} check {path}      can it be believed, check by check")
    _say(f"  {program} show {path} --markdown      the table for an issue or a wiki")
    _say(f"  {program} sweep --url http://localhost:8000      your own server")


def _program() -> str:
    """What to type for `cadenza` here: an environment that is not active has it under its own path only."""
    called = Path(sys.argv[0])
    found = shutil.which("cadenza")
    if found is not None and Path(found).resolve() == called.resolve():
        return "cadenza"
    return os.path.relpath(called) if called.name == "cadenza" else "python -m cadenza"


def _manifest(spec: Spec, server: Server, transport: SocketTransport) -> Manifest:
    points = lay_out(spec, choose_models(spec, server.models, simulated=server.simulated))
    calibration = find_calibration()
    for point in points:
        point.ceiling_events_per_s = None if calibration is None else calibration.events_per_s
    for point in points:  # an unreadable dataset or a bad arrival law is told now, not after an hour
        next(draw_requests(spec, point))
    return Manifest(
        status=RunStatus.RUNNING,
        simulated=server.simulated,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        anchor=anchor(transport.clock),
        argv=_argv_without_secrets(sys.argv[1:]),
        spec=spec,
        dataset_sha256=digest(spec.prompts),
        environment=describe_environment(),
        server=server,
        points=points,
    )


def _argv_without_secrets(argv: list[str]) -> list[str]:
    """Header values are secret: only their names are kept."""
    kept: list[str] = []
    for argument in argv:
        if (kept and kept[-1] == "--header") or argument.startswith("--header="):
            argument = argument.partition(":")[0] + ": …"
        kept.append(argument)
    return kept


def _out(spec: Spec, given: str | None) -> Path:
    if given is not None:
        return Path(given)
    name = f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{spec.engine or spec.api}"
    path, n = RUNS / name, 1
    while path.exists():
        n += 1
        path = RUNS / f"{name}-{n}"
    return path


def _cache(spec: Spec) -> str:
    return "each prompt unique" if spec.cache == "unique" else "prompts repeat: a prefix cache may be warm"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    pass
