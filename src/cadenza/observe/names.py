"""Every metric name that an expression may use, the old ones that it may not, and how to find the names in one.

A rule on a name that does not exist never fires and never errors; so no expression is taken whose names are not here.
"""

import re
from itertools import pairwise
from typing import NamedTuple

from cadenza.telemetry.families import FAMILIES

# vLLM 0.32, vllm/v1/metrics/loggers.py; counters without the _total that prometheus_client adds.
_VLLM_GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("num_requests_kv_fetch_by_stage", "engine_sleep_state", "lora_requests_info", "cache_config_info"),
)
_VLLM_COUNTERS = (
    *("num_preemptions", "prompt_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "generation_tokens"),
    *("prompt_tokens_cached_by_source", "request_success", "prefix_cache_queries", "prefix_cache_hits"),
    *("external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"),
    *("admission_rejections", "corrupted_requests", "watermark_requests", "spec_decode_num_drafts"),
    *("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos"),
    *("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu"),
)
_VLLM_HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
    *("request_params_max_tokens", "request_prefill_kv_computed_tokens", "request_num_preemptions"),
    *("iteration_tokens_total", "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds"),
    "kv_block_reuse_gap_seconds",
)
# prometheus-fastapi-instrumentator, in vLLM's server.
_HTTP_COUNTERS = ("http_requests",)
_HTTP_HISTOGRAMS = ("http_request_duration_seconds", "http_request_duration_highr_seconds")
# sgl-project/sglang, python/sglang/srt/observability/metrics_collector.py at 016d860.
_SGLANG = (
    *("num_running_reqs", "num_queue_reqs", "num_grammar_queue_reqs", "token_usage", "num_used_tokens"),
    *("max_total_num_tokens", "cache_hit_rate", "gen_throughput", "prompt_tokens_total", "generation_tokens_total"),
    *("num_requests_total", "num_retracted_requests_total", "num_retracted_reqs"),
)
_SGLANG_HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
    "queue_time_seconds",
)
# ggml-org/llama.cpp, llama-server --metrics.
_LLAMACPP = (
    *("prompt_tokens_total", "prompt_seconds_total", "tokens_predicted_total", "tokens_predicted_seconds_total"),
    *("n_decode_total", "n_busy_slots_per_decode", "prompt_tokens_seconds", "predicted_tokens_seconds"),
    *("requests_processing", "requests_deferred", "n_tokens_max", "kv_cache_usage_ratio", "kv_cache_tokens"),
)
# The embedded engine's own.
_CADENZA_ENGINE = (
    *("cadenza_simulated", "cadenza_requests_arrived_total", "cadenza_steps_total", "cadenza_step_tokens_total"),
)
# What Prometheus writes about each target and each alert by itself, and what it and Alertmanager tell of themselves.
_PROMETHEUS = (
    *("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling"),
    *("scrape_series_added", "ALERTS", "ALERTS_FOR_STATE"),
    *("prometheus_build_info", "prometheus_config_last_reload_successful", "prometheus_tsdb_head_series"),
    *("prometheus_rule_evaluation_failures_total", "prometheus_notifications_dropped_total"),
    *("prometheus_notifications_alertmanagers_discovered", "prometheus_tsdb_head_samples_appended_total"),
    *("alertmanager_build_info", "alertmanager_alerts", "alertmanager_notifications_failed_total"),
)

# Name → what to write in its place. The first two stand in a published article and never existed.
OLD_NAMES = {
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
    "rocm_gpu_busy_percent": "an exporter of one article: gpu_busy_ratio, 0 to 1",
    "rocm_vram_used_bytes": 'an exporter of one article: gpu_memory_used_bytes{pool="vram"}',
    "rocm_vram_total_bytes": 'an exporter of one article: gpu_memory_size_bytes{pool="vram"}',
    "rocm_temperature_celsius": "an exporter of one article: gpu_temperature_celsius",
}

_SERIES = ("_bucket", "_sum", "_count")

# Of cadenza's exporter before the label `vendor`.
OLD_NAMES |= {
    f"{prefix}_{name.removeprefix('gpu_')}": f'renamed: {name}{{vendor="{vendor}"}}'
    for name in FAMILIES
    if name.startswith("gpu_")
    for prefix, vendor in (("amdgpu", "amd"), ("nvidia", "nvidia"))
}


def _all() -> frozenset[str]:
    names = {*FAMILIES, *_CADENZA_ENGINE, *_PROMETHEUS}
    names |= {f"vllm:{name}" for name in _VLLM_GAUGES} | {f"vllm:{name}_total" for name in _VLLM_COUNTERS}
    names |= {f"vllm:{name}{series}" for name in _VLLM_HISTOGRAMS for series in _SERIES}
    names |= {f"{name}_total" for name in _HTTP_COUNTERS}
    names |= {f"{name}{series}" for name in _HTTP_HISTOGRAMS for series in _SERIES}
    names |= {f"sglang:{name}" for name in _SGLANG}
    names |= {f"sglang:{name}{series}" for name in _SGLANG_HISTOGRAMS for series in _SERIES}
    return frozenset(names | {f"llamacpp:{name}" for name in _LLAMACPP})


KNOWN = _all()
# What a target carries whatever it exports; `le` is a histogram's.
TARGET_LABELS = frozenset({"job", "instance", "node", "le"})

_TOKEN = re.compile(
    r"""
      (?P<string> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` )
    | (?P<comment> \#[^\n]* )
    | (?P<range> \[[^\]]*\] )
    | (?P<variable> \$\{?\w+\}? )
    | (?P<number> (?:0x[0-9a-fA-F]+ | \d[\w.]* | \.\d+) )
    | (?P<name> [a-zA-Z_:][a-zA-Z0-9_:]* )
    | (?P<mark> [{}(),] | =~ | !~ | != | = )
    """,
    re.VERBOSE,
)
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = _GROUPING | {"and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end", "atan2"}


class Use(NamedTuple):
    """A metric in an expression, and the labels that its braces match on."""

    name: str
    labels: tuple[str, ...]


def find_uses(expression: str) -> list[Use]:
    """The metrics of a PromQL expression in order, Grafana's variables allowed.

    Braces without a name before them count as a metric with an empty name. The result for text that is no
    PromQL is unspecified; promtool checks the syntax.
    """
    tokens = [(match.lastgroup, match.group()) for match in _TOKEN.finditer(expression) if match.lastgroup != "comment"]
    uses: list[Use] = []
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1].lower() if at + 1 < len(tokens) else ""
        at += 1
        name = ""
        if kind == "name":
            if text.lower() in _GROUPING and following == "(":
                at = _after(tokens, at, ")")
            # A name before a bracket is a function; before `by`, an operator: `sum by (x) (…)`.
            if text.lower() in _WORDS or following in ("(", "by", "without"):
                continue
            if following != "{":
                uses.append(Use(text, ()))
                continue
            name, at = text, at + 1
        elif text != "{":
            continue
        end = _after(tokens, at, "}")
        uses.append(Use(name, _labels(tokens[at:end])))
        at = end
    return uses


def _labels(tokens: list[tuple[str | None, str]]) -> tuple[str, ...]:
    return tuple(one[1] for one, sign in pairwise(tokens) if one[0] == "name" and sign[1] in ("=", "!=", "=~", "!~"))


def _after(tokens: list[tuple[str | None, str]], at: int, mark: str) -> int:
    """The place behind the next `mark`, or the end."""
    return next((place + 1 for place in range(at, len(tokens)) if tokens[place][1] == mark), len(tokens))


def find_wrong_names(expression: str, recorded: frozenset[str] = frozenset()) -> list[str]:
    """A sentence for each name that no known program exports, and each label that a family of cadenza has not.

    recorded  the names that the bundle's rules record
    """
    wrong = []
    for name, labels in find_uses(expression):
        if "__name__" in labels or not name:
            wrong.append("a selector without a metric name cannot be checked: write the name before the braces")
        elif name in recorded:
            continue
        elif old := _find_old(name):
            wrong.append(f"{name}: {old}")
        elif name not in KNOWN:
            wrong.append(f"{name} is not exported by cadenza, vLLM, SGLang, llama.cpp or Prometheus")
        elif name in FAMILIES and (strange := set(labels) - TARGET_LABELS - set(FAMILIES[name].labels)):
            has = ", ".join(FAMILIES[name].labels) or "none"
            wrong.append(f"{name} has no label {', '.join(sorted(strange))}; its labels: {has}")
    return list(dict.fromkeys(wrong))


def _find_old(name: str) -> str | None:
    return OLD_NAMES.get(name) or next(
        (OLD_NAMES[stem] for end in _SERIES if (stem := name.removesuffix(end)) != name and stem in OLD_NAMES), None
    )
