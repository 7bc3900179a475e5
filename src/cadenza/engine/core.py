"""The engine itself, on virtual nanoseconds: requests in, tokens out, and one step clock for all that decode.

First version: prefill and decode side by side, admission without limit, timing from a `TimingLaw`. No sockets, no
wall time, integers only: one seed, one course of events.
"""

from typing import NamedTuple

import msgspec

from cadenza.engine.timing import Deck, TimingLaw


class Token(NamedTuple):
    """The `n`-th token (from 1) of a request, produced at `at_ns`."""

    request_id: int
    n: int
    is_last: bool
    at_ns: int


class Core:
    """One engine instance a model; each has its own step clock. Request ids are the caller's, and unique."""

    def __init__(self, law: TimingLaw, models: tuple[str, ...], seed: int = 0) -> None:
        self._instances = {model: Instance(law, model, seed) for model in models}
        self._owners: dict[int, Instance] = {}

    def submit(self, request_id: int, model: str, prompt_tokens: int, output_tokens: int, now_ns: int) -> None:
        """A request arrives and will produce exactly `output_tokens` (≥ 1).

        `prompt_tokens` changes nothing yet: the published laws do not know it.
        """
        self._owners[request_id] = self._instances[model]
        self._instances[model].submit(request_id, output_tokens, now_ns)

    def abort(self, request_id: int, now_ns: int) -> None:
        """Forget a request; tokens not yet taken are lost. One that has ended, or never was, is no error."""
        owner = self._owners.pop(request_id, None)
        if owner is not None:
            owner.abort(request_id, now_ns)

    def in_system(self, model: str) -> int:
        """Requests in prefill or decode."""
        return self._instances[model].in_system

    def next_ns(self) -> int | None:
        """When the next token comes, None: nothing runs."""
        dues = [due for instance in self._instances.values() if (due := instance.next_ns()) is not None]
        return min(dues, default=None)

    def advance(self, now_ns: int) -> list[Token]:
        """All tokens up to and at `now_ns` that have not been taken yet, in order of time."""
        tokens = [token for instance in self._instances.values() for token in instance.advance(now_ns)]
        tokens.sort(key=lambda token: token.at_ns)
        for token in tokens:
            if token.is_last:
                self._owners.pop(token.request_id, None)
        return tokens


class _Running(msgspec.Struct, gc=False):
    """A request in the system.

    quantile           how slow its prefill is among its like
    due_ns, whole_ns   its first token's time, and the TTFT that time was reckoned with
    joins_ns           the first step boundary at or after this gives it a token
    """

    output_tokens: int
    quantile: float
    due_ns: int
    whole_ns: int
    joins_ns: int = 0
    produced: int = 0


class Instance:
    """One model's engine.

    Prefill shares the machine: a request has a remaining fraction of its own TTFT, which falls at the rate
    1 / TTFT(C) as C, the number in the system, changes. Requests that arrive together all get TTFT(C) of them all.

    Decode is stepped: a step's length is fixed at its start, from C then, and at its end every request that has
    joined gets one token. A request joins at the first boundary at least half a step after its first token, so that
    the gap to its second is a step on average. With nobody decoding the clock stops; the next first token starts it.
    """

    def __init__(self, law: TimingLaw, model: str, seed: int) -> None:
        self._law = law
        self._model = model
        self._ttft_deck = Deck(f"{seed} ttft {model}")
        self._step_deck = Deck(f"{seed} step {model}")
        self._prefilling: dict[int, _Running] = {}
        self._decoding: dict[int, _Running] = {}
        self._now_ns = 0
        self._stale = False
        self._first_ns: int | None = None
        self._boundary_ns: int | None = None
        self._step_ns = 0
        self._tokens: list[Token] = []

    @property
    def in_system(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def submit(self, request_id: int, output_tokens: int, now_ns: int) -> None:
        self._catch_up(now_ns)
        quantile = self._ttft_deck.draw()
        whole = self._law.ttft_ns(self._model, self.in_system + 1, quantile)
        self._prefilling[request_id] = _Running(output_tokens, quantile, self._now_ns + whole, whole)
        self._stale = True

    def abort(self, request_id: int, now_ns: int) -> None:
        self._catch_up(now_ns)
        self._tokens = [token for token in self._tokens if token.request_id != request_id]
        self._prefilling.pop(request_id, None)
        self._decoding.pop(request_id, None)
        self._stale = True
        self._stop_if_idle()

    def next_ns(self) -> int | None:
        if self._tokens:
            return self._tokens[0].at_ns
        return self._event_ns()

    def advance(self, now_ns: int) -> list[Token]:
        self._run(now_ns)
        tokens, self._tokens = self._tokens, []
        return tokens

    def _catch_up(self, now_ns: int) -> None:
        # At the same instant there is nothing to catch up with, and a burst is then priced once, not once each.
        if now_ns > self._now_ns:
            self._run(now_ns)

    def _run(self, now_ns: int) -> None:
        while (due := self._event_ns()) is not None and due <= now_ns:
            self._now_ns = due
            if due == self._boundary_ns:
                self._end_step()
            else:
                self._end_prefills()
        self._now_ns = max(self._now_ns, now_ns)

    def _event_ns(self) -> int | None:
        if self._stale:
            self._reprice()
        if self._first_ns is None or self._boundary_ns is None:
            return self._boundary_ns if self._first_ns is None else self._first_ns
        return min(self._first_ns, self._boundary_ns)

    def _reprice(self) -> None:
        self._stale = False
        in_system = self.in_system
        for running in self._prefilling.values():
            whole = self._law.ttft_ns(self._model, in_system, running.quantile)
            running.due_ns = self._now_ns + (running.due_ns - self._now_ns) * whole // running.whole_ns
            running.whole_ns = whole
        self._first_ns = min((running.due_ns for running in self._prefilling.values()), default=None)

    def _end_prefills(self) -> None:
        now = self._now_ns
        for request_id in [key for key, running in self._prefilling.items() if running.due_ns <= now]:
            running = self._prefilling.pop(request_id)
            self._produce(request_id, running)
            if running.produced < running.output_tokens:
                running.joins_ns = now + (self._step_ns + 1) // 2
                self._decoding[request_id] = running
        self._stale = True
        if self._decoding and self._boundary_ns is None:
            self._begin_step()

    def _end_step(self) -> None:
        for request_id, running in list(self._decoding.items()):
            if running.joins_ns <= self._now_ns:
                self._produce(request_id, running)
                if running.produced == running.output_tokens:
                    del self._decoding[request_id]
                    self._stale = True
        if not self._stop_if_idle():
            self._begin_step()

    def _produce(self, request_id: int, running: _Running) -> None:
        running.produced += 1
        is_last = running.produced == running.output_tokens
        self._tokens.append(Token(request_id, running.produced, is_last, self._now_ns))

    def _begin_step(self) -> None:
        self._step_ns = self._law.step_ns(self._model, self.in_system, self._step_deck.draw())
        self._boundary_ns = self._now_ns + self._step_ns

    def _stop_if_idle(self) -> bool:
        if self._decoding:
            return False
        self._boundary_ns = None
        self._step_ns = 0
        return True
