"""When a request has failed for want of progress: pure functions of its stamps and the timeouts of the spec."""

from typing import NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.record import Outcome
from cadenza.spec import Timeouts


class Progress(NamedTuple):
    """How far a request has come. Stamps in ns.

    is_connecting   its own connection is not open yet
    has_event       an event with tokens has been read; has_unread: bytes that may hold one have come
    """

    sent_ns: int
    last_read_ns: int
    is_connecting: bool
    has_event: bool
    has_unread: bool


def deadline_ns(progress: Progress, limits: Timeouts) -> int:
    """When it has failed if nothing more comes; exact once the events so far are read."""
    sent_ns = progress.sent_ns
    total_ns = sent_ns + ns(limits.total_s)
    if progress.is_connecting:
        return min(total_ns, sent_ns + ns(limits.connect_s))
    if not progress.has_event and not progress.has_unread:
        return min(total_ns, sent_ns + ns(limits.first_token_s))
    # Once a token has come its limit is past; unread bytes may or may not hold one.
    first_token_ns = total_ns if progress.has_event else sent_ns + ns(limits.first_token_s)
    return min(total_ns, progress.last_read_ns + ns(limits.stall_s), first_token_ns)


def name_timeout(progress: Progress, limits: Timeouts, now_ns: int) -> tuple[Outcome, str]:
    """Which limit has passed at `now_ns`, at or after the deadline, and a sentence."""
    if now_ns >= progress.sent_ns + ns(limits.total_s):
        return Outcome.TIMEOUT_TOTAL, f"not complete {limits.total_s:g} s after it was sent"
    if progress.is_connecting:
        return Outcome.TIMEOUT_CONNECT, f"no connection within {limits.connect_s:g} s"
    if not progress.has_event:
        return Outcome.TIMEOUT_FIRST_TOKEN, f"no token within {limits.first_token_s:g} s"
    return Outcome.TIMEOUT_STALL, f"nothing came for {limits.stall_s:g} s"


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * NS_PER_S)
