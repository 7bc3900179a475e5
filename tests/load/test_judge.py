"""The outcome from how an exchange ended and what was read of its answer."""

import pytest

from cadenza.load.judge import End, judge
from cadenza.record import Outcome
from cadenza.wire.answer import AnswerReader
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import ResponseReader

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"out of memory"}}\n\n'


def answer(body: bytes, status: str = "200 OK", headers: str = "content-type: text/event-stream") -> AnswerReader:
    http = ResponseReader()
    http.feed(f"HTTP/1.1 {status}\r\n{headers}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    reader = AnswerReader(DIALECTS["chat"], http)
    reader.unread.append((5, http.take()))
    reader.parse()
    return reader


@pytest.mark.parametrize(
    ("body", "end", "outcome"),
    [
        (TOKEN + FINISH + DONE, "complete", Outcome.OK),
        (TOKEN + FINISH, "complete", Outcome.OK),
        (TOKEN, "complete", Outcome.TRUNCATED),
        (b"", "complete", Outcome.MALFORMED),
        (FINISH + DONE, "complete", Outcome.MALFORMED),
        (TOKEN + ERROR, "complete", Outcome.STREAM_ERROR),
        (TOKEN, "lost", Outcome.CONNECTION_LOST),
        (TOKEN + DONE, "lost", Outcome.OK),  # the stream had ended; only the framing is missing
        (TOKEN, "cancelled", Outcome.CANCELLED),
        (TOKEN, "malformed", Outcome.MALFORMED),
        (TOKEN, "timeout", Outcome.TIMEOUT_STALL),
    ],
)
def test_outcomes(body: bytes, end: End, outcome: Outcome) -> None:
    assert judge(answer(body), end, "why", Outcome.TIMEOUT_STALL, None)[0] is outcome


@pytest.mark.parametrize(
    ("status", "redirected"), [("299 Odd", False), ("300 Choices", True), ("399 Odd", True), ("400 Bad", False)]
)
def test_a_redirect_is_a_status_from_300_to_399_with_a_location(status: str, redirected: bool) -> None:
    found = answer(b"{}", status, "location: http://else\r\ncontent-type: application/json")
    outcome, detail = judge(found, "complete", "", Outcome.TIMEOUT_TOTAL, None)
    assert outcome is Outcome.HTTP_ERROR
    assert detail is not None
    assert ("redirects are not followed" in detail) is redirected


def test_a_second_attempt_is_said_with_a_failure_and_alone_with_a_success() -> None:
    assert judge(answer(TOKEN), "lost", "reset", Outcome.TIMEOUT_TOTAL, "sent twice")[1] == "reset; sent twice"
    assert judge(answer(TOKEN + FINISH + DONE), "complete", "", Outcome.TIMEOUT_TOTAL, "sent twice")[1] == "sent twice"


@pytest.mark.parametrize(("wait", "shown"), [("7", "7"), ("x" * 60, "x" * 39 + "…")])
def test_how_long_to_wait_follows_the_message_in_at_most_40_characters(wait: str, shown: str) -> None:
    refused = answer(b'{"error":"busy"}', "429 Many", f"retry-after: {wait}\r\ncontent-type: application/json")
    detail = f"HTTP 429: busy (Retry-After: {shown})"
    assert judge(refused, "complete", "", Outcome.TIMEOUT_TOTAL, None) == (Outcome.HTTP_ERROR, detail)
