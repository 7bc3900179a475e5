"""What came of a request: its outcome, and a line of evidence, from how it ended and what was read."""

from typing import Literal

from cadenza.record import Outcome, printable
from cadenza.wire.answer import AnswerReader

End = Literal["complete", "lost", "malformed", "cancelled", "timeout"]

_NO_TOKEN = "the answer ended without a single token"


def judge(
    answer: AnswerReader, end: End | None, reason: str, timeout: Outcome, note: str | None
) -> tuple[Outcome, str | None]:
    """The outcome, and a line as the record keeps it; None: there is nothing to say.

    end, reason   how the exchange ended, and why; timeout: the outcome where it timed out
    note          that the request was sent a second time, which belongs to how it failed, too
    """
    outcome, detail = _judge(answer, end, reason, timeout, note)
    message = f"{detail}; {note}" if detail and note and outcome is not Outcome.OK else detail
    return outcome, printable(message) if message else None


def _judge(
    answer: AnswerReader, end: End | None, reason: str, timeout: Outcome, note: str | None
) -> tuple[Outcome, str | None]:
    status = answer.http.status
    if status is not None and status != 200:
        return Outcome.HTTP_ERROR, f"HTTP {status}: {_error_line(answer, status)}"
    if answer.error is not None:
        return Outcome.STREAM_ERROR, answer.error
    if end == "timeout":
        return timeout, reason
    if end == "malformed":
        return Outcome.MALFORMED, reason
    if end == "cancelled":
        return Outcome.CANCELLED, reason
    if end == "lost" and not answer.has_done:
        return Outcome.CONNECTION_LOST, reason
    if not answer.has_done and answer.finish_reason is None:
        if not answer.event_ns:
            return Outcome.MALFORMED, _NO_TOKEN
        return Outcome.TRUNCATED, "the stream ended without a finish reason and without [DONE]"
    if not answer.event_ns and not answer.usage.output_tokens:
        return Outcome.MALFORMED, _NO_TOKEN
    return Outcome.OK, note or reason or _remark(answer)


def _error_line(answer: AnswerReader, status: int) -> str:
    headers = answer.http.headers
    location, wait = headers.get("location"), headers.get("retry-after")
    if location and 300 <= status < 400:
        return f"redirected to {location}; redirects are not followed"
    message = answer.read_error()
    return f"{message} (Retry-After: {printable(wait, 40)})" if wait else message


def _remark(answer: AnswerReader) -> str | None:
    if not answer.event_ns:
        return "no event carried text, although the server counted tokens"
    if not answer.has_done and not answer.is_stream:
        return "answered whole, not as a stream"
    return None if answer.has_done else "no [DONE]"
