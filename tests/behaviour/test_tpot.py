"""TPOT is what the server did, to 1 %, or it is not known: streams of every shape, as bytes through the real client.

The server makes a token each 10 ms and sends it when its event or its packet is full, so that TPOT is 10 ms whatever
the shape. Texts have the lengths of English words, but where it says otherwise.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import summarise_point
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.transport import Origin
from cadenza.record import Message, Outcome, Record, Request
from cadenza.spec import Timeouts
from cadenza.stats.columns import Columns
from cadenza.stats.latency import tpot_ms
from cadenza.wire.dialects import DIALECTS
from support.columns import closed
from support.scripted import DONE, END, HEAD, Script, ScriptedPeer, chunk

STEP_MS = 10.0
ANSWERS = 64
LETTERS = (1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 9, 12)  # of English words
CJK = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里"
Rng = np.random.Generator


class Shape(NamedTuple):
    """How N tokens become events (tokens in each), and events become packets (events in each)."""

    events: Callable[[int, Rng], list[int]]
    packets: Callable[[int], list[int]] = lambda events: [1] * events
    length: Callable[[int, Rng], int] = lambda k, rng: int(rng.integers(60, 140))
    running: bool = False
    hidden: int = 0  # tokens that usage counts before the first event
    details: bool = True
    text: Callable[[Rng], str] = lambda rng: " " + "a" * int(rng.choice(LETTERS))
    field: str = "content"


def every(size: int, total: int) -> list[int]:
    """`size` at a time, and what is left."""
    return [min(size, total - done) for done in range(0, total, size)]


def speculated(tokens: int, rng: Rng) -> list[int]:
    """The first token alone, then one to four, as they were accepted."""
    found = [1]
    while (left := tokens - sum(found)) > 0:
        found.append(min(left, int(rng.integers(1, 5))))
    return found


def event(shape: Shape, text: str, usage: dict[str, object] | None) -> bytes:
    said: dict[str, object] = {shape.field: text}
    if shape.field == "tool_calls":
        said = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
    body: dict[str, object] = {"choices": [{"index": 0, "delta": said, "finish_reason": None}]}
    return b"data: " + json.dumps(body if usage is None else body | {"usage": usage}).encode() + b"\n\n"


def answer(shape: Shape, number: int, rng: Rng) -> Script:
    tokens = shape.length(number, rng)
    sizes = shape.events(tokens, rng)
    assert sum(sizes) == tokens
    made = np.cumsum(sizes)
    counts: list[dict[str, object]] = [{"prompt_tokens": 5, "completion_tokens": shape.hidden + int(n)} for n in made]
    events = [
        event(shape, "".join(shape.text(rng) for _ in range(size)), usage if shape.running else None)
        for size, usage in zip(sizes, counts, strict=True)
    ]
    script: list[tuple[float, bytes | None]] = [(1.0, HEAD)]
    at = 0
    for several in shape.packets(len(events)):
        last = at + several
        when = 20 + STEP_MS * (shape.hidden + float(made[last - 1]))
        script.append((when, b"".join(chunk(data) for data in events[at:last])))
        at = last
    final = counts[-1]
    if shape.hidden and shape.details:
        final["completion_tokens_details"] = {"reasoning_tokens": shape.hidden}
    stop = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
    ending = stop + b"data: " + json.dumps({"choices": [], "usage": final}).encode() + b"\n\n"
    script.append((script[-1][0], chunk(ending) + DONE + END))
    return script


@cache
def measure(shape: Shape, answers: int = ANSWERS, seed: int = 1) -> list[Record]:
    rng = np.random.default_rng(seed)
    transport = MemoryTransport(ScriptedPeer(lambda number: answer(shape, number, rng)))
    client = Client(transport, [Origin("test", ("127.0.0.1", 1))], DIALECTS["chat"], Timeouts())
    plan = [Request(index=k, messages=(Message("user", "hi"),), output_tokens=9) for k in range(answers)]
    ended: list[Exchange] = []
    closed_loop(client, iter(Outgoing(r, b"POST / HTTP/1.1\r\n\r\n") for r in plan), 1, ended.append, lambda: False)
    records = [one.record(point=0, model="m") for one in ended]
    assert {record.outcome for record in records} == {Outcome.OK}
    return records


def summary(records: list[Record]) -> PointSummary:
    return summarise_point(closed(1, len(records)), records)


def old(records: list[Record]) -> list[Record]:
    """As they were written before text was sized."""
    unsized = {"text_bytes": None, "first_text_bytes": None, "reasoning_events": 0}
    return [msgspec.structs.replace(record, **unsized) for record in records]


def fixed(tokens: int) -> Callable[[int, Rng], int]:
    return lambda number, rng: tokens


ALONE = Shape(lambda n, rng: [1] * n)
FOUR = Shape(lambda n, rng: every(4, n))
INTERVAL = Shape(lambda n, rng: [1, *every(4, n - 1)])
TEN_FIRST = Shape(lambda n, rng: [10] + [1] * (n - 10))
TENS = Shape(lambda n, rng: every(10, n))
SPECULATED = Shape(speculated)
LUMPS = FOUR._replace(packets=lambda n: every(3, n))
KNOWN = {
    "a token an event": ALONE,
    "4 tokens an event": FOUR,
    "4 tokens an event, one length": FOUR._replace(length=fixed(49)),
    "stream interval 4": INTERVAL,
    "stream interval 4, one length": INTERVAL._replace(length=fixed(49)),
    "10 first, then one": TEN_FIRST,
    "10 first, then one, one length": TEN_FIRST._replace(length=fixed(50)),
    "10 a chunk": TENS,
    "10 a chunk, running usage": TENS._replace(running=True, length=fixed(50)),
    "irregular, running usage": SPECULATED._replace(running=True),
    "speculative decoding": SPECULATED,
    "hidden thinking in the details": ALONE._replace(hidden=480),
    "hidden thinking, 4 tokens an event": FOUR._replace(hidden=480),
    "hidden thinking, running usage": ALONE._replace(hidden=480, running=True),
    "a proxy's lumps of 8 events": ALONE._replace(packets=lambda n: every(8, n)),
    "a proxy's lumps of 3 events of 4 tokens": LUMPS,
    "thinking that is streamed": FOUR._replace(field="reasoning_content"),
    "tool-call arguments": FOUR._replace(field="tool_calls"),
    "Chinese": FOUR._replace(text=lambda rng: CJK[int(rng.integers(len(CJK)))], length=fixed(49)),
    "Chinese, irregular": SPECULATED._replace(text=lambda rng: CJK[int(rng.integers(len(CJK)))]),
    "one token, then all the others": Shape(lambda n, rng: [1, n - 1]),
}
MAYBE = {
    "10 a chunk, one length": TENS._replace(length=fixed(50)),
    "two halves": Shape(lambda n, rng: [n // 2, n - n // 2]),
    "two halves of 10": Shape(lambda n, rng: [5, 5], length=fixed(10)),
    "any first event": Shape(lambda n, rng: [1 + n % 17, *every(3, n - 1 - n % 17)]),
}


@pytest.mark.parametrize("shape", KNOWN.values(), ids=KNOWN)
def test_tpot_is_what_the_server_did(shape: Shape) -> None:
    assert tpot_ms(Columns.of(measure(shape))) == pytest.approx(np.full(ANSWERS, STEP_MS), rel=0.01)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", MAYBE.values(), ids=MAYBE)
def test_or_it_is_not_known(shape: Shape, seed: int) -> None:
    found = tpot_ms(Columns.of(measure(shape, seed=seed)))
    assert found[np.isfinite(found)] == pytest.approx(STEP_MS, rel=0.01)


@pytest.mark.parametrize("shape", [*KNOWN.values(), *MAYBE.values()], ids=[*KNOWN, *MAYBE])
def test_records_of_old_have_it_exactly_or_not_at_all(shape: Shape) -> None:
    found = tpot_ms(Columns.of(old(measure(shape))))
    assert found[np.isfinite(found)] == pytest.approx(STEP_MS, rel=0.01)


@pytest.mark.parametrize("name", ["4 tokens an event", "stream interval 4", "10 first, then one", "10 a chunk"])
def test_without_text_the_ways_of_streaming_still_tell(name: str) -> None:
    assert tpot_ms(Columns.of(old(measure(KNOWN[name])))) == pytest.approx(np.full(ANSWERS, STEP_MS), rel=0.01)


def test_a_few_answers_are_not_enough() -> None:
    assert np.isnan(tpot_ms(Columns.of(measure(FOUR, answers=3)))).all()


def test_what_is_not_known_says_so_with_its_bounds() -> None:
    records = old(measure(SPECULATED._replace(length=fixed(40)), answers=20))
    found = summary(records)
    assert found.tpot_ms.n == 0
    (note,) = [note for note in found.notes if "first event are not known" in note]
    low, high = (float(text) for text in note.partition("mean ")[2].partition(" ms")[0].split(" to "))
    assert low == pytest.approx(STEP_MS, rel=1e-3)  # the first event had one token
    assert high > 1.01 * STEP_MS
    # The bounds are 390 or 380 ms, by where the first event ended, over 39 tokens and over the events but one.
    spans = [(record.event_ns[-1] - record.event_ns[0]) / 1e6 for record in records]
    assert low == pytest.approx(np.mean(spans) / 39, rel=1e-3)
    gaps = [len(record.event_ns) - 1 for record in records]
    assert high == pytest.approx(np.mean(np.array(spans) / gaps), rel=1e-3)


def test_hidden_thinking_without_details_has_no_tpot() -> None:
    found = summary(measure(ALONE._replace(hidden=960, details=False), answers=20))
    assert found.tpot_ms.n == 0
    assert found.verdict is Verdict.SUSPECT
    assert any("more tokens were counted than were streamed" in reason for reason in found.reasons)


def test_what_was_never_streamed_is_counted() -> None:
    records = measure(ALONE._replace(hidden=480, length=fixed(20)), answers=20)
    found = summary(records)
    assert any(note.startswith("9600 of 10000 tokens were counted and never streamed") for note in found.notes)
    assert (found.output_tokens, found.tokens_per_event) == (10_000, 1.0)


@pytest.mark.parametrize("packets", [lambda n: [n], lambda n: every(8, n)], ids=["whole", "lumps of 8"])
def test_a_buffered_stream_is_suspect(packets: Callable[[int], list[int]]) -> None:
    found = summary(measure(ALONE._replace(packets=packets, length=fixed(120)), answers=20))
    assert found.verdict is Verdict.SUSPECT
    pieces = "1 piece" if packets(120) == [120] else "15 pieces"
    assert [reason[: 50 + len(pieces)] for reason in found.reasons if "buffers the stream" in reason] == [
        f"20 of 20 answers came in {pieces} of 120 events (medians): the server"[: 50 + len(pieces)]
    ]
    assert found.tpot_ms.n == (0 if packets(120) == [120] else found.latency_ms.n)


@pytest.mark.parametrize("shape", [ALONE, FOUR, SPECULATED, TEN_FIRST], ids=["alone", "four", "speculated", "ten"])
def test_a_stream_that_comes_event_by_event_is_not(shape: Shape) -> None:
    found = summary(measure(shape, answers=40))
    (check,) = [check for check in found.checks if check.name == "streaming"]
    assert check.verdict is Verdict.VALID
