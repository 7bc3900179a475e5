"""Settings are one frozen value: argv or a file → `Spec` → manifest → the same run again.

Secrets are a second value, `Credentials`, which is never written anywhere.
"""

import math
from typing import Annotated, Any, Literal

import msgspec

Api = Literal["chat", "completions"]


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long, in seconds, each part of a request may take before it counts as failed."""

    connect_s: float = 10.0
    first_token_s: float = 120.0
    stall_s: float = 60.0
    total_s: float = 1800.0


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on a request, in ms; None: no bound. A request is good if it meets all of them (`stats.goodput`).

    attainment   share of the requests that must be good, above 0 and at most 1; None: the share is reported, not judged

    ValueError: a bound that is not a finite number above 0, or an attainment out of its range or without a bound.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    attainment: float | None = None

    def __post_init__(self) -> None:
        bounds = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "latency_ms": self.latency_ms}
        for name, bound in bounds.items():
            if bound is not None and not (math.isfinite(bound) and bound > 0):
                raise ValueError(f"{name} = {bound:g} is not a finite number of milliseconds above 0")
        if self.attainment is None:
            return
        if not 0 < self.attainment <= 1:
            raise ValueError(f"attainment = {self.attainment:g} is not a share above 0 and at most 1")
        if all(bound is None for bound in bounds.values()):
            raise ValueError("attainment needs a bound to be attained: set ttft_ms, tpot_ms or latency_ms")


class Telemetry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is watched of the machine while points are measured. It is set in a file only.

    interval_s    between two looks at cards, host and engine
    root          folder that stands for `/`: sys, proc and the kernel's log lie below it
    metrics_url   the engine's page of metrics; None: /metrics below each base URL
    off           nothing is watched, and the engine's page is not asked for
    """

    interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600.0)] = 0.5
    root: str = "/"
    metrics_url: str | None = None
    off: bool = False


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a run does, and nothing that is secret.

    urls            base URLs of one service, used in turn; empty: the embedded engine `engine`
    engine          profile of the embedded engine; speed: how many times faster than real time it runs
    virtual         it runs in this process and in virtual time: nothing waits, and no socket is opened
    timing          its timing law: calibrated | calibrated:D | physics | measured; None: calibrated, where it has that
    models          names as the server spells them; empty: what the server has
    concurrency     requests in flight, one point each; empty: open loop
    rates_per_s     arrivals per second, one point each; empty: closed loop. Both given: every pair, capped
    arrivals        poisson | constant | gamma:K   (K the shape; K = 1 is poisson, K < 1 burstier)
    requests        measured requests a point; auto: as many as its figures take (`measure.enough`), within its time;
                    None: auto against a real server, else 128 and at least twelve for each slot
    max_time_s      what all points together may take where requests are auto
    repeat          how often the whole grid is measured, in turn forwards and backwards
    duration_s      or as many as are due in this time, from the start of the point, warm-up included
    prompts         builtin | random:N | random:LO:HI | sharegpt:FILE | jsonl:FILE
    output_tokens   (low, high), both included, drawn per request; None: the dataset's own, else 128 to 256
    warmup          unmeasured requests before each point; None: two for each slot, without slots three response times
    cooldown_s      how long measured requests are followed once the last was due, under the same load
    cache           unique: a salt makes every prompt new to the server's prefix cache; reuse: none
    ignore_eos      ask for exactly output_tokens where the server takes that
    extra_body      fields merged into every request body
    headers         names of extra headers (their values are secret)
    slo             bounds that make a request good; None: no goodput. `cadenza show --slo` replaces them later
    workers         processes that put the load on; None: as many as it needs (`measure.workers`); virtual: always one
    verify_tls      False: accept any certificate
    telemetry       what is watched of the machine meanwhile
    """

    urls: tuple[str, ...] = ()
    engine: str | None = None
    speed: float = 1.0
    virtual: bool = False
    timing: str | None = None
    models: tuple[str, ...] = ()
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    rates_per_s: tuple[float, ...] = ()
    arrivals: str = "poisson"
    requests: Annotated[int, msgspec.Meta(ge=1)] | Literal["auto"] | None = None
    max_time_s: Annotated[float, msgspec.Meta(gt=0, le=604_800.0)] = 900.0
    repeat: int = 1
    duration_s: float | None = None
    prompts: str = "builtin"
    output_tokens: tuple[int, int] | None = None
    api: Api = "chat"
    warmup: int | None = None
    cooldown_s: Annotated[float, msgspec.Meta(ge=0, le=604_800.0)] = 60.0
    seed: int = 0
    cache: Literal["unique", "reuse"] = "unique"
    ignore_eos: bool = True
    temperature: float = 0.7
    timeouts: Timeouts = Timeouts()
    extra_body: dict[str, Any] = {}
    headers: tuple[str, ...] = ()
    verify_tls: bool = True
    slo: Slo | None = None
    workers: int | None = None
    telemetry: Telemetry = Telemetry()


class Credentials:
    """What proves who we are: kept out of the spec, the manifest, logs and error messages."""

    def __init__(self, api_key: str | None = None, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.api_key = api_key
        self.headers = headers

    def __repr__(self) -> str:
        return "Credentials(…)"

    def as_headers(self) -> tuple[tuple[str, str], ...]:
        """Header lines to send with every request."""
        own = (("Authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
        return own + self.headers
