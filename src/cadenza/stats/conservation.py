"""No request is lost: what was planned is either sent or dropped, and what was sent has an outcome."""

import msgspec
import numpy as np

from cadenza.record import Outcome, Point, PointStatus
from cadenza.stats.columns import OUTCOMES, Columns


class Requests(msgspec.Struct, frozen=True):
    """Measured requests of a point; `outcomes` counts the sent ones by how they ended, zeros left out."""

    planned: int
    sent: int
    ok: int
    failed: int
    dropped: int
    outcomes: dict[str, int]


class Failure(msgspec.Struct, frozen=True):
    """One way to fail: how often, and the commonest evidence (None: no evidence was kept)."""

    outcome: str
    n: int
    detail: str | None


def count_requests(point: Point, columns: Columns) -> Requests:
    """Planned, sent, ok, failed and dropped.

    Unit: requests. Population: measured requests, whole run. sent: has a `sent` stamp. failed: sent and not `ok`, so
    cancelled ones too. dropped: never sent; where the point did not come to its end, planned requests without any
    record count as dropped too. planned: the plan's number; where only a duration bounds it, sent + dropped.
    No record: zeros. Source: the definition.
    """
    measured = columns.select(columns.measured)
    ended = measured.outcome[measured.outcome != OUTCOMES.index(Outcome.DROPPED)]
    counts = np.bincount(ended, minlength=len(OUTCOMES))
    sent, ok = int(measured.sent.sum()), int(measured.of_outcome(Outcome.OK).sum())
    dropped = int(measured.of_outcome(Outcome.DROPPED).sum())
    planned = sent + dropped if point.planned is None else point.planned
    if point.status is not PointStatus.COMPLETE:
        dropped = max(dropped, planned - sent)
    outcomes = {str(name): int(n) for name, n in zip(OUTCOMES, counts, strict=True) if n}
    return Requests(planned=planned, sent=sent, ok=ok, failed=sent - ok, dropped=dropped, outcomes=outcomes)


def list_failures(columns: Columns) -> list[Failure]:
    """How the measured requests that were sent failed, the commonest way first, each with its commonest detail.

    Unit: requests. Population: measured, sent, not `ok`; whole run. None failed: an empty list. Ties in order of name.
    Source: the definition.
    """
    measured = columns.select(columns.measured & columns.sent)
    failures = []
    for outcome in OUTCOMES[1:]:
        details = measured.detail[measured.of_outcome(outcome)].tolist()
        told = sorted(detail for detail in details if detail is not None)
        if details:
            failures.append(Failure(str(outcome), len(details), max(told, key=told.count) if told else None))
    return sorted(failures, key=lambda failure: (-failure.n, failure.outcome))
