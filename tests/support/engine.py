"""An embedded engine of known timing, and a client that talks to its api in virtual time."""

import json
from collections import defaultdict

import httptools

from cadenza.engine.api.http import Output
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.text import output_token
from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.sequence import Limits
from cadenza.engine.profile import load
from cadenza.hardware.batch import Batch

PROFILE = load("mi50-rx6900xt")
MODELS = tuple(model.name for model in PROFILE.models)
QWEN3, QWEN25, _ = MODELS
TTFT_NS, STEP_NS = 100_000_000, 10_000_000


class Steady:
    """100 ms to the first token, 10 ms to each that follows, whatever the load."""

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return STEP_NS

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int | None:
        return TTFT_NS

    def request_ns(self) -> int:
        return 0


def steady_core(**limits: int) -> Core:
    told = Limits(**limits)  # type: ignore[arg-type]
    instances = (Instance(name, Steady(), told, output_token=output_token) for name in MODELS)
    return Core(dict(zip(MODELS, instances, strict=True)))


def post(path: str, body: object, *lines: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "host: a",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode() + data


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: a", *lines, "", ""]).encode()


class Client:
    """What one connection got: answers as (status, body), and whether it was closed."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.headers: dict[str, str] = {}
        self.stamps: list[tuple[int, bytes]] = []
        self.closed = False
        self.is_broken = False
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._body, self.headers = b"", {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.answers.append((self._parser.get_status_code(), self._body))

    def hear(self, now_ns: int, data: Output) -> None:
        if data is None:
            self.closed = True
        elif isinstance(data, ConnectionResetError):
            self.is_broken = True
        else:
            self.stamps.append((now_ns, data))
            self._parser.feed_data(data)


def converse(api: HttpApi, sent: dict[int, list[bytes]], now_ns: int = 0) -> dict[int, Client]:
    """Send everything at `now_ns`, then hear all there is to hear."""
    clients: dict[int, Client] = defaultdict(Client)
    for connection, pieces in sent.items():
        for piece in pieces:
            api.receive(connection, piece, now_ns)
    while (due := api.next_ns()) is not None:
        for connection, data in api.take(due):
            clients[connection].hear(due, data)
    return clients


def quiet_face(api_key: str | None = None) -> HttpApi:
    """A server of steady pace."""
    return HttpApi(PROFILE, api_key=api_key, epoch_s=1_700_000_000, core=steady_core())


def answers(data: bytes, api: HttpApi | None = None) -> list[tuple[int, bytes]]:
    return converse(api or quiet_face(), {1: [data]})[1].answers
