"""Responses against streams recorded from vLLM 0.32: the same bytes, once ids, times, names and words are put aside."""

import json
import re
from pathlib import Path

import pytest

from cadenza.engine.api.answer import FINGERPRINT, CompletionResponse, models_body
from cadenza.engine.api.completion_request import CompletionRequest
from cadenza.engine.api.text import word
from cadenza.engine.profile import load

GOLDEN = Path(__file__).parents[2] / "golden" / "streams"


def anonymous(stream: bytes) -> str:
    text = stream.decode()
    for pattern, put in (
        (r'"id":"(\w+)-[0-9a-f]{16}"', r'"id":"\1-ID"'),
        (r'"created":\d+', '"created":0'),
        (r'"model":"[^"]*"', '"model":"M"'),
        (r'"(content|text)":"[^"]+"', r'"\1":"WORD"'),
        (r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"F"'),
    ):
        text = re.sub(pattern, put, text)
    return text


@pytest.mark.parametrize(
    ("recording", "wanted"),
    [
        ("chat.sse", CompletionRequest(model="m", chat=True, prompt=[0] * 22, output_tokens=12)),
        (
            "chat-usage.sse",
            CompletionRequest(model="m", chat=True, prompt=[0] * 22, output_tokens=12, include_usage=True),
        ),
        (
            "chat-running-usage.sse",
            CompletionRequest(
                model="m", chat=True, prompt=[0] * 22, output_tokens=12, include_usage=True, continuous_usage=True
            ),
        ),
        ("completions.sse", CompletionRequest(model="m", chat=False, prompt=[0] * 6, output_tokens=12)),
        (
            "completions-usage.sse",
            CompletionRequest(model="m", chat=False, prompt=[0] * 6, output_tokens=12, include_usage=True),
        ),
    ],
)
def test_streams_are_vllms_byte_for_byte(recording: str, wanted: CompletionRequest) -> None:
    answer = CompletionResponse(wanted, number=255, created=1700000000, chunked=False)
    ours = b"".join(answer.tokens(n) for n in range(1, wanted.output_tokens + 1))
    assert anonymous(ours) == anonymous((GOLDEN / f"vllm-0.32-{recording}").read_bytes())


FORCED = {"include_usage": True, "continuous_usage": True, "prompt_details": True}


@pytest.mark.parametrize(
    ("recording", "wanted"),
    [
        ("chat-forced-usage.sse", CompletionRequest(model="m", chat=True, prompt=[0] * 22, output_tokens=10, **FORCED)),
        (
            "completions-forced-usage.sse",
            CompletionRequest(model="m", chat=False, prompt=[0] * 6, output_tokens=10, **FORCED),
        ),
    ],
)
def test_events_of_four_tokens_with_usage_and_its_details_are_vllms(recording: str, wanted: CompletionRequest) -> None:
    answer = CompletionResponse(wanted, number=255, created=1700000000, chunked=False)
    ours = b"".join(answer.tokens(n, count) for n, count in ((1, 1), (5, 4), (9, 4), (10, 1)))
    assert anonymous(ours) == anonymous((GOLDEN / f"vllm-0.32-{recording}").read_bytes())


@pytest.mark.parametrize(("kind", "prompt", "chat"), [("chat", 22, True), ("completions", 6, False)])
def test_whole_answers_with_prompt_details_are_vllms(kind: str, prompt: int, chat: bool) -> None:
    request = CompletionRequest(model="m", chat=chat, prompt=[0] * prompt, output_tokens=10, prompt_details=True)
    recording = (GOLDEN / f"vllm-0.32-{kind}-prompt-details.json").read_bytes()
    assert anonymous(CompletionResponse(request, 1, 0).whole()) == anonymous(recording)


def test_an_event_across_the_end_of_thinking_says_both() -> None:
    request = CompletionRequest(model="m", chat=True, prompt=[1], output_tokens=9, reasoning_tokens=4, reasons=True)
    events = CompletionResponse(request, 1, 0, chunked=False).tokens(6, 4).decode()
    assert json.loads(events.removeprefix("data: "))["choices"][0]["delta"] == {
        "content": word(1, 5) + word(1, 6),
        "reasoning": word(1, 3) + word(1, 4),
    }


@pytest.mark.parametrize("thinking", [0, 60])
def test_an_event_told_again_says_its_own_word(thinking: int) -> None:
    request = CompletionRequest(
        model="m", chat=True, prompt=[1], output_tokens=200, reasoning_tokens=thinking, reasons=True
    )
    answer = CompletionResponse(request, 5, 0, chunked=False)
    for n in range(2, 200):
        delta = json.loads(answer.tokens(n).decode().removeprefix("data: "))["choices"][0]["delta"]
        assert delta == {"reasoning" if n <= thinking else "content": word(5, n)}


@pytest.mark.parametrize("chat", [True, False])
def test_whole_answers_are_vllms_byte_for_byte(chat: bool) -> None:
    recording = GOLDEN / f"vllm-0.32-{'chat' if chat else 'completions'}-whole.json"
    usage = json.loads(recording.read_bytes())["usage"]
    request = CompletionRequest(
        model="m", chat=chat, prompt=[0] * usage["prompt_tokens"], output_tokens=usage["completion_tokens"]
    )
    assert anonymous(CompletionResponse(request, 1, 0).whole()) == anonymous(recording.read_bytes())


def deltas(request: CompletionRequest) -> list[dict[str, str]]:
    answer = CompletionResponse(request, 1, 0, chunked=False)
    events = b"".join(answer.tokens(n) for n in range(1, request.output_tokens + 1)).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-2]]


def test_thinking_comes_first_in_its_own_field() -> None:
    got = deltas(
        CompletionRequest(model="m", chat=True, prompt=[0] * 1, output_tokens=5, reasoning_tokens=2, reasons=True)
    )
    assert [list(delta) for delta in got] == [["role", "content"], *[["reasoning"]] * 2, *[["content"]] * 3]


@pytest.mark.parametrize(("output", "events"), [(1, 2), (2, 3)])
def test_the_shortest_answers_are_complete(output: int, events: int) -> None:
    assert len(deltas(CompletionRequest(model="m", chat=True, prompt=[0] * 1, output_tokens=output))) == events


def test_usage_of_a_thinking_model_counts_its_thinking() -> None:
    request = CompletionRequest(
        model="m",
        chat=True,
        prompt=[0] * 3,
        output_tokens=4,
        reasoning_tokens=2,
        reasons=True,
        include_usage=True,
        continuous_usage=True,
    )
    answer = CompletionResponse(request, 1, 0, chunked=False)
    events = b"".join(answer.tokens(n) for n in range(1, 5)).decode().split("\n\n")[:-2]
    usages = [json.loads(event.removeprefix("data: "))["usage"] for event in events]
    assert [usage["completion_tokens"] for usage in usages] == [0, 1, 2, 3, 4, 4]
    assert [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages] == [0, 1, 2, 2, 2, 2]
    assert all(usage["total_tokens"] == 3 + usage["completion_tokens"] for usage in usages)
    message = json.loads(answer.whole())["choices"][0]["message"]
    assert [len(message[part].split()) for part in ("reasoning", "content")] == [2, 2]


def test_a_framed_token_is_its_event_in_chunks() -> None:
    request = CompletionRequest(model="m", chat=True, prompt=[0] * 3, output_tokens=3, include_usage=True)
    for n in (1, 2, 3):
        rest, bare = CompletionResponse(request, 9, 0, chunked=True).tokens(n), b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            bare += rest[: int(size, 16)]
            assert rest[int(size, 16) :][:2] == b"\r\n"
            rest = rest[int(size, 16) + 2 :]
        assert bare == CompletionResponse(request, 9, 0, chunked=False).tokens(n)


def test_answers_say_that_they_are_simulated() -> None:
    assert "simulated" in FINGERPRINT
    cards = json.loads(models_body(load("mi50-rx6900xt"), 5))["data"]
    assert [card["id"] for card in cards] == [model.name for model in load("mi50-rx6900xt").models]
    assert all(card["max_model_len"] == 8192 and "simulated" in card["owned_by"] for card in cards)
