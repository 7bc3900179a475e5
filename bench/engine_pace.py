"""Five hundred streams of 50 tokens a second from the embedded engine on one core: how late does a step leave?

    python -m bench.engine_pace [--streams 500] [--seconds 20]

The engine follows a law whose step is 20 ms flat, in a process of its own on one core; a reader that only counts and
keeps the kernel's receive stamps has another. All events of a step fall due at one instant, so the last of them waits
for all the others: lateness is told for the first and for the last byte of each step, by the kernel's stamps and on the
server's clock (events made: negative where that was before they were due; all handed over). Beside it, in the same run
and on the same cores: a loop that does nothing but `send` a ready event on each of as many sockets when it is due (what
no server in Python can beat), and the C truth server, whose streams keep a grid each and so are not in step (its
lateness is told per event).

On a machine that others use, `chrt -r 1` before the command keeps them off (real-time scheduling, needs root).
"""

import argparse
import multiprocessing
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from bench.engine_rate import request
from bench.truth_server import TruthServer, pin

from cadenza.clock import NS_PER_MS, NS_PER_S
from cadenza.engine.api.http import Output
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.server import serve
from cadenza.engine.profile import parse
from cadenza.load.stamps import ANCILLARY_BYTES, ArrivalClock, ask_for_stamps

STEP_MS, TTFT_MS = 20, 500
STEP_NS = STEP_MS * NS_PER_MS
SERVER, READER = 0, 1
# Not looked at, until every stream decodes; nor is the last step, in which all streams end: it is told by itself.
WARM_UP_STEPS = 50
PROFILE = f"""
name = "pace"
hardware = "a step of {STEP_MS} ms, whatever the load"

[limits]
max_num_seqs = 4096
max_num_batched_tokens = 8192
max_model_len = 8192
num_gpu_blocks = 262144

[[models]]
name = "Qwen/Qwen2.5-7B-Instruct"

[models.measured]
rows = [{{ in_system = 1.0, ttft_ms = {TTFT_MS}.0, step_ms = {STEP_MS}.0 }}]
"""


class Steps(NamedTuple):
    """What a server did: each step's due time, and when its events were all made and all handed over; ns, (steps,).

    cpu_ns  processor time of the process when a step's events were made
    """

    due_ns: list[int]
    made_ns: list[int]
    handed_ns: list[int]
    cpu_ns: list[int]


class Watched(HttpApi):
    """A api that keeps the times of steps of at least `least` events: three clock reads a step, none an event.

    The shell says all that `take` gave it before it asks again for `next_ns`.
    """

    def __init__(self, least: int) -> None:
        super().__init__(parse(PROFILE))
        self._least = least
        self._start_ns = 1 << 62
        self._is_out = True
        self._steps = Steps([], [], [], [])

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        # Engine time zero on the machine's clock: the closest that the two were read to each other.
        self._start_ns = min(self._start_ns, time.monotonic_ns() - now_ns)
        super().receive(connection, data, now_ns)

    def next_ns(self) -> int | None:
        if not self._is_out:
            self._is_out = True
            self._steps.handed_ns.append(time.monotonic_ns())
        return super().next_ns()

    def take(self, now_ns: int) -> list[tuple[int, Output]]:
        due_ns = super().next_ns()
        said = super().take(now_ns)
        if due_ns is not None and len(said) >= self._least:
            self._steps.due_ns.append(due_ns)
            self._steps.made_ns.append(time.monotonic_ns())
            self._steps.cpu_ns.append(time.process_time_ns())
            self._is_out = False
        return said

    def steps(self) -> Steps:
        return self._steps._replace(due_ns=[due_ns + self._start_ns for due_ns in self._steps.due_ns])


def _engine(streams: int, line: Connection) -> None:
    pin(SERVER)
    api = Watched(streams)
    serve(api, "127.0.0.1", 0, 1.0, ready=lambda url: line.send(int(url.rpartition(":")[2])), stop=line.poll)
    line.send(api.steps())


def _bare(streams: int, steps: int, event: bytes, line: Connection) -> None:
    """Nothing but the sends: a ready event on every socket, every 20 ms, the last of the wait spent looking."""
    pin(SERVER)
    done = Steps([], [], [], [])
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        line.send(listener.getsockname()[1])
        socks = [listener.accept()[0] for _ in range(streams)]
    for sock in socks:
        sock.recv(16)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    next_ns = time.monotonic_ns() + TTFT_MS * NS_PER_MS
    for _ in range(steps):
        time.sleep(max(0, next_ns - time.monotonic_ns() - NS_PER_MS // 2) / NS_PER_S)
        while time.monotonic_ns() < next_ns:
            pass
        done.due_ns.append(next_ns)
        done.cpu_ns.append(time.process_time_ns())
        done.made_ns.append(time.monotonic_ns())
        for sock in socks:
            sock.send(event)
        done.handed_ns.append(time.monotonic_ns())
        next_ns += STEP_NS
    for sock in socks:
        sock.close()
    line.recv()
    line.send(done)


def read(port: int, asks: list[bytes]) -> tuple[np.ndarray, int]:
    """Ask each on a connection of its own, and read all answers: stamps of the reads, ns, and how many held several."""
    clock, poll, socks = ArrivalClock(), select.epoll(), {}
    for _ in asks:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        ask_for_stamps(sock)
        socks[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    for sock, ask in zip(socks.values(), asks, strict=True):
        sock.send(ask)
    stamps, several, left = [], 0, len(asks)
    while left:
        ready = poll.poll()
        clock.look()
        for fd, _ in ready:
            data, ancillary, _, _ = socks[fd].recvmsg(1 << 16, ANCILLARY_BYTES)
            read_ns = time.monotonic_ns()
            stamp_ns = clock.arrival_ns(ancillary, read_ns)
            stamps.append(read_ns if stamp_ns is None else stamp_ns)
            if not data or data.endswith(b"0\r\n\r\n"):
                left -= 1
                poll.unregister(fd)
            elif data.count(b"data: ") > 1:
                several += 1
    for sock in socks.values():
        sock.close()
    return np.array(stamps), several


@contextmanager
def child(target: Callable[..., None], *arguments: object) -> Any:
    """A process of its own; the port that it listens on, and its end of the line."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield mine.recv(), mine
    finally:
        process.join(10)
        process.kill()


def one_event() -> bytes:
    """What the engine sends for a token in the middle of a stream."""
    api = HttpApi(parse(PROFILE))
    api.receive(0, request(8), 0)
    times = iter(api.next_ns, None)
    return [said for due_ns in islice(times, 4) for _, said in api.take(due_ns) if isinstance(said, bytes)][-1]


def table(name: str, streams: int, steps: Steps, stamps: np.ndarray, several: int) -> list[float]:
    """Print a server's lateness; p99 of its steps' last byte, ms, on its own clock and by the kernel's stamps."""
    due, made, handed, cpu = (np.array(times)[WARM_UP_STEPS:-1] for times in steps)
    stamps = np.sort(stamps[(stamps >= due[0]) & (stamps < due[-1] + STEP_NS)])
    counts = np.bincount(np.searchsorted(due, stamps, side="right") - 1, minlength=len(due))
    begins = np.cumsum(counts) - counts
    full = counts == streams  # an event that was read together with another has no stamp of its own
    first, last = stamps[begins[full]] - due[full], stamps[begins[full] + streams - 1] - due[full]
    rate = streams * (len(due) - 1) / ((handed[-1] - handed[0]) / NS_PER_S)
    busy = (cpu[-1] - cpu[0]) / (made[-1] - made[0])
    send_us = np.median(handed - np.maximum(made, due)) / 1000 / streams
    print(
        f"{name}: {rate:,.0f} events/s of {streams * 1000 / STEP_MS:,.0f} due, {100 * busy:.0f} % of its core, ", end=""
    )
    print(
        f"{send_us:.1f} µs a send; {full.sum()} of {len(due)} steps with a stamp for each event, {several} reads late"
    )
    rows = {
        "events made": made - due,
        "first byte, kernel stamp": first,
        "last byte, handed over": handed - due,
        "last byte, kernel stamp": last,
    }
    for title, late_ns in rows.items():
        p50, p99 = np.percentile(late_ns, [50, 99]) / NS_PER_MS
        print(f"  {title:26s} {p50:8.3f} {p99:8.3f} {late_ns.max() / NS_PER_MS:8.3f}", flush=True)
    ending_ms = (steps.handed_ns[-1] - steps.due_ns[-1]) / NS_PER_MS
    print(f"  the step in which all streams end: last byte handed over after {ending_ms:.1f} ms")
    return [float(np.percentile(late, 99)) / NS_PER_MS for late in (handed - due, last)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    streams, steps = args.streams, WARM_UP_STEPS + round(args.seconds * 1000 / STEP_MS)
    asks = [request(steps, "go " * (1 + n % 64)) for n in range(streams)]
    print(f"{streams} streams, a step every {STEP_MS} ms; late, ms:      p50      p99      max")
    pin(READER)
    found = {}
    for name, target, arguments in (
        ("bare send", _bare, (streams, steps, one_event())),
        ("engine", _engine, (streams,)),
    ):
        with child(target, *arguments) as (port, line):
            stamps, several = read(port, [b"\n"] * streams if target is _bare else asks)
            line.send(None)
            found[name] = table(name, streams, line.recv(), stamps, several)
    with TruthServer(ttft_ms=TTFT_MS, itl_ms=STEP_MS, tokens=steps, core=SERVER) as server:
        read(server.port, asks)
        truth = server.truth()
    assert truth.late_ms is not None
    late = truth.late_ms
    print(f"C truth server, not in step: {truth.chunks / truth.span_s:,.0f} events/s, {truth.cpu_s:.1f} s of CPU")
    print(f"  {'each event, handed over':26s} {late.p50:8.3f} {late.p99:8.3f} {late.max:8.3f}")
    ratios = [ours / floor for ours, floor in zip(found["engine"], found["bare send"], strict=True)]
    print(f"last byte p99, engine / bare send: {ratios[0]:.2f} handed over, {ratios[1]:.2f} by kernel stamps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
