"""What held a point back, and by what one can tell: a pure function of numbers, each of which may be missing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from cadenza.analysis.evidence import Evidence, heat_share, is_stretch, take_part, twins
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
    """What gave way first, and a sentence for each thing that says so; then what was found beside it, and what could
    not be ruled out. `none`: nothing did. `unknown`: the sentences say what is missing."""

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


def find_bottleneck(evidence: Evidence) -> Bottleneck:
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

    For how much of the time the engine had work is the share of samples in which a request ran. What holds besides, in
    that order, is told beside it, be it a cause or a consequence; what comes before it and could not be looked at is
    told as not ruled out.
    """
    for place, look in enumerate(_LOOKS):
        if told := look.holds(evidence):
            return Bottleneck(look.kind, [*told, *_beside(evidence, place), *_not_ruled_out(evidence, place)])
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
    return Bottleneck("unknown", [f"nothing was seen of {', '.join(lacking)}" if lacking else "nothing stands out"])


def add_growth(found: Bottleneck, drift_pct: float, base: int) -> Bottleneck:
    """Decode that bandwidth bounds grows with what a step reads, the KV cache of its batch: against C = `base`."""
    if found.kind != "decode bandwidth" or not drift_pct > 0:
        return found
    flat = ", which no request feels: it has not given way" if drift_pct < FLAT_PCT else ""
    return Bottleneck(found.kind, [*found.evidence, f"TPOT is {drift_pct:+.1f} % against C = {base}{flat}"])


def _beside(evidence: Evidence, place: int) -> list[str]:
    """What else holds, and is not the doing of what has been told. Prefill and decode are always somewhere."""
    kind = _LOOKS[place].kind
    passed = {kind, *_MAKES.get(kind, ())}
    beside = []
    for look in _LOOKS[place + 1 :]:
        if look.is_cause and look.kind not in passed and (told := look.holds(evidence)):
            beside.append(f"beside it, {look.kind}: {told[0]}")
            passed |= {look.kind, *_MAKES.get(look.kind, ())}
    return beside


def _not_ruled_out(evidence: Evidence, place: int) -> list[str]:
    blind = [look.kind for look in _LOOKS[:place] if look.is_cause and not look.is_known(evidence)]
    return [f"not ruled out, for want of figures: {', '.join(blind)}"] if blind and not evidence.virtual else []


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
    if full:
        told += _waiting(evidence)
    if full and told:
        told.append(f"the KV cache was {100 * (evidence.kv_peak or 0):.0f} % full")
    return told


def _waiting(evidence: Evidence) -> list[str]:
    """That there was a queue, by its gauge and by its time; nothing where there was none worth a word."""
    told = []
    if evidence.waiting_share is not None and evidence.waiting_share >= WAITING_SHARE:
        told.append(f"requests waited in {100 * evidence.waiting_share:.0f} % of the samples")
    share = _share(evidence, evidence.queue_ms)
    if share is not None and share >= QUEUE_SHARE:
        told.append(
            f"the queue took {evidence.queue_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"
        )
    return told


def _queue(evidence: Evidence) -> list[str]:
    told = _waiting(evidence)
    if _is_main(evidence, evidence.prefill_ms):  # they wait for each other's prefill
        return []
    if told and evidence.kv_peak is not None:
        told.append(f"the KV cache had room ({100 * evidence.kv_peak:.0f} % full at most): the limit is max_num_seqs")
    return told


def _straggler(evidence: Evidence) -> list[str]:
    told = []
    if len(evidence.busy) > 1:
        low, high = _ends(evidence.busy)
        if high[1] - low[1] >= STRAGGLER_SHARE:
            told.append(
                f"{high[0]} was busy for {100 * high[1]:.0f} % of the time, {low[0]} for {100 * low[1]:.0f} %: the "
                "others wait for the one that is busy"
            )
    for powers in evidence.twins_w:
        low, high = _ends(powers)
        if high[1] - low[1] >= TWINS_SHARE * high[1]:
            told.append(
                f"{high[0]} drew {high[1]:.0f} W and {low[0]}, of the same product, {low[1]:.0f} W: it waits, or its "
                "clock is lower"
            )
    return told


def _ends(by_card: Mapping[str, float]) -> tuple[tuple[str, float], tuple[str, float]]:
    """The card of the least value, and that of the most."""
    low, high = (pick(by_card.items(), key=lambda item: item[1]) for pick in (min, max))
    return low, high


def _host_cpu(evidence: Evidence) -> list[str]:
    """Cards that do not rest lack no core."""
    rested = _rested(evidence)
    if evidence.busy and evidence.running_share is not None and not rested:
        return []
    told = [] if evidence.no_card else _busy_cores(evidence)
    if evidence.cpu_steal is not None and evidence.cpu_steal >= CPU_STEAL_SHARE:
        told.append(f"{100 * evidence.cpu_steal:.0f} % of the cores' time went to other guests of the hypervisor")
    return [*told, *rested] if told else []


def _busy_cores(evidence: Evidence) -> list[str]:
    if evidence.cpu_busy is None or evidence.cpu_busy < CPU_BUSY_SHARE:
        return []
    told = f"the cores of the server's machine were busy for {100 * evidence.cpu_busy:.0f} % of the time"
    return [f"{told}, and no card was seen: the model may run on them" if evidence.no_card else told]


def _rested(evidence: Evidence) -> list[str]:
    """That the cards rested while there was work."""
    work, busiest = evidence.running_share, _busiest(evidence)
    if work is None or busiest is None or work - busiest < REST_SHARE:
        return []
    told = f"the busiest card worked for {100 * busiest:.0f} % of the time"
    return [f"{told}, and there was a request to work on for {100 * work:.0f} %"]


def _network(evidence: Evidence) -> list[str]:
    whole_request = ("of a request", evidence.latency_beyond_ms, evidence.latency_ms)
    first = ("TTFT", evidence.beyond_ms, evidence.ttft_ms)
    parts = (first, ("ITL", evidence.itl_beyond_ms, evidence.itl_ms))
    if evidence.latency_ms is None:
        return _unseen_part(parts)
    held = _unseen_part((whole_request,))
    return [*held, *_unseen_part((first,))] if held else []


def _unseen_part(pairs: Sequence[tuple[str, float | None, float | None]]) -> list[str]:
    return [
        f"{beyond:.1f} of {whole:.1f} ms {name} at the client were not seen by the engine"
        for name, beyond, whole in pairs
        if beyond is not None and whole is not None and beyond >= max(NETWORK_MS, NETWORK_SHARE * whole)
    ]


def _idle(evidence: Evidence) -> list[str]:
    """By the cards, or else by how often there was a request in the batch."""
    work, busiest = evidence.running_share, _busiest(evidence)
    if work is None or _rested(evidence) or (work if busiest is None else busiest) >= IDLE_SHARE:
        return []
    told = [f"there was a request to work on for {100 * work:.0f} % of the time"]
    if busiest is not None:
        told.append(f"the busiest card worked for {100 * busiest:.0f} % of the time")
    if evidence.kv_peak is not None:
        told.append(f"the KV cache was {100 * evidence.kv_peak:.0f} % full at most")
    return told


def _resting(evidence: Evidence) -> list[str]:
    """Cards that rest are not what bounds prefill or decode, whose time it may be."""
    why = "what kept it from work is in none of these figures (a thread of the engine at its limit, a link)"
    return [f"{told}: {why}" for told in _rested(evidence)]


def _prefill(evidence: Evidence) -> list[str]:
    share = _share(evidence, evidence.prefill_ms)
    if share is None or not _is_main(evidence, evidence.prefill_ms):
        return []
    told = f"prefill took {evidence.prefill_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"
    return [told, *_waiting(evidence), *(_busy_cores(evidence) if evidence.no_card else [])]


def _decode(evidence: Evidence) -> list[str]:
    share = _share(evidence, evidence.decode_ms)
    if share is None or not _is_main(evidence, evidence.decode_ms):
        return []
    told = [f"decode took {evidence.decode_ms:.0f} ms of a request, {100 * share:.0f} % of its time in the engine"]
    if evidence.waiting_share is not None:
        waiting = evidence.waiting_share
        told.append(f"requests waited in only {100 * waiting:.0f} % of the samples" if waiting else "no request waited")
    if evidence.memory_busy:
        cards = ", ".join(f"{100 * busy:.0f} %" for busy in evidence.memory_busy.values())
        spare = max(evidence.memory_busy.values()) < MEMORY_BUSY_SHARE
        elsewhere = ", so that a step waits for more than that (the start of kernels, the link between cards)"
        told.append(f"the cards' memory was busy for {cards} of the time{elsewhere if spare else ''}")
    return [*told, *(_busy_cores(evidence) if evidence.no_card else [])]


class _Look(NamedTuple):
    """holds: the sentences that say so, or none; is_known: whether there are figures to tell by; is_cause: something
    that gives way, and not where the time goes if nothing does."""

    kind: Kind
    holds: Callable[[Evidence], list[str]]
    is_known: Callable[[Evidence], bool] = lambda evidence: True
    is_cause: bool = True


# What is another's doing: who waits before a full cache is in a queue, and a client that is late reads late.
_MAKES: dict[Kind, tuple[Kind, ...]] = {"KV capacity": ("queue",), "client": ("network",)}
_LOOKS = (
    _Look("client", _client),
    _Look("thermal throttle", _thermal, lambda e: bool(e.heat_share)),
    _Look("KV capacity", _kv, lambda e: e.preempted_share is not None or None not in (e.kv_peak, e.waiting_share)),
    _Look("queue", _queue, lambda e: e.waiting_share is not None or e.queue_ms is not None),
    _Look("straggler card", _straggler, lambda e: bool(e.busy)),
    _Look("host CPU", _host_cpu, lambda e: e.cpu_busy is not None),
    _Look("network", _network, lambda e: e.latency_beyond_ms is not None or e.beyond_ms is not None),
    _Look("none", _idle, is_cause=False),
    _Look("unknown", _resting, is_cause=False),
    _Look("prefill", _prefill, is_cause=False),
    _Look("decode bandwidth", _decode, is_cause=False),
    _Look("host CPU", _busy_cores, is_cause=False),  # of a machine without a card, where the engine tells nothing
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
