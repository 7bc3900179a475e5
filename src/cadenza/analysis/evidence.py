"""What is known of one point that could tell what held it back: the numbers, each of which may be missing."""

from collections.abc import Sequence

import msgspec

from cadenza.analysis.machine import Gpu, Machine

# A rank of an engine holds weights and cache; a card with less than this of the fullest one's memory in use (one that
# draws the desktop: about 1 of 16 GB) takes no part, and that it rests means nothing.
GROUP_SHARE = 0.1
# Reasons that mean heat, as the drivers name them; power limits are met by every card at full load.
_HEAT = ("therm", "temp", "hot")
_UNNAMED = ("any", "other")
# A clock lowered for a reason without a name is lowered against heat where a sensor is this near its limit.
NEAR_C = 5.0
# A source with too few samples in the window is read over the whole point: moments, some of them without load.
_MOMENTS = "whole point"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one point; None or empty: not known.

    client_limited   what a check says that finds the client to be the limit
    heat_share       by card: share of the time in which its clock was lowered against heat
    kv_peak, waiting_share, preempted_share   gauges of the engine; preemptions over requests
    running_share    share of the time in which there was a request to work on
    queue_ms, prefill_ms, decode_ms   means in the engine, a request
    latency_ms, latency_beyond_ms   the client's mean latency, and what of it the engine did not see
    ttft_ms, beyond_ms   likewise of TTFT, itl_ms, itl_beyond_ms of ITL; they count where an engine tells no latency
    busy, memory_busy   by card, shares of the time
    twins_w          mean power of cards that are of one product, by card, for each product of which there are several
    cpu_busy, cpu_steal   of the server's machine
    no_card          none was seen there: its cores may be what the model runs on
    virtual          there is no host and no network that could be seen
    """

    client_limited: str | None = None
    heat_share: dict[str, float] = {}
    kv_peak: float | None = None
    waiting_share: float | None = None
    preempted_share: float | None = None
    running_share: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    latency_ms: float | None = None
    latency_beyond_ms: float | None = None
    ttft_ms: float | None = None
    beyond_ms: float | None = None
    itl_ms: float | None = None
    itl_beyond_ms: float | None = None
    busy: dict[str, float] = {}
    memory_busy: dict[str, float] = {}
    twins_w: list[dict[str, float]] = []
    cpu_busy: float | None = None
    cpu_steal: float | None = None
    no_card: bool = False
    virtual: bool = False


def take_part(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The cards that serve, by the memory that is in use on them; all, where that is not known."""
    fullest = max((gpu.vram_peak_bytes or 0.0 for gpu in gpus), default=0.0)
    return [gpu for gpu in gpus if gpu.vram_peak_bytes is None or gpu.vram_peak_bytes >= GROUP_SHARE * fullest]


def heat_share(gpu: Gpu) -> float:
    """The largest share of a reason that means heat; one without a name does where a sensor is near its limit."""
    limits = gpu.temperature_limit_c
    hot = any(found >= limits[sensor] - NEAR_C for sensor, found in gpu.temperature_max_c.items() if sensor in limits)
    shares = gpu.throttle_reasons.items()
    return max(
        (share for name, share in shares if any(word in name for word in _HEAT) or (hot and name in _UNNAMED)),
        default=0.0,
    )


def is_stretch(machine: Machine, *sources: str) -> bool:
    """Whether means of these sources are of a stretch of time, and not of a few moments."""
    return machine.window != _MOMENTS and not any(f"{source}: {_MOMENTS}" in machine.window for source in sources)


def twins(gpus: Sequence[Gpu]) -> list[dict[str, float]]:
    """`Evidence.twins_w` of these cards."""
    by_product: dict[str, dict[str, float]] = {}
    for gpu in gpus:
        if gpu.product is not None and gpu.power_mean_w is not None:
            by_product.setdefault(gpu.product, {})[gpu.gpu] = gpu.power_mean_w
    return [powers for powers in by_product.values() if len(powers) > 1]
