"""Records by hand: milliseconds in, so that a test reads like its definition."""

from cadenza.record import LoadLabel, Outcome, Phase, Point, PointStatus, Record, TokenSource

MS = 1_000_000


def rec(
    index: int,
    sent: float | None,
    events: list[float],
    *,
    done: float | None = None,
    intended: float | None = None,
    tokens: int | None = None,
    event_tokens: list[int] | None = None,
    outcome: Outcome = Outcome.OK,
    phase: Phase = Phase.MEASURE,
    detail: str | None = None,
) -> Record:
    """A record with its stamps in ms; `tokens` given means that the server counted them."""
    end = done if done is not None else (events[-1] if events else sent)
    return Record(
        point=0,
        index=index,
        phase=phase,
        model="m",
        outcome=outcome,
        intended_ns=round((intended if intended is not None else sent or 0) * MS),
        sent_ns=None if sent is None else round(sent * MS),
        event_ns=[round(ms * MS) for ms in events],
        event_tokens=event_tokens or [],
        done_ns=None if end is None else round(end * MS),
        output_tokens=len(events) if tokens is None else tokens,
        token_source=TokenSource.EVENTS if tokens is None else TokenSource.USAGE,
        detail=detail,
    )


def closed(slots: int = 1, planned: int | None = 3, status: PointStatus = PointStatus.COMPLETE) -> Point:
    """A closed-loop point that has been measured."""
    return Point(
        index=0, model="m", load=LoadLabel.CLOSED, concurrency=slots, planned=planned, status=status, start_ns=0
    )
