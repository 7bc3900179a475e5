"""The fault matrix: what can go wrong between a client and a server, and the exact record that each fault leaves."""

import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange, Outgoing
from cadenza.load.issue import closed_loop
from cadenza.load.sockets import SocketTransport
from cadenza.load.transport import Origin
from cadenza.record import Connection, Message, Outcome, Record, Request, TokenSource
from cadenza.spec import Timeouts
from cadenza.wire.dialect import Options
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import encode_request
from support import faults
from support.fault_server import FaultServer, full_backlog
from support.faults import Answer, Banner, Behaviour, Received

pytestmark = pytest.mark.slow
MS = 1_000_000
WORDS = 4
PATIENT = Timeouts(connect_s=10, first_token_s=10, stall_s=10, total_s=30)  # where no limit is to be met
HASTY = Timeouts(connect_s=0.3, first_token_s=0.3, stall_s=0.3, total_s=10)
BRIEF = Timeouts(connect_s=0.3, first_token_s=0.3, stall_s=0.3, total_s=0.4)
CHAT = DIALECTS["chat"]


def outgoing(port: int, index: int) -> Outgoing:
    request = Request(index=index, messages=(Message("user", "hi"),), output_tokens=WORDS)
    body = CHAT.body(request, Options(model="tiny"))
    headers = [("Content-Type", "application/json")]
    return Outgoing(request, encode_request("POST", CHAT.path, f"127.0.0.1:{port}", headers, body))


def ask(port: int, n: int = 1, limits: Timeouts = PATIENT) -> list[Record]:
    """The records of n requests, one after the other, by index."""
    ended: list[Exchange] = []
    with SocketTransport() as transport:
        client = Client(transport, [Origin("x", ("127.0.0.1", port))], CHAT, limits)
        closed_loop(client, iter([outgoing(port, k) for k in range(n)]), 1, ended.append, stop=lambda: False)
    return sorted((exchange.record(0, "tiny") for exchange in ended), key=lambda record: record.index)


def port_of(server: FaultServer) -> int:
    return int(server.url.rpartition(":")[2])


def stamps(record: Record) -> list[int]:
    """Those that there are, in the order in which they must have come about."""
    every = [record.intended_ns, record.sent_ns, record.connected_ns, record.headers_ns, *record.event_ns]
    return [stamp for stamp in [*every, record.done_ns] if stamp is not None]


class Fault(NamedTuple):
    """A server's behaviour, and the record of one request to it. `tokens` None: as many as there are events."""

    name: str
    behaviour: Behaviour | Banner
    outcome: Outcome
    status: int | None
    events: int | None
    detail: str | None
    finish: str | None = None
    tokens: int | None = None
    limits: Timeouts = PATIENT


def unfinished_error(received: Received) -> Sequence[faults.Step]:
    """A 500 whose body says less than its length, and then nothing."""
    return [faults.head("content-type: text/plain", "content-length: 99", status=500), b"out of", faults.Pause(9)]


LOST, BAD, REFUSED, OK = Outcome.CONNECTION_LOST, Outcome.MALFORMED, Outcome.HTTP_ERROR, Outcome.OK
FIRST, STALL, TOTAL = Outcome.TIMEOUT_FIRST_TOKEN, Outcome.TIMEOUT_STALL, Outcome.TIMEOUT_TOTAL
CUT, OPEN_END = Answer(done=False, finish=False), Answer(done=False)
SHUT = "closed by the server"
MATRIX = [
    # Connections that break.
    Fault("reset before headers", faults.reset("before headers"), LOST, None, 0, "Connection reset by peer"),
    Fault("reset in headers", faults.reset("in headers"), LOST, None, 0, "Connection reset by peer"),
    Fault("reset in the stream", faults.reset("mid-stream"), LOST, 200, 2, "Connection reset by peer"),
    Fault("closed without a byte", faults.hang_up, LOST, None, 0, SHUT),
    Fault("closed in a chunk", faults.close_mid_chunk(), LOST, 200, 2, SHUT),
    # Time.
    Fault("silence", faults.silence(9), FIRST, None, 0, "no token within 0.3 s", limits=HASTY),
    Fault("headers without an end", faults.slow_headers(18), FIRST, None, 0, "no token within 0.3 s", limits=HASTY),
    Fault("stall before the first token", faults.stall(9), FIRST, 200, 0, "no token within 0.3 s", limits=HASTY),
    Fault("stall after it", faults.stall(9, after=2), STALL, 200, 2, "nothing came for 0.3 s", limits=HASTY),
    Fault("endless", faults.endless(0.01), TOTAL, 200, None, "not complete 0.4 s after it was sent", limits=BRIEF),
    Fault("slow headers", faults.slow_headers(0.1), OK, 200, WORDS, None, "length", WORDS),
    # Framing.
    Fault("truncated chunk", faults.truncated_chunk(), BAD, 200, 2, "broken HTTP response"),
    Fault("bad chunk size", faults.bad_chunk_size(), BAD, 200, 2, "broken HTTP response"),
    Fault("shorter than its length", faults.wrong_length(10), OK, 200, WORDS, SHUT, "length", WORDS),
    Fault("longer, [DONE] cut", faults.wrong_length(-10), BAD, 200, WORDS, "more bytes than", "length", WORDS),
    Fault("longer, a token cut", faults.wrong_length(-200), BAD, 200, 3, "more bytes than the response"),
    Fault("gzip", faults.gzip_body, BAD, 200, 0, "the body is compressed (gzip), although identity was asked for"),
    Fault("HTTP/1.0", faults.http_1_0(), OK, 200, WORDS, None, "length", WORDS),
    Fault("HTTP/1.0 cut", faults.http_1_0(CUT), Outcome.TRUNCATED, 200, WORDS, "without [DONE]", None, WORDS),
    Fault("100 Continue", faults.continue_first(), OK, 200, WORDS, None, "length", WORDS),
    Fault("no HTTP", faults.NO_HTTP, BAD, None, 0, "it begins: SSH-2.0-OpenSSH_9.2p1"),
    # Streams.
    Fault("half a character", faults.half_character(), BAD, 200, 2, "not JSON"),
    Fault("broken JSON", faults.broken_json(), BAD, 200, 2, "not JSON"),
    Fault("error event", faults.error_event(), Outcome.STREAM_ERROR, 200, 2, "EngineCore encountered an issue"),
    Fault("no [DONE]", faults.stream(OPEN_END), OK, 200, WORDS, "no [DONE]", "length", WORDS),
    Fault("no end", faults.stream(CUT), Outcome.TRUNCATED, 200, WORDS, "without a finish reason", None, WORDS),
    Fault("huge event", faults.huge_event(300_000), OK, 200, WORDS + 1, None, "length", WORDS),
    Fault("an event of 17 MiB", faults.huge_event(17 << 20), BAD, 200, 1, "a stream line of more than 16777216 bytes"),
    Fault("given whole", faults.whole_answer(), OK, 200, 1, "answered whole, not as a stream", "length", WORDS),
    # Refusals, in the server's own words.
    Fault("429", faults.RATE_LIMITED, REFUSED, 429, 0, "HTTP 429: Rate limit reached"),
    Fault("500", faults.SERVER_ERROR, REFUSED, 500, 0, "HTTP 500: EngineCore encountered an issue"),
    Fault("503", faults.OVERLOADED, REFUSED, 503, 0, "HTTP 503: The server is overloaded"),
    Fault("502 by a proxy", faults.HTML_PAGE, REFUSED, 502, 0, "HTTP 502: an HTML page: 502 Bad Gateway"),
    Fault("500, body unfinished", unfinished_error, REFUSED, 500, 0, "HTTP 500: out of", limits=HASTY),
    Fault("redirect", faults.REDIRECT, REFUSED, 302, 0, "redirected to https://elsewhere.example/v1/"),
    Fault("no fault", faults.OK, OK, 200, WORDS, None, "length", WORDS),
]


@pytest.mark.parametrize("fault", MATRIX, ids=[fault.name for fault in MATRIX])
def test_every_fault_leaves_its_record(fault: Fault) -> None:
    with FaultServer(fault.behaviour) as server:
        (record,) = ask(port_of(server), limits=fault.limits)
        assert server.connections == 1  # nothing is tried twice, nothing redirected
    assert (record.outcome, record.status) == (fault.outcome, fault.status), record.detail
    assert (record.headers_ns is None) == (fault.status is None)
    assert len(record.event_ns) == fault.events or (fault.events is None and len(record.event_ns) > 1)
    tokens = len(record.event_ns) if fault.tokens is None else fault.tokens
    source = TokenSource.EVENTS if fault.tokens is None else TokenSource.USAGE
    assert (record.output_tokens, record.token_source) == (tokens, source)
    assert record.finish_reason == fault.finish
    assert record.detail is None if fault.detail is None else fault.detail in (record.detail or "")
    assert (record.connection, record.connected_ns is None) == (Connection.NEW, False)
    assert stamps(record) == sorted(stamps(record))
    assert len(stamps(record)) == 4 + (fault.status is not None) + len(record.event_ns)


def test_a_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (record,) = ask(port)
    assert (record.outcome, record.status, record.detail) == (LOST, None, "Connection refused")
    assert (record.connection, record.connected_ns, record.headers_ns) == (Connection.NEW, None, None)
    assert (record.event_ns, record.output_tokens) == ([], 0)
    assert len(stamps(record)) == 3
    assert stamps(record) == sorted(stamps(record))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses instead of leaving one waiting")
def test_a_connection_that_nobody_takes() -> None:
    with full_backlog() as port:
        (record,) = ask(port, limits=HASTY)
    assert (record.outcome, record.status) == (Outcome.TIMEOUT_CONNECT, None)
    assert record.detail == "no connection within 0.3 s"
    assert (record.connection, record.connected_ns, record.headers_ns) == (Connection.NEW, None, None)
    assert (record.done_ns or 0) - (record.sent_ns or 0) >= 300 * MS


@pytest.mark.parametrize(
    ("behaviour", "limits", "since", "limit_ms"),
    [
        (faults.stall(9), HASTY, "sent", 300),
        (faults.stall(9, after=2), HASTY, "last event", 300),
        (faults.endless(0.01), BRIEF, "sent", 400),
    ],
    ids=["first token", "stall", "total"],
)
def test_a_limit_ends_nothing_before_its_time(
    behaviour: Behaviour, limits: Timeouts, since: str, limit_ms: int
) -> None:
    with FaultServer(behaviour) as server:
        (record,) = ask(port_of(server), limits=limits)
    begun = record.sent_ns if since == "sent" else record.event_ns[-1]
    assert begun is not None
    assert record.done_ns is not None
    assert record.done_ns - begun >= limit_ms * MS
    assert record.done_ns - (record.sent_ns or 0) < limits.total_s * 1000 * MS + 5000 * MS


def test_slow_headers_are_late_and_the_first_token_after_them() -> None:
    with FaultServer(faults.slow_headers(0.1)) as server:
        (record,) = ask(port_of(server))
    assert record.headers_ns is not None
    assert record.headers_ns - (record.sent_ns or 0) >= 100 * MS
    assert record.event_ns[0] >= record.headers_ns


def test_a_burst_of_503_leaves_the_connection_and_the_others_alone() -> None:
    with FaultServer(faults.every(3, faults.OVERLOADED)) as server:
        records = ask(port_of(server), n=9)
        assert server.connections == 1
    assert [record.status for record in records] == [200, 200, 503] * 3
    assert [record.outcome for record in records] == [OK, OK, REFUSED] * 3
    assert [len(record.event_ns) for record in records] == [WORDS, WORDS, 0] * 3
    assert [record.connection for record in records] == [Connection.NEW] + [Connection.REUSED] * 8
    assert [record.connected_ns is None for record in records] == [False] + [True] * 8
    for record in records:
        assert stamps(record) == sorted(stamps(record))


def test_a_kept_connection_closed_under_a_request_is_replaced_once() -> None:
    with FaultServer(faults.close_on_second()) as server:
        first, second = ask(port_of(server), n=2)
        assert [(r.connection, r.number) for r in server.requests] == [(0, 0), (0, 1), (1, 2)]
    assert (first.outcome, first.detail) == (OK, None)
    assert (second.outcome, second.connection) == (OK, Connection.NEW)
    assert second.detail == "sent again on a new connection: the kept one had been closed"
    assert len(second.event_ns) == WORDS
    assert stamps(second) == sorted(stamps(second))


def test_it_is_sent_again_once_and_no_more() -> None:
    def once(received: Received) -> Sequence[faults.Step]:
        return [faults.CLOSE] if received.number else list(faults.OK(received))

    with FaultServer(once) as server:
        first, second = ask(port_of(server), n=2)
        assert len(server.requests) == 3
    assert [first.outcome, second.outcome] == [OK, LOST]
    assert (second.status, second.connection, second.event_ns) == (None, Connection.NEW, [])


def test_a_server_that_speaks_before_it_is_asked_turns_no_stamp_round() -> None:
    """Its words lie in the kernel, with their own stamp, before a client that is late has seen the connection open."""
    ended: list[Exchange] = []
    with FaultServer(faults.NO_HTTP) as server, SocketTransport() as transport:
        client = Client(transport, [Origin("x", ("127.0.0.1", port_of(server)))], CHAT, PATIENT)
        client.start(outgoing(port_of(server), 0), client.now_ns())
        time.sleep(0.05)  # the lateness
        while not ended:
            ended += client.turn(client.now_ns() + 1000 * MS)
    record = ended[0].record(0, "tiny")
    assert record.outcome is BAD
    assert stamps(record) == sorted(stamps(record))


# The whole program, where the machine under it gives way.


def run(
    cwd: Path, *flags: str, limit: Callable[[], None] | None = None, verb: str = "run"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cadenza", verb, *flags]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit)
    assert "Traceback" not in done.stderr, done.stderr
    assert "this is a bug" not in done.stderr, done.stderr
    return done


def only_point(text: str) -> dict[str, object]:
    (point,) = json.loads(text)["points"]
    assert isinstance(point, dict)
    return point


def count(point: dict[str, object], name: str) -> int:
    requests = point["requests"]
    assert isinstance(requests, dict)
    found: int = requests[name]
    return found


def completions(server: FaultServer) -> int:
    return sum(received.is_completion for received in server.requests)


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))


@pytest.mark.parametrize(
    ("load", "good"), [(("-c", "100"), 0), (("--rate", "200", "--warmup", "0"), 40)], ids=["at once", "in the run"]
)
def test_no_more_files_is_a_report_and_exit_code_1(load: tuple[str, ...], good: int, tmp_path: Path) -> None:
    """The trial and `good` requests are answered at once; the others hold their connections."""
    busy = faults.stall(30)
    with FaultServer(lambda received: (faults.OK if received.number <= good else busy)(received)) as server:
        flags = ("--url", server.url, *load, "--requests", "300", "--output-tokens", "4", "--out", "run", "--json")
        done = run(tmp_path, *flags, limit=few_files)
    assert done.returncode == 1, done.stderr
    assert "raise `ulimit -n`" in done.stderr
    told = only_point(done.stdout)
    assert (told["verdict"], told["status"]) == ("INVALID", "failed")
    assert count(told, "ok") == good
    shown = run(tmp_path, "run", "--json", verb="show")
    assert shown.returncode == 1
    assert only_point(shown.stdout) == told
    assert "INVALID" in run(tmp_path, "run", verb="show").stdout


def test_a_file_that_may_not_grow_is_a_report_and_exit_code_1(tmp_path: Path) -> None:
    with FaultServer() as server:
        flags = ("--url", server.url, "-c", "2", "--requests", "2000", "--output-tokens", "4", "--out", "run", "--json")
        done = run(tmp_path, *flags, limit=small_files)
        sent = completions(server)
    assert done.returncode == 1, done.stderr
    assert "What was measured until now is kept there; make room and run again" in done.stderr
    told = only_point(done.stdout)
    assert (told["verdict"], told["status"]) == ("INVALID", "failed")
    shown = run(tmp_path, "run", "--json", verb="show")
    assert shown.returncode == 1
    kept = only_point(shown.stdout)
    assert (kept["verdict"], kept["status"]) == ("INVALID", "failed")
    # The trial and four of warm-up are not counted. Lost: one that did not fit, two not read yet, two in flight.
    assert count(told, "ok") - 1 <= count(kept, "ok") <= count(told, "ok")
    assert count(kept, "ok") >= sent - 5 - 5 > 50


_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*_NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_a_report_and_exit_code_1(tmp_path: Path) -> None:
    """A disk of 128 KiB, in a namespace that only this test's processes see."""
    if not can_mount(tmp_path):
        pytest.skip("needs a mount namespace of its own for a small disk")
    python = f"{sys.executable} -m cadenza"
    with FaultServer() as server:
        flags = f"--url {server.url} -c 2 --requests 2000 --output-tokens 4 --out run --json"
        script = f"""mkdir run && mount -t tmpfs -o size=128k none run || exit 99
            {python} run {flags} > told.json 2> told.err; echo $? > told.code
            {python} show run --json > shown.json 2> shown.err; echo $? > shown.code
            {python} show run > shown.text; ls run > left"""
        subprocess.run([*_NAMESPACE, "sh", "-c", script], cwd=tmp_path, timeout=90, check=True)
        sent = completions(server)
    assert (tmp_path / "told.code").read_text() == "1\n"
    error = (tmp_path / "told.err").read_text()
    assert "No space left on device" in error
    assert "Traceback" not in error
    told, kept = (only_point((tmp_path / name).read_text()) for name in ("told.json", "shown.json"))
    assert (told["verdict"], told["status"]) == ("INVALID", "failed")
    assert count(told, "ok") - 1 <= count(kept, "ok") <= count(told, "ok")
    assert count(kept, "ok") >= sent - 5 - 5 > 50
    assert "manifest.json" in (tmp_path / "left").read_text().split()
    assert (kept["verdict"], kept["status"]) == ("INVALID", "failed")
    assert (tmp_path / "shown.code").read_text() == "1\n"
    assert "INVALID" in (tmp_path / "shown.text").read_text()


def test_what_an_interrupt_stops_is_cancelled_and_the_rest_dropped(tmp_path: Path) -> None:
    busy = faults.stall(60)
    with FaultServer(lambda received: (busy if received.number else faults.OK)(received)) as server:
        flags = ("--url", server.url, "-c", "2", "--requests", "10", "--warmup", "0", "--out", "run")
        command = [sys.executable, "-m", "cadenza", "run", *flags]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while completions(server) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()[1:]
    records = {record["index"]: record for record in map(json.loads, lines)}
    assert [records[k]["outcome"] for k in range(10)] == ["cancelled"] * 2 + ["dropped"] * 8
    assert all("sent_ns" in records[k] and "interrupted" in records[k]["detail"] for k in range(2))
    assert all("sent_ns" not in records[k] and "never sent" in records[k]["detail"] for k in range(2, 10))


def test_every_outcome_has_its_fault() -> None:
    """The rest: a backlog for timeout_connect, an interrupt for cancelled and dropped (each with a test here)."""
    elsewhere = {Outcome.TIMEOUT_CONNECT, Outcome.CANCELLED, Outcome.DROPPED}
    assert {fault.outcome for fault in MATRIX} | elsewhere == set(Outcome)
