"""The exporter's page: every family of `families.FAMILIES` that has a series, as Prometheus text or OpenMetrics.

Importing this costs 50 ms, prometheus_client's; import it where a page is rendered.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.utils import floatToGoString

from cadenza.readings import Labels, Reading
from cadenza.telemetry.families import FAMILIES, Family
from cadenza.telemetry.sampler import State

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Series = dict[Labels, float]
Table = dict[str, Series]
_END = b"# EOF\n"


class WrittenFamily(NamedTuple):
    """One family on a page. `parts`: its first lines, then of each series the line up to the value."""

    labels: list[Labels]
    values: list[float]
    parts: list[str]
    text: bytes


# What was written last, by family and whether as OpenMetrics.
Kept = dict[tuple[str, bool], WrittenFamily]

_AMD = ("vendor", "amd")

# Under --article-names, for AMD cards: the names of a published dashboard, next to those of `FAMILIES`. `gpu` is
# added to its labels, since one machine has several; `sensor` has the values of gpu_temperature_celsius.
ARTICLE = (
    Family("rocm_gpu_busy_percent", "gauge", ("gpu",), "gpu_busy_ratio times 100, under an older name."),
    Family("rocm_vram_used_bytes", "gauge", ("gpu",), "gpu_memory_used_bytes of vram, under an older name."),
    Family("rocm_vram_total_bytes", "gauge", ("gpu",), "gpu_memory_size_bytes of vram, under an older name."),
    Family("rocm_temperature_celsius", "gauge", ("gpu", "sensor"), "gpu_temperature_celsius, under an older name."),
)


def render(table: Table, openmetrics: bool = False, kept: Kept | None = None) -> bytes:
    """The page of `table`: families in the order of the table of families, series in the order they came.

    openmetrics  where the client's Accept header names it (`OPENMETRICS_TYPE`); else `TEXT_TYPE`
    kept         the caller's, for one page after the other: of a family whose series are those of the page before, only
                 the values are written anew
    """
    texts = []
    for family in (*FAMILIES.values(), *ARTICLE):
        series = table.get(family.name)
        if not series:
            continue
        if kept is None:
            texts.append(_generate(family, series, openmetrics))
            continue
        key = family.name, openmetrics
        written = kept[key] = _write(family, series, openmetrics, kept.get(key))
        texts.append(written.text)
    return b"".join(texts) + (_END if openmetrics else b"")


def tabulate(states: Iterable[State], version: str, scrapes: int, article_names: bool = False) -> Table:
    """Series by family: what the collectors read, their health, and the exporter's own.

    Where two collectors have the same series, the first one's is kept, so that a page never has one twice.
    """
    table: Table = {}
    for state in states:
        add(table, state.readings)
        add(table, _health(state))
    add(
        table,
        [
            Reading("cadenza_exporter_info", (("version", version),), 1.0),
            Reading("cadenza_exporter_scrapes_total", (), float(scrapes)),
        ],
    )
    if article_names:
        add(table, list(_article(table)))
    return table


def add(table: Table, readings: Iterable[Reading]) -> None:
    """Put `readings` into `table` where it has no such series yet."""
    for name, labels, value in readings:
        table.setdefault(name, {}).setdefault(labels, value)


class _One:
    """What prometheus_client calls a collector: one family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> tuple[Metric]:
        return (self._metric,)


def _write(family: Family, series: Series, openmetrics: bool, before: WrittenFamily | None) -> WrittenFamily:
    # An info family is always 1.
    labels, values = list(series), [1.0] * len(series) if family.kind == "info" else list(series.values())
    if before is None or before.labels != labels:
        text = _generate(family, series, openmetrics)
        return WrittenFamily(labels, values, _cut(text.decode()), text)
    if before.values == values:
        return before
    head, *lines = before.parts
    texts: Iterable[str] = map(floatToGoString, values)
    page = head + "".join([f"{line}{value}\n" for line, value in zip(lines, texts, strict=True)])
    return WrittenFamily(labels, values, before.parts, page.encode())


def _cut(text: str) -> list[str]:
    """The family's `#` lines, and every other one up to the blank before its value, which holds none."""
    lines = text.split("\n")[:-1]
    head = [f"{line}\n" for line in lines if line.startswith("#")]
    return ["".join(head), *(line[: line.rindex(" ") + 1] for line in lines[len(head) :])]


def _generate(family: Family, series: Series, openmetrics: bool) -> bytes:
    metric = _One(_metric(family, series))
    if not openmetrics:
        return generate_latest(metric)
    text: bytes = generate_openmetrics(metric)  # type: ignore[no-untyped-call]
    return text.removesuffix(_END)


def _metric(family: Family, series: Series) -> Metric:
    if family.kind == "info":
        info = InfoMetricFamily(family.name.removesuffix("_info"), family.help, labels=family.labels)
        for labels in series:
            info.add_metric([value for _, value in labels], {})
        return info
    if family.kind == "counter":
        counter = CounterMetricFamily(family.name.removesuffix("_total"), family.help, labels=family.labels)
        for labels, value in series.items():
            counter.add_metric([text for _, text in labels], value)
        return counter
    gauge = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in series.items():
        gauge.add_metric([text for _, text in labels], value)
    return gauge


def _health(state: State) -> Iterator[Reading]:
    of: Labels = (("collector", state.collector),)
    yield Reading("cadenza_collector_success", of, float(state.success))
    if state.duration_s is not None:
        yield Reading("cadenza_collector_duration_seconds", of, state.duration_s)
    yield Reading("cadenza_collector_age_seconds", of, state.age_s)
    for reason, count in sorted(state.missing.items()):
        yield Reading("cadenza_collector_missing_total", (*of, ("reason", reason)), float(count))


def _article(table: Table) -> Iterator[Reading]:
    for (gpu, vendor), value in table.get("gpu_busy_ratio", {}).items():
        if vendor == _AMD:
            yield Reading("rocm_gpu_busy_percent", (gpu,), 100 * value)
    for family, alias in (
        ("gpu_memory_used_bytes", "rocm_vram_used_bytes"),
        ("gpu_memory_size_bytes", "rocm_vram_total_bytes"),
    ):
        for (gpu, vendor, pool), value in table.get(family, {}).items():
            if vendor == _AMD and pool[1] == "vram":
                yield Reading(alias, (gpu,), value)
    for (gpu, vendor, sensor), value in table.get("gpu_temperature_celsius", {}).items():
        if vendor == _AMD:
            yield Reading("rocm_temperature_celsius", (gpu, sensor), value)
