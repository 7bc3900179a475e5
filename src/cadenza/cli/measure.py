"""What `sweep` and `run` do: settings → server → run directory → points → report → exit code."""

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cadenza import __version__
from cadenza.analysis.summary import Summary, to_json
from cadenza.analysis.verdict import Verdict
from cadenza.cli.main import EXIT_INTERRUPTED
from cadenza.measure.reach import Reached, reach
from cadenza.measure.signals import stop_on_signals
from cadenza.engine.api.api import Face
from cadenza.engine.laws.catalogue import find_domains
from cadenza.engine.profile import load as load_profile
from cadenza.errors import CadenzaError, StoreError
from cadenza.load.fetch import Page
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Transport
from cadenza.measure.forecast import Forecast, response_s
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import draw_requests
from cadenza.measure.preflight import choose_models
from cadenza.measure.run import Runner
from cadenza.measure.share import Stop
from cadenza.prompts.catalogue import digest
from cadenza.report import terminal
from cadenza.report.live import Progress
from cadenza.report.server import describe_server
from cadenza.spec import Credentials, Spec
from cadenza.store.calibration import find_calibration
from cadenza.store.environment import describe_environment
from cadenza.store.manifest import Manifest, RunStatus
from cadenza.store.rundir import RunWriter, create_run
from cadenza.store.telemetry import Header, TelemetryFile
from cadenza.telemetry.collectors import find_collectors
from cadenza.watch.machine import MachineWatch, Sampling
from cadenza.watch.realtime import SamplerProcess
from cadenza.watch.virtual import VirtualSampler

RUNS = Path("runs")


def measure(spec: Spec, credentials: Credentials, args: argparse.Namespace) -> int:
    """Run `spec` and report it on stdout; the exit code as `cadenza --help` has it."""
    with contextlib.ExitStack() as stack:
        reached = reach(spec, credentials, stack)
        talk = _silent if args.quiet else _say
        talk(describe_server(reached.server, spec.engine or ", ".join(spec.urls)))
        writer = create_run(_out(spec, args.out), _manifest(spec, reached))
        if spec.virtual:
            talk(f"  {'clock':<10} virtual: nothing waits; every figure is in the engine's own time")
        if spec.speed != 1:
            talk(
                f"  {'speed':<10} {spec.speed:g} times faster than real time; every figure is in the engine's own time"
            )
        talk(f"  {'time':<10} {_time(spec, writer.manifest)}")
        talk(f"  {'run':<10} {writer.path}  (seed {spec.seed}, prompts {spec.prompts}, {_cache(spec)})")
        with stop_on_signals() as stop:
            machine = _watch(spec, reached, writer.path, stack, _silent if args.quiet else _say_meanwhile)
            talk(f"  {'telemetry':<10} {'off' if machine is None else machine.told}\n")
            runner = Runner(
                spec,
                reached.transport,
                reached.phrasing,
                writer,
                Progress(sys.stderr, quiet=args.quiet, virtual=spec.virtual),
                stop,
                tool(),
                reached.make_transport,
                reached.count_workers,
                machine,
            )
            return _finish(runner, writer, stop, args)


def _watch(
    spec: Spec, reached: Reached, folder: Path, stack: contextlib.ExitStack, say: Callable[[str], None]
) -> MachineWatch | None:
    """What watches the machine from here on, until `stack` ends; None: the spec wants none, or it cannot be kept."""
    if spec.telemetry.off:
        return None
    clock = reached.transport.clock
    header = Header(
        interval_s=spec.telemetry.interval_s * spec.speed,
        server_here=reached.server_here or spec.virtual,
        simulated=reached.server.simulated,
    )
    # A transport of its own: what happens meanwhile on the client's connections is for the client to see.
    own = reached.make_scraper
    transport = reached.transport if own is None else stack.enter_context(own())
    make_sampling: Callable[[TelemetryFile, Sequence[Page]], Sampling]
    if own is None:
        make_sampling = partial(_sample_in_memory, spec, reached.transport)
    else:
        collectors = partial(find_collectors, Path(spec.telemetry.root), embedded=spec.engine is not None)
        make_sampling = partial(SamplerProcess, folder, header, spec.telemetry.interval_s, clock, collectors, own, say)
    try:
        watch = MachineWatch(folder, header, transport, clock, reached.pages, make_sampling)
    except OSError as error:
        say(f"the machine is not watched: telemetry.jsonl cannot be written ({error.strerror})")
        return None
    return stack.enter_context(watch)


def _sample_in_memory(spec: Spec, transport: Transport, file: TelemetryFile, pages: Sequence[Page]) -> Sampling:
    assert isinstance(transport, MemoryTransport)
    assert isinstance(transport.peer, Face)
    assert spec.engine is not None
    return VirtualSampler(transport, transport.peer.core, load_profile(spec.engine), spec.telemetry.interval_s, file)


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


def _manifest(spec: Spec, reached: Reached) -> Manifest:
    server = reached.server
    models = choose_models(spec, server.models, simulated=server.simulated)
    points = lay_out(spec, models, response_s(spec, server, models[0]))
    # What this machine's client can read in a second bounds nothing in virtual time.
    calibration = None if spec.virtual else find_calibration()
    domains = {} if spec.engine is None else find_domains(load_profile(spec.engine), spec.timing)
    for point in points:
        point.domain, point.arrivals = domains.get(point.model), spec.arrivals if point.model in domains else None
        point.ceiling_events_per_s = None if calibration is None else calibration.events_per_s
    for point in points:  # an unreadable dataset or a bad arrival law is told now, not after an hour
        next(draw_requests(spec, point))
    return Manifest(
        status=RunStatus.RUNNING,
        simulated=server.simulated,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        anchor=reached.anchor,
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
    what = Path(spec.engine).name.removesuffix(".toml") if spec.engine else spec.api  # a profile may be a file
    name = f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{what}"
    path, n = RUNS / name, 1
    while path.exists():
        n += 1
        path = RUNS / f"{name}-{n}"
    return path


def _time(spec: Spec, manifest: Manifest) -> str:
    """How long the sweep will take, before it starts."""
    points = manifest.points
    answer_s = response_s(spec, manifest.server, points[0].model) if points else None
    left_s = Forecast(spec, points, answer_s).left_s(0)
    estimate = "not known yet" if left_s is None else f"about {_span(left_s / spec.speed)}"
    if spec.virtual and left_s is not None:
        estimate += " of virtual time"
    if not any(point.auto for point in points):
        return estimate
    return (
        f"{estimate}, at most {_span(spec.max_time_s)} (--max-time): each point until throughput, TTFT and TPOT are "
        f"known to ±5 %, or until its share is used"
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _cache(spec: Spec) -> str:
    return "each prompt unique" if spec.cache == "unique" else "prompts repeat: a prefix cache may be warm"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_meanwhile(text: str) -> None:
    """Below the line that changes, where there is one."""
    _say(f"\n{text}" if sys.stderr.isatty() else text)


def _silent(text: str) -> None:
    pass
