"""The counters against lives written by hand: what vLLM's definitions make of them, reckoned on paper."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.engine.core.metrics import Histogram, Metrics, Reason
from cadenza.engine.core.sequence import Limits, Sequence
from cadenza.hardware.batch import Batch

MS = 1_000_000


def make_metrics(**limits: int) -> Metrics:
    return Metrics("acme/tiny", msgspec.structs.replace(Limits(max_model_len=2048), **limits))


def make_batch(decode_tok: int = 0, prefill_tok: int = 0) -> Batch:
    return Batch(sequences=1, decode_tok=decode_tok, prefill_tok=prefill_tok, context_tok=0, pairs=0)


def bucket_of(histogram: Histogram) -> dict[str, int]:
    """Upper bound → observations in that bucket alone, where there are any."""
    names = [*map(str, histogram.bounds), "inf"]
    return {name: count for name, count in zip(names, histogram.counts, strict=True) if count}


def observed(metrics: Metrics, name: str) -> tuple[int, float]:
    """How many, and their sum in the family's own unit."""
    histogram = metrics.histograms[name]
    return sum(histogram.counts), histogram.sum / histogram.unit


def live(metrics: Metrics) -> Sequence:
    """A prompt of 600 tokens, 100 of them cached, in chunks of 300 and 200, then three tokens more.

    Arrives at 100 ms, is admitted at 130, has its tokens at 200, 240, 290 and 380, and its answer is out at 385.
    """
    sequence = Sequence(id=7, prompt=range(600), output_tokens=4, arrival_ns=100 * MS, max_tokens=64)
    metrics.arrived(sequence)
    metrics.cache_looked_up(600, 100)
    sequence.cached, sequence.scheduled_ns = 100, 130 * MS
    metrics.stepped(make_batch(prefill_tok=300), {})
    sequence.first_token_ns, sequence.produced = 200 * MS, 1
    metrics.first_token(sequence, 200 * MS)
    metrics.stepped(make_batch(prefill_tok=200), {})
    for gap_ms in (40, 50, 90):
        sequence.produced += 1
        metrics.stepped(make_batch(decode_tok=1), {gap_ms * MS: 1})
    sequence.last_token_ns = 380 * MS
    return sequence


def test_the_intervals_are_vllms() -> None:
    metrics = make_metrics()
    metrics.ended(live(metrics), "length", 385 * MS)
    assert {
        name: observed(metrics, name)
        for name in metrics.histograms
        if name.endswith("_seconds") and not name.startswith("inter")
    } == {
        "time_to_first_token_seconds": (1, 0.100),
        "e2e_request_latency_seconds": (1, 0.285),
        "request_queue_time_seconds": (1, 0.030),
        "request_prefill_time_seconds": (1, 0.070),
        "request_decode_time_seconds": (1, 0.180),
        "request_inference_time_seconds": (1, 0.250),
        "request_time_per_output_token_seconds": (1, 0.060),
    }
    assert observed(metrics, "inter_token_latency_seconds") == (3, 0.180)
    assert bucket_of(metrics.histograms["inter_token_latency_seconds"]) == {"0.05": 2, "0.1": 1}


def test_tokens_are_counted_when_vllm_hears_of_them() -> None:
    metrics = make_metrics()
    sequence = live(metrics)
    metrics.ended(sequence, "length", 385 * MS)
    assert (metrics.prompt_tok, metrics.prompt_cached_tok, metrics.generated_tok) == (600, 100, 4)
    assert (metrics.cache_queries_tok, metrics.cache_hits_tok) == (600, 100)
    # The first chunk gave out nothing; the pass that finished the prompt counts all 500 computed and its token.
    assert observed(metrics, "iteration_tokens_total") == (4, 501 + 3)
    assert bucket_of(metrics.histograms["iteration_tokens_total"]) == {"1.0": 3, "512.0": 1}
    assert (metrics.steps, metrics.step_prefill_tok, metrics.step_decode_tok) == (5, 500, 3)
    assert observed(metrics, "request_prompt_tokens") == (1, 600)
    assert observed(metrics, "request_prefill_kv_computed_tokens") == (1, 500)
    assert observed(metrics, "request_generation_tokens") == (1, 4)
    assert observed(metrics, "request_max_num_generation_tokens") == (1, 4)
    assert observed(metrics, "request_params_n") == (1, 1)
    assert observed(metrics, "request_params_max_tokens") == (1, 64)


def test_a_prompt_under_way_is_not_counted_yet() -> None:
    metrics = make_metrics()
    metrics.stepped(make_batch(prefill_tok=2048), {})
    assert (metrics.prompt_tok, metrics.generated_tok, metrics.step_prefill_tok) == (0, 0, 2048)
    assert observed(metrics, "iteration_tokens_total") == (0, 0)


@pytest.mark.parametrize(("max_tokens", "asked"), [(None, 1448), (64, 64), (5000, 1448)])
def test_max_tokens_is_what_the_context_leaves_at_most(max_tokens: int | None, asked: int) -> None:
    metrics = make_metrics()
    sequence = live(metrics)
    sequence.max_tokens = max_tokens
    metrics.ended(sequence, "stop", 385 * MS)
    assert observed(metrics, "request_params_max_tokens") == (1, asked)


def test_a_prompt_that_fills_the_context_could_ask_for_nothing() -> None:
    metrics = make_metrics(max_model_len=600)
    metrics.ended(live(metrics), "length", 385 * MS)
    assert observed(metrics, "request_params_max_tokens") == (0, 0)


def test_one_token_has_a_tpot_of_0_as_in_vllm() -> None:
    metrics = make_metrics()
    sequence = Sequence(id=1, prompt=range(5), output_tokens=1, produced=1, first_token_ns=9 * MS, last_token_ns=9 * MS)
    metrics.first_token(sequence, 9 * MS)
    metrics.ended(sequence, "stop", 9 * MS)
    assert observed(metrics, "request_time_per_output_token_seconds") == (1, 0)
    assert observed(metrics, "request_decode_time_seconds") == (1, 0)
    assert observed(metrics, "request_queue_time_seconds") == (1, 0)


def test_a_preempted_request_keeps_its_first_figures() -> None:
    metrics = make_metrics()
    sequence = live(metrics)
    metrics.preempted(1)
    sequence.preemptions, sequence.cached = 1, 592
    metrics.ended(sequence, "length", 385 * MS)
    assert metrics.preemptions == 1
    assert observed(metrics, "request_num_preemptions") == (1, 1)
    assert observed(metrics, "request_prefill_kv_computed_tokens") == (1, 500)


def test_an_abandoned_request_is_counted_but_not_measured() -> None:
    metrics = make_metrics()
    sequence = live(metrics)
    before = {name: observed(metrics, name) for name in metrics.histograms}
    metrics.ended(sequence, "abort", 300 * MS)
    assert metrics.endings == {"stop": 0, "length": 0, "abort": 1, "error": 0, "repetition": 0}
    assert {name: observed(metrics, name) for name in metrics.histograms} == before


def test_what_a_request_did_not_live_to_see_is_not_observed() -> None:
    metrics = make_metrics()
    sequence = Sequence(id=1, prompt=range(5), output_tokens=9, arrival_ns=100 * MS)
    metrics.arrived(sequence)
    metrics.ended(sequence, "error", 350 * MS)
    lived = {name for name in metrics.histograms if observed(metrics, name)[0]}
    assert observed(metrics, "e2e_request_latency_seconds") == (1, 0.25)
    assert not {name for name in lived if name.endswith("_seconds")} - {"e2e_request_latency_seconds"}
    sequence.scheduled_ns = 160 * MS
    metrics.ended(sequence, "error", 350 * MS)
    assert observed(metrics, "request_queue_time_seconds") == (1, 0.06)
    assert observed(metrics, "request_prefill_time_seconds") == (0, 0)
    assert observed(metrics, "request_prefill_kv_computed_tokens") == (0, 0)


def test_requests_add_up() -> None:
    metrics = make_metrics()
    reasons: tuple[Reason, ...] = ("stop", "length", "abort", "error")
    for at, reason in enumerate(reasons):
        sequence = Sequence(id=at, prompt=range(5), output_tokens=1)
        metrics.arrived(sequence)
        metrics.ended(sequence, reason, at)
    metrics.arrived(Sequence(id=9, prompt=range(5), output_tokens=1))
    assert metrics.arrivals - sum(metrics.endings.values()) == 1


def test_speculation_gives_more_tokens_than_gaps() -> None:
    metrics = make_metrics(num_speculative_tokens=3)
    # Of two sequences one had all three accepted, the other the first only: 4 and 2 tokens.
    metrics.speculated(2, 6, [2, 1, 1])
    metrics.stepped(make_batch(decode_tok=8), {30 * MS: 2}, generated_tok=6)
    assert (metrics.drafts, metrics.draft_tok, metrics.accepted) == (2, 6, [2, 1, 1])
    assert metrics.generated_tok == 6
    assert observed(metrics, "inter_token_latency_seconds") == (2, 0.06)
    assert observed(metrics, "iteration_tokens_total") == (1, 6)


def test_rejections_are_counted_by_limit() -> None:
    metrics = make_metrics()
    metrics.rejected("max_num_queued_tokens")
    assert metrics.rejections == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 1}


def test_token_buckets_end_at_the_context() -> None:
    assert make_metrics(max_model_len=20).histograms["request_prompt_tokens"].bounds == (1, 2, 5, 10, 20)
    assert make_metrics(max_model_len=99).histograms["request_prompt_tokens"].bounds == (1, 2, 5, 10, 20, 50)


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    metrics = make_metrics()
    for _ in range(3):
        metrics.ended(live(metrics), "stop", 385 * MS)
    assert metrics._cached == {}


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = make_metrics().histograms["inter_token_latency_seconds"]
    for gap_ns in (25 * MS, 25 * MS + 1, 80_000 * MS, 80_000 * MS + 1):
        histogram.observe(gap_ns)
    assert bucket_of(histogram) == {"0.025": 1, "0.05": 1, "80.0": 1, "inf": 1}


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 300))))
def test_equal_gaps_taken_together_are_the_same_as_one_by_one(gaps: list[tuple[int, int]]) -> None:
    together, one_by_one = make_metrics(), make_metrics()
    for gap_ns, count in gaps:
        together.stepped(make_batch(count), {gap_ns: count})
        for _ in range(count):
            one_by_one.histograms["inter_token_latency_seconds"].observe(gap_ns)
    mine = together.histograms["inter_token_latency_seconds"]
    assert mine.counts == one_by_one.histograms["inter_token_latency_seconds"].counts
    assert mine.sum == sum(gap_ns * count for gap_ns, count in gaps)
    assert together.generated_tok == sum(mine.counts) == sum(count for _, count in gaps)


@given(st.lists(st.integers(0, 40)), st.sets(st.integers(0, 40), min_size=1))
def test_a_histogram_counts_as_its_definition_does(values: list[int], bounds: set[int]) -> None:
    histogram = Histogram(sorted(bounds))
    for value in values:
        histogram.observe(value)
    expected = Counter(min((bound for bound in bounds if value <= bound), default=None) for value in values)
    assert histogram.counts == [expected[bound] for bound in sorted(bounds)] + [expected[None]]
    assert histogram.sum == sum(values)
