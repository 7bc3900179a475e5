"""What is understood, and what is refused, in the words recorded from vLLM 0.32 (model names and limits are ours)."""

import contextlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.engine.api.completion_request import CompletionRequest, UsageRules, read_completion_request
from cadenza.engine.api.fields import RefusalError
from cadenza.engine.api.text import GENERATION_TOK, TEMPLATE_TOK_PER_MESSAGE, encode, encode_chat, salted
from cadenza.engine.profile import load

PROFILE = load("mi50-rx6900xt")
QWEN3, QWEN25, GEMMA = (model.name for model in PROFILE.models)
NO_RULES = UsageRules()
HI = [{"role": "user", "content": "hi there"}]


def ask(
    chat: bool,
    body: object,
    content_type: str = "application/json",
    headers: Mapping[str, str] = MappingProxyType({}),
    rules: UsageRules = NO_RULES,
) -> CompletionRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_completion_request(PROFILE, chat, {"content-type": content_type, **headers}, data, rules)


def refusal(chat: bool, body: object, content_type: str = "application/json") -> tuple[int, dict[str, Any]]:
    with pytest.raises(RefusalError) as caught:
        ask(chat, body, content_type)
    error: dict[str, Any] = json.loads(caught.value.body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == caught.value.status
    return caught.value.status, error


def test_a_chat_is_counted_and_half_of_it_is_thinking() -> None:
    body = {"model": QWEN3, "messages": HI, "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}
    assert ask(True, body) == CompletionRequest(
        model=QWEN3,
        chat=True,
        prompt=encode_chat([("user", "hi there")]),
        output_tokens=9,
        max_tokens=9,
        reasoning_tokens=4,
        reasons=True,
        stream=True,
        include_usage=True,
    )


def test_thinking_ends_with_the_model_the_switch_and_the_api() -> None:
    assert ask(True, {"model": QWEN25, "messages": HI, "max_tokens": 8}).reasoning_tokens == 0
    switched = {"model": QWEN3, "messages": HI, "max_tokens": 8, "chat_template_kwargs": {"enable_thinking": False}}
    assert (ask(True, switched).reasoning_tokens, ask(True, switched).reasons) == (0, True)
    assert ask(False, {"model": QWEN3, "prompt": "a", "max_tokens": 8}).reasoning_tokens == 0


@pytest.mark.parametrize(
    ("chat", "body", "tokens"),
    [
        (False, {"prompt": "a b"}, 16),
        (False, {"prompt": ["a b"], "max_tokens": 3}, 3),
        (False, {"prompt": [5, 6, 7], "max_tokens": 8192}, 8189),
        (True, {"messages": HI}, 8192 - 2 - TEMPLATE_TOK_PER_MESSAGE - GENERATION_TOK),
        (True, {"messages": HI, "max_tokens": "5"}, 5),
        (True, {"messages": HI, "max_tokens": 5, "max_completion_tokens": 3}, 3),
        (True, {"messages": HI, "max_tokens": 5.0, "max_completion_tokens": None}, 5),
        (True, {"messages": HI, "max_tokens": 5, "ignore_eos": True, "min_tokens": 5, "temperature": 0.7}, 5),
        (True, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 2}, 2),
    ],
)
def test_output_length(chat: bool, body: dict[str, object], tokens: int) -> None:
    understood = ask(chat, body)
    assert understood.output_tokens == tokens
    assert understood.model == QWEN3


def test_prompts_become_ids() -> None:
    assert ask(False, {"prompt": "a b"}).prompt == encode("a b")
    assert ask(False, {"prompt": [5, 6, 7]}).prompt == [5, 6, 7]
    assert ask(False, {"prompt": [[5, 6]]}).prompt == [5, 6]
    assert ask(False, {"prompt": "  "}).prompt_tokens == 1
    assert ask(False, {"prompt": "a b", "cache_salt": "s"}).prompt == salted(encode("a b"), "s")
    turns = [*HI, {"role": "assistant", "content": "yes"}]
    assert ask(True, {"messages": turns}).prompt == encode_chat([("user", "hi there"), ("assistant", "yes")])


def test_what_was_asked_for_is_kept_beside_what_there_will_be() -> None:
    assert (ask(True, {"messages": HI, "max_tokens": 8192}).max_tokens, ask(True, {"messages": HI}).max_tokens) == (
        8192,
        None,
    )
    assert ask(False, {"prompt": "a"}).max_tokens == 16


@pytest.mark.parametrize(
    ("field", "header", "priority"), [(None, None, 0), (4, None, 4), (4, "-7", -7), (4, "soon", 4), ("3", None, 3)]
)
def test_a_header_goes_before_the_field(field: object, header: str | None, priority: int) -> None:
    headers = {} if header is None else {"x-vllm-priority": header}
    assert ask(True, {"messages": HI, "priority": field}, headers=headers).priority == priority


@pytest.mark.parametrize(
    ("options", "rules", "told"),
    [
        (None, UsageRules(), (False, False)),
        ({}, UsageRules(), (False, False)),
        ({"include_usage": True}, UsageRules(), (True, False)),
        ({"include_usage": "true", "continuous_usage_stats": 1}, UsageRules(), (True, True)),
        ({"continuous_usage_stats": True}, UsageRules(), (False, False)),
        ({"include_usage": False}, UsageRules(force_include=True), (True, True)),
        (None, UsageRules(force_include=True), (True, True)),
    ],
)
def test_usage_rules(options: object, rules: UsageRules, told: tuple[bool, bool]) -> None:
    understood = ask(True, {"messages": HI, "stream": True, "stream_options": options}, rules=rules)
    assert (understood.include_usage, understood.continuous_usage) == told
    assert not understood.prompt_details
    assert ask(True, {"messages": HI}, rules=UsageRules(prompt_details=True)).prompt_details


LONG = [5] * 8193
REFUSED: list[tuple[bool, object, int, str, str | None, str | None]] = [
    (
        True,
        {"model": "nope", "messages": HI},
        404,
        "NotFoundError",
        "model",
        f"The model `nope` does not exist. Valid aliases: {QWEN3}, {QWEN25}, {GEMMA}.",
    ),
    (
        True,
        b"{bad",
        400,
        "Bad Request",
        None,
        None,
    ),
    (
        True,
        b"",
        400,
        "Bad Request",
        None,
        None,
    ),
    (
        True,
        [],
        400,
        "Bad Request",
        None,
        None,
    ),
    (
        True,
        {"model": QWEN3},
        400,
        "Bad Request",
        "messages",
        None,
    ),
    (
        True,
        {"messages": "hi"},
        400,
        "Bad Request",
        "messages",
        None,
    ),
    (
        True,
        {"messages": []},
        400,
        "BadRequestError",
        None,
        "Cannot apply chat template to an empty conversation. Provide at least one message.",
    ),
    (
        True,
        {"messages": HI, "max_tokens": "a"},
        400,
        "Bad Request",
        "max_tokens",
        None,
    ),
    (
        True,
        {"messages": HI, "max_tokens": 2.5},
        400,
        "Bad Request",
        "max_tokens",
        None,
    ),
    (
        True,
        {"model": 5, "messages": HI},
        400,
        "Bad Request",
        "model",
        None,
    ),
    (
        True,
        {"messages": HI, "stream": "maybe"},
        400,
        "Bad Request",
        "stream",
        None,
    ),
    (
        True,
        {"messages": HI, "max_tokens": 0},
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    ),
    (
        False,
        {"prompt": "a", "max_tokens": 999999},
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens=999999 cannot be greater than max_model_len=8192. Please request fewer output tokens. "
        "(parameter=max_tokens, value=999999)",
    ),
    (
        True,
        {"messages": HI, "max_completion_tokens": 99999},
        400,
        "BadRequestError",
        "max_completion_tokens",
        "max_completion_tokens=99999 cannot be greater than max_model_len=8192. Please request fewer output tokens. "
        "(parameter=max_completion_tokens, value=99999)",
    ),
    (
        False,
        {"prompt": LONG},
        400,
        "BadRequestError",
        "input_tokens",
        "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        "(parameter=input_tokens, value=8193)",
    ),
    (
        False,
        {"prompt": LONG[1:]},
        400,
        "BadRequestError",
        "max_tokens",
        "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    ),
    (
        False,
        {"model": QWEN3},
        400,
        "BadRequestError",
        "prompt",
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
    ),
    (False, {"prompt": []}, 400, "BadRequestError", None, "You must pass at least one prompt"),
    (
        True,
        {"messages": HI, "max_tokens": 2, "min_tokens": 5},
        400,
        "BadRequestError",
        None,
        "min_tokens must be less than or equal to max_tokens=2, got 5.",
    ),
    (
        True,
        {"messages": HI, "stream_options": {"include_usage": True}},
        400,
        "BadRequestError",
        "stream_options",
        "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
    ),
    (
        True,
        {"messages": HI, "temperature": -3.0},
        400,
        "BadRequestError",
        "temperature",
        "temperature must be non-negative, got -3.0. (parameter=temperature, value=-3.0)",
    ),
]


@pytest.mark.parametrize(("chat", "body", "status", "kind", "param", "message"), REFUSED)
def test_refusals_are_vllms(
    chat: bool, body: object, status: int, kind: str, param: str | None, message: str | None
) -> None:
    """Status, type and field; the words where the request was well-formed."""
    got, error = refusal(chat, body)
    assert (got, error["type"], error["param"]) == (status, kind, param)
    assert message is None or error["message"] == message


def test_another_content_type_is_refused() -> None:
    _, error = refusal(True, {"messages": HI}, "text/plain")
    assert (error["type"], error["param"], error["code"]) == ("Bad Request", None, 400)
    assert ask(True, {"messages": HI}, "application/json; charset=utf-8").prompt_tokens > 0


@pytest.mark.parametrize("body", [{"prompt": ["a", "b"]}, {"prompt": "a", "n": 2}])
def test_what_the_engine_cannot_do_is_refused_not_ignored(body: dict[str, object]) -> None:
    assert refusal(False, body)[0] == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "n", "stream")
MORE_FIELDS = ("stream_options", "temperature", "chat_template_kwargs", "priority", "cache_salt", "top_p", "seed")


@settings(deadline=None)
@given(body=st.dictionaries(st.sampled_from(FIELDS + MORE_FIELDS), JSON), chat=st.booleans())
def test_any_body_is_understood_or_refused(body: dict[str, object], chat: bool) -> None:
    with contextlib.suppress(RefusalError):
        understood = ask(chat, body)
        assert 1 <= understood.output_tokens <= 8192 - understood.prompt_tokens


def test_the_field_that_is_wrong_is_named() -> None:
    for body, param in (
        ({"messages": HI, "model": 5}, "model"),
        ({"messages": [5]}, "messages.0"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        (
            {"messages": HI, "stream": True, "stream_options": {"include_usage": "perhaps"}},
            "stream_options.include_usage",
        ),
    ):
        status, error = refusal(True, body)
        assert (status, error["param"]) == (400, param)
        assert param in error["message"]


@settings(deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RefusalError):
        ask(False, data)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"max_tokens":' + b"9" * 5000 + b"}", b'{"a":"\xff"}'])
def test_hostile_json_is_refused(data: bytes) -> None:
    assert refusal(True, data)[0] == 400
