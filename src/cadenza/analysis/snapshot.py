"""What can be seen of a server at one instant, as the live view has it: streams, pace, latencies, cards, host.

None is what was not to be had; it is never 0.
"""

from collections.abc import Iterable, Mapping

import msgspec

from cadenza.stats.columns import Floats
from cadenza.stats.distribution import Distribution

# Of several clocks that a card tells, the one that computes.
_CORE_CLOCKS = ("sclk", "sm", "graphics")

Row = tuple[str, Mapping[str, str], float]


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
    """One model of the server. Rates, latencies, preemptions and the hit rate are of the glance's last `window_s`.

    rates_from   engine: by its own counters; answers: by those that ended, a whole answer at its end
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
    """One GPU, by PCI address. `state`: up, asleep or gone; throttled: why the clock is lowered, None: it does not say.

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


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    at           Unix time in seconds
    source       the server's URL or the run's folder
    status       of a server up or down; of a run running, complete, interrupted or failed
    simulated    by the embedded engine
    window_s     of how many seconds the rates and latencies are, on the server's or the run's clock; None: of none yet
    local        cards and host are of the machine that serves, as far as can be told
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
    found = Distribution.of(values)
    if not found.n:
        return None
    return Times(n=found.n, mean=found.mean, p50=found.p50, p99=found.p99)


def cards(rows: Iterable[Row]) -> list[Card]:
    """The cards in `rows` of (family, labels, value), by address; of a value that is told twice, the first counts."""
    by_card: dict[str, dict[str, dict[str, float]]] = {}
    products: dict[str, str] = {}
    for family, labels, value in rows:
        make, _, name = family.partition("_")
        gpu = labels.get("gpu")
        if make not in ("gpu", "amdgpu", "nvidia") or not gpu:
            continue
        found = by_card.setdefault(gpu, {}).setdefault(name, {})
        found.setdefault(next((text for label, text in labels.items() if label not in ("gpu", "vendor")), ""), value)
        if name == "temperature_limit_celsius" and labels.get("limit") == "crit":
            by_card[gpu].setdefault("crit", {}).setdefault(labels.get("sensor", ""), value)
        if name == "info" and labels.get("product"):
            products.setdefault(gpu, labels["product"])
    return [_card(gpu, products.get(gpu), found) for gpu, found in sorted(by_card.items())]


def _card(gpu: str, product: str | None, found: Mapping[str, Mapping[str, float]]) -> Card:
    def one(name: str, *kinds: str) -> float | None:
        values = found.get(name, {})
        return next((values[kind] for kind in kinds or ("",) if kind in values), None)

    asleep, up = one("suspended"), one("up")
    throttled = found.get("throttled")
    return Card(
        gpu=gpu,
        product=product,
        state="gone" if up == 0 else "asleep" if asleep else "up",
        busy=one("busy_ratio"),
        vram_used_bytes=one("memory_used_bytes", "vram"),
        vram_size_bytes=one("memory_size_bytes", "vram"),
        power_w=one("power_watts", "average", "instant"),
        power_cap_w=one("power_cap_watts"),
        temperatures_c=dict(found.get("temperature_celsius", {})),
        limits_c=dict(found.get("crit", {})),
        throttled=None if throttled is None else [reason for reason, holds in throttled.items() if holds],
        clock_hz=one("clock_hertz", *_CORE_CLOCKS),
    )


def host(rows: Iterable[Row]) -> HostNow | None:
    """The machine in `rows`; None: it tells nothing."""
    cpu: dict[str, float] = {}
    rest: dict[str, float] = {}
    for family, labels, value in rows:
        if family == "cadenza_host_cpu_ratio":
            cpu.setdefault(labels.get("mode", ""), value)
        elif family.startswith("cadenza_host_") and not labels:
            rest.setdefault(family.removeprefix("cadenza_host_"), value)
    idle = cpu.get("idle")
    found = HostNow(
        cpu_busy=None if idle is None else max(0.0, 1 - idle - cpu.get("iowait", 0.0)),
        cpu_steal=cpu.get("steal"),
        cores=rest.get("cores"),
        memory_available_bytes=rest.get("memory_available_bytes"),
        memory_size_bytes=rest.get("memory_size_bytes"),
    )
    return None if found == HostNow() else found


def kernel(rows: Iterable[Row]) -> dict[str, int]:
    """Events of the kernel's log by kind and card, those that there were."""
    counts: dict[str, int] = {}
    for family, labels, value in rows:
        if family == "cadenza_kernel_events_total" and value > 0:
            counts[f"{labels.get('event', '')} {labels.get('gpu', '')}".strip()] = int(value)
    return counts
