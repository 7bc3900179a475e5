"""What the client costs and how late it is, against the embedded engine on the other side of a loopback socket.

    python bench/client_cost.py [C …]       default: 16 64 128

A closed loop of C streams for a few seconds of real time. Prints events per second, the client's CPU time an event, and
the ratio of its CPU to that of a bare reader, which receives the same bytes from the same engine and looks at nothing.
"""

import json
import resource
import selectors
import socket
import sys
import time

import numpy as np

from cadenza.engine import child
from cadenza.load.client import Client
from cadenza.load.issue import closed_loop
from cadenza.load.sockets import SocketTransport
from cadenza.load.target import resolve
from cadenza.record import Record
from cadenza.spec import Credentials, Spec
from cadenza.stats.columns import Columns
from cadenza.stats.latency import dispatch_lag_ms, ttft_ms
from cadenza.sweep.grid import lay_out
from cadenza.sweep.plan import Phrasing, draw_requests, options_for

PROFILE, MODEL = "mi50-rx6900xt", "google/gemma-4-E2B-it"
SPEED = 5.0
TOKENS = 64


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_client(url: str, slots: int) -> tuple[list[Record], float, float]:
    """(records, CPU seconds, wall seconds) of 4 C requests."""
    spec = Spec(urls=(url,), concurrency=(slots,), requests=4 * slots, output_tokens=(TOKENS, TOKENS), warmup=0)
    (point,) = lay_out(spec, [MODEL])
    target = resolve(url)
    phrasing = Phrasing(spec, Credentials(), [target])
    requests = iter([phrasing.put(r, options_for(spec, MODEL)) for r in draw_requests(spec, point)])
    with SocketTransport() as transport:
        client = Client(transport, [target.origin], phrasing.dialect, spec.timeouts)
        cpu, wall = cpu_s(), time.perf_counter()
        records: list[Record] = []
        closed_loop(client, requests, slots, lambda e: records.append(e.record(0, MODEL)), stop=lambda: False)
        return records, cpu_s() - cpu, time.perf_counter() - wall


def run_reader(url: str, slots: int) -> float:
    """CPU seconds of a reader that takes `slots` whole answers at once and looks at nothing."""
    target = resolve(url)
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS, "stream": True}
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.authority}\r\nConnection: close\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    cpu = cpu_s()
    with selectors.DefaultSelector() as selector:
        for _ in range(slots):
            sock = socket.create_connection(target.origin.address)
            sock.sendall(request)
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if not key.fileobj.recv(65536):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return cpu_s() - cpu


def main() -> int:
    slots = [int(text) for text in sys.argv[1:]] or [16, 64, 128]
    print("  C   events/s   client µs/event   bare reader µs/event   ratio   TTFT mean ms   dispatch lag p50, max ms")
    with child.start(PROFILE, SPEED) as engine:
        for n in slots:
            records, cpu, wall = run_client(engine.url, n)
            events = sum(len(record.event_ns) for record in records)
            reader = 1e6 * run_reader(engine.url, n) / (n * TOKENS)
            columns = Columns.of(records)
            lag = np.sort(dispatch_lag_ms(columns)[n:])  # the first n leave together, before any answer
            ours, ttft = 1e6 * cpu / events, float(ttft_ms(columns).mean())
            print(
                f"{n:4d} {events / wall:9,.0f} {ours:15.1f} {reader:21.1f} {ours / reader:11.2f} {ttft:13.2f} "
                f"{lag[len(lag) // 2]:13.2f}, {lag[-1]:.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
