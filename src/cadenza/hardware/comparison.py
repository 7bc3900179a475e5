"""A published comparison beside what physics says of each configuration.

Two systems are compared with each printed row. `physics`: the cards' data sheets, tuned to nothing. `machine`: the same
cards with the overheads of the measured machine, where the file has them; these follow from printed figures, which it
therefore repeats. Its other figures are predictions.
"""

import msgspec

from cadenza.hardware.claims import Case, case_of, judge, judge_figures, step_of, tok_per_s
from cadenza.hardware.memory import room
from cadenza.hardware.predict import LABEL, name_bottleneck
from cadenza.hardware.published import PublishedComparison, PublishedConfiguration
from cadenza.hardware.system import System


class ModelledConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration as a model sees it. Speeds are given even where it does not fit: as if it did.

    at_peak_tok_per_s  at the printed peak's concurrency
    stall              part of a layer for which each rank waits for the slowest, single stream
    """

    host: str
    single_tok_per_s: float
    at_peak_tok_per_s: float
    stall: tuple[float, ...]
    link_share: float
    bottleneck: str


class ComparedConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration: printed, predicted, and where they differ. sequences: that the KV cache holds"""

    printed: PublishedConfiguration
    model: str
    fits: bool
    reason: str
    sequences: int
    physics: ModelledConfiguration
    machine: ModelledConfiguration | None
    disagreements: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All configurations, in the published order. machine: what its column is called; None: there is none"""

    label: str
    title: str
    source: str
    gpu_memory_utilization: float
    context_tok: int
    machine: str | None
    configurations: tuple[ComparedConfiguration, ...]


def compare(published: PublishedComparison) -> Comparison:
    """Each configuration beside its predictions. UsageError: a device, model or link that is not in the catalogue."""
    return Comparison(
        label=LABEL,
        title=published.title,
        source=published.source,
        gpu_memory_utilization=published.gpu_memory_utilization,
        context_tok=published.context_tok,
        machine=None if published.machine is None else published.machine.name,
        configurations=tuple(_compare(case_of(published, printed)) for printed in published.configurations),
    )


def _compare(case: Case) -> ComparedConfiguration:
    plan = room(case.physics, case.architecture, case.published.gpu_memory_utilization)
    sentences = [*judge_figures(case), *(judge(claim, case) for claim in case.printed.claims), *case.printed.notes]
    return ComparedConfiguration(
        printed=case.printed,
        model=case.architecture.hf_name,
        fits=plan.fits,
        reason=plan.reason,
        sequences=case.sequences,
        physics=_modelled(case.physics, case),
        machine=None if case.machine is None else _modelled(case.machine, case),
        disagreements=tuple(sentences),
    )


def _modelled(which: System, case: Case) -> ModelledConfiguration:
    step = step_of(which, case)
    return ModelledConfiguration(
        host=which.host.name,
        single_tok_per_s=1 / step.total_s,
        at_peak_tok_per_s=tok_per_s(
            which, case.architecture, case.printed.peak_concurrency, case.published.context_tok
        ),
        stall=tuple(rank.stall_share for rank in step.ranks),
        link_share=step.link_share,
        bottleneck=name_bottleneck(step),
    )
