"""The completions dialect: what is asked, and what an event says."""

import json

import msgspec
import pytest

from cadenza.record import Message, Request
from cadenza.wire.dialect import Delta, MalformedError, Options, Usage
from cadenza.wire.openai_completions import CompletionsDialect

COMPLETIONS = CompletionsDialect()


def test_the_body_of_one_message_is_its_text() -> None:
    request = Request(index=0, messages=(Message(role="user", content="Once upon"),), output_tokens=5)
    assert COMPLETIONS.path == "/v1/completions"
    assert json.loads(COMPLETIONS.body(request, Options(model="m", temperature=None))) == {
        "model": "m",
        "prompt": "Once upon",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 5,
    }


def test_a_conversation_is_its_turns_joined() -> None:
    turns = tuple(Message(role=role, content=text) for role, text in [("user", "a"), ("assistant", "b"), ("user", "c")])
    request = Request(index=0, messages=turns, output_tokens=5)
    asked = json.loads(COMPLETIONS.body(request, Options(model="m", extra_body={"max_tokens": 1})))
    assert (asked["prompt"], asked["max_tokens"]) == ("a\n\nb\n\nc", 1)


EVENTS: dict[str, tuple[str, Delta]] = {
    "token": ('{"choices":[{"index":0,"text":" a","finish_reason":null}]}', Delta(carries_tokens=True)),
    "empty text": ('{"choices":[{"text":""}]}', Delta()),
    "null text": ('{"choices":[{"text":null,"finish_reason":"stop"}]}', Delta(finish_reason="stop")),
    "last token": ('{"choices":[{"text":"a","finish_reason":"length"}]}', Delta(True, False, "length")),
    "usage on an empty last text": (
        '{"choices":[{"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
        Delta(finish_reason="stop", usage=Usage(3, 2)),
    ),
    "usage alone": ('{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}', Delta(usage=Usage(3, 2))),
    "usage in the choice": (
        '{"choices":[{"text":"a","usage":{"completion_tokens":2}}]}',
        Delta(True, usage=Usage(None, 2)),
    ),
    "error": ('{"error":{"message":"no"}}', Delta(error="no")),
    "older vLLM error": ('{"object":"error","message":"no"}', Delta(error="no")),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str) -> None:
    data, delta = EVENTS[name]
    found = COMPLETIONS.read(data.encode())
    assert msgspec.structs.replace(found, text_bytes=0) == delta
    assert (found.text_bytes > 0) == found.carries_tokens


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"choices":[{"text":1}]}', b'{"choices":[{"text":"a"}'])
def test_wrong_shapes_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        COMPLETIONS.read(data)
