"""What is answered at once, against exchanges recorded from vLLM 0.32: status, header lines that matter, body."""

import json
from pathlib import Path
from typing import Any

import httptools
import msgspec
import pytest

from cadenza.engine.api.http import Output
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.text import encode, encode_chat
from cadenza.engine.profile import load

GOLDEN = Path(__file__).parents[2] / "golden" / "streams" / "vllm-0.32-answers.jsonl"
EXCHANGES = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
PROFILE = load("mi50-rx6900xt")
# The recorded server's name for its model, and its context.
TINY = msgspec.structs.replace(
    PROFILE,
    models=(msgspec.structs.replace(PROFILE.models[1], name="tiny"),),
    limits=msgspec.structs.replace(PROFILE.limits, max_model_len=2048),
)
HELLO = [{"role": "user", "content": "Say hello in five languages."}]


class CompletionResponse:
    """One answer, taken apart."""

    def __init__(self, said: list[tuple[int, Output]], head: bool = False) -> None:
        data = b"".join(piece for _, piece in said if isinstance(piece, bytes))
        self.headers: dict[str, str] = {}
        self.body = b""
        self.raw = data
        parser = httptools.HttpResponseParser(self)
        if head:
            # Its length is that of a body which does not come.
            parser.feed_data(data.replace(b"content-length", b"x-length"))
        else:
            parser.feed_data(data)
        self.status: int = parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self.body += data

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(method: str, path: str, body: str | None = None, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1:18417"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    data = (body or "").encode()
    if body is not None:
        lines.append(f"content-length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def ask(api: HttpApi, method: str, path: str, body: str | None = None, **headers: str) -> CompletionResponse:
    api.receive(1, request(method, path, body, **headers), 0)
    return CompletionResponse(api.take(0), method == "HEAD")


def post(api: HttpApi, path: str, body: object) -> CompletionResponse:
    return ask(api, "POST", path, json.dumps(body), content_type="application/json")


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange["name"])
def test_answers_are_vllms(exchange: dict[str, Any]) -> None:
    api = HttpApi(TINY, api_key="k" if exchange["name"].startswith("b-") else None)
    got = ask(api, exchange["method"], exchange["path"], exchange["body"], **exchange["headers"])
    assert got.status == exchange["status"]
    # The exporter behind vLLM's page would rewrite vllm: to vllm_ unless the client says that it knows better.
    theirs = {name: line.removesuffix("; escaping=underscores") for name, line in exchange["answer_headers"].items()}
    assert {name: line for name, line in got.headers.items() if name in ("allow", "content-type", "location")} == theirs
    if exchange["answer"] is None:
        return
    if '"type":"Bad Request"' in exchange["answer"].replace(": ", ":"):
        # What is not well-formed: the same object, status and type; the words are our own.
        theirs_error, error = json.loads(exchange["answer"])["error"], got.json["error"]
        assert (error.keys(), error["type"], error["code"]) == (theirs_error.keys(), "Bad Request", got.status)
        assert "pydantic" not in error["message"]
        return
    assert got.body.decode() == exchange["answer"]


def test_a_prompt_is_tokenized_and_put_together_again() -> None:
    api = HttpApi(TINY)
    told = post(api, "/tokenize", {"model": "tiny", "prompt": "Once upon a\ttime", "return_token_strs": True}).json
    assert list(told) == ["count", "max_model_len", "tokens", "token_strs"]
    assert (told["count"], told["max_model_len"]) == (4, 2048)
    assert told["tokens"] == encode("Once upon a time")
    assert told["token_strs"] == ["Once", "upon", "a", "time"]
    assert post(api, "/detokenize", {"tokens": told["tokens"]}).json == {"prompt": "Once upon a time"}
    assert post(api, "/tokenize", {"prompt": ""}).json["tokens"] == []


@pytest.mark.parametrize("opens", [True, False])
def test_a_chat_is_tokenized_with_its_template(opens: bool) -> None:
    api = HttpApi(TINY)
    told = post(api, "/tokenize", {"messages": HELLO, "add_generation_prompt": opens}).json
    assert told["tokens"] == encode_chat([("user", "Say hello in five languages.")], opens)
    assert told["count"] == 5 + 5 + 3 * opens
    assert told["token_strs"] is None
    said = "<|im_start|>user\nSay hello in five languages.<|im_end|>\n" + "<|im_start|>assistant\n" * opens
    assert post(api, "/detokenize", {"tokens": told["tokens"]}).json == {"prompt": said}


def test_a_chats_tokens_are_those_its_usage_counts() -> None:
    api = HttpApi(TINY)
    count = post(api, "/tokenize", {"messages": HELLO}).json["count"]
    api.receive(
        2,
        request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"messages": HELLO, "max_tokens": 2}),
            content_type="application/json",
        ),
        0,
    )
    said: list[tuple[int, Output]] = []
    while (due := api.next_ns()) is not None:
        said += api.take(due)
    assert CompletionResponse(said).json["usage"]["prompt_tokens"] == count


def test_ids_that_nobody_has_told_are_no_text() -> None:
    assert post(HttpApi(TINY), "/detokenize", {"tokens": [999_999, *encode("steady secret")]}).json == {
        "prompt": "steady"
    }


def test_load_counts_completions_under_way_streamed_or_not() -> None:
    api = HttpApi(TINY)
    for connection, stream in ((2, True), (3, False)):
        body = json.dumps({"prompt": "a", "max_tokens": 5, "stream": stream})
        api.receive(connection, request("POST", "/v1/completions", body, content_type="application/json"), 0)
    api.take(0)
    assert ask(api, "GET", "/load").json == {"server_load": 2}
    api.receive(2, b"", 0)
    assert ask(api, "GET", "/load").json == {"server_load": 1}
    while (due := api.next_ns()) is not None:
        api.take(due)
    assert ask(api, "GET", "/load").json == {"server_load": 0}


def test_the_prefix_cache_is_reset_only_while_nothing_runs() -> None:
    api = HttpApi(TINY)
    assert post(api, "/reset_prefix_cache", {}).json == {"success": True}
    api.receive(2, request("POST", "/v1/completions", '{"prompt":"a"}', content_type="application/json"), 0)
    assert post(api, "/reset_prefix_cache", {}).json == {"success": False}


def test_server_info_names_the_flags() -> None:
    told = ask(HttpApi(TINY), "GET", "/server_info?config_format=json").json
    assert list(told) == ["vllm_config", "vllm_env", "system_env"]
    assert told["vllm_config"]["max_model_len"] == 2048
    assert told["vllm_config"]["models"] == ["tiny"]
    assert told["vllm_config"]["simulated"] is True
    assert json.loads(ask(HttpApi(TINY), "GET", "/server_info").json["vllm_config"]) == told["vllm_config"]


def test_metrics_count_what_was_answered_and_old_names_are_for_who_asks() -> None:
    api = HttpApi(TINY, compat_metrics=True)
    api.receive(
        2, request("POST", "/v1/completions", '{"prompt":"a b c","max_tokens":2}', content_type="application/json"), 0
    )
    while (due := api.next_ns()) is not None:
        api.take(due)
    page = ask(api, "GET", "/metrics").body.decode().splitlines()
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 3.0' in page
    assert any(line.startswith("vllm:gpu_cache_usage_perc{") for line in page)
    assert "gpu_cache_usage_perc" not in ask(HttpApi(TINY), "GET", "/metrics").body.decode()
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0' in page
    accepts = "application/openmetrics-text; version=1.0.0"
    assert ask(api, "GET", "/metrics/", accept=accepts).body.endswith(b"# EOF\n")
