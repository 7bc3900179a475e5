"""An engine's /metrics page as one `EngineState` a model, and what follows from two of them.

Reads the Prometheus text format (https://prometheus.io/docs/instrumenting/exposition_formats/) and OpenMetrics, and of
them only the lines that it knows: prometheus_client's parser reads all, which takes eight times as long. Engines:

vllm      three generations: V0 (0.6), the transition (0.9, both names), 0.32
sglang    series from each rank: of those that hold one batch together, one is counted
tgi       no model label; tpot_s is its inference time over tokens, prefill included
llamacpp  no model label, no histograms
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.telemetry.engines import MEASURED, EngineNames

# Real pages have 40 to 400 kB, some hundred lines that matter, and one to three models.
_PAGE_BYTES = 8 << 20
_LINES = 50_000
_LABEL_BYTES = 4096
_MODELS = 256


_GAUGES = frozenset({"running", "waiting", "kv_usage"})
_ABORTED = ("vllm:request_success_total", b"finished_reason", b"abort")
_RANKS = (b"pp_rank", b"tp_rank", b"moe_ep_rank")


def _wanted() -> Iterator[str]:
    for names in MEASURED:
        yield from (part for each in names.values.values() for name in each for part in name.split(" + "))
        yield from (
            f"{name}_{part}" for each in names.histograms.values() for name in each for part in ("bucket", "sum")
        )


_WANTED = frozenset(_wanted())
_PREFIXES = "|".join(engine.prefix for engine in MEASURED).encode()
_LINE = re.compile(rb"^[ \t]*+(# TYPE[ \t]+)?((?:%b)[a-zA-Z0-9_:]++)([^\n]*+)" % _PREFIXES, re.MULTILINE)
# After the name: labels, a value, perhaps a time stamp, perhaps an exemplar.
_REST = re.compile(
    rb'(?:[ \t]*\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\}[ \t]*|[ \t]+)'
    rb"([-+.0-9A-Za-z]+)(?:[ \t]+[-+.0-9A-Za-z]+)?[ \t]*(?:[ \t]#.*)?\r?",
    re.DOTALL,
)
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_LABELS = re.compile(rb"[ \t]*(?:%b[ \t]*(?:,[ \t]*|$))*+" % _LABEL.pattern, re.DOTALL)
_ESCAPES = {b"\\\\": b"\\", b'\\"': b'"', b"\\n": b"\n"}
_ESCAPE = re.compile(rb'\\[\\"n]')

Labels = Mapping[bytes, bytes]
_Key = tuple[tuple[bytes, bytes], ...]


class _Sample(NamedTuple):
    labels: Labels
    value: float


class _MalformedError(Exception):
    """The page is no exposition, or is beyond the bounds."""


_Samples = dict[str, list[_Sample]]


def read_page(page: bytes) -> dict[str, EngineState]:
    """The state of each model on `page`, by the model's name ("" where the engine gives none).

    Several engines of one model (vLLM's label `engine`, SGLang's `dp_rank`): counters, histograms, running and waiting
    are summed, KV usage is the fullest one's. Where one part of a sum is no number (NaN) or negative, the sum is None;
    so is a histogram whose parts have different bounds. A counter or histogram that the page declares (# TYPE) and
    that has no sample yet has counted nothing: 0, or a histogram without bounds. Any other absence is None.

    Never raises. {}: there is nothing of a known engine on it, or a line of one makes no sense, or the page is beyond
    8 MiB, 50,000 lines of interest, 4 KiB of labels a line or 256 models.
    """
    try:
        found, declared = _read_lines(page)
        models = _by_model(found)
    except _MalformedError:
        return {}
    states: dict[str, EngineState] = {}
    for engine in MEASURED:
        for model, samples in models.items():
            if model not in states and any(name.startswith(engine.prefix) for name in samples):
                states[model] = _state(engine, samples, declared)
    return states


def _read_lines(page: bytes) -> tuple[dict[str, dict[bytes, _Sample]], dict[str, bytes]]:
    """Samples by name and the text of their labels (so that one sent twice counts once), and declared types by name."""
    if len(page) > _PAGE_BYTES:
        raise _MalformedError
    found: dict[str, dict[bytes, _Sample]] = {}
    declared: dict[str, bytes] = {}
    lines = 0
    for line in _LINE.finditer(page):
        name = line[2].decode("ascii")
        if line[1]:
            declared[name] = line[3].strip()
        elif name in _WANTED:
            lines += 1
            rest = _REST.fullmatch(line[3])
            if rest is None or lines > _LINES or len(line[3]) > _LABEL_BYTES:
                raise _MalformedError
            block = rest[1] or b""
            found.setdefault(name, {})[block] = _Sample(_read_labels(block), _number(rest[2]))
    return found, declared


def _read_labels(block: bytes) -> Labels:
    pairs = _LABEL.findall(block)
    labels = dict(pairs)
    if not _LABELS.fullmatch(block) or len(labels) < len(pairs):
        raise _MalformedError
    if b"\\" in block:
        return {name: _ESCAPE.sub(lambda found: _ESCAPES[found[0]], value) for name, value in labels.items()}
    return labels


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise _MalformedError from None


def _by_model(found: Mapping[str, Mapping[bytes, _Sample]]) -> dict[str, _Samples]:
    models: dict[bytes, _Samples] = {}
    for name, samples in found.items():
        for sample in samples.values():
            models.setdefault(sample.labels.get(b"model_name", b""), {}).setdefault(name, []).append(sample)
    if len(models) > _MODELS:
        raise _MalformedError
    return {model.decode("utf-8", errors="replace"): samples for model, samples in models.items()}


def _state(engine: EngineNames, samples: _Samples, declared: Mapping[str, bytes]) -> EngineState:
    fields: dict[str, Any] = {}
    for field, choices in engine.values.items():
        present = next((one for name in choices if (one := _samples_of(name.split(" + "), samples))), None)
        if present is None:
            counted = field not in _GAUGES and any(_declares(declared, name, b"counter") for name in choices)
            fields[field] = 0.0 if counted else None
        elif field in _GAUGES:
            # SGLang tells a total under an empty priority, beside those of each priority.
            total = [sample for sample in present if sample.labels.get(b"priority") == b""] or present
            fields[field] = _peak(total) if field == "kv_usage" else _sum(total)
        else:
            fields[field] = _sum(present)
    for field, choices in engine.histograms.items():
        chosen = next((name for name in choices if f"{name}_bucket" in samples), None)
        if chosen is not None:
            buckets, sums = (_one_rank(samples.get(f"{chosen}_{part}", [])) for part in ("bucket", "sum"))
            fields[field] = _histogram(buckets, sums)
        elif any(_declares(declared, name, b"histogram") for name in choices):
            fields[field] = Histogram((), (), 0.0)
    if engine.key == "vllm":
        name, label, value = _ABORTED
        aborted = [sample for sample in samples.get(name, []) if sample.labels.get(label) == value]
        fields["aborted_total"] = _sum(aborted) if aborted else None
    return EngineState(engine=engine.key, **fields)


def _samples_of(parts: Sequence[str], samples: _Samples) -> list[_Sample]:
    """The samples of all `parts`, or none where the first has none."""
    if parts[0] not in samples:
        return []
    return [sample for part in parts for sample in _one_rank(samples.get(part, []))]


def _declares(declared: Mapping[str, bytes], name: str, kind: bytes) -> bool:
    # OpenMetrics declares a counter without its _total.
    return kind in (declared.get(name), declared.get(name.removesuffix("_total")))


def _one_rank(samples: Sequence[_Sample]) -> Sequence[_Sample]:
    """Of series that differ by nothing but the rank within one batch, the lowest rank's: the others tell the same."""
    if not any(rank in sample.labels for sample in samples for rank in _RANKS):
        return samples
    kept: dict[_Key, tuple[list[tuple[int, bytes]], _Sample]] = {}
    for sample in samples:
        rank = [(len(text), text) for text in (sample.labels.get(name, b"") for name in _RANKS)]
        key = _key(sample.labels, *_RANKS)
        if key not in kept or rank < kept[key][0]:
            kept[key] = rank, sample
    return [sample for _, sample in kept.values()]


def _key(labels: Labels, *without: bytes) -> _Key:
    return tuple(sorted(item for item in labels.items() if item[0] not in without))


def _sum(samples: Sequence[_Sample]) -> float | None:
    """None where one of them is no number: the whole is unknown then."""
    if all(0 <= sample.value < math.inf for sample in samples):
        return math.fsum(sample.value for sample in samples)
    return None


def _peak(samples: Sequence[_Sample]) -> float | None:
    return max(s.value for s in samples) if all(0 <= sample.value <= 1 for sample in samples) else None


def _histogram(buckets: Sequence[_Sample], sums: Sequence[_Sample]) -> Histogram | None:
    """All series of one histogram, added up. None: a part of it is missing or makes no sense, or the bounds differ."""
    series: dict[_Key, list[tuple[float, float]]] = {}
    totals = {_key(sample.labels): sample.value for sample in sums}
    for sample in buckets:
        try:
            bound = float(sample.labels.get(b"le", b""))
        except ValueError:
            return None
        series.setdefault(_key(sample.labels, b"le"), []).append((bound, sample.value))
    merged: Histogram | None = None
    for key, pairs in series.items():
        pairs.sort()
        bounds, counts = tuple(bound for bound, _ in pairs), tuple(count for _, count in pairs)
        part = Histogram(bounds, counts, totals.get(key, math.nan))
        if not _is_sound(part) or (merged is not None and merged.bounds != bounds):
            return None
        merged = part if merged is None else _combine(merged, part, 1)
    return merged


def _is_sound(histogram: Histogram) -> bool:
    bounds, counts = histogram.bounds, histogram.cumulative
    return (
        bounds[-1] == math.inf
        and all(low < high for low, high in itertools.pairwise(bounds))
        and all(low <= high for low, high in zip((0.0, *counts), counts, strict=False))
        and counts[-1] < math.inf
        and math.isfinite(histogram.sum)
    )


def _combine(one: Histogram, other: Histogram, sign: int) -> Histogram:
    counts = tuple(a + sign * b for a, b in zip(one.cumulative, other.cumulative, strict=True))
    return Histogram(one.bounds, counts, one.sum + sign * other.sum)


def _counters(later: EngineState, earlier: EngineState) -> Iterable[tuple[str, Any, Any]]:
    for field in EngineState.__struct_fields__[1:]:
        if field not in _GAUGES:
            yield field, getattr(later, field), getattr(earlier, field)


def restarted(later: EngineState, earlier: EngineState) -> bool:
    """Whether the engine began anew in between: another engine, a counter or bucket that fell, other bounds."""
    if later.engine != earlier.engine:
        return True
    for _, new, old in _counters(later, earlier):
        if isinstance(new, Histogram) and isinstance(old, Histogram):
            if old.bounds and (
                new.bounds != old.bounds or any(b < a for a, b in zip(old.cumulative, new.cumulative, strict=True))
            ):
                return True
        elif new is not None and old is not None and new < old:
            return True
    return False


def subtract(later: EngineState, earlier: EngineState) -> EngineState:
    """What happened between two scrapes: counters and histograms as differences, gauges as `later` has them.

    None where either scrape does not say. If the engine was `restarted` in between, `later` as it is: what it has
    counted since then, a lower bound of what happened.
    """
    if restarted(later, earlier):
        return later
    fields: dict[str, Any] = {field: getattr(later, field) for field in ("engine", *_GAUGES)}
    for field, new, old in _counters(later, earlier):
        if new is None or old is None:
            fields[field] = None
        elif isinstance(new, Histogram):
            fields[field] = _combine(new, old, -1) if old.bounds else new
        else:
            fields[field] = new - old
    return EngineState(**fields)


def mean(histogram: Histogram) -> float | None:
    """Sum over count; None where nothing was observed."""
    return histogram.sum / histogram.count if histogram.count > 0 else None


def quantile(histogram: Histogram, q: float) -> float | None:
    """The `q`-quantile (0 to 1) as Prometheus's histogram_quantile estimates it, in the histogram's unit.

    Linear within the bucket that holds rank q · count; the first bucket begins at 0, unless its bound is 0 or less,
    which is then the answer. In the last, infinite bucket the answer is the bound below it, which the true value
    exceeds. Off by at most the width of the bucket. For q = 0 it is the beginning of the first bucket that holds
    anything, where Prometheus has 0/0 if that is not the first. None: nothing was observed, or there is but one bucket.
    ValueError: q is outside 0 to 1. Source: https://prometheus.io/docs/prometheus/latest/querying/functions/
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    bounds, counts = histogram.bounds, histogram.cumulative
    if len(bounds) < 2 or histogram.count <= 0:
        return None
    rank = q * histogram.count
    at = next((i for i, count in enumerate(counts[:-1]) if count >= rank and count > 0), len(counts) - 1)
    if at == len(counts) - 1:
        return bounds[-2]
    if at == 0 and bounds[0] <= 0:
        return bounds[0]
    low, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    return low + (bounds[at] - low) * (rank - below) / (counts[at] - below)
