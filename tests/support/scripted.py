"""A peer in virtual time that answers every request by a script: the load room's tests need no engine and no socket."""

from collections.abc import Callable, Sequence

from cadenza.clock import NS_PER_MS

# (milliseconds after the request was whole, bytes; None closes the connection)
Script = Sequence[tuple[float, bytes | None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def token(text: str = " word", **fields: str) -> bytes:
    """One chat event that carries a token, as an HTTP chunk."""
    finish = f'"{fields["finish"]}"' if "finish" in fields else "null"
    body = f'data: {{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":{finish}}}]}}\n\n'
    return chunk(body.encode())


def usage(prompt: int, completion: int) -> bytes:
    """The usage event with `choices: []`, as an HTTP chunk."""
    body = f'data: {{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion}}}}}\n\n'
    return chunk(body.encode())


DONE = chunk(b"data: [DONE]\n\n")
END = b"0\r\n\r\n"


def stream(tokens: int, first_ms: float = 20.0, gap_ms: float = 10.0) -> Script:
    """A whole well-behaved answer: role event with the first token, usage and [DONE] with the last."""
    last = first_ms + (tokens - 1) * gap_ms
    events = [(first_ms + k * gap_ms, token(finish="length") if k == tokens - 1 else token()) for k in range(tokens)]
    return [(first_ms, HEAD), *events, (last, usage(5, tokens) + DONE + END)]


class ScriptedPeer:
    """Answers the n-th request (0-based, over all connections) with `script(n)`; counts what is open and in flight."""

    def __init__(self, script: Callable[[int], Script]) -> None:
        self._script = script
        self._due: list[tuple[int, int, int, bytes | None]] = []
        self._order = 0
        self.requests: list[tuple[int, int]] = []  # (connection, when)
        self.closed: list[int] = []

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        if not data:
            self.closed.append(connection)
            self._due = [item for item in self._due if item[2] != connection]
            return
        n = len(self.requests)
        self.requests.append((connection, now_ns))
        for after_ms, payload in self._script(n):
            self._order += 1
            self._due.append((now_ns + round(after_ms * NS_PER_MS), self._order, connection, payload))
        self._due.sort()

    def next_ns(self) -> int | None:
        return self._due[0][0] if self._due else None

    def take(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        taken = [(connection, payload) for due, _, connection, payload in self._due if due <= now_ns]
        self._due = [item for item in self._due if item[0] > now_ns]
        return taken
