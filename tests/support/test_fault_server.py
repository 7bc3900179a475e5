"""The misbehaving server, seen by plain sockets and by the standard library's HTTP client."""

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support import faults
from support.fault_server import FaultServer, full_backlog
from support.faults import Answer, Banner, Behaviour, chunk

pytestmark = pytest.mark.slow

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STREAMED = {"model": "tiny", "stream": True}
END = b"0\r\n\r\n"


def request(path: str = CHAT, keep: bool = False, **fields: Any) -> bytes:
    body = json.dumps(STREAMED | fields).encode()
    connection = "keep-alive" if keep else "close"
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


@contextmanager
def connect(server: FaultServer) -> Iterator[socket.socket]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    pieces = []
    while data := sock.recv(1 << 16):
        pieces.append(data)
    return b"".join(pieces)


def exchange(behaviour: Behaviour | Banner, path: str = TEXT, **fields: Any) -> bytes:
    """Everything that comes for one request, up to the end of the connection."""
    with FaultServer(behaviour) as server, connect(server) as sock:
        sock.sendall(request(path, **fields))
        return read_all(sock)


def ask(server: FaultServer, path: str = CHAT, **fields: Any) -> tuple[http.client.HTTPResponse, bytes]:
    """The same by an HTTP client that was not written here."""
    client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    try:
        client.request("POST", path, json.dumps(STREAMED | fields))
        response = client.getresponse()
        return response, response.read()
    finally:
        client.close()


def events(body: bytes) -> list[Any]:
    """What the events of a good stream hold; "[DONE]" as it is."""
    parts = body.split(b"\n\n")
    assert parts.pop() == b""
    data = [part.removeprefix(b"data: ") for part in parts]
    return ["[DONE]" if one == b"[DONE]" else json.loads(one) for one in data]


def token_event(word: int, finish: str = "null") -> bytes:
    """One token of /v1/completions, written out."""
    return (
        f'data: {{"id": "r-0", "object": "text_completion", "model": "tiny", "choices": '
        f'[{{"index": 0, "text": " w{word}", "finish_reason": {finish}}}]}}\n\n'
    ).encode()


def token(word: int, finish: str = "null") -> bytes:
    data = token_event(word, finish)
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN = HEAD + token(0) + token(1)
REST = token(2) + token(3, '"length"') + chunk(b"data: [DONE]\n\n") + END


def test_a_good_text_stream_to_the_byte() -> None:
    assert exchange(faults.OK) == BEGUN + REST


def test_a_good_chat_stream() -> None:
    with FaultServer() as server:
        response, body = ask(server, max_tokens=3, stream_options={"include_usage": True})
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    role, *tokens, usage, done = events(body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [one["choices"][0]["delta"]["content"] for one in tokens] == [" w0", " w1", " w2"]
    assert [one["choices"][0]["finish_reason"] for one in tokens] == [None, None, "length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 3, "[DONE]")


def test_models_are_listed_and_anything_else_is_not_found() -> None:
    with FaultServer(faults.OVERLOADED, {"/metrics": faults.http_error(200, b"up 1")}, models=["a", "b"]) as server:
        client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        answers = []
        for path in ("/v1/models", "/prefix/v1/models", "/version", "/metrics"):
            client.request("GET", path)
            response = client.getresponse()
            answers.append((response.status, response.read()))
        client.close()
    assert [status for status, _ in answers] == [200, 200, 404, 200]
    assert [model["id"] for model in json.loads(answers[0][1])["data"]] == ["a", "b"]
    assert answers[3][1] == b"up 1"


def test_requests_are_kept_with_their_connection() -> None:
    with FaultServer() as server:
        client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        for path in (TEXT, CHAT):
            client.request("POST", path, json.dumps(STREAMED), {"X-Key": "1"})
            client.getresponse().read()
        client.close()
        ask(server)
        assert [(r.connection, r.nth, r.number, r.path) for r in server.requests] == [
            (0, 0, 0, TEXT),
            (0, 1, 1, CHAT),
            (1, 0, 2, CHAT),
        ]
        assert server.requests[0].headers["x-key"] == "1"
        assert server.requests[0].fields == STREAMED
        assert server.connections == 2


def test_the_longest_route_wins() -> None:
    routes = {"/a": faults.OVERLOADED, "/a/b": faults.RATE_LIMITED, "/v1/models": faults.UNAUTHORIZED}
    with FaultServer(routes=routes) as server:
        assert [ask(server, prefix + CHAT)[0].status for prefix in ("", "/a", "/a/b")] == [200, 503, 429]
        client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        client.request("GET", "/v1/models")
        assert client.getresponse().status == 401
        client.close()


@pytest.mark.parametrize(
    ("behaviour", "status", "header", "said"),
    [
        (faults.UNAUTHORIZED, 401, ("content-type", "application/json"), b'{"error":"Unauthorized"}'),
        (faults.RATE_LIMITED, 429, ("retry-after", "7"), b"Rate limit reached"),
        (faults.OVERLOADED, 503, ("content-type", "application/json"), b"overloaded"),
        (faults.TOO_LONG, 400, ("content-type", "application/json"), b"maximum context length is 2048 tokens"),
        (faults.HTML_PAGE, 502, ("content-type", "text/html"), b"<title>502 Bad Gateway</title>"),
        (faults.REDIRECT, 302, ("location", "https://elsewhere.example/v1/"), b""),
        (faults.only_models("other"), 404, ("content-type", "application/json"), b"The model `tiny` does not exist."),
        (faults.only_models("tiny", "alias"), 200, ("transfer-encoding", "chunked"), b"[DONE]"),
        (faults.refuses("ignore_eos"), 400, ("content-type", "application/json"), b"ignore_eos"),
        (faults.refuses("stream_options"), 200, ("transfer-encoding", "chunked"), b"[DONE]"),
    ],
)
def test_refusals(behaviour: Behaviour, status: int, header: tuple[str, str], said: bytes) -> None:
    with FaultServer(behaviour) as server:
        response, body = ask(server, ignore_eos=True)
    assert (response.status, response.getheader(header[0])) == (status, header[1])
    assert said in body


def test_every_kth_fails() -> None:
    with FaultServer(faults.every(3, faults.SERVER_ERROR)) as server:
        assert [ask(server)[0].status for _ in range(7)] == [200, 200, 500, 200, 200, 500, 200]


@pytest.mark.parametrize(
    ("behaviour", "before"),
    [
        (faults.reset("before headers"), b""),
        (faults.reset("in headers"), HEAD[:40]),
        (faults.reset("mid-stream"), BEGUN),
    ],
)
def test_resets(behaviour: Behaviour, before: bytes) -> None:
    with FaultServer(behaviour) as server, connect(server) as sock:
        sock.sendall(request(TEXT))
        came = b""
        while len(came) < len(before):
            came += sock.recv(1 << 16)
        assert came == before
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


CUT = b'data: {"choices":[{"index":0,"delta":{"content":" caf\xc3'
ERROR = (
    b'data: {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", '
    b'"param": null, "code": 500}}\n\n'
)
DONE = b"data: [DONE]\n\n"
BODY = b"".join(map(token_event, range(3))) + token_event(3, '"length"') + DONE


@pytest.mark.parametrize(
    ("behaviour", "came"),
    [
        (faults.NO_HTTP, b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"),
        (faults.close_mid_chunk(), BEGUN + token(2)[:20]),
        (faults.close_after_response(), BEGUN + REST),
        (faults.close_on_second(), BEGUN + REST),
        (faults.broken_json(), BEGUN + chunk(b'data: {"choices":[{"del\n\n') + REST),
        (faults.error_event(), BEGUN + chunk(ERROR) + chunk(DONE) + END),
        (faults.truncated_chunk(), BEGUN + token(2)[:-12] + b"\r\n" + token(3, '"length"') + chunk(DONE) + END),
        (faults.bad_chunk_size(), BEGUN + b"zz\r\n" + token(2).partition(b"\r\n")[2]),
        (faults.half_character(), BEGUN + chunk(CUT) + END),
        (faults.stream(Answer(done=False)), BEGUN + token(2) + token(3, '"length"') + END),
        (faults.stream(Answer(done=False, finish=False)), BEGUN + token(2) + token(3) + END),
        (faults.continue_first(), b"HTTP/1.1 100 Continue\r\n\r\n" + BEGUN + REST),
        (faults.http_1_0(), b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n" + BODY),
    ],
)
def test_to_the_byte(behaviour: Behaviour | Banner, came: bytes) -> None:
    assert exchange(behaviour) == came


@pytest.mark.parametrize("difference", [100, -30])
def test_a_wrong_length(difference: int) -> None:
    top, _, body = exchange(faults.wrong_length(difference)).partition(b"\r\n\r\n")
    assert body == BODY
    assert top.endswith(b"content-length: %d" % (len(BODY) + difference))


def test_a_gzip_body() -> None:
    with FaultServer(faults.gzip_body) as server:
        response, body = ask(server)
    assert response.getheader("content-encoding") == "gzip"
    assert body[:2] == b"\x1f\x8b"


def test_a_huge_event() -> None:
    with FaultServer(faults.huge_event(3_000_000)) as server:
        _, body = ask(server)
    assert [len(one["choices"][0]["delta"]["content"]) for one in events(body)[:-1]] == [0, 3, 3_000_000, 3, 3, 3]


def test_an_answer_given_whole() -> None:
    with FaultServer(faults.whole_answer()) as server:
        response, body = ask(server, stream=True)
        told = json.loads(ask(server, TEXT, max_tokens=2)[1])
    assert response.getheader("content-type") == "application/json"
    assert json.loads(body)["choices"][0]["message"]["content"] == " w0 w1 w2 w3"
    assert (told["choices"][0]["text"], told["usage"]["completion_tokens"]) == (" w0 w1", 2)


def test_no_stream_where_none_is_asked_for() -> None:
    with FaultServer() as server:
        assert json.loads(ask(server, stream=False)[1])["object"] == "chat.completion"


def test_several_tokens_in_an_event() -> None:
    with FaultServer(faults.stream(Answer(words=7, per_event=3))) as server:
        told = events(ask(server, TEXT)[1])
    assert [one["choices"][0]["text"] for one in told[:-1]] == [" w0 w1 w2", " w3 w4 w5", " w6"]


@pytest.mark.parametrize(("usage", "where"), [("absent", []), ("last choice", [3]), ("event", [])])
def test_where_usage_stands(usage: Any, where: list[int]) -> None:
    asked = {} if usage == "event" else {"stream_options": {"include_usage": True}}
    with FaultServer(faults.stream(Answer(usage=usage))) as server:
        told = events(ask(server, TEXT, **asked)[1])[:-1]
    assert len(told) == 4
    assert [at for at, one in enumerate(told) if "usage" in one["choices"][0] or "usage" in one] == where


@pytest.mark.parametrize(("behaviour", "seen"), [(faults.stall(0.04), HEAD), (faults.stall(0.04, after=2), BEGUN)])
def test_a_stall(behaviour: Behaviour, seen: bytes) -> None:
    with FaultServer(behaviour) as server, connect(server) as sock:
        begun = time.monotonic()
        sock.sendall(request(TEXT))
        came = read_all(sock)
        assert time.monotonic() - begun >= 0.04
    assert came == BEGUN + REST
    with FaultServer(faults.stall(60, after=0 if seen == HEAD else 2)) as server, connect(server) as sock:
        sock.sendall(request(TEXT))
        came = b""
        while len(came) < len(seen):
            came += sock.recv(1 << 16)
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert came == seen


def test_an_answer_at_a_cadence() -> None:
    begun = time.monotonic()
    assert exchange(faults.paced(0.01)) == BEGUN + REST
    assert time.monotonic() - begun >= 0.07  # headers, four tokens, [DONE], the last chunk


def test_no_answer_at_all_and_a_late_one() -> None:
    assert exchange(faults.hang_up) == b""
    begun = time.monotonic()
    assert exchange(faults.silence(0.05)) == BEGUN + REST
    assert time.monotonic() - begun >= 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses instead of leaving one waiting")
def test_a_full_backlog_leaves_a_connect_waiting() -> None:
    with full_backlog() as port, socket.socket() as sock:
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.connect(("127.0.0.1", port))


def test_slow_headers() -> None:
    begun = time.monotonic()
    assert exchange(faults.slow_headers(0.05)) == BEGUN + REST
    assert time.monotonic() - begun >= 0.05


@pytest.mark.parametrize("behaviour", [faults.close_after_response(), faults.close_on_second()])
def test_a_kept_connection_dies(behaviour: Behaviour) -> None:
    with FaultServer(behaviour) as server, connect(server) as sock:
        sock.sendall(request(TEXT, keep=True))
        came = b""
        while not came.endswith(END):
            came += sock.recv(1 << 16)
        assert came == BEGUN + REST
        try:
            sock.sendall(request(TEXT, keep=True))
            assert sock.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass


def test_endless_and_stalled_streams_stop_with_the_server() -> None:
    before = threading.enumerate()
    for behaviour in (faults.endless(), faults.endless(0.0), faults.stall(60), faults.slow_headers(60)):
        with FaultServer(behaviour) as server, connect(server) as sock:
            sock.sendall(request())
            assert len(sock.recv(10)) == 10
            begun = time.monotonic()
        assert time.monotonic() - begun < 5
    assert threading.enumerate() == before


def test_a_server_stops_with_idle_and_silent_clients() -> None:
    before = threading.enumerate()
    with FaultServer() as server, connect(server), connect(server) as idle:
        idle.sendall(request(keep=True))
        while not idle.recv(1 << 16).endswith(END):
            pass
    assert threading.enumerate() == before
