"""Server-sent events out of bytes, as the WHATWG HTML standard (9.2.6, "Interpreting an event stream") has it.

Works on bytes: lines end at LF, CRLF or CR and nowhere else, and UTF-8 may be cut anywhere between two reads.
Two stated deviations, both for servers in use:

- A field named `error` (older llama.cpp servers wrote `error: {json}`) is delivered as data of an event named `error`.
- `close()` delivers a last event that no blank line ended; the standard discards it, and some servers omit that line.
"""

from typing import NamedTuple

from cadenza.wire.dialect import MalformedError

BOM = b"\xef\xbb\xbf"
_LF, _CR = b"\n\r"


class Event(NamedTuple):
    """One dispatched event. `event` is its type, b"" where that is the default, `message`; `id` the last one given."""

    data: bytes
    event: bytes
    id: bytes


_new_event = tuple.__new__  # half the time of Event(…)


class SseParser:
    """One parser per response. An event, or a line of it, larger than `max_event_bytes` raises `MalformedError`.

    After an error the parser is spent. `at_boundary`: nothing is pending, the next byte begins an event.
    """

    def __init__(self, max_event_bytes: int = 16 << 20) -> None:
        self._limit = max_event_bytes
        self.at_boundary = False
        self._at_start = True  # a byte-order mark may still come
        self._skip_lf = False  # the last line ended with the CR that ended the last read
        self._tail: list[bytes] = []  # pieces of the unfinished line
        self._tail_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = b""
        self._id = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order."""
        # Nearly every read of a token stream is exactly this: one event, one data line. Bytes are compared as numbers,
        # because that is several times faster than `b"\r" in data`, and this is the hottest line of the client.
        last = len(data) - 1
        if (
            self.at_boundary
            and data.find(b"\n") == last - 1
            and data[last] == _LF
            and _CR not in data
            and data.startswith(b"data: ")
            and last < self._limit
        ):
            return [_new_event(Event, (data[6:-2], b"", self._id))]
        return self._feed(data)

    def close(self) -> list[Event]:
        """The response has ended in good order: the event whose last line or blank line is missing, if there is one."""
        events: list[Event] = []
        line = b"".join(self._tail)
        self._tail, self._tail_bytes = [], 0
        if line:
            self._read_line(line)
        self._dispatch(events)
        return events

    def _feed(self, data: bytes) -> list[Event]:
        if self._at_start:
            data = b"".join(self._tail) + data
            self._tail, self._tail_bytes = [], 0
            if len(data) < len(BOM) and BOM.startswith(data):
                self._keep_tail(data)
                return []
            self._at_start = False
            data = data.removeprefix(BOM)
        if not data:
            return []
        if self._skip_lf:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        events: list[Event] = []
        if lines:
            if self._tail:
                self._tail.append(lines[0])
                lines[0] = b"".join(self._tail)
                self._tail, self._tail_bytes = [], 0
            for line in lines:
                if line:
                    self._read_line(line)
                else:
                    self._dispatch(events)
        if rest:
            self._keep_tail(rest)
        self.at_boundary = not (self._tail or self._data or self._event or self._skip_lf)
        return events

    def _keep_tail(self, piece: bytes) -> None:
        self._tail.append(piece)
        self._tail_bytes += len(piece)
        if self._tail_bytes > self._limit:
            raise MalformedError(f"a stream line of more than {self._limit} bytes")

    def _read_line(self, line: bytes) -> None:
        if len(line) > self._limit:
            raise MalformedError(f"a stream line of more than {self._limit} bytes")
        if line.startswith(b"data: "):
            self._append(line[6:])
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._append(value)
        elif name == b"event":
            self._event = value
        elif name == b"id":
            if b"\0" not in value:
                self._id = value
        elif name == b"error":
            self._event = b"error"
            self._append(value)
        # retry, comments (an empty name) and fields of other names: nothing to do

    def _append(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1
        if self._data_bytes > self._limit:
            raise MalformedError(f"a stream event of more than {self._limit} bytes")

    def _dispatch(self, events: list[Event]) -> None:
        if self._data:
            kind = b"" if self._event == b"message" else self._event
            events.append(Event(b"\n".join(self._data), kind, self._id))
            self._data, self._data_bytes = [], 0
        self._event = b""
