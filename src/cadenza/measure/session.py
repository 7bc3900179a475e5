"""One session: a spec becomes a run directory and its summary. It knows no terminal: `progress` receives events.

What samples the machine is passed in (`watch`), since that room lies in the same layer.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cadenza import __version__
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import Summary
from cadenza.engine.profile import load as load_profile
from cadenza.engine.timing_laws import find_domains
from cadenza.errors import CadenzaError, StoreError
from cadenza.load.shard import Tally
from cadenza.measure.forecast import Forecast, response_s
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import draw_requests
from cadenza.measure.preflight import choose_models
from cadenza.measure.reach import Reached, reach
from cadenza.measure.run import Machine, Runner
from cadenza.measure.share import Stop
from cadenza.prompts.catalogue import digest
from cadenza.record import Point
from cadenza.spec import Credentials, Spec
from cadenza.store.calibration import find_calibration
from cadenza.store.environment import describe_environment
from cadenza.store.manifest import Manifest, RunStatus, Server
from cadenza.store.names import RUNS
from cadenza.store.rundir import RunWriter, create_run


class Prepared(NamedTuple):
    """The server has passed the preflight and the run directory exists; nothing has been measured yet.

    left_s   expected duration in seconds of the run's clock; None: not known
    auto     points are measured until their intervals are narrow enough, within `spec.max_time_s`
    """

    spec: Spec
    server: Server
    path: Path
    left_s: float | None
    auto: bool


class Sampling(NamedTuple):
    """What is sampled of the machine from here on, in words; None: nothing."""

    description: str | None


class Notice(NamedTuple):
    """A sentence on something that went wrong without stopping the run."""

    text: str


class PointStarted(NamedTuple):
    """Point number `position` of `total` begins."""

    point: Point
    position: int
    total: int
    forecast: Forecast


class PointProgress(NamedTuple):
    """A request of the current point has ended; `tally` counts them."""

    tally: Tally


class PointEnded(NamedTuple):
    """A point is over, with its figures."""

    summary: PointSummary


class RunEnded(NamedTuple):
    """The run is over: complete, interrupted, or failed with the points measured until then."""

    summary: Summary
    status: RunStatus


Event = Prepared | Sampling | Notice | PointStarted | PointProgress | PointEnded | RunEnded
Progress = Callable[[Event], None]


class Watched(NamedTuple):
    """What samples the machine (None: nothing does) and what it sees, in words."""

    machine: Machine | None
    description: str | None


# Starts sampling into the run's folder until the stack ends.
Watch = Callable[[Spec, Reached, Path, contextlib.ExitStack, Callable[[str], None]], Watched]


def measure(
    spec: Spec,
    credentials: Credentials,
    out: Path | None,
    *,
    progress: Progress,
    watch: Watch,
    stopping: Callable[[], contextlib.AbstractContextManager[Stop]],
    argv: Sequence[str] = (),
) -> tuple[Path, Summary]:
    """Measure `spec` into `out` (None: a new folder below `runs/`); the folder and the summary.

    stopping   makes the predicate that ends the run early; entered once the run directory exists
    argv       command line for the manifest, without secrets

    Raises UsageError and TargetError before anything is measured; StoreError where the disk refuses meanwhile, after a
    `RunEnded` with what was measured.
    """
    with contextlib.ExitStack() as stack:
        reached = reach(spec, credentials, stack)
        writer = create_run(name_run(spec) if out is None else out, _manifest(spec, reached, argv))
        progress(_prepared(spec, writer))
        with stopping() as stop:
            try:
                watched = watch(spec, reached, writer.path, stack, lambda text: progress(Notice(text)))
            except CadenzaError:
                writer.close(RunStatus.FAILED)
                raise
            progress(Sampling(watched.description))
            runner = Runner(
                spec,
                reached.access,
                writer,
                _Watcher(progress),
                stop,
                {"name": "cadenza", "version": __version__},
                watched.machine,
            )
            return writer.path, _run(runner, writer, stop, progress)


def _run(runner: Runner, writer: RunWriter, stop: Stop, progress: Progress) -> Summary:
    """Measure, and close the run directory on every way out."""
    status = RunStatus.FAILED
    try:
        summary = runner.run()
        status = RunStatus.INTERRUPTED if stop() else RunStatus.COMPLETE
    except CadenzaError:
        progress(RunEnded(runner.summary(), status))
        raise
    finally:
        with contextlib.suppress(StoreError) if status is RunStatus.FAILED else contextlib.nullcontext():
            writer.close(status)
    progress(RunEnded(summary, status))
    return summary


class _Watcher:
    """The runner's calls as events."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def point_started(self, point: Point, position: int, total: int, forecast: Forecast) -> None:
        self._progress(PointStarted(point, position, total, forecast))

    def point_goes_on(self, tally: Tally) -> None:
        self._progress(PointProgress(tally))

    def point_done(self, summary: PointSummary) -> None:
        self._progress(PointEnded(summary))


def _prepared(spec: Spec, writer: RunWriter) -> Prepared:
    manifest = writer.manifest
    points = manifest.points
    answer_s = response_s(spec, manifest.server, points[0].model) if points else None
    left_s = Forecast(spec, points, answer_s).left_s(0)
    return Prepared(spec, manifest.server, writer.path, left_s, any(point.auto for point in points))


def _manifest(spec: Spec, reached: Reached, argv: Sequence[str]) -> Manifest:
    server = reached.server
    models = choose_models(spec, server.models, simulated=server.simulated)
    points = lay_out(spec, models, response_s(spec, server, models[0]))
    # What this machine's client can read in a second bounds nothing in virtual time.
    calibration = None if spec.virtual else find_calibration()
    domains = {} if spec.engine is None else find_domains(load_profile(spec.engine), spec.timing)
    for point in points:
        point.domain, point.arrivals = domains.get(point.model), spec.arrivals if point.model in domains else None
        point.ceiling_events_per_s = None if calibration is None else calibration.events_per_s
    for point in points:  # an unreadable dataset or a bad arrival law is an error now, not after an hour
        next(draw_requests(spec, point))
    return Manifest(
        status=RunStatus.RUNNING,
        simulated=server.simulated,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        anchor=reached.anchor,
        argv=list(argv),
        spec=spec,
        dataset_sha256=digest(spec.prompts),
        environment=describe_environment(),
        server=server,
        points=points,
    )


def name_run(spec: Spec, folder: Path = RUNS) -> Path:
    """A path below `folder` that does not exist yet: the time, and the engine's profile or the API."""
    what = Path(spec.engine).name.removesuffix(".toml") if spec.engine else spec.api  # a profile may be a file
    name = f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{what}"
    path, n = folder / name, 1
    while path.exists():
        n += 1
        path = folder / f"{name}-{n}"
    return path
