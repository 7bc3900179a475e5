"""The catalogue, and the golden streams read through parser and dialect together."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from cadenza.spec import Api
from cadenza.wire.dialect import Delta, Usage
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.sse import Event, SseParser

Deliveries = Callable[[bytes], Iterator[list[bytes]]]
GOLDEN = Path(__file__).parent.parent / "golden" / "streams"
STREAMS = sorted(path.name for path in GOLDEN.glob("*.sse"))


def test_every_api_of_the_spec_has_its_dialect() -> None:
    assert set(DIALECTS) == set(get_args(Api))


def parse(reads: list[bytes]) -> list[Event]:
    parser = SseParser()
    return [event for read in reads for event in parser.feed(read)] + parser.close()


def read(name: str) -> list[Delta]:
    dialect = DIALECTS["completions" if "completions" in name else "chat"]
    events = parse([(GOLDEN / name).read_bytes()])
    return [dialect.read(event.data) for event in events if event.data.strip() != b"[DONE]"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("name", STREAMS)
def test_golden_streams_whole_bytewise_and_cut(name: str, line_end: bytes, deliveries: Deliveries) -> None:
    stream = (GOLDEN / name).read_bytes()
    # These streams have one line of data an event, so that lines and prefixes are oracle enough.
    lines = [line for line in stream.split(b"\n") if line.startswith((b"data:", b"error:"))]
    expected = [line.partition(b":")[2].removeprefix(b" ") for line in lines]
    for reads in deliveries(stream.replace(b"\n", line_end)):
        assert [event.data for event in parse(reads)] == expected


# name -> (events with tokens, of these reasoning, finish reason, last usage); by counting in the files.
EXPECTED: dict[str, tuple[int, int, str | None, Usage | None]] = {
    "vllm-0.32-chat.sse": (12, 0, "length", None),
    "vllm-0.32-chat-usage.sse": (12, 0, "length", Usage(22, 12)),
    "vllm-0.32-chat-running-usage.sse": (12, 0, "length", Usage(22, 12)),
    "vllm-0.32-completions.sse": (12, 0, "length", None),
    "vllm-0.32-completions-usage.sse": (12, 0, "length", Usage(6, 12)),
    "vllm-0.32-chat-reasoning.sse": (12, 12, "length", Usage(22, 12, 12)),
    "typed-vllm-chat-reasoning.sse": (5, 3, "stop", Usage(14, 6, 4)),
    "typed-vllm-chat-tools.sse": (2, 0, "tool_calls", None),
    "typed-vllm-chat-error.sse": (1, 0, None, None),
    "typed-sglang-chat.sse": (3, 1, "stop", Usage(11, 5, 1, 8)),
    "typed-llamacpp-chat.sse": (2, 0, "stop", Usage(10, 3)),
    "typed-llamacpp-error-field.sse": (1, 0, None, None),
    "typed-tgi-chat.sse": (2, 0, "stop", Usage(40, 3)),
    "typed-tgi-error.sse": (0, 0, None, None),
    "typed-ollama-chat.sse": (2, 0, "stop", Usage(26, 3)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_golden_streams_say_what_they_say(name: str) -> None:
    deltas = read(name)
    tokens = sum(delta.carries_tokens for delta in deltas)
    reasoning = sum(delta.is_reasoning for delta in deltas)
    finish = [delta.finish_reason for delta in deltas if delta.finish_reason]
    usage = [delta.usage for delta in deltas if delta.usage]
    assert (tokens, reasoning, finish[-1] if finish else None, usage[-1] if usage else None) == EXPECTED[name]


def test_running_usage_counts_up_with_the_tokens() -> None:
    counts = [delta.usage.output_tokens for delta in read("vllm-0.32-chat-running-usage.sse") if delta.usage]
    assert counts == [*range(13), 12]


def test_a_token_held_back_inside_a_character_carries_no_text() -> None:
    name = "vllm-0.32-chat-multibyte.sse"
    chunks = [json.loads(line[6:]) for line in (GOLDEN / name).read_text().splitlines() if line.startswith("data: {")]
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    assert sum(delta.carries_tokens for delta in read(name)) == sum(map(bool, texts))
    assert sum(map(bool, texts)) < chunks[-1]["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("typed-vllm-chat-error.sse", "EngineCore encountered an issue. See stack trace (above) for the root cause."),
        ("typed-llamacpp-error-field.sse", "Context size has been exceeded."),
        ("typed-tgi-error.sse", "Request failed during generation: Server error: CUDA out of memory"),
    ],
)
def test_golden_errors(name: str, error: str) -> None:
    assert [delta.error for delta in read(name) if delta.error] == [error]


@pytest.mark.parametrize(("name", "usage"), [("chat", Usage(22, 12)), ("completions", Usage(6, 12))])
def test_recorded_whole_answers(name: str, usage: Usage) -> None:
    data = (GOLDEN / f"vllm-0.32-{name}-whole.json").read_bytes()
    text = json.loads(data)["choices"][0]
    size = len((text["text"] if "text" in text else text["message"]["content"]).encode())
    assert DIALECTS[name].read(data) == Delta(True, finish_reason="length", usage=usage, text_bytes=size)
