"""The answer's reader: the same events whatever the cuts, and memory that is bounded by parsing early."""

from pathlib import Path

import pytest

from cadenza.clock import ManualClock
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.record import Message, Request
from cadenza.spec import Timeouts
from cadenza.wire.answer import UNREAD_BYTES, AnswerReader
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import ResponseReader

STREAMS = Path(__file__).parents[1] / "golden" / "streams"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def reader() -> AnswerReader:
    http = ResponseReader()
    http.feed(HEAD)
    return AnswerReader(DIALECTS["chat"], http)


def read(*pieces: bytes) -> AnswerReader:
    found = reader()
    for stamp_ns, piece in enumerate(pieces):
        found.unread.append((stamp_ns, piece))
    found.parse()
    found.finish(len(pieces))
    return found


def seen(found: AnswerReader) -> tuple[object, ...]:
    return (
        len(found.event_ns),
        found.text_bytes,
        found.reasoning_events,
        found.usage,
        found.finish_reason,
        found.error,
    )


@pytest.mark.parametrize("name", ["vllm-0.32-chat-usage", "vllm-0.32-chat-multibyte", "typed-vllm-chat-reasoning"])
def test_every_two_way_cut_gives_the_same_answer(name: str) -> None:
    body = (STREAMS / f"{name}.sse").read_bytes()
    whole = seen(read(body))
    assert whole[0]
    assert all(seen(read(body[:at], body[at:])) == whole for at in range(len(body) + 1))
    assert seen(read(*(body[at : at + 1] for at in range(len(body))))) == whole


def test_an_event_has_the_stamp_of_the_piece_that_completes_it() -> None:
    token = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    assert read(token, token[:20], token[20:]).event_ns == [0, 2]


def test_running_usage_gives_the_tokens_of_each_event() -> None:
    event = (
        'data: {{"choices":[{{"delta":{{"content":"a"}}}}],"usage":{{"prompt_tokens":1,"completion_tokens":{}}}}}\n\n'
    )
    assert read(*(event.format(total).encode() for total in (4, 8, 9))).event_tokens() == [4, 4, 1]


def test_an_exchange_never_keeps_more_than_its_bound_unread() -> None:
    clock = ManualClock()
    request = Request(index=0, messages=(Message("user", "hi"),), output_tokens=1)
    exchange = Exchange(Outgoing(request, b""), DIALECTS["chat"], Timeouts(), clock.now_ns(), clock.now_ns())
    exchange.receive(HEAD, 0)
    piece = b'data: {"choices":[{"delta":{"content":"' + b"a" * 9_000 + b'"}}]}\n\n'
    most = 0
    for stamp_ns in range(200):
        exchange.receive(piece, stamp_ns)
        unread = exchange._answer
        assert unread.unread_bytes == sum(len(data) for _, data in unread.unread)
        most = max(most, unread.unread_bytes)
    assert UNREAD_BYTES - len(piece) < most <= UNREAD_BYTES
    assert len(exchange.record(0, "m").event_ns) == 200
