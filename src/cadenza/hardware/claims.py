"""Printed figures and claims of a published configuration, judged by physics; a sentence for each disagreement."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cadenza.hardware import catalogue
from cadenza.hardware.architecture import Architecture
from cadenza.hardware.memory import GIB, room
from cadenza.hardware.predict import name_bottleneck
from cadenza.hardware.published import (
    AnyClaim,
    ComputeBound,
    ConcurrencyLimit,
    FasterThan,
    Gain,
    LinkShare,
    ModelSize,
    PublishedComparison,
    PublishedConfiguration,
    Stall,
)
from cadenza.hardware.step import StepModel, StepTime, decode_batch
from cadenza.hardware.system import EAGER, GRAPH, IDEAL, System, best_shares, split_text, system

# Printed within this share of a figure is no disagreement.
SAME = 0.05


class Case(NamedTuple):
    """One configuration: as printed, and the systems it is predicted on. machine: with the measured one's overheads"""

    published: PublishedComparison
    printed: PublishedConfiguration
    architecture: Architecture
    physics: System
    machine: System | None
    sequences: int

    @property
    def systems(self) -> list[System]:
        return [self.physics] if self.machine is None else [self.physics, self.machine]

    def beside(self, figures: list[str]) -> str:
        """`A by physics, B on that machine`."""
        names = ("by physics", f"on {self.published.machine.name}" if self.published.machine else "")
        return ", ".join(f"{figure} {name}" for figure, name in zip(figures, names, strict=False))


def case_of(published: PublishedComparison, printed: PublishedConfiguration) -> Case:
    """The systems that `printed` is predicted on."""
    architecture = catalogue.model(printed.model)
    physics = system(printed.devices, host=EAGER if published.eager else GRAPH)
    plan = room(physics, architecture, published.gpu_memory_utilization)
    machine = machine_system(published, printed, architecture)
    return Case(published, printed, architecture, physics, machine, plan.sequences(published.context_tok))


def machine_system(
    published: PublishedComparison, printed: PublishedConfiguration, architecture: Architecture
) -> System | None:
    """The cards with the measured machine's own time a step; None: the file does not have it for all of them."""
    machine = published.machine
    if machine is None or any(name not in machine.own_step_s for name in printed.devices):
        return None
    devices = [
        msgspec.structs.replace(
            catalogue.device(name),
            bandwidth_efficiency=1.0,
            dispatch_s_per_layer=machine.own_step_s[name] / architecture.layers,
        )
        for name in printed.devices
    ]
    host = msgspec.structs.replace(IDEAL, name=machine.name)
    return system(devices, link=machine.link if len(devices) > 1 else None, host=host)


def tok_per_s(system: System, architecture: Architecture, concurrency: int, context_tok: int) -> float:
    """Output tokens a second of `concurrency` sequences that hold `context_tok` each, decoding."""
    return concurrency / StepModel(system, architecture).seconds(decode_batch(concurrency, context_tok))


def step_of(system: System, case: Case) -> StepTime:
    """A step of a single stream."""
    return StepModel(system, case.architecture).time(decode_batch(1, case.published.context_tok))


def judge_figures(case: Case) -> Iterator[str]:
    """What the printed figures of any configuration contradict: memory, single stream, scaling, the even split."""
    printed, shape, context = case.printed, case.architecture, case.published.context_tok
    plan = room(case.physics, shape, case.published.gpu_memory_utilization)
    if not plan.fits:
        yield f"does not fit: {plan.reason}. The printed figures are of another model, precision or share of the memory"
    physics = tok_per_s(case.physics, shape, 1, context)
    if abs(physics / printed.single_stream_tok_per_s - 1) > SAME:
        yield (
            f"single stream: printed {printed.single_stream_tok_per_s:g} tok/s, a step of "
            f"{1e3 / printed.single_stream_tok_per_s:.1f} ms; by physics {physics:.1f} tok/s, {1e3 / physics:.1f} ms. "
            "The difference is the machine's own: its host or its kernels"
        )
    if case.machine is not None:
        known = tok_per_s(case.machine, shape, 1, context)
        missing_s = 1 / printed.single_stream_tok_per_s - 1 / known
        if missing_s * known > SAME:
            yield (
                f"single stream: {1e3 * missing_s:.0f} ms a step more than that machine's known overheads, "
                f"{1e3 * missing_s / shape.layers:.1f} ms a layer"
            )
    yield _scaling(case)
    yield f"stated bottleneck: {printed.stated_bottleneck}; " + case.beside(
        [name_bottleneck(step_of(system, case)) for system in case.systems]
    )
    if len(case.physics.devices) > 1:
        best = msgspec.structs.replace(case.physics, shares=best_shares(case.physics.devices))
        if not case.physics.even or best.shares == case.physics.shares:
            return
        gain = 100 * (tok_per_s(best, shape, 1, context) / physics - 1)
        fits = "fits" if room(best, shape, case.published.gpu_memory_utilization).fits else "does not fit"
        yield (
            f"an even split is not the best one: {split_text(best.shares)} {fits} and changes a single stream by "
            f"{gain:+.0f} % by physics (vLLM splits evenly)"
        )


def _scaling(case: Case) -> str:
    printed, shape, peak = case.printed, case.architecture, case.printed.peak_concurrency
    context = case.published.context_tok
    times = printed.peak_tok_per_s / printed.single_stream_tok_per_s
    predicted = [
        tok_per_s(system, shape, peak, context) / tok_per_s(system, shape, 1, context) for system in case.systems
    ]
    sentence = (
        f"scaling: printed {times:.2f} times a single stream at C = {peak}, {100 * times / peak:.0f} % of linear; "
        + case.beside([f"{value:.2f} times" for value in predicted])
    )
    if shape.experts:
        bytes_times = shape.read_bytes_per_step(peak) / shape.read_bytes_per_step(1)
        sentence += (
            f". {peak} tokens meet {shape.distinct_experts(peak):.0f} of {shape.experts} experts a layer, one meets "
            f"{shape.active_experts}: {bytes_times:.1f} times the bytes"
        )
    return sentence


def judge(claim: AnyClaim, case: Case) -> str:
    """The sentence for one claim. UsageError: it names a link or a device that the catalogue does not have."""
    match claim:
        case ComputeBound():
            return _compute_bound(case)
        case ConcurrencyLimit():
            rates = [tok_per_s(one, case.architecture, claim.next, case.published.context_tok) for one in case.systems]
            return (
                f"C = {case.printed.peak_concurrency} as the limit: the KV cache holds {case.sequences} sequences of "
                f"{case.published.context_tok} tokens; C = {claim.next} gives "
                + case.beside([f"{rate:.0f} tok/s" for rate in rates])
            )
        case FasterThan():
            return _faster_than(claim, case)
        case Gain():
            return _gain(claim, case)
        case LinkShare():
            return _link_share(claim, case)
        case ModelSize():
            each = claim.parameters * claim.bytes_per_weight / len(case.physics.devices) / GIB
            least = min(device.vram_bytes for device in case.physics.devices) / GIB
            budget = case.published.gpu_memory_utilization * least
            return (
                f"a dense model of {claim.parameters / 1e9:g} B: {each:.1f} GiB of weights a card, and "
                f"{case.published.gpu_memory_utilization:g} of {least:.0f} GiB is {budget:.1f} GiB: it "
                + ("fits before any KV cache" if each < budget else "does not fit")
            )
        case Stall():
            rank = case.printed.devices.index(claim.device)
            by_memory = 100 * max(0.0, 1 - _slowest_bandwidth(case) / case.physics.devices[rank].bandwidth_bytes_per_s)
            shares = [f"{100 * step_of(one, case).ranks[rank].stall_share:.1f} %" for one in case.systems]
            return (
                f"{claim.device} waits for {claim.percent:g} % of a layer: by bandwidth alone {by_memory:.0f} %, "
                + case.beside(shares)
            )


def _slowest_bandwidth(case: Case) -> float:
    return min(device.bandwidth_bytes_per_s for device in case.physics.devices)


def _compute_bound(case: Case) -> str:
    flop_per_s = case.printed.peak_tok_per_s * case.architecture.flop_per_tok
    share = 100 * flop_per_s / sum(device.fp16_flop_per_s for device in case.physics.devices)
    return (
        f"compute bound: {case.printed.peak_tok_per_s:g} tok/s are {flop_per_s / 1e12:.2f} TFLOPS, "
        f"{share:.1f} % of the peak of its cards"
    )


def _faster_than(claim: FasterThan, case: Case) -> str:
    other = case.published.configuration(claim.other)
    here = sum(device.bandwidth_bytes_per_s for device in case.physics.devices) / 1e9
    there = sum(catalogue.device(name).bandwidth_bytes_per_s for name in other.devices) / 1e9
    faster = case.printed.single_stream_tok_per_s > other.single_stream_tok_per_s
    verdict = (
        "memory bandwidth sets this order" if faster == (here > there) else "memory bandwidth did not set the pace"
    )
    return (
        f"printed {case.printed.single_stream_tok_per_s:g} tok/s against {other.single_stream_tok_per_s:g} of "
        f"{other.name}, with {here:.0f} against {there:.0f} GB/s: {verdict}"
    )


def _gain(claim: Gain, case: Case) -> str:
    other = case_of(case.published, case.published.configuration(claim.over))
    printed = 100 * (case.printed.peak_tok_per_s / other.printed.peak_tok_per_s - 1)
    fair = 100 * (claim.tok_per_s / other.printed.peak_tok_per_s - 1)
    context = case.published.context_tok
    predicted = [
        100
        * (
            tok_per_s(one, case.architecture, claim.concurrency, context)
            / tok_per_s(base, other.architecture, claim.concurrency, context)
            - 1
        )
        for one, base in zip(case.systems, other.systems, strict=True)
    ]
    return (
        f"at equal concurrency {fair:+.0f} %: {claim.tok_per_s:g} against {other.printed.peak_tok_per_s:g} tok/s at "
        f"C = {claim.concurrency}; the printed {printed:+.0f} % compares C = {case.printed.peak_concurrency} with C = "
        f"{other.printed.peak_concurrency}. Predicted at C = {claim.concurrency}: "
        + case.beside([f"{value:+.0f} %" for value in predicted])
    )


def _link_share(claim: LinkShare, case: Case) -> str:
    shape, calls = case.architecture, 2 * case.architecture.layers
    size = shape.hidden * 2
    wire_s = claim.all_reduces * size / catalogue.link(claim.link).bandwidth_bytes_per_s
    shares = [f"{100 * step_of(one, case).link_share:.1f} %" for one in case.systems]
    return (
        f"{claim.percent:g} % on the link is {claim.all_reduces} all-reduces of {size // 1024} KiB, {1e6 * wire_s:.1f} "
        f"µs of {claim.step_ms:g} ms. There are {calls}, each with a latency: the link takes " + case.beside(shares)
    )
