"""The runs in progress below a folder, for the exporter: by name, with the point that each measures."""

import contextlib
import heapq
import os
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.errors import CadenzaError
from cadenza.readings import Collected, Collector, Missing, Reading, Reason
from cadenza.record import Point, PointStatus, printable
from cadenza.store.manifest import Manifest, RunStatus
from cadenza.store.rundir import MANIFEST, RECORDS, read_run

# Only this many of the newest are read: few runs are in progress at once.
_NEWEST = 32
_MOST_IN_FOLDER = 10_000
# A list is made again when the folder has changed, and for what its time of change does not show after so long.
_LIST_S = 10.0
_MOST_BYTES = 4 << 20
_NAME = 120

_Stamp = tuple[int, int, int]


class _State(NamedTuple):
    """A manifest as of `stamp`: its run's readings. None: the run has ended, or the manifest cannot be read for `why`;
    it is not read again until it changes."""

    stamp: _Stamp
    readings: list[Reading] | None
    why: Reason | None = None


class RunCollector(Collector):
    """The runs below `folder` that a living process writes (`cadenza ls DIR` lists all of them).

    Each round compares the modification times of the newest runs' manifests, and reads those that have changed or were
    `running`: that a run was killed shows only in the lock on its records.
    """

    name = "runs"

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or MonotonicClock()
        self._listed_ns: int | None = None
        self._changed_ns = 0
        self._newest: list[Path] = []
        self._states: dict[Path, _State] = {}

    def collect(self) -> Collected:
        """How many runs are in progress, when each began, and which point it measures; none of a run that has ended."""
        try:
            self._list()
        except OSError as error:
            return Collected([], [Missing("cadenza_runs_running", "", _why(error))])
        self._states = {path: state for path in self._newest if (state := self._read(path)) is not None}
        running = [state.readings for state in self._states.values() if state.readings is not None]
        count = Reading("cadenza_runs_running", (), float(len(running)))
        missing = [
            Missing("cadenza_run_info", "", state.why) for state in self._states.values() if state.why is not None
        ]
        return Collected([count, *chain.from_iterable(running)], missing)

    def _list(self) -> None:
        """List the newest directories by modification time, and those known to be running."""
        now_ns, changed_ns = self._clock.now_ns(), self._folder.stat().st_mtime_ns
        recent = self._listed_ns is not None and now_ns - self._listed_ns < _LIST_S * NS_PER_S
        if recent and changed_ns == self._changed_ns:
            return
        folders: list[tuple[int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in islice(entries, _MOST_IN_FOLDER):
                with contextlib.suppress(OSError):
                    if entry.is_dir():
                        folders.append((entry.stat().st_mtime_ns, entry.name))
        running = [path for path, state in self._states.items() if state.readings is not None]
        newest = [self._folder / name for _, name in heapq.nlargest(_NEWEST, folders)]
        self._newest = list(dict.fromkeys([*running, *newest]))
        self._listed_ns, self._changed_ns = now_ns, changed_ns

    def _read(self, path: Path) -> _State | None:
        """None: no run (yet)."""
        try:
            status = (path / MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return _State((0, 0, 0), None, _why(error))
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        before = self._states.get(path)
        if before is not None and before.stamp == stamp and before.readings is None:
            return before
        if not S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return _State(stamp, None, "malformed")
        try:
            if not (path / RECORDS).is_file():  # a pipe in its place would keep its reader waiting
                return _State(stamp, None)
            manifest = read_run(path).manifest
            over = manifest.status is not RunStatus.RUNNING
            return _State(stamp, None if over else list(_readings(printable(path.name, _NAME), manifest)))
        except (CadenzaError, OSError, RecursionError, ArithmeticError, ValueError):
            # Damaged, of a newer cadenza, or not for us to read.
            return _State(stamp, None, "malformed" if os.access(path / MANIFEST, os.R_OK) else "denied")


def _why(error: OSError) -> Reason:
    return "denied" if isinstance(error, PermissionError) else "absent"


def _readings(run: str, manifest: Manifest) -> Iterator[Reading]:
    yield Reading("cadenza_run_start_time_seconds", (("run", run),), manifest.anchor.wall_ns / NS_PER_S)
    point = next((point for point in manifest.points if point.status is PointStatus.RUNNING), None)
    if point is not None:
        labels = (
            ("run", run),
            ("point", printable(str(point.index + 1), _NAME)),
            ("model", printable(point.model, _NAME)),
            ("concurrency", "" if point.concurrency is None else printable(str(point.concurrency), _NAME)),
            ("load", printable(_load(point) + (", simulated" if manifest.simulated else ""), _NAME)),
        )
        yield Reading("cadenza_run_info", labels, 1.0)


def _load(point: Point) -> str:
    """`C = 16`, `2/s` where nothing bounds the requests in flight, `C = 16 @ 2/s`."""
    parts = [] if point.concurrency is None else [f"C = {point.concurrency}"]
    parts += [] if point.rate_per_s is None else [f"{point.rate_per_s:g}/s"]
    return " @ ".join(parts)
