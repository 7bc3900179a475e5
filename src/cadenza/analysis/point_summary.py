"""One point's figures, verdict and findings, as `summary.json` has them."""

import msgspec

from cadenza.analysis.bottleneck import Bottleneck
from cadenza.analysis.finding import Check, Finding, Verdict
from cadenza.analysis.machine import Machine
from cadenza.analysis.reconciliation import Reconciliation
from cadenza.record import LoadLabel, PointStatus
from cadenza.stats.distribution import Distribution
from cadenza.stats.goodput import Goodput
from cadenza.stats.intervals import Interval
from cadenza.stats.requests import Failure, Requests
from cadenza.stats.stability import Stability

NAN = float("nan")


class SummaryWindow(msgspec.Struct, frozen=True):
    """Which stretch throughput and the machine's figures are of; `steady`: nothing in it moves."""

    kind: str
    rule: str
    steady: bool


class InFlight(msgspec.Struct, frozen=True):
    """Requests in flight: the peak of the whole point, the mean in the window."""

    peak: int
    mean: float


class PointSummary(msgspec.Struct, kw_only=True):
    """One point. Distributions are of the population: measured requests, each followed to its end; null: `undefined`.

    stability   of an open or capped loop; null: a closed one
    findings    every check and note with its code and numbers; `checks`, `reasons` and `notes` are their sentences
    machine, reconciliation, bottleneck   where the machine was watched; the second where the engine gave its page
    """

    index: int
    model: str
    repeat: int
    concurrency: int | None
    rate_per_s: float | None
    load: LoadLabel
    status: PointStatus
    verdict: Verdict
    reasons: list[str]
    notes: list[str]
    checks: list[Check]
    requests: Requests
    failures: list[Failure]
    duration_s: float
    window_s: float
    window: SummaryWindow
    output_tokens: int
    token_source: str | None
    tokens_per_event: float
    throughput_tok_per_s: float
    throughput_interval: Interval
    requests_per_s: float
    offered_per_s: float
    achieved_per_s: float
    speedup: float = NAN
    efficiency: float = NAN
    drift_ms: float = NAN
    drift_pct: float = NAN
    drift_class: str | None = None
    in_flight: InFlight
    ttft_ms: Distribution
    user_ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    latency_ms: Distribution
    user_latency_ms: Distribution
    dispatch_lag_ms: Distribution
    read_lag_ms: Distribution
    connect_ms: Distribution
    ceiling_share: float
    goodput: Goodput | None
    stability: Stability | None
    machine: Machine | msgspec.UnsetType = msgspec.UNSET
    reconciliation: Reconciliation | msgspec.UnsetType = msgspec.UNSET
    bottleneck: Bottleneck | msgspec.UnsetType = msgspec.UNSET
    findings: list[Finding] = []
    undefined: dict[str, str] = {}
