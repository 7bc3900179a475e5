"""One request, from its dispatch to its record: HTTP framing, the answer's reader, deadlines, the outcome."""

from typing import NamedTuple

from cadenza.load.deadlines import Progress, deadline_ns, name_timeout, ns
from cadenza.load.judge import End, judge
from cadenza.record import Connection, Outcome, Record, Request, TokenSource, printable
from cadenza.spec import Timeouts
from cadenza.wire.answer import UNREAD_BYTES, AnswerReader
from cadenza.wire.dialect import Dialect, MalformedError
from cadenza.wire.http1 import ResponseReader


class Outgoing(NamedTuple):
    """A request ready to leave: its bytes were made before the clock started."""

    request: Request
    data: bytes
    target: int = 0


class Exchange:
    """The life of one request from its dispatch to its record. Stamps are the transport's."""

    __slots__ = (
        "_answer",
        "_end",
        "_last_read_ns",
        "_note",
        "_read_lag_ns",
        "_reason",
        "_timeout",
        "_timeouts",
        "_unknown_lags",
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
        self._answer = AnswerReader(dialect, self.reader)
        self._read_lag_ns = 0
        self._unknown_lags = 0
        self._timeouts = timeouts
        self._last_read_ns = sent_ns
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
            answer = self._answer
            answer.unread.append((stamp_ns, body))
            answer.unread_bytes += len(body)
            if answer.unread_bytes > UNREAD_BYTES:
                try:
                    answer.parse()
                except MalformedError as error:
                    broken = error
        if broken is not None:
            self.end("malformed", stamp_ns, str(broken))
        elif reader.complete:
            self.end("complete", stamp_ns)
        return self._end is not None

    def end(self, how: End, stamp_ns: int, reason: str = "") -> None:
        """End the exchange; only the first call has an effect."""
        if self._end is None:
            self._end, self.done_ns, self._reason = how, stamp_ns, reason

    def deadline_ns(self) -> int:
        """When it has failed if nothing more comes; exact once the events so far are read."""
        return deadline_ns(self._progress(), self._timeouts)

    def next_look_ns(self, now_ns: int) -> int:
        """When to call `check_deadline`: its deadline, or sooner, since a stream may begin and stall before that."""
        return min(self.deadline_ns(), now_ns + ns(self._timeouts.stall_s))

    def check_deadline(self, now_ns: int) -> None:
        """End the exchange if one of its limits has passed."""
        try:
            self._answer.parse()
        except MalformedError as error:
            self.end("malformed", now_ns, str(error))
            return
        if now_ns < self.deadline_ns():
            return
        if self._answer.has_done:  # the stream is over; only the framing is missing
            self.end("complete", self._last_read_ns, "the response did not end after [DONE]")
            return
        self._timeout, reason = name_timeout(self._progress(), self._timeouts, now_ns)
        self.end("timeout", now_ns, reason)

    def record(self, point: int, model: str, worker: int = 0) -> Record:
        """What happened, for good. Parses what is still unread: call it after the next request has left."""
        answer = self._answer
        try:
            answer.parse()
            if self._end == "complete":
                answer.finish(self._last_read_ns)
        except MalformedError as error:
            self._end, self._reason = "malformed", str(error)
        outcome, detail = judge(answer, self._end, self._reason, self._timeout, self._note)
        counted = answer.usage.output_tokens
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
            event_ns=answer.event_ns,
            event_tokens=answer.event_tokens(),
            done_ns=self.done_ns,
            prompt_tokens=answer.usage.prompt_tokens,
            output_tokens=len(answer.event_ns) if counted is None else counted,
            reasoning_tokens=answer.usage.reasoning_tokens,
            cached_tokens=answer.usage.cached_tokens,
            aimed_prompt_tokens=request.prompt_tokens,
            asked_output_tokens=request.output_tokens,
            token_source=TokenSource.EVENTS if counted is None else TokenSource.USAGE,
            finish_reason=printable(answer.finish_reason, 40) if answer.finish_reason else None,
            status=self.reader.status,
            detail=detail,
            connection=self.connection,
            reasoning_events=answer.reasoning_events,
            text_bytes=answer.text_bytes,
            first_text_bytes=answer.first_text_bytes,
            read_lag_ns=self._read_lag_ns if self.received_any and not self._unknown_lags else None,
            target=self.outgoing.target,
            worker=worker,
        )

    def _progress(self) -> Progress:
        answer = self._answer
        connecting = self.connection is Connection.NEW and self.connected_ns is None
        return Progress(self.sent_ns, self._last_read_ns, connecting, bool(answer.event_ns), bool(answer.unread))
