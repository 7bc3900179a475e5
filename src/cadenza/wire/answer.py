"""The body of one response: bytes with their stamps, gathered as they come, read when somebody must know.

A piece costs an append. Events are parsed when the response is over, when a deadline asks whether a token has come, or
when many unread bytes have gathered.
"""

from cadenza.wire.dialect import Delta, Dialect, MalformedError, Usage
from cadenza.wire.errors import read_error
from cadenza.wire.http1 import ResponseReader
from cadenza.wire.repeat import RepeatedToken
from cadenza.wire.sse import Event, SseParser

# Unread bytes that are parsed before the end: bounds memory, seldom reached by one answer.
UNREAD_BYTES = 256 << 10
# An error body is evidence for one line; more of it is not kept.
_ERROR_BODY_BYTES = 64 << 10


class AnswerReader:
    """Events, token counts and the end of one response, from the pieces of its body. No I/O.

    http            the response's framing: its status and headers
    unread          (stamp in ns, bytes) of pieces that are not parsed yet; unread_bytes: their size
    event_ns        stamps of the events that carry tokens; running_tok: usage that came with them
    reasoning_events, text_bytes, first_text_bytes   of these events; bytes of UTF-8
    usage, finish_reason, error   as the server gave them; has_done: [DONE] came
    """

    __slots__ = (
        "_dialect",
        "_repeated",
        "_sse",
        "_whole",
        "error",
        "event_ns",
        "finish_reason",
        "first_text_bytes",
        "has_done",
        "http",
        "reasoning_events",
        "running_tok",
        "text_bytes",
        "unread",
        "unread_bytes",
        "usage",
    )

    def __init__(self, dialect: Dialect, http: ResponseReader) -> None:
        self.http = http
        self.unread: list[tuple[int, bytes]] = []
        self.unread_bytes = 0
        self.event_ns: list[int] = []
        self.running_tok: list[int] = []
        self.reasoning_events = 0
        self.text_bytes = 0
        self.first_text_bytes = 0
        self.usage = Usage()
        self.finish_reason: str | None = None
        self.has_done = False
        self.error: str | None = None
        self._dialect = dialect
        self._sse = SseParser()
        self._repeated = RepeatedToken()
        self._whole = bytearray()  # a body that is not a stream: an error, or an answer given whole

    @property
    def is_stream(self) -> bool:
        """Whether its content type is that of a stream of events."""
        kind = self.http.headers.get("content-type", "").lower()
        return "json" not in kind and "html" not in kind

    def parse(self) -> None:
        """Parse what has come since the last time. MalformedError: it breaks the protocol."""
        unread, self.unread, self.unread_bytes = self.unread, [], 0
        stream = self.http.status == 200 and self.is_stream
        # Looked up and added up outside the branch that runs for each token.
        sse, repeated, event_ns = self._sse, self._repeated, self.event_ns
        before, text_bytes = len(event_ns), 0
        for stamp_ns, body in unread:
            if stream:
                if sse.at_boundary and (size := repeated.text_bytes(body)):
                    event_ns.append(stamp_ns)
                    text_bytes += size
                else:
                    self._count_matched(len(event_ns) - before, text_bytes)
                    self._parse_piece(body, stamp_ns)
                    before, text_bytes = len(event_ns), 0
            elif self.http.status == 200 or len(self._whole) < _ERROR_BODY_BYTES:
                self._whole += body
        self._count_matched(len(event_ns) - before, text_bytes)

    def finish(self, stamp_ns: int) -> None:
        """What only the end of a response makes whole: an unterminated last event, an answer that is no stream."""
        if self.http.status != 200:
            return
        if self.is_stream:
            for event in self._sse.close():
                self._read_event(event, stamp_ns)
            return
        if "html" in self.http.headers.get("content-type", "").lower():
            raise MalformedError(read_error(bytes(self._whole), "text/html"))
        self._take(self._dialect.read(bytes(self._whole)), stamp_ns)

    def read_error(self) -> str:
        """The server's own words in a body that is an error."""
        return read_error(bytes(self._whole), self.http.headers.get("content-type", ""))

    def event_tokens(self) -> list[int]:
        """Tokens of each event, where usage ran along with all of them; else []."""
        running = self.running_tok
        if not self.event_ns or len(running) != len(self.event_ns):
            return []
        return [now - before for before, now in zip([0, *running[:-1]], running, strict=True)]

    def _count_matched(self, events: int, text_bytes: int) -> None:
        """Events that matched the last one learnt, with the size of their text."""
        self.text_bytes += text_bytes
        if self._repeated.is_reasoning:
            self.reasoning_events += events

    def _parse_piece(self, body: bytes, stamp_ns: int) -> None:
        alone = self._sse.at_boundary
        events = self._sse.feed(body)
        for event in events:
            delta = self._read_event(event, stamp_ns)
            if delta is not None and delta.is_text_only and alone and self._sse.at_boundary and len(events) == 1:
                self._repeated.learn(body, delta)

    def _read_event(self, event: Event, stamp_ns: int) -> Delta | None:
        if event.data.strip() == b"[DONE]":
            self.has_done = True
        elif event.event == b"error":
            self.error = read_error(event.data)
        else:
            return self._take(self._dialect.read(event.data), stamp_ns)
        return None

    def _take(self, delta: Delta, stamp_ns: int) -> Delta:
        if delta.error is not None:
            self.error = self.error or delta.error
        if delta.usage is not None:
            self.usage = delta.usage
        if delta.carries_tokens:
            if not self.event_ns:
                self.first_text_bytes = delta.text_bytes
            self.event_ns.append(stamp_ns)
            self.text_bytes += delta.text_bytes
            self.reasoning_events += delta.is_reasoning
            if delta.usage is not None and delta.usage.output_tokens is not None:
                self.running_tok.append(delta.usage.output_tokens)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
        return delta
