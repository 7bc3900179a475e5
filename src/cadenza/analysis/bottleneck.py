"""What held a point back, and by what one can tell: a pure function of numbers, each of which may be missing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from cadenza.analysis.evidence import Evidence, heat_share, is_stretch, take_part, twins
from cadenza.analysis.finding import Finding, unjudged
from cadenza.analysis.machine import Machine
from cadenza.analysis.reconciliation import Reconciliation

Kind = Literal[
    "client",
    "thermal throttle",
    "KV capacity",
    "queue",
    "straggler card",
    "host CPU",
    "network",
    "none",
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
# Nor does the power of cards of one product, which differs by a tenth between samples of it at the same work. It tells
# where a card that waits looks busy, as it does when it asks the others again and again whether they are done.
TWINS_SHARE = 0.2
# Sources of a card's busy share.
_CARDS = ("amdgpu", "nvml", "rocm_smi", "amd_smi", "smi")
# All cores together; a thread that has to wait for one delays every step.
CPU_BUSY_SHARE, CPU_STEAL_SHARE = 0.9, 0.05
# Cards that rest for less than this while there is work could give a quarter more at most.
REST_SHARE = 0.2
# An engine that has nothing to do for more than half of the time could take twice the load before it always had.
IDLE_SHARE = 0.5
# Prefill or decode that takes more than this of the time in which a request is worked on is where the time goes.
MAIN_SHARE = 0.5
# Memory that is read for less than half of the time would allow twice the pace.
MEMORY_BUSY_SHARE = 0.5
# A TPOT that grew by less is called ultra-flat: the batch costs its requests nothing that they would feel.
FLAT_PCT = 5.0


class Bottleneck(msgspec.Struct, frozen=True):
    """What gave way first, with a sentence for each piece of evidence; then what else holds, and what could not be
    ruled out. `none`: nothing did. `unknown`: the sentences say what is missing. The point's findings have numbers."""

    kind: Kind
    evidence: list[str]


def gather(machine: Machine, found: Reconciliation | None, client_limited: str | None) -> Evidence:
    """The evidence of one point, from what was seen; cards and host count only where they are the server's."""
    engine, host = machine.engine, machine.host if machine.server_here else None
    gpus = machine.gpus if machine.server_here else []
    group = take_part(gpus) if is_stretch(machine, *_CARDS) else []
    sampled = engine if is_stretch(machine, "engine") else None
    requests = found.requests.server if found is not None and found.requests is not None else 0
    preempted = None if engine is None or engine.preemptions is None or not requests else engine.preemptions / requests
    latency, ttft, itl = (None, None, None) if found is None else (found.latency, found.ttft, found.itl)
    return Evidence(
        client_limited=client_limited,
        heat_share={gpu.gpu: heat_share(gpu) for gpu in gpus if gpu.throttled_share is not None},
        kv_peak=None if engine is None else engine.kv_usage_peak,
        waiting_share=None if engine is None else engine.waiting_share,
        preempted_share=preempted,
        running_share=None if sampled is None else sampled.running_share,
        queue_ms=None if found is None else found.queue_ms,
        prefill_ms=None if found is None else found.prefill_ms,
        decode_ms=None if found is None else found.decode_ms,
        latency_ms=None if latency is None else latency.client_ms,
        latency_beyond_ms=None if latency is None else latency.beyond_ms,
        ttft_ms=None if ttft is None else ttft.client_ms,
        beyond_ms=None if ttft is None else ttft.beyond_ms,
        itl_ms=None if itl is None else itl.client_ms,
        itl_beyond_ms=None if itl is None else itl.beyond_ms,
        busy={gpu.gpu: gpu.busy_mean for gpu in group if gpu.busy_mean is not None},
        memory_busy={gpu.gpu: gpu.memory_busy_mean for gpu in group if gpu.memory_busy_mean is not None},
        twins_w=twins(group),
        cpu_busy=None if host is None else host.cpu_busy_mean,
        cpu_steal=None if host is None else host.cpu_steal_mean,
        no_card=host is not None and not gpus,
        virtual=machine.virtual,
    )


def find_bottleneck(evidence: Evidence) -> tuple[Bottleneck, list[Finding]]:
    """**Bottleneck**: the first of these that holds, in the order in which one explains the other.

    *client*: a check says CLIENT-LIMITED, and the figures are its own. *thermal throttle*: a card lowered
    its clock against heat. *KV capacity*: requests were preempted, or waited before a full KV cache. *queue*: requests
    waited most of the time, or for a good part of theirs, with room in the cache, and not for each other's prefill.
    *straggler card*: cards of one engine are not equally busy, or of one product and draw unlike power. *host CPU*: no
    core was free, and the cards rested while there was work; where no card was seen, busy cores may be the model's own,
    and count only if nothing else is known. *network*: a request took the client longer than the engine knows of.
    *none*: none of these, and the engine had nothing to do for more than half of the time. *prefill*, *decode
    bandwidth*: where the time in which a request was worked on went, if none of the above. *unknown*: the cards rested
    and nothing says why, or the evidence does not suffice.

    For how much of the time the engine had work is the share of samples in which a request ran. What else holds follows
    as `also`, in that order, be it a cause or a consequence; what comes before it and has no data is not ruled out.
    """
    for place, cause in enumerate(_CAUSES):
        if held := cause.holds(evidence):
            return _conclude(cause.kind, [*held, *_beside(evidence, place), *_not_ruled_out(evidence, place)])
    lacking = [
        name
        for name, value in (
            ("the engine's queue, prefill and decode times", evidence.decode_ms),
            ("its gauge of waiting requests", evidence.waiting_share),
            ("the cards", evidence.busy or None),
            ("the server's host", evidence.cpu_busy),
        )
        if value is None
    ]
    message = f"no data of {', '.join(lacking)}" if lacking else "no figure stands out"
    return _conclude("unknown", [unjudged("bottleneck-unknown", message)])


def _conclude(kind: Kind, findings: list[Finding]) -> tuple[Bottleneck, list[Finding]]:
    return Bottleneck(kind, [one.message for one in findings]), findings


def growth_of(bottleneck: Bottleneck, drift_pct: float, base: int) -> Finding | None:
    """Decode that bandwidth bounds grows with what a step reads, the KV cache of its batch: against C = `base`."""
    if bottleneck.kind != "decode bandwidth" or not drift_pct > 0:
        return None
    flat = f" (flat, < {FLAT_PCT:g} %)" if drift_pct < FLAT_PCT else ""
    return unjudged("tpot-growth", f"TPOT {drift_pct:+.1f} % vs C = {base}{flat}", drift_pct=drift_pct)


def _beside(evidence: Evidence, place: int) -> list[Finding]:
    """What else holds, and does not follow from what holds first. Prefill and decode always take some time."""
    kind = _CAUSES[place].kind
    passed = {kind, *_MAKES.get(kind, ())}
    others = []
    for cause in _CAUSES[place + 1 :]:
        if cause.is_cause and cause.kind not in passed and (held := cause.holds(evidence)):
            first = held[0]
            others.append(unjudged(first.code, f"also {cause.kind}: {first.message}", **first.numbers))
            passed |= {cause.kind, *_MAKES.get(cause.kind, ())}
    return others


def _not_ruled_out(evidence: Evidence, place: int) -> list[Finding]:
    blind = [cause.kind for cause in _CAUSES[:place] if cause.is_cause and not cause.is_known(evidence)]
    if not blind or evidence.virtual:
        return []
    return [unjudged("not-ruled-out", f"not ruled out (no data): {', '.join(blind)}")]


def _client(evidence: Evidence) -> list[Finding]:
    return [] if evidence.client_limited is None else [unjudged("client-limited", evidence.client_limited)]


def _thermal(evidence: Evidence) -> list[Finding]:
    hot = {gpu: share for gpu, share in evidence.heat_share.items() if share >= THROTTLED_SHARE}
    return [
        unjudged("thermal-throttle", f"{gpu}: clock reduced for heat, {100 * share:.0f} % of the time", share=share)
        for gpu, share in hot.items()
    ]


def _kv(evidence: Evidence) -> list[Finding]:
    held = []
    if evidence.preempted_share is not None and evidence.preempted_share >= PREEMPTED_SHARE:
        message = f"{evidence.preempted_share:.2f} preemptions a request: running ones lost their KV cache"
        held.append(unjudged("preemptions", message, per_request=evidence.preempted_share))
    full = evidence.kv_peak is not None and evidence.kv_peak >= KV_FULL
    if full:
        held += _waiting(evidence)
    if held and full and evidence.kv_peak is not None:
        held.append(unjudged("kv-cache", f"KV cache {100 * evidence.kv_peak:.0f} % full", peak_share=evidence.kv_peak))
    return held


def _waiting(evidence: Evidence) -> list[Finding]:
    """A queue, by its gauge and by its time; nothing where both are small."""
    held = []
    if evidence.waiting_share is not None and evidence.waiting_share >= WAITING_SHARE:
        message = f"requests waited in {100 * evidence.waiting_share:.0f} % of the samples"
        held.append(unjudged("waiting", message, share=evidence.waiting_share))
    share = _share(evidence, evidence.queue_ms)
    if share is not None and share >= QUEUE_SHARE:
        held.append(_time_in("queue", "the queue", evidence.queue_ms, share))
    return held


def _time_in(code: str, part: str, part_ms: float | None, share: float) -> Finding:
    message = f"{part} took {part_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"
    return unjudged(f"time-in-{code}", message, mean_ms=part_ms or 0.0, share=share)


def _queue(evidence: Evidence) -> list[Finding]:
    held = _waiting(evidence)
    if _is_main(evidence, evidence.prefill_ms):  # they wait for each other's prefill
        return []
    if held and evidence.kv_peak is not None:
        message = f"the KV cache had room ({100 * evidence.kv_peak:.0f} % full at most): the limit is max_num_seqs"
        held.append(unjudged("kv-cache", message, peak_share=evidence.kv_peak))
    return held


def _straggler(evidence: Evidence) -> list[Finding]:
    held = []
    if len(evidence.busy) > 1:
        low, high = _ends(evidence.busy)
        if high[1] - low[1] >= STRAGGLER_SHARE:
            message = (
                f"{high[0]} was busy for {100 * high[1]:.0f} % of the time, {low[0]} for {100 * low[1]:.0f} %: the "
                "others wait for the one that is busy"
            )
            held.append(unjudged("unequal-busy", message, highest_share=high[1], lowest_share=low[1]))
    for powers in evidence.twins_w:
        low, high = _ends(powers)
        if high[1] - low[1] >= TWINS_SHARE * high[1]:
            message = (
                f"{high[0]} drew {high[1]:.0f} W and {low[0]}, of the same product, {low[1]:.0f} W: it waits, or its "
                "clock is lower"
            )
            held.append(unjudged("unequal-power", message, highest_w=high[1], lowest_w=low[1]))
    return held


def _ends(by_card: Mapping[str, float]) -> tuple[tuple[str, float], tuple[str, float]]:
    """The card of the least value, and that of the most."""
    low, high = (pick(by_card.items(), key=lambda item: item[1]) for pick in (min, max))
    return low, high


def _host_cpu(evidence: Evidence) -> list[Finding]:
    """Cards that do not rest lack no core."""
    rested = _rested(evidence)
    if evidence.busy and evidence.running_share is not None and not rested:
        return []
    held = [] if evidence.no_card else _busy_cores(evidence)
    if evidence.cpu_steal is not None and evidence.cpu_steal >= CPU_STEAL_SHARE:
        message = f"{100 * evidence.cpu_steal:.0f} % of the cores' time went to other guests of the hypervisor"
        held.append(unjudged("cpu-steal", message, share=evidence.cpu_steal))
    return [*held, *rested] if held else []


def _busy_cores(evidence: Evidence) -> list[Finding]:
    if evidence.cpu_busy is None or evidence.cpu_busy < CPU_BUSY_SHARE:
        return []
    message = f"the cores of the server's machine were busy for {100 * evidence.cpu_busy:.0f} % of the time"
    message += ", and no card was seen: the model may run on them" if evidence.no_card else ""
    return [unjudged("cpu-busy", message, share=evidence.cpu_busy)]


def _rested(evidence: Evidence) -> list[Finding]:
    """Cards that rested while there was work."""
    work, busiest = evidence.running_share, _busiest(evidence)
    if work is None or busiest is None or work - busiest < REST_SHARE:
        return []
    message = f"the busiest card worked for {100 * busiest:.0f} % of the time"
    message += f", and there was a request to work on for {100 * work:.0f} %"
    return [unjudged("cards-rested", message, busy_share=busiest, work_share=work)]


def _network(evidence: Evidence) -> list[Finding]:
    whole_request = ("of a request", evidence.latency_beyond_ms, evidence.latency_ms)
    first = ("TTFT", evidence.beyond_ms, evidence.ttft_ms)
    parts = (first, ("ITL", evidence.itl_beyond_ms, evidence.itl_ms))
    if evidence.latency_ms is None:
        return _unseen_part(parts)
    held = _unseen_part((whole_request,))
    return [*held, *_unseen_part((first,))] if held else []


def _unseen_part(pairs: Sequence[tuple[str, float | None, float | None]]) -> list[Finding]:
    return [
        unjudged(
            "outside-engine",
            f"{beyond:.1f} of {whole:.1f} ms {name} at the client were not seen by the engine",
            beyond_ms=beyond,
            client_ms=whole,
        )
        for name, beyond, whole in pairs
        if beyond is not None and whole is not None and beyond >= max(NETWORK_MS, NETWORK_SHARE * whole)
    ]


def _idle(evidence: Evidence) -> list[Finding]:
    """By the cards, or else by how often there was a request in the batch."""
    work, busiest = evidence.running_share, _busiest(evidence)
    if work is None or _rested(evidence) or (work if busiest is None else busiest) >= IDLE_SHARE:
        return []
    message = f"there was a request to work on for {100 * work:.0f} % of the time"
    held = [unjudged("engine-busy", message, work_share=work)]
    if busiest is not None:
        message = f"the busiest card worked for {100 * busiest:.0f} % of the time"
        held.append(unjudged("card-busy", message, busy_share=busiest))
    if evidence.kv_peak is not None:
        message = f"KV cache {100 * evidence.kv_peak:.0f} % full at most"
        held.append(unjudged("kv-cache", message, peak_share=evidence.kv_peak))
    return held


def _resting(evidence: Evidence) -> list[Finding]:
    """Cards that rest are not what bounds prefill or decode, whose time it may be."""
    why = "no figure here shows what kept it from work (an engine thread at its limit, the interconnect)"
    return [unjudged(one.code, f"{one.message}: {why}", **one.numbers) for one in _rested(evidence)]


def _prefill(evidence: Evidence) -> list[Finding]:
    share = _share(evidence, evidence.prefill_ms)
    if share is None or not _is_main(evidence, evidence.prefill_ms):
        return []
    spent = _time_in("prefill", "prefill", evidence.prefill_ms, share)
    return [spent, *_waiting(evidence), *(_busy_cores(evidence) if evidence.no_card else [])]


def _decode(evidence: Evidence) -> list[Finding]:
    share = _share(evidence, evidence.decode_ms)
    if share is None or not _is_main(evidence, evidence.decode_ms):
        return []
    held = [_time_in("decode", "decode", evidence.decode_ms, share)]
    if evidence.waiting_share is not None:
        waiting = evidence.waiting_share
        message = f"requests waited in only {100 * waiting:.0f} % of the samples" if waiting else "no request waited"
        held.append(unjudged("waiting", message, share=waiting))
    if evidence.memory_busy:
        cards = ", ".join(f"{100 * busy:.0f} %" for busy in evidence.memory_busy.values())
        busiest = max(evidence.memory_busy.values())
        message = f"card memory busy for {cards} of the time"
        if busiest < MEMORY_BUSY_SHARE:
            message += "; memory bandwidth is not saturated: a step is bound by kernel launch or interconnect"
        held.append(unjudged("memory-busy", message, highest_share=busiest))
    return [*held, *(_busy_cores(evidence) if evidence.no_card else [])]


class _Cause(NamedTuple):
    """holds: the evidence for it, or none; is_known: whether there are figures to judge by; is_cause: something that
    gives way, and not where the time goes if nothing does."""

    kind: Kind
    holds: Callable[[Evidence], list[Finding]]
    is_known: Callable[[Evidence], bool] = lambda evidence: True
    is_cause: bool = True


# What is another's doing: who waits before a full cache is in a queue, and a client that is late reads late.
_MAKES: dict[Kind, tuple[Kind, ...]] = {"KV capacity": ("queue",), "client": ("network",)}
_CAUSES = (
    _Cause("client", _client),
    _Cause("thermal throttle", _thermal, lambda e: bool(e.heat_share)),
    _Cause("KV capacity", _kv, lambda e: e.preempted_share is not None or None not in (e.kv_peak, e.waiting_share)),
    _Cause("queue", _queue, lambda e: e.waiting_share is not None or e.queue_ms is not None),
    _Cause("straggler card", _straggler, lambda e: bool(e.busy)),
    _Cause("host CPU", _host_cpu, lambda e: e.cpu_busy is not None),
    _Cause("network", _network, lambda e: e.latency_beyond_ms is not None or e.beyond_ms is not None),
    _Cause("none", _idle, is_cause=False),
    _Cause("unknown", _resting, is_cause=False),
    _Cause("prefill", _prefill, is_cause=False),
    _Cause("decode bandwidth", _decode, is_cause=False),
    _Cause("host CPU", _busy_cores, is_cause=False),  # of a machine without a card, where the engine tells nothing
)


def _busiest(evidence: Evidence) -> float | None:
    return max(evidence.busy.values(), default=None)


def _share(evidence: Evidence, part_ms: float | None) -> float | None:
    """Of a request's time in the engine, queue to last token; None where one of its parts is not known."""
    parts = (evidence.queue_ms, evidence.prefill_ms, evidence.decode_ms)
    known = [part for part in parts if part is not None]
    total = sum(known)
    return part_ms / total if part_ms is not None and len(known) == len(parts) and total > 0 else None


def _is_main(evidence: Evidence, part_ms: float | None) -> bool:
    """Whether most of the time in which a request is worked on, prefill and decode, is this part."""
    if part_ms is None or evidence.prefill_ms is None or evidence.decode_ms is None:
        return False
    worked_ms = evidence.prefill_ms + evidence.decode_ms
    return worked_ms > 0 and part_ms >= MAIN_SHARE * worked_ms
