"""A point's plan: every request with its bytes and, in an open loop, its time; made from the seed before the clock."""

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
from cadenza.record import Phase, Point, Request
from cadenza.spec import Credentials, Spec
from cadenza.store.manifest import Server
from cadenza.wire.dialect import Options
from cadenza.wire.dialects import DIALECTS
from cadenza.wire.http1 import encode_request


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


def draw_requests(spec: Spec, point: Point, first: int = 0, step: int = 1) -> Iterator[Request]:
    """The point's requests, warm-up first; without end where only a duration bounds a closed loop.

    With a `first` and a `step` the part of one worker: indices first, first + step, …, the same as in the whole.
    """
    source = prompts.parse(
        spec.prompts,
        seed=spec.seed,
        point=point.index,
        output_tokens=spec.output_tokens,
        unique=spec.cache == "unique",
    )
    due_ns = _arrivals_ns(spec, point)
    total = None if point.planned is None else point.warmup + point.planned
    if due_ns is not None:
        total = len(due_ns)
    elif spec.requests is not None:
        total = point.warmup + spec.requests
    for index in count(first, step) if total is None else range(first, total, step):
        yield msgspec.structs.replace(
            source.request(index),
            phase=Phase.WARMUP if index < point.warmup else Phase.MEASURE,
            due_ns=None if due_ns is None else int(due_ns[index]),
        )


def _arrivals_ns(spec: Spec, point: Point) -> NDArray[np.int64] | None:
    if point.rate_per_s is None:
        return None
    law, rng = arrivals.parse(spec.arrivals), np.random.default_rng([spec.seed, point.index])
    if point.planned is not None:
        return law.times_ns(rng, point.rate_per_s, point.warmup + point.planned)
    assert point.duration_s is not None
    times_ns = for_horizon(law, rng, point.rate_per_s, point.duration_s)
    return times_ns if spec.requests is None else times_ns[: point.warmup + spec.requests]
