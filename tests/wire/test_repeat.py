"""The shortcut says what reading in full says, or stays silent."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadenza.wire.dialect import MalformedError
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.repeat import RepeatedToken


def chat(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c-1", "choices": [choice], **more}).encode() + b"\n\n"


def learnt(event: bytes, api: str = "chat") -> RepeatedToken:
    pattern = RepeatedToken()
    pattern.learn(event, DIALECTS[api].read(event[6:-2]))
    return pattern


def test_another_text_matches() -> None:
    assert learnt(chat(" one")).text_bytes(chat(" two")) == 4
    assert learnt(chat(" one")).text_bytes(chat("x" * 1000)) == 1000


def test_the_size_of_a_text_is_its_utf_8() -> None:
    event = chat("a").replace(b'"a"', '"Grüezi 你好"'.encode())
    assert learnt(chat(" one")).text_bytes(event) == 14  # 7 letters of one byte but for ü, and two of three bytes
    assert learnt(event).text_bytes(chat(" two")) == 4


def test_compact_json_and_other_keys() -> None:
    for key in ("content", "reasoning_content", "reasoning"):
        event = f'data: {{"choices":[{{"delta":{{"{key}":"%s"}}}}]}}\n\n'
        pattern = learnt(event.replace("%s", "a").encode())
        assert pattern.text_bytes(event.replace("%s", "bc").encode()) == 2
        assert pattern.is_reasoning == (key != "content")
    text = b'data: {"choices":[{"text":"%s"}]}\n\n'
    assert learnt(text % b"a", "completions").text_bytes(text % b"bcd") == 3


@pytest.mark.parametrize(
    "other",
    [
        chat(""),
        chat('a "quoted" word'),
        chat("back\\slash"),
        chat("line\nend"),
        chat(" two", usage={"completion_tokens": 2}),
        chat(" two")[:-1],
        chat(" two") + chat(" three"),
        chat(" two").replace(b'"finish_reason": null', b'"finish_reason": "stop"'),
        chat("x").replace(b'"x"', b'"\xff"'),  # no UTF-8
        chat("x").replace(b'"x"', b'"\x01"'),  # a control character, which JSON forbids
        b"data: [DONE]\n\n",
        b"",
    ],
)
def test_anything_else_is_read_in_full(other: bytes) -> None:
    assert learnt(chat(" one")).text_bytes(other) == 0


def test_nothing_is_learnt_from_an_event_with_two_texts() -> None:
    two = b'data: {"choices":[{"delta":{"content":"a"}},{"delta":{"content":""}}]}\n\n'
    assert learnt(two).text_bytes(two) == 0
    both = b'data: {"choices":[{"delta":{"content":"a","reasoning":""}}]}\n\n'
    assert learnt(both).text_bytes(both) == 0


def test_nothing_is_learnt_from_a_text_that_is_not_what_carried_the_tokens() -> None:
    call = '{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"abc"}}]},"text":"echo"}]}'
    event = f"data: {call}\n\n".encode()
    assert learnt(event).text_bytes(event) == 0


def test_nothing_is_learnt_from_a_text_with_an_escape() -> None:
    # Up to its first quotation mark this text has the one byte that it has when read: a backslash.
    event = chat('"')
    assert learnt(event).text_bytes(event.replace(b'\\"', b'a"')) == 0  # no JSON


def test_nothing_matches_before_something_is_learnt() -> None:
    assert RepeatedToken().text_bytes(chat(" one")) == 0


JUNK = st.text(max_size=8)
VALUES = st.one_of(st.none(), JUNK, st.integers(), st.lists(JUNK, max_size=2), st.dictionaries(JUNK, JUNK, max_size=2))
DELTAS = st.dictionaries(st.sampled_from(["content", "reasoning_content", "role", "text"]), st.one_of(st.none(), JUNK))
EVENTS = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": DELTAS}, optional={"text": JUNK}), max_size=2)},
    optional={"created": VALUES, "system_fingerprint": VALUES},
)


@given(first=EVENTS, text=st.binary(max_size=6), api=st.sampled_from(["chat", "completions"]), compact=st.booleans())
@example(first={"choices": [{"delta": {"content": "a"}}]}, text=b'"', api="chat", compact=True)
def test_a_match_says_what_reading_in_full_says(first: dict[str, object], text: bytes, api: str, compact: bool) -> None:
    """The learnt event's text replaced by any bytes at all: where it still matches, the dialect reads the same."""
    separators = (",", ":") if compact else (", ", ": ")
    event = b"data: " + json.dumps(first, ensure_ascii=False, separators=separators).encode(errors="replace") + b"\n\n"
    try:
        said = DIALECTS[api].read(event[6:-2])
    except MalformedError:
        return
    if not said.carries_tokens:
        return
    pattern = learnt(event, api)
    for place in range(6, len(event) - 2):
        other = event[:place] + text + event[place + 1 :]
        if size := pattern.text_bytes(other):
            assert DIALECTS[api].read(other[6:-2]) == msgspec.structs.replace(said, text_bytes=size)
