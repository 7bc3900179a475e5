"""How far cadenza's figures are from the truth: one core for it, the other for a server of known token times.

    python -m bench.trust [C …]       default: 16 128 256 512

TTFT 20 ms, gap 10 ms, 128 tokens, 4 C requests, each load alone and with a neighbour that wants the client's core.
Every figure is a pair, ours and the server's own (GET /truth), of the same run. `late` is how late the server was by
its own account: where that is large it was the bottleneck, and the row says nothing about the client. Memory is what
the client's process grew by while it measured, without the records that a report is made from. A reader that receives
the same events and looks at nothing is the baseline of the CPU time.
"""

import contextlib
import multiprocessing
import selectors
import socket
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from bench.drive import Ours, run_ours, verdict
from bench.truth_server import Truth, TruthServer, cpu_s, pin

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange
from cadenza.load.health import undisturbed
from cadenza.load.issue import closed_loop
from cadenza.load.sockets import SocketTransport
from cadenza.load.target import resolve
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.spec import Credentials, Spec
from cadenza.wire.http1 import encode_request

TOKENS = 128
SERVER, CLIENT = 0, 1
MEMORY_SLOTS, MEMORY_REQUESTS = 64, 1024


def main() -> int:
    loads = [int(text) for text in sys.argv[1:]] or [16, 128, 256, 512]
    print(
        "  C neighbour | TTFT ms ours  truth  error | ITL p50 ours  p99 ours  truth  error | CPU µs/event  "
        "bare  ratio | lag p99 ms dispatch   read | server late p99 | verdict"
    )
    with TruthServer(ttft_ms=20, itl_ms=10, tokens=TOKENS, core=SERVER) as server:
        for slots in loads:
            bare_us = _bare_reader_us(server.url, slots)
            for busy in (False, True):
                with neighbour() if busy else contextlib.nullcontext():
                    server.reset()
                    spec = {"urls": [server.url], "concurrency": [slots], "requests": 4 * slots,
                            "output_tokens": [TOKENS, TOKENS]}  # fmt: skip
                    ours = run_ours(f"trust-{slots}-{busy}", spec, CLIENT)
                print(_row(slots, busy, ours, server.truth(), bare_us), flush=True)
        process = multiprocessing.get_context("spawn").Process(target=_measure_memory, args=(server.url,))
        process.start()
        process.join()
    return process.exitcode or 0


def _row(slots: int, busy: bool, ours: Ours, truth: Truth, bare_us: float) -> str:
    assert truth.ttft_ms is not None
    assert truth.itl_ms is not None
    assert truth.late_ms is not None
    point = ours.point
    ttft, itl = point["ttft_ms"]["mean"], point["itl_ms"]
    cpu_us, read = 1e6 * ours.cpu_s / ours.events, point["read_lag_ms"]["p99"]
    return (
        f"{slots:3d} {'busy' if busy else '–':9s} |"
        f" {ttft:12.2f} {truth.ttft_ms.mean:6.2f} {ttft - truth.ttft_ms.mean:+6.2f} |"
        f" {itl['p50']:12.2f} {itl['p99']:9.2f} {truth.itl_ms.p99:6.2f} {itl['p99'] - truth.itl_ms.p99:+6.2f} |"
        f" {cpu_us:12.1f} {bare_us:5.1f} {cpu_us / bare_us:6.2f} |"
        f" {point['dispatch_lag_ms']['p99']:19.2f} {float('nan') if read is None else read:6.2f} |"
        f" {truth.late_ms.p99:15.2f} | {verdict(ours)}"
    )


def _bare_reader_us(url: str, slots: int) -> float:
    """CPU time an event of a process that receives `slots` whole answers at once and looks at nothing, µs."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_read_barely, args=(url, slots, theirs))
    process.start()
    spent = float(mine.recv())
    process.join()
    return 1e6 * spent / (slots * TOKENS)


def _read_barely(url: str, slots: int, line: Connection) -> None:
    pin(CLIENT)
    target = resolve(url)
    body = f'{{"messages":[],"max_tokens":{TOKENS},"stream":true}}'.encode()
    request = encode_request("POST", "/v1/chat/completions", target.authority, (), body)
    with selectors.DefaultSelector() as selector:
        for _ in range(slots):
            sock = socket.create_connection(target.origin.address)
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        before = cpu_s()
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.send(request)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj.recv(65536).endswith(b"0\r\n\r\n"):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
        line.send(cpu_s() - before)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """A process that wants all of the client's core for as long as the block lasts."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin() -> None:
    pin(CLIENT)
    while True:
        pass


def _measure_memory(url: str) -> None:
    """Growth between the first quarter of a load and its end, so that what is set up once does not count."""
    pin(CLIENT)
    spec = Spec(urls=(url,), concurrency=(MEMORY_SLOTS,), requests=MEMORY_REQUESTS, output_tokens=(TOKENS, TOKENS))
    (point,) = lay_out(spec, ["truth"])
    target = resolve(url)
    phrasing = Phrasing(spec, Credentials(), [target])
    requests = iter([phrasing.put(r, options_for(spec, "truth")) for r in draw_requests(spec, point)])
    seen: list[tuple[int, int]] = []

    def emit(exchange: Exchange) -> None:
        events = len(exchange.record(0, "truth").event_ns)
        seen.append(((seen[-1][0] if seen else 0) + events, _resident_bytes()))

    with SocketTransport() as transport, undisturbed():
        client = Client(transport, [target.origin], phrasing.dialect, spec.timeouts)
        closed_loop(client, requests, MEMORY_SLOTS, emit, stop=lambda: False)
    (few, before), (all_events, after) = seen[len(seen) // 4], seen[-1]
    print(f"memory: {(after - before) / (all_events - few):+.1f} bytes an event over {all_events - few:,} events")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    sys.exit(main())
