"""What a configuration would do before it is bought: does it fit, how fast is it, what holds it back, what would help.

Everything here is predicted from data sheets and shapes; nothing is measured, nothing is fitted to a published table.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from cadenza.hardware import catalogue
from cadenza.hardware.architecture import Architecture
from cadenza.hardware.memory import MemoryPlan, room
from cadenza.hardware.step import Bottleneck, StepModel, StepTime, decode_batch, prefill_batch
from cadenza.hardware.system import EAGER, GRAPH, System, best_shares, split_text

LABEL = "predicted (physics), not measured"
# Throughput within 5 % of its peak counts as flat.
_FLAT = 0.95
_BUSES = ("pcie4-host-staged", "pcie4-x8", "pcie4-x16", "pcie5-x16")
_NAMED: dict[Bottleneck, str] = {
    "memory": "memory bandwidth of {}",
    "compute": "compute of {}",
    "launch": "kernel launches on {}",
    "link": "the link",
    "host": "the host",
}


class PredictedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding at one concurrency: `running` of `concurrency` requests are in a step, `limited_by` queues the rest."""

    concurrency: int
    running: int
    tok_per_s: float
    tpot_ms: float
    limited_by: Literal["", "kv room", "max_num_seqs"]


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The best decode throughput, at `concurrency`; from `flat_from` on it is within 5 % of that.

    limited_by   what keeps the concurrency from growing: the KV room or max_num_seqs
    flat         whether growing would hardly help: 5 % for twice the concurrency
    """

    concurrency: int
    tok_per_s: float
    limited_by: Literal["kv room", "max_num_seqs"]
    flat_from: int
    flat: bool


Kind = Literal["split", "link", "alone", "host", "precision"]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """One change, and what it does: tok/s alone and at the peak, in % of what is (None where either does not fit)."""

    kind: Kind
    change: str
    fits: bool
    reason: str
    single_tok_per_s: float | None
    peak_tok_per_s: float | None
    single_pct: float | None
    peak_pct: float | None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Where the configuration does not fit, `points` is empty and what follows from them is None.

    context_tok    tokens of KV that each running sequence holds and a step reads
    sequences      sequences of that length that the KV room holds
    bottleneck     of a single stream; `peak_bottleneck` at the peak
    straggler_share  part of each layer for which the fastest rank waits, in a single stream
    ttft_ms        of a prompt of `prompt_tok` tokens on an idle server
    """

    label: str = LABEL
    hardware: str
    model: str
    tensor_parallel: int
    split: tuple[float, ...]
    link: str | None
    host: str
    context_tok: int
    prompt_tok: int
    max_num_seqs: int
    max_num_batched_tokens: int
    memory: MemoryPlan
    fits: bool
    reason: str
    sequences: int
    points: tuple[PredictedLoad, ...] = ()
    peak: Peak | None = None
    single_tok_per_s: float | None = None
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    step: StepTime | None = None
    straggler_share: float | None = None
    link_share: float | None = None
    bottleneck: str | None = None
    peak_bottleneck: str | None = None
    what_ifs: tuple[WhatIf, ...] = ()


class _Change(NamedTuple):
    """Another system, or the same with another form of the model."""

    kind: Kind
    description: str
    system: System
    architecture: Architecture | None = None


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's flags that matter here, as vLLM spells them; see `default_limits`."""

    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256


def default_limits(system: System, utilisation: float = 0.92) -> SchedulerLimits:
    """vLLM 0.32's by the smallest card: from 160 GiB 16384/1024, from 70 GiB (no A100) 8192/1024, else 2048/256."""
    smallest = min(device.vram_bytes for device in system.devices) / (1 << 30)
    small = smallest < 70 or any("a100" in device.title.casefold() for device in system.devices)
    tokens, seqs = (2048, 256) if small else (16384 if smallest >= 160 else 8192, 1024)
    return SchedulerLimits(gpu_memory_utilization=utilisation, max_num_batched_tokens=tokens, max_num_seqs=seqs)


def predict(
    system: System,
    architecture: Architecture,
    concurrency: Sequence[int] = (1, 2, 4, 8, 16),
    *,
    context_tok: int = 1024,
    prompt_tok: int = 512,
    limits: SchedulerLimits | None = None,
) -> Prediction:
    """Predict decoding at each concurrency, its peak, and TTFT; with what-ifs. Raises UsageError by `System.check`.

    Throughput is of decoding alone: prompts of new requests take steps of their own, see `ttft_ms`.
    """
    limits = limits or default_limits(system)
    found = _outcome(system, architecture, tuple(concurrency), context_tok, prompt_tok, limits)
    changes = _changes(system, architecture) if found.fits else _remedies(system, architecture)
    what_ifs = tuple(_compare(found, change, limits, architecture) for change in changes)
    return msgspec.structs.replace(found, what_ifs=what_ifs)


def _outcome(
    system: System,
    architecture: Architecture,
    concurrency: tuple[int, ...],
    context_tok: int,
    prompt_tok: int,
    limits: SchedulerLimits,
) -> Prediction:
    memory = room(
        system,
        architecture,
        limits.gpu_memory_utilization,
        limits.block_size,
        limits.max_num_batched_tokens,
        limits.max_num_seqs,
    )
    sequences = memory.sequences(context_tok)
    reason = memory.reason
    if memory.fits and not sequences:
        reason = f"the KV cache holds {memory.kv_tok:,} tokens: no sequence of {context_tok:,}"
    found = Prediction(
        hardware=system.title,
        model=architecture.hf_name,
        tensor_parallel=system.ranks,
        split=system.shares,
        link=system.link.title if system.link else None,
        host=system.host.name,
        context_tok=context_tok,
        prompt_tok=prompt_tok,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        memory=memory,
        fits=sequences > 0,
        reason=reason,
        sequences=sequences,
    )
    if not sequences:
        return found
    model = StepModel(system, architecture)
    step = model.time(decode_batch(1, context_tok))
    peak = _peak(model, context_tok, sequences, limits.max_num_seqs)
    return msgspec.structs.replace(
        found,
        points=tuple(_point(model, c, context_tok, sequences, limits.max_num_seqs) for c in concurrency),
        peak=peak,
        single_tok_per_s=1 / step.total_s,
        tpot_ms=1e3 * step.total_s,
        ttft_ms=1e3 * ttft_s(model, prompt_tok, limits.max_num_batched_tokens, system.host.request_s),
        step=step,
        straggler_share=max(rank.stall_share for rank in step.ranks),
        link_share=step.link_share,
        bottleneck=name_bottleneck(step),
        peak_bottleneck=name_bottleneck(model.time(decode_batch(peak.concurrency, context_tok))),
    )


def ttft_s(model: StepModel, prompt_tok: int, batched_tok: int, request_s: float = 0.0) -> float:
    """Time to the first token on an idle server: the request's own cost and its prompt, `batched_tok` tokens a step."""
    starts = range(0, prompt_tok, batched_tok)
    steps = (model.seconds(prefill_batch(min(batched_tok, prompt_tok - start), start)) for start in starts)
    return request_s + sum(steps)


def name_bottleneck(step: StepTime) -> str:
    """The largest part of the step in words, with its share of it."""
    slowest = step.slowest
    parts: dict[Bottleneck, float] = {
        "memory": slowest.memory_s,
        "compute": slowest.compute_s,
        "launch": slowest.overhead_s,
        "link": step.collectives_s,
        "host": step.host_s,
    }
    share = parts[step.bottleneck] / step.total_s
    return f"{_NAMED[step.bottleneck].format(slowest.device)} ({100 * share:.0f} % of a step)"


def _point(model: StepModel, concurrency: int, context_tok: int, sequences: int, max_num_seqs: int) -> PredictedLoad:
    running = min(concurrency, sequences, max_num_seqs)
    seconds = model.seconds(decode_batch(running, context_tok))
    limited: Literal["kv room", "max_num_seqs"] = "kv room" if sequences < max_num_seqs else "max_num_seqs"
    return PredictedLoad(
        concurrency=concurrency,
        running=running,
        tok_per_s=running / seconds,
        tpot_ms=1e3 * seconds,
        limited_by=limited if running < concurrency else "",
    )


def _peak(model: StepModel, context_tok: int, sequences: int, max_num_seqs: int) -> Peak:
    most = min(sequences, max_num_seqs)
    rates = [c / model.seconds(decode_batch(c, context_tok)) for c in range(1, most + 1)]
    best = max(rates)
    flat_from = next(c for c, rate in enumerate(rates, 1) if rate >= _FLAT * best)
    return Peak(
        concurrency=rates.index(best) + 1,
        tok_per_s=best,
        limited_by="kv room" if sequences < max_num_seqs else "max_num_seqs",
        flat_from=flat_from,
        flat=2 * flat_from <= most,
    )


def _changes(system: System, architecture: Architecture) -> list[_Change]:
    """The changes worth telling: the split by bandwidth, other links, each card alone, the other way to launch."""
    replace = msgspec.structs.replace
    changes = _splits(system, architecture)
    if system.link is not None:
        for name in dict.fromkeys([*_BUSES, *(device.link for device in system.devices)]):
            link = catalogue.link(name)
            if link.name != system.link.name:
                changes.append(_Change("link", link.title, replace(system, link=link)))
        for device in dict.fromkeys(system.devices):
            alone = replace(system, devices=(device,), shares=(1.0,), link=None)
            changes.append(_Change("alone", f"{device.title} alone", alone))
    if system.host == GRAPH:
        changes.append(_Change("host", "kernels launched one by one (--enforce-eager)", replace(system, host=EAGER)))
    elif system.host == EAGER:
        changes.append(_Change("host", "kernels launched as graphs", replace(system, host=GRAPH)))
    return changes


def _remedies(system: System, architecture: Architecture) -> list[_Change]:
    """What could make a model fit: the split by bandwidth, and weights of 8 or 4 bits."""
    changes = _splits(system, architecture)
    for width, name in ((1.0, "weights in 8 bits (FP8)"), (0.5, "weights in 4 bits (INT4)")):
        if width < architecture.bytes_per_weight:
            smaller = msgspec.structs.replace(architecture, bytes_per_weight=width)
            changes.append(_Change("precision", name, system, smaller))
    return changes


def _splits(system: System, architecture: Architecture) -> list[_Change]:
    best = best_shares(system.devices)
    same = max(abs(a - b) for a, b in zip(best, system.shares, strict=True)) < 1e-3
    if same or min(best) * architecture.heads < 1:
        return []
    split = msgspec.structs.replace(system, shares=best)
    return [_Change("split", f"split {split_text(best)}, by memory bandwidth", split)]


def _compare(found: Prediction, change: _Change, limits: SchedulerLimits, architecture: Architecture) -> WhatIf:
    shape = change.architecture or architecture
    then = _outcome(change.system, shape, (), found.context_tok, found.prompt_tok, limits)
    peak = then.peak.tok_per_s if then.peak else None
    return WhatIf(
        kind=change.kind,
        change=change.description,
        fits=then.fits,
        reason=then.reason,
        single_tok_per_s=then.single_tok_per_s,
        peak_tok_per_s=peak,
        single_pct=_change_pct(then.single_tok_per_s, found.single_tok_per_s),
        peak_pct=_change_pct(peak, found.peak.tok_per_s if found.peak else None),
    )


def _change_pct(then: float | None, now: float | None) -> float | None:
    return None if then is None or now is None else 100 * (then / now - 1)
