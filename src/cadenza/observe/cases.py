"""A situation in which each alert fires, and ones in which it must not, worked out by hand: rules/tests.yml.

Samples every ten seconds, in promtool's notation: `a+bxn` is a, a + b, … n times; `_` none; `stale` gone.
"""

from typing import NamedTuple

ENGINE = 'job="engine",instance="box:8000",node="box"'
MODEL = f'{ENGINE},model_name="m",engine="0"'
_EXPORTER = 'job="exporter",instance="box:9101",node="box"'
CARD = f'{_EXPORTER},gpu="0000:43:00.0"'
OTHER_CARD = f'{_EXPORTER},gpu="0000:03:00.0"'

MODEL_LABELS = {"node": "box", "instance": "box:8000", "model_name": "m"}
ENGINE_LABELS = {"job": "engine", "instance": "box:8000", "node": "box"}
_EXPORTER_LABELS = {"job": "exporter", "instance": "box:9101", "node": "box"}
_GPU_LABELS = _EXPORTER_LABELS | {"gpu": "0000:43:00.0"}
NODE_GPU = {"node": "box", "gpu": "0000:43:00.0"}

Samples = dict[str, str]


class Case(NamedTuple):
    """`labels` None: the alert is silent at `at`. `value`: how its texts write the value."""

    alert: str
    why: str
    at: str
    samples: Samples
    labels: dict[str, str] | None = None
    value: str = ""


def _busy(first: float, second: float, second_gb: int = 16) -> Samples:
    samples = {}
    for card, ratio, size_gb in ((CARD, first, 16), (OTHER_CARD, second, second_gb)):
        samples[f"amdgpu_busy_ratio{{{card}}}"] = f"{ratio}x90"
        samples[f'amdgpu_memory_size_bytes{{{card},pool="vram"}}'] = f"{size_gb}e9x90"
    return samples


def _memory(used_gb: int, size_gb: int = 100) -> Samples:
    return {
        f'amdgpu_memory_used_bytes{{{CARD},pool="vram"}}': f"{used_gb}e9x90",
        f'amdgpu_memory_size_bytes{{{CARD},pool="vram"}}': f"{size_gb}e9x90",
    }


def _gauge(name: str, value: float) -> Samples:
    return {f"vllm:{name}{{{MODEL}}}": f"{value:g}x90"}


def tokens_and_running(per_10_s: int, running: int) -> Samples:
    return {f"vllm:generation_tokens_total{{{MODEL}}}": f"0+{per_10_s}x90"} | _gauge("num_requests_running", running)


def _hang(
    busy: float = 1, tokens: str = "100x90", running: str = "1x90", prompts: str = "700x90", kv: str = "0.5x90"
) -> Samples:
    """A hang, but for what is said."""
    return {
        f"amdgpu_busy_ratio{{{CARD}}}": f"{busy}x90",
        f"vllm:generation_tokens_total{{{MODEL}}}": tokens,
        f"vllm:num_requests_running{{{MODEL}}}": running,
        f"vllm:prompt_tokens_total{{{MODEL}}}": prompts,
        f"vllm:kv_cache_usage_perc{{{MODEL}}}": kv,
    }


def _beside(engine: str, tokens: str) -> Samples:
    """Another engine, with 3 requests running."""
    labels = f'job="engine",{engine},node="box",model_name="m"'
    return {f"vllm:generation_tokens_total{{{labels}}}": tokens, f"vllm:num_requests_running{{{labels}}}": "3x90"}


def _endings(errors: int, stops: int) -> Samples:
    name = f"vllm:request_success_total{{{MODEL},finished_reason="
    return {f'{name}"error"}}': f"0+{errors}x90", f'{name}"stop"}}': f"0+{stops}x90"}


def _first_tokens(slo_s: float, low: float, high: float, below: int, all_of_them: int, for_s: int = 900) -> Samples:
    """`below` of `all_of_them` requests each ten seconds within `low` SLOs, the others within `high`; none later."""
    name = f"vllm:time_to_first_token_seconds_bucket{{{MODEL},le="
    times = for_s // 10

    def counter(step: int) -> str:
        return f"0+{step}x{times} {step * times}x{90 - times}"

    return {
        f'{name}"{low * slo_s:g}"}}': counter(below),
        f'{name}"{high * slo_s:g}"}}': counter(all_of_them),
        f'{name}"+Inf"}}': counter(all_of_them),
        f"vllm:time_to_first_token_seconds_count{{{MODEL}}}": counter(all_of_them),
    }


def _lanes(current: int, busy: float) -> Samples:
    return {
        f'amdgpu_pcie_link_width_lanes{{{CARD},state="current"}}': f"{current}x90",
        f'amdgpu_pcie_link_width_lanes{{{CARD},state="max"}}': "16x90",
        f"amdgpu_busy_ratio{{{CARD}}}": f"{busy}x90",
    }


def _heat(celsius: float) -> Samples:
    return {
        f'amdgpu_temperature_celsius{{{CARD},sensor="junction"}}': f"{celsius}x90",
        f'amdgpu_temperature_limit_celsius{{{CARD},sensor="junction",limit="crit"}}': "100x90",
        f'amdgpu_temperature_limit_celsius{{{CARD},sensor="junction",limit="emergency"}}': "105x90",
    }


def _throttled(reason: str, values: str = "1x90") -> Samples:
    return {f'amdgpu_throttled{{{CARD},reason="{reason}"}}': values}


def _looks(collector: str, age_s: int, success: int = 1) -> Samples:
    """A collector that has finished a round, so many seconds ago."""
    labels = f'{_EXPORTER},collector="{collector}"'
    return {
        f"cadenza_collector_age_seconds{{{labels}}}": f"{age_s}x90",
        f"cadenza_collector_success{{{labels}}}": f"{success}x90",
        f"cadenza_collector_duration_seconds{{{labels}}}": "0.1x90",
    }


def _events(event: str, values: str) -> Samples:
    return {f'cadenza_kernel_events_total{{{CARD},event="{event}"}}': values}


def _ras(values: str) -> Samples:
    return {f'amdgpu_ras_errors_total{{{CARD},block="umc",severity="uncorrectable"}}': values}


def cases(slo_s: float) -> tuple[Case, ...]:
    """For the promise `slo_s`, P99 of the time to first token."""
    return (*_ARTICLE, *_late(slo_s), *_ENGINES, *_CARDS, *_EVENTS, *_EXPORTERS)


_WAITING = f"vllm:num_requests_waiting{{{MODEL}}}"
_LOSSY_QUEUE = {_WAITING: "9x1 stale " * 30}
_ARTICLE = (
    Case("GpusSaturated", "all cards busy", "5m10s", _busy(1, 0.99), {"node": "box"}, "99%"),
    Case("GpusSaturated", "one card at 98 %", "5m10s", _busy(1, 0.98)),
    Case("GpusSaturated", "the integrated graphics idle", "5m10s", _busy(1, 0, 2), {"node": "box"}, "100%"),
    Case("GpusSaturated", "not long enough", "4m50s", _busy(1, 0.99)),
    Case("GpuMemoryNearlyFull", "96 of 100", "2m10s", _memory(96), _GPU_LABELS | {"pool": "vram"}, "96%"),
    Case("GpuMemoryNearlyFull", "95 of 100", "2m10s", _memory(95)),
    Case("GpuMemoryNearlyFull", "2 GB of integrated graphics", "2m10s", _memory(2, 2)),
    Case("EngineBatchLarge", "33", "1m10s", _gauge("num_requests_running", 33), MODEL_LABELS, "33"),
    Case("EngineBatchLarge", "32", "1m10s", _gauge("num_requests_running", 32)),
    Case("EngineQueueLong", "9", "1m10s", _gauge("num_requests_waiting", 9), MODEL_LABELS, "9"),
    Case("EngineQueueLong", "8", "1m10s", _gauge("num_requests_waiting", 8)),
    Case("EngineQueueLong", "9, and every third scrape is lost", "1m20s", _LOSSY_QUEUE, MODEL_LABELS, "9"),
    Case("EngineQueueLong", "9 until the engine ended", "1m40s", {_WAITING: "9x5 stale"}),
    Case("EngineKvCacheNearlyFull", "0.93", "1m10s", _gauge("kv_cache_usage_perc", 0.93), MODEL_LABELS, "93%"),
    Case("EngineKvCacheNearlyFull", "0.92", "1m10s", _gauge("kv_cache_usage_perc", 0.92)),
    # 400 tokens in ten seconds are 40 a second.
    Case("EngineSlow", "40 tok/s for 8", "2m20s", tokens_and_running(400, 8), MODEL_LABELS, "40.0"),
    Case("EngineSlow", "50 tok/s for 8", "2m20s", tokens_and_running(500, 8)),
    Case("EngineSlow", "40 tok/s for 7 is no load", "2m20s", tokens_and_running(400, 7)),
    Case("EngineSlow", "no traffic", "2m20s", tokens_and_running(0, 0)),
    Case(
        "EngineSlow",
        "two engines of one server make 80 together",
        "2m20s",
        tokens_and_running(400, 5) | _beside('instance="box:8000",engine="1"', "0+400x90"),
    ),
)


def _late(slo_s: float) -> tuple[Case, ...]:
    """Rank 99 of 100 lies half way through the bucket with the last two: (1 + 3) / 2 SLOs, or (0.25 + 0.75) / 2."""
    late, early = _first_tokens(slo_s, 1, 3, 98, 100), _first_tokens(slo_s, 0.25, 0.75, 98, 100)
    return (
        Case("EngineFirstTokenLate", "twice the SLO", "2m20s", late, MODEL_LABELS, f"{2 * slo_s:.2f}"),
        Case("EngineFirstTokenLate", "half the SLO", "2m20s", early),
        Case("EngineFirstTokenLate", "no traffic", "2m20s", _first_tokens(slo_s, 1, 3, 0, 0)),
        Case("EngineFirstTokenLate", "late until six minutes ago", "11m", _first_tokens(slo_s, 1, 3, 98, 100, 300)),
    )


_UP = f"up{{{ENGINE}}}"
_OTHER_UP = 'up{job="engine",instance="box:8001",node="box"}'
_KV_FULL = _gauge("kv_cache_usage_perc", 0.96)
_PREEMPTIONS = f"vllm:num_preemptions_total{{{MODEL}}}"
_FINISHED = f"vllm:request_success_total{{{MODEL},finished_reason="
_ENGINES = (
    # The fourth sample, at 30 s, is the first 0.
    Case("EngineDown", "down for 40 s", "1m10s", {_UP: "1x2 0x90", _OTHER_UP: "1x90"}, ENGINE_LABELS),
    Case("EngineDown", "down for 20 s", "50s", {_UP: "1x2 0x90"}),
    Case("EngineDown", "every third scrape is lost", "1m20s", {_UP: "1x1 0 " * 30}),
    Case("EngineMetricsMissing", "no engine metrics", "1m10s", {_UP: "1x90"}, ENGINE_LABELS),
    Case(
        "EngineMetricsMissing",
        "no engine metrics from one of two",
        "1m10s",
        {_UP: "1x90", _OTHER_UP: "1x90"} | _beside('instance="box:8001",engine="0"', "0x90"),
        ENGINE_LABELS,
    ),
    Case("EngineMetricsMissing", "engine metrics present", "1m10s", {_UP: "1x90"} | _gauge("num_requests_running", 0)),
    Case("EngineErrors", "1 of 10", "3m", _endings(1, 9), MODEL_LABELS, "10%"),
    Case("EngineErrors", "1 of 40", "3m", _endings(1, 39)),
    Case("EngineErrors", "no traffic", "3m", _endings(0, 0)),
    Case(
        "EngineErrors",
        "500 of 1,000, before the engine was restarted an hour later",
        "3m",
        {f'{_FINISHED}"error"}}': "500x5 0x90", f'{_FINISHED}"stop"}}': "500x5 0+9x90"},
    ),
    Case(
        "EngineKvCachePressure",
        "0.96 and one waits",
        "1m10s",
        _KV_FULL | _gauge("num_requests_waiting", 1),
        MODEL_LABELS,
        "96%",
    ),
    Case("EngineKvCachePressure", "none waits", "1m10s", _KV_FULL | _gauge("num_requests_waiting", 0)),
    Case(
        "EngineKvCachePressure",
        "0.95",
        "1m10s",
        _gauge("kv_cache_usage_perc", 0.95) | _gauge("num_requests_waiting", 1),
    ),
    # Two in ten seconds are twelve a minute, once a minute of them is there.
    Case("EnginePreemptionStorm", "12 a minute", "2m10s", {_PREEMPTIONS: "0+2x90"}, MODEL_LABELS, "12"),
    Case("EnginePreemptionStorm", "6 a minute", "2m10s", {_PREEMPTIONS: "0+1x90"}),
    Case("EnginePreemptionStorm", "1,000 before a restart", "2m10s", {_PREEMPTIONS: "1000x5 0+1x90"}),
)
_CARD_UP, _EXPORTER_UP = f"amdgpu_up{{{CARD}}}", f"up{{{_EXPORTER}}}"
_OTHER_EXPORTER_UP = 'up{job="exporter",instance="box:9102",node="box"}'
_THROTTLED_LABELS = NODE_GPU | {"reason": "temp_hotspot"}
_VANISHED = {_CARD_UP: "1x5 stale", _EXPORTER_UP: "1x90"}
_FIRST_ROUND = f'cadenza_collector_age_seconds{{{_EXPORTER},collector="amdgpu"}}'
_CARDS = (
    Case("GpuHung", "busy, running, no token", "2m20s", _hang(), MODEL_LABELS | {"engine": "0"}, "1"),
    Case(
        "GpuHung",
        "two other engines generate: one of the same server, one of another",
        "2m20s",
        _hang()
        | _beside('instance="box:8000",engine="1"', "0+500x90")
        | _beside('instance="box:8001",engine="0"', "0+500x90"),
        MODEL_LABELS | {"engine": "0"},
        "1",
    ),
    Case("GpuHung", "tokens flow", "2m20s", _hang(tokens="0+1x90")),
    Case("GpuHung", "nothing runs", "2m20s", _hang(running="0x90")),
    Case("GpuHung", "the card idles", "2m20s", _hang(busy=0.1)),
    # A piece of the prompt in half a minute, each with its blocks.
    Case("GpuHung", "five minutes of one long prompt", "5m", _hang(kv="0x2 0.1x2 0.2x2 0.3x2 0.4x2 0.5x2 " * 3)),
    Case("GpuHung", "a server of embeddings", "5m", _hang(tokens="0x90", prompts="0+700x90", kv="0x90")),
    Case("GpuHung", "restarted, and another has the cards", "5m", _hang(tokens="100x5 0x90", running="1x5 0x90")),
    Case("GpuHung", "ended", "5m", _hang(running="1x5 stale")),
    Case("GpuLost", "reported as lost", "1m40s", {_CARD_UP: "1x5 0x90"}, _GPU_LABELS),
    Case("GpuLost", "present", "1m40s", {_CARD_UP: "1x90"}),
    Case("GpuLost", "vanished", "1m40s", _VANISHED | _looks("amdgpu", 0), _GPU_LABELS),
    Case("GpuLost", "exporter down", "1m40s", {_CARD_UP: "1x5 stale", _EXPORTER_UP: "1x5 0x90"}),
    Case(
        "GpuLost",
        "exporter down, another one up",
        "1m40s",
        {_CARD_UP: "1x5 stale", _EXPORTER_UP: "1x5 0x90", _OTHER_EXPORTER_UP: "1x90"},
    ),
    Case("GpuLost", "exporter restarted", "2m", {_CARD_UP: "1x5 stale _x2 1x90", _EXPORTER_UP: "1x5 0x2 1x90"}),
    Case("GpuLost", "exporter restarted, first round not finished", "2m", _VANISHED | {_FIRST_ROUND: "500x5 0+10x90"}),
    Case("GpuLost", "the collector of the cards is stuck", "1m40s", _VANISHED | _looks("amdgpu", 11, 0)),
    Case("GpuHot", "96 of 100 °C", "2m10s", _heat(96), _GPU_LABELS | {"sensor": "junction"}, "96.0"),
    Case("GpuHot", "95 of 100 °C", "2m10s", _heat(95)),
    Case("GpuThrottledByHeat", "hot", "1m10s", _throttled("temp_hotspot"), _THROTTLED_LABELS),
    Case(
        "GpuThrottledByHeat",
        "0 1 0 repeated",
        "2m10s",
        _throttled("temp_hotspot", "0 1 0 " * 30),
        _THROTTLED_LABELS,
    ),
    Case("GpuThrottledByHeat", "for ten seconds", "2m", _throttled("temp_hotspot", "0x9 1 0x90")),
    Case("GpuThrottledByHeat", "power", "1m10s", _throttled("ppt0")),
    Case("GpuThrottled", "power", "10m10s", _throttled("ppt0"), NODE_GPU | {"reason": "ppt0"}),
    Case("GpuThrottled", "hot", "10m10s", _throttled("temp_hotspot")),
    Case("GpuLinkNarrow", "8 of 16 under load", "10m10s", _lanes(8, 0.9), _GPU_LABELS, "8"),
    Case("GpuLinkNarrow", "at idle", "10m10s", _lanes(8, 0.1)),
    Case("GpuLinkNarrow", "16 of 16", "10m10s", _lanes(16, 0.9)),
)
_RING = NODE_GPU | {"event": "ring_timeout"}
_WATCHED = {_EXPORTER_UP: "1x90"}
_RESTARTED = {_EXPORTER_UP: "1x30 0x2 1x90"}
_EVENTS = (
    Case("GpuKernelEvents", "one more", "2m", _events("ring_timeout", "0x5 1x90"), _RING),
    Case("GpuKernelEvents", "the first of its kind", "2m", _WATCHED | _events("ring_timeout", "_x5 1x90"), _RING),
    Case("GpuKernelEvents", "ten minutes ago", "12m", _events("ring_timeout", "0x5 1x90")),
    Case("GpuKernelEvents", "before the first scrape", "2m", _WATCHED | _events("ring_timeout", "3x90")),
    Case(
        "GpuKernelEvents",
        "long before a minute without the exporter",
        "7m",
        {_EXPORTER_UP: "1x30 0x5 1x90"} | _events("ring_timeout", "3x30 stale _x4 3x90"),
    ),
    Case("GpuKernelEvents", "exporter restarted", "7m", _RESTARTED | _events("ring_timeout", "3x30 stale _ 0x90")),
    Case(
        "GpuKernelEvents",
        "one after the exporter was restarted",
        "7m",
        _RESTARTED | _events("ring_timeout", "3x30 stale _ 0x2 1x90"),
        _RING,
    ),
    Case("GpuKernelEvents", "harmless", "2m", _events("aer_correctable", "0x5 1x90")),
    Case("GpuKernelWarnings", "one more", "2m", _events("vm_fault", "0x5 1x90"), NODE_GPU | {"event": "vm_fault"}),
    Case("GpuKernelWarnings", "harmless", "2m", _events("queue_eviction", "0x5 1x90")),
    Case(
        "GpuUncorrectableErrors", "one", "2m", _ras("0x5 1x90"), _GPU_LABELS | {"block": "umc", "severity": "critical"}
    ),
    Case("GpuUncorrectableErrors", "a spurious million", "2m", _ras("0x5 1048560x90")),
    Case("GpuUncorrectableErrors", "none", "2m", _ras("0x90")),
    Case("GpuUncorrectableErrors", "5 long ago, then the driver reloaded", "2m", _ras("5x5 stale _x2 0x90")),
)
_EXPORTERS = (
    Case("ExporterDown", "down for 40 s", "1m10s", {_EXPORTER_UP: "1x2 0x90"}, _EXPORTER_LABELS),
    Case("ExporterDown", "down for 20 s", "50s", {_EXPORTER_UP: "1x2 0x90"}),
    Case("CollectorStuck", "31 s old", "40s", _looks("smi", 31, 0), _EXPORTER_LABELS | {"collector": "smi"}, "31"),
    Case("CollectorStuck", "30 s old", "40s", _looks("smi", 30, 0)),
    Case("CollectorStuck", "read once a minute", "40s", _looks("smi", 50, 1)),
)
