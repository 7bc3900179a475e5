"""The dashboard of one engine: load, latency, cache, lengths, HTTP."""

from observe_data import vocabulary as words
from observe_data.grafana import Json, Panel, Query, Section, dashboard
from observe_data.panels import (
    ALERT_NOTE,
    INSTANCES,
    LOAD_NOTE,
    MODEL,
    MODELS,
    NODES,
    OF_MODEL,
    ON_NODE,
    RUN_NOTE,
    WINDOW,
    gauge,
    quantiles,
)
from observe_data.recording import QUANTILES
from observe_data.vocabulary import Series, by_model, quantile, rate


def engine() -> Json:
    """The dashboard as Grafana reads it."""
    sections = (
        Section("Load", _load()),
        Section("Latency", _latency()),
        Section("Cache", _cache()),
        Section("Requests", _requests()),
    )
    text = "One engine: vLLM in full, SGLang and llama.cpp as far as they export the same metrics."
    variables = (NODES, INSTANCES, MODELS)
    return dashboard("cadenza-engine", "cadenza: engine", text, sections, variables, (LOAD_NOTE, RUN_NOTE, ALERT_NOTE))


def _only_vllm(name: str) -> tuple[Query, ...]:
    """Quantiles of a histogram that only vLLM exports."""
    return tuple(
        Query(quantile(share, Series(f"vllm:{name}"), WINDOW, OF_MODEL), f"{short} {MODEL}")
        for share, short in QUANTILES
    )


def _load() -> tuple[Panel, ...]:
    ended = f"sum by (finished_reason) (rate(vllm:request_success_total{{{OF_MODEL}}}[{WINDOW}]))"
    waiting = f"sum by (reason) (vllm:num_requests_waiting_by_reason{{{OF_MODEL}}})"
    queue = (
        gauge("model:engine_requests_running:sum", legend=f"running {MODEL}"),
        gauge("model:engine_requests_waiting:sum", legend=f"waiting {MODEL}"),
    )
    generated = Query(by_model(rate(words.GENERATED_TOKENS, WINDOW, OF_MODEL)), MODEL)
    prompts = Query(by_model(rate(words.PROMPT_TOKENS, WINDOW, OF_MODEL)), MODEL)
    return (
        Panel("Finished requests by reason", (Query(ended, "{{finished_reason}}"),), "reqps", stacked=True),
        Panel("Requests running and waiting", queue),
        Panel("Waiting requests by reason", (Query(waiting, "{{reason}}"),)),
        Panel("Generated tokens per second", (generated,)),
        Panel("Prompt tokens per second", (prompts,)),
        Panel("Tokens per step", _only_vllm("iteration_tokens_total")),
    )


def _latency() -> tuple[Panel, ...]:
    first = f"sum by (le) ({rate(words.TTFT, WINDOW, OF_MODEL, suffix='_bucket')})"
    gaps = f"sum by (le) ({rate(words.ITL, WINDOW, OF_MODEL, suffix='_bucket')})"
    arrival = "From arrival at the engine. Network and client time are in the report of the client."
    fine = "vLLM has no bucket below 10 ms: values below it are interpolated from 0."
    return (
        Panel("TTFT", quantiles("ttft"), "s", width=6, description=arrival),
        Panel("ITL (time between tokens)", quantiles("itl"), "s", width=6, description=fine),
        Panel("Request latency", quantiles("e2e"), "s", width=6),
        Panel("Queue time", quantiles("queue"), "s", width=6),
        Panel("TTFT distribution", (Query(first, "{{le}}"),), "s", "heatmap", 12),
        Panel("ITL distribution", (Query(gaps, "{{le}}"),), "s", "heatmap", 12),
        Panel("Prefill time", _only_vllm("request_prefill_time_seconds"), "s"),
        Panel("Decode time", _only_vllm("request_decode_time_seconds"), "s"),
        Panel("TPOT per request", _only_vllm("request_time_per_output_token_seconds"), "s"),
    )


def _cache() -> tuple[Panel, ...]:
    full = ((0.92, "orange"),)
    hits = (gauge("model:engine_prefix_cache_hits:ratio_rate5m"),)
    return (
        Panel("KV cache usage", (gauge("model:engine_kv_usage:max"),), "percentunit", maximum=1, steps=full),
        Panel("Preemptions per second", (gauge("model:engine_preemptions:rate1m"),)),
        Panel("Prefix cache hit ratio", hits, "percentunit", maximum=1),
    )


def _requests() -> tuple[Panel, ...]:
    here = f'{ON_NODE},instance=~"$instance"'
    status = Query(f"sum by (status) (rate(http_requests_total{{{here}}}[{WINDOW}]))", "{{status}}")
    scrape = Query(f'scrape_duration_seconds{{job="engine",{here}}}', "{{instance}}")
    return (
        Panel("Prompt length", _only_vllm("request_prompt_tokens"), width=6),
        Panel("Output length", _only_vllm("request_generation_tokens"), width=6),
        Panel("HTTP responses by status", (status,), "reqps", width=6),
        Panel("Scrape duration", (scrape,), "s", width=6, empty="no engine"),
    )
