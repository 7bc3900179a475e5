"""A loopback HTTP server that misbehaves on purpose: `with FaultServer(faults.reset("mid-stream")) as server: …`.

Its pauses end at once when it stops, and it leaves no thread behind.
"""

import itertools
import json
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from types import TracebackType
from typing import Self

from support.faults import OK, RESET, Banner, Behaviour, Pause, Received, Step, http_error

_NOT_FOUND = http_error(404, b'{"detail":"Not Found"}')


@contextmanager
def full_backlog() -> Iterator[int]:
    """The port of a listener that never accepts and whose queue is full: on Linux a further connect hangs."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # room for one
        port: int = listener.getsockname()[1]
        first.connect(("127.0.0.1", port))
        yield port


class FaultServer:
    """Answers requests for completions by `routes` (the longest prefix of the path wins), else by `behaviour`.

    A route's prefix may stand before the API's path ("/slow" for a base URL of `server.url + "/slow"`). Any other
    request is answered by the route of exactly its path; else GET …/v1/models lists `models`, and the rest is a 404.
    With a `context` it speaks TLS. A `Banner` speaks for the whole server. `requests` is what came, in order;
    `connections` how many were opened.
    """

    def __init__(
        self,
        behaviour: Behaviour | Banner = OK,
        routes: Mapping[str, Behaviour] | None = None,
        models: Iterable[str] = ("tiny",),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.url = ""
        self._behaviour = behaviour
        self._context = context
        self._routes = dict(routes or {})
        listed = [{"id": name, "object": "model", "owned_by": "vllm", "max_model_len": 2048} for name in models]
        self._models = http_error(200, json.dumps({"object": "list", "data": listed}).encode())
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._served: list[tuple[socket.socket, threading.Thread]] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if self._context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._waker, self._woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._waker.send(b"x")
        self._acceptor.join()
        for sock, thread in self._served:
            try:
                sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads or writes
            except OSError:
                pass
            thread.join()
        for sock in (self._listener, self._waker, self._woken):
            sock.close()

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._woken], [], [])
            if self._woken in ready:
                return
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small pieces leave at once, as a server's do
            thread = threading.Thread(target=self._serve, args=(sock, self.connections))
            self.connections += 1
            self._served.append((sock, thread))
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        try:
            stream = self._context.wrap_socket(sock, server_side=True) if self._context else sock
            with stream as sock, stream.makefile("rb") as reader:
                if isinstance(self._behaviour, Banner):
                    sock.sendall(self._behaviour.data)
                    sock.shutdown(socket.SHUT_WR)
                    reader.read()  # closing with unread bytes would turn the FIN into a reset
                    return
                for nth in itertools.count():
                    received = self._read(reader, connection, nth)
                    if received is None or not self._answer(sock, self._choose(received)(received)):
                        return
                    if received.headers.get("connection") == "close":
                        return
        except OSError:
            pass  # the client has gone, or the server stops

    def _read(self, reader: BufferedReader, connection: int, nth: int) -> Received | None:
        words = reader.readline().decode("latin-1").split()
        if len(words) != 3:
            return None
        headers = {}
        while line := reader.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = reader.read(int(headers.get("content-length", 0)))
        with self._lock:
            number = sum(earlier.is_completion for earlier in self.requests)
            received = Received(connection, nth, number, words[0], words[1], headers, body)
            self.requests.append(received)
        return received

    def _choose(self, received: Received) -> Behaviour:
        if not received.is_completion:
            listed = received.method == "GET" and received.path.endswith("/v1/models")
            return self._routes.get(received.path, self._models if listed else _NOT_FOUND)
        assert not isinstance(self._behaviour, Banner)
        prefixes = [prefix for prefix in self._routes if received.path.startswith(prefix)]
        return self._routes.get(max(prefixes, key=len, default=""), self._behaviour)

    def _answer(self, sock: socket.socket, steps: Iterable[Step]) -> bool:
        """Take the steps; whether the connection is kept."""
        for step in steps:
            if self._stopping.is_set():
                return False
            if isinstance(step, bytes):
                sock.sendall(step)
            elif isinstance(step, Pause):
                self._stopping.wait(step.seconds)
            else:
                if step is RESET:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
        return True
