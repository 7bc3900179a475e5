"""cadenza from Python: measure a server with `sweep`, read a run with `open_run`.

    import cadenza

    run = cadenza.sweep({"urls": "http://localhost:8000", "concurrency": [1, 4, 16]})
    run.points[0].ttft_ms.mean
    run.requests(0).to_pandas()

The names are in `cadenza` itself and are loaded on first use. The command line calls the same functions.
"""

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import Summary
from cadenza.analysis.summary import summarise as summarise_run
from cadenza.analysis.tables import Table as Table
from cadenza.analysis.tables import readings_table, requests_table
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.profile import load as load_profile
from cadenza.errors import TargetError, UsageError
from cadenza.load.fetch import Page
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Transport
from cadenza.measure import session
from cadenza.measure.reach import Reached
from cadenza.measure.signals import stop_on_signals
from cadenza.spec import DEFAULT_ENGINE, KEY_VARIABLE, Credentials, Slo, Spec, make_spec
from cadenza.store.manifest import Manifest, RunStatus
from cadenza.store.names import find_run
from cadenza.store.rundir import Run as StoredRun
from cadenza.store.rundir import read_run
from cadenza.store.telemetry import Header, TelemetryFile, read_telemetry
from cadenza.telemetry.collectors import find_collectors
from cadenza.watch.machine import MachineWatch, find_pages
from cadenza.watch.machine import Sampling as Sampler
from cadenza.watch.realtime import SamplerProcess
from cadenza.watch.virtual import VirtualSampler

Progress = session.Progress


class Run:
    """A run directory: what was measured, whole or broken off. `sweep` and `open_run` return one.

    path   the run directory

    >>> run = open_run("latest")
    >>> run.status.value
    'complete'
    """

    def __init__(self, path: Path, summary: Summary | None = None) -> None:
        """UsageError: `path` is not a run. StoreError: it is damaged, or of a newer version."""
        self.path = path
        self._stored: StoredRun = read_run(path)
        if summary is not None:
            self.__dict__["summary"] = summary

    def __repr__(self) -> str:
        return f"<cadenza run {self.path}: {self.status.value}, {len(self.manifest.points)} points>"

    @property
    def manifest(self) -> Manifest:
        """Spec, server, environment, seed and times of the run, as `manifest.json` has them.

        >>> open_run("latest").manifest.server.engine
        'cadenza'
        """
        return self._stored.manifest

    @property
    def status(self) -> RunStatus:
        """running, complete, interrupted or failed.

        >>> open_run("latest").status is not None
        True
        """
        return self.manifest.status

    @property
    def spec(self) -> Spec:
        """The settings of the run. `sweep(run.spec)` measures the same again.

        >>> open_run("latest").spec.concurrency
        (1, 2)
        """
        return self.manifest.spec

    @property
    def broken_lines(self) -> int:
        """Lines of the record files that are cut off (at most one a process, after a kill), as of the last reading.

        >>> run = open_run("latest")
        >>> len(run.requests(0)["index"]) > 0, run.broken_lines
        (True, 0)
        """
        return self._stored.broken_lines

    @cached_property
    def summary(self) -> Summary:
        """All figures of the run, with units in their names: the content of `summary.json`, rebuilt from the records.

        >>> open_run("latest").summary.points[1].in_flight.peak
        2
        """
        return self.summarise()

    def summarise(self, slo: Slo | None = None) -> Summary:
        """The figures of the run, goodput by `slo` in place of the run's own bounds. StoreError: records are damaged.

        >>> from cadenza.spec import Slo
        >>> open_run("latest").summarise(Slo(latency_ms=1)).points[0].goodput.share
        0.0
        """
        return summarise_run(
            self.manifest.points,
            self._stored.records(),
            simulated=self.manifest.simulated,
            tool={"name": "cadenza", "version": self.manifest.environment.cadenza},
            slo=slo or self.spec.slo,
            telemetry=read_telemetry(self.path),
        )

    @property
    def points(self) -> list[PointSummary]:
        """The figures of each point that has begun, in the order of measurement.

        >>> [point.concurrency for point in open_run("latest").points]
        [1, 2]
        """
        return self.summary.points

    def requests(self, point: int | PointSummary) -> Table:
        """The requests of one point (its index, or an entry of `points`), by plan index; empty where none has ended.

        index, phase, outcome, status, finish_reason, target, worker, detail   as `Record`; "" and -1: none
        intended_ns           intended start on the run's clock; telemetry has the same clock
        intended_ms … done_ms   stamps in ms since the first intended start of the point; NaN: none
        ttft_ms, user_ttft_ms, tpot_ms, latency_ms, user_latency_ms, dispatch_lag_ms   by `cadenza.stats.latency`; NaN:
                              undefined
        prompt_tok, output_tok   tokens of prompt (NaN: not known) and answer

        A figure of the summary is of the rows whose phase is `measure`. UsageError: the run has no such point.

        >>> requests = open_run("latest").requests(0)
        >>> measured = requests["phase"] == "measure"
        >>> int(measured.sum()), set(requests["outcome"][measured].tolist())
        (8, {'ok'})
        """
        index = point if isinstance(point, int) else point.index
        if not 0 <= index < len(self.manifest.points):
            raise UsageError(f"{self.path} has no point {index}: it has {len(self.manifest.points)}, counted from 0")
        return requests_table(record for record in self._stored.records() if record.point == index)

    def telemetry(self) -> Table:
        """Every sampled value of the run, in the order of sampling; empty where nothing was sampled.

        at_ns    instant on the run's clock
        source   collector: host, amdgpu, nvidia, kernel, engine; `edge`: the engine's page before and after a point
        name     of the series, e.g. `running`
        value    in the unit that the name ends in
        gpu, model, engine, …   a label of the series each; "": the series does not have it

        >>> telemetry = open_run("latest").telemetry()
        >>> sorted(set(telemetry["source"].tolist()))
        ['amdgpu', 'edge', 'engine']
        >>> running = (telemetry["name"] == "running") & (telemetry["source"] == "engine")
        >>> set(telemetry["model"][running].tolist()) >= {"Qwen/Qwen3-8B"}, float(telemetry["value"][running].max())
        (True, 2.0)
        """
        log = read_telemetry(self.path)
        return readings_table([] if log is None else log.samples)


def sweep(
    spec_or_kwargs: Spec | Mapping[str, Any],
    out: str | Path | None = None,
    progress: Progress | None = None,
    *,
    credentials: Credentials | None = None,
    argv: Sequence[str] = (),
) -> Run:
    """Measure a server, or the embedded engine, over the grid of the spec.

    spec_or_kwargs   a `Spec`, or its fields as a dict. Without `urls` and `engine` the embedded engine is measured.
                     Without `seed` a dict draws one, so that no prompt repeats; a Spec's seed is used as it is
    out              folder for the run, new or empty; None: a new one below `runs/`
    progress         called with each event of `cadenza.measure.session` from the measuring loop: it must be quick. An
                     exception in it ends the run. None: silent
    credentials      API key and headers; None: the key in the variable CADENZA_API_KEY, if any
    argv             command line to be kept in the manifest, without secrets

    On the main thread Ctrl-C or SIGTERM ends the run early, and the Run returned has the status `interrupted`. No
    handler is installed on another thread.

    UsageError: a setting, file or folder cannot be used. TargetError: the server cannot be reached, or refuses.
    StoreError: the run directory cannot be written.

    >>> run = sweep({"virtual": True, "models": "Qwen/Qwen3-8B", "concurrency": [1, 2], "requests": 8, "seed": 1})
    >>> [(point.concurrency, point.verdict.value) for point in run.points]
    [(1, 'VALID'), (2, 'VALID')]
    >>> run.summary.simulated
    True
    """
    spec = _complete(spec_or_kwargs)
    path, summary = session.measure(
        spec,
        Credentials(os.environ.get(KEY_VARIABLE) or None) if credentials is None else credentials,
        None if out is None else Path(out),
        progress=_silent if progress is None else progress,
        watch=_watch,
        stopping=stop_on_signals,
        argv=argv,
    )
    return Run(path, summary)


def open_run(path: str | Path) -> Run:
    """The run in the folder `path`; a bare name is looked up below `runs/`, and `latest` is the last one started there.

    UsageError: there is no such run, with the closest known name. StoreError: it is damaged, or of a newer version.

    >>> open_run("latest").manifest.simulated
    True
    """
    return Run(find_run(path))


def _complete(given: Spec | Mapping[str, Any]) -> Spec:
    """As a spec that names what is measured."""
    if not isinstance(given, Spec):
        given = make_spec({"seed": random.SystemRandom().randrange(1 << 31), **given})
    if given.urls or given.engine:
        return given
    return msgspec.structs.replace(given, engine=DEFAULT_ENGINE)


def _silent(event: session.Event) -> None:
    pass


def _watch(
    spec: Spec, reached: Reached, folder: Path, stack: contextlib.ExitStack, notify: Callable[[str], None]
) -> session.Watched:
    """Sample the machine into `folder` until `stack` ends, unless the spec or the disk is against it."""
    if spec.telemetry.off:
        return session.Watched(None, None)
    clock = reached.access.transport.clock
    header = Header(
        interval_s=spec.telemetry.interval_s * spec.speed,
        server_here=reached.server_here or spec.virtual,
        simulated=reached.server.simulated,
    )
    # A transport apart: what happens meanwhile on the client's connections is for the client to see.
    scraper = reached.make_scraper
    transport = reached.access.transport if scraper is None else stack.enter_context(scraper())
    make_sampling: Callable[[TelemetryFile, Sequence[Page]], Sampler]
    if scraper is None:
        make_sampling = partial(_sample_in_memory, spec, reached.access.transport)
    else:
        collectors = partial(find_collectors, Path(spec.telemetry.root), embedded=spec.engine is not None)
        interval_s = spec.telemetry.interval_s
        make_sampling = partial(SamplerProcess, folder, header, interval_s, clock, collectors, scraper, notify)
    try:
        watch = MachineWatch(folder, header, transport, clock, _pages(spec, reached), make_sampling)
    except OSError as error:
        notify(f"the machine is not sampled: telemetry.jsonl cannot be written ({error.strerror})")
        return session.Watched(None, None)
    machine = stack.enter_context(watch)
    return session.Watched(machine, machine.description)


def _pages(spec: Spec, reached: Reached) -> list[Page]:
    with contextlib.suppress(TargetError):  # nothing listens where the metrics should be: the run goes on without
        return find_pages(spec.telemetry, reached.targets, reached.headers)
    return []


def _sample_in_memory(spec: Spec, transport: Transport, file: TelemetryFile, pages: Sequence[Page]) -> Sampler:
    assert isinstance(transport, MemoryTransport)
    assert isinstance(transport.peer, HttpApi)
    assert spec.engine is not None
    return VirtualSampler(transport, transport.peer.core, load_profile(spec.engine), spec.telemetry.interval_s, file)
