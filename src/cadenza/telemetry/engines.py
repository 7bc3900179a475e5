"""The engines, a row each: what an engine is called, where it says its version, what its metrics are called and count.

Read by preflight (who answers), by the page reader (`engine_page`), and by `observe` (which names exist and which are
gone). A new engine is one more row. Sources: vLLM 0.32, vllm/v1/metrics/loggers.py; SGLang at 016d860,
python/sglang/srt/observability/metrics_collector.py; llama.cpp, llama-server --metrics; TGI 2, its metrics page.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SERIES = ("_bucket", "_sum", "_count")


class VersionPath(NamedTuple):
    """GET `path` answers a JSON object with the version in `field`. `only_here`: no other engine has this path."""

    path: str
    field: str
    only_here: bool = False


class EngineNames(NamedTuple):
    """One engine.

    key           short name, as in `EngineState.engine`
    name          its name as people write it
    owners        `owned_by` of its models in /v1/models, lower case
    version       where it says its version; None: nowhere
    prefix        of its metrics; empty: it has none of its own
    metrics_flag  what turns its page of metrics on; empty: it is on by default
    values        field of `EngineState` → names of the gauge or counter, newest first; "a + b" is the sum of both
    histograms    field of `EngineState` → names without _bucket, newest first
    exports       all other names that an expression may use; histograms under `exported_histograms`
    gone          name → why it is gone, and what takes its place
    counts        field of `EngineState` → what this engine counts there, where it is not what the field says
    """

    key: str
    name: str
    owners: tuple[str, ...] = ()
    version: VersionPath | None = None
    prefix: str = ""
    metrics_flag: str = ""
    values: Mapping[str, tuple[str, ...]] = {}
    histograms: Mapping[str, tuple[str, ...]] = {}
    exports: tuple[str, ...] = ()
    exported_histograms: tuple[str, ...] = ()
    gone: Mapping[str, str] = {}
    counts: Mapping[str, str] = {}

    def newest(self, field: str) -> str:
        """The name of `field` in its newest version, the first part of a sum; empty: it has none."""
        names = self.values.get(field) or self.histograms.get(field) or ("",)
        return names[0].partition(" + ")[0]

    def known(self) -> Iterator[str]:
        """Every series name of its newest version."""
        for names in self.values.values():
            yield from (part for part in names[0].split(" + "))
        yield from (f"{self.prefix}{name}" for name in self.exports)
        histograms = [names[0] for names in self.histograms.values()]
        histograms += [f"{self.prefix}{name}" for name in self.exported_histograms]
        yield from (f"{name}{series}" for name in histograms for series in _SERIES)


_VLLM = EngineNames(
    key="vllm",
    name="vLLM",
    owners=("vllm",),
    version=VersionPath("/version", "version"),
    prefix="vllm:",
    values={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions_total": ("vllm:num_preemptions_total",),
        "prompt_tokens_total": ("vllm:prompt_tokens_total",),
        "generation_tokens_total": ("vllm:generation_tokens_total",),
        "requests_total": ("vllm:request_success_total",),
        "prefix_queries_tok": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix_hits_tok": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    },
    histograms={
        "ttft_s": ("vllm:time_to_first_token_seconds",),
        "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot_s": ("vllm:request_time_per_output_token_seconds",),
        "queue_s": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
        "prefill_s": ("vllm:request_prefill_time_seconds",),
        "decode_s": ("vllm:request_decode_time_seconds",),
        "e2e_s": ("vllm:e2e_request_latency_seconds",),
    },
    exports=(
        *("num_requests_waiting_by_reason", "num_requests_kv_fetch_by_stage", "engine_sleep_state"),
        *("lora_requests_info", "cache_config_info", "prompt_tokens_by_source_total", "prompt_tokens_cached_total"),
        *("prompt_tokens_cached_by_source_total", "external_prefix_cache_queries_total"),
        *("external_prefix_cache_hits_total", "mm_cache_queries_total", "mm_cache_hits_total"),
        *("admission_rejections_total", "corrupted_requests_total", "watermark_requests_total"),
        *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
        *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
        *("estimated_flops_per_gpu_total", "estimated_read_bytes_per_gpu_total"),
        "estimated_write_bytes_per_gpu_total",
    ),
    exported_histograms=(
        *("request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
        *("request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens"),
        *("request_prefill_kv_computed_tokens", "request_num_preemptions", "iteration_tokens_total"),
        *("kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds"),
    ),
    gone={
        "vllm:gpu_cache_usage_factor": "it never existed: vllm:kv_cache_usage_perc",
        "vllm:avg_generation_throughput_tok_per_s": "it never existed: rate(vllm:generation_tokens_total[1m])",
        "vllm:avg_prompt_throughput_toks_per_s": "gone with vLLM 0.7: rate(vllm:prompt_tokens_total[1m])",
        "vllm:avg_generation_throughput_toks_per_s": "gone with vLLM 0.7: rate(vllm:generation_tokens_total[1m])",
        "vllm:num_requests_swapped": "gone with V0: nothing is swapped any more",
        "vllm:cpu_cache_usage_perc": "gone with V0: nothing is swapped any more",
        "vllm:gpu_prefix_cache_hit_rate": "gone with V0: hits over queries of vllm:prefix_cache_*_total",
        "vllm:cpu_prefix_cache_hit_rate": "gone with V0: hits over queries of vllm:prefix_cache_*_total",
        "vllm:time_in_queue_requests": "gone with V0: vllm:request_queue_time_seconds",
        "vllm:model_forward_time_milliseconds": "gone with V0, without a successor",
        "vllm:model_execute_time_milliseconds": "gone with V0, without a successor",
        "vllm:gpu_cache_usage_perc": "gone with vLLM 0.13: vllm:kv_cache_usage_perc",
        "vllm:gpu_prefix_cache_queries_total": "gone with vLLM 0.13: vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_hits_total": "gone with vLLM 0.13: vllm:prefix_cache_hits_total",
        "vllm:time_per_output_token_seconds": "gone with vLLM 0.13: vllm:inter_token_latency_seconds",
        "vllm:prompt_tokens_recomputed_total": "gone before vLLM 0.32, without a successor",
    },
    counts={"requests_total": "finished requests by finished_reason, aborted ones and errors included"},
)

# Beside the scheduler's own queue: for grammars that are being compiled; and where prefill and decode are servers of
# their own, for the other side (bootstrap, older: prealloc), for memory, and for the KV cache to arrive.
_SGLANG_QUEUES = " + ".join(
    f"sglang:num_{name}queue_reqs"
    for name in ("", "grammar_", "prefill_bootstrap_", "prefill_prealloc_", "decode_prealloc_", "decode_transfer_")
)
_SGLANG = EngineNames(
    key="sglang",
    name="SGLang",
    owners=("sglang",),
    prefix="sglang:",
    metrics_flag="--enable-metrics",
    values={
        "running": ("sglang:num_running_reqs",),
        "waiting": (_SGLANG_QUEUES,),
        "kv_usage": ("sglang:token_usage",),
        "preemptions_total": ("sglang:num_retracted_requests_total",),
        "prompt_tokens_total": ("sglang:prompt_tokens_total",),
        "generation_tokens_total": ("sglang:generation_tokens_total",),
        "requests_total": ("sglang:num_requests_total",),
        "aborted_total": ("sglang:num_aborted_requests_total",),
        "prefix_queries_tok": ("sglang:prompt_tokens_total",),
        "prefix_hits_tok": ("sglang:cached_tokens_total",),
    },
    histograms={
        "ttft_s": ("sglang:time_to_first_token_seconds",),
        "itl_s": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "queue_s": ("sglang:queue_time_seconds",),
        "e2e_s": ("sglang:e2e_request_latency_seconds",),
    },
    exports=(*("num_used_tokens", "max_total_num_tokens", "cache_hit_rate", "gen_throughput", "num_retracted_reqs"),),
    counts={"preemptions_total": "requests that were retracted from the running batch"},
)
_TGI = EngineNames(
    key="tgi",
    name="TGI",
    version=VersionPath("/info", "version", only_here=True),
    prefix="tgi_",
    values={
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "prompt_tokens_total": ("tgi_request_input_length_sum",),
        "generation_tokens_total": ("tgi_request_generated_tokens_sum",),
        "requests_total": ("tgi_request_success + tgi_request_failure",),
    },
    histograms={
        "tpot_s": ("tgi_request_mean_time_per_token_duration",),
        "queue_s": ("tgi_request_queue_duration",),
        "e2e_s": ("tgi_request_duration",),
    },
    counts={"tpot_s": "inference time over tokens, prefill included"},
)
_LLAMACPP = EngineNames(
    key="llamacpp",
    name="llama.cpp",
    owners=("llamacpp",),
    prefix="llamacpp:",
    metrics_flag="--metrics",
    values={
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_usage": ("llamacpp:kv_cache_usage_ratio",),
        "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
        "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
    },
    exports=(
        *("prompt_seconds_total", "tokens_predicted_seconds_total", "n_decode_total", "n_busy_slots_per_decode"),
        *("prompt_tokens_seconds", "predicted_tokens_seconds", "n_tokens_max", "kv_cache_tokens"),
    ),
    counts={"prompt_tokens_total": "prompt tokens that were computed: those found in a cached prefix are not counted"},
)
_OLLAMA = EngineNames(
    key="ollama", name="Ollama", owners=("library",), version=VersionPath("/api/version", "version", only_here=True)
)
# The embedded engine: its page is vLLM's, with these beside it.
CADENZA = EngineNames(
    key="cadenza",
    name="cadenza",
    owners=("cadenza",),
    version=VersionPath("/version", "version"),
    prefix="cadenza_",
    exports=("simulated", "requests_arrived_total", "steps_total", "step_tokens_total"),
)

# In the order in which a page of metrics is read, and in which versions are asked for.
ENGINES: dict[str, EngineNames] = {engine.key: engine for engine in (_VLLM, _SGLANG, _OLLAMA, _TGI, _LLAMACPP, CADENZA)}
# Those whose page is read into an `EngineState`.
MEASURED = tuple(engine for engine in ENGINES.values() if engine.values)


def name_owner(owned_by: str) -> str | None:
    """The engine whose models say `owned_by`; None: of no engine here."""
    return next((engine.name for engine in ENGINES.values() if owned_by.lower() in engine.owners), None)


def version_paths() -> list[tuple[VersionPath, str | None]]:
    """Where to ask for a version, in order, each once; and the engine that an answer there proves, if it proves one."""
    paths: dict[str, tuple[VersionPath, str | None]] = {}
    for engine in ENGINES.values():
        if engine.version is not None:
            paths.setdefault(engine.version.path, (engine.version, engine.name if engine.version.only_here else None))
    return list(paths.values())


def is_simulated(engine: str, version: str | None) -> bool:
    """Whether a server of this name and version is the embedded engine."""
    return engine == CADENZA.name or (version or "").startswith(CADENZA.key)


def metrics_advice() -> str:
    """What to turn on where an engine shows no page of metrics."""
    return ", ".join(f"{engine.name}: {engine.metrics_flag}" for engine in MEASURED if engine.metrics_flag)
