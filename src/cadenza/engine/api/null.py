"""A server that does nothing but keep time: what `cadenza calibrate` measures the client against.

It answers every POST with so many tokens, one every `gap_ms`, and remembers when it handed each of them to the kernel,
on CLOCK_MONOTONIC, which all processes of a machine share. A request says which one it is by its path: `/…?n=17`. It
trusts its client: whole requests of one read, no errors, loopback only.
"""

import contextlib
import heapq
import multiprocessing
import os
import re
import selectors
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from cadenza.clock import NS_PER_MS, NS_PER_S
from cadenza.errors import CadenzaError

_UP_WITHIN_S = 15.0
_NUMBER = re.compile(rb"\?n=(\d+) ")
_STOP_EVERY_S = 0.05
_GOLDEN = 0.6180339887498949


class NullPlan(NamedTuple):
    """What each answer is: `tokens` events, the first after `first_ms` and up to `spread_ms` more, then every `gap_ms`.

    The spread keeps answers from ending all at once: request n waits for the fraction of n φ of it (golden ratio).
    """

    tokens: int
    first_ms: float
    gap_ms: float
    spread_ms: float = 0.0

    def first_ns(self, n: int) -> int:
        """How long request n waits for its first token."""
        return round((self.first_ms + self.spread_ms * (n * _GOLDEN % 1)) * NS_PER_MS)


# Request number → when each of its events was handed to the kernel, ns.
Truth = dict[int, list[int]]


class NullServer(NamedTuple):
    """A running one: its port, and the line over which it hears that it may end and tells the truth."""

    port: int
    line: Connection

    def truth(self) -> Truth:
        """End it, and hear when every event left."""
        self.line.send(None)
        truth: Truth = self.line.recv()
        return truth


@contextlib.contextmanager
def serve(pace: NullPlan, core: int | None = None) -> Iterator[NullServer]:
    """A null server in a process of its own, on `core` if one is named. CadenzaError if it does not come up."""
    context = multiprocessing.get_context("spawn")  # nothing of the parent's memory or sockets in it
    mine, theirs = context.Pipe()
    child = context.Process(target=_run, args=(pace, core, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not mine.poll(_UP_WITHIN_S):
            raise CadenzaError(f"the null server did not come up within {_UP_WITHIN_S:g} s")
        yield NullServer(mine.recv(), mine)
    except EOFError:
        raise CadenzaError("the null server ended without a word") from None
    finally:
        child.terminate()
        child.join()
        mine.close()


def _run(pace: NullPlan, core: int | None, line: Connection) -> None:
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        listener.setblocking(False)
        line.send(listener.getsockname()[1])
        line.send(_Shell(pace, listener, line).run())


class _Shell:
    def __init__(self, pace: NullPlan, listener: socket.socket, line: Connection) -> None:
        self._pace = pace
        self._listener = listener
        self._line = line
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._socks: dict[int, socket.socket] = {}
        self._due: list[tuple[int, int, int, int]] = []  # (when, descriptor, request, token)
        self._left: Truth = {}
        self._head, self._token, self._tail = _phrases(pace)

    def run(self) -> Truth:
        looked_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s - looked_s > _STOP_EVERY_S:
                looked_s = now_s
                if self._line.poll():
                    return self._left
            self._send_due()
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(key.fd)

    def _wait_s(self) -> float:
        """A wait ends up to a millisecond late; that one is spent looking."""
        if not self._due:
            return _STOP_EVERY_S
        return max(0.0, min(_STOP_EVERY_S, (self._due[0][0] - time.monotonic_ns()) / NS_PER_S - 0.001))

    def _send_due(self) -> None:
        gap_ns, last = round(self._pace.gap_ms * NS_PER_MS), self._pace.tokens - 1
        while self._due and self._due[0][0] <= time.monotonic_ns():
            due_ns, descriptor, request, token = heapq.heappop(self._due)
            sock = self._socks.get(descriptor)
            if sock is None:
                continue
            data = (self._head if token == 0 else b"") + self._token + (self._tail if token == last else b"")
            self._left[request].append(time.monotonic_ns())
            with contextlib.suppress(OSError):
                sock.send(data)
            if token < last:
                heapq.heappush(self._due, (due_ns + gap_ns, descriptor, request, token + 1))

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socks[sock.fileno()] = sock
                self._selector.register(sock, selectors.EVENT_READ)

    def _receive(self, descriptor: int) -> None:
        try:
            data = self._socks[descriptor].recv(65536)
        except OSError:
            data = b""
        if not data:
            sock = self._socks.pop(descriptor)
            self._selector.unregister(sock)
            sock.close()
            return
        found = _NUMBER.search(data)
        request = int(found.group(1)) if found else -1
        self._left[request] = []
        heapq.heappush(self._due, (time.monotonic_ns() + self._pace.first_ns(request), descriptor, request, 0))


def _phrases(pace: NullPlan) -> tuple[bytes, bytes, bytes]:
    """What every answer begins with, each of its tokens, and its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    shape = '{"id":"null","object":"chat.completion.chunk","created":1,"model":"null","choices":[%s]%s}'
    token = shape % ('{"index":0,"delta":{"content":" tick"},"logprobs":null,"finish_reason":null}', "")
    finish = shape % ('{"index":0,"delta":{"content":""},"finish_reason":"length"}', "")
    usage = shape % ("", f',"usage":{{"prompt_tokens":1,"completion_tokens":{pace.tokens}}}')
    events = [_chunk(f"data: {text}\n\n".encode()) for text in (token, finish, usage, "[DONE]")]
    return head, events[0], b"".join(events[1:]) + b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
