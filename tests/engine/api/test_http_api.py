"""The api in virtual time, through nothing but bytes; answers are read back with httptools."""

import json

import pytest

from cadenza.engine.api.completion_request import UsageRules
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.core.core import Core
from support.engine import (
    MODELS,
    PROFILE,
    QWEN3,
    QWEN25,
    STEP_NS,
    TTFT_NS,
    answers,
    converse,
    get,
    post,
    quiet_face,
    steady_core,
)


def chat(tokens: int, model: str = QWEN25, stream: bool = True) -> bytes:
    messages = [{"role": "user", "content": "hi there"}]
    return post("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": tokens, "stream": stream})


def test_a_stream_comes_at_the_laws_times() -> None:
    client = converse(quiet_face(), {1: [chat(4)]}, now_ns=500)[1]
    head, *events = client.stamps
    assert head[0] == 500
    assert head[1].endswith(b"\r\n\r\n")
    assert [at for at, _ in events] == [500 + TTFT_NS + n * STEP_NS for n in range(4)]
    assert events[0][1].count(b"data: ") == 2
    status, body = client.answers[0]
    assert status == 200
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert body.endswith(b"data: [DONE]\n\n")
    assert b'"created":1700000000' in body
    assert not client.closed


def test_requests_may_come_byte_by_byte() -> None:
    data = chat(3)
    split = [data[at : at + 1] for at in range(len(data))]
    assert converse(quiet_face(), {1: split})[1].answers == answers(data)


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    got = answers(chat(2) + get("/health") + chat(3, stream=False) + get("/nope"))
    assert [status for status, _ in got] == [200, 200, 200, 404]
    assert got[0][1].endswith(b"data: [DONE]\n\n")
    assert got[1][1] == b""
    assert json.loads(got[2][1])["usage"] == {
        "prompt_tokens": 2 + 5 + 3,
        "total_tokens": 13,
        "completion_tokens": 3,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_connection_close_is_kept_to() -> None:
    data = post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, "connection: close")
    client = converse(quiet_face(), {1: [data]})[1]
    assert client.closed
    assert client.headers["connection"] == "close"
    assert client.answers[0][1].endswith(b"data: [DONE]\n\n")


def test_an_old_client_gets_a_bare_stream_that_the_close_ends() -> None:
    data = post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    client = converse(quiet_face(), {1: [data]})[1]
    assert client.closed
    assert "transfer-encoding" not in client.headers
    assert client.stamps[-1][1].endswith(b"data: [DONE]\n\n")


def test_a_client_that_leaves_takes_its_request_with_it() -> None:
    core = steady_core()
    api = HttpApi(PROFILE, core=core)
    api.receive(1, chat(1000), 0)
    api.take(0)
    due = api.next_ns()
    assert due is not None
    api.take(due)
    assert core.in_system(QWEN25) == 1
    api.receive(1, b"", due + 1)
    assert core.in_system(QWEN25) == 0
    assert api.next_ns() is None
    api.receive(2, b"", due + 2)


def test_models_share_nothing_but_the_door() -> None:
    both = converse(quiet_face(), {1: [chat(3, QWEN25)], 2: [chat(5, QWEN3)]})
    alone = converse(quiet_face(), {1: [chat(3, QWEN25)]})[1]
    assert [at for at, _ in both[1].stamps] == [at for at, _ in alone.stamps]
    assert b'"reasoning":' in both[2].answers[0][1]


def test_the_pages() -> None:
    assert answers(get("/health")) == [(200, b"")]
    assert b"(simulated)" in answers(get("/version"))[0][1]
    listed = json.loads(answers(get("/v1/models?x=1"))[0][1])
    assert [card["id"] for card in listed["data"]] == list(MODELS)


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (get("/nope"), 404, {"detail": "Not Found"}),
        (get("/v1/chat/completions"), 405, {"detail": "Method Not Allowed"}),
        (post("/v1/models", {}), 405, {"detail": "Method Not Allowed"}),
    ],
)
def test_wrong_doors(data: bytes, status: int, body: dict[str, str]) -> None:
    got = answers(data + get("/health"))
    assert (got[0][0], json.loads(got[0][1])) == (status, body)
    assert got[1] == (200, b"")


def test_head_gets_no_body() -> None:
    client = converse(quiet_face(), {1: [get("/health").replace(b"GET", b"HEAD")]})[1]
    assert client.stamps[0][1].startswith(b"HTTP/1.1 405 ")
    assert client.stamps[0][1].endswith(b"\r\n\r\n")


def test_a_refusal_leaves_the_connection_usable() -> None:
    got = answers(post("/v1/completions", b"{bad") + get("/health"))
    assert [status for status, _ in got] == [400, 200]


@pytest.mark.parametrize("when", ["before", "during"])
def test_garbage_is_answered_after_what_came_before_it_and_ends_the_connection(when: str) -> None:
    first = chat(2) if when == "during" else get("/health")
    client = converse(quiet_face(), {1: [first, b"GARBAGE\r\n\r\n", get("/health")]})[1]
    assert [status for status, _ in client.answers] == [200, 400]
    assert client.answers[1][1] == b"Invalid HTTP request received."
    assert client.closed


def test_a_key_is_asked_for_at_v1_alone() -> None:
    api = quiet_face(api_key="sésame")
    assert answers(get("/v1/models"), api) == [(401, b'{"error":"Unauthorized"}')]
    for wrong in ("Bearer nope", "Basic sésame", "sésame", "Bearer"):
        assert answers(get("/v1/models", f"authorization: {wrong}"), api)[0][0] == 401
    assert answers(get("/v1/models", "authorization: bearer sésame"), api)[0][0] == 200
    assert answers(get("/health"), api)[0][0] == 200


def test_a_large_body_is_invited() -> None:
    data = post("/v1/completions", {"prompt": "a", "max_tokens": 1}, "expect: 100-continue")
    head, separator, body = data.partition(b"\r\n\r\n")
    api = quiet_face()
    api.receive(1, head + separator, 0)
    assert api.next_ns() == 0
    assert api.take(0) == [(1, b"HTTP/1.1 100 Continue\r\n\r\n")]
    assert converse(api, {1: [body]})[1].answers[0][0] == 200


def test_a_key_guards_what_vllm_guards() -> None:
    api = quiet_face(api_key="k")
    for path in ("/v1x", "/v2/rerank", "/inference/v1/generate", "/cohere/x"):
        assert answers(get(path), api)[0] == (401, b'{"error":"Unauthorized"}')
    assert answers(get("/metrics"), api)[0][0] == 200
    assert answers(get("/v1/models").replace(b"GET", b"OPTIONS"), api)[0][0] == 405


def usages(body: bytes) -> list[dict[str, object] | None]:
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n")[:-2]]
    return [json.loads(event).get("usage") for event in events]


def test_usage_is_forced_on_every_event_and_its_end() -> None:
    api = HttpApi(PROFILE, core=steady_core(), rules=UsageRules(force_include=True))
    told = usages(answers(chat(3), api)[0][1])
    assert [usage and usage["completion_tokens"] for usage in told] == [0, 1, 2, 3, 3]
    assert usages(answers(chat(3))[0][1]) == [None] * 4


def follow_up(said: str) -> bytes:
    messages = [
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "go on"},
    ]
    return post("/v1/chat/completions", {"model": QWEN25, "messages": messages, "max_tokens": 3})


@pytest.mark.parametrize("told", [True, False])
def test_a_follow_up_finds_its_conversation_in_the_cache_and_details_are_for_who_enabled_them(told: bool) -> None:
    core = steady_core(block_size=4)
    api = HttpApi(PROFILE, core=core, rules=UsageRules(prompt_details=told))
    first = json.loads(answers(chat(20, stream=False), api)[0][1])
    details = json.loads(answers(follow_up(first["choices"][0]["message"]["content"]), api)[0][1])["usage"]
    # 10 of the prompt and 19 of the answer, whose last token is never computed: 7 whole blocks of 4.
    assert (details["prompt_tokens_details"] or {}).get("cached_tokens") == (28 if told else None)
    assert first["usage"]["prompt_tokens"] == 10
    assert details["prompt_tokens"] == 3 * 5 + 2 + 20 + 2 + 3
    salted = post("/v1/completions", {"model": QWEN25, "prompt": "hi there " * 8, "max_tokens": 2, "cache_salt": "s"})
    again = [json.loads(answers(salted, api)[0][1])["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert [(one or {}).get("cached_tokens") for one in again] == ([0, 12] if told else [None, None])


def test_an_event_of_several_tokens_says_them_all() -> None:
    api = HttpApi(PROFILE, core=steady_core(stream_interval=4))
    client = converse(api, {1: [chat(10)]})[1]
    events = [json.loads(event[6:]) for event in client.answers[0][1].decode().split("\n\n")[1:-2]]
    assert [len(event["choices"][0]["delta"]["content"].split()) for event in events] == [1, 4, 4, 1]
    alone = converse(quiet_face(), {1: [chat(10)]})[1].answers[0][1].decode().split("\n\n")[1:-2]
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == "".join(
        json.loads(event[6:])["choices"][0]["delta"]["content"] for event in alone
    )


def test_the_engine_hears_of_ids_priority_and_limit() -> None:
    heard: list[tuple[object, ...]] = []

    class Ear(Core):
        def submit(self, *told: object, **_: object) -> None:
            heard.append(told)

    api = HttpApi(PROFILE, core=Ear({}))
    body = {"model": QWEN25, "prompt": [5, 6, 7], "max_tokens": 9000 - 809, "priority": 3}
    api.receive(1, post("/v1/completions", body), 77)
    api.receive(2, post("/v1/completions", body, "x-vllm-priority: -2"), 78)
    assert heard == [
        (1, QWEN25, [5, 6, 7], 8189, 77, 3, 8191, False),
        (2, QWEN25, [5, 6, 7], 8189, 78, -2, 8191, False),
    ]
