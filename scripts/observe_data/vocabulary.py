"""PromQL for one quantity over all engines that export it: vLLM, SGLang and llama.cpp; and over the cards."""

from typing import NamedTuple

from cadenza.telemetry.engines import ENGINES

# One series a server and model. llama.cpp names no model: there it is empty.
BY_MODEL = "node, instance, model_name"


class Series(NamedTuple):
    """The names of one quantity; empty where an engine does not export it. Histograms without their suffix."""

    vllm: str
    sglang: str = ""
    llamacpp: str = ""


def _of(field: str) -> Series:
    """The newest names of a field of `telemetry.engine_state.EngineState`."""
    return Series(*(ENGINES[engine].newest(field) for engine in Series._fields))


RUNNING = _of("running")
WAITING = _of("waiting")
KV_USAGE = _of("kv_usage")
PROMPT_TOKENS = _of("prompt_tokens_total")
GENERATED_TOKENS = _of("generation_tokens_total")
ENDED = _of("requests_total")
PREEMPTIONS = _of("preemptions_total")
TTFT = _of("ttft_s")
ITL = _of("itl_s")
E2E = _of("e2e_s")
QUEUE = _of("queue_s")
# What moves while a long prompt is computed piece by piece; counters of tokens move at its end only.
PROGRESS = KV_USAGE._replace(llamacpp="llamacpp:n_decode_total")

# Every rank of an SGLang engine may export the engine's gauges: one is enough. Which ranks are labelled depends on the
# version.
_FIRST_RANK = 'tp_rank=~"0?",pp_rank=~"0?"'


def now(series: Series, where: str = "", offset: str = "") -> str:
    """The gauge, over all engines that export it. `where`: matchers, `offset`: as in "offset 1h"."""
    return "\n  or ".join(_gauges(series, where, offset))


def rate(series: Series, window: str, where: str = "", offset: str = "", suffix: str = "") -> str:
    """Per second over `window`; `suffix` for a histogram: _bucket, _sum, _count."""
    return "\n  or ".join(
        f"rate({_select(name + suffix, where, '')}[{window}]{' ' + offset if offset else ''})"
        for name in series
        if name
    )


def by_model(expression: str, operator: str = "sum") -> str:
    """One value a server and model; data-parallel engines of one server are taken together."""
    return f"{operator} by ({BY_MODEL}) ({expression})"


def quantile(share: float, series: Series, window: str, where: str = "", offset: str = "") -> str:
    """The `share` quantile over `window`, nothing where nothing was observed in it (PromQL alone would say NaN)."""
    buckets = f"sum by (le, {BY_MODEL}) ({rate(series, window, where, offset, '_bucket')})"
    seen = by_model(rate(series, window, where, offset, "_count"))
    return f"histogram_quantile({share:g}, {buckets})\nand on ({BY_MODEL}) {seen} > 0"


def card(name: str, where: str = "") -> str:
    """A series of the cards: `name` without the prefix `gpu_`. `where`: matchers."""
    return _select(f"gpu_{name}", where, "")


def card_over(function: str, name: str, window: str, where: str = "") -> str:
    """`function` of a series of the cards over `window`: rate, avg_over_time, …"""
    return f"{function}({card(name, where)}[{window}])"


def _gauges(series: Series, where: str = "", offset: str = "") -> list[str]:
    vllm, sglang, llamacpp = series
    parts = [_select(vllm, where, offset)]
    if sglang:
        parts.append(_select(sglang, f"{where},{_FIRST_RANK}" if where else _FIRST_RANK, offset))
    if llamacpp:
        parts.append(_select(llamacpp, where, offset))
    return parts


def _select(name: str, where: str, offset: str) -> str:
    return name + (f"{{{where}}}" if where else "") + (f" {offset}" if offset else "")
