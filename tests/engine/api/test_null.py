"""The null server says when its events left, and its answers are what the client's dialect reads."""

import socket
import time

import pytest

from cadenza.engine.api.null import NullPlan, serve
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import ResponseReader, encode_request
from cadenza.wire.sse import SseParser

PACE = NullPlan(tokens=5, first_ms=4, gap_ms=2)


def ask(port: int, n: int) -> tuple[bytes, int, int]:
    """The body of answer `n`, and the clock before and after."""
    reader, body = ResponseReader(), b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        before = time.monotonic_ns()
        sock.sendall(encode_request("POST", f"/v1/chat/completions?n={n}", "null", (), b"{}"))
        while not reader.complete:
            reader.feed(sock.recv(65536))
            body += reader.take()
    return body, before, time.monotonic_ns()


@pytest.mark.slow
def test_an_answer_and_the_truth_about_it() -> None:
    with serve(PACE) as server:
        body, before, after = ask(server.port, 7)
        truth = server.truth()
    deltas = [DIALECTS["chat"].read(e.data) for e in SseParser().feed(body) if e.data != b"[DONE]"]
    assert sum(delta.carries_tokens for delta in deltas) == 5
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
    assert [delta.usage.output_tokens for delta in deltas if delta.usage] == [5]
    (left,) = truth.values()
    assert list(truth) == [7]
    assert before + 4_000_000 <= left[0]
    assert left == sorted(left)
    assert left[-1] - left[0] >= 4 * 2_000_000 - 1_000_000  # each is due 2 ms after the one before, and never early
    assert left[-1] <= after


def test_the_spread_follows_the_golden_ratio() -> None:
    spread = NullPlan(tokens=1, first_ms=10, gap_ms=1, spread_ms=100)
    assert [round(spread.first_ns(n) / 1e6, 3) for n in (0, 1, 2)] == [10.0, 71.803, 33.607]
