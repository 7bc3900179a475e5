"""A run in progress, read from its files alone: manifest, records and telemetry as they grow."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cadenza.analysis.snapshot import Progress, Snapshot, Stream, cards, engine_figures, host, kernel, times
from cadenza.analysis.tracks import EDGE, Tracks, track
from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.errors import CadenzaError
from cadenza.readings import Sample
from cadenza.record import LoadLabel, Phase, Point, Record, printable
from cadenza.spec import Spec
from cadenza.stats.columns import Columns
from cadenza.stats.latency import tpot_ms, ttft_ms, user_ttft_ms
from cadenza.store.manifest import Manifest, RunStatus
from cadenza.store.rundir import list_runs, read_run
from cadenza.store.tail import RunTail

_STALE_S = 10.0  # as the sampler's: a number that has stopped moving deceives
_QUIET_S = 5.0
_PIECES = 16  # of 4 MiB a snapshot, so that a long run is caught up with and a snapshot stays short
_ANSWERS = 100_000
_SAMPLES = 4096
_NAME = 120
_ENGINE = "engine"


class _Answer(NamedTuple):
    """One request that has ended. NaN where undefined; the latencies of a warm-up, or of a failure, are."""

    point: int
    done_ns: int
    ttft_ms: float
    user_ttft_ms: float
    tpot_ms: float
    output_tok: int
    prompt_tok: float


class RunView:
    """The run in `folder`; a context manager. UsageError or StoreError: it is none, or cannot be read.

    window_s   of real time: on the run's clock as much longer as that is faster
    now_s      Unix time; clock: for the time without new data
    """

    def __init__(
        self, folder: Path, window_s: float, now_s: Callable[[], float] = time.time, clock: Clock | None = None
    ) -> None:
        self._folder = folder
        self._window_s = window_s
        self._now_s = now_s
        self._clock = clock or MonotonicClock()
        self._tail = RunTail(folder)
        self._manifest = read_run(folder).manifest
        speed = self._manifest.spec.speed
        self._window_ns = round(window_s * speed * NS_PER_S)
        self._stale_ns = round(_STALE_S * speed * NS_PER_S)
        self._newest_ns = 0
        self._changed_ns = self._clock.now_ns()
        self._answers: deque[_Answer] = deque(maxlen=_ANSWERS)
        self._ended: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._engine: deque[Sample] = deque(maxlen=_SAMPLES)
        self._latest: dict[str, Sample] = {}
        self._behind = True

    def __enter__(self) -> "RunView":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def wait(self) -> None:
        """Until all that has been written is read."""
        self._read(None)

    @property
    def over(self) -> bool:
        """The run has ended, and all of it has been read."""
        return self._manifest.status is not RunStatus.RUNNING and not self._behind

    def snapshot(self) -> Snapshot:
        """What is to be seen now."""
        # First the status: what a run wrote before it ended is then read with it.
        self._manifest = read_run(self._folder).manifest
        self._read(_PIECES)
        return self._describe()

    def _read(self, pieces: int | None) -> None:
        while True:
            fresh = self._tail.read()
            self._take(fresh.records, fresh.samples)
            self._behind = fresh.behind
            if fresh.records or fresh.samples:
                self._changed_ns = self._clock.now_ns()
            if not fresh.behind or pieces == 1:
                return
            pieces = None if pieces is None else pieces - 1

    def _take(self, records: Sequence[Record], samples: Sequence[Sample]) -> None:
        for record in records:
            if record.phase is Phase.MEASURE:
                self._ended[record.point] += 1
                self._failed[record.point] += record.outcome != "ok"
        for sample in samples:
            self._newest_ns = max(self._newest_ns, sample.at_ns)
            self._latest[sample.source] = sample
            if sample.source == _ENGINE:
                self._engine.append(sample)
        self._answers.extend(_answers([record for record in records if record.done_ns is not None]))
        self._newest_ns = max([self._newest_ns, *(answer.done_ns for answer in self._answers)])
        since_ns = self._newest_ns - self._window_ns
        self._answers = deque((answer for answer in self._answers if answer.done_ns > since_ns), maxlen=_ANSWERS)
        while self._engine and self._engine[0].at_ns < since_ns:
            self._engine.popleft()

    def _describe(self) -> Snapshot:
        manifest = self._manifest
        point = _current(manifest.points)
        tracks = self._tracks()
        shown = cards(tracks)
        span_s = self._span_s(point)
        return Snapshot(
            at=self._now_s(),
            source=printable(str(self._folder), _NAME),
            status=manifest.status.value,
            simulated=manifest.simulated,
            window_s=span_s,
            run=None if point is None else self._progress(point),
            streams=[] if point is None else [self._stream(point, span_s)],
            local=self._tail.telemetry.server_here,
            cards=shown,
            host=host(tracks),
            kernel=kernel(tracks),
            notes=list(self._notes(manifest, seen=bool(shown) or manifest.spec.virtual)),
        )

    def _span_s(self, point: Point | None) -> float | None:
        """How much of the window the present point fills."""
        if point is None or point.start_ns is None or self._newest_ns <= point.start_ns:
            return None
        return min(self._window_ns, self._newest_ns - point.start_ns) / NS_PER_S

    def _progress(self, point: Point) -> Progress:
        return Progress(
            point=point.index + 1,
            points=len(self._manifest.points),
            model=printable(point.model, _NAME),
            load=point.load.value,
            concurrency=point.concurrency,
            rate_per_s=point.rate_per_s,
            planned=point.planned,
            ended=self._ended[point.index],
            failed=self._failed[point.index],
        )

    def _tracks(self) -> Tracks:
        """The latest sample of every source that is not the engine's and is not stale."""
        since_ns = self._newest_ns - self._stale_ns
        latest = (one for one in self._latest.values() if one.source not in (_ENGINE, EDGE))
        return track(one for one in latest if one.at_ns >= since_ns)

    def _stream(self, point: Point, span_s: float | None) -> Stream:
        start_ns = point.start_ns or 0
        figures: dict[str, Any] = engine_figures(
            [sample for sample in self._engine if sample.at_ns >= start_ns], point.model
        )
        answers = [answer for answer in self._answers if answer.point == point.index]
        latencies: dict[str, Any] = {
            name: times(np.array([getattr(answer, name) for answer in answers], dtype=np.float64))
            for name in ("ttft_ms", "user_ttft_ms", "tpot_ms")
        }
        rates_from: str | None = None
        if "generation_tok_per_s" not in figures and span_s and answers:
            prompt = float(np.sum([answer.prompt_tok for answer in answers]))  # NaN: one of them is not known
            figures["generation_tok_per_s"] = sum(answer.output_tok for answer in answers) / span_s
            figures["prompt_tok_per_s"] = None if np.isnan(prompt) else prompt / span_s
            figures["requests_per_s"] = len(answers) / span_s
            rates_from = "answers"
        elif "generation_tok_per_s" in figures:
            rates_from = _ENGINE
        if point.load is LoadLabel.CLOSED:
            latencies["user_ttft_ms"] = None  # a slot's request is due when it falls free: the same
        return Stream(model=printable(point.model, _NAME), rates_from=rates_from, **figures, **latencies)

    def _notes(self, manifest: Manifest, *, seen: bool) -> Iterator[str]:
        quiet_s = (self._clock.now_ns() - self._changed_ns) / NS_PER_S
        if self._behind:
            yield "Reading what has been written until now."
        elif manifest.status is RunStatus.RUNNING and quiet_s > _QUIET_S:
            yield f"Nothing new for {quiet_s:.0f} s."
        if manifest.spec.telemetry.off:
            yield "The run does not watch the machine."
        elif not seen:
            yield "No GPU is seen by the run."
        if _is_fast(manifest.spec):
            yield "Times and rates are in the engine's own time."


def find_running(folder: Path) -> Path | None:
    """The newest run below `folder` that somebody writes; None: there is none."""
    for path in reversed(list_runs(folder)):
        if is_running(path):
            return path
    return None


def is_running(path: Path) -> bool:
    """Whether a process writes the run; False for one that cannot be read."""
    try:
        return read_run(path).manifest.status is RunStatus.RUNNING
    except CadenzaError:
        return False


def _current(points: Sequence[Point]) -> Point | None:
    """The point that was begun last."""
    begun = [(point.start_ns, point.index, point) for point in points if point.start_ns is not None]
    return max(begun)[-1] if begun else None


def _answers(records: Sequence[Record]) -> Iterator[_Answer]:
    columns = Columns.of(records)
    counted = columns.ok & columns.measured
    values = (np.where(counted, of(columns), np.nan).tolist() for of in (ttft_ms, user_ttft_ms, tpot_ms))
    for record, ttft, user, tpot in zip(records, *values, strict=True):
        assert record.done_ns is not None
        prompt_tok = np.nan if record.prompt_tokens is None else float(record.prompt_tokens)
        yield _Answer(record.point, record.done_ns, ttft, user, tpot, record.output_tokens or 0, prompt_tok)


def _is_fast(spec: Spec) -> bool:
    return spec.virtual or spec.speed != 1
