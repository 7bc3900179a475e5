"""Faults on purpose: which requests fail and how, drawn by request number from a seed, and when all of it is slow.

    http-429 http-503 http-400 http-500   refused with that status; SECONDS: Retry-After (of 429: default 1)
    reset              the connection breaks off in the middle of the answer
    stall              the answer stops in its middle: for ever, or for SECONDS and then all that was held back at once
    truncation         the answer ends in its middle, and to HTTP that is its end: no finish_reason, no [DONE]
    error-event        an error object in the middle of the stream, as of an engine that fails; unstreamed: status 500
    slow-first-token   the request reaches the engine SECONDS later (default 5)
    malformed          a chunk that is no JSON in the middle of the stream; unstreamed: half a body

Given as KIND:RATE[:SECONDS], RATE the probability per request; or by a request for itself, in the header
X-Cadenza-Fault: KIND[:SECONDS], which then overrides the rates. And of the whole engine, from a time of its own on:

    freeze:SECONDS@TIME        no bytes are sent on any connection; what was produced meanwhile is sent at its end
    hang:SECONDS@TIME          the step under way does not end before that is over. As where a collective waits for a
                               rank, the cards are busy, and the API server, another process, still answers and queues
    slow:SECONDS@TIMExFACTOR   steps and prefills take FACTOR times as long; of several at once the slowest counts

What the engine counts of them is what vLLM would, in `vllm:request_success_total` by `finished_reason`:

    error    error-event: the pass that fails gives that request no token, and the request ends in it, with its
             latencies and the tokens that it had
    abort    reset, stall for ever, truncation: the connection or whoever reads it is gone, for all the engine knows;
             unless it had produced everything by then
    length   malformed, stall, slow-first-token: the engine is well. So is it in a freeze, a hang and a slow stretch
    nowhere  http-*: refused before the engine has heard of it
"""

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from typing import NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.engine.api.answer import CompletionResponse
from cadenza.engine.api.fields import RefusalError, bad
from cadenza.engine.api.http import reason, whole
from cadenza.engine.core.pace import FULL, STOPPED, Stretch
from cadenza.errors import UsageError

HEADER = "x-cadenza-fault"
TIMES = ("freeze:SECONDS@TIME", "hang:SECONDS@TIME", "slow:SECONDS@TIMExFACTOR")
SLOW = "slow-first-token"
ERROR = "error-event"
KINDS = (
    "http-429",
    "http-503",
    "http-400",
    "http-500",
    "reset",
    "stall",
    "truncation",
    ERROR,
    SLOW,
    "malformed",
)
# Thirty years: of more, float seconds are no whole number of ns.
_LONGEST_S = 1e9
_TIMED = {"http-429", "http-503", "stall", SLOW}
_UNSAID_S = {"http-429": 1.0, SLOW: 5.0}
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_REFUSALS = {
    "http-400": ("BadRequestError", "A fault was asked for."),
    "http-429": (reason(429), "Too many requests. Please try again later."),
    "http-500": ("InternalServerError", "Internal server error"),
    "http-503": (reason(503), _BUSY),
}
_FAILED = RefusalError(500, *_REFUSALS["http-500"], None).body
# Within a stream vLLM writes it with spaces.
_ERROR = b'{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}'


class Fault(NamedTuple):
    """How one request fails. `after`: the share of its answer's tokens that come before; `seconds` None: see KINDS."""

    kind: str
    seconds: float | None = None
    after: float = 0.5

    @property
    def ns(self) -> int | None:
        """Its seconds in ns, None: for ever."""
        return None if self.seconds is None else round(self.seconds * NS_PER_S)

    def refuse(self, keep_alive: bool) -> bytes | None:
        """The answer that refuses the request, None: this fault lets it begin."""
        if self.kind not in _REFUSALS:
            return None
        status = int(self.kind.removeprefix("http-"))
        retry = b"" if self.seconds is None else b"retry-after: %d\r\n" % math.ceil(self.seconds)
        kind, message = _REFUSALS[self.kind]
        body = RefusalError(status, kind, message, None).body
        return whole(status, body, keep_alive=keep_alive, extra=retry + self.label())

    def label(self) -> bytes:
        """A header line: this is no accident."""
        return b"%b: %b\r\n" % (HEADER.encode(), self.kind.encode())


class Freeze(NamedTuple):
    """Silence from `at_ns` until just before `until_ns`, engine time."""

    at_ns: int
    until_ns: int


class Faults:
    """What goes wrong with an engine's answers. Requests count from 1; the same seed fails the same ones the same way.

    Kinds exclude each other: a request has one fault or none, so their rates may not add up to more than 1.
    `stretches` are for the engine's `Pace`.
    """

    def __init__(
        self,
        rates: Sequence[tuple[Fault, float]] = (),
        freezes: Iterable[Freeze] = (),
        stretches: Sequence[Stretch] = (),
        seed: int = 0,
    ) -> None:
        self._rates = tuple(rates)
        self.freezes = sorted(freezes)
        self.stretches = tuple(stretches)
        self._seed = seed

    @classmethod
    def parse(cls, texts: Iterable[str], seed: int = 0) -> "Faults":
        """Read KIND:RATE[:SECONDS] and `TIMES`; UsageError, naming all kinds, for anything else."""
        rates: list[tuple[Fault, float]] = []
        freezes: list[Freeze] = []
        stretches: list[Stretch] = []
        for text in texts:
            kind, _, rest = text.partition(":")
            try:
                if kind == "freeze":
                    freezes.append(Freeze(*_span(rest)))
                elif kind == "hang":
                    stretches.append(Stretch(*_span(rest), STOPPED))
                elif kind == "slow":
                    span, _, factor = rest.rpartition("x")
                    stretches.append(Stretch(*_span(span), FULL / _factor(factor)))
                else:
                    rate, _, seconds = rest.partition(":")
                    rates.append((_fault(kind, seconds), _rate(rate)))
            except ValueError as error:
                raise UsageError(f"the fault '{text}' cannot be used: {error}; {_grammar()}") from None
        if (total := math.fsum(rate for _, rate in rates)) > 1:
            raise UsageError(
                f"the rates of all faults add up to {total:g}; a request has one fault at most, so to 1 at most"
            )
        return cls(rates, freezes, stretches, seed)

    def of(self, request: int, asked: str | None = None) -> Fault | None:
        """The fault of a request, None: it goes well. `asked`: its own header; RefusalError if that makes no sense."""
        if asked is not None:
            kind, _, seconds = asked.strip().partition(":")
            try:
                return _fault(kind, seconds)
            except ValueError as error:
                bad(f"The header {HEADER} cannot be used: {error}; kinds: {', '.join(KINDS)}.", HEADER, asked)
        if not self._rates:
            return None
        digest = blake2b(b"%d fault %d" % (self._seed, request), digest_size=16).digest()
        drawn, after = ((int.from_bytes(half) >> 11) / 2**53 for half in (digest[:8], digest[8:]))
        for fault, rate in self._rates:
            drawn -= rate
            if drawn < 0:
                return fault._replace(after=after)
        return None

    def silent_until_ns(self, now_ns: int) -> int | None:
        """When the silence that reigns at `now_ns` ends, None: there is none."""
        until: int | None = None
        for freeze in self.freezes:
            if freeze.at_ns <= (now_ns if until is None else until) < freeze.until_ns:
                until = freeze.until_ns
        return until


def _fault(kind: str, seconds: str) -> Fault:
    if kind not in KINDS:
        raise ValueError(f"no kind is called '{kind}'")
    if not seconds:
        return Fault(kind, _UNSAID_S.get(kind))
    if kind not in _TIMED:
        raise ValueError(f"{kind} takes no seconds")
    return Fault(kind, _seconds(seconds))


def _seconds(text: str) -> float:
    return _number(text, f"seconds, {_LONGEST_S:g} at most", _LONGEST_S)


def _span(text: str) -> tuple[int, int]:
    """Beginning and end of SECONDS@TIME, in ns."""
    length, _, at = text.partition("@")
    at_ns = round(_seconds(at) * NS_PER_S)
    return at_ns, at_ns + round(_seconds(length) * NS_PER_S)


def _rate(text: str) -> float:
    return _number(text, "a rate from 0 to 1", 1.0)


def _factor(text: str) -> Fraction:
    return Fraction(_number(text, "a factor of 1 or more", math.inf, least=1.0))


def _number(text: str, what: str, most: float, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (least <= value <= most and math.isfinite(value)):
        raise ValueError(f"'{text}' is not {what}")
    return value


def _grammar() -> str:
    return f"KIND:RATE[:SECONDS], where KIND is one of {', '.join(KINDS)}, or {', '.join(TIMES)}"


class StreamState(Enum):
    """What has become of an answer with a fault: for STALLED and what follows it the engine has no more to do."""

    PENDING = "its fault is still to come"
    HELD = "it says nothing until `FaultyStream.until_ns`"
    RECOVERED = "the fault has done its work: the rest of the answer is as it should be"
    STALLED = "it says nothing for ever, and does not end"
    ENDED = "it has ended"
    CLOSED = "it has ended, and its connection is to be closed"
    RESET = "it has ended, and its connection is to be broken off"


class FaultyStream:
    """An answer with a fault: what it says, event by event, and its `state` after each; its `status` once it is over.

    fails_tok   number of the token that it dies of in the engine itself, None: the engine is well
    """

    def __init__(self, fault: Fault, answer: CompletionResponse, keep_alive: bool) -> None:
        self.answer = answer
        self.state = StreamState.PENDING
        self.until_ns = 0
        self.status = 200
        self._fault = fault
        self._keep_alive = keep_alive
        self._held: list[bytes] = []
        self._ended = False
        output = answer.request.output_tokens
        # Half a body can be sent only when there is a whole one.
        at_end = not answer.request.stream and fault.kind in ("malformed", "truncation")
        self._after_tok = output - 1 if at_end else min(1 + int(fault.after * (output - 1)), output - 1)
        self.fails_tok = self._after_tok + 1 if fault.kind == ERROR else None

    def tokens(self, n: int, count: int, now_ns: int) -> bytes:
        """Bytes to send now that tokens n − count + 1 … n are there."""
        self._ended = n == self.answer.request.output_tokens
        if self.state is StreamState.HELD:
            self._held.append(self._said(n, count))
            return b""
        if n > self._after_tok:
            return self._strike(n, count, now_ns)
        return self._said(n, count)

    def wake(self) -> bytes:
        """The stall is over: what it held back."""
        self.state = StreamState.ENDED if self._ended else StreamState.RECOVERED
        return b"".join(self._held)

    def _said(self, n: int, count: int) -> bytes:
        if self.answer.request.stream:
            return self.answer.tokens(n, count)
        return self._whole(200, self.answer.whole()) if self._ended else b""

    def _whole(self, status: int, body: bytes) -> bytes:
        self.status = status
        return whole(status, body, keep_alive=self._keep_alive, extra=self._fault.label())

    def _strike(self, n: int, count: int, now_ns: int) -> bytes:
        kind, stream = self._fault.kind, self.answer.request.stream
        if kind == "reset":
            self.state = StreamState.RESET
            return b""
        if kind == "stall":
            length_ns = self._fault.ns
            if length_ns is None:
                self.state = StreamState.STALLED
                return b""
            self.state, self.until_ns = StreamState.HELD, now_ns + length_ns
            self._held.append(self._said(n, count))
            return b""
        if kind == "malformed" and stream:
            self.state = StreamState.ENDED if self._ended else StreamState.RECOVERED
            return self.answer.broken_event() + self._said(n, count)
        self.state = StreamState.ENDED
        if kind == ERROR:
            return self.answer.error(_ERROR) if stream else self._whole(500, _FAILED)
        if stream:
            return self.answer.cut()
        body = self.answer.whole()
        if kind == "malformed":
            return self._whole(200, body[: len(body) // 2])
        self.state = StreamState.CLOSED
        return self._whole(200, body)[: -(len(body) // 2)]
