"""The face in virtual time, through nothing but bytes; answers are read back with httptools."""

import json
from collections import defaultdict

import httptools
import pytest

from cadenza.engine.core import Core
from cadenza.engine.face import Face
from cadenza.engine.profile import load
from cadenza.engine.timing import Calibrated

PROFILE = load("mi50-rx6900xt")
MODELS = tuple(model.name for model in PROFILE.models)
QWEN3, QWEN25, _ = MODELS
LAW = Calibrated(PROFILE, noise=False)


def post(path: str, body: object, *lines: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "host: a",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode() + data


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: a", *lines, "", ""]).encode()


def chat(tokens: int, model: str = QWEN25, stream: bool = True) -> bytes:
    messages = [{"role": "user", "content": "hi there"}]
    return post("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": tokens, "stream": stream})


class Client:
    """What one connection got: answers as (status, body), and whether it was closed."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.headers: dict[str, str] = {}
        self.stamps: list[tuple[int, bytes]] = []
        self.closed = False
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._body, self.headers = b"", {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.answers.append((self._parser.get_status_code(), self._body))

    def hear(self, now_ns: int, data: bytes | None) -> None:
        if data is None:
            self.closed = True
        else:
            self.stamps.append((now_ns, data))
            self._parser.feed_data(data)


def quiet(api_key: str | None = None) -> Face:
    return Face(PROFILE, api_key=api_key, epoch_s=1_700_000_000, core=Core(LAW, MODELS))


def converse(face: Face, sent: dict[int, list[bytes]], now_ns: int = 0) -> dict[int, Client]:
    """Send everything at `now_ns`, then hear all there is to hear."""
    clients: dict[int, Client] = defaultdict(Client)
    for connection, pieces in sent.items():
        for piece in pieces:
            face.receive(connection, piece, now_ns)
    while (due := face.next_ns()) is not None:
        for connection, data in face.take(due):
            clients[connection].hear(due, data)
    return clients


def answers(data: bytes, face: Face | None = None) -> list[tuple[int, bytes]]:
    return converse(face or quiet(), {1: [data]})[1].answers


def test_a_stream_comes_at_the_laws_times() -> None:
    client = converse(quiet(), {1: [chat(4)]}, now_ns=500)[1]
    ttft, step = LAW.ttft_ns(QWEN25, 1, 0.5), LAW.step_ns(QWEN25, 1, 0.5)
    head, *events = client.stamps
    assert head[0] == 500
    assert head[1].endswith(b"\r\n\r\n")
    assert [at for at, _ in events] == [500 + ttft + n * step for n in range(4)]
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
    assert converse(quiet(), {1: split})[1].answers == answers(data)


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    got = answers(chat(2) + get("/health") + chat(3, stream=False) + get("/nope"))
    assert [status for status, _ in got] == [200, 200, 200, 404]
    assert got[0][1].endswith(b"data: [DONE]\n\n")
    assert got[1][1] == b""
    assert json.loads(got[2][1])["usage"] == {
        "prompt_tokens": 7,
        "total_tokens": 10,
        "completion_tokens": 3,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_connection_close_is_kept_to() -> None:
    data = post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, "connection: close")
    client = converse(quiet(), {1: [data]})[1]
    assert client.closed
    assert client.headers["connection"] == "close"
    assert client.answers[0][1].endswith(b"data: [DONE]\n\n")


def test_an_old_client_gets_a_bare_stream_that_the_close_ends() -> None:
    data = post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    client = converse(quiet(), {1: [data]})[1]
    assert client.closed
    assert "transfer-encoding" not in client.headers
    assert client.stamps[-1][1].endswith(b"data: [DONE]\n\n")


def test_a_client_that_leaves_takes_its_request_with_it() -> None:
    core = Core(LAW, MODELS)
    face = Face(PROFILE, core=core)
    face.receive(1, chat(1000), 0)
    face.take(0)
    due = face.next_ns()
    assert due is not None
    face.take(due)
    assert core.in_system(QWEN25) == 1
    face.receive(1, b"", due + 1)
    assert core.in_system(QWEN25) == 0
    assert face.next_ns() is None
    face.receive(2, b"", due + 2)


def test_models_share_nothing_but_the_door() -> None:
    both = converse(quiet(), {1: [chat(3, QWEN25)], 2: [chat(3, QWEN3)]})
    alone = converse(quiet(), {1: [chat(3, QWEN25)]})[1]
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
    client = converse(quiet(), {1: [get("/health").replace(b"GET", b"HEAD")]})[1]
    assert client.stamps[0][1].startswith(b"HTTP/1.1 405 ")
    assert client.stamps[0][1].endswith(b"\r\n\r\n")


def test_a_refusal_leaves_the_connection_usable() -> None:
    got = answers(post("/v1/completions", b"{bad") + get("/health"))
    assert [status for status, _ in got] == [400, 200]


@pytest.mark.parametrize("when", ["before", "during"])
def test_garbage_is_answered_after_what_came_before_it_and_ends_the_connection(when: str) -> None:
    first = chat(2) if when == "during" else get("/health")
    client = converse(quiet(), {1: [first, b"GARBAGE\r\n\r\n", get("/health")]})[1]
    assert [status for status, _ in client.answers] == [200, 400]
    assert client.answers[1][1] == b"Invalid HTTP request received."
    assert client.closed


def test_a_key_is_asked_for_at_v1_alone() -> None:
    face = quiet(api_key="sésame")
    assert answers(get("/v1/models"), face) == [(401, b'{"error":"Unauthorized"}')]
    for wrong in ("Bearer nope", "Basic sésame", "sésame", "Bearer"):
        assert answers(get("/v1/models", f"authorization: {wrong}"), face)[0][0] == 401
    assert answers(get("/v1/models", "authorization: bearer sésame"), face)[0][0] == 200
    assert answers(get("/health"), face)[0][0] == 200


def test_a_large_body_is_invited() -> None:
    data = post("/v1/completions", {"prompt": "a", "max_tokens": 1}, "expect: 100-continue")
    head, separator, body = data.partition(b"\r\n\r\n")
    face = quiet()
    face.receive(1, head + separator, 0)
    assert face.next_ns() == 0
    assert face.take(0) == [(1, b"HTTP/1.1 100 Continue\r\n\r\n")]
    assert converse(face, {1: [body]})[1].answers[0][0] == 200
