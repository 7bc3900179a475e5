"""What `fault_server.FaultServer` can do: behaviours, each of which turns a request into steps.

A step is bytes to send, a pause, or how the connection ends; without an ending it is kept. `after` counts the events
with tokens that go out before the fault.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

PROMPT_TOKENS = 7
DEFAULT_WORDS = 4
END_OF_CHUNKS = b"0\r\n\r\n"
SHORT_S = 0.02


class Received(NamedTuple):
    """One request; `connection`, `nth` on that connection and `number` among those for completions are 0-based."""

    connection: int
    nth: int
    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON body."""
        fields: dict[str, Any] = json.loads(self.body or b"{}")
        return fields

    @property
    def is_completion(self) -> bool:
        return self.method == "POST" and self.path.endswith(("/v1/chat/completions", "/v1/completions"))

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")


class Pause(NamedTuple):
    """Nothing happens for so long."""

    seconds: float


class Ending(Enum):
    """How a connection ends: in good order (FIN), or with a reset (RST)."""

    CLOSE = "close"
    RESET = "reset"


CLOSE, RESET = Ending.CLOSE, Ending.RESET
Step = bytes | Pause | Ending
Behaviour = Callable[[Received], Iterable[Step]]


class Banner(NamedTuple):
    """No HTTP at all: these bytes upon connecting, and the end."""

    data: bytes


NO_HTTP = Banner(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")


class Answer(NamedTuple):
    """What a stream says; by default as many words as the request asks for, like a vLLM."""

    words: int | None = None
    per_event: int = 1
    usage: Literal["event", "last choice", "absent"] = "event"
    finish: bool = True
    done: bool = True

    def events(self, received: Received) -> list[bytes]:
        """The SSE events, blank lines included; a chat begins with one that has a role and no token."""
        words = self.length(received)
        choices = [_choice(received, "", None, role=True)] if received.is_chat else []
        for first in range(0, words, self.per_event):
            last = min(first + self.per_event, words)
            finish = "length" if self.finish and last == words else None
            choices.append(_choice(received, "".join(f" w{n}" for n in range(first, last)), finish))
        if self.usage == "last choice":
            choices[-1]["usage"] = usage_fields(words)
        events = [event(_envelope(received, [choice])) for choice in choices]
        asked = (received.fields.get("stream_options") or {}).get("include_usage")
        if self.usage == "event" and asked:
            events.append(event(_envelope(received, []) | {"usage": usage_fields(words)}))
        return [*events, b"data: [DONE]\n\n"] if self.done else events

    def whole(self, received: Received) -> bytes:
        """The same as one JSON object."""
        words = self.length(received)
        text = "".join(f" w{n}" for n in range(words))
        said = {"message": {"role": "assistant", "content": text}} if received.is_chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "length"}
        return json.dumps(_envelope(received, [choice], "") | {"usage": usage_fields(words)}).encode()

    def length(self, received: Received) -> int:
        asked = received.fields.get("max_completion_tokens") or received.fields.get("max_tokens")
        return self.words or asked or DEFAULT_WORDS


PLAIN = Answer()


def usage_fields(words: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": words, "total_tokens": PROMPT_TOKENS + words}


def event(fields: Mapping[str, Any]) -> bytes:
    """One SSE event."""
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(*lines: str, status: int = 200, version: str = "1.1") -> bytes:
    """Status line and header block."""
    first = f"HTTP/{version} {status} {HTTPStatus(status).phrase}"
    return "\r\n".join([first, *lines, "", ""]).encode()


STREAM_TYPE = "content-type: text/event-stream; charset=utf-8"
STREAM_HEAD = head(STREAM_TYPE, "transfer-encoding: chunked")


def _choice(received: Received, text: str, finish: str | None, *, role: bool = False) -> dict[str, Any]:
    delta = ({"role": "assistant"} if role else {}) | {"content": text}
    said = {"delta": delta} if received.is_chat else {"text": text}
    return {"index": 0, **said, "finish_reason": finish}


def _envelope(received: Received, choices: list[dict[str, Any]], kind: str = ".chunk") -> dict[str, Any]:
    name = f"chat.completion{kind}" if received.is_chat else "text_completion"
    return {"id": f"r-{received.number}", "object": name, "model": received.fields.get("model"), "choices": choices}


# Behaviours that answer well, in ways that differ.


def stream(answer: Answer = PLAIN) -> Behaviour:
    """A whole answer in chunks, one an event; as one JSON object where no stream is asked for."""

    def steps(received: Received) -> Iterator[Step]:
        if not received.fields.get("stream"):
            yield from whole_answer(answer)(received)
            return
        yield STREAM_HEAD
        for data in answer.events(received):
            yield chunk(data)
        yield END_OF_CHUNKS

    return steps


OK = stream()


def paced(gap_s: float, answer: Answer = PLAIN) -> Behaviour:
    """The same stream at a cadence: a pause before the headers and before every event that follows."""

    def steps(received: Received) -> Iterator[Step]:
        for step in stream(answer)(received):
            yield Pause(gap_s)
            yield step

    return steps


def whole_answer(answer: Answer = PLAIN) -> Behaviour:
    """One JSON object, also where a stream is asked for."""
    return lambda received: http_error(200, answer.whole(received))(received)


def http_1_0(answer: Answer = PLAIN) -> Behaviour:
    """A stream that HTTP/1.0 delimits by closing."""
    opening = head(STREAM_TYPE, version="1.0")
    return lambda received: [opening, *answer.events(received), CLOSE]


def continue_first(behaviour: Behaviour = OK) -> Behaviour:
    """An interim 100 before the answer."""
    return lambda received: [b"HTTP/1.1 100 Continue\r\n\r\n", *behaviour(received)]


def every(k: int, fault: Behaviour, otherwise: Behaviour = OK) -> Behaviour:
    """`fault` for every k-th request for completions, `otherwise` for the rest."""
    return lambda received: (fault if (received.number + 1) % k == 0 else otherwise)(received)


# Refusals.


def http_error(
    status: int, body: bytes, headers: Iterable[str] = (), content_type: str = "application/json"
) -> Behaviour:
    """One response with a Content-Length."""
    lines = (f"content-type: {content_type}", f"content-length: {len(body)}", *headers)
    return lambda received: [head(*lines, status=status) + body]


def refusal(status: int, message: str, kind: str, param: str | None = None, headers: Iterable[str] = ()) -> Behaviour:
    """An error object as vLLM words it."""
    fields = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    return http_error(status, json.dumps(fields).encode(), headers)


UNAUTHORIZED = http_error(401, b'{"error":"Unauthorized"}')
RATE_LIMITED = refusal(429, "Rate limit reached", "rate_limit_error", headers=["retry-after: 7"])
OVERLOADED = refusal(503, "The server is overloaded", "ServiceUnavailableError")
TOO_LONG = refusal(
    400,
    "This model's maximum context length is 2048 tokens. However, you requested 4096 tokens.",
    "BadRequestError",
    "input_tokens",
)
SERVER_ERROR = refusal(500, "EngineCore encountered an issue", "InternalServerError")
HTML_PAGE = http_error(502, b"<html><head><title>502 Bad Gateway</title></head></html>", content_type="text/html")
REDIRECT = http_error(302, b"", ["location: https://elsewhere.example/v1/"], "text/html")


def only_models(*aliases: str) -> Behaviour:
    """A 404 as vLLM gives it for every model name but these."""

    def steps(received: Received) -> Iterable[Step]:
        name = received.fields.get("model")
        missing = refusal(404, f"The model `{name}` does not exist.", "NotFoundError", "model")
        return (OK if name in aliases else missing)(received)

    return steps


def refuses(field: str) -> Behaviour:
    """A 400 that names `field` where the body has it."""
    refused = refusal(400, f"Unrecognized request argument supplied: {field}", "invalid_request_error", field)
    return lambda received: (refused if field in received.fields else OK)(received)


# Broken connections and broken time.


def reset(where: Literal["before headers", "in headers", "mid-stream"], after: int = 2) -> Behaviour:
    """RST; the pause lets what was sent be read first."""
    if where == "before headers":
        return lambda received: [RESET]
    if where == "in headers":
        return lambda received: [STREAM_HEAD[:40], Pause(SHORT_S), RESET]
    return _mid_stream(after, lambda received, rest: [Pause(SHORT_S), RESET])


def hang_up(received: Received) -> Iterable[Step]:
    """FIN instead of an answer."""
    return [CLOSE]


def silence(seconds: float) -> Behaviour:
    """Not a byte for so long, then the answer."""
    return lambda received: [Pause(seconds), *OK(received)]


def close_mid_chunk(after: int = 2) -> Behaviour:
    """FIN in the middle of a chunk's data."""
    return _mid_stream(after, lambda received, rest: [chunk(rest[0])[:20], CLOSE])


def close_after_response(answer: Answer = PLAIN) -> Behaviour:
    """FIN right after a whole answer that promised to keep the connection."""
    return lambda received: [*stream(answer)(received), CLOSE]


def close_on_second(answer: Answer = PLAIN) -> Behaviour:
    """A connection that is kept, and closed without a word when its second request arrives."""
    return lambda received: [CLOSE] if received.nth else stream(answer)(received)


def stall(seconds: float, after: int = 0) -> Behaviour:
    """Headers, `after` tokens, nothing for so long, then the rest."""
    return _mid_stream(after, lambda received, rest: [Pause(seconds), *_chunks(rest)])


def slow_headers(seconds: float) -> Behaviour:
    """The header block in three pieces, half of `seconds` between them."""

    def steps(received: Received) -> Iterator[Step]:
        yield STREAM_HEAD[:20]
        yield Pause(seconds / 2)
        yield STREAM_HEAD[20:50]
        yield Pause(seconds / 2)
        yield STREAM_HEAD[50:]
        yield from _chunks(PLAIN.events(received))

    return steps


# Bytes that are not the protocol.


def broken_json(after: int = 2) -> Behaviour:
    return _mid_stream(after, lambda received, rest: [chunk(b'data: {"choices":[{"del\n\n'), *_chunks(rest)])


def error_event(after: int = 2, message: str = "EngineCore encountered an issue") -> Behaviour:
    """An error object as an event, then [DONE], in a response whose status was 200."""
    fields = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
    return _mid_stream(after, lambda received, rest: _chunks([event(fields), b"data: [DONE]\n\n"]))


def truncated_chunk(after: int = 2) -> Behaviour:
    """A chunk with less data than its size says, and the next one right behind it."""
    return _mid_stream(after, lambda received, rest: [chunk(rest[0])[:-12] + b"\r\n", *_chunks(rest[1:]), CLOSE])


def bad_chunk_size(after: int = 2) -> Behaviour:
    return _mid_stream(after, lambda received, rest: [b"zz\r\n" + rest[0] + b"\r\n", CLOSE])


def wrong_length(difference: int) -> Behaviour:
    """A stream framed by a Content-Length that is off: more than there is (then FIN), or less (the rest follows)."""

    def steps(received: Received) -> Iterator[Step]:
        body = b"".join(PLAIN.events(received))
        yield head(STREAM_TYPE, f"content-length: {len(body) + difference}")
        yield body
        if difference > 0:
            yield CLOSE

    return steps


def half_character(after: int = 2) -> Behaviour:
    """A response that ends in good order between the two bytes of an é."""
    cut = b'data: {"choices":[{"index":0,"delta":{"content":" caf\xc3'
    return _mid_stream(after, lambda received, rest: [chunk(cut), END_OF_CHUNKS])


def huge_event(size_bytes: int, after: int = 1) -> Behaviour:
    """One event with a word of so many bytes, then the rest of the answer."""

    def steps(received: Received, rest: list[bytes]) -> Iterable[Step]:
        huge = event(_envelope(received, [_choice(received, "x" * size_bytes, None)]))
        return [chunk(huge), *_chunks(rest)]

    return _mid_stream(after, steps)


def endless(gap_s: float = 0.001) -> Behaviour:
    """Words for as long as somebody reads."""

    def steps(received: Received) -> Iterator[Step]:
        yield STREAM_HEAD
        while True:
            yield chunk(event(_envelope(received, [_choice(received, " on", None)])))
            yield Pause(gap_s)

    return steps


def gzip_body(received: Received) -> Iterable[Step]:
    """A body that says it is compressed, though nobody asked for that."""
    opening = head(STREAM_TYPE, "content-encoding: gzip", "transfer-encoding: chunked")
    return [opening, chunk(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"), END_OF_CHUNKS]


def _chunks(events: Iterable[bytes]) -> list[Step]:
    return [*map(chunk, events), END_OF_CHUNKS]


def _mid_stream(after: int, then: Callable[[Received, list[bytes]], Iterable[Step]]) -> Behaviour:
    """Headers and `after` tokens as they should be, then `then(received, the rest of the events)`."""

    def steps(received: Received) -> Iterator[Step]:
        events = PLAIN.events(received)
        cut = after + received.is_chat
        yield STREAM_HEAD
        yield from map(chunk, events[:cut])
        yield from then(received, events[cut:])

    return steps
