"""A loopback server in a thread that answers with canned bytes, for tests that need real sockets."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What to say to request number n: (wait in seconds, bytes); None closes the connection, "reset" breaks it.
Step = tuple[float, bytes | str | None]
Answer = Callable[[int, bytes], list[Step]]

MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}


def http(status: int, value: object, kind: str = "application/json") -> bytes:
    """A whole response with a length."""
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class CannedServer:
    """Serves GET from `pages` (404 else) and POST from `answer`; keeps what it was asked in `heads`."""

    def __init__(self, answer: Answer, pages: dict[str, bytes], context: ssl.SSLContext | None) -> None:
        self._answer, self._pages, self._context = answer, pages, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.heads: list[bytes] = []
        self.posts = 0
        scheme = "https" if context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Accept until stopped."""
        self._listener.settimeout(0.05)
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop, and wait for every thread."""
        self._stop.set()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(0.05)
        try:
            with self._context.wrap_socket(sock, server_side=True) if self._context else sock as stream:
                stream.settimeout(0.05)
                while (request := self._read(stream)) is not None:
                    if not self._say(stream, self._reply(request)):
                        return
        except OSError:
            pass

    def _read(self, stream: socket.socket) -> bytes | None:
        data = b""
        while not self._stop.is_set():
            head, end, body = data.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if end and len(body) >= (int(lengths[0].split(b":")[1]) if lengths else 0):
                return data
            try:
                piece = stream.recv(65536)
            except TimeoutError:
                continue
            if not piece:
                return None
            data += piece
        return None

    def _reply(self, request: bytes) -> list[Step]:
        with self._lock:
            self.heads.append(request.partition(b"\r\n\r\n")[0])
            if not request.startswith(b"POST"):
                path = request.split(b" ")[1].decode()
                return [(0, self._pages.get(path, http(404, {"error": "no such path"})))]
            n, self.posts = self.posts, self.posts + 1
        return self._answer(n, request)

    def _say(self, stream: socket.socket, steps: list[Step]) -> bool:
        for wait_s, said in steps:
            until = time.monotonic() + wait_s
            while time.monotonic() < until and not self._stop.is_set():
                time.sleep(min(0.01, max(0.0, until - time.monotonic())))
            if said is None or self._stop.is_set():
                return False
            if said == "reset":
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return False
            assert isinstance(said, bytes)
            stream.sendall(said)
        return True


@contextmanager
def serve(
    answer: Answer, pages: dict[str, bytes] | None = None, context: ssl.SSLContext | None = None
) -> Iterator[CannedServer]:
    """A running server; by default it lists one model, `m`."""
    server = CannedServer(answer, {"/v1/models": http(200, MODELS)} if pages is None else pages, context)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(5)
