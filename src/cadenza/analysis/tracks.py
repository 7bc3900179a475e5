"""A run's telemetry as series in time: one track a series, and the engine's page at the edges of a point."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from cadenza.stats.columns import Floats, Ints

# A source of samples that are no samples of a stretch of time: the engine's page at the two edges of a point.
EDGE = "edge"


class Telemetry(Protocol):
    """What was written while the run went on.

    server_here   the cards and the host are those that serve, as far as can be told
    interval_s    between two looks, as far as nothing is late
    samples       (instant in ns, source, point at whose edge it was taken, (k,) series, (k,) values), in any order
    missing       (since ns, source, series, card or "", reason)
    """

    @property
    def server_here(self) -> bool: ...

    @property
    def interval_s(self) -> float: ...

    @property
    def samples(self) -> Sequence[tuple[int, str, int | None, tuple[str, ...], Floats]]: ...

    @property
    def missing(self) -> Sequence[tuple[int, str, str, str, str]]: ...


class Track(NamedTuple):
    """One series in time: (n,) instants in ns, ascending, and values."""

    at_ns: Ints
    values: Floats


Tracks = Mapping[str, Track]


def track(rows: Iterable[tuple[int, str, int | None, tuple[str, ...], Floats]]) -> dict[str, Track]:
    """Samples as one track a series; what a sample does not have is a gap in it."""
    blocks: dict[tuple[str, ...], list[tuple[int, Floats]]] = {}
    for at_ns, _, _, series, values in rows:
        blocks.setdefault(series, []).append((at_ns, values))
    pieces: dict[str, list[tuple[Ints, Floats]]] = {}
    for series, block in blocks.items():
        at = np.array([at_ns for at_ns, _ in block], dtype=np.int64)
        table = np.stack([values for _, values in block])
        for column, name in enumerate(series):
            pieces.setdefault(name, []).append((at, table[:, column]))
    tracks = {}
    for name, parts in pieces.items():
        at, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(at, kind="stable")
        tracks[name] = Track(at[order], values[order])
    return tracks


@lru_cache(maxsize=4096)
def parse_key(key: str) -> tuple[str, Mapping[str, str]]:
    """`name{label=value,…}` taken apart; `model`, whose value may hold anything, comes last."""
    name, brace, rest = key.partition("{")
    labels, told, model = rest.removesuffix("}").partition("model=") if brace else ("", "", "")
    found = dict(pair.partition("=")[::2] for pair in labels.split(",") if pair)
    return name, found | ({"model": model} if told else {})


def find(tracks: Tracks, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], Track]]:
    """The tracks of the family `name` that have these labels."""
    for key, found in tracks.items():
        family, has = parse_key(key)
        if family == name and all(has.get(label) == value for label, value in labels.items()):
            yield has, found


def pick_model(tracks: Tracks, model: str) -> dict[str, Track]:
    """The engine's tracks that are of `model`: those that name it, or, where they name only one, that one's."""
    labels = {key: parse_key(key)[1] for key in tracks}
    names = {has["model"] for has in labels.values() if "model" in has}
    chosen = model if model in names else next(iter(names)) if len(names) == 1 else None
    return {key: tracks[key] for key, has in labels.items() if chosen is not None and has.get("model") == chosen}


def edges_of(telemetry: Telemetry, index: int) -> list[Tracks]:
    """The engine's page before and after the point, and in that order; fewer where it was not to be had."""
    rows = [row for row in telemetry.samples if row[1] == EDGE and row[2] == index]
    return [track([row]) for row in sorted(rows, key=lambda row: row[0])]


def growth(edges: Sequence[Tracks], model: str, name: str) -> float | None:
    """By how much the counter grew from the first edge to the last, over all base URLs; None: not told, or it fell."""
    if len(edges) < 2:
        return None
    first, last = ({key: t.values[-1] for key, t in pick_model(edge, model).items()} for edge in (edges[0], edges[-1]))
    grown = [value - first.get(key, 0.0) for key, value in last.items() if parse_key(key)[0] == name]
    return None if not grown or min(grown) < 0 else float(sum(grown))
