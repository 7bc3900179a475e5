"""One request for one page: what comes back, and the sentence where nothing does."""

import pytest

from cadenza.errors import TargetError
from cadenza.load.fetch import fetch
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from support.scripted import ScriptedPeer

TARGET = Target("http://127.0.0.1:8000", Origin("127.0.0.1", ("127.0.0.1", 8000)), "127.0.0.1:8000", "")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\n"


def get(said: list[tuple[float, bytes | None]], *, refuse: bool = False, timeout_s: float = 1.0) -> bytes:
    transport = MemoryTransport(ScriptedPeer(lambda n: said), refuse=lambda origin: refuse)
    return fetch(transport, TARGET, "/page", timeout_s=timeout_s).body


def test_a_page() -> None:
    assert get([(5, HEAD + b"te"), (6, b"xt")]) == b"text"


def test_nobody_there() -> None:
    with pytest.raises(TargetError, match=r"^http://127\.0\.0\.1:8000/page: Connection refused$"):
        get([], refuse=True)


def test_an_answer_that_breaks_off() -> None:
    with pytest.raises(TargetError, match=r"/page: .* before an answer was whole$"):
        get([(5, HEAD + b"te"), (6, None)])


def test_an_answer_that_does_not_come() -> None:
    with pytest.raises(TargetError, match="/page: no whole answer in time: is this the right port"):
        get([(5, HEAD + b"te")], timeout_s=0.001)
