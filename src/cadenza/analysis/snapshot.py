"""What can be seen of a server at one instant, as the live view has it: streams, pace, latencies, cards, host.

None means unavailable, never 0.
"""

from collections.abc import Sequence

import msgspec

from cadenza.analysis.tracks import Track, Tracks, track
from cadenza.analysis.views import CardView, busy_share, card_views, engine_view, host_view, kernel_events
from cadenza.clock import NS_PER_S
from cadenza.readings import Sample
from cadenza.stats.columns import Floats
from cadenza.stats.distribution import Distribution


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, of `n` requests or, for an ITL, of `n` gaps. at_least: percentiles that are lower bounds, since
    the histogram behind them ends below; at_most: upper bounds, since it begins above."""

    n: int
    mean: float
    p50: float | None
    p99: float | None
    at_least: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the server. Rates, latencies, preemptions and the hit rate are of the snapshot's last `window_s`.

    rates_from   engine: by its counters; answers: by those that ended, a whole answer at its end
    ttft_ms      from the sending of the request, or its arrival at the engine
    user_ttft_ms from when the request was due; only a run knows
    """

    model: str
    engine: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    generation_tok_per_s: float | None = None
    prompt_tok_per_s: float | None = None
    requests_per_s: float | None = None
    rates_from: str | None = None
    preemptions: float | None = None
    prefix_hit_rate: float | None = None
    ttft_ms: Times | None = None
    user_ttft_ms: Times | None = None
    tpot_ms: Times | None = None
    itl_ms: Times | None = None
    queue_ms: Times | None = None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, by PCI address. `state`: up, asleep or gone; throttled: why the clock is lowered, None: not reported.

    temperatures_c, limits_c   by sensor; at its limit the driver lowers the clock
    """

    gpu: str
    product: str | None = None
    state: str = "up"
    busy: float | None = None
    vram_used_bytes: float | None = None
    vram_size_bytes: float | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    temperatures_c: dict[str, float] = {}
    limits_c: dict[str, float] = {}
    throttled: list[str] | None = None
    clock_hz: float | None = None


class HostNow(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of all cores' time, 0 to 1, and memory."""

    cpu_busy: float | None = None
    cpu_steal: float | None = None
    cores: float | None = None
    memory_available_bytes: float | None = None
    memory_size_bytes: float | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands: at `point` of `points`, from 1; `ended` of `planned` requests are in, `failed` among them."""

    point: int
    points: int
    model: str
    load: str
    concurrency: int | None = None
    rate_per_s: float | None = None
    planned: int | None = None
    ended: int = 0
    failed: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    at           Unix time in seconds
    source       the server's URL or the run's folder
    status       of a server up or down; of a run running, complete, interrupted or failed
    simulated    by the embedded engine
    window_s     of how many seconds the rates and latencies are, on the server's or the run's clock; None: of none yet
    local        cards and host are of the machine that serves, as far as is known
    kernel       lines of the kernel's log that mean trouble, by kind and card, since the view or the run began
    notes        sentences about what could not be seen
    """

    at: float
    source: str
    status: str
    simulated: bool = False
    window_s: float | None = None
    run: Progress | None = None
    streams: list[Stream] = []
    local: bool = False
    cards: list[Card] = []
    host: HostNow | None = None
    kernel: dict[str, int] = {}
    notes: list[str] = []


def times(values: Floats) -> Times | None:
    """Mean and percentiles of `values` (n,) in ms, NaN left out; None: there are none."""
    finite = Distribution.of(values)
    if not finite.n:
        return None
    return Times(n=finite.n, mean=finite.mean, p50=finite.p50, p99=finite.p99)


def cards(tracks: Tracks) -> list[Card]:
    """Every card at the latest instant of its series, by address."""
    return [_card(card) for card in card_views(tracks)]


def _card(card: CardView) -> Card:
    throttled = card.throttled
    return Card(
        gpu=card.gpu,
        product=card.product,
        state=card.state,
        busy=_last(card.one("busy_ratio")),
        vram_used_bytes=_last(card.one("memory_used_bytes", pool="vram")),
        vram_size_bytes=_last(card.one("memory_size_bytes", pool="vram")),
        power_w=_last(card.power),
        power_cap_w=_last(card.one("power_cap_watts")),
        temperatures_c={sensor: one.last for sensor, one in card.temperatures.items()},
        limits_c={sensor: one.last for sensor, one in card.limits.items()},
        throttled=[reason for reason, one in throttled.items() if one.last] if throttled else None,
        clock_hz=_last(card.clock),
    )


def host(tracks: Tracks) -> HostNow | None:
    """The host at the latest instant; None: nothing of it could be read."""
    view = host_view(tracks)
    shares = {mode: one.last for mode, one in view.cpu.items()}
    now = HostNow(
        cpu_busy=busy_share(shares.get("idle"), shares.get("iowait")),
        cpu_steal=shares.get("steal"),
        cores=_last(view.one("cores")),
        memory_available_bytes=_last(view.one("memory_available_bytes")),
        memory_size_bytes=_last(view.one("memory_size_bytes")),
    )
    return None if now == HostNow() else now


def kernel(tracks: Tracks) -> dict[str, int]:
    """Events of the kernel's log until now by kind and card, those that there were."""
    return {event: int(one.last) for event, one in kernel_events(tracks).items() if one.last > 0}


def engine_figures(samples: Sequence[Sample], model: str) -> dict[str, float]:
    """Fields of a `Stream` out of the engine's samples in a window, in order of time, over all base URLs.

    Gauges are the last sample's; counters are their growth per second from the first sample to the last, and left out
    where one fell. The model is the one of that name, or the only one that the engine has.
    """
    if not samples:
        return {}
    edges = [track([samples[0]]), track([samples[-1]])]
    engine = engine_view(edges[-1], model, edges)
    gauges = {name: _last(engine.gauge(name)) for name in ("running", "waiting", "kv_usage")}
    figures = {name: value for name, value in gauges.items() if value is not None}
    span_s = (samples[-1].at_ns - samples[0].at_ns) / NS_PER_S
    if span_s <= 0:
        return figures
    grown = {field: engine.grown(name) for name, field in _RATES.items()}
    figures |= {field: value / span_s for field, value in grown.items() if value is not None}
    rest = {"preemptions": engine.grown("preemptions_total"), "prefix_hit_rate": engine.prefix_hit_rate}
    return figures | {field: value for field, value in rest.items() if value is not None}


_RATES = {
    "generation_tokens_total": "generation_tok_per_s",
    "prompt_tokens_total": "prompt_tok_per_s",
    "requests_total": "requests_per_s",
}


def _last(one: Track | None) -> float | None:
    return None if one is None else one.last
