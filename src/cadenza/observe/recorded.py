"""What the recording rules give, worked out by hand: the rest of rules/tests.yml."""

from typing import NamedTuple

from cadenza.observe.cases import (
    CARD,
    ENGINE,
    MODEL,
    MODEL_LABELS,
    NODE_GPU,
    OTHER_CARD,
    Samples,
    tokens_and_running,
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
        f'amdgpu_power_watts{{{CARD},type="average"}}': "100x90",
        f"vllm:generation_tokens_total{{{MODEL}}}": "0x29 0+500x30 15000x30",
        f"vllm:num_requests_running{{{MODEL}}}": "0x29 0 1x29 0x30",
    }
    node = {"node": "box"}
    return (
        Recorded(name, "no requests", load, node, None, "5m"),
        Recorded(name, "the first minute has a pause in it", load, node, None, "5m50s"),
        Recorded(name, "100 W over 50 tokens a second, after a minute", load, node, 2, "6m10s"),
        Recorded(name, "the same at the end", load, node, 2, "9m50s"),
        Recorded(name, "the last minute ends in a pause", load, node, None, "10m10s"),
        Recorded(name, "the maximum", load, node, 2, "14m", f"max_over_time({name}[14m])"),
        Recorded(name, "the minimum", load, node, 2, "14m", f"min_over_time({name}[14m])"),
        Recorded(name, "less than a minute of data", load | tokens_and_running(500, 1), node, None, "50s"),
    )


RECORDED_CASES = (
    Recorded(
        "model:engine_requests_in_system:sum",
        "two engines of one server: 3 + 1 running, 2 + 0 waiting",
        {
            f"vllm:num_requests_running{{{MODEL}}}": "3x20",
            f"vllm:num_requests_waiting{{{MODEL}}}": "2x20",
            f'vllm:num_requests_running{{{ENGINE},model_name="m",engine="1"}}': "1x20",
            f'vllm:num_requests_waiting{{{ENGINE},model_name="m",engine="1"}}': "0x20",
        },
        MODEL_LABELS,
        6,
    ),
    Recorded(
        "model:engine_requests_running:sum",
        "an SGLang engine on two cards exports it twice",
        {
            f'sglang:num_running_reqs{{{ENGINE},model_name="m",tp_rank="0",pp_rank="0"}}': "5x20",
            f'sglang:num_running_reqs{{{ENGINE},model_name="m",tp_rank="1",pp_rank="0"}}': "5x20",
        },
        MODEL_LABELS,
        5,
    ),
    Recorded(
        "model:engine_generation_tokens:rate1m",
        "llama.cpp, 120 tokens in ten seconds, without a model name",
        {f"llamacpp:tokens_predicted_total{{{ENGINE}}}": "0+120x20"},
        {"node": "box", "instance": "box:8000"},
        12,
    ),
    Recorded(
        "model:engine_ttft_seconds:p50_rate1m",
        "rank 50 of 100 is half way through the second bucket's 60: 0.25 + (50 − 20) / 60 · 0.25",
        {
            f'vllm:time_to_first_token_seconds_bucket{{{MODEL},le="0.25"}}': "0+20x20",
            f'vllm:time_to_first_token_seconds_bucket{{{MODEL},le="0.5"}}': "0+80x20",
            f'vllm:time_to_first_token_seconds_bucket{{{MODEL},le="+Inf"}}': "0+100x20",
            f"vllm:time_to_first_token_seconds_count{{{MODEL}}}": "0+100x20",
        },
        MODEL_LABELS,
        0.375,
    ),
    Recorded(
        "model:engine_prefix_cache_hits:ratio_rate5m",
        "30 of 120 tokens",
        {
            f"vllm:prefix_cache_hits_total{{{MODEL}}}": "0+30x20",
            f"vllm:prefix_cache_queries_total{{{MODEL}}}": "0+120x20",
        },
        MODEL_LABELS,
        0.25,
    ),
    Recorded(
        "gpu:temperature_margin_celsius:min",
        "edge has 30 °C to go, junction 20",
        {
            f'amdgpu_temperature_celsius{{{CARD},sensor="edge"}}': "70x20",
            f'amdgpu_temperature_limit_celsius{{{CARD},sensor="edge",limit="crit"}}': "100x20",
            f'amdgpu_temperature_celsius{{{CARD},sensor="junction"}}': "90x20",
            f'amdgpu_temperature_limit_celsius{{{CARD},sensor="junction",limit="crit"}}': "110x20",
        },
        NODE_GPU,
        20,
    ),
    Recorded(
        "node:gpu_energy_per_token:joules",
        "180 + 220 W over 50 tokens a second",
        {
            f'amdgpu_power_watts{{{CARD},type="average"}}': "180x20",
            f'nvidia_power_watts{{{OTHER_CARD},type="average"}}': "220x20",
        }
        | tokens_and_running(500, 1),
        {"node": "box"},
        8,
    ),
    Recorded(
        "node:gpu_energy_per_token:joules",
        "180 W, and 1,200 J in ten seconds by the other card's counter, over 50 tokens a second",
        {
            f'amdgpu_power_watts{{{CARD},type="average"}}': "180x20",
            f"amdgpu_energy_joules_total{{{CARD}}}": "5x20",  # one that stands still tells nothing
            f'nvidia_power_watts{{{OTHER_CARD},type="average"}}': "220x20",
            f"nvidia_energy_joules_total{{{OTHER_CARD}}}": "0+1200x20",
        }
        | tokens_and_running(500, 1),
        {"node": "box"},
        6,
    ),
    *_energy(),
    Recorded(
        "run:engine_generation_tokens:rate1m",
        "two servers of the run's model make 50 and 12 tokens a second, another model is not counted",
        {
            'cadenza_run_info{job="exporter",instance="desk:9101",node="desk",run="r",point="1",model="m",'
            'concurrency="8",load="C = 8"}': "1x20",
            f"vllm:generation_tokens_total{{{MODEL}}}": "0+500x20",
            'vllm:generation_tokens_total{job="engine",instance="rack:8000",node="rack",model_name="m",engine="0"}': (
                "0+120x20"
            ),
            f'vllm:generation_tokens_total{{{ENGINE},model_name="other",engine="0"}}': "0+900x20",
        },
        {"node": "desk", "run": "r", "model": "m"},
        62,
    ),
)
