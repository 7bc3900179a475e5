"""Telemetry by hand: seconds in, series written as `name{label=text,…}`, so that a test reads like its definition."""

from collections.abc import Mapping

from cadenza.readings import Missed, Reading, ReadingTable, Sample, Series

S = 1_000_000_000


def series(text: str) -> Series:
    """`name{label=text,…}`, for texts without commas."""
    name, _, rest = text.removesuffix("}").partition("{")
    pairs = (pair.split("=", 1) for pair in rest.split(",") if pair)
    return Series(name, tuple((label, value) for label, value in pairs))


def readings(values: Mapping[str | Series, float]) -> list[Reading]:
    """One reading a series."""
    named = {series(key) if isinstance(key, str) else key: value for key, value in values.items()}
    return [Reading(one.name, one.labels, value) for one, value in named.items()]


def sample(source: str, at_s: float, values: Mapping[str | Series, float], point: int | None = None) -> Sample:
    """The values of `source` at `at_s`."""
    found = readings(values)
    return Sample(round(at_s * S), source, point, tuple(one.series for one in found), [one.value for one in found])


def engine(values: Mapping[str, float], target: int = 0, model: str = "m") -> dict[str | Series, float]:
    """The engine's figures by name, as those of a model at a base URL."""
    labels = (("engine", "vllm"), ("target", str(target)), ("model", model))
    return {Series(name, labels): value for name, value in values.items()}


def edges(start: Mapping[str, float], end: Mapping[str, float], start_s: float = 0, end_s: float = 10) -> list[Sample]:
    """The page before and after point 0."""
    return [sample("edge", start_s, engine(start), 0), sample("edge", end_s, engine(end), 0)]


def log(
    samples: list[Sample], missing: list[tuple[str, str, str, str]] | None = None, *, here: bool = True
) -> ReadingTable:
    """All of a run's; `missing` from its beginning: (source, name, card, reason)."""
    return ReadingTable(here, samples, [Missed(0, *gap) for gap in missing or []])
