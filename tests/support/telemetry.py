"""Telemetry by hand: seconds in, series by key, so that a test reads like its definition."""

from collections.abc import Mapping

import numpy as np

from cadenza.store.telemetry import Missed, Sample, TelemetryLog

S = 1_000_000_000
LABELS = "engine=vllm,target=0,model=m"


def sample(source: str, at_s: float, values: Mapping[str, float], point: int | None = None) -> Sample:
    """What `source` told at `at_s`."""
    return Sample(round(at_s * S), source, point, tuple(values), np.array(list(values.values()), dtype=np.float64))


def engine(values: Mapping[str, float]) -> dict[str, float]:
    """The engine's figures by name, as those of model m at the first base URL."""
    return {f"{name}{{{LABELS}}}": value for name, value in values.items()}


def edges(start: Mapping[str, float], end: Mapping[str, float], start_s: float = 0, end_s: float = 10) -> list[Sample]:
    """The page before and after point 0."""
    return [sample("edge", start_s, engine(start), 0), sample("edge", end_s, engine(end), 0)]


def log(
    samples: list[Sample], missing: list[tuple[str, str, str, str]] | None = None, *, here: bool = True
) -> TelemetryLog:
    """All of a run's; `missing` from its beginning: (source, series, card, reason)."""
    return TelemetryLog(here, samples, [Missed(0, *gap) for gap in missing or []])
