"""When a request has failed for want of progress: each limit alone, by its definition, and the one that comes first."""

import pytest

from cadenza.load.deadlines import Progress, deadline_ns, name_timeout
from cadenza.record import Outcome
from cadenza.spec import Timeouts

S = 1_000_000_000
LIMITS = Timeouts(connect_s=1, first_token_s=2, stall_s=3, total_s=10)
SENT = 100 * S


def progress(last_s: float = 0.0, *, connecting: bool = False, event: bool = False, unread: bool = False) -> Progress:
    return Progress(SENT, SENT + round(last_s * S), connecting, event, unread)


@pytest.mark.parametrize(
    ("state", "after_s", "outcome"),
    [
        (progress(connecting=True), 1, Outcome.TIMEOUT_CONNECT),
        (progress(), 2, Outcome.TIMEOUT_FIRST_TOKEN),
        (progress(1.5), 2, Outcome.TIMEOUT_FIRST_TOKEN),  # headers are no token
        (progress(4, event=True), 7, Outcome.TIMEOUT_STALL),
        (progress(8, event=True), 10, Outcome.TIMEOUT_TOTAL),
        (progress(0.5, unread=True), 2, Outcome.TIMEOUT_FIRST_TOKEN),  # what is unread may hold no token
        (progress(7, event=True, unread=True), 10, Outcome.TIMEOUT_TOTAL),
    ],
)
def test_the_limit_that_comes_first(state: Progress, after_s: float, outcome: Outcome) -> None:
    at_ns = SENT + round(after_s * S)
    assert deadline_ns(state, LIMITS) == at_ns
    assert name_timeout(state, LIMITS, at_ns)[0] is outcome


def test_a_limit_above_the_total_is_the_total() -> None:
    patient = Timeouts(connect_s=50, first_token_s=60, stall_s=70, total_s=10)
    for state in (progress(connecting=True), progress(), progress(4, event=True), progress(4, unread=True)):
        assert deadline_ns(state, patient) == SENT + 10 * S
        assert name_timeout(state, patient, SENT + 10 * S)[0] is Outcome.TIMEOUT_TOTAL


def test_a_stall_counts_from_the_first_bytes_on() -> None:
    hasty = Timeouts(connect_s=1, first_token_s=5, stall_s=3, total_s=10)
    assert deadline_ns(progress(), hasty) == SENT + 5 * S
    assert deadline_ns(progress(0.5, unread=True), hasty) == SENT + 3 * S + S // 2
