"""A published hardware comparison as data: configurations, printed figures, claims. One TOML file each.

Shipped ones lie in `comparisons/` and are found by name; `cadenza predict --compare FILE` reads anyone's.
"""

import tomllib
from importlib import resources
from typing import Annotated, Any

import msgspec

from cadenza.errors import UsageError, did_you_mean
from cadenza.record import printable

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
_SUFFIX = ".toml"
_STRICT: dict[str, Any] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}


class Claim(msgspec.Struct, tag_field="kind", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the publication says of a configuration, beside its figures; each kind is judged in `claims`."""


class ComputeBound(Claim, tag="compute-bound", frozen=True, kw_only=True):
    """Arithmetic limits the peak."""


class ConcurrencyLimit(Claim, tag="concurrency-limit", frozen=True, kw_only=True):
    """The peak's concurrency is the limit. next: a higher one, to predict"""

    next: Count


class FasterThan(Claim, tag="faster-than", frozen=True, kw_only=True):
    """A single stream is faster than that of the configuration named `other`."""

    other: str


class Gain(Claim, tag="gain", frozen=True, kw_only=True):
    """The peak lies above that of `over`. tok_per_s: printed here at `concurrency`, that of the other's peak"""

    over: str
    concurrency: Count
    tok_per_s: Positive


class LinkShare(Claim, tag="link-share", frozen=True, kw_only=True):
    """The link takes `percent` of a step of `step_ms`, from `all_reduces` over `link` without latency."""

    percent: Positive
    all_reduces: Count
    link: str
    step_ms: Positive


class ModelSize(Claim, tag="model-size", frozen=True, kw_only=True):
    """A dense model of so many parameters fits, split evenly."""

    parameters: Positive
    bytes_per_weight: Positive


class Stall(Claim, tag="stall", frozen=True, kw_only=True):
    """The rank on `device` waits for `percent` of a layer."""

    device: str
    percent: Positive


AnyClaim = ComputeBound | ConcurrencyLimit | FasterThan | Gain | LinkShare | ModelSize | Stall


class PublishedConfiguration(msgspec.Struct, **_STRICT):
    """A row of the published table, digit for digit.

    devices, model   names in `catalogue`; a device for each rank
    notes            remarks that no figure of ours decides
    """

    name: str
    devices: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    model: str
    single_stream_tok_per_s: Positive
    peak_tok_per_s: Positive
    peak_concurrency: Count
    stated_bottleneck: str
    topology: str = ""
    supported_models: str = ""
    claims: tuple[AnyClaim, ...] = ()
    notes: tuple[str, ...] = ()


class PublishedMachine(msgspec.Struct, **_STRICT):
    """Overheads of the machine that was measured, derived from its printed figures.

    own_step_s   by device: seconds a step beside reading the weights at the data sheet's rate
    link         what joined the cards, with the latency that follows from the figures
    """

    name: str
    own_step_s: dict[str, Positive]
    link: str | None = None


class PublishedComparison(msgspec.Struct, **_STRICT):
    """One file. context_tok: tokens that a running request holds on average; eager: kernels were launched one by one"""

    title: str
    source: str
    context_tok: Count
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)]
    configurations: Annotated[tuple[PublishedConfiguration, ...], msgspec.Meta(min_length=1)]
    eager: bool = False
    machine: PublishedMachine | None = None

    def configuration(self, name: str) -> PublishedConfiguration:
        """The configuration called `name`; UsageError, naming those there are."""
        known = {one.name: one for one in self.configurations}
        if name in known:
            return known[name]
        hint = did_you_mean(name, known)
        raise UsageError(f"a claim names the configuration {printable(name, 60)!r}, which is not there{hint}")


def comparison_names() -> list[str]:
    """Names of the shipped comparisons, sorted."""
    folder = resources.files(__package__) / "comparisons"
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))


def load_comparison(name: str) -> PublishedComparison:
    """The shipped comparison called `name`; UsageError, naming those there are."""
    names = comparison_names()
    if name not in names:
        hint = did_you_mean(name, names)
        raise UsageError(
            f"no published comparison is called {printable(name, 60)!r}{hint}; there are: {', '.join(names)}; "
            "a file of your own ends in .toml"
        )
    path = resources.files(__package__) / "comparisons" / f"{name}{_SUFFIX}"
    return parse_comparison(path.read_text(encoding="utf-8"), name)


def parse_comparison(text: str, name: str) -> PublishedComparison:
    """A comparison from TOML; `name` stands in messages. UsageError with the key, and what is expected there."""
    try:
        found = msgspec.convert(tomllib.loads(text), PublishedComparison)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{printable(name, 160)}: invalid published comparison: {printable(str(error))}") from None
    for one in found.configurations:
        for claim in one.claims:
            if isinstance(claim, FasterThan):
                found.configuration(claim.other)
            elif isinstance(claim, Gain):
                found.configuration(claim.over)
            elif isinstance(claim, Stall) and claim.device not in one.devices:
                raise UsageError(
                    f"{printable(name, 160)}: {printable(one.name, 60)}: the claim `stall` names the device "
                    f"{printable(claim.device, 60)!r}; its devices are: {', '.join(one.devices)}"
                )
    return found
