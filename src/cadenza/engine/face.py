"""The engine's HTTP face, without sockets: bytes and the time in, bytes and the next time out.

It serves what vLLM 0.32 serves at /v1/chat/completions, /v1/completions, /v1/models, /health and /version. The socket
shell (`server`) and the load generator's in-memory transport drive it alike.
"""

import hmac
from collections.abc import Callable

from cadenza import __version__
from cadenza.clock import NS_PER_S
from cadenza.engine.answer import Answer, models_body
from cadenza.engine.ask import RefusalError, read_ask
from cadenza.engine.build import build_core
from cadenza.engine.core import Core
from cadenza.engine.http import CONTINUE, BadRequestError, Call, Parser, json_bytes, stream_head, whole
from cadenza.engine.profile import Profile

_COMPLETIONS = {"/v1/chat/completions": True, "/v1/completions": False}


class _Link:
    """One client connection: its parser, and the one request that is being answered."""

    def __init__(self) -> None:
        self.parser = Parser()
        self.request_id: int | None = None
        self.keep_alive = True
        self.broken: BadRequestError | None = None


class Face:
    """A server of `profile` for any number of connections; their numbers are the caller's.

    api_key    asked for at /v1 as a bearer token, if set
    epoch_s    seconds since 1970 at time zero, for the `created` fields; the face itself reads no clock
    core       the engine behind it; default: the profile's calibrated law with `seed`
    """

    def __init__(
        self,
        profile: Profile,
        seed: int = 0,
        api_key: str | None = None,
        epoch_s: int = 0,
        core: Core | None = None,
    ) -> None:
        self._profile = profile
        self._core = core or build_core(profile, seed=seed)
        self._api_key = api_key.encode() if api_key else None
        self._epoch_s = epoch_s
        self._links: dict[int, _Link] = {}
        self._answers: dict[int, tuple[int, Answer]] = {}
        self._requests = 0
        self._said: list[tuple[int, bytes | None]] = []
        self._now_ns = 0
        self._pages: dict[str, Callable[[], bytes]] = {
            "/health": lambda: b"",
            "/version": lambda: json_bytes({"version": f"cadenza-{__version__} (simulated)"}),
            "/v1/models": lambda: models_body(profile, epoch_s),
        }

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        """Bytes from the client; `b""` says that it has gone: what it asked for is aborted."""
        self._now_ns = max(self._now_ns, now_ns)
        if not data:
            self._forget(connection)
            return
        link = self._links.get(connection)
        if link is None:
            link = self._links[connection] = _Link()
        if link.broken is not None or not link.keep_alive:
            return
        try:
            link.parser.feed(data)
        except BadRequestError as error:
            link.broken = error
        if link.parser.expects_continue and link.request_id is None and not link.parser.calls:
            link.parser.expects_continue = False
            self._said.append((connection, CONTINUE))
        self._serve(connection, link)

    def next_ns(self) -> int | None:
        """When there is next something to say, None: nothing until more bytes come."""
        return self._now_ns if self._said else self._core.next_ns()

    def take(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        """What is due at `now_ns`, per connection and in order; None: the connection is to be closed."""
        self._now_ns = max(self._now_ns, now_ns)
        for token in self._core.advance(now_ns):
            connection, answer = self._answers[token.request_id]
            if answer.ask.stream:
                self._said.append((connection, answer.token(token.n)))
            elif token.is_last:
                self._said.append(
                    (connection, whole(200, answer.whole(), keep_alive=self._links[connection].keep_alive))
                )
            if token.is_last:
                self._finish(connection, token.request_id)
        said, self._said = self._said, []
        for connection, data in said:
            if data is None:
                self._links.pop(connection, None)
        return said

    def _finish(self, connection: int, request_id: int) -> None:
        del self._answers[request_id]
        link = self._links[connection]
        link.request_id = None
        self._serve(connection, link)

    def _forget(self, connection: int) -> None:
        link = self._links.pop(connection, None)
        if link is not None and link.request_id is not None:
            self._core.abort(link.request_id, self._now_ns)
            del self._answers[link.request_id]

    def _serve(self, connection: int, link: _Link) -> None:
        """Answer what has arrived, one request after the other, until one takes time or the connection is done."""
        while link.request_id is None and link.keep_alive and link.parser.calls:
            call = link.parser.calls.popleft()
            link.keep_alive = call.keep_alive
            answer = self._answer(connection, link, call)
            if answer:
                self._said.append((connection, answer))
        if link.request_id is not None:
            return
        if link.broken is not None and link.keep_alive:
            link.keep_alive = False
            text = link.broken.text.encode()
            answer = whole(link.broken.status, text, "text/plain; charset=utf-8", keep_alive=False)
            self._said.append((connection, answer))
        if not link.keep_alive:
            self._said.append((connection, None))

    def _answer(self, connection: int, link: _Link, call: Call) -> bytes:
        """The answer, or its beginning; empty where all of it takes time."""
        keep_alive = call.keep_alive
        if call.path.startswith("/v1") and not self._admits(call):
            return whole(401, json_bytes({"error": "Unauthorized"}), keep_alive=keep_alive)
        chat = _COMPLETIONS.get(call.path)
        page = self._pages.get(call.path)
        if chat is None and page is None:
            return whole(404, json_bytes({"detail": "Not Found"}), keep_alive=keep_alive)
        allowed = "GET" if page is not None else "POST"
        if call.method != allowed:
            allow = b"allow: %b\r\n" % allowed.encode()
            answer = whole(405, json_bytes({"detail": "Method Not Allowed"}), keep_alive=keep_alive, extra=allow)
            return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if call.method == "HEAD" else answer
        if page is not None:
            return whole(200, page(), keep_alive=keep_alive)
        try:
            return self._begin(connection, link, call, bool(chat))
        except RefusalError as refusal:
            return whole(refusal.status, refusal.body, keep_alive=keep_alive)

    def _begin(self, connection: int, link: _Link, call: Call, chat: bool) -> bytes:
        ask = read_ask(self._profile, chat, call.headers.get("content-type", ""), call.body)
        self._requests += 1
        request_id = link.request_id = self._requests
        created = self._epoch_s + self._now_ns // NS_PER_S
        self._answers[request_id] = (connection, Answer(ask, request_id, created, call.chunked))
        prompt = range(request_id << 20, (request_id << 20) + ask.prompt_tokens)
        self._core.submit(request_id, ask.model, prompt, ask.output_tokens, self._now_ns)
        if not ask.stream:
            return b""
        link.keep_alive = call.keep_alive and call.chunked
        return stream_head(call.chunked, call.keep_alive)

    def _admits(self, call: Call) -> bool:
        if self._api_key is None or call.method == "OPTIONS":
            return True
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode("latin-1"), self._api_key)
