"""Every outcome of one request, from scripted bytes on a virtual clock, with its exact record."""

import json

import pytest

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Origin
from cadenza.record import Connection, Message, Outcome, Record, Request, TokenSource
from cadenza.spec import Timeouts
from cadenza.wire.dialects import DIALECTS
from support.scripted import DONE, END, HEAD, Script, ScriptedPeer, chunk, stream, token, usage

MS = 1_000_000
ORIGIN = Origin("test", ("127.0.0.1", 1))
LIMITS = Timeouts(connect_s=1, first_token_s=2, stall_s=3, total_s=10)


def outgoing(index: int = 0) -> Outgoing:
    return Outgoing(
        Request(index=index, messages=(Message("user", "hi"),), output_tokens=3), b"POST / HTTP/1.1\r\n\r\n"
    )


def exchange(script: Script, *, refuse: bool = False) -> Record:
    transport = MemoryTransport(ScriptedPeer(lambda n: script), refuse=lambda origin: refuse)
    client = Client(transport, [ORIGIN], DIALECTS["chat"], LIMITS)
    ended: list[Exchange] = []
    closed_loop(client, iter([outgoing()]), 1, ended.append, stop=lambda: False)
    assert client.in_flight == 0
    (only,) = ended
    return only.record(point=7, model="m")


def http(status: str, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def test_a_good_stream_gives_the_stamps_of_its_events() -> None:
    record = exchange(stream(3, first_ms=20, gap_ms=10))
    assert record.outcome is Outcome.OK
    assert (record.point, record.index, record.model, record.status) == (7, 0, "m", 200)
    assert (record.intended_ns, record.sent_ns) == (0, 0)
    assert record.event_ns == [20 * MS, 30 * MS, 40 * MS]
    assert (record.headers_ns, record.done_ns) == (20 * MS, 40 * MS)
    assert (record.prompt_tokens, record.output_tokens, record.token_source) == (5, 3, TokenSource.USAGE)
    assert (record.finish_reason, record.connection, record.detail) == ("length", Connection.NEW, None)


def test_without_usage_events_are_counted_and_labelled() -> None:
    record = exchange([(1, HEAD + token()), (2, token(finish="stop") + DONE + END)])
    assert (record.output_tokens, record.token_source) == (2, TokenSource.EVENTS)


def test_running_usage_says_how_many_tokens_each_event_has() -> None:
    def event(total: int) -> bytes:
        return chunk(
            b'data: {"choices":[{"delta":{"content":"ab"}}],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n'
            % total
        )

    record = exchange([(1, HEAD + event(2)), (2, event(5)), (3, event(6) + DONE + END)])
    assert record.event_tokens == [2, 3, 1]
    assert record.output_tokens == 6


def said(**delta: object) -> bytes:
    return chunk(b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}).encode() + b"\n\n")


@pytest.mark.parametrize("together", [False, True], ids=["a packet each", "one packet"])
def test_the_text_is_sized_and_thinking_is_counted(together: bool) -> None:
    # Thinking, answer and thinking again, each in several like events, so that most are read by their likeness.
    thought = [said(reasoning_content=text) for text in ("Hm", ", so", " it", "\n", " is")]
    answer = [said(content=text) for text in ("Yes", ",", " 你好", " a", " b")]
    again = [said(reasoning_content=text) for text in ("x", "yz", "123")]
    call = [said(tool_calls=[{"index": 0, "function": {"arguments": text}}]) for text in ('{"a":', "1}")]
    events = [said(role="assistant", content=""), *thought, *answer, *again, *call]
    whole: Script = [(1, HEAD), *((2 + k, event) for k, event in enumerate(events)), (40, DONE + END)]
    record = exchange([(1, HEAD + b"".join(events) + DONE + END)] if together else whole)
    assert len(record.event_ns) == 15
    assert record.reasoning_events == 5 + 3
    assert record.text_bytes == (2 + 4 + 3 + 1 + 3) + (3 + 1 + 7 + 2 + 2) + (1 + 2 + 3) + (5 + 2)
    assert record.first_text_bytes == 2


def test_text_is_sized_before_a_fault_too() -> None:
    record = exchange([(1, HEAD), *((k, token(" abc")) for k in range(2, 6)), (7, chunk(b"data: {nope\n\n"))])
    assert record.outcome is Outcome.MALFORMED
    assert (len(record.event_ns), record.text_bytes, record.first_text_bytes) == (4, 16, 4)


HTML = b"<html><head><title>Bad gateway</title></head></html>"
CASES: list[tuple[str, Script, Outcome, str]] = [
    ("truncated", [(1, HEAD + token()), (2, END)], Outcome.TRUNCATED, "without a finish reason"),
    ("no token", [(1, HEAD + DONE + END)], Outcome.MALFORMED, "without a single token"),
    ("nothing", [(1, HEAD + END)], Outcome.MALFORMED, "without a single token"),
    ("http error", [(1, http("503 No", b'{"error":{"message":"busy"}}'))], Outcome.HTTP_ERROR, "HTTP 503: busy"),
    ("string error", [(1, http("401 No", b'{"error":"Unauthorized"}'))], Outcome.HTTP_ERROR, "HTTP 401: Unauthorized"),
    ("html error", [(1, http("502 No", HTML, "text/html"))], Outcome.HTTP_ERROR, "an HTML page: Bad gateway"),
    ("html in 200", [(1, http("200 OK", HTML, "text/html"))], Outcome.MALFORMED, "an HTML page: Bad gateway"),
    (
        "redirect",
        [(1, b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n")],
        Outcome.HTTP_ERROR,
        "redirected to http://elsewhere/",
    ),
    (
        "error event",
        [(1, HEAD + token()), (2, chunk(b'data: {"error":{"message":"out of memory"}}\n\n') + DONE + END)],
        Outcome.STREAM_ERROR,
        "out of memory",
    ),
    (
        "llama.cpp error field",
        [(1, HEAD + chunk(b'error: {"message":"boom"}\n\n') + END)],
        Outcome.STREAM_ERROR,
        "boom",
    ),
    ("broken JSON", [(1, HEAD + token() + chunk(b"data: {nope\n\n") + END)], Outcome.MALFORMED, "not JSON"),
    ("no HTTP", [(1, b"SSH-2.0-OpenSSH_9.2\r\n")], Outcome.MALFORMED, "not an HTTP/1 response"),
    ("bad chunk size", [(1, HEAD + b"zz\r\nhello\r\n")], Outcome.MALFORMED, "broken HTTP response"),
    ("closed at once", [(1, None)], Outcome.CONNECTION_LOST, "closed by the server"),
    ("closed in the stream", [(1, HEAD + token()), (2, None)], Outcome.CONNECTION_LOST, "closed by the server"),
    ("no first token", [(1, HEAD)], Outcome.TIMEOUT_FIRST_TOKEN, "no token within 2 s"),
    ("a stall", [(1, HEAD + token())], Outcome.TIMEOUT_STALL, "nothing came for 3 s"),
    ("a role is no token", [(1, HEAD + token(""))], Outcome.TIMEOUT_FIRST_TOKEN, "no token within 2 s"),
    (
        "endless",
        [(1, HEAD), *[(ms, token()) for ms in range(1, 10_400, 100)]],
        Outcome.TIMEOUT_TOTAL,
        "not complete 10 s after",
    ),
]


@pytest.mark.parametrize(("script", "outcome", "detail"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_failure_is_a_record_with_its_reason(script: Script, outcome: Outcome, detail: str) -> None:
    record = exchange(script)
    assert record.outcome is outcome
    assert detail in (record.detail or "")
    assert record.done_ns is not None


def test_failures_keep_the_tokens_that_came() -> None:
    record = exchange([(1, HEAD + token()), (2, token()), (3, None)])
    assert record.event_ns == [1 * MS, 2 * MS]
    assert (record.output_tokens, record.token_source) == (2, TokenSource.EVENTS)


@pytest.mark.parametrize(
    ("script", "outcome", "at_ms"),
    [
        ([(1, HEAD)], Outcome.TIMEOUT_FIRST_TOKEN, 2000),
        ([(500, HEAD + token())], Outcome.TIMEOUT_STALL, 3500),
        ([(0, HEAD), *[(ms, token()) for ms in range(0, 10_400, 100)]], Outcome.TIMEOUT_TOTAL, 10_000),
    ],
)
def test_limits_end_a_request_when_they_say(script: Script, outcome: Outcome, at_ms: int) -> None:
    record = exchange(script)
    assert record.outcome is outcome
    assert record.done_ns is not None
    # A wait lasts at most a tenth of a second, and deadlines are looked at after it.
    assert at_ms * MS <= record.done_ns <= (at_ms + 100) * MS


def test_a_refused_connection_is_a_record_too() -> None:
    record = exchange([], refuse=True)
    assert record.outcome is Outcome.CONNECTION_LOST
    assert record.detail == "Connection refused"
    assert record.sent_ns == 0


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ([(1, HEAD + token()), (2, token(finish="stop") + END)], "no [DONE]"),
        ([(1, HEAD + token(finish="stop") + DONE), (2, None)], "closed by the server"),
        ([(1, HEAD + token(finish="stop") + DONE)], "the response did not end after [DONE]"),
        (
            [(1, http("200 OK", b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'))],
            "answered whole, not as a stream",
        ),
        ([(1, HEAD + token("", finish="stop") + usage(5, 1) + DONE + END)], "no event carried text"),
    ],
)
def test_odd_but_whole_answers_are_ok_with_a_remark(script: Script, detail: str) -> None:
    record = exchange(script)
    assert record.outcome is Outcome.OK
    assert detail in (record.detail or "")


def test_done_counts_from_done_and_not_from_the_missing_end() -> None:
    record = exchange([(1, HEAD + token(finish="stop") + DONE)])
    assert record.done_ns == 1 * MS


def test_close_delimited_answers_are_whole_at_the_close() -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    record = exchange([(1, head + body), (2, None)])
    assert (record.outcome, record.output_tokens) == (Outcome.OK, 1)


def test_a_close_that_delimits_the_answer_is_no_loss() -> None:
    # RFC 9112 6.3: without a length the body lasts until the connection closes, so that this one is whole.
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}'  # its last event, too, ends there
    record = exchange([(1, head + body), (2, None)])
    assert (record.outcome, record.detail, record.done_ns) == (Outcome.OK, "no [DONE]", 2 * MS)


def test_text_from_the_server_is_made_harmless() -> None:
    record = exchange([(1, http("500 No", b'{"error":"\x1b[31mred\\u0007"}'.replace(b"\x1b", b"\\u001b")))])
    assert record.detail is not None
    assert record.detail.isprintable()


def test_unread_bytes_are_parsed_once_they_exceed_256_kib() -> None:
    # A broken event is noticed when it is parsed: before the end only where more than 256 KiB were unread.
    whole = Exchange(outgoing(), DIALECTS["chat"], LIMITS, 0, 0)
    broken = b"data: {nope\n\n"
    padding = b":" * (256 * 1024 - len(broken) - 1) + b"\n"
    assert not whole.receive(HEAD + chunk(broken), 1 * MS)
    assert not whole.receive(chunk(padding), 2 * MS)
    assert not whole.finished
    assert whole.receive(chunk(b"\n"), 3 * MS)
    record = whole.record(point=0, model="m")
    assert (record.outcome, record.done_ns) == (Outcome.MALFORMED, 3 * MS)
