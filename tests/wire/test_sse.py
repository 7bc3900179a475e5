"""`SseParser` against the WHATWG algorithm: a corpus with expected events, and an independent reference parser."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.wire.dialect import MalformedError
from cadenza.wire.sse import Event, SseParser

BOM = b"\xef\xbb\xbf"
Deliveries = Callable[[bytes], Iterator[list[bytes]]]


def ev(data: bytes | str, event: bytes = b"", last_id: bytes = b"") -> Event:
    return Event(data.encode() if isinstance(data, str) else data, event, last_id)


# name -> (stream, with every line end written LF; the events that the standard says).
CORPUS: dict[str, tuple[bytes, list[Event]]] = {
    "one event": (b'data: {"a":1}\n\n', [ev('{"a":1}')]),
    "several": (b"data: a\n\ndata: b\n\ndata: [DONE]\n\n", [ev("a"), ev("b"), ev("[DONE]")]),
    "no space after the colon": (b'data:{"a":1}\n\ndata:b\n\n', [ev('{"a":1}'), ev("b")]),
    "exactly one space removed": (b"data:  two\n\ndata:   \n\n", [ev(" two"), ev("  ")]),
    "a tab is no space": (b"data:\tx\n\n", [ev("\tx")]),
    "trailing spaces stay": (b"data: x  \n\n", [ev("x  ")]),
    "field without colon": (b"data\n\n", [ev("")]),
    "empty value": (b"data:\n\n", [ev("")]),
    "two empty data lines": (b"data\ndata\n\n", [ev(b"\n")]),
    "multi-line data": (b"data: a\ndata: b\ndata:\ndata: c\n\n", [ev(b"a\nb\n\nc")]),
    "colon in the value": (b"data: a: b\n\n", [ev("a: b")]),
    "comments": (b": ping\n\n:\n\n: a\ndata: x\n: b\ndata: y\n\n: ping\n\n", [ev(b"x\ny")]),
    "a comment that looks like data": (b":data: x\n\ndata: y\n\n", [ev("y")]),
    "event type": (b"event: ping\ndata: x\n\ndata: y\n\n", [ev("x", b"ping"), ev("y")]),
    "event after data": (b"data: x\nevent: late\n\n", [ev("x", b"late")]),
    "event type message is the default": (b"event: message\ndata: x\n\n", [ev("x")]),
    "the last event type counts": (b"event: a\nevent: b\ndata: x\n\n", [ev("x", b"b")]),
    "event type without data": (b"event: ping\n\ndata: x\n\n", [ev("x")]),
    "empty event type": (b"event: a\nevent\ndata: x\n\n", [ev("x")]),
    "ids persist": (b"id: 7\ndata: x\n\ndata: y\n\nid\ndata: z\n\n", [ev("x", b"", b"7"), ev("y", b"", b"7"), ev("z")]),
    "an id without data counts": (b"id: 7\n\ndata: x\n\n", [ev("x", b"", b"7")]),
    "an id with NUL is ignored": (b"id: 1\ndata: x\nid: a\0b\n\n", [ev("x", b"", b"1")]),
    "retry is ignored": (b"retry: 1000\ndata: x\nretry: soon\n\n", [ev("x")]),
    "unknown fields are ignored": (b"foo: bar\ndata: x\ndat: y\ndataa: z\nDATA: q\n\n", [ev("x")]),
    "a space before the field is another field": (b" data: x\n\ndata: y\n\n", [ev("y")]),
    "a space before the colon is another field": (b"data : x\n\ndata: y\n\n", [ev("y")]),
    "blank lines between": (b"\n\n\ndata: x\n\n\n\n\ndata: y\n\n\n", [ev("x"), ev("y")]),
    "BOM": (BOM + b"data: x\n\n", [ev("x")]),
    "only one BOM": (BOM + BOM + b"data: x\n\ndata: y\n\n", [ev("y")]),
    "a BOM later is content": (b"data: x\n\n" + BOM + b"data: y\n\ndata: " + BOM + b"z\n\n", [ev("x"), ev(BOM + b"z")]),
    "most of a BOM is none": (BOM[:2] + b"data: x\n\ndata: y\n\n", [ev("y")]),
    "BOM before a comment": (BOM + b": hi\n\ndata: x\n\n", [ev("x")]),
    "multi-byte": ('data: {"c":"Grüße 你好 👩‍🚀"}\n\ndata: é\n\n'.encode(), [ev('{"c":"Grüße 你好 👩‍🚀"}'), ev("é")]),
    "U+2028, U+2029, U+0085 end no line": ("data: a\u2028b\u2029c\u0085d\n\n".encode(), [ev("a\u2028b\u2029c\u0085d")]),
    "VT, FF, FS, GS, RS end no line": (b"data: a\x0b\x0c\x1c\x1d\x1eb\n\n", [ev(b"a\x0b\x0c\x1c\x1d\x1eb")]),
    "bytes that are no UTF-8": (b"data: a\xff\xc3\n\n", [ev(b"a\xff\xc3")]),
    "NUL in data": (b"data: a\0b\n\n", [ev(b"a\0b")]),
    "spaces only": (b"   \n\ndata: x\n\n", [ev("x")]),
    "error field (llama.cpp)": (b'data: x\n\nerror: {"code":500}\n\n', [ev("x"), ev('{"code":500}', b"error")]),
    "error field without space": (b"error:{}\n\ndata: y\n\n", [ev("{}", b"error"), ev("y")]),
    "no final blank line": (b"data: x\n\ndata: y\n", [ev("x"), ev("y")]),
    "no final line end": (b"data: x\n\ndata: y", [ev("x"), ev("y")]),
    "ends inside a field name": (b"data: x\n\ndat", [ev("x")]),
    "ends after a bare field": (b"data: x\n\ndata", [ev("x"), ev("")]),
    "ends in a comment": (b"data: x\n\n: bye", [ev("x")]),
    "ends after an event type": (b"data: x\n\nevent: y\n", [ev("x")]),
    "nothing": (b"", []),
    "a BOM alone": (BOM, []),
    "half a BOM alone": (BOM[:2], []),
}


def parse(reads: list[bytes]) -> list[Event]:
    parser = SseParser()
    return [event for read in reads for event in parser.feed(read)] + parser.close()


def reference(stream: bytes) -> list[Event]:
    """The standard's algorithm, character by character over the whole stream, with our two stated deviations."""
    stream = stream[len(BOM) :] if stream[: len(BOM)] == BOM else stream
    lines, line, at = [], bytearray(), 0
    while at < len(stream):
        c = stream[at]
        if c in b"\r\n":
            lines.append(bytes(line))
            line = bytearray()
            at += 2 if stream[at : at + 2] == b"\r\n" else 1
        else:
            line.append(c)
            at += 1
    lines += [bytes(line), b""]  # deviation: the end of the stream ends the line and the event
    events, data, kind, last_id = [], b"", b"", b""
    for text in lines:
        if text == b"":
            if data != b"":
                events.append(Event(data[:-1], b"" if kind == b"message" else kind, last_id))
            data = kind = b""
            continue
        colon = text.find(b":")
        if colon == 0:
            continue
        field, value = (text, b"") if colon < 0 else (text[:colon], text[colon + 1 :])
        if value[:1] == b" ":
            value = value[1:]
        if field == b"event":
            kind = value
        elif field == b"data":
            data += value + b"\n"
        elif field == b"id" and 0 not in value:
            last_id = value
        elif field == b"error":  # deviation: llama.cpp
            kind, data = b"error", data + value + b"\n"
    return events


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("name", CORPUS)
def test_corpus_whole_bytewise_and_cut(name: str, line_end: bytes, deliveries: Deliveries) -> None:
    stream, expected = CORPUS[name]
    stream = stream.replace(b"\n", line_end)
    for reads in deliveries(stream):
        assert parse(reads) == expected, reads


@pytest.mark.parametrize("name", CORPUS)
def test_the_reference_agrees_with_the_corpus(name: str) -> None:
    stream, expected = CORPUS[name]
    assert reference(stream) == expected


def test_mixed_line_ends(deliveries: Deliveries) -> None:
    stream = b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n\rdata: d\n\ndata: e\rdata: f\n\n"
    for reads in deliveries(stream):
        assert parse(reads) == [ev("a"), ev("b"), ev("c"), ev("d"), ev(b"e\nf")]


def test_an_event_is_delivered_at_its_blank_line_and_not_later() -> None:
    for line_end in (b"\n", b"\r"):
        parser = SseParser()
        assert parser.feed(b"data: x" + line_end) == []
        assert parser.feed(line_end) == [ev("x")]


def test_a_line_feed_after_a_delivered_carriage_return_is_not_a_second_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r") == []
    assert parser.feed(b"\ndata: y\r") == []
    assert parser.feed(b"\n\r") == [ev(b"x\ny")]
    assert parser.feed(b"\ndata: z\n\n") == [ev("z")]


def test_an_empty_read_between_cr_and_lf_changes_nothing() -> None:
    parser = SseParser()
    assert [*parser.feed(b"data: x\r"), *parser.feed(b""), *parser.feed(b"\ndata: y\n\n")] == [ev(b"x\ny")]


def test_close_delivers_once() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x") == []
    assert parser.close() == [ev("x")]
    assert parser.close() == []


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"x" * 100 + b"\n\n", b": " + b"x" * 100 + b"\n\n", b"data: x\n" * 40 + b"\n", b"x" * 101],
    ids=["data", "comment", "many lines", "no line end"],
)
def test_the_bound_holds_however_the_bytes_come(stream: bytes, deliveries: Deliveries) -> None:
    for reads in deliveries(stream):
        parser = SseParser(max_event_bytes=64)
        assert parser.feed(b"data: a\n\n") == [ev("a")]
        with pytest.raises(MalformedError, match="more than 64 bytes"):
            [parser.feed(read) for read in reads]


def test_events_within_the_bound_pass_for_ever() -> None:
    parser = SseParser(max_event_bytes=64)
    assert sum(len(parser.feed(b"data: " + b"x" * 50 + b"\n\n")) for _ in range(100)) == 100
    assert sum(len(parser.feed(b"data: " + b"x" * 50 + b"\n: ping\r\n\r\n")) for _ in range(100)) == 100


def test_a_line_and_an_event_may_be_as_large_as_the_bound() -> None:
    line = b"data: " + b"x" * 58  # 64 bytes
    assert SseParser(max_event_bytes=64).feed(line + b"\n\n") == [ev("x" * 58)]
    parser = SseParser(max_event_bytes=64)
    assert parser.feed(line) == []
    assert parser.feed(b"\n\n") == [ev("x" * 58)]
    # An event is its lines, each with its end: 2 * (31 + 1) bytes, and one more.
    two = b"data:" + b"x" * 31 + b"\ndata:" + b"y" * 31
    assert SseParser(max_event_bytes=64).feed(two + b"\n\n") == [ev("x" * 31 + "\n" + "y" * 31)]
    with pytest.raises(MalformedError, match="event of more than 64 bytes"):
        SseParser(max_event_bytes=64).feed(two + b"y\n\n")


WORDS = b"data event id retry error message x data:{} : \xc3 \0".split(b" ")
ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b": ", b" ", BOM, BOM[:1], "é\u2028".encode(), b"data: [DONE]\n\n"]
TOKENS = st.sampled_from([*WORDS, *ENDS])


@st.composite
def reads_of(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    """A stream, cut anywhere into any number of reads."""
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@given(reads_of(st.lists(TOKENS, max_size=40).map(b"".join)))
def test_any_stream_reads_as_the_reference_reads_it(reads: list[bytes]) -> None:
    assert parse(reads) == reference(b"".join(reads))


@given(reads_of(st.binary(max_size=200)))
def test_any_bytes_read_as_the_reference_reads_them(reads: list[bytes]) -> None:
    assert parse(reads) == reference(b"".join(reads))


LINE = st.binary(max_size=20).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))


@given(
    st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data()
)
def test_what_is_encoded_comes_back(events: list[list[bytes]], line_end: bytes, data: st.DataObject) -> None:
    stream = b"".join(b"".join(b"data: " + line + line_end for line in lines) + line_end for lines in events)
    reads = data.draw(reads_of(st.just(stream)))
    assert parse(reads) == [ev(b"\n".join(lines)) for lines in events]
