"""What the preflight learns from a server, and the sentence it gives where a server refuses; no socket."""

import json
from collections.abc import Callable

import pytest

from cadenza.errors import TargetError, UsageError
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.plan import Phrasing
from cadenza.measure.preflight import examine
from cadenza.spec import Credentials, Spec
from cadenza.store.manifest import Server
from support.scripted import DONE, END, HEAD, token, usage

MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}
ANSWER = HEAD + token() + token(finish="length") + usage(5, 4) + DONE + END


def http(status: int, value: object, kind: str = "application/json") -> bytes:
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class WebPeer:
    """Answers at once: GET from a table of paths (404 else), POST by a function of the request's body."""

    def __init__(self, pages: dict[str, bytes], post: Callable[[dict[str, object]], bytes]) -> None:
        self._pages, self._post = pages, post
        self._said: list[tuple[int, bytes | None]] = []
        self._now = 0
        self.posted: list[dict[str, object]] = []

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        self._now = now_ns
        if not data:
            return
        head, _, body = data.partition(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        if head.startswith(b"POST"):
            self.posted.append(json.loads(body))
            self._said.append((connection, self._post(self.posted[-1])))
        else:
            self._said.append((connection, self._pages.get(path, http(404, {"error": "no such path"}))))

    def next_ns(self) -> int | None:
        return self._now if self._said else None

    def take(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        said, self._said = self._said, []
        return said


def look(
    pages: dict[str, bytes], post: Callable[[dict[str, object]], bytes] = lambda body: ANSWER, spec: Spec | None = None
) -> tuple[Server, WebPeer]:
    peer = WebPeer(pages, post)
    spec = spec or Spec(urls=("http://h:1",))
    phrasing = Phrasing(spec, Credentials(), [Target("http://h:1", Origin("h", ("127.0.0.1", 1)), "h:1", "")])
    return examine(MemoryTransport(peer), phrasing, spec, Credentials()), peer


def test_a_server_in_one_look() -> None:
    found, peer = look({"/v1/models": http(200, MODELS), "/version": http(200, {"version": "0.32.0"})})
    assert (found.engine, found.version, found.models, found.max_model_len_tok) == ("vLLM", "0.32.0", ["m"], 2048)
    assert (found.gives_usage, found.tokens_per_event, found.simulated) == (True, 2.0, False)
    assert (found.accepts_ignore_eos, found.accepts_include_usage) == (True, True)
    assert [body["max_tokens"] for body in peer.posted] == [8]


def test_without_usage_it_says_that_it_does_not_know() -> None:
    found, _ = look({"/v1/models": http(200, MODELS)}, lambda body: HEAD + token(finish="stop") + DONE + END)
    assert (found.gives_usage, found.tokens_per_event, found.version) == (False, None, None)


def test_fields_that_are_refused_are_left_out_one_by_one() -> None:
    def picky(body: dict[str, object]) -> bytes:
        for field in ("stream_options", "ignore_eos"):
            if field in body:
                return http(400, {"error": {"message": f"Unrecognized request argument supplied: {field}"}})
        return ANSWER

    found, peer = look({"/v1/models": http(200, MODELS)}, picky)
    assert (found.accepts_ignore_eos, found.accepts_include_usage) == (False, False)
    assert len(peer.posted) == 3


HTML = "<html><head><title>Welcome to nginx!</title></head></html>"
TWO = {"data": [{"id": "a"}, {"id": "b"}]}
NOT_FOUND = http(404, {"error": {"message": "The model `x` does not exist.", "code": 404}})
LONG = http(400, {"error": {"message": "This model's maximum context length is 2048 tokens."}})
REFUSALS: list[tuple[dict[str, bytes], bytes, Spec | None, type[Exception], str]] = [
    ({"/v1/models": http(401, {"error": "Unauthorized"})}, ANSWER, None, TargetError, "CADENZA_API_KEY"),
    ({"/v1/models": http(200, HTML, "text/html")}, ANSWER, None, TargetError, "an HTML page: Welcome to nginx!"),
    ({"/v1/models": http(200, {"models": []})}, ANSWER, None, TargetError, "not the base URL of an OpenAI-compatible"),
    ({"/v1/models": http(500, {"error": "boom"})}, ANSWER, None, TargetError, "HTTP 500: boom"),
    ({"/v1/models": http(200, {"data": []})}, ANSWER, None, TargetError, "name one with --model"),
    (
        {"/v1/models": http(200, TWO)},
        ANSWER,
        None,
        UsageError,
        "2 models: choose with --model NAME, or --model all: a, b",
    ),
    ({"/v1/models": http(200, MODELS)}, NOT_FOUND, Spec(models=("x",)), TargetError, "has no model 'x'; it has: m"),
    ({"/v1/models": http(200, MODELS)}, LONG, None, TargetError, "maximum context length is 2048 tokens"),
    ({"/v1/models": http(200, MODELS)}, http(503, {"error": "busy"}), None, TargetError, "HTTP 503: busy"),
    ({"/v1/models": b"SSH-2.0-OpenSSH\r\n"}, ANSWER, None, TargetError, "does not speak HTTP as it should"),
    ({"/v1/models": http(200, MODELS)}, HEAD + END, None, TargetError, "without a single token"),
]


@pytest.mark.parametrize(("pages", "post", "spec", "error", "sentence"), REFUSALS, ids=[r[4] for r in REFUSALS])
def test_a_refusal_is_a_sentence_with_the_servers_own_words(
    pages: dict[str, bytes], post: bytes, spec: Spec | None, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        look(pages, lambda body: post, spec)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_silent_server_is_told_from_a_wrong_one() -> None:
    class Silent:
        def receive(self, connection: int, data: bytes, now_ns: int) -> None: ...

        def next_ns(self) -> int | None:
            return None

        def take(self, now_ns: int) -> list[tuple[int, bytes | None]]:
            return []

    spec = Spec(urls=("http://h:1",))
    phrasing = Phrasing(spec, Credentials(), [Target("http://h:1", Origin("h", ("127.0.0.1", 1)), "h:1", "")])
    with pytest.raises(TargetError, match="no whole answer in time"):
        examine(MemoryTransport(Silent()), phrasing, spec, Credentials())
