"""No request is lost: what was planned is sent or dropped, and what was sent has an outcome."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from cadenza.record import Outcome, Phase, Point, PointStatus, Record

_NOT_THE_SERVERS = (Outcome.OK, Outcome.DROPPED, Outcome.CANCELLED)


class Requests(msgspec.Struct, frozen=True):
    """Measured requests of a point. `outcomes` counts the sent ones by how they ended, commonest first."""

    planned: int
    sent: int
    ok: int
    failed: int
    dropped: int
    outcomes: dict[str, int]


class Failure(msgspec.Struct, frozen=True):
    """One way to fail: how often, and the commonest evidence."""

    outcome: str
    n: int
    detail: str | None


def count_requests(point: Point, records: Sequence[Record]) -> Requests:
    """**Requests**: planned, sent, ok, failed, dropped, of the measured phase.

    Dropped: in the plan, never sent. A run that was killed has no record of these, nor of what was in flight; both
    count as dropped there. Where only a duration bounds the plan, planned is what was sent and dropped.
    """
    mine = [record for record in records if record.phase is Phase.MEASURE]
    outcomes = Counter(record.outcome.value for record in mine if record.outcome is not Outcome.DROPPED)
    sent, dropped = sum(outcomes.values()), sum(record.outcome is Outcome.DROPPED for record in mine)
    planned = sent + dropped if point.planned is None else point.planned
    if point.status is not PointStatus.COMPLETE:
        dropped = max(dropped, planned - sent)
    ok = outcomes.get(Outcome.OK.value, 0)
    return Requests(
        planned=planned, sent=sent, ok=ok, failed=sent - ok, dropped=dropped, outcomes=dict(outcomes.most_common())
    )


def list_failures(records: Sequence[Record]) -> list[Failure]:
    """How measured requests failed, commonest first, each with its commonest `detail`; not those that we cancelled."""
    failed: dict[str, list[str | None]] = {}
    for record in records:
        if record.phase is Phase.MEASURE and record.outcome not in _NOT_THE_SERVERS:
            failed.setdefault(record.outcome.value, []).append(record.detail)
    found = [Failure(outcome, len(d), Counter(d).most_common(1)[0][0]) for outcome, d in failed.items()]
    return sorted(found, key=lambda failure: (-failure.n, failure.outcome))
