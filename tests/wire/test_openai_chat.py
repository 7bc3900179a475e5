"""The chat dialect: what is asked, and what an event says, server by server."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.record import Message, Request, printable
from cadenza.wire.dialect import Delta, MalformedError, Options, Usage
from cadenza.wire.openai_chat import ChatDialect

CHAT = ChatDialect()
REQUEST = Request(
    index=3,
    messages=(Message(role="system", content="Be brief."), Message(role="user", content="Grüezi")),
    output_tokens=9,
)
TOKEN, THOUGHT, NOTHING = Delta(carries_tokens=True), Delta(carries_tokens=True, is_reasoning=True), Delta()


def body(**options: Any) -> Any:
    return json.loads(CHAT.body(REQUEST, Options(model="m", **options)))


def test_the_body_asks_for_exactly_this() -> None:
    assert CHAT.path == "/v1/chat/completions"
    assert body() == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüezi"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 9,
        "temperature": 0.7,
    }


def test_what_is_switched_off_is_absent() -> None:
    asked = body(stream=True, include_usage=False, ignore_eos=False, temperature=None)
    assert set(asked) == {"model", "messages", "max_tokens", "stream"}


def test_stream_options_only_go_with_a_stream() -> None:
    assert "stream_options" not in body(stream=False)
    assert body(stream=False)["stream"] is False


def test_extra_body_has_the_last_word() -> None:
    asked = body(extra_body={"temperature": 0, "top_k": 5, "stream_options": {"include_usage": False}})
    assert (asked["temperature"], asked["top_k"], asked["stream_options"]) == (0, 5, {"include_usage": False})


def choice(said: str, finish_reason: str = "null", name: str = "delta") -> str:
    return f'{{"choices":[{{"index":0,"{name}":{said},"finish_reason":{finish_reason}}}]}}'


EVENTS: dict[str, tuple[str, Delta]] = {
    "vLLM role": (choice('{"role":"assistant","content":""}'), NOTHING),
    "vLLM token": (choice('{"content":" Hello"}'), TOKEN),
    "a space is a token": (choice('{"content":" "}'), TOKEN),
    "vLLM last token": (choice('{"content":"!"}', '"length"'), Delta(carries_tokens=True, finish_reason="length")),
    "finish only": (choice("{}", '"stop"'), Delta(finish_reason="stop")),
    "finish with null content": (choice('{"content":null}', '"stop"'), Delta(finish_reason="stop")),
    "finish reason empty is none": (choice('{"content":"a"}', '""'), TOKEN),
    "no finish reason field": ('{"choices":[{"delta":{"content":"a"}}]}', TOKEN),
    "vLLM reasoning": (choice('{"reasoning":"Hm"}'), THOUGHT),
    "SGLang, DeepSeek reasoning": (choice('{"content":null,"reasoning_content":"Hm","tool_calls":null}'), THOUGHT),
    "both spellings at once": (choice('{"reasoning":"Hm","reasoning_content":"Hm"}'), THOUGHT),
    "empty reasoning": (choice('{"reasoning":"","reasoning_content":null}'), NOTHING),
    "the event in which thinking turns to answer": (choice('{"reasoning":".","content":"A"}'), TOKEN),
    "tool call name": (choice('{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}'), NOTHING),
    "tool call name, no arguments": (choice('{"tool_calls":[{"function":{"name":"f"}}]}'), NOTHING),
    "tool call arguments": (choice('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a"}}]}'), TOKEN),
    "second tool call's arguments": (
        choice('{"tool_calls":[{"function":null},{"function":{"arguments":"x"}}]}'),
        TOKEN,
    ),
    "no tool calls": (choice('{"content":"","tool_calls":[]}'), NOTHING),
    "TGI 2 tool call": (choice('{"tool_calls":{"index":0,"function":{"name":"f","arguments":"x"}}}'), TOKEN),
    "arguments as an object": (choice('{"tool_calls":[{"function":{"arguments":{"a":1}}}]}'), TOKEN),
    "function_call": (choice('{"function_call":{"name":"f","arguments":"x"}}'), TOKEN),
    "function_call name": (choice('{"function_call":{"name":"f"}}'), NOTHING),
    "parts": (choice('{"content":[{"type":"text","text":"a"}]}'), TOKEN),
    "empty parts": (choice('{"content":[{"type":"text","text":""},{"type":"image"}]}'), NOTHING),
    "no choices": ('{"choices":[]}', NOTHING),
    "null choices": ('{"choices":null,"usage":null}', NOTHING),
    "an empty object": ("{}", NOTHING),
    "null delta": (choice("null"), NOTHING),
    "a second choice": (
        '{"choices":[{"delta":{}},{"delta":{"content":"a"},"finish_reason":"stop"}]}',
        Delta(True, False, "stop"),
    ),
    "whole answer": (choice('{"role":"assistant","content":"Hi"}', '"stop"', "message"), Delta(True, False, "stop")),
    "whole thought": (choice('{"content":null,"reasoning":"Hm"}', '"length"', "message"), Delta(True, True, "length")),
    "null error": ('{"error":null,"choices":[{"delta":{"content":"a"}}]}', TOKEN),
    "a message field beside choices": ('{"message":"hi","choices":[{"delta":{"content":"a"}}]}', TOKEN),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str) -> None:
    data, delta = EVENTS[name]
    found = CHAT.read(data.encode())
    assert msgspec.structs.replace(found, text_bytes=0) == delta
    assert (found.text_bytes > 0) == found.carries_tokens


SIZES = {
    "plain": ('{"content":" word"}', 5),
    "escapes count as what they stand for": ('{"content":"\\u4f60\\n\\ud83d\\ude00"}', 3 + 1 + 4),
    "UTF-8": ('{"content":"Grüezi"}', 7),
    "thinking": ('{"reasoning_content":"Hm, "}', 4),
    "thinking under both names": ('{"reasoning_content":"Hm","reasoning":"Hm"}', 2),
    "thinking and answer": ('{"reasoning":"Hm","content":"Hi!"}', 5),
    "parts": ('{"content":[{"text":"ab"},{"text":null},{"text":"c"}]}', 3),
    "tool-call arguments": ('{"content":"","tool_calls":[{"function":{"name":"weather","arguments":"{\\"a"}}]}', 3),
    "two tool calls": ('{"tool_calls":[{"function":{"arguments":"ab"}},{"function":{"arguments":"c"}}]}', 3),
    "arguments as an object": ('{"tool_calls":[{"function":{"arguments":{"a":1}}}]}', 7),
    "a role": ('{"role":"assistant","content":""}', 0),
}


@pytest.mark.parametrize(("said", "size"), SIZES.values(), ids=SIZES)
def test_the_size_of_the_text(said: str, size: int) -> None:
    assert CHAT.read(choice(said).encode()).text_bytes == size


USAGES: dict[str, tuple[str, Usage | None]] = {
    "plain": ('{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}', Usage(7, 5)),
    "OpenAI, vLLM details": (
        '{"prompt_tokens":7,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":2},'
        '"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0}}',
        Usage(7, 5, 2, 4),
    ),
    "SGLang": (
        '{"prompt_tokens":7,"completion_tokens":5,"reasoning_tokens":3,"prompt_tokens_details":{"cached_tokens":6}}',
        Usage(7, 5, 3, 6),
    ),
    "null details": (
        '{"prompt_tokens":7,"completion_tokens":null,"completion_tokens_details":null,"prompt_tokens_details":null}',
        Usage(7),
    ),
    "details win over the top level": (
        '{"completion_tokens":5,"reasoning_tokens":0,"completion_tokens_details":{"reasoning_tokens":2}}',
        Usage(None, 5, 2),
    ),
    "zero is a number": ('{"prompt_tokens":0,"completion_tokens":0}', Usage(0, 0)),
    "null": ("null", None),
    "empty": ("{}", None),
}


@pytest.mark.parametrize("where", ["alone", "beside a token", "in the last choice"])
@pytest.mark.parametrize("name", USAGES)
def test_usage_wherever_it_stands(name: str, where: str) -> None:
    text, usage = USAGES[name]
    data = {
        "alone": f'{{"choices":[],"usage":{text}}}',
        "beside a token": f'{{"choices":[{{"delta":{{"content":"a"}}}}],"usage":{text}}}',
        "in the last choice": f'{{"choices":[{{"delta":{{}},"finish_reason":"stop","usage":{text}}}]}}',
    }[where]
    assert CHAT.read(data.encode()).usage == usage


ERRORS = {
    "OpenAI, vLLM, SGLang": ('{"error":{"message":"too long","type":"BadRequestError","code":400}}', "too long"),
    "string": ('{"error":"no such model"}', "no such model"),
    "TGI": ('{"error":"Request failed","error_type":"generation"}', "Request failed"),
    "older vLLM": ('{"object":"error","message":"too long","type":"BadRequestError","code":400}', "too long"),
    "llama.cpp error field": (
        '{"code":500,"message":"Context size exceeded","type":"server_error"}',
        "Context size exceeded",
    ),
    "detail": ('{"error":{"detail":"gone"}}', "gone"),
    "FastAPI": ('{"detail":[{"loc":["body","max_tokens"],"msg":"too small"}]}', "body.max_tokens: too small"),
    "with empty choices": ('{"choices":[],"error":{"message":"died"}}', "died"),
    "with a choice": (
        '{"choices":[{"delta":{"content":""},"finish_reason":"error"}],"error":{"message":"died"}}',
        "died",
    ),
    "of unknown shape": ('{"error":{"kaputt":1}}', '{"kaputt":1}'),
    "a number": ('{"error":500}', "500"),
    "of many lines": ('{"error":{"message":"a\\n\\u001b[31mb\\t\\tc"}}', "a [31mb c"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_inside_a_stream(name: str) -> None:
    data, message = ERRORS[name]
    assert CHAT.read(data.encode()).error == message


def test_an_error_message_is_bounded() -> None:
    error = CHAT.read(b'{"error":{"message":"' + b"x" * 10_000 + b'"}}').error
    assert error is not None
    assert len(error) == 300


MALFORMED = [
    b"",
    b"[DONE]",
    b"<html>",
    b"null",
    b"[]",
    b'"text"',
    b'{"choices":',
    b'{"choices":[{"delta":{"content":"a"}}]}}',
    b'{"choices":{}}',
    b'{"choices":[null]}',
    b'{"choices":[{"delta":{"content":5}}]}',
    b'{"choices":[{"delta":"a"}]}',
    b'{"choices":[],"usage":[1]}',
    b'{"choices":[],"usage":{"completion_tokens":"5"}}',
    b'{"choices":[],"usage":{"completion_tokens":-1}}',
    b'{"choices":[],"usage":{"completion_tokens":99999999999999999999999}}',
    b'{"choices":[{"delta":{"content":"\xff\xfe"}}]}',
    b'{"a":' + b"[" * 100_000,
    b'{"error":' + b"[" * 100_000,
]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: data[:40].decode("ascii", "ignore"))
def test_wrong_shapes_are_malformed_with_evidence(data: bytes) -> None:
    with pytest.raises(MalformedError) as refused:
        CHAT.read(data)
    reason = str(refused.value)
    assert printable(reason) == reason.strip()
    assert data[:20].decode("utf-8", "replace") in reason
    assert len(reason) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "content", "usage", "error", "message", "tool_calls", "function"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    try:
        delta = CHAT.read(data)
    except MalformedError:
        return
    assert delta.carries_tokens or not delta.is_reasoning
