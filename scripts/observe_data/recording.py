"""Recording rules: one vocabulary over engines and cards, quantiles over a minute, joules per token.

Names as Prometheus recommends: level:metric:operations. `model` is one model on one server, `gpu` one card, `run` one
run of cadenza.
"""

from typing import NamedTuple

from observe_data import vocabulary as words
from observe_data.vocabulary import Series, by_model, card, card_over, now, quantile, rate

QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
VRAM = 'pool="vram"'
CRITICAL = 'limit="crit"'
LATENCIES: dict[str, Series] = {"ttft": words.TTFT, "itl": words.ITL, "e2e": words.E2E, "queue": words.QUEUE}


class Recording(NamedTuple):
    record: str
    expr: str


_STATE = (
    Recording("model:engine_requests_running:sum", by_model(now(words.RUNNING))),
    Recording("model:engine_requests_waiting:sum", by_model(now(words.WAITING))),
    Recording(
        "model:engine_requests_in_system:sum",
        "model:engine_requests_running:sum + model:engine_requests_waiting:sum",
    ),
    # A maximum: a sum or mean over engines hides the one that is full.
    Recording("model:engine_kv_usage:max", by_model(now(words.KV_USAGE), "max")),
    Recording("model:engine_generation_tokens:rate1m", by_model(rate(words.GENERATED_TOKENS, "1m"))),
    Recording("model:engine_prompt_tokens:rate1m", by_model(rate(words.PROMPT_TOKENS, "1m"))),
    Recording("model:engine_requests_ended:rate1m", by_model(rate(words.ENDED, "1m"))),
    Recording("model:engine_preemptions:rate1m", by_model(rate(words.PREEMPTIONS, "1m"))),
    Recording(
        "model:engine_prefix_cache_hits:ratio_rate5m",
        f"{by_model('rate(vllm:prefix_cache_hits_total[5m])')}\n"
        f"/ ({by_model('rate(vllm:prefix_cache_queries_total[5m])')} > 0)\n"
        f"or {by_model('sglang:cache_hit_rate', 'max')}",
    ),
    # Tokens of the run's model on all engines, from any client: the series of a run names no engine.
    Recording(
        "run:engine_generation_tokens:rate1m",
        "max by (node, run, model) (cadenza_run_info)\n* on (model) group_left ()\nsum by (model) (\n"
        '  label_replace(model:engine_generation_tokens:rate1m, "model", "$1", "model_name", "(.+)")\n)',
    ),
)
_LATENCY = tuple(
    Recording(f"model:engine_{name}_seconds:{short}_rate1m", quantile(share, series, "1m"))
    for name, series in LATENCIES.items()
    for share, short in QUANTILES
)
_CARDS = (
    Recording("gpu:busy:ratio", f"max by (node, gpu) ({card('busy_ratio')})"),
    Recording(
        "gpu:memory_used:ratio",
        f"max by (node, gpu) (\n  {card('memory_used_bytes', VRAM)}\n  / {card('memory_size_bytes', VRAM)}\n)",
    ),
    Recording("gpu:power_watts:max", f"max by (node, gpu) ({card('power_watts')})"),
    Recording(
        "gpu:temperature_margin_celsius:min",
        f"min by (node, gpu) (\n  {card('temperature_limit_celsius', CRITICAL)}\n"
        f"  - ignoring (limit) {card('temperature_celsius')}\n)",
    ),
    Recording("node:gpu_power_watts:sum", "sum by (node) (gpu:power_watts:max)"),
    # By the card's energy counter where it has one that increases.
    Recording(
        "gpu:power_watts:mean1m",
        f"max by (node, gpu) ({card_over('rate', 'energy_joules_total', '1m')}) > 0\n"
        "or avg_over_time(gpu:power_watts:max[1m])",
    ),
    Recording("node:engine_generation_tokens:rate1m", "sum by (node) (model:engine_generation_tokens:rate1m)"),
    Recording("node:engine_requests_running:sum", "sum by (node) (model:engine_requests_running:sum)"),
    # Energy over tokens of the last minute, only if requests ran through all of it: otherwise idle energy would be
    # divided by few tokens.
    Recording(
        "node:gpu_energy_per_token:joules",
        "sum by (node) (gpu:power_watts:mean1m) / on (node) (node:engine_generation_tokens:rate1m > 0)\n"
        "and on (node) min_over_time(node:engine_requests_running:sum[1m]) > 0\n"
        # After a start of Prometheus there is less than a minute of data.
        "and on (node) node:engine_requests_running:sum offset 1m > 0",
    ),
)
GROUPS: dict[str, tuple[Recording, ...]] = {
    "cadenza-engine": _STATE,
    "cadenza-latency": _LATENCY,
    "cadenza-cards": _CARDS,
}
RECORDED = frozenset(rule.record for rules in GROUPS.values() for rule in rules)


def recording_rules() -> dict[str, object]:
    """rules/recording.yml, as plain values."""
    return {"groups": [{"name": name, "rules": [rule._asdict() for rule in rules]} for name, rules in GROUPS.items()]}
