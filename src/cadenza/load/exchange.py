"""One request's exchange: bytes with their stamps, gathered as they come, read only when somebody must know.

On arrival a piece of the body costs HTTP framing and an append. The stream's events are parsed when the response
is over, when a deadline asks whether a token has come, or when a lot of unread bytes has piled up.
"""

from typing import Literal, NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.record import Connection, Outcome, Record, Request, TokenSource, printable
from cadenza.spec import Timeouts
from cadenza.wire.dialect import Delta, Dialect, MalformedError, Usage
from cadenza.wire.errors import read_error
from cadenza.wire.http1 import ResponseReader
from cadenza.wire.repeat import RepeatedToken
from cadenza.wire.sse import Event, SseParser

# Unread bytes that make an exchange parse before its end: bounds memory, seldom reached by one answer.
_UNREAD_BYTES = 256 << 10
# An error body is evidence for one line; more of it is not kept.
_ERROR_BODY_BYTES = 64 << 10

End = Literal["complete", "lost", "malformed", "cancelled", "timeout"]


class Outgoing(NamedTuple):
    """A request ready to leave: its bytes were made before the clock started."""

    request: Request
    data: bytes
    target: int = 0


class Exchange:
    """The life of one request from its dispatch to its record. Stamps are the transport's."""

    __slots__ = (
        "_dialect",
        "_end",
        "_error",
        "_event_ns",
        "_finish_reason",
        "_first_text_bytes",
        "_last_read_ns",
        "_note",
        "_read_lag_ns",
        "_reason",
        "_reasoning_events",
        "_repeated",
        "_running_tok",
        "_said_done",
        "_sse",
        "_text_bytes",
        "_timeout",
        "_timeouts",
        "_unknown_lags",
        "_unread",
        "_unread_bytes",
        "_usage",
        "_whole",
        "connected_ns",
        "connection",
        "done_ns",
        "headers_ns",
        "intended_ns",
        "outgoing",
        "reader",
        "received_any",
        "sent_ns",
    )

    def __init__(
        self, outgoing: Outgoing, dialect: Dialect, timeouts: Timeouts, intended_ns: int, sent_ns: int
    ) -> None:
        self.outgoing = outgoing
        self.intended_ns = intended_ns
        self.sent_ns = sent_ns
        self.connection: Connection | None = None
        self.connected_ns: int | None = None
        self.headers_ns: int | None = None
        self.done_ns: int | None = None
        self.reader = ResponseReader()
        self.received_any = False
        self._read_lag_ns = 0
        self._unknown_lags = 0
        self._dialect = dialect
        self._timeouts = timeouts
        self._sse = SseParser()
        self._repeated = RepeatedToken()
        self._unread: list[tuple[int, bytes]] = []
        self._unread_bytes = 0
        self._whole = bytearray()  # a body that is not a stream: an error, or an answer given whole
        self._last_read_ns = sent_ns
        self._event_ns: list[int] = []
        self._running_tok: list[int] = []
        self._reasoning_events = 0
        self._text_bytes = 0
        self._first_text_bytes = 0
        self._usage = Usage()
        self._finish_reason: str | None = None
        self._said_done = False
        self._error: str | None = None
        self._end: End | None = None
        self._reason = ""
        self._timeout = Outcome.TIMEOUT_TOTAL
        self._note: str | None = None

    @property
    def finished(self) -> bool:
        return self._end is not None

    def opened(self, stamp_ns: int) -> None:
        """The connection it had to open is open."""
        self.connected_ns = stamp_ns
        self._last_read_ns = stamp_ns

    def send_again(self, note: str) -> None:
        """It goes out on a new connection, since the reused one turned out to be dead; its stamps stay."""
        self._note = note

    def receive(self, data: bytes, stamp_ns: int, lag_ns: int | None = None) -> bool:
        """Bytes of the response, read `lag_ns` after they came; whether it has ended with them. Broken ones end it."""
        self.received_any = True
        if self.connected_ns is not None and stamp_ns < self.connected_ns:
            self.connected_ns = stamp_ns  # it was open already, and we were late to look
        if lag_ns is None:
            self._unknown_lags += 1
        elif lag_ns > self._read_lag_ns:
            self._read_lag_ns = lag_ns
        reader = self.reader
        broken: MalformedError | None = None
        try:
            reader.feed(data)
        except MalformedError as error:
            broken = error  # what came before the fault, in the same read even, still counts
        if self.headers_ns is None and reader.headers_complete:
            self.headers_ns = stamp_ns
        body = reader.take()
        if body:
            self._last_read_ns = stamp_ns
            self._unread.append((stamp_ns, body))
            self._unread_bytes += len(body)
            if self._unread_bytes > _UNREAD_BYTES:
                try:
                    self._read_events()
                except MalformedError as error:
                    broken = error
        if broken is not None:
            self.end("malformed", stamp_ns, str(broken))
        elif reader.complete:
            self.end("complete", stamp_ns)
        return self._end is not None

    def end(self, how: End, stamp_ns: int, reason: str = "") -> None:
        """The exchange is over; the first word about it counts."""
        if self._end is None:
            self._end, self.done_ns, self._reason = how, stamp_ns, reason

    def deadline_ns(self) -> int:
        """When it has failed if nothing more comes; exact once the events so far are read."""
        sent, limits = self.sent_ns, self._timeouts
        total_ns = sent + _ns(limits.total_s)
        if self.connection is Connection.NEW and self.connected_ns is None:
            return min(total_ns, sent + _ns(limits.connect_s))
        if not self._event_ns and not self._unread:
            return min(total_ns, sent + _ns(limits.first_token_s))
        return min(total_ns, self._last_read_ns + _ns(limits.stall_s), self._first_token_limit_ns())

    def next_look_ns(self, now_ns: int) -> int:
        """When to call `check_deadline`: its deadline, or sooner, since a stream may begin and stall before that."""
        return min(self.deadline_ns(), now_ns + _ns(self._timeouts.stall_s))

    def check_deadline(self, now_ns: int) -> None:
        """End the exchange if one of its limits has passed."""
        try:
            self._read_events()
        except MalformedError as error:
            self.end("malformed", now_ns, str(error))
            return
        if now_ns < self.deadline_ns():
            return
        if self._said_done:  # the stream is over; only the framing is missing
            self.end("complete", self._last_read_ns, "the response did not end after [DONE]")
            return
        limits = self._timeouts
        if now_ns >= self.sent_ns + _ns(limits.total_s):
            self._timeout, told = Outcome.TIMEOUT_TOTAL, f"not complete {limits.total_s:g} s after it was sent"
        elif self.connection is Connection.NEW and self.connected_ns is None:
            self._timeout, told = Outcome.TIMEOUT_CONNECT, f"no connection within {limits.connect_s:g} s"
        elif not self._event_ns:
            self._timeout, told = Outcome.TIMEOUT_FIRST_TOKEN, f"no token within {limits.first_token_s:g} s"
        else:
            self._timeout, told = Outcome.TIMEOUT_STALL, f"nothing came for {limits.stall_s:g} s"
        self.end("timeout", now_ns, told)

    def record(self, point: int, model: str, worker: int = 0) -> Record:
        """What happened, for good. Parses what is still unread: call it after the next request has left."""
        try:
            self._read_events()
            if self._end == "complete":
                self._read_end()
        except MalformedError as error:
            self._end, self._reason = "malformed", str(error)
        outcome, detail = self._judge()
        events = len(self._event_ns)
        told = self._usage.output_tokens
        request = self.outgoing.request
        return Record(
            point=point,
            index=request.index,
            phase=request.phase,
            model=model,
            outcome=outcome,
            intended_ns=self.intended_ns,
            sent_ns=self.sent_ns,
            connected_ns=self.connected_ns,
            headers_ns=self.headers_ns,
            event_ns=self._event_ns,
            event_tokens=_increments(self._running_tok) if events and len(self._running_tok) == events else [],
            done_ns=self.done_ns,
            prompt_tokens=self._usage.prompt_tokens,
            output_tokens=events if told is None else told,
            reasoning_tokens=self._usage.reasoning_tokens,
            cached_tokens=self._usage.cached_tokens,
            aimed_prompt_tokens=request.prompt_tokens,
            asked_output_tokens=request.output_tokens,
            token_source=TokenSource.EVENTS if told is None else TokenSource.USAGE,
            finish_reason=printable(self._finish_reason, 40) if self._finish_reason else None,
            status=self.reader.status,
            detail=self._explain(outcome, detail),
            connection=self.connection,
            reasoning_events=self._reasoning_events,
            text_bytes=self._text_bytes,
            first_text_bytes=self._first_text_bytes,
            read_lag_ns=self._read_lag_ns if self.received_any and not self._unknown_lags else None,
            target=self.outgoing.target,
            worker=worker,
        )

    def _first_token_limit_ns(self) -> int:
        """Once a token has come this limit is past caring about; unread bytes may or may not hold one."""
        return self.sent_ns + _ns(self._timeouts.total_s if self._event_ns else self._timeouts.first_token_s)

    def _judge(self) -> tuple[Outcome, str | None]:
        status = self.reader.status
        if status is not None and status != 200:
            return Outcome.HTTP_ERROR, f"HTTP {status}: {self._error_line()}"
        if self._error is not None:
            return Outcome.STREAM_ERROR, self._error
        if self._end == "timeout":
            return self._timeout, self._reason
        if self._end == "malformed":
            return Outcome.MALFORMED, self._reason
        if self._end == "cancelled":
            return Outcome.CANCELLED, self._reason
        if self._end == "lost" and not self._said_done:
            return Outcome.CONNECTION_LOST, self._reason
        if not self._said_done and self._finish_reason is None:
            if not self._event_ns:
                return Outcome.MALFORMED, "the answer ended without a single token"
            return Outcome.TRUNCATED, "the stream ended without a finish reason and without [DONE]"
        if not self._event_ns and not self._usage.output_tokens:
            return Outcome.MALFORMED, "the answer ended without a single token"
        return Outcome.OK, self._note or self._reason or self._remark()

    def _explain(self, outcome: Outcome, detail: str | None) -> str | None:
        """`detail` as a record keeps it; that it was sent twice belongs to how it failed, too."""
        told = f"{detail}; {self._note}" if detail and self._note and outcome is not Outcome.OK else detail
        return printable(told) if told else None

    def _remark(self) -> str | None:
        if not self._event_ns:
            return "no event carried text, although the server counted tokens"
        if not self._said_done and not self._is_stream():
            return "answered whole, not as a stream"
        return None if self._said_done else "no [DONE]"

    def _error_line(self) -> str:
        location = self.reader.headers.get("location")
        if location and self.reader.status is not None and 300 <= self.reader.status < 400:
            return f"redirected to {location}; redirects are not followed"
        told = read_error(bytes(self._whole), self.reader.headers.get("content-type", ""))
        wait = self.reader.headers.get("retry-after")
        return f"{told} (Retry-After: {printable(wait, 40)})" if wait else told

    def _is_stream(self) -> bool:
        kind = self.reader.headers.get("content-type", "").lower()
        return "json" not in kind and "html" not in kind

    def _read_events(self) -> None:
        """Parse what has come since the last time."""
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        stream = self.reader.status == 200 and self._is_stream()
        # Looked up and added up outside the branch that runs for each token.
        sse, repeated, event_ns = self._sse, self._repeated, self._event_ns
        before, text_bytes = len(event_ns), 0
        for stamp_ns, body in unread:
            if stream:
                if sse.at_boundary and (size := repeated.text_bytes(body)):
                    event_ns.append(stamp_ns)
                    text_bytes += size
                else:
                    self._count_matched(len(event_ns) - before, text_bytes)
                    self._read_body(body, stamp_ns)
                    before, text_bytes = len(event_ns), 0
            elif self.reader.status == 200 or len(self._whole) < _ERROR_BODY_BYTES:
                self._whole += body
        self._count_matched(len(event_ns) - before, text_bytes)

    def _count_matched(self, events: int, text_bytes: int) -> None:
        """Events that matched the last one learnt, with the size of their text."""
        self._text_bytes += text_bytes
        if self._repeated.is_reasoning:
            self._reasoning_events += events

    def _read_body(self, body: bytes, stamp_ns: int) -> None:
        alone = self._sse.at_boundary
        events = self._sse.feed(body)
        for event in events:
            said = self._read_event(event, stamp_ns)
            if said is not None and said.is_text_only and alone and self._sse.at_boundary and len(events) == 1:
                self._repeated.learn(body, said)

    def _read_end(self) -> None:
        """What only the end of a response makes whole: an unterminated last event, an answer that is no stream."""
        if self.reader.status != 200:
            return
        if self._is_stream():
            for event in self._sse.close():
                self._read_event(event, self._last_read_ns)
            return
        if "html" in self.reader.headers.get("content-type", "").lower():
            raise MalformedError(read_error(bytes(self._whole), "text/html"))
        self._take(self._dialect.read(bytes(self._whole)), self._last_read_ns)

    def _read_event(self, event: Event, stamp_ns: int) -> Delta | None:
        if event.data.strip() == b"[DONE]":
            self._said_done = True
        elif event.event == b"error":
            self._error = read_error(event.data)
        else:
            return self._take(self._dialect.read(event.data), stamp_ns)
        return None

    def _take(self, delta: Delta, stamp_ns: int) -> Delta:
        if delta.error is not None:
            self._error = self._error or delta.error
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.carries_tokens:
            if not self._event_ns:
                self._first_text_bytes = delta.text_bytes
            self._event_ns.append(stamp_ns)
            self._text_bytes += delta.text_bytes
            self._reasoning_events += delta.is_reasoning
            if delta.usage is not None and delta.usage.output_tokens is not None:
                self._running_tok.append(delta.usage.output_tokens)
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
        return delta


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _increments(running: list[int]) -> list[int]:
    return [now - before for before, now in zip([0, *running[:-1]], running, strict=True)]
