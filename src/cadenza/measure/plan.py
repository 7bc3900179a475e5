"""A point's plan: every request with its bytes and, in an open loop, its time; made from the seed before the clock."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec
import numpy as np
from numpy.typing import NDArray

from cadenza.arrivals import catalogue as arrivals
from cadenza.arrivals.arrival import for_horizon
from cadenza.load.exchange import Outgoing
from cadenza.load.target import Target
from cadenza.prompts import catalogue as prompts
from cadenza.prompts.source import PromptSource
from cadenza.record import LoadLabel, Phase, Point, Request
from cadenza.spec import Credentials, Spec
from cadenza.store.manifest import Server
from cadenza.wire.dialect import Options
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import encode_request

# Arrivals that are drawn at once where nothing bounds the plan, and lengths from which residual ones are drawn.
_READY = 2048
_LENGTHS = 64


class Phrasing:
    """How requests of this run are put into bytes: API, options that the server takes, headers, targets in turn."""

    def __init__(self, spec: Spec, credentials: Credentials, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.dialect = DIALECTS[spec.api]
        self._headers = (
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream"),
            *credentials.as_headers(),
        )

    def put(self, request: Request, options: Options) -> Outgoing:
        """`request` as the bytes that will leave."""
        target = request.index % len(self.targets)
        place = self.targets[target]
        body = self.dialect.body(request, options)
        data = encode_request("POST", place.path(self.dialect.path), place.authority, self._headers, body)
        return Outgoing(request, data, target)


def options_for(spec: Spec, model: str, server: Server | None = None) -> Options:
    """The options of every request to `model`; before the preflight (`server` None) as the spec wishes."""
    return Options(
        model=model,
        include_usage=server is None or server.accepts_include_usage,
        ignore_eos=spec.ignore_eos and (server is None or server.accepts_ignore_eos),
        temperature=spec.temperature,
        extra_body=spec.extra_body,
    )


def draw_requests(
    spec: Spec, point: Point, first: int = 0, step: int = 1, *, cooldown: bool = False
) -> Iterator[Request]:
    """The point's requests, warm-up first; without end where nothing bounds them beforehand, or with a `cooldown`.

    With a `first` and a `step` the part of one worker: indices first, first + step, …, the same as in the whole. The
    first request of each slot of a closed loop, if it is of the warm-up, requests a residual length.
    """
    source = prompts.parse(
        spec.prompts,
        seed=spec.seed,
        point=point.index,
        output_tokens=spec.output_tokens,
        unique=spec.cache == "unique",
    )
    due = None if point.rate_per_s is None else _Due(spec, point)
    total = _total(spec, point) if due is None else due.total
    residual = _Residual(spec, point, source)
    for index in count(first, step) if total is None or cooldown else range(first, total, step):
        request = residual.request(index) if index < residual.slots else source.request(index)
        yield msgspec.structs.replace(
            request, phase=_phase(index, point.warmup, total), due_ns=None if due is None else due.ns(index)
        )


def _phase(index: int, warmup: int, total: int | None) -> Phase:
    if index < warmup:
        return Phase.WARMUP
    return Phase.MEASURE if total is None or index < total else Phase.COOLDOWN


def _total(spec: Spec, point: Point) -> int | None:
    """Warm-up and measured requests; None: not known beforehand."""
    if point.planned is not None:
        return point.warmup + point.planned
    return point.warmup + spec.requests if isinstance(spec.requests, int) else None


class _Due:
    """When requests of an open or capped loop are due. Laws are prefix-stable, so that the plan grows as it is used."""

    def __init__(self, spec: Spec, point: Point) -> None:
        assert point.rate_per_s is not None
        self._law = arrivals.parse(spec.arrivals)
        self._rate_per_s = point.rate_per_s
        self._seed = [spec.seed, point.index]
        self.total = _total(spec, point)
        if point.duration_s is not None:
            rng = np.random.default_rng(self._seed)
            self._ns = for_horizon(self._law, rng, point.rate_per_s, point.duration_s)
            self.total = len(self._ns) if self.total is None else min(self.total, len(self._ns))
        else:
            self._ns = self._draw(self.total or _READY)

    def ns(self, index: int) -> int:
        if index >= len(self._ns):
            self._ns = self._draw(max(2 * len(self._ns), index + 1))
        return int(self._ns[index])

    def _draw(self, n: int) -> NDArray[np.int64]:
        return self._law.times_ns(np.random.default_rng(self._seed), self._rate_per_s, n)


class _Residual:
    """The first request of each slot: what is left of an answer that an observer finds under way.

    Slots that begin together with whole answers end together, too, and stay in step for the whole point. In the steady
    state an observer meets an answer with a probability in proportion to its length, at a uniform place in it (Cox,
    Renewal Theory, 1962, chapter 5).
    """

    def __init__(self, spec: Spec, point: Point, source: PromptSource) -> None:
        closed = point.load is LoadLabel.CLOSED
        self.slots = min(point.warmup, point.concurrency or 0) if closed else 0
        self._seed = f"{spec.seed}/{point.index}"
        self._source = source
        self._lengths: list[int] = []

    def request(self, index: int) -> Request:
        if not self._lengths:
            self._lengths = [self._source.request(n).output_tokens for n in range(_LENGTHS)]
        rng = random.Random(f"{self._seed}/{index}/residual")
        (length,) = rng.choices(self._lengths, weights=self._lengths)
        output_tokens = max(1, math.ceil(rng.random() * length))
        return msgspec.structs.replace(self._source.request(index), output_tokens=output_tokens)
