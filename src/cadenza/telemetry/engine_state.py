"""What an engine says of itself, in one vocabulary whatever its make: counters, gauges, histograms, each or None."""

import msgspec


class Histogram(msgspec.Struct, frozen=True):
    """`cumulative[i]` observations were at most `bounds[i]` (the last bound is infinite: all of them); `sum` of all."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        return self.cumulative[-1] if self.cumulative else 0.0


class EngineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model of one engine at the instant of the scrape; counters since its start. None: it does not say.

    engine               vllm | sglang | tgi | llamacpp
    running, waiting     requests admitted, and in the queue
    kv_usage             share of the KV cache in use, 0 to 1
    requests_total       finished requests, whatever came of them; aborted_total those that clients left
    prefix_queries_tok, prefix_hits_tok   prompt tokens looked up in the prefix cache, and found
    ttft_s … e2e_s       seconds; tpot_s is one value a request, itl_s one a gap
    """

    engine: str
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_total: float | None = None
    aborted_total: float | None = None
    prefix_queries_tok: float | None = None
    prefix_hits_tok: float | None = None
    ttft_s: Histogram | None = None
    itl_s: Histogram | None = None
    tpot_s: Histogram | None = None
    queue_s: Histogram | None = None
    prefill_s: Histogram | None = None
    decode_s: Histogram | None = None
    e2e_s: Histogram | None = None
