"""The shell over real loopback sockets: few requests, far faster than real time where time is not the point."""

import http.client
import json
import os
import selectors
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cadenza.engine.api import server as server_module
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.server import listen, serve
from cadenza.engine.profile import load
from cadenza.errors import UsageError

pytestmark = pytest.mark.slow
PROFILE = load("mi50-rx6900xt")


@contextmanager
def running(speed: float, host: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    urls: list[str] = []
    up, done = threading.Event(), threading.Event()

    def ready(url: str) -> None:
        urls.append(url)
        up.set()

    thread = threading.Thread(
        target=serve, args=(HttpApi(PROFILE), host, 0, speed), kwargs={"ready": ready, "stop": done.is_set}
    )
    thread.start()
    try:
        assert up.wait(10)
        yield urls[0].removeprefix("http://").rpartition(":")[0], int(urls[0].rpartition(":")[2])
    finally:
        done.set()
        thread.join(10)
        assert not thread.is_alive()


def body(tokens: int, stream: bool = True) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": tokens, "stream": stream}).encode()


def test_streams_over_sockets_on_one_kept_connection() -> None:
    with running(speed=100) as (host, port):
        client = http.client.HTTPConnection(host, port, timeout=10)
        for _ in range(2):
            client.request("POST", "/v1/completions", body(20), {"content-type": "application/json"})
            text = client.getresponse().read()
            assert text.count(b"data: ") == 21
            assert text.endswith(b"data: [DONE]\n\n")
        client.request("POST", "/v1/completions", body(5, stream=False), {"content-type": "application/json"})
        assert json.loads(client.getresponse().read())["usage"]["completion_tokens"] == 5
        client.close()


def time_steps(tokens: int) -> list[int]:
    """When a client read something of an answer of `tokens` tokens, at a hundred times real time."""
    with running(speed=100) as (host, port), socket.create_connection((host, port), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = body(tokens)
        head = f"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        stamps: list[int] = []
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            got = sock.recv(1 << 16)
            stamps.append(time.monotonic_ns())
    return stamps


def test_steps_shorter_than_a_millisecond_keep_time() -> None:
    # At this speed a step of 78.86 ms, less or more its noise (a factor of 0.96 to 1.06), lasts about 0.79 ms. The head
    # and the first token come for themselves; 640 steps are whole decks, so their mean is the law's.
    reads = []
    for _ in range(5):
        stamps = time_steps(641)
        assert (stamps[-1] - stamps[1]) / 640 / 1e6 == pytest.approx(0.7886, rel=0.05)
        reads.append(len(stamps))
        if reads[-1] > 300:
            break
    # A reader whose core is taken away finds several steps at once; one quiet try of five shows that they came apart.
    assert max(reads) > 300


def test_waiting_is_finer_than_a_millisecond() -> None:
    with selectors.DefaultSelector() as selector:
        waits = []
        for _ in range(51):
            start = time.perf_counter()
            server_module._ready(selector, 0.0003)
            waits.append(time.perf_counter() - start)
        assert 0.0003 <= statistics.median(waits) < 0.0009


def test_a_client_that_vanishes_disturbs_nobody() -> None:
    with running(speed=100) as (host, port):
        rude = socket.create_connection((host, port), timeout=10)
        data = body(5000)
        rude.sendall(
            b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(data), data)
        )
        rude.recv(100)
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        rude.close()
        client = http.client.HTTPConnection(host, port, timeout=10)
        client.request("GET", "/health")
        assert client.getresponse().status == 200
        client.close()


def test_a_reader_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_QUEUED_BYTES", 10_000)
    with running(speed=1e6) as (host, port), socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(10)
        lazy.connect((host, port))
        data = body(8000)
        request = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        lazy.sendall(request % (len(data), data) * 20)
        time.sleep(0.5)
        got = b""
        try:
            while piece := lazy.recv(1 << 20):
                got += piece
        except ConnectionResetError:
            pass
        assert got.count(b"[DONE]") < 20


def test_garbage_gets_its_answer_and_a_close() -> None:
    with running(speed=1) as (host, port), socket.create_connection((host, port), timeout=10) as sock:
        sock.sendall(b"GARBAGE\r\n\r\n")
        got = b""
        while piece := sock.recv(1 << 16):
            got += piece
        assert got.startswith(b"HTTP/1.1 400 ")


def test_a_port_in_use_is_a_usage_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"{port}.*--port"):
            listen("127.0.0.1", port)


def test_a_host_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--host"):
        listen("no such host", 0)


def test_listening_beyond_loopback_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    with running(speed=1):
        pass
    assert capsys.readouterr().err == ""
    with running(speed=1, host="0.0.0.0"):
        pass
    assert "other machines" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_it_cleanly(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    serve(HttpApi(PROFILE), "127.0.0.1", 0, 1.0, ready=lambda url: os.kill(os.getpid(), number))
    assert signal.getsignal(number) is before
