"""What `sweep` and `run` do: a spec, a call of `cadenza.sweep`, progress on stderr, the report, an exit code."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from cadenza import api
from cadenza.analysis.finding import Verdict
from cadenza.analysis.summary import Summary, to_json
from cadenza.cli.main import EXIT_INTERRUPTED
from cadenza.errors import CadenzaError
from cadenza.measure import session
from cadenza.report import terminal
from cadenza.report.live import Progress
from cadenza.report.server import describe_server
from cadenza.spec import Credentials, Spec
from cadenza.store.manifest import RunStatus


def measure(spec: Spec, credentials: Credentials, args: argparse.Namespace) -> int:
    """Run `spec` and report it on stdout; the exit code as `cadenza --help` has it."""
    talk = _Talk(spec, quiet=args.quiet)
    try:
        run = api.sweep(spec, args.out, talk, credentials=credentials, argv=without_secrets(sys.argv[1:]))
    except CadenzaError:
        if talk.summary is not None and talk.path is not None:
            report(talk.summary, talk.path, as_json=args.json)
        raise
    report(run.summary, run.path, as_json=args.json)
    if run.status is RunStatus.INTERRUPTED:
        return EXIT_INTERRUPTED
    return int(any(point.verdict is Verdict.INVALID for point in run.points))


class _Talk:
    """The events of a session on stderr; keeps what a report of a failed run takes."""

    def __init__(self, spec: Spec, *, quiet: bool) -> None:
        self.path: Path | None = None
        self.summary: Summary | None = None
        self._quiet = quiet
        self._progress = Progress(sys.stderr, quiet=quiet, virtual=spec.virtual)

    def __call__(self, event: session.Event) -> None:
        match event:
            case session.Prepared():
                self.path = event.path
                self._say(describe_server(event.server, event.spec.engine or ", ".join(event.spec.urls)))
                for name, text in _describe(event):
                    self._say(f"  {name:<10} {text}")
            case session.Sampling(description):
                self._say(f"  {'telemetry':<10} {description or 'off'}\n")
            case session.Notice(text):  # below the line that changes, where there is one
                self._say(f"\n{text}" if sys.stderr.isatty() else text)
            case session.PointStarted(point, position, total, forecast):
                self._progress.point_started(point, position, total, forecast)
            case session.PointProgress(tally):
                self._progress.point_goes_on(tally)
            case session.PointEnded(summary):
                self._progress.point_done(summary)
            case session.RunEnded(summary, _):
                self.summary = summary

    def _say(self, text: str) -> None:
        if not self._quiet:
            _say(text)


def report(summary: Summary, path: Path, *, as_json: bool) -> None:
    """Print the summary on stdout, and what to type next on stderr."""
    if as_json:
        sys.stdout.buffer.write(to_json(summary))
        sys.stdout.flush()
        return
    terminal.show(summary)
    program = _program()
    _say(f"\nKept in {path}. Next:")
    _say(f"  {program} check {path}      is it valid, check by check")
    _say(f"  {program} show {path} --markdown      the table for an issue or a wiki")
    _say(f"  {program} sweep http://localhost:8000      your server")


def _program() -> str:
    """What to type for `cadenza` here: an environment that is not active has it under its path only."""
    called = Path(sys.argv[0])
    on_path = shutil.which("cadenza")
    if on_path is not None and Path(on_path).resolve() == called.resolve():
        return "cadenza"
    return os.path.relpath(called) if called.name == "cadenza" else "python -m cadenza"


def without_secrets(argv: list[str]) -> list[str]:
    """Header values are secret: only their names are kept."""
    kept: list[str] = []
    for argument in argv:
        if (kept and kept[-1] == "--header") or argument.startswith("--header="):
            argument = argument.partition(":")[0] + ": …"
        kept.append(argument)
    return kept


def _describe(event: session.Prepared) -> list[tuple[str, str]]:
    """What will be done, line by line, before it starts."""
    spec = event.spec
    lines = []
    if spec.virtual:
        lines.append(("clock", "virtual: nothing waits; every figure is in the engine's time"))
    if spec.speed != 1:
        lines.append(("speed", f"{spec.speed:g} times faster than real time; every figure is in the engine's time"))
    cache = "each prompt unique" if spec.cache == "unique" else "prompts repeat: a prefix cache may be warm"
    lines.append(("time", _time(event)))
    lines.append(("run", f"{event.path}  (seed {spec.seed}, prompts {spec.prompts}, {cache})"))
    return lines


def _time(event: session.Prepared) -> str:
    """How long the sweep will take."""
    spec = event.spec
    estimate = "not known yet" if event.left_s is None else f"about {_span(event.left_s / spec.speed)}"
    if spec.virtual and event.left_s is not None:
        estimate += " of virtual time"
    if not event.auto:
        return estimate
    return (
        f"{estimate}, at most {_span(spec.max_time_s)} (--max-time): each point until throughput, TTFT and TPOT are "
        f"known to ±5 %, or until its share is used"
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
