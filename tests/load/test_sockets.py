"""The real transport against a server that misbehaves on purpose: every fault is one record with its outcome."""

import errno
import resource
import socket
import time

import pytest

from cadenza.clock import MonotonicClock
from cadenza.errors import CadenzaError, TargetError, UsageError
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.sockets import SocketTransport
from cadenza.load.stamps import Ancillary, ArrivalClock
from cadenza.load.target import Target, resolve
from cadenza.load.transport import Closed, Opened, Origin
from cadenza.record import Connection, Message, Outcome, Record, Request
from cadenza.spec import Timeouts
from cadenza.wire.dialect import Options
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import encode_request
from support import faults
from support.fault_server import FaultServer
from support.stamps import kernel_stamps, warmed

pytestmark = pytest.mark.slow
LIMITS = Timeouts(connect_s=2, first_token_s=0.4, stall_s=0.4, total_s=2)
WORDS = 4


def outgoing(target: Target, index: int) -> Outgoing:
    request = Request(index=index, messages=(Message("user", "hi"),), output_tokens=WORDS)
    body = DIALECTS["chat"].body(request, Options(model="tiny"))
    path = target.path("/v1/chat/completions")
    return Outgoing(
        request, encode_request("POST", path, target.authority, [("Content-Type", "application/json")], body)
    )


def ask(server: FaultServer, n: int = 1, slots: int = 1, limits: Timeouts = LIMITS) -> list[Record]:
    target = resolve(server.url)
    ended: list[Exchange] = []
    with SocketTransport() as transport:
        client = Client(transport, [target.origin], DIALECTS["chat"], limits)
        closed_loop(client, iter([outgoing(target, k) for k in range(n)]), slots, ended.append, stop=lambda: False)
    return [exchange.record(0, "tiny") for exchange in ended]


GOOD = [
    ("stream", faults.OK, None),
    ("HTTP/1.0", faults.http_1_0(), None),
    ("100 first", faults.continue_first(), None),
    ("whole", faults.whole_answer(), "answered whole, not as a stream"),
    ("no DONE", faults.stream(faults.Answer(done=False)), "no [DONE]"),
    ("slow headers", faults.slow_headers(0.04), None),
    ("huge event", faults.huge_event(300_000), None),
]


@pytest.mark.parametrize(("behaviour", "detail"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
def test_odd_servers_that_answer_well(behaviour: faults.Behaviour, detail: str | None) -> None:
    with FaultServer(behaviour) as server:
        (record,) = ask(server)
    assert (record.outcome, record.detail) == (Outcome.OK, detail)
    assert record.output_tokens == WORDS
    assert record.sent_ns is not None
    assert record.connected_ns is not None
    assert record.headers_ns is not None
    assert record.done_ns is not None
    stamps = [
        record.intended_ns,
        record.sent_ns,
        record.connected_ns,
        record.headers_ns,
        *record.event_ns,
        record.done_ns,
    ]
    assert stamps == sorted(stamps)


BAD = [
    ("reset before headers", faults.reset("before headers"), Outcome.CONNECTION_LOST, 0, "reset by peer"),
    ("reset in headers", faults.reset("in headers"), Outcome.CONNECTION_LOST, 0, "reset by peer"),
    ("reset in stream", faults.reset("mid-stream"), Outcome.CONNECTION_LOST, 2, "reset by peer"),
    ("closed in a chunk", faults.close_mid_chunk(), Outcome.CONNECTION_LOST, 2, "closed by the server"),
    ("stall", faults.stall(9, after=2), Outcome.TIMEOUT_STALL, 2, "nothing came for 0.4 s"),
    ("no token", faults.stall(9), Outcome.TIMEOUT_FIRST_TOKEN, 0, "no token within 0.4 s"),
    ("neither end", faults.stream(faults.Answer(done=False, finish=False)), Outcome.TRUNCATED, WORDS, "finish reason"),
    ("broken JSON", faults.broken_json(), Outcome.MALFORMED, 2, "not JSON"),
    ("error event", faults.error_event(), Outcome.STREAM_ERROR, 2, "EngineCore encountered an issue"),
    ("truncated chunk", faults.truncated_chunk(), Outcome.MALFORMED, 2, "broken HTTP response"),
    ("bad chunk size", faults.bad_chunk_size(), Outcome.MALFORMED, 2, "broken HTTP response"),
    ("longer than told", faults.wrong_length(-10), Outcome.MALFORMED, None, ""),
    ("shorter than told", faults.wrong_length(10), Outcome.OK, WORDS, "closed by the server"),
    ("half a character", faults.half_character(), Outcome.MALFORMED, 2, "not JSON"),
    ("endless", faults.endless(0.01), Outcome.TIMEOUT_TOTAL, None, "not complete 2 s after"),
    ("gzip", faults.gzip_body, Outcome.MALFORMED, 0, "compressed"),
    ("redirect", faults.REDIRECT, Outcome.HTTP_ERROR, 0, "redirected to https://elsewhere.example/v1/"),
    ("401", faults.UNAUTHORIZED, Outcome.HTTP_ERROR, 0, "HTTP 401: Unauthorized"),
    ("429", faults.RATE_LIMITED, Outcome.HTTP_ERROR, 0, "HTTP 429: Rate limit reached"),
    ("503", faults.OVERLOADED, Outcome.HTTP_ERROR, 0, "HTTP 503: The server is overloaded"),
    ("400", faults.TOO_LONG, Outcome.HTTP_ERROR, 0, "maximum context length is 2048"),
    ("HTML", faults.HTML_PAGE, Outcome.HTTP_ERROR, 0, "an HTML page: 502 Bad Gateway"),
]


@pytest.mark.parametrize(
    ("behaviour", "outcome", "events", "detail"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_every_fault_is_one_record(
    behaviour: faults.Behaviour, outcome: Outcome, events: int | None, detail: str
) -> None:
    with FaultServer(behaviour) as server:
        (record,) = ask(server)
    assert record.outcome is outcome, record.detail
    assert detail in (record.detail or "")
    if events is not None:
        assert len(record.event_ns) == events


def test_a_server_without_http() -> None:
    with FaultServer(faults.NO_HTTP) as server:
        (record,) = ask(server)
    assert record.outcome in (Outcome.MALFORMED, Outcome.CONNECTION_LOST)


def test_connections_are_kept_and_a_dead_one_is_replaced() -> None:
    with FaultServer() as server:
        records = ask(server, n=6, slots=2)
        assert server.connections == 1 + 2  # one to see that it is there
    assert [r.connection for r in records].count(Connection.REUSED) == 4
    with FaultServer(faults.close_on_second()) as server:
        records = ask(server, n=3)
    assert [r.outcome for r in records] == [Outcome.OK] * 3
    with FaultServer(faults.close_after_response()) as server:
        records = ask(server, n=3)
    assert [r.outcome for r in records] == [Outcome.OK] * 3


def test_every_tenth_request_fails_and_is_counted() -> None:
    with FaultServer(faults.every(10, faults.SERVER_ERROR)) as server:
        records = ask(server, n=50, slots=5)
    assert sum(r.outcome is Outcome.HTTP_ERROR for r in records) == 5
    assert sum(r.outcome is Outcome.OK for r in records) == 45


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert isinstance(port, int)
        return port


def test_a_refused_connection_is_an_arrival_and_no_exception() -> None:
    with SocketTransport() as transport:
        connection = transport.connect(Origin("x", ("127.0.0.1", closed_port())))
        transport.send(connection, b"never")
        ((number, _, payload, _),) = transport.poll(transport.clock.now_ns() + 2_000_000_000)
        assert number == connection
        assert payload == Closed(clean=False, reason="Connection refused")
        transport.send(connection, b"still no exception")
        transport.close(connection)


def test_a_poll_waits_no_longer_and_no_shorter_than_it_is_told() -> None:
    with SocketTransport() as transport:
        until = transport.clock.now_ns() + 3_300_000
        assert transport.poll(until) == []
        assert transport.clock.now_ns() >= until


def test_a_faster_clock_waits_less_real_time() -> None:
    fast, real = MonotonicClock(speed=100.0), MonotonicClock()
    start = real.now_ns()
    with SocketTransport(fast) as transport:
        transport.poll(fast.now_ns() + 1_000_000_000)
    took = real.now_ns() - start
    assert took >= 10_000_000
    assert took < 900_000_000
    assert fast.real_s(1_000_000_000) == pytest.approx(0.01)


def test_a_large_request_leaves_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultServer() as server:
        target = resolve(server.url)
        with SocketTransport() as transport:
            connection = transport.connect(target.origin)
            body = b" " * 4_000_000 + b'{"max_tokens": 1, "stream": true}'
            transport.send(connection, encode_request("POST", "/v1/completions", target.authority, [], body))
            got, opened = b"", False
            while not got.endswith(b"0\r\n\r\n"):
                for _, _, payload, _ in transport.poll(transport.clock.now_ns() + 5_000_000_000):
                    opened = opened or isinstance(payload, Opened)
                    got += payload if isinstance(payload, bytes) else b""
        assert opened
        assert len(server.requests[-1].body) == len(body)


def test_no_more_files_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*args: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with SocketTransport() as transport:
        monkeypatch.setattr(socket, "socket", exhausted)
        with pytest.raises(CadenzaError, match="raise `ulimit -n`"):
            transport.connect(Origin("x", ("127.0.0.1", 1)))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0


def test_what_a_base_url_may_be() -> None:
    with FaultServer() as server:
        for url in (server.url, server.url + "/", server.url + "/v1", server.url + "/v1/"):
            assert resolve(url).path("/v1/models") == "/v1/models"
        assert resolve(server.url + "/base/v1").path("/v1/models") == "/base/v1/models"
        port = server.url.rpartition(":")[2]
        # localhost is ::1 first on many machines, where nobody listens.
        assert resolve(f"http://localhost:{port}").origin.address == ("127.0.0.1", int(port))
    for bad in ("localhost:8000", "ftp://x", "http://", "http://x:port", "http://u:p@x", "http://x/?a=1"):
        with pytest.raises(UsageError):
            resolve(bad)
    with pytest.raises(TargetError, match="nothing listens on port"):
        resolve(f"http://127.0.0.1:{closed_port()}")


def test_stamps_are_the_kernels_and_the_lag_is_known() -> None:
    if not kernel_stamps():
        pytest.skip("this kernel stamps nothing that arrives: run it on Linux")
    with FaultServer(faults.paced(0.01)) as server, SocketTransport() as transport:
        target = resolve(server.url)
        client = Client(warmed(transport), [target.origin], DIALECTS["chat"], LIMITS)
        ended: list[Exchange] = []
        closed_loop(client, iter([outgoing(target, 0)]), 1, ended.append, stop=lambda: False)
    record = ended[0].record(0, "tiny")
    assert record.read_lag_ns is not None
    assert 0 <= record.read_lag_ns < 2_000_000_000
    assert record.sent_ns is not None
    assert record.event_ns == sorted(record.event_ns)
    assert record.sent_ns < record.event_ns[0]


def test_a_late_read_moves_no_stamp_where_the_kernel_gives_it() -> None:
    """Nobody reads for 60 ms while the answer comes: with the kernel's stamps it came before that, else after."""
    stamps = {}
    for kernel in (True, False):
        with FaultServer() as server, SocketTransport(kernel_stamps=kernel) as transport:
            target = resolve(server.url)
            connection = warmed(transport).connect(target.origin)
            transport.send(connection, outgoing(target, 0).data)
            assert transport.poll(transport.clock.now_ns() + 2_000_000_000)  # open, and the request has left
            time.sleep(0.06)
            woke_ns = transport.clock.now_ns()
            ((_, stamp_ns, _, lag_ns), *_) = transport.poll(woke_ns + 2_000_000_000)
            stamps[kernel] = (stamp_ns < woke_ns, lag_ns is not None)
    assert stamps[False] == (False, False)
    assert stamps[True] == ((True, True) if kernel_stamps() else (False, False))


class Stepping(ArrivalClock):
    """Notices a jump of the calendar clock at its first look."""

    def look(self) -> bool:
        first, self.looked = not getattr(self, "looked", False), True
        return first or super().look()

    def arrival_ns(self, ancillary: Ancillary, read_ns: int) -> int | None:
        return None


def test_a_jump_of_the_clock_is_counted_and_the_reads_own_stamps_stand_in() -> None:
    if not kernel_stamps():
        pytest.skip("this kernel stamps nothing that arrives: run it on Linux")
    with FaultServer() as server, SocketTransport(arrivals=Stepping()) as transport:
        target = resolve(server.url)
        client = Client(transport, [target.origin], DIALECTS["chat"], LIMITS)
        ended: list[Exchange] = []
        closed_loop(client, iter([outgoing(target, 0)]), 1, ended.append, stop=lambda: False)
        record = ended[0].record(0, "tiny")
        assert transport.counters.clock_steps == 1
    assert (record.outcome, record.read_lag_ns) == (Outcome.OK, None)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EADDRNOTAVAIL, "no local port is left"),
        (errno.EMFILE, "no more files may be open"),
        (errno.ENOMEM, "memory"),
    ],
)
def test_what_this_machine_has_run_out_of_is_our_failure(code: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted(socket.socket):
        def connect_ex(self, address: object) -> int:
            return code

    with SocketTransport() as transport:
        monkeypatch.setattr(socket, "socket", Exhausted)
        with pytest.raises(CadenzaError, match=told):
            transport.connect(Origin("x", ("127.0.0.1", 1)))
