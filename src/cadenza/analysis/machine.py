"""What the machine was doing during a point: cards, host and engine, from samples on the run's clock.

Means are over the point's window, or, of a source with fewer than four samples in it, over the whole point; peaks are
over the whole point. What was not to be had is not there, and `unseen` says why; it is never 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from cadenza.analysis.gaps import unwatched_s
from cadenza.analysis.tracks import EDGE, Telemetry, Track, Tracks, edges_of, find, growth, parse_key, pick_model, track
from cadenza.clock import NS_PER_S
from cadenza.record import Point
from cadenza.stats.columns import Floats

# A mean of fewer samples than this is one of moments, not of a stretch of time.
MIN_SAMPLES = 4
_GPU_SOURCES = ("amdgpu", "kfd", "pcie", "nvml", "rocm_smi", "amd_smi", "smi")
_KERNEL_EVENTS = "cadenza_kernel_events_total"
# Of the cards; runs before the `vendor` label have amdgpu_ and nvidia_.
_CARD_FAMILIES = ("gpu_", "amdgpu_", "nvidia_")
_SHOWN = 3


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One card; a field that is not there was not to be had.

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
    """What the engine's page said, all base URLs together; KV usage is that of the fullest.

    running_share, waiting_share   share of the samples in which a request ran, or waited
    preemptions, prefix_hit_rate   during the point; prompt tokens found in the prefix cache over those looked up
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
    unwatched_s   by source, seconds of the point in which nobody looked (`gaps.unwatched_s`)
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


def describe_machine(telemetry: Telemetry, point: Point, whole: Stretch, window: Stretch, tok_per_s: float) -> Machine:
    """**Machine**: busy share, VRAM peak, power, temperature and throttling of each card, host, queue and KV cache.

    **Joules per token** are mean watts over output tokens per second, both of the same window. A throttled share is the
    share of samples with a reason for it, or, where the chip counts the time, that time over the window's.
    """
    # In virtual time a sample may be of the very start, and a card's then tells what it did before.
    begin_ns = whole.start_ns + point.virtual
    kept = [row for row in telemetry.samples if row[1] != EDGE and begin_ns <= row[0] <= whole.end_ns]
    inside = Counter(row[1] for row in kept if window.start_ns <= row[0] <= window.end_ns)
    few = sorted({row[1] for row in kept if inside[row[1]] < MIN_SAMPLES})
    every = track(kept)
    part = track(row for row in kept if row[1] in few or window.start_ns <= row[0] <= window.end_ns)
    edges = edges_of(telemetry, point.index)
    gpus = [_gpu(gpu, every, part, tok_per_s) for gpu in _cards(every)]
    joules = [gpu.joules_per_tok for gpu in gpus if gpu.joules_per_tok is not None]
    told = ["window", *(f"{source}: whole point" for source in few)]
    return Machine(
        window="; ".join(told) if max(inside.values(), default=0) >= MIN_SAMPLES else "whole point",
        samples=len({row[0] for row in kept}),
        server_here=telemetry.server_here,
        virtual=point.virtual,
        unwatched_s={} if point.virtual else unwatched_s(telemetry, whole.start_ns, whole.end_ns),
        joules_per_tok=sum(joules) if joules else None,
        gpus=gpus,
        host=_host(part),
        engine=_engine(pick_model(every, point.model), pick_model(part, point.model), point.model, edges),
        kernel=_kernel(telemetry, whole),
        unseen=_unseen(telemetry, point, whole, every, edges),
    )


def _mean(found: Track | None) -> float | None:
    return None if found is None else float(found.values.mean())


def _one(tracks: Tracks, name: str, **labels: str) -> Track | None:
    return next((found for _, found in find(tracks, name, **labels)), None)


def _cards(tracks: Tracks) -> list[str]:
    known = (parse_key(key) for key in tracks)
    return sorted({has["gpu"] for name, has in known if has.get("gpu") and name.startswith(_CARD_FAMILIES)})


def _gpu(gpu: str, every: Tracks, part: Tracks, tok_per_s: float) -> Gpu:
    every, part = _of_card(every, gpu), _of_card(part, gpu)
    power, reasons = _power_w(part), _throttling(part)
    vram, up = _one(every, "memory_used_bytes", pool="vram"), _one(every, "up")
    lanes, transfers = (
        _one(part, name, state="current") for name in ("pcie_link_width_lanes", "pcie_link_speed_transfers_per_second")
    )
    return Gpu(
        gpu=gpu,
        product=next((has["product"] for has, _ in find(every, "info") if "product" in has), None),
        busy_mean=_mean(_one(part, "busy_ratio")),
        memory_busy_mean=_mean(_one(part, "memory_busy_ratio")),
        vram_peak_bytes=None if vram is None else float(vram.values.max()),
        power_mean_w=power,
        joules_per_tok=power / tok_per_s if power is not None and tok_per_s > 0 else None,
        temperature_max_c={
            has.get("sensor", ""): float(found.values.max()) for has, found in find(every, "temperature_celsius")
        },
        temperature_limit_c={
            has.get("sensor", ""): float(found.values.min())
            for has, found in find(every, "temperature_limit_celsius", limit="crit")
        },
        throttled_share=None if reasons is None else reasons.pop(""),
        throttle_reasons={} if reasons is None else {name: share for name, share in reasons.items() if share > 0},
        pcie_received_bytes_per_s=_mean(_one(part, "pcie_received_bytes_per_second")),
        pcie_sent_bytes_per_s=_mean(_one(part, "pcie_sent_bytes_per_second")),
        pcie_width_lanes=None if lanes is None else float(lanes.values.min()),
        pcie_transfers_per_s=None if transfers is None else float(transfers.values.min()),
        lost=up is not None and bool((up.values == 0).any()),
    )


def _of_card(tracks: Tracks, gpu: str) -> dict[str, Track]:
    return {_plain(key): found for key, found in tracks.items() if parse_key(key)[1].get("gpu") == gpu}


def _plain(key: str) -> str:
    """The family without its prefix, the same in runs of any age."""
    prefix = next((prefix for prefix in _CARD_FAMILIES if key.startswith(prefix)), "")
    return key.removeprefix(prefix)


def _power_w(part: Tracks) -> float | None:
    per_s = _rate(_one(part, "energy_joules_total"))
    if per_s:
        return per_s
    kinds = (_one(part, "power_watts", type="average"), _one(part, "power_watts", type="instant"))
    return next((_mean(found) for found in kinds if found is not None), None)


def _rate(found: Track | None) -> float | None:
    """A counter's growth per second over the track; None: it did not last, or the counter fell."""
    if found is None or found.at_ns[-1] == found.at_ns[0] or found.values[-1] < found.values[0]:
        return None
    return float(found.values[-1] - found.values[0]) / (int(found.at_ns[-1] - found.at_ns[0]) / NS_PER_S)


def _throttling(part: Tracks) -> dict[str, float] | None:
    """Share of time by reason, and under "" for any of them; None: the card does not tell."""
    shares: dict[str, float] = {}
    at_work: dict[int, float] = {}
    for has, found in find(part, "throttled"):
        shares[has.get("reason", "")] = float(found.values.mean())
        for at_ns, value in zip(found.at_ns.tolist(), found.values.tolist(), strict=True):
            at_work[at_ns] = max(at_work.get(at_ns, 0.0), value)
    if at_work:
        return shares | {"": sum(at_work.values()) / len(at_work)}
    counted = {has.get("reason", ""): _rate(found) for has, found in find(part, "throttle_seconds_total")}
    known = {reason: min(1.0, share) for reason, share in counted.items() if share is not None}
    return known | {"": max(known.values())} if known else None


def _host(part: Tracks) -> Host | None:
    cpu = {has.get("mode"): _mean(found) for has, found in find(part, "cadenza_host_cpu_ratio")}
    memory, idle, iowait = _one(part, "cadenza_host_memory_available_bytes"), cpu.get("idle"), cpu.get("iowait")
    host = Host(
        cpu_busy_mean=None if idle is None else max(0.0, 1 - idle - (iowait or 0.0)),
        cpu_steal_mean=cpu.get("steal"),
        cpu_iowait_mean=iowait,
        memory_available_min_bytes=None if memory is None else float(memory.values.min()),
        network_received_bytes_per_s=_network(part, "cadenza_host_network_received_bytes_total"),
        network_sent_bytes_per_s=_network(part, "cadenza_host_network_sent_bytes_total"),
    )
    return None if host == Host() else host


def _network(part: Tracks, name: str) -> float | None:
    rates = (_rate(found) for has, found in find(part, name) if has.get("device") != "lo")
    return sum(known) if (known := [rate for rate in rates if rate is not None]) else None


def _over_urls(tracks: Tracks, name: str, *, peak: bool = False) -> Floats | None:
    """The gauge at each instant: summed over the base URLs, or the highest of them."""
    found: dict[int, float] = {}
    for _, one in find(tracks, name):
        for at_ns, value in zip(one.at_ns.tolist(), one.values.tolist(), strict=True):
            found[at_ns] = max(found.get(at_ns, 0.0), value) if peak else found.get(at_ns, 0.0) + value
    return np.array(list(found.values())) if found else None


def _engine(every: Tracks, part: Tracks, model: str, edges: Sequence[Tracks]) -> Engine | None:
    figures: dict[str, float] = {}
    for name in ("running", "waiting", "kv_usage"):
        whole, inside = (_over_urls(side, name, peak=name == "kv_usage") for side in (every, part))
        if whole is not None and inside is not None:
            figures |= {f"{name}_mean": float(inside.mean()), f"{name}_peak": float(whole.max())}
            if name != "kv_usage":
                figures[f"{name}_share"] = float((inside > 0).mean())
    preempted = growth(edges, model, "preemptions_total")
    queries, hits = (growth(edges, model, f"prefix_{name}_tok") for name in ("queries", "hits"))
    if preempted is not None:
        figures["preemptions"] = preempted
    if queries and hits is not None:
        figures["prefix_hit_rate"] = hits / queries
    return Engine(**figures) if figures else None


def _kernel(telemetry: Telemetry, whole: Stretch) -> dict[str, int]:
    """Events of the log between the last look before the point and the last one in it."""
    rows = [row for row in telemetry.samples if row[1] == "kernel" and row[0] <= whole.end_ns]
    counts: dict[str, int] = {}
    for has, found in find(track(rows), _KERNEL_EVENTS):
        steps = np.diff(found.values, prepend=0.0)
        # A sampler that was started anew counts from 0 again.
        grown = np.where(steps < 0, found.values, steps)[found.at_ns >= whole.start_ns].sum()
        if grown > 0:
            counts[f"{has.get('event', '')} {has.get('gpu', '')}".strip()] = int(grown)
    return counts


def _unseen(telemetry: Telemetry, point: Point, whole: Stretch, every: Tracks, edges: Sequence[Tracks]) -> list[str]:
    """What could not be watched, by kind, each with the reason. Virtual time has no host, and cards by choice only."""
    missing = [gap for gap in telemetry.missing if gap[0] <= whole.end_ns]
    told = []
    if not _cards(every):
        why = dict.fromkeys(f"{gap[1]}: {gap[4]}" for gap in missing if gap[1] in _GPU_SOURCES)
        if why or not point.virtual:
            told.append(_because("a GPU", why))
    if not edges:
        why = dict.fromkeys(gap[4] for gap in missing if gap[1] in ("engine", EDGE))
        told.append(_because("the engine's metrics", why))
    if not point.virtual and not any(key.startswith("cadenza_host_") for key in every):
        told.append("the host")
    why = dict.fromkeys(gap[4] for gap in missing if gap[1] == "kernel")
    if why and not any(key.startswith(_KERNEL_EVENTS) for key in every):
        told.append(_because("the kernel's log", why))
    for gpu in _cards(every):
        names = dict.fromkeys(f"{_plain(gap[2])} ({gap[4]})" for gap in missing if gap[3] == gpu)
        shown = ", ".join(list(names)[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        if names:
            told.append(f"of {gpu} {shown}")
    return told


def _because(what: str, why: Iterable[str]) -> str:
    reasons = ", ".join(why)
    return f"{what} ({reasons})" if reasons else what
