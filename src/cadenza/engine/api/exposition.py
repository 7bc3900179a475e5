"""The /metrics page, under vLLM 0.32's names: Prometheus text or OpenMetrics.

Importing this costs 50 ms, prometheus_client's; import it where a page is asked for.

Not on it: `*_created`, `python_*` and `process_*` (vLLM with several API servers has none either), the sizes of HTTP
messages, and of `vllm:cache_config_info`'s labels all that the engine has no such setting for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.utils import floatToGoString

from cadenza.engine.api.http_counts import HttpCounts
from cadenza.engine.core.metrics import Gauges, Histogram, Metrics

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Pairs = Sequence[tuple[Metrics, Gauges]]
Values = Iterable[tuple[tuple[str, ...], float]]

_HELP = {
    "request_prompt_tokens": "Prompt tokens of each ended request.",
    "request_generation_tokens": "Tokens that each ended request was given.",
    "iteration_tokens_total": "Tokens of each pass that gave out at least one, finished prompts included.",
    "request_max_num_generation_tokens": "Tokens of the longest answer of each ended request.",
    "request_params_n": "Choices that each ended request asked for.",
    "request_params_max_tokens": "Tokens that each ended request allowed, at most what the context leaves.",
    "time_to_first_token_seconds": "Time from arrival to the first token.",
    "inter_token_latency_seconds": "Time between two outputs of one request.",
    "request_time_per_output_token_seconds": "Decode time over tokens after the first, of each ended request.",
    "e2e_request_latency_seconds": "Time from arrival to the end of the request.",
    "request_queue_time_seconds": "Time from arrival to the first admission.",
    "request_inference_time_seconds": "Time from the first admission to the last token.",
    "request_prefill_time_seconds": "Time from the first admission to the first token.",
    "request_decode_time_seconds": "Time from the first token to the last token.",
    "request_num_preemptions": "Times that each ended request was preempted.",
    "request_prefill_kv_computed_tokens": "Prompt tokens of each ended request that the prefix cache did not spare.",
}


def render(pairs: Pairs, compat: bool = False, openmetrics: bool = False, answers: HttpCounts | None = None) -> bytes:
    """The page of all engines in `pairs`, with their gauges of this instant; of none: what is no engine's.

    compat       older names too, of which vLLM 0.32 has none: gpu_cache_usage_perc, gpu_prefix_cache_*,
                 time_per_output_token_seconds, and of V0 num_requests_swapped and cpu_cache_usage_perc, always 0
    openmetrics  where the client's Accept header names it (`OPENMETRICS_TYPE`); else `TEXT_TYPE`
    answers      what the HTTP shell counted, if it did
    """
    registry = CollectorRegistry()
    registry.register(_Page(pairs, compat, answers))
    if not openmetrics:
        return generate_latest(registry)
    # Its other ways of writing a name make vllm_x of the samples of vllm:x, and leave the family's name as it is.
    page: bytes = generate_openmetrics(registry, ALLOWUTF8)  # type: ignore[no-untyped-call]
    return page


class _Page:
    """What prometheus_client calls a collector."""

    def __init__(self, pairs: Pairs, compat: bool, answers: HttpCounts | None) -> None:
        self._pairs, self._compat, self._answers = pairs, compat, answers

    def collect(self) -> Iterator[Metric]:
        metrics = [metrics for metrics, _ in self._pairs]
        yield _gauge(
            "cadenza_simulated", "1: a simulated engine; no model ran, and times are those of its law.", [], [((), 1)]
        )
        if metrics:
            yield from self._engines(metrics)
        if self._answers is not None:
            yield from _http(self._answers)

    def _engines(self, metrics: list[Metrics]) -> Iterator[Metric]:
        yield from _state(self._pairs)
        yield from _cache(metrics)
        yield from _tokens(metrics)
        yield from _requests(metrics)
        yield from _unknowable(metrics)
        for name, text in _HELP.items():
            yield _per_engine_histogram(f"vllm:{name}", text, name, metrics)
        yield from _speculation([one for one in metrics if one.limits.num_speculative_tokens])
        yield from _own(metrics)
        if self._compat:
            yield from _old_names(self._pairs)


_ENGINE = ["model_name", "engine"]


def _of(metrics: Metrics) -> tuple[str, str]:
    return metrics.model, str(metrics.engine)


def _gauge(name: str, text: str, labels: list[str], values: Values) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _counter(name: str, text: str, labels: list[str], values: Values) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, histogram in values:
        buckets, seen = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            seen += count
            buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call]
        family.add_metric(label_values, buckets, histogram.sum / histogram.unit)
    return family


def _per_engine_histogram(name: str, text: str, which: str, metrics: list[Metrics]) -> Metric:
    return _histogram(name, text, _ENGINE, [(_of(one), one.histograms[which]) for one in metrics])


def _state(pairs: Pairs) -> Iterator[Metric]:
    yield _gauge(
        "vllm:num_requests_running", "Requests running.", _ENGINE, [(_of(one), now.running) for one, now in pairs]
    )
    yield _gauge(
        "vllm:num_requests_waiting",
        "Requests waiting for admission.",
        _ENGINE,
        [(_of(one), now.waiting) for one, now in pairs],
    )
    yield _gauge(
        "vllm:num_requests_waiting_by_reason",
        "Waiting requests by reason: KV cache capacity, or deferred.",
        [*_ENGINE, "reason"],
        [
            ((*_of(metrics), reason), count)
            for metrics, now in pairs
            for reason, count in (
                ("capacity", now.waiting - now.waiting_deferred),
                ("deferred", now.waiting_deferred),
            )
        ],
    )
    yield _gauge(
        "vllm:engine_sleep_state",
        "1 at the state that the engine is in: always awake.",
        [*_ENGINE, "sleep_state"],
        [
            ((*_of(metrics), state), float(state == "awake"))
            for metrics, _ in pairs
            for state in ("awake", "weights_offloaded", "discard_all")
        ],
    )
    yield _gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV blocks in use, 0 to 1.",
        _ENGINE,
        [(_of(one), now.kv_cache_usage) for one, now in pairs],
    )


def _cache(metrics: list[Metrics]) -> Iterator[Metric]:
    settings = [
        {
            "block_size": one.limits.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": one.limits.enable_prefix_caching,
            "gpu_memory_utilization": one.limits.gpu_memory_utilization,
            "num_gpu_blocks": one.limits.num_gpu_blocks,
            "num_gpu_blocks_override": None,
            "engine": one.engine,
        }
        for one in metrics
    ]
    # No model label: models with the same settings make one series.
    alike = dict.fromkeys(tuple(map(str, each.values())) for each in settings)
    labels = list(settings[0]) if settings else []
    yield _gauge("vllm:cache_config_info", "Settings of the KV cache.", labels, [(values, 1) for values in alike])
    yield from _counters(
        metrics,
        ("prefix_cache_queries", "Prefix-cache lookups, in tokens.", lambda one: one.cache_queries_tok),
        ("prefix_cache_hits", "Prefix-cache hits, in tokens.", lambda one: one.cache_hits_tok),
    )
    yield _counter(
        "vllm:prompt_tokens_cached_by_source",
        "Prefix-cache hits, in tokens, by the memory that held them (always the device).",
        [*_ENGINE, "source"],
        [
            ((*_of(one), source), one.cache_hits_tok if source == "device" else 0)
            for one in metrics
            for source in ("device", "host", "p2p", "disk", "external_unspecified")
        ],
    )


def _counters(metrics: list[Metrics], *specs: tuple[str, str, Callable[[Metrics], float]]) -> Iterator[Metric]:
    for name, text, read in specs:
        yield _counter(f"vllm:{name}", text, _ENGINE, [(_of(one), read(one)) for one in metrics])


def _tokens(metrics: list[Metrics]) -> Iterator[Metric]:
    yield from _counters(
        metrics,
        ("prompt_tokens", "Prompt tokens of finished prefills.", lambda one: one.prompt_tok),
        ("prompt_tokens_cached", "Prompt tokens taken from a cache.", lambda one: one.prompt_cached_tok),
        ("generation_tokens", "Tokens generated.", lambda one: one.generated_tok),
    )
    yield _counter(
        "vllm:prompt_tokens_by_source",
        "Prompt tokens of finished prefills by source: computed, prefix cache, or transferred.",
        [*_ENGINE, "source"],
        [
            ((*_of(one), source), count)
            for one in metrics
            for source, count in (
                ("local_compute", one.prompt_tok - one.prompt_cached_tok),
                ("local_cache_hit", one.prompt_cached_tok),
                ("external_kv_transfer", 0),
            )
        ],
    )


def _requests(metrics: list[Metrics]) -> Iterator[Metric]:
    yield from _counters(metrics, ("num_preemptions", "Preemptions of running requests.", lambda one: one.preemptions))
    yield _counter(
        "vllm:request_success",
        "Finished requests by reason, errors and aborts included.",
        [*_ENGINE, "finished_reason"],
        [((*_of(one), reason), count) for one in metrics for reason, count in one.endings.items()],
    )
    # No engine label: several engines of one model are one server to whoever is turned away.
    rejections: dict[tuple[str, ...], int] = {}
    for one in metrics:
        for reason, count in one.rejections.items():
            rejections[one.model, reason] = rejections.get((one.model, reason), 0) + count
    yield _counter(
        "vllm:admission_rejections",
        "Requests turned away by a limit of the queue.",
        ["model_name", "reason"],
        rejections.items(),
    )


def _unknowable(metrics: list[Metrics]) -> Iterator[Metric]:
    text = "Always 0: the simulated engine has none."
    for name in (
        *("external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"),
        *("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu"),
    ):
        yield from _counters(metrics, (name, text, lambda _: 0))


def _speculation(metrics: list[Metrics]) -> Iterator[Metric]:
    if not metrics:
        return
    yield from _counters(
        metrics,
        ("spec_decode_num_drafts", "Proposals made.", lambda one: one.drafts),
        ("spec_decode_num_draft_tokens", "Tokens proposed.", lambda one: one.draft_tok),
        ("spec_decode_num_accepted_tokens", "Tokens accepted.", lambda one: sum(one.accepted)),
    )
    yield _counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Tokens accepted, by their place in the proposal, from 0.",
        [*_ENGINE, "position"],
        [((*_of(one), str(at)), count) for one in metrics for at, count in enumerate(one.accepted)],
    )


def _own(metrics: list[Metrics]) -> Iterator[Metric]:
    yield _counter(
        "cadenza_requests_arrived",
        "Requests that have joined the queue; less those ended, they are running or waiting.",
        _ENGINE,
        [(_of(one), one.arrivals) for one in metrics],
    )
    yield _counter("cadenza_steps", "Forward passes.", _ENGINE, [(_of(one), one.steps) for one in metrics])
    yield _counter(
        "cadenza_step_tokens",
        "Tokens that passes worked on, recomputation and speculation included.",
        [*_ENGINE, "phase"],
        [
            ((*_of(one), phase), count)
            for one in metrics
            for phase, count in (("prefill", one.step_prefill_tok), ("decode", one.step_decode_tok))
        ],
    )


def _old_names(pairs: Pairs) -> Iterator[Metric]:
    metrics = [metrics for metrics, _ in pairs]
    yield _gauge(
        "vllm:gpu_cache_usage_perc",
        "Old name of vllm:kv_cache_usage_perc.",
        _ENGINE,
        [(_of(one), now.kv_cache_usage) for one, now in pairs],
    )
    for name, text in (
        ("num_requests_swapped", "Always 0: nothing is swapped since V1."),
        ("cpu_cache_usage_perc", "Always 0: nothing is swapped since V1."),
    ):
        yield _gauge(f"vllm:{name}", text, _ENGINE, [(_of(one), 0) for one in metrics])
    yield from _counters(
        metrics,
        ("gpu_prefix_cache_queries", "Old name of vllm:prefix_cache_queries.", lambda one: one.cache_queries_tok),
        ("gpu_prefix_cache_hits", "Old name of vllm:prefix_cache_hits.", lambda one: one.cache_hits_tok),
    )
    yield _per_engine_histogram(
        "vllm:time_per_output_token_seconds",
        "Old name of vllm:inter_token_latency_seconds.",
        "inter_token_latency_seconds",
        metrics,
    )


def _http(answers: HttpCounts) -> Iterator[Metric]:
    yield _counter("http_requests", "HTTP requests answered.", ["handler", "method", "status"], answers.counts.items())
    yield _histogram(
        "http_request_duration_highr_seconds",
        "Time to the end of the response, fine buckets.",
        [],
        [((), answers.durations)],
    )
    yield _histogram(
        "http_request_duration_seconds",
        "Time to the end of the response by route, coarse buckets.",
        ["handler", "method"],
        answers.durations_by.items(),
    )
