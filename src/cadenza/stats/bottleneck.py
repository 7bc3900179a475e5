"""What held a point back, and by what one can tell: a pure function of numbers, each of which may be missing."""

from collections.abc import Callable
from typing import Literal

import msgspec

from cadenza.stats.machine import Gpu, Machine
from cadenza.stats.reconcile import Reconciliation

Kind = Literal[
    "client",
    "thermal throttle",
    "KV capacity",
    "queue",
    "network",
    "straggler card",
    "host CPU",
    "prefill",
    "decode bandwidth",
    "unknown",
]

# A card that lowers its clock against heat for this share of the time is slower than it was bought for.
THROTTLED_SHARE = 0.1
# Preemptions for each request: every one of them computes a prompt again.
PREEMPTED_SHARE = 0.01
# A KV cache this full, while requests wait, is what they wait for.
KV_FULL = 0.95
# A queue that is there most of the time is no burst.
WAITING_SHARE = 0.5
# Time in the queue over time in the engine: below this it is not what a user feels.
QUEUE_SHARE = 0.2
# Time that the engine did not see, over a request's at the client: network, proxy, API server, or the client; and in
# ms, so that a fast answer does not blame the loopback device. Of a short TTFT it may be much, and of no account to an
# answer that then takes a hundred times as long.
NETWORK_SHARE, NETWORK_MS = 0.2, 5.0
# Cards of one engine do the same step; the busy share of one differs from another's only where one waits.
STRAGGLER_SHARE = 0.2
# All cores together; a thread that has to wait for one delays every step.
CPU_BUSY_SHARE, CPU_STEAL_SHARE = 0.9, 0.05
# Prefill or decode that takes more than this of a request's time in the engine is where the time goes.
MAIN_SHARE = 0.5
# Reasons that mean heat, as the drivers name them; power limits are met by every card at full load.
_HEAT = ("therm", "temp", "hot")
_UNNAMED = ("any", "other")
# A clock lowered for a reason without a name is lowered against heat where a sensor is this near its limit.
NEAR_C = 5.0


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one point; None or empty: not known.

    client_limited   what a check says that finds the client to be the limit
    heat_share       by card: share of the time in which its clock was lowered against heat
    kv_peak, waiting_share, preempted_share   gauges of the engine; preemptions over requests
    queue_ms, prefill_ms, decode_ms   means in the engine, a request
    latency_ms, latency_beyond_ms   the client's mean latency, and what of it the engine did not see
    ttft_ms, beyond_ms   likewise of TTFT, itl_ms, itl_beyond_ms of ITL; they count where an engine tells no latency
    busy, memory_busy   by card, shares of the time
    cpu_busy, cpu_steal   of the server's machine
    no_card          none was seen there: its cores may be what the model runs on
    """

    client_limited: str | None = None
    heat_share: dict[str, float] = {}
    kv_peak: float | None = None
    waiting_share: float | None = None
    preempted_share: float | None = None
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
    cpu_busy: float | None = None
    cpu_steal: float | None = None
    no_card: bool = False


class Bottleneck(msgspec.Struct, frozen=True):
    """What gave way first, and a sentence for each thing that says so. `unknown`: the sentences say what is missing."""

    kind: Kind
    evidence: list[str]


def gather(machine: Machine, found: Reconciliation | None, client_limited: str | None) -> Evidence:
    """The evidence of one point, from what was seen; cards and host count only where they are the server's."""
    engine, host = machine.engine, machine.host if machine.server_here else None
    gpus = machine.gpus if machine.server_here else []
    requests = found.requests.server if found is not None and found.requests is not None else 0
    preempted = None if engine is None or engine.preemptions is None or not requests else engine.preemptions / requests
    latency, ttft, itl = (None, None, None) if found is None else (found.latency, found.ttft, found.itl)
    return Evidence(
        client_limited=client_limited,
        heat_share={gpu.gpu: _heat(gpu) for gpu in gpus if gpu.throttled_share is not None},
        kv_peak=None if engine is None else engine.kv_usage_peak,
        waiting_share=None if engine is None else engine.waiting_share,
        preempted_share=preempted,
        queue_ms=None if found is None else found.queue_ms,
        prefill_ms=None if found is None else found.prefill_ms,
        decode_ms=None if found is None else found.decode_ms,
        latency_ms=None if latency is None else latency.client_ms,
        latency_beyond_ms=None if latency is None else latency.beyond_ms,
        ttft_ms=None if ttft is None else ttft.client_ms,
        beyond_ms=None if ttft is None else ttft.beyond_ms,
        itl_ms=None if itl is None else itl.client_ms,
        itl_beyond_ms=None if itl is None else itl.beyond_ms,
        busy={gpu.gpu: gpu.busy_mean for gpu in gpus if gpu.busy_mean is not None},
        memory_busy={gpu.gpu: gpu.memory_busy_mean for gpu in gpus if gpu.memory_busy_mean is not None},
        cpu_busy=None if host is None else host.cpu_busy_mean,
        cpu_steal=None if host is None else host.cpu_steal_mean,
        no_card=host is not None and not gpus,
    )


def find_bottleneck(evidence: Evidence) -> Bottleneck:
    """**Bottleneck**: the first of these that holds, in the order in which one explains the other.

    *client*: a check says CLIENT-LIMITED, and the figures are its own. *thermal throttle*: a card lowered
    its clock against heat. *KV capacity*: requests were preempted, or waited before a full KV cache. *queue*: requests
    waited most of the time, or for a good part of theirs, with room in the cache. *straggler card*: cards of one engine
    are not equally busy. *host CPU*: no core was free beside the cards; where no card was seen, busy cores may be the
    model's own, and count only if nothing else is known. *network*: a request took the client longer than the engine
    knows of. *prefill*, *decode bandwidth*: where a request's time in the engine went, if none of the above. *unknown*:
    the evidence does not suffice.
    """
    for kind, look in _LOOKS:
        if told := look(evidence):
            return Bottleneck(kind, told)
    lacking = [
        name
        for name, value in (
            ("the engine's queue, prefill and decode times", evidence.decode_ms),
            ("its gauge of waiting requests", evidence.waiting_share),
            ("the cards", evidence.busy or None),
        )
        if value is None
    ]
    return Bottleneck("unknown", [f"nothing was seen of {', '.join(lacking)}" if lacking else "nothing stands out"])


def add_growth(found: Bottleneck, drift_pct: float, base: int) -> Bottleneck:
    """Decode that bandwidth bounds grows with what a step reads, the KV cache of its batch: against C = `base`."""
    if found.kind != "decode bandwidth" or not drift_pct > 0:
        return found
    return Bottleneck(found.kind, [*found.evidence, f"TPOT is {drift_pct:+.1f} % against C = {base}"])


def _client(evidence: Evidence) -> list[str]:
    return [] if evidence.client_limited is None else [evidence.client_limited]


def _thermal(evidence: Evidence) -> list[str]:
    hot = {gpu: share for gpu, share in evidence.heat_share.items() if share >= THROTTLED_SHARE}
    return [f"{gpu} lowered its clock against heat for {100 * share:.0f} % of the time" for gpu, share in hot.items()]


def _kv(evidence: Evidence) -> list[str]:
    told = []
    if evidence.preempted_share is not None and evidence.preempted_share >= PREEMPTED_SHARE:
        told.append(
            f"{evidence.preempted_share:.2f} preemptions a request: running ones lost their KV cache and began anew"
        )
    full = evidence.kv_peak is not None and evidence.kv_peak >= KV_FULL
    if full and evidence.waiting_share is not None and evidence.waiting_share >= WAITING_SHARE:
        told.append(f"requests waited in {100 * evidence.waiting_share:.0f} % of the samples")
    if full and told:
        told.append(f"the KV cache was {100 * (evidence.kv_peak or 0):.0f} % full")
    return told


def _queue(evidence: Evidence) -> list[str]:
    told = []
    if evidence.waiting_share is not None and evidence.waiting_share >= WAITING_SHARE:
        told.append(f"requests waited in {100 * evidence.waiting_share:.0f} % of the samples")
    share = _share(evidence, evidence.queue_ms)
    if share is not None and share >= QUEUE_SHARE:
        told.append(
            f"the queue took {evidence.queue_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"
        )
    if told and evidence.kv_peak is not None:
        told.append(f"the KV cache had room ({100 * evidence.kv_peak:.0f} % full at most): the limit is max_num_seqs")
    return told


def _network(evidence: Evidence) -> list[str]:
    whole_request = (("of a request", evidence.latency_beyond_ms, evidence.latency_ms),)
    parts = (("TTFT", evidence.beyond_ms, evidence.ttft_ms), ("ITL", evidence.itl_beyond_ms, evidence.itl_ms))
    pairs = whole_request if evidence.latency_ms is not None else parts
    return [
        f"{beyond:.1f} of {whole:.1f} ms {name} at the client were not seen by the engine"
        for name, beyond, whole in pairs
        if beyond is not None and whole is not None and beyond >= max(NETWORK_MS, NETWORK_SHARE * whole)
    ]


def _straggler(evidence: Evidence) -> list[str]:
    if len(evidence.busy) < 2:
        return []
    low, high = (pick(evidence.busy.items(), key=lambda item: item[1]) for pick in (min, max))
    if high[1] - low[1] < STRAGGLER_SHARE:
        return []
    return [f"{high[0]} was busy for {100 * high[1]:.0f} % of the time, {low[0]} for {100 * low[1]:.0f} %"]


def _host_cpu(evidence: Evidence) -> list[str]:
    told = [] if evidence.no_card else _busy_cores(evidence)
    if evidence.cpu_steal is not None and evidence.cpu_steal >= CPU_STEAL_SHARE:
        told.append(f"{100 * evidence.cpu_steal:.0f} % of their time went to other guests of the hypervisor")
    return told


def _busy_cores(evidence: Evidence) -> list[str]:
    if evidence.cpu_busy is None or evidence.cpu_busy < CPU_BUSY_SHARE:
        return []
    told = f"the cores of the server's machine were busy for {100 * evidence.cpu_busy:.0f} % of the time"
    return [f"{told}, and no card was seen: the model may run on them" if evidence.no_card else told]


def _prefill(evidence: Evidence) -> list[str]:
    share = _share(evidence, evidence.prefill_ms)
    if share is None or share < MAIN_SHARE:
        return []
    told = f"prefill took {evidence.prefill_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"
    return [told, *(_busy_cores(evidence) if evidence.no_card else [])]


def _decode(evidence: Evidence) -> list[str]:
    share = _share(evidence, evidence.decode_ms)
    if share is None or share < MAIN_SHARE:
        return []
    told = [f"decode took {evidence.decode_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"]
    if evidence.waiting_share is not None:
        told.append(f"requests waited in only {100 * evidence.waiting_share:.0f} % of the samples")
    if evidence.memory_busy:
        cards = ", ".join(f"{100 * busy:.0f} %" for busy in evidence.memory_busy.values())
        told.append(f"the cards' memory was busy for {cards} of the time")
    return [*told, *(_busy_cores(evidence) if evidence.no_card else [])]


_LOOKS: tuple[tuple[Kind, Callable[[Evidence], list[str]]], ...] = (
    ("client", _client),
    ("thermal throttle", _thermal),
    ("KV capacity", _kv),
    ("queue", _queue),
    ("straggler card", _straggler),
    ("host CPU", _host_cpu),
    ("network", _network),
    ("prefill", _prefill),
    ("decode bandwidth", _decode),
    ("host CPU", _busy_cores),  # of a machine without a card, where the engine tells nothing
)


def _heat(gpu: Gpu) -> float:
    """The largest share of a reason that means heat; one without a name does where a sensor is near its limit."""
    limits = gpu.temperature_limit_c
    hot = any(found >= limits[sensor] - NEAR_C for sensor, found in gpu.temperature_max_c.items() if sensor in limits)
    shares = gpu.throttle_reasons.items()
    return max(
        (share for name, share in shares if any(word in name for word in _HEAT) or (hot and name in _UNNAMED)),
        default=0.0,
    )


def _share(evidence: Evidence, part_ms: float | None) -> float | None:
    """Of a request's time in the engine, queue to last token; None where one of its parts is not known."""
    parts = (evidence.queue_ms, evidence.prefill_ms, evidence.decode_ms)
    known = [part for part in parts if part is not None]
    total = sum(known)
    return part_ms / total if part_ms is not None and len(known) == len(parts) and total > 0 else None
