"""A situation in which each alert fires, and ones in which it must not, worked out by hand: rules/tests.yml.

Samples every ten seconds, in promtool's notation: `a+bxn` is a, a + b, … n times; `_` none; `stale` gone.
"""

from typing import NamedTuple

_ENGINE = 'job="engine",instance="box:8000",node="box"'
_MODEL = f'{_ENGINE},model_name="m",engine="0"'
_EXPORTER = 'job="exporter",instance="box:9101",node="box"'
_CARD = f'{_EXPORTER},gpu="0000:43:00.0"'
_OTHER_CARD = f'{_EXPORTER},gpu="0000:03:00.0"'

_MODEL_LABELS = {"node": "box", "instance": "box:8000", "model_name": "m"}
_ENGINE_LABELS = {"job": "engine", "instance": "box:8000", "node": "box"}
_EXPORTER_LABELS = {"job": "exporter", "instance": "box:9101", "node": "box"}
_GPU_LABELS = _EXPORTER_LABELS | {"gpu": "0000:43:00.0"}
_NODE_GPU = {"node": "box", "gpu": "0000:43:00.0"}

Samples = dict[str, str]


class Case(NamedTuple):
    """`labels` None: the alert is silent at `at`. `value`: how its texts write the value."""

    alert: str
    why: str
    at: str
    samples: Samples
    labels: dict[str, str] | None = None
    value: str = ""


def _busy(first: float, second: float) -> Samples:
    return {f"amdgpu_busy_ratio{{{_CARD}}}": f"{first}x90", f"amdgpu_busy_ratio{{{_OTHER_CARD}}}": f"{second}x90"}


def _memory(used: int) -> Samples:
    return {
        f'amdgpu_memory_used_bytes{{{_CARD},pool="vram"}}': f"{used}x90",
        f'amdgpu_memory_size_bytes{{{_CARD},pool="vram"}}': "100x90",
    }


def _gauge(name: str, value: float) -> Samples:
    return {f"vllm:{name}{{{_MODEL}}}": f"{value:g}x90"}


def _speed(per_10_s: int, running: int) -> Samples:
    return {f"vllm:generation_tokens_total{{{_MODEL}}}": f"0+{per_10_s}x90"} | _gauge("num_requests_running", running)


def _hang(busy: float, tokens: str, running: int) -> Samples:
    tokens_of = {f"vllm:generation_tokens_total{{{_MODEL}}}": tokens}
    return tokens_of | _gauge("num_requests_running", running) | {f"amdgpu_busy_ratio{{{_CARD}}}": f"{busy}x90"}


def _endings(errors: int, stops: int) -> Samples:
    name = f"vllm:request_success_total{{{_MODEL},finished_reason="
    return {f'{name}"error"}}': f"0+{errors}x90", f'{name}"stop"}}': f"0+{stops}x90"}


def _first_tokens(slo_s: float, low: float, high: float, below: int, all_of_them: int) -> Samples:
    """`below` of `all_of_them` requests each ten seconds within `low` SLOs, the others within `high`."""
    name = f"vllm:time_to_first_token_seconds_bucket{{{_MODEL},le="
    everything = f"0+{all_of_them}x90"
    return {
        f'{name}"{low * slo_s:g}"}}': f"0+{below}x90",
        f'{name}"{high * slo_s:g}"}}': everything,
        f'{name}"+Inf"}}': everything,
        f"vllm:time_to_first_token_seconds_count{{{_MODEL}}}": everything,
    }


def _lanes(current: int, busy: float) -> Samples:
    return {
        f'amdgpu_pcie_link_width_lanes{{{_CARD},state="current"}}': f"{current}x90",
        f'amdgpu_pcie_link_width_lanes{{{_CARD},state="max"}}': "16x90",
        f"amdgpu_busy_ratio{{{_CARD}}}": f"{busy}x90",
    }


def _heat(celsius: float) -> Samples:
    return {
        f'amdgpu_temperature_celsius{{{_CARD},sensor="junction"}}': f"{celsius}x90",
        f'amdgpu_temperature_limit_celsius{{{_CARD},sensor="junction",limit="crit"}}': "100x90",
        f'amdgpu_temperature_limit_celsius{{{_CARD},sensor="junction",limit="emergency"}}': "105x90",
    }


def _throttled(reason: str) -> Samples:
    return {f'amdgpu_throttled{{{_CARD},reason="{reason}"}}': "1x90"}


def _events(event: str, values: str) -> Samples:
    return {f'cadenza_kernel_events_total{{{_CARD},event="{event}"}}': values}


def _ras(values: str) -> Samples:
    return {f'amdgpu_ras_errors_total{{{_CARD},block="umc",severity="uncorrectable"}}': values}


def cases(slo_s: float) -> tuple[Case, ...]:
    """For the promise `slo_s`, P99 of the time to first token."""
    return (*_ARTICLE, *_late(slo_s), *_ENGINES, *_CARDS, *_EVENTS, *_EXPORTERS)


_ARTICLE = (
    Case("GpusSaturated", "all busy", "5m10s", _busy(1, 0.99), {"node": "box"}, "99%"),
    Case("GpusSaturated", "one idles", "5m10s", _busy(1, 0.98)),
    Case("GpusSaturated", "not long enough", "4m50s", _busy(1, 0.99)),
    Case("GpuMemoryNearlyFull", "96 of 100", "2m10s", _memory(96), _GPU_LABELS | {"pool": "vram"}, "96%"),
    Case("GpuMemoryNearlyFull", "95 of 100", "2m10s", _memory(95)),
    Case("EngineBatchLarge", "33", "1m10s", _gauge("num_requests_running", 33), _MODEL_LABELS, "33"),
    Case("EngineBatchLarge", "32", "1m10s", _gauge("num_requests_running", 32)),
    Case("EngineQueueLong", "9", "1m10s", _gauge("num_requests_waiting", 9), _MODEL_LABELS, "9"),
    Case("EngineQueueLong", "8", "1m10s", _gauge("num_requests_waiting", 8)),
    Case("EngineKvCacheNearlyFull", "0.93", "1m10s", _gauge("kv_cache_usage_perc", 0.93), _MODEL_LABELS, "93%"),
    Case("EngineKvCacheNearlyFull", "0.92", "1m10s", _gauge("kv_cache_usage_perc", 0.92)),
    # 400 tokens in ten seconds are 40 a second.
    Case("EngineSlow", "40 tok/s for 8", "2m20s", _speed(400, 8), _MODEL_LABELS, "40.0"),
    Case("EngineSlow", "50 tok/s for 8", "2m20s", _speed(500, 8)),
    Case("EngineSlow", "40 tok/s for 7 is no load", "2m20s", _speed(400, 7)),
    Case("EngineSlow", "no traffic", "2m20s", _speed(0, 0)),
)


def _late(slo_s: float) -> tuple[Case, ...]:
    """Rank 99 of 100 lies half way through the bucket with the last two: (1 + 3) / 2 SLOs, or (0.25 + 0.75) / 2."""
    late, early = _first_tokens(slo_s, 1, 3, 98, 100), _first_tokens(slo_s, 0.25, 0.75, 98, 100)
    return (
        Case("EngineFirstTokenLate", "twice the SLO", "2m20s", late, _MODEL_LABELS, f"{2 * slo_s:.2f}"),
        Case("EngineFirstTokenLate", "half the SLO", "2m20s", early),
        Case("EngineFirstTokenLate", "no traffic", "2m20s", _first_tokens(slo_s, 1, 3, 0, 0)),
    )


_UP = f"up{{{_ENGINE}}}"
_KV_FULL = _gauge("kv_cache_usage_perc", 0.96)
_PREEMPTIONS = f"vllm:num_preemptions_total{{{_MODEL}}}"
_ENGINES = (
    # The fourth sample, at 30 s, is the first 0.
    Case("EngineDown", "gone for 40 s", "1m10s", {_UP: "1x2 0x90"}, _ENGINE_LABELS),
    Case("EngineDown", "gone for 20 s", "50s", {_UP: "1x2 0x90"}),
    Case("EngineMetricsMissing", "nothing told", "1m10s", {_UP: "1x90"}, _ENGINE_LABELS),
    Case("EngineMetricsMissing", "told", "1m10s", {_UP: "1x90"} | _gauge("num_requests_running", 0)),
    Case("EngineErrors", "1 of 10", "3m", _endings(1, 9), _MODEL_LABELS, "10%"),
    Case("EngineErrors", "1 of 40", "3m", _endings(1, 39)),
    Case("EngineErrors", "no traffic", "3m", _endings(0, 0)),
    Case(
        "EngineKvCachePressure",
        "0.96 and one waits",
        "1m10s",
        _KV_FULL | _gauge("num_requests_waiting", 1),
        _MODEL_LABELS,
        "96%",
    ),
    Case("EngineKvCachePressure", "nobody waits", "1m10s", _KV_FULL | _gauge("num_requests_waiting", 0)),
    Case(
        "EngineKvCachePressure",
        "0.95",
        "1m10s",
        _gauge("kv_cache_usage_perc", 0.95) | _gauge("num_requests_waiting", 1),
    ),
    # Two in ten seconds are twelve a minute, once a minute of them is there.
    Case("EnginePreemptionStorm", "12 a minute", "2m10s", {_PREEMPTIONS: "0+2x90"}, _MODEL_LABELS, "12"),
    Case("EnginePreemptionStorm", "6 a minute", "2m10s", {_PREEMPTIONS: "0+1x90"}),
)
_CARD_UP, _EXPORTER_UP = f"amdgpu_up{{{_CARD}}}", f"up{{{_EXPORTER}}}"
_THROTTLED_LABELS = _NODE_GPU | {"reason": "temp_hotspot"}
_CARDS = (
    Case("GpuHung", "busy, running, no token", "2m20s", _hang(1, "100x90", 1), {"node": "box"}),
    Case("GpuHung", "tokens flow", "2m20s", _hang(1, "0+1x90", 1)),
    Case("GpuHung", "nothing runs", "2m20s", _hang(1, "100x90", 0)),
    Case("GpuHung", "the card idles", "2m20s", _hang(0.1, "100x90", 1)),
    Case("GpuLost", "says so", "1m20s", {_CARD_UP: "1x5 0x90"}, _GPU_LABELS),
    Case("GpuLost", "there", "1m20s", {_CARD_UP: "1x90"}),
    Case("GpuLost", "vanished", "1m20s", {_CARD_UP: "1x5 stale", _EXPORTER_UP: "1x90"}, _GPU_LABELS),
    Case("GpuLost", "exporter down", "1m20s", {_CARD_UP: "1x5 stale", _EXPORTER_UP: "1x5 0x90"}),
    Case("GpuHot", "96 of 100 °C", "2m10s", _heat(96), _GPU_LABELS | {"sensor": "junction"}, "96.0"),
    Case("GpuHot", "95 of 100 °C", "2m10s", _heat(95)),
    Case("GpuThrottledByHeat", "hot", "1m10s", _throttled("temp_hotspot"), _THROTTLED_LABELS),
    Case("GpuThrottledByHeat", "power", "1m10s", _throttled("ppt0")),
    Case("GpuThrottled", "power", "10m10s", _throttled("ppt0"), _NODE_GPU | {"reason": "ppt0"}),
    Case("GpuThrottled", "hot", "10m10s", _throttled("temp_hotspot")),
    Case("GpuLinkNarrow", "8 of 16 under load", "10m10s", _lanes(8, 0.9), _GPU_LABELS, "8"),
    Case("GpuLinkNarrow", "at idle", "10m10s", _lanes(8, 0.1)),
    Case("GpuLinkNarrow", "16 of 16", "10m10s", _lanes(16, 0.9)),
)
_RING = _NODE_GPU | {"event": "ring_timeout"}
_EVENTS = (
    Case("GpuKernelEvents", "one more", "2m", _events("ring_timeout", "0x5 1x90"), _RING),
    Case("GpuKernelEvents", "the first of its kind", "2m", _events("ring_timeout", "_x5 1x90"), _RING),
    Case("GpuKernelEvents", "long ago", "14m", _events("ring_timeout", "1x90")),
    Case("GpuKernelEvents", "harmless", "2m", _events("aer_correctable", "0x5 1x90")),
    Case("GpuKernelWarnings", "one more", "2m", _events("vm_fault", "0x5 1x90"), _NODE_GPU | {"event": "vm_fault"}),
    Case("GpuKernelWarnings", "harmless", "2m", _events("queue_eviction", "0x5 1x90")),
    Case(
        "GpuUncorrectableErrors", "one", "2m", _ras("0x5 1x90"), _GPU_LABELS | {"block": "umc", "severity": "critical"}
    ),
    Case("GpuUncorrectableErrors", "a million that never were", "2m", _ras("0x5 1048560x90")),
    Case("GpuUncorrectableErrors", "none", "2m", _ras("0x90")),
)
_AGE = f'cadenza_collector_age_seconds{{{_EXPORTER},collector="smi"}}'
_EXPORTERS = (
    Case("ExporterDown", "gone for 40 s", "1m10s", {_EXPORTER_UP: "1x2 0x90"}, _EXPORTER_LABELS),
    Case("ExporterDown", "gone for 20 s", "50s", {_EXPORTER_UP: "1x2 0x90"}),
    Case("CollectorStuck", "31 s old", "40s", {_AGE: "31x90"}, _EXPORTER_LABELS | {"collector": "smi"}, "31"),
    Case("CollectorStuck", "30 s old", "40s", {_AGE: "30x90"}),
)


class Recorded(NamedTuple):
    """What a recording rule gives at `at`; `value` None: nothing. `expr`: of that series, asked in its place."""

    record: str
    why: str
    samples: Samples
    labels: dict[str, str]
    value: float | None
    at: str = "1m30s"
    expr: str = ""


def _energy() -> tuple[Recorded, ...]:
    """100 W all the time; nobody for five minutes, then 50 tokens a second for five, then nobody: 2 J a token."""
    name = "node:gpu_energy_per_token:joules"
    load = {
        f'amdgpu_power_watts{{{_CARD},type="average"}}': "100x90",
        f"vllm:generation_tokens_total{{{_MODEL}}}": "0x29 0+500x30 15000x30",
        f"vllm:num_requests_running{{{_MODEL}}}": "0x29 0 1x29 0x30",
    }
    node = {"node": "box"}
    return (
        Recorded(name, "nobody asks", load, node, None, "5m"),
        Recorded(name, "the first minute has a pause in it", load, node, None, "5m50s"),
        Recorded(name, "100 W over 50 tokens a second, after a minute", load, node, 2, "6m10s"),
        Recorded(name, "the same at the end", load, node, 2, "9m50s"),
        Recorded(name, "the last minute ends in a pause", load, node, None, "10m10s"),
        Recorded(name, "known for less than a minute", load | _speed(500, 1), node, None, "50s"),
        Recorded(name, "never more", load, node, 2, "14m", f"max_over_time({name}[14m])"),
        Recorded(name, "never less", load, node, 2, "14m", f"min_over_time({name}[14m])"),
    )


RECORDED_CASES = (
    Recorded(
        "model:engine_requests_in_system:sum",
        "two engines of one server: 3 + 1 running, 2 + 0 waiting",
        {
            f"vllm:num_requests_running{{{_MODEL}}}": "3x20",
            f"vllm:num_requests_waiting{{{_MODEL}}}": "2x20",
            f'vllm:num_requests_running{{{_ENGINE},model_name="m",engine="1"}}': "1x20",
            f'vllm:num_requests_waiting{{{_ENGINE},model_name="m",engine="1"}}': "0x20",
        },
        _MODEL_LABELS,
        6,
    ),
    Recorded(
        "model:engine_requests_running:sum",
        "an SGLang engine on two cards tells it twice",
        {
            f'sglang:num_running_reqs{{{_ENGINE},model_name="m",tp_rank="0",pp_rank="0"}}': "5x20",
            f'sglang:num_running_reqs{{{_ENGINE},model_name="m",tp_rank="1",pp_rank="0"}}': "5x20",
        },
        _MODEL_LABELS,
        5,
    ),
    Recorded(
        "model:engine_generation_tokens:rate1m",
        "llama.cpp, 120 tokens in ten seconds, names no model",
        {f"llamacpp:tokens_predicted_total{{{_ENGINE}}}": "0+120x20"},
        {"node": "box", "instance": "box:8000"},
        12,
    ),
    Recorded(
        "model:engine_ttft_seconds:p50_rate1m",
        "rank 50 of 100 is half way through the second bucket's 60: 0.25 + (50 − 20) / 60 · 0.25",
        {
            f'vllm:time_to_first_token_seconds_bucket{{{_MODEL},le="0.25"}}': "0+20x20",
            f'vllm:time_to_first_token_seconds_bucket{{{_MODEL},le="0.5"}}': "0+80x20",
            f'vllm:time_to_first_token_seconds_bucket{{{_MODEL},le="+Inf"}}': "0+100x20",
            f"vllm:time_to_first_token_seconds_count{{{_MODEL}}}": "0+100x20",
        },
        _MODEL_LABELS,
        0.375,
    ),
    Recorded(
        "model:engine_prefix_cache_hits:ratio_rate5m",
        "30 of 120 tokens",
        {
            f"vllm:prefix_cache_hits_total{{{_MODEL}}}": "0+30x20",
            f"vllm:prefix_cache_queries_total{{{_MODEL}}}": "0+120x20",
        },
        _MODEL_LABELS,
        0.25,
    ),
    Recorded(
        "gpu:temperature_margin_celsius:min",
        "edge has 30 °C to go, junction 20",
        {
            f'amdgpu_temperature_celsius{{{_CARD},sensor="edge"}}': "70x20",
            f'amdgpu_temperature_limit_celsius{{{_CARD},sensor="edge",limit="crit"}}': "100x20",
            f'amdgpu_temperature_celsius{{{_CARD},sensor="junction"}}': "90x20",
            f'amdgpu_temperature_limit_celsius{{{_CARD},sensor="junction",limit="crit"}}': "110x20",
        },
        _NODE_GPU,
        20,
    ),
    Recorded(
        "node:gpu_energy_per_token:joules",
        "180 + 220 W over 50 tokens a second",
        {
            f'amdgpu_power_watts{{{_CARD},type="average"}}': "180x20",
            f'nvidia_power_watts{{{_OTHER_CARD},type="average"}}': "220x20",
        }
        | _speed(500, 1),
        {"node": "box"},
        8,
    ),
    Recorded(
        "node:gpu_energy_per_token:joules",
        "180 W, and 1,200 J in ten seconds by the other card's counter, over 50 tokens a second",
        {
            f'amdgpu_power_watts{{{_CARD},type="average"}}': "180x20",
            f"amdgpu_energy_joules_total{{{_CARD}}}": "5x20",  # one that stands still tells nothing
            f'nvidia_power_watts{{{_OTHER_CARD},type="average"}}': "220x20",
            f"nvidia_energy_joules_total{{{_OTHER_CARD}}}": "0+1200x20",
        }
        | _speed(500, 1),
        {"node": "box"},
        6,
    ),
    *_energy(),
    Recorded(
        "run:engine_generation_tokens:rate1m",
        "two servers of the run's model make 50 and 12 tokens a second, another model is another matter",
        {
            'cadenza_run_info{job="exporter",instance="desk:9101",node="desk",run="r",point="1",model="m",'
            'concurrency="8",load="C = 8"}': "1x20",
            f"vllm:generation_tokens_total{{{_MODEL}}}": "0+500x20",
            'vllm:generation_tokens_total{job="engine",instance="rack:8000",node="rack",model_name="m",engine="0"}': (
                "0+120x20"
            ),
            f'vllm:generation_tokens_total{{{_ENGINE},model_name="other",engine="0"}}': "0+900x20",
        },
        {"node": "desk", "run": "r", "model": "m"},
        62,
    ),
)
