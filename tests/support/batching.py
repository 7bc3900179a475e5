"""A continuous-batching LLM server in virtual time, independent of the embedded engine: the judge of figures and loops.

A step with B running sequences lasts `base_ms + per_seq_ms · B`, times noise; every running sequence gets one token at
its end. Waiting requests join at step boundaries, first come first served, up to `slots`; each join makes that step
longer by its prefill. Between joins and leaves the steps are regular, so they are computed in blocks, and the token
stamps of a request are a slice of the step ends. Nothing here is shared with `cadenza.engine` or `cadenza.stats`.
"""

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cadenza.record import Outcome, Phase, Record, TokenSource
from support.scripted import DONE, END, HEAD, token, usage

Ints = NDArray[np.int64]
Lengths = Callable[[np.random.Generator, int], Ints]
MS = 1_000_000
_FOREVER = 1 << 62
_BLOCK = 4096


@dataclass(frozen=True)
class Server:
    """Parameters of the server.

    slots           sequences that run at once, at most
    base_ms, per_seq_ms   length of a step: base_ms + per_seq_ms · B
    noise_cv        coefficient of variation of the lognormal factor of each step; 0: none
    prefill_ms      what each join adds to its step, and per prompt token
    silence         (from_ms, until_ms): nothing is emitted; the step under way ends when it is over
    """

    slots: int = 64
    base_ms: float = 8.0
    per_seq_ms: float = 0.1
    noise_cv: float = 0.05
    prefill_ms: float = 4.0
    prefill_per_token_ms: float = 0.0
    silence: tuple[float, float] | None = None
    seed: int = 0

    def step_ms(self, running: float) -> float:
        """Mean length of a step without joins."""
        return self.base_ms + self.per_seq_ms * running

    def response_ms(self, mean_tokens: float, running: float) -> float:
        """Mean response time without waiting, `running` sequences at a time: each step has running / tokens joins."""
        return mean_tokens * self.step_ms(running) + self.prefill_ms * max(1.0, running)

    def capacity_per_s(self, mean_tokens: float) -> float:
        """Requests a second with all slots taken: slots / (n · step + slots · prefill)."""
        return 1000 * self.slots / (mean_tokens * self.step_ms(self.slots) + self.slots * self.prefill_ms)


def uniform(low: int = 16, high: int = 48) -> Lengths:
    """Integers of [low, high], each as likely."""
    return lambda rng, n: rng.integers(low, high, n, endpoint=True)


def fixed(tokens: int = 32) -> Lengths:
    return lambda rng, n: np.full(n, tokens, dtype=np.int64)


def heavy(mean: float = 32, cv: float = 1.3) -> Lengths:
    """Lognormal with this mean and coefficient of variation, rounded up, so 1 at least."""
    sigma2 = np.log1p(cv * cv)
    return lambda rng, n: np.ceil(rng.lognormal(np.log(mean) - sigma2 / 2, np.sqrt(sigma2), n)).astype(np.int64)


class Batching:
    """The server's core. Requests are numbered in order of arrival; `tags` are the caller's names for them.

    Two ways to drive it. Token by token: `arrive`, `abort`, `next_ns`, `take`. In blocks: `arrive` and `run`.
    Arrivals come in order of time; one at the very instant that a step begins joins that step.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.tags: list[object] = []
        self.arrived_ns: list[int] = []
        self.asked: list[int] = []
        self.prompts: list[int] = []
        self.joined: list[int] = []  # step in which it got its first token, -1: still waiting
        self.steps = 0
        self._ends = np.zeros(_BLOCK, dtype=np.int64)
        self._free_ns = 0  # end of the last step
        self._pending = False  # the last step has not been taken
        self._waiting: deque[int] = deque()
        self._running: dict[int, None] = {}
        self._leaving: list[tuple[int, int]] = []  # (last step, request)
        self._rng = np.random.default_rng(server.seed)
        self._noise = np.ones(_BLOCK)
        self._noise_used = _BLOCK

    @property
    def in_system(self) -> int:
        return len(self._running) + len(self._waiting)

    def ends_ns(self, request: int) -> Ints:
        """Stamps of the tokens it has got so far."""
        first = self.joined[request]
        return self._ends[first : min(self.steps, first + self.asked[request])] if first >= 0 else self._ends[:0]

    def arrive(self, now_ns: int, n_tokens: int, tag: object = None, prompt_tokens: int = 0) -> int:
        """A request of `n_tokens` output tokens; its number."""
        self._catch_up(now_ns)
        request = len(self.tags)
        self.tags.append(tag)
        self.arrived_ns.append(now_ns)
        self.asked.append(max(1, int(n_tokens)))
        self.prompts.append(prompt_tokens)
        self.joined.append(-1)
        self._waiting.append(request)
        return request

    def abort(self, now_ns: int, request: int) -> None:
        """It leaves at the next step boundary, without another token."""
        self._catch_up(now_ns)
        if request in self._running:
            del self._running[request]
        elif request in self._waiting:
            self._waiting.remove(request)

    def next_ns(self) -> int | None:
        """End of the step under way or of the next one. None: nothing to do."""
        if not self._pending:
            self._pending = self._advance(_FOREVER, 1) > 0
        return self._free_ns if self._pending else None

    def take(self, now_ns: int) -> list[tuple[int, int, bool]]:
        """The tokens of the step that has ended: (request, which of its tokens from 0, whether it is the last)."""
        if not self._pending or self._free_ns > now_ns:
            return []
        self._pending = False
        step = self.steps - 1
        taken = [(i, step - self.joined[i], step - self.joined[i] + 1 == self.asked[i]) for i in self._running]
        self._leave()
        return taken

    def run(self, until_ns: int) -> list[int]:
        """Steps that begin before `until_ns`, up to the first at whose end requests leave; those that do."""
        while self._advance(until_ns, _BLOCK):
            if left := self._leave():
                return left
        return []

    @property
    def now_ns(self) -> int:
        """End of the last step."""
        return self._free_ns

    def _catch_up(self, now_ns: int) -> None:
        """Begin the step that has begun before `now_ns`; there is one at most where events are taken when due."""
        if self._pending:
            assert self._free_ns >= now_ns, "a step that is over was not taken"
        elif self._advance(now_ns, 1):
            self._pending = True

    def _leave(self) -> list[int]:
        left = []
        while self._leaving and self._leaving[0][0] < self.steps:
            request = heapq.heappop(self._leaving)[1]
            if request in self._running:  # else aborted
                del self._running[request]
                left.append(request)
        return left

    def _advance(self, until_ns: int, most: int) -> int:
        """Compute up to `most` steps with the same sequences, those that begin before `until_ns`; how many."""
        start_ns, waiting, running = self._free_ns, self._waiting, self._running
        if not running:
            if not waiting:
                return 0
            start_ns = max(start_ns, self.arrived_ns[waiting[0]])
        if start_ns >= until_ns:
            return 0
        server, joins_ms = self.server, 0.0
        while waiting and len(running) < server.slots:
            request = waiting.popleft()
            running[request] = None
            self.joined[request] = self.steps
            heapq.heappush(self._leaving, (self.steps + self.asked[request] - 1, request))
            joins_ms += server.prefill_ms + server.prefill_per_token_ms * self.prompts[request]
            most = 1
        count = min(most, self._leaving[0][0] - self.steps + 1, _BLOCK)
        lengths = np.rint((server.step_ms(len(running)) * self._factors(count) + joins_ms) * MS).astype(np.int64)
        ends = start_ns + np.cumsum(lengths)
        count = min(count, 1 + int(np.searchsorted(ends, until_ns)))
        if server.silence is not None:
            count = self._hold(ends[:count], start_ns, server.silence)
        self._noise_used += count
        if self.steps + count > len(self._ends):
            self._ends = np.concatenate([self._ends, np.zeros(len(self._ends) + count, dtype=np.int64)])
        self._ends[self.steps : self.steps + count] = ends[:count]
        self.steps += count
        self._free_ns = int(ends[count - 1])
        return count

    def _hold(self, ends: Ints, start_ns: int, silence: tuple[float, float]) -> int:
        """Move the end of the step that the silence meets to its end; how many of the steps then stand."""
        from_ns, until_ns = (round(ms * MS) for ms in silence)
        met = int(np.searchsorted(ends, from_ns, side="right"))
        if met == len(ends) or (start_ns if met == 0 else int(ends[met - 1])) >= until_ns:
            return len(ends)
        ends[met] = max(int(ends[met]), until_ns)
        return met + 1

    def _factors(self, count: int) -> NDArray[np.float64]:
        """The next factors of noise; they belong to steps, so that a cut of a block changes none of them."""
        if self._noise_used + count > len(self._noise):
            cv = self.server.noise_cv
            sigma2 = np.log1p(cv * cv)
            fresh = np.exp(np.sqrt(sigma2) * self._rng.standard_normal(_BLOCK) - sigma2 / 2)
            self._noise = np.concatenate([self._noise[self._noise_used :], fresh])
            self._noise_used = 0
        return self._noise[self._noise_used : self._noise_used + count]


class BatchingPeer:
    """`Peer` of `cadenza.load.memory`: reads max_tokens of the request's JSON, streams one event a token.

    `prompt_tokens` of the usage are those of the body's text, at four bytes each.
    """

    def __init__(self, server: Server) -> None:
        self.core = Batching(server)
        self._current: dict[int, int] = {}  # connection → its request
        self._unread: dict[int, bytes] = {}

    def receive(self, connection: int, data: bytes, now_ns: int) -> None:
        if not data:
            self._unread.pop(connection, None)
            if (request := self._current.pop(connection, None)) is not None:
                self.core.abort(now_ns, request)
            return
        text = self._unread.pop(connection, b"") + data
        head, _, body = text.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not lengths or len(body) < int(lengths[0].split(b":")[1]):
            self._unread[connection] = text
            return
        asked = json.loads(body)
        tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        self._current[connection] = self.core.arrive(now_ns, tokens, connection, -(-len(body) // 4))

    def next_ns(self) -> int | None:
        return self.core.next_ns()

    def take(self, now_ns: int) -> list[tuple[int, bytes | None]]:
        taken: list[tuple[int, bytes | None]] = []
        for request, place, last in self.core.take(now_ns):
            connection = self.core.tags[request]
            assert isinstance(connection, int)
            data = token(finish="length") if last else token()
            if place == 0:
                data = HEAD + data
            if last:
                data += usage(self.core.prompts[request], self.core.asked[request]) + DONE + END
                self._current.pop(connection, None)
            taken.append((connection, data))
        return taken


def open_records(
    server: Server,
    arrivals_ms: NDArray[np.float64],
    lengths: Ints,
    *,
    warmup: int,
    measured: int,
    cap: int | None = None,
) -> list[Record]:
    """Records of an open loop, in order of arrival, without the client: request i is due at `arrivals_ms[i]`.

    The first `warmup` are phase warmup, the next `measured` are measure, later ones cooldown. It is over when the
    last measured one has ended: what then is out is cancelled, and what is not yet due is no record. `cap` bounds the
    requests in flight: what is due beyond it waits at the client, first come first served.
    """
    core, due = Batching(server), np.rint(np.asarray(arrivals_ms) * MS).astype(np.int64).tolist()
    queue: deque[int] = deque()
    sent: dict[int, int] = {}  # index → the core's number
    out, place, free = measured, 0, cap if cap is not None else len(due)

    def send(now_ns: int) -> None:
        nonlocal free
        while queue and free:
            index = queue.popleft()
            sent[index] = core.arrive(now_ns, int(lengths[index]), index)
            free -= 1

    while out:
        left = core.run(due[place] if place < len(due) else _FOREVER)
        if not left and place == len(due):
            break  # nothing to do and nothing to come
        # What is due before the end of the step at which they leave comes first.
        last = core.now_ns if left else due[place]
        while place < len(due) and due[place] <= last:
            queue.append(place)
            send(due[place])
            place += 1
        free += len(left)
        out -= sum(warmup <= int(str(core.tags[request])) < warmup + measured for request in left)
        if out:
            send(core.now_ns)
    over_ns = core.now_ns
    return [
        _record(core, sent.get(index), index, _phase(index, warmup, measured), due[index], over_ns)
        for index in range(place)
    ]


def closed_records(
    server: Server,
    slots: int,
    lengths: Lengths,
    *,
    opening: Literal["residual", "together"] = "residual",
    warmup: int,
    measured: int,
    seed: int,
) -> list[Record]:
    """Records of a closed loop of `slots` in flight, in order of dispatch, without the client.

    `opening`: "together" sends the first `slots` requests at once, with lengths as drawn. "residual" asks for the
    residual length of each, ⌈u · L⌉, u uniform and L drawn with a probability in proportion to the length, and spreads
    them evenly over one response time. The first `warmup` requests are phase warmup, the next `measured` are measure,
    later ones cooldown: slots are refilled until the last measured request has ended; what is then in flight is
    followed to its end.
    """
    rng, core = np.random.default_rng(seed), Batching(server)
    drawn = _endless(lengths, rng)
    begin = [0] * slots
    first = [next(drawn) for _ in range(slots)]
    if opening == "residual":
        pool = lengths(rng, 4096)
        biased = rng.choice(pool, slots, p=pool / pool.sum())
        first = [max(1, int(n)) for n in np.ceil(rng.uniform(size=slots) * biased)]
        spread_ns = server.response_ms(float(pool.mean()), slots) * MS
        begin = [round(spread_ns * i / slots) for i in range(slots)]
    opened, out, refill = 0, measured, True
    while True:
        until = begin[opened] if opened < slots and refill else _FOREVER
        left = core.run(until)
        if not left and until == _FOREVER:
            break
        # What is due before the end of the step at which they leave comes first: requests are in order of dispatch.
        last = core.now_ns if left else until
        while opened < slots and begin[opened] <= last:
            core.arrive(begin[opened], first[opened])
            opened += 1
        out -= sum(warmup <= request < warmup + measured for request in left)
        refill = out > 0
        if refill:
            for _ in left:
                core.arrive(core.now_ns, next(drawn))
    over_ns = core.now_ns
    return [
        _record(core, i, i, _phase(i, warmup, measured), core.arrived_ns[i], over_ns) for i in range(len(core.asked))
    ]


def _endless(lengths: Lengths, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from lengths(rng, 1024).tolist()


def _phase(index: int, warmup: int, measured: int) -> Phase:
    if index < warmup:
        return Phase.WARMUP
    return Phase.MEASURE if index < warmup + measured else Phase.COOLDOWN


def _record(core: Batching, request: int | None, index: int, phase: Phase, due_ns: int, over_ns: int) -> Record:
    """Of a request as it stands at `over_ns`; None: it has not been sent."""
    record = Record(point=0, index=index, phase=phase, model="m", outcome=Outcome.CANCELLED, intended_ns=due_ns)
    record.done_ns = over_ns
    if request is None:
        record.outcome = Outcome.DROPPED
        return record
    ends = core.ends_ns(request)
    record.sent_ns = core.arrived_ns[request]
    record.event_ns = ends[: int(np.searchsorted(ends, over_ns, side="right"))].tolist()
    record.asked_output_tokens = core.asked[request]
    record.output_tokens = len(record.event_ns)
    record.token_source = TokenSource.EVENTS
    if record.event_ns:
        record.headers_ns = record.event_ns[0]
    if len(record.event_ns) == core.asked[request]:
        record.outcome, record.token_source = Outcome.OK, TokenSource.USAGE
        record.finish_reason, record.status = "length", 200
        record.prompt_tokens, record.done_ns = core.prompts[request], record.event_ns[-1]
    return record
