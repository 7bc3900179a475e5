"""Ways to read a token stream, each with and without the kernel's stamps: what they get right, and what they cost.

    python -m bench.hot_path [C …]       default: 128 512

C streams at once, 4 rounds, one core for the reader and the other for a server of known token times (TTFT 20, gap 10,
128 tokens); alone, and beside a process that wants all of the reader's core. Nothing is parsed but HTTP framing
(httptools). uvloop: its Protocol, stamped in data_received; its add_reader and recvmsg for the kernel's stamps. bare:
epoll and nothing else. Needs the extra [bench].
"""

import asyncio
import json
import multiprocessing
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import cast

import httptools
import numpy as np
import uvloop
from bench.trust import CLIENT, SERVER, TOKENS, neighbour
from bench.truth_server import TruthServer, cpu_s, pin

from cadenza.load.stamps import ANCILLARY_BYTES, Ancillary, ArrivalClock, ask_for_stamps
from cadenza.load.target import resolve
from cadenza.wire.http1 import encode_request

ROUNDS = 4
Address = tuple[str, int]


class Reading:
    """One connection that asks again until its rounds are over. `stamps` holds (sent, event stamps) a request."""

    def __init__(self, send: Callable[[bytes], object], request: bytes) -> None:
        self.stamps: list[tuple[int, list[int]]] = []
        self.left = ROUNDS
        self._send, self._request = send, request
        self._parser = httptools.HttpResponseParser(self)
        self._stamp_ns = 0

    def ask(self) -> None:
        """Send the request; after the last round nothing."""
        if self.left:
            self.left -= 1
            self._parser = httptools.HttpResponseParser(self)
            self.stamps.append((time.monotonic_ns(), []))
            self._send(self._request)

    def feed(self, data: bytes, stamp_ns: int) -> bool:
        """Bytes and when they came; whether that was the end of the last answer."""
        self._stamp_ns, self._ended = stamp_ns, False
        self._parser.feed_data(data)
        if self._ended:
            over = not self.left
            self.ask()
            return over
        return False

    def on_body(self, body: bytes) -> None:
        """One event a body; the ones after the last token are not counted by the caller."""
        self.stamps[-1][1].append(self._stamp_ns)

    def on_message_complete(self) -> None:
        self._ended = True


def read_bare(address: Address, slots: int, request: bytes, *, kernel: bool) -> list[Reading]:
    """epoll, level-triggered, one read an event."""
    clock, poll, readings = ArrivalClock(), select.epoll(), {}
    for _ in range(slots):
        sock = _connect(address, kernel)
        readings[sock.fileno()] = (sock, Reading(sock.send, request))
        poll.register(sock, select.EPOLLIN)
    for _, reading in readings.values():
        reading.ask()
    running = slots
    while running:
        ready = poll.poll()
        clock.look()
        for fd, _ in ready:
            sock, reading = readings[fd]
            data, stamp_ns = _receive(sock, clock, kernel)
            running -= reading.feed(data, stamp_ns)
    return [reading for _, reading in readings.values()]


class _Protocol(asyncio.Protocol):
    def __init__(self, request: bytes, over: Callable[[], None]) -> None:
        self.request, self.over = request, over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.reading = Reading(cast(asyncio.Transport, transport).write, self.request)
        self.reading.ask()

    def data_received(self, data: bytes) -> None:
        if self.reading.feed(data, time.monotonic_ns()):
            self.over()


def read_uvloop(address: Address, slots: int, request: bytes, *, kernel: bool) -> list[Reading]:
    """A Protocol a connection; with kernel stamps a reader callback and recvmsg."""

    async def run() -> list[Reading]:
        loop, done, left = asyncio.get_running_loop(), asyncio.Event(), [slots]

        def over() -> None:
            left[0] -= 1
            if not left[0]:
                done.set()

        if not kernel:
            made = [await loop.create_connection(lambda: _Protocol(request, over), *address) for _ in range(slots)]
            await done.wait()
            return [protocol.reading for _, protocol in made]
        clock, readings = ArrivalClock(), []
        for _ in range(slots):
            sock = _connect(address, kernel)
            reading = Reading(sock.send, request)
            readings.append(reading)

            def came(sock: socket.socket = sock, reading: Reading = reading) -> None:
                data, stamp_ns = _receive(sock, clock, True)
                if reading.feed(data, stamp_ns):
                    over()

            loop.add_reader(sock.fileno(), came)
            reading.ask()
        await done.wait()
        return readings

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _connect(address: Address, kernel: bool) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kernel:
        ask_for_stamps(sock)
    return sock


def _receive(sock: socket.socket, clock: ArrivalClock, kernel: bool) -> tuple[bytes, int]:
    if not kernel:
        stamp_ns = time.monotonic_ns()
        return sock.recv(65536), stamp_ns
    ancillary: Ancillary
    data, ancillary, _, _ = sock.recvmsg(65536, ANCILLARY_BYTES)
    stamp_ns = time.monotonic_ns()
    arrived_ns = clock.arrival_ns(ancillary, stamp_ns)
    return data, stamp_ns if arrived_ns is None else arrived_ns


WAYS = {"uvloop": read_uvloop, "bare epoll": read_bare}


def _measure(way: str, kernel: bool, url: str, slots: int, line: Connection) -> None:
    pin(CLIENT)
    target = resolve(url)
    body = json.dumps({"messages": [], "max_tokens": TOKENS, "stream": True}).encode()
    request = encode_request("POST", "/v1/chat/completions", target.authority, (), body)
    before = cpu_s()
    readings = WAYS[way](target.origin.address, slots, request, kernel=kernel)
    spent = cpu_s() - before
    answers = [(sent, np.array(events[:TOKENS])) for reading in readings for sent, events in reading.stamps]
    ttft = np.mean([(events[0] - sent) / 1e6 for sent, events in answers])
    gaps = np.concatenate([np.diff(events) for _, events in answers]) / 1e6
    line.send((float(ttft), *(float(np.percentile(gaps, q)) for q in (50, 99)), 1e6 * spent / (len(answers) * TOKENS)))


def main() -> int:
    loads = [int(text) for text in sys.argv[1:]] or [128, 512]
    print("  C neighbour | way        stamps | TTFT ms  truth  error | ITL p50    p99  truth  error | CPU µs/event")
    context = multiprocessing.get_context("spawn")
    with TruthServer(ttft_ms=20, itl_ms=10, tokens=TOKENS, core=SERVER) as server:
        for slots in loads:
            for busy in (False, True):
                for way, kernel in [(way, kernel) for way in WAYS for kernel in (False, True)]:
                    server.reset()
                    mine, theirs = context.Pipe(duplex=False)
                    with neighbour() if busy else nullcontext():
                        process = context.Process(target=_measure, args=(way, kernel, server.url, slots, theirs))
                        process.start()
                        theirs.close()
                        ttft, p50, p99, cpu_us = mine.recv()
                        process.join()
                    truth = server.truth()
                    assert truth.ttft_ms is not None
                    assert truth.itl_ms is not None
                    print(
                        f"{slots:3d} {'busy' if busy else '–':9s} | {way:10s} {'kernel' if kernel else 'read':6s} |"
                        f" {ttft:7.2f} {truth.ttft_ms.mean:6.2f} {ttft - truth.ttft_ms.mean:+6.2f} |"
                        f" {p50:7.2f} {p99:6.2f} {truth.itl_ms.p99:6.2f} {p99 - truth.itl_ms.p99:+6.2f} |"
                        f" {cpu_us:12.1f}",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
