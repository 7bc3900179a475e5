"""What holds of every reading, and second opinions on what two formats mean, written without a look at the parsers."""

import math
import re
import struct
from collections.abc import Iterable
from typing import get_args

from prometheus_client.parser import text_string_to_metric_families

from cadenza.readings import Collected, Labels, Reading, Reason
from cadenza.telemetry.cards.gpu_metrics import GpuMetrics, GpuMetricsError
from cadenza.telemetry.cards.gpu_metrics import parse as parse_metrics
from cadenza.telemetry.engine_page import read_page
from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.telemetry.families import FAMILIES

# By the unit at the end of a family's name: what hardware that exists can say.
RANGES = {
    "_ratio": (0, 1),
    "_bytes": (0, 2.0**60),
    "_celsius": (-60, 300),
    "_watts": (0, 5000),
    "_hertz": (0, 1e11),
    "_volts": (0, 30),
    "_rpm": (0, 1e5),
    "_lanes": (1, 32),
    "_per_second": (0, 1e13),
    "_joules_total": (0, 2.0**64),
    "_total": (0, 2.0**64),
    "_info": (1, 1),
    "_up": (0, 1),
    "_suspended": (0, 1),
    "_throttled": (0, 1),
}
# And what samples of cards at work say, if not 0: another unit is off by a thousand.
TYPICAL = {
    "_bytes": (1 << 20, 2.0**45),
    "_celsius": (5, 130),
    "_watts": (1, 3000),
    "_hertz": (1e7, 5e9),
    "_volts": (0.3, 15),
    "_rpm": (100, 20_000),
    "_transfers_per_second": (2.5e9, 64e9),
    "_joules_total": (1, 1e12),
    "_seconds_total": (0, 1e9),
}
_PRINTED_CHARS = 200
# 0 here is an answer: the card is gone or awake, a reason does not hold, an empty list of pages has none.
_STATES = ("gpu_up", "gpu_suspended", "gpu_throttled", "gpu_bad_pages", "cadenza_kernel_events_total")


def check_readings(collected: Collected, collectors: Iterable[str]) -> list[str]:
    """What is wrong with readings and gaps, whatever they were read from."""
    problems = []
    seen: set[tuple[str, Labels]] = set()
    for reading in collected.readings:
        family = FAMILIES.get(reading.name)
        if family is None or tuple(name for name, _ in reading.labels) != family.labels:
            problems.append(f"no such series: {reading}")
            continue
        low, high = next((bounds for end, bounds in RANGES.items() if reading.name.endswith(end)), (0.0, 2.0**64))
        if not (math.isfinite(reading.value) and low <= reading.value <= high):
            problems.append(f"impossible: {reading}")
        if (reading.name, reading.labels) in seen:
            problems.append(f"told twice: {reading}")
        seen.add((reading.name, reading.labels))
        if any(len(text) > _PRINTED_CHARS or not text.isprintable() for _, text in reading.labels):
            problems.append(f"label is no short printable line: {reading}")
    known = {*FAMILIES, *collectors}
    problems += [f"unknown gap: {lack}" for lack in collected.missing if lack.name not in known]
    problems += [f"unknown reason: {lack}" for lack in collected.missing if lack.reason not in get_args(Reason)]
    if not collected.readings and not collected.missing:
        problems.append("nothing read, and no reason")
    return problems


def check_units(collected: Collected) -> list[str]:
    """What a sample as it is cannot say, unless a unit is wrong."""
    return [
        f"another unit: {reading}"
        for reading in collected.readings
        for end, (low, high) in TYPICAL.items()
        if reading.name.endswith(end) and reading.value != 0 and not low <= reading.value <= high
    ]


def check_erased(before: Collected, after: Collected) -> list[str]:
    """What is wrong with the readings `after` one value was taken away: a new 0, or a series gone without a reason."""
    had = {reading[:2]: reading for reading in before.readings}
    have = {reading[:2] for reading in after.readings}
    zeros = {_bare(reading) for reading in before.readings if reading.value == 0}
    problems = [
        f"zero for missing: {reading}"
        for reading in after.readings
        if reading.value == 0 and reading.name not in _STATES and _bare(reading) not in zeros
    ]
    told = {(reading.name, _gpu(reading)) for reading in after.readings}
    told |= {(lack.name, lack.gpu) for lack in after.missing}
    there = {gpu for _, gpu in told}
    problems += [
        f"gone without a reason: {reading}"
        for key, reading in had.items()
        if key not in have
        and (reading.name, _gpu(reading)) not in told
        and (reading.name, "") not in told
        and _gpu(reading) in there
        and reading.name not in ("gpu_info", "gpu_up")
        and not reading.name.startswith("gpu_process_")
    ]
    return problems


def _gpu(reading: Reading) -> str:
    return next((text for name, text in reading.labels if name == "gpu"), "")


def _bare(reading: Reading) -> tuple[str, Labels]:
    return reading.name, tuple(label for label in reading.labels if label[0] != "gpu")


# gpu_metrics: offsets of v1_0, of v1_1 to v1_3, of v1_4, v1_5, v1_6, and of v1_7 and v1_8, with the type.
_SIZES = {0: 80, 1: 96, 2: 104, 3: 120, 4: 288, 5: 360, 6: 1664, 7: 2208, 8: 3872}
_COLUMNS = (0, 1, 1, 1, 2, 3, 4, 5, 5)
_FIELDS: dict[str, tuple[str, float]] = {
    "temperatures_celsius.edge": ("16H 4H - - - -", 1),
    "temperatures_celsius.junction": ("18H 6H 4H 4H 4H 4H", 1),
    "temperatures_celsius.mem": ("20H 8H 6H 6H 6H 6H", 1),
    "temperatures_celsius.vrsoc": ("24H 12H 8H 8H 8H 8H", 1),
    "busy_ratio": ("28H 16H 12H 12H 12H 12H", 1 / 100),
    "memory_busy_ratio": ("30H 18H 14H 14H 14H 14H", 1 / 100),
    "average_power_watts": ("34H 22H - - - -", 1),
    "instant_power_watts": ("- - 10H 10H 10H 10H", 1),
    "energy_joules": ("- 24Q 24Q 88Q 16Q 24Q", 2.0**-16),
    "clock_s": ("8Q 32Q 32Q 96Q 24Q 32Q", 1e-9),
    "throttle_status": ("68I 68I 40I 104I - -", 1),
    "fan_rpm": ("72H 72H - - - -", 1),
    "link_width_lanes": ("74B 74H 48H 112H 60H 68H", 1),
    "link_speed_transfers_per_second": ("75B 76H 50H 114H 62H 70H", 1e8),
    "replays_total": ("- - 88Q 152Q 104Q 112Q", 1),
    "clocks_hertz.mclk": ("58H 58H 280H 352H 304H 336H", 1e6),
    "cycles": ("- - - - 32I 40I", 1),
    "residencies_cycles.ppt": ("- - - - 40I 48I", 1),
}
# Beside all ones: what a die without a power sensor, and a chip without a counter, have there.
_NOTHING = {"average_power_watts": (0,), "energy_joules": (0, 0xFFFF_FFFF)}
_ONES = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFF_FFFF, "Q": 0xFFFF_FFFF_FFFF_FFFF}


def check_metrics(data: bytes) -> list[str]:
    """`gpu_metrics.parse` against struct.unpack at the documented offsets."""
    size, form, content = struct.unpack_from("<HBB", data) if len(data) >= 4 else (0, 0, 0)
    fits = form == 1 and _SIZES.get(content) == size and len(data) >= size
    try:
        metrics = parse_metrics(data)
    except GpuMetricsError as error:
        return [f"refused as {error.reason}"] if fits else []
    if not fits:
        return [f"taken, with a head of {size} bytes, v{form}_{content}, and {len(data)} bytes"]
    problems = []
    for place, (columns, unit) in _FIELDS.items():
        expected, word = None, columns.split()[_COLUMNS[content]]
        if word != "-":
            (raw,) = struct.unpack_from(f"<{word[-1]}", data, int(word[:-1]))
            expected = None if raw in (_ONES[word[-1]], *_NOTHING.get(place, ())) else raw * unit
        told = _at(metrics, place)
        if (told is None) != (expected is None) or not math.isclose(told or 0, expected or 0, rel_tol=1e-12):
            problems.append(f"{place} is {told}, not {expected}")
    return problems


def metrics_without_zeros(data: bytes) -> bytes:
    """Each of those fields that is 0 is 7 then."""
    told = bytearray(data)
    size, form, content = struct.unpack_from("<HBB", data) if len(data) >= 4 else (0, 0, 0)
    if form == 1 and _SIZES.get(content) == size and len(data) >= size:
        for columns, _ in _FIELDS.values():
            word = columns.split()[_COLUMNS[content]]
            if word != "-" and not struct.unpack_from(f"<{word[-1]}", data, int(word[:-1]))[0]:
                struct.pack_into(f"<{word[-1]}", told, int(word[:-1]), 7)
    return bytes(told)


def _at(metrics: GpuMetrics, place: str) -> float | None:
    name, _, key = place.partition(".")
    value = getattr(metrics, name)
    found: float | None = value.get(key) if key else value
    return found


# Engine pages: names by engine and field, of which the first that has samples counts.
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions_total": ("vllm:num_preemptions_total",),
        "prompt_tokens_total": ("vllm:prompt_tokens_total",),
        "generation_tokens_total": ("vllm:generation_tokens_total",),
        "requests_total": ("vllm:request_success_total",),
        "ttft_s": ("vllm:time_to_first_token_seconds",),
        "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "kv_usage": ("sglang:token_usage",),
        "prompt_tokens_total": ("sglang:prompt_tokens_total",),
        "generation_tokens_total": ("sglang:generation_tokens_total",),
        "e2e_s": ("sglang:e2e_request_latency_seconds",),
    },
    "tgi": {
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "prompt_tokens_total": ("tgi_request_input_length_sum",),
        "generation_tokens_total": ("tgi_request_generated_tokens_sum",),
        "queue_s": ("tgi_request_queue_duration",),
    },
    "llamacpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_usage": ("llamacpp:kv_cache_usage_ratio",),
        "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
        "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
    },
}
_GAUGES = ("running", "waiting", "kv_usage")
_INFINITE = re.compile(r"\+?inf(inity)?", re.IGNORECASE)
_PLAIN_TEXT = re.compile(rb"[ -~\n\t]*+")
_Samples = dict[str, dict[str, dict[tuple[tuple[str, str], ...], float]]]  # model → name → labels → value


def check_page(page: bytes) -> list[str]:
    """`read_page`: its own promises, and against prometheus_client's parser where that takes the whole page."""
    states = read_page(page)
    problems = [problem for state in states.values() for problem in _check_state(state)]
    if not states or not _PLAIN_TEXT.fullmatch(page):
        return problems
    try:
        families = list(text_string_to_metric_families(page.decode("ascii")))
    except (ValueError, KeyError, IndexError):
        return problems
    declared = {family.name: family.type for family in families}
    samples: _Samples = {}
    for family in families:
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            one = samples.setdefault(sample.labels.get("model_name", ""), {}).setdefault(sample.name, {})
            if labels in one:  # told twice: which one holds is nobody's promise
                return problems
            one[labels] = _float(sample.value)
    for model, state in states.items():
        has = samples.get(model, {})
        if any(dict(labels).get(name, "0") != "0" for one in has.values() for labels in one for name in _OF_BATCHES):
            continue
        for field, names in _NAMES[state.engine].items():
            told, expected = getattr(state, field), _expect(field, names, has, declared)
            told = told.count if isinstance(told, Histogram) and told.bounds else told
            if field.endswith("_s") and (told is None or not isinstance(told, float)):
                continue  # which histograms make sense is the parser's own judgement
            if told != expected and not (told and expected and math.isclose(told, expected, rel_tol=1e-12)):
                problems.append(f"{field} of {model!r} is {told}, not {expected}")
    return problems


def _float(value: float) -> float:
    """prometheus_client hands out integers of any length."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


_OF_BATCHES = ("priority", "pp_rank", "tp_rank", "moe_ep_rank")


def _expect(
    field: str, names: tuple[str, ...], has: dict[str, dict[tuple[tuple[str, str], ...], float]], types: dict[str, str]
) -> float | None:
    end = "_bucket" if field.endswith("_s") else ""
    name = next((name for name in names if has.get(name + end)), None)
    if name is None:
        counted = any(types.get(name.removesuffix("_total")) == "counter" for name in names)
        return 0.0 if counted and field not in _GAUGES else None
    parts = [
        value for labels, value in has[name + end].items() if not end or _INFINITE.fullmatch(dict(labels).get("le", ""))
    ]
    if not all(0 <= value < math.inf for value in parts):
        return None
    if field == "kv_usage":
        return max(parts) if max(parts) <= 1 else None
    return math.fsum(parts)


def _check_state(state: EngineState) -> list[str]:
    problems = []
    for field in EngineState.__struct_fields__[1:]:
        value = getattr(state, field)
        if isinstance(value, Histogram):
            falls = list(value.cumulative) != sorted(value.cumulative) or list(value.bounds) != sorted(
                set(value.bounds)
            )
            if falls or not math.isfinite(value.sum) or (value.bounds and value.bounds[-1] != math.inf):
                problems.append(f"{field} is no histogram: {value}")
        elif value is not None and not (0 <= value < math.inf and (field != "kv_usage" or value <= 1)):
            problems.append(f"{field} is {value}")
    return problems


def check_erased_page(before: bytes, after: bytes) -> list[str]:
    """What is wrong with a page without one name: a 0 that was none."""
    had = read_page(before)
    return [
        f"zero for missing: {field} of {model!r}"
        for model, state in read_page(after).items()
        for field in EngineState.__struct_fields__[1:]
        if getattr(state, field) == 0 and getattr(had.get(model), field, None) != 0
    ]
