"""How many token events a second the embedded engine can produce: its api alone, and its server over loopback.

The api runs in virtual time, without sockets; the server far faster than real time, for a reader that only counts
bytes (a server that runs late sends what has fallen due to one client in one piece, so this is a ceiling). Their ratio
is what the sockets cost. All of it, the reader included, on one core. One figure a line, then the ratio; run it on an
idle machine. What the server does one event at a time, on time: `bench.engine_pace`.
"""

import json
import socket
import sys
import threading
import time

from bench.truth_server import pin

from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.server import serve
from cadenza.engine.profile import load

STREAMS = 64
TOKENS = 2000


def request(tokens: int = TOKENS, prompt: str = "go") -> bytes:
    """A completion's bytes, streamed."""
    body = json.dumps(
        {"model": "Qwen/Qwen2.5-7B-Instruct", "prompt": prompt, "max_tokens": tokens, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def face_rate() -> float:
    """Events a second of the api in virtual time."""
    api = HttpApi(load("mi50-rx6900xt"))
    for connection in range(STREAMS):
        api.receive(connection, request(), 0)
    start = time.perf_counter()
    while (due := api.next_ns()) is not None:
        api.take(due)
    return STREAMS * TOKENS / (time.perf_counter() - start)


def server_rate() -> float:
    """Events a second over loopback sockets, the reader in this process too; speed is set beyond what it can do."""
    urls: list[str] = []
    up, done = threading.Event(), threading.Event()

    def ready(url: str) -> None:
        urls.append(url)
        up.set()

    server = threading.Thread(
        target=serve, args=(HttpApi(load("mi50-rx6900xt")), "127.0.0.1", 0, 1e6, ready, done.is_set), daemon=True
    )
    server.start()
    up.wait(10)
    port = int(urls[0].rpartition(":")[2])
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(STREAMS)]
    start = time.perf_counter()
    for sock in socks:
        sock.sendall(request())
    for sock in socks:
        tail = b""
        while not tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            tail = (tail + sock.recv(1 << 20))[-64:]
    elapsed = time.perf_counter() - start
    for sock in socks:
        sock.close()
    done.set()
    server.join(5)
    return STREAMS * TOKENS / elapsed


def main() -> int:
    pin(0)
    api, server = face_rate(), server_rate()
    print(f"api    {api:10,.0f} events/s")
    print(f"server  {server:10,.0f} events/s")
    print(f"server / api  {server / api:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
