"""Unwatched time: stretches of a point without samples of a source that was sampled in the run."""

import numpy as np

from cadenza.clock import NS_PER_S
from cadenza.readings import ReadingTable

_NEVER_NS = int(np.iinfo(np.int64).max)

# A source that is late by less than this many of its intervals may have been held up; beyond, it was not there.
GAP_INTERVALS = 5


def unwatched_s(telemetry: ReadingTable, start_ns: int, end_ns: int) -> dict[str, float]:
    """**Unwatched**: by source, the seconds from `start_ns` to `end_ns` that lie in gaps between its samples.

    A gap is a time without a sample that is longer than 5 of the source's intervals: the median of those between its
    samples in the run until then, or the interval that was aimed at if that is longer. Gaps begin and end also where
    the point does, and those that reach across its edges count with the part inside. A source without a sample until
    `end_ns` is not here, nor is one without gaps. A point that broke off, without an end, ends with the last sample.
    """
    if end_ns == _NEVER_NS:
        end_ns = max((one.at_ns for one in telemetry.samples), default=start_ns)
    stamps: dict[str, list[int]] = {}
    for one in telemetry.samples:
        if one.at_ns <= end_ns and one.point is None:
            stamps.setdefault(one.source, []).append(one.at_ns)
    unwatched = {}
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
            unwatched[source] = unseen_ns / NS_PER_S
    return unwatched
