"""The engine's HTTP API, without sockets: bytes and the time in, bytes and the next time out.

It serves what vLLM 0.32 serves at /v1/chat/completions and /v1/completions, and its `pages`. The socket shell
(`server`) and the load generator's in-memory transport drive it alike.
"""

import hmac
from heapq import heappop, heappush

from cadenza.clock import NS_PER_S
from cadenza.engine.api.answer import CompletionResponse
from cadenza.engine.api.completion_request import CompletionRequest, UsageRules, read_completion_request
from cadenza.engine.api.faults import HEADER, SLOW, Faults, FaultyStream, StreamState
from cadenza.engine.api.fields import RefusalError
from cadenza.engine.api.http import (
    CONTINUE,
    BadRequestError,
    Call,
    Output,
    Parser,
    bodiless,
    json_bytes,
    stream_head,
    whole,
)
from cadenza.engine.api.pages import COMPLETIONS, Pages
from cadenza.engine.api.text import output_token
from cadenza.engine.build import build_core
from cadenza.engine.core.core import Core
from cadenza.engine.core.outbox import Token
from cadenza.engine.core.pace import Pace
from cadenza.engine.profile import Profile

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_HEALTHY = Faults()
_PLAIN = UsageRules()


class _Link:
    """One client connection: its parser, and the completion request under way with its route and arrival time."""

    def __init__(self) -> None:
        self.parser = Parser()
        self.request_id: int | None = None
        self.route = ""
        self.since_ns = 0
        self.keep_alive = True
        self.broken: BadRequestError | None = None


class HttpApi:
    """A server of `profile` for any number of connections; their numbers are the caller's.

    api_key    asked for at /v1 as a bearer token, if set
    epoch_s    seconds since 1970 at time zero, for the `created` fields; the API itself reads no clock
    core       the engine behind it, also as `HttpApi.core`; default: the profile's law with `seed`
    rules      what it says of tokens unasked
    faults     what is to go wrong, with `core`, too
    log_stats  see `Pages`, as for compat_metrics
    """

    def __init__(
        self,
        profile: Profile,
        seed: int = 0,
        api_key: str | None = None,
        epoch_s: int = 0,
        core: Core | None = None,
        rules: UsageRules = _PLAIN,
        faults: Faults = _HEALTHY,
        compat_metrics: bool = False,
        log_stats: bool = True,
    ) -> None:
        self._profile = profile
        self.core = core or build_core(profile, seed=seed, output_token=output_token)
        self._api_key = api_key.encode() if api_key else None
        self._epoch_s = epoch_s
        self._rules = rules
        self._faults = faults
        self._links: dict[int, _Link] = {}
        self._answers: dict[int, tuple[int, CompletionResponse]] = {}
        self._faulty: dict[int, tuple[int, FaultyStream]] = {}
        self._late: dict[int, CompletionRequest] = {}
        self._timers: list[tuple[int, int]] = []
        self._requests = 0
        self._output: list[tuple[int, Output]] = []
        self._closing: list[int] = []
        self._now_ns = 0
        self._pages = Pages(profile, self.core, self._load, epoch_s, compat_metrics, log_stats)
        if faults.stretches:
            self.core.set_pace(Pace(faults.stretches))

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
            self._output.append((connection, CONTINUE))
        self._serve(connection, link)

    def next_ns(self) -> int | None:
        """When there is next something to say, None: nothing until more bytes come."""
        due = self._now_ns if self._output else self.core.next_ns()
        if self._timers and (due is None or self._timers[0][0] < due):
            due = self._timers[0][0]
        if due is None or not self._faults.freezes:
            return due
        return self._faults.silent_until_ns(max(due, self._now_ns)) or due

    def take(self, now_ns: int) -> list[tuple[int, Output]]:
        """What is due at `now_ns`, per connection and in order; None: the connection is to be closed.

        An error instead of bytes: the connection is to be broken off.
        """
        self._now_ns = max(self._now_ns, now_ns)
        if self._faults.freezes and self._faults.silent_until_ns(now_ns) is not None:
            return []
        answers, output, details = self._answers, self._output, self._rules.prompt_details
        for token in self.core.advance(now_ns):
            found = answers.get(token.request_id)
            if found is None:
                self._ail(token)
                continue
            connection, answer = found
            if details and token.n == token.tokens:
                self._count_cached(token.request_id, answer)
            if answer.request.stream:
                output.append((connection, answer.tokens(token.n, token.tokens)))
            elif token.is_last:
                output.append((connection, whole(200, answer.whole(), keep_alive=self._links[connection].keep_alive)))
            if token.is_last:
                del answers[token.request_id]
                self._finish(connection)
        while self._timers and self._timers[0][0] <= now_ns:
            self._wake(heappop(self._timers)[1])
        for connection in self._closing:
            self._links.pop(connection, None)
        self._output, self._closing = [], []
        return output

    def _load(self) -> int:
        return len(self._answers) + len(self._faulty)

    def _count_cached(self, request_id: int, answer: CompletionResponse) -> None:
        limits = self._profile.limits
        cached = answer.cached_tokens = self.core.cached_tokens(request_id)
        blocks = answer.request.prompt_tokens // limits.block_size if limits.enable_prefix_caching else 0
        answer.created_tokens = max(0, blocks * limits.block_size - cached)

    def _finish(self, connection: int, status: int = 200) -> None:
        link = self._links[connection]
        self._pages.count(link.route, "POST", status, self._now_ns - link.since_ns)
        link.request_id, link.route = None, ""
        self._serve(connection, link)

    def _forget(self, connection: int) -> None:
        link = self._links.pop(connection, None)
        if link is not None and link.request_id is not None:
            self.core.abort(link.request_id, self._now_ns)
            for kept in (self._answers, self._faulty, self._late):
                kept.pop(link.request_id, None)

    def _ail(self, token: Token) -> None:
        """A token of an answer with a fault; of one that died earlier in the same piece of time, nothing."""
        connection, faulty = self._faulty.get(token.request_id, (0, None))
        if faulty is None or faulty.state is StreamState.STALLED:
            return
        was_held = faulty.state is StreamState.HELD
        if self._rules.prompt_details and token.n == token.tokens:
            self._count_cached(token.request_id, faulty.answer)
        output = faulty.tokens(token.n, token.tokens, self._now_ns)
        if faulty.state is StreamState.HELD and not was_held:
            heappush(self._timers, (faulty.until_ns, token.request_id))
        self._settle(connection, token.request_id, faulty, output)

    def _wake(self, request_id: int) -> None:
        """A request's wait is over, unless its client has gone."""
        request = self._late.pop(request_id, None)
        if request is not None:
            self._submit(request_id, request)
        elif request_id in self._faulty:
            connection, faulty = self._faulty[request_id]
            self._settle(connection, request_id, faulty, faulty.wake())

    def _settle(self, connection: int, request_id: int, faulty: FaultyStream, output: bytes) -> None:
        """Say what an answer with a fault has to say, and see to what has become of it."""
        if output:
            self._output.append((connection, output))
        state = faulty.state
        if state in (StreamState.PENDING, StreamState.HELD):
            return
        if state is not StreamState.RECOVERED:
            self.core.abort(request_id, self._now_ns)
        if state is StreamState.STALLED:
            return
        del self._faulty[request_id]
        if state is StreamState.RECOVERED:
            self._answers[request_id] = (connection, faulty.answer)
        elif state is StreamState.RESET:
            link = self._links[connection]
            link.request_id, link.keep_alive = None, False
            self._close(connection, ConnectionResetError())
        else:
            if state is StreamState.CLOSED:
                self._links[connection].keep_alive = False
            self._finish(connection, faulty.status)

    def _close(self, connection: int, how: ConnectionResetError | None = None) -> None:
        self._output.append((connection, how))
        self._closing.append(connection)

    def _serve(self, connection: int, link: _Link) -> None:
        """Answer what has arrived, one request after the other, until one takes time or the connection is done."""
        while link.request_id is None and link.keep_alive and link.parser.calls:
            call = link.parser.calls.popleft()
            link.keep_alive = call.keep_alive
            answer = self._answer(connection, link, call)
            if answer:
                self._output.append((connection, answer))
            if not link.route:
                self._pages.count(self._pages.route(call), call.method, int(answer[9:12]), 0)
        if link.request_id is not None:
            return
        if link.broken is not None and link.keep_alive:
            link.keep_alive = False
            text = link.broken.text.encode()
            answer = whole(link.broken.status, text, "text/plain; charset=utf-8", keep_alive=False)
            self._output.append((connection, answer))
        if not link.keep_alive:
            self._close(connection)

    def _answer(self, connection: int, link: _Link, call: Call) -> bytes:
        """The answer, or its beginning; empty where all of it takes time."""
        if call.path.startswith(_GUARDED) and not self._admits(call):
            refused = whole(401, json_bytes({"error": "Unauthorized"}), keep_alive=call.keep_alive)
            return bodiless(refused) if call.method == "HEAD" else refused
        page = self._pages.answer(call, self._now_ns)
        if page is not None:
            return page
        try:
            return self._begin(connection, link, call)
        except RefusalError as refusal:
            return whole(refusal.status, refusal.body, keep_alive=call.keep_alive)

    def _begin(self, connection: int, link: _Link, call: Call) -> bytes:
        request = read_completion_request(self._profile, COMPLETIONS[call.path], call.headers, call.body, self._rules)
        self._requests += 1
        request_id = self._requests
        fault = self._faults.of(request_id, call.headers.get(HEADER))
        if fault is not None and (refusal := fault.refuse(call.keep_alive)) is not None:
            return refusal
        link.request_id, link.route, link.since_ns = request_id, call.path, self._now_ns
        answer = CompletionResponse(request, request_id, self._epoch_s + self._now_ns // NS_PER_S, call.chunked)
        fails_tok = None
        if fault is None or fault.kind == SLOW:
            self._answers[request_id] = (connection, answer)
        else:
            faulty = FaultyStream(fault, answer, call.keep_alive)
            self._faulty[request_id] = (connection, faulty)
            fails_tok = faulty.fails_tok
        if fault is not None and fault.kind == SLOW:
            self._late[request_id] = request
            heappush(self._timers, (self._now_ns + (fault.ns or 0), request_id))
        else:
            self._submit(request_id, request, fails_tok)
        if not request.stream:
            return b""
        link.keep_alive = call.keep_alive and call.chunked
        return stream_head(call.chunked, call.keep_alive, b"" if fault is None else fault.label())

    def _submit(self, request_id: int, request: CompletionRequest, fails_tok: int | None = None) -> None:
        """To the engine, where it dies of its token number `fails_tok`, if given."""
        fails = fails_tok is not None
        output_tokens = request.output_tokens if fails_tok is None else fails_tok
        self.core.submit(
            request_id,
            request.model,
            request.prompt,
            output_tokens,
            self._now_ns,
            request.priority,
            request.max_tokens,
            fails,
        )

    def _admits(self, call: Call) -> bool:
        if self._api_key is None or call.method == "OPTIONS":
            return True
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode("latin-1"), self._api_key)
