"""When nobody looked: stretches of a point without samples, though what tells them was sampled in the run."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cadenza.clock import NS_PER_S
from cadenza.stats.columns import Floats

_NEVER_NS = int(np.iinfo(np.int64).max)

# A source that is late by less than this many of its intervals may have been held up; beyond, it was not there.
GAP_INTERVALS = 5


class Sampled(Protocol):
    """`analysis.tracks.Telemetry`, as far as it matters here; `interval_s` is what was aimed at between two looks."""

    @property
    def interval_s(self) -> float: ...

    @property
    def samples(self) -> Sequence[tuple[int, str, int | None, tuple[str, ...], Floats]]: ...


def unwatched_s(telemetry: Sampled, start_ns: int, end_ns: int) -> dict[str, float]:
    """**Unwatched**: by source, the seconds from `start_ns` to `end_ns` that lie in gaps between its samples.

    A gap is a time without a sample that is longer than 5 of the source's intervals: the median of those between its
    samples in the run until then, or the interval that was aimed at if that is longer. Gaps begin and end also where
    the point does, and those that reach across its edges count with the part inside. A source without a sample until
    `end_ns` is not here, nor is one without gaps. A point that broke off, without an end, ends with the last sample.
    """
    if end_ns == _NEVER_NS:
        end_ns = max((row[0] for row in telemetry.samples), default=start_ns)
    stamps: dict[str, list[int]] = {}
    for at_ns, source, point, _, _ in telemetry.samples:
        if at_ns <= end_ns and point is None:
            stamps.setdefault(source, []).append(at_ns)
    found = {}
    for source, stamped in stamps.items():
        at = np.sort(np.array(stamped, dtype=np.int64))
        between = np.diff(at)
        usual_ns = max(telemetry.interval_s * NS_PER_S, float(np.median(between)) if between.size else 0.0)
        # The sampler may have been started after the point, or not again before its end.
        begins = np.concatenate(([start_ns], at))
        ends = np.concatenate((at, [end_ns]))
        long = ends - begins > GAP_INTERVALS * usual_ns
        inside = np.minimum(ends, end_ns) - np.maximum(begins, start_ns)
        unseen_ns = int(inside[long & (inside > 0)].sum())
        if unseen_ns:
            found[source] = unseen_ns / NS_PER_S
    return found
