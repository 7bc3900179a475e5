"""A table of readings as series in time: one track a series, and the engine's page before and after a point."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cadenza.readings import ReadingTable, Sample, Series
from cadenza.stats.columns import Floats, Ints

# The source of samples that are of one instant only: the engine's page before and after a point.
EDGE = "edge"


class Track(NamedTuple):
    """One series in time: (n,) instants in ns, ascending, and values; n is at least 1."""

    at_ns: Ints
    values: Floats

    @property
    def last(self) -> float:
        """The value at the latest instant."""
        return float(self.values[-1])


Tracks = Mapping[Series, Track]


def track(samples: Iterable[Sample]) -> dict[Series, Track]:
    """Samples as one track a series; a sample without the series leaves a gap in its track."""
    # Samples share the tuple of their series: its identity is quicker than its hash, and the block keeps it alive.
    blocks: dict[int, tuple[tuple[Series, ...], list[int], list[Sequence[float]]]] = {}
    for sample in samples:
        _, instants, rows = blocks.setdefault(id(sample.series), (sample.series, [], []))
        instants.append(sample.at_ns)
        rows.append(sample.values)
    pieces: dict[Series, list[tuple[Ints, Floats]]] = {}
    for block, instants, rows in blocks.values():
        at, table = np.array(instants, dtype=np.int64), np.array(rows, dtype=np.float64)
        for column, series in enumerate(block):
            pieces.setdefault(series, []).append((at, table[:, column]))
    tracks = {}
    for series, parts in pieces.items():
        at, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(at, kind="stable")
        tracks[series] = Track(at[order], values[order])
    return tracks


def find(tracks: Tracks, name: str, **labels: str) -> Iterator[tuple[Series, Track]]:
    """The tracks of that name that have these labels."""
    for series, one in tracks.items():
        if series.name == name and all(series.label(label) == text for label, text in labels.items()):
            yield series, one


def pick_model(tracks: Tracks, model: str) -> dict[Series, Track]:
    """The engine's tracks of `model`: those that name it, or, where they name only one model, that one's."""
    names = {text for series in tracks for label, text in series.labels if label == "model"}
    chosen = model if model in names else next(iter(names)) if len(names) == 1 else None
    return {series: one for series, one in tracks.items() if ("model", chosen) in series.labels}


def edges_of(telemetry: ReadingTable, index: int) -> list[Tracks]:
    """The engine's page before and after the point, in that order; fewer where it could not be read."""
    samples = [one for one in telemetry.samples if one.source == EDGE and one.point == index]
    return [track([one]) for one in sorted(samples, key=lambda one: one.at_ns)]


def growth(edges: Sequence[Tracks], model: str, name: str) -> float | None:
    """By how much the counter grew from the first edge to the last, over all base URLs; None: no counter, or it fell.

    A series that only the last edge has grew from 0.
    """
    if len(edges) < 2:
        return None
    first, last = (
        {series: one.last for series, one in pick_model(edge, model).items()} for edge in (edges[0], edges[-1])
    )
    grown = [value - first.get(series, 0.0) for series, value in last.items() if series.name == name]
    return None if not grown or min(grown) < 0 else float(sum(grown))
