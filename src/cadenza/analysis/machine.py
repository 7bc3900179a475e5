"""What the machine was doing during a point: cards, host and engine, from samples on the run's clock.

Means are over the point's window, or, of a source with fewer than four samples in it, over the whole point; peaks are
over the whole point. What could not be read is left out, never 0, and `unseen` gives the reason.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from cadenza.analysis.gaps import unwatched_s
from cadenza.analysis.tracks import EDGE, Track, Tracks, edges_of, track
from cadenza.analysis.views import (
    KERNEL_EVENTS,
    CardView,
    EngineView,
    HostView,
    busy_share,
    card_views,
    engine_view,
    host_view,
    kernel_events,
    rate,
)
from cadenza.readings import ReadingTable
from cadenza.record import Point

# A mean of fewer samples than this is one of moments, not of a stretch of time.
MIN_SAMPLES = 4
_GPU_SOURCES = ("amdgpu", "kfd", "pcie", "nvml", "rocm_smi", "amd_smi", "smi")
_SHOWN = 3


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One card; a field that is left out could not be read.

    product                       what its driver calls it
    busy_mean, memory_busy_mean   shares of time, 0 to 1
    power_mean_w                  from the energy counter where the chip has one that moves, else the mean of its power
    temperature_max_c, temperature_limit_c   by sensor; at the limit the driver lowers the clock
    throttled_share               share of time in which the clock was lowered; throttle_reasons: by reason
    pcie_width_lanes, pcie_transfers_per_s   the least that was seen
    lost                          it stopped answering
    """

    gpu: str
    product: str | None = None
    busy_mean: float | None = None
    memory_busy_mean: float | None = None
    vram_peak_bytes: float | None = None
    power_mean_w: float | None = None
    joules_per_tok: float | None = None
    temperature_max_c: dict[str, float] = {}
    temperature_limit_c: dict[str, float] = {}
    throttled_share: float | None = None
    throttle_reasons: dict[str, float] = {}
    pcie_received_bytes_per_s: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_width_lanes: float | None = None
    pcie_transfers_per_s: float | None = None
    lost: bool = False


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine that cadenza ran on. Shares of all cores' time, 0 to 1; the loopback device is left out."""

    cpu_busy_mean: float | None = None
    cpu_steal_mean: float | None = None
    cpu_iowait_mean: float | None = None
    memory_available_min_bytes: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's metrics, all base URLs together; KV usage is that of the fullest.

    running_share, waiting_share   share of the samples in which a request ran, or waited
    preemptions, prefix_hit_rate   during the point; prompt tokens served from the prefix cache over those looked up
    """

    running_mean: float | None = None
    running_peak: float | None = None
    running_share: float | None = None
    waiting_mean: float | None = None
    waiting_peak: float | None = None
    waiting_share: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_peak: float | None = None
    preemptions: float | None = None
    prefix_hit_rate: float | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One point's.

    window        what the means are of, and of which sources they are of the whole point all the same
    virtual       in virtual time: the cards are simulated, and there is no host
    unwatched_s   by source, seconds of the point without samples (`gaps.unwatched_s`)
    kernel        lines of the kernel's log that mean trouble, by kind
    """

    window: str
    samples: int
    server_here: bool
    virtual: bool = False
    unwatched_s: dict[str, float] = {}
    joules_per_tok: float | None = None
    gpus: list[Gpu] = []
    host: Host | None = None
    engine: Engine | None = None
    kernel: dict[str, int] = {}
    unseen: list[str] = []


class Stretch(NamedTuple):
    """Part of a run, both ends included."""

    start_ns: int
    end_ns: int


def describe_machine(
    telemetry: ReadingTable, point: Point, whole: Stretch, window: Stretch, tok_per_s: float
) -> Machine:
    """**Machine**: busy share, VRAM peak, power, temperature and throttling of each card, host, queue and KV cache.

    **Joules per token** are mean watts over output tokens per second, both of the same window. A throttled share is the
    share of samples with a reason for it, or, where the chip counts the time, that time over the window's.
    """
    # In virtual time a sample may be of the very start, and a card's then is of the time before.
    begin_ns = whole.start_ns + point.virtual
    kept = [one for one in telemetry.samples if one.source != EDGE and begin_ns <= one.at_ns <= whole.end_ns]
    inside = Counter(one.source for one in kept if window.start_ns <= one.at_ns <= window.end_ns)
    few = sorted({one.source for one in kept if inside[one.source] < MIN_SAMPLES})
    every = track(kept)
    part = track(one for one in kept if one.source in few or window.start_ns <= one.at_ns <= window.end_ns)
    edges = edges_of(telemetry, point.index)
    inside_by_card = {card.gpu: card for card in card_views(part)}
    cards = card_views(every)
    gpus = [_gpu(card, inside_by_card.get(card.gpu, CardView(card.gpu, {})), tok_per_s) for card in cards]
    joules = [gpu.joules_per_tok for gpu in gpus if gpu.joules_per_tok is not None]
    periods = ["window", *(f"{source}: whole point" for source in few)]
    return Machine(
        window="; ".join(periods) if max(inside.values(), default=0) >= MIN_SAMPLES else "whole point",
        samples=len({one.at_ns for one in kept}),
        server_here=telemetry.server_here,
        virtual=point.virtual,
        unwatched_s={} if point.virtual else unwatched_s(telemetry, whole.start_ns, whole.end_ns),
        joules_per_tok=sum(joules) if joules else None,
        gpus=gpus,
        host=_host(host_view(part)),
        engine=_engine(engine_view(every, point.model, edges), engine_view(part, point.model, edges)),
        kernel=_kernel(telemetry, whole),
        unseen=_unseen(telemetry, point, whole, every, edges),
    )


def _mean(one: Track | None) -> float | None:
    return None if one is None else float(one.values.mean())


def _least(one: Track | None) -> float | None:
    return None if one is None else float(one.values.min())


def _most(one: Track | None) -> float | None:
    return None if one is None else float(one.values.max())


def _gpu(every: CardView, part: CardView, tok_per_s: float) -> Gpu:
    """`every`: over the whole point; `part`: over the window."""
    power = rate(part.one("energy_joules_total")) or _mean(part.power)
    reasons = _throttling(part)
    up = every.one("up")
    return Gpu(
        gpu=every.gpu,
        product=every.product,
        busy_mean=_mean(part.one("busy_ratio")),
        memory_busy_mean=_mean(part.one("memory_busy_ratio")),
        vram_peak_bytes=_most(every.one("memory_used_bytes", pool="vram")),
        power_mean_w=power,
        joules_per_tok=power / tok_per_s if power is not None and tok_per_s > 0 else None,
        temperature_max_c={sensor: float(one.values.max()) for sensor, one in every.temperatures.items()},
        temperature_limit_c={sensor: float(one.values.min()) for sensor, one in every.limits.items()},
        throttled_share=None if reasons is None else reasons.pop(""),
        throttle_reasons={} if reasons is None else {name: share for name, share in reasons.items() if share > 0},
        pcie_received_bytes_per_s=_mean(part.one("pcie_received_bytes_per_second")),
        pcie_sent_bytes_per_s=_mean(part.one("pcie_sent_bytes_per_second")),
        pcie_width_lanes=_least(part.one("pcie_link_width_lanes", state="current")),
        pcie_transfers_per_s=_least(part.one("pcie_link_speed_transfers_per_second", state="current")),
        lost=up is not None and bool((up.values == 0).any()),
    )


def _throttling(part: CardView) -> dict[str, float] | None:
    """Share of time by reason, and under "" for any of them; None: the card does not report it."""
    shares: dict[str, float] = {}
    instants: dict[int, float] = {}
    for reason, one in part.throttled.items():
        shares[reason] = float(one.values.mean())
        for at_ns, value in zip(one.at_ns.tolist(), one.values.tolist(), strict=True):
            instants[at_ns] = max(instants.get(at_ns, 0.0), value)
    if instants:
        return shares | {"": sum(instants.values()) / len(instants)}
    counted = {reason: rate(one) for reason, one in part.by("reason", "throttle_seconds_total").items()}
    known = {reason: min(1.0, share) for reason, share in counted.items() if share is not None}
    return known | {"": max(known.values())} if known else None


def _host(part: HostView) -> Host | None:
    shares = {mode: _mean(one) for mode, one in part.cpu.items()}
    host = Host(
        cpu_busy_mean=busy_share(shares.get("idle"), shares.get("iowait")),
        cpu_steal_mean=shares.get("steal"),
        cpu_iowait_mean=shares.get("iowait"),
        memory_available_min_bytes=_least(part.one("memory_available_bytes")),
        network_received_bytes_per_s=part.network_per_s("received"),
        network_sent_bytes_per_s=part.network_per_s("sent"),
    )
    return None if host == Host() else host


def _engine(every: EngineView, part: EngineView) -> Engine | None:
    figures: dict[str, float] = {}
    for name in ("running", "waiting", "kv_usage"):
        whole, inside = every.gauge(name), part.gauge(name)
        if whole is not None and inside is not None:
            figures |= {f"{name}_mean": float(inside.values.mean()), f"{name}_peak": float(whole.values.max())}
            if name != "kv_usage":
                figures[f"{name}_share"] = float((inside.values > 0).mean())
    for name, value in (("preemptions", every.grown("preemptions_total")), ("prefix_hit_rate", every.prefix_hit_rate)):
        if value is not None:
            figures[name] = value
    return Engine(**figures) if figures else None


def _kernel(telemetry: ReadingTable, whole: Stretch) -> dict[str, int]:
    """Events of the log between the last sample before the point and the last one in it."""
    samples = [one for one in telemetry.samples if one.source == "kernel" and one.at_ns <= whole.end_ns]
    counts: dict[str, int] = {}
    for event, one in kernel_events(track(samples)).items():
        steps = np.diff(one.values, prepend=0.0)
        # A sampler that was restarted counts from 0 again.
        grown = np.where(steps < 0, one.values, steps)[one.at_ns >= whole.start_ns].sum()
        if grown > 0:
            counts[event] = int(grown)
    return counts


def _unseen(telemetry: ReadingTable, point: Point, whole: Stretch, every: Tracks, edges: Sequence[Tracks]) -> list[str]:
    """What could not be read, by kind, each with the reasons. Virtual time has no host, and cards by choice only."""
    missing = [gap for gap in telemetry.missing if gap.at_ns <= whole.end_ns]
    cards = card_views(every)
    sentences = []
    if not cards:
        why = dict.fromkeys(f"{gap.source}: {gap.reason}" for gap in missing if gap.source in _GPU_SOURCES)
        if why or not point.virtual:
            sentences.append(_because("a GPU", why))
    if not edges:
        why = dict.fromkeys(gap.reason for gap in missing if gap.source in ("engine", EDGE))
        sentences.append(_because("the engine's metrics", why))
    if not point.virtual and not host_view(every).tracks:
        sentences.append("the host")
    why = dict.fromkeys(gap.reason for gap in missing if gap.source == "kernel")
    if why and not any(series.name == KERNEL_EVENTS for series in every):
        sentences.append(_because("the kernel's log", why))
    for card in cards:
        gaps = (gap for gap in missing if gap.gpu == card.gpu)
        names = list(dict.fromkeys(f"{gap.name.removeprefix('gpu_')} ({gap.reason})" for gap in gaps))
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            sentences.append(f"of {card.gpu} {', '.join(names[:_SHOWN])}{more}")
    return sentences


def _because(what: str, why: Iterable[str]) -> str:
    reasons = ", ".join(why)
    return f"{what} ({reasons})" if reasons else what
