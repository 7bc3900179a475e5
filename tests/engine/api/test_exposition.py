"""The page against one that vLLM 0.32 served, and against the formats' own readers."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Sample

from cadenza.engine.api.exposition import render
from cadenza.engine.api.http_counts import HttpCounts
from cadenza.engine.core.metrics import Gauges, Metrics
from cadenza.engine.core.sequence import Limits, Sequence
from cadenza.hardware.batch import Batch

RECORDED = Path(__file__).parents[2] / "golden" / "metrics" / "vllm-0.32.txt"
MS = 1_000_000
IDLE = Gauges(running=0, waiting=0, kv_cache_usage=0.0)
HTTP_SIZES = {"http_request_size_bytes", "http_response_size_bytes"}
OLD_NAMES = {
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:gpu_prefix_cache_queries": "counter",
    "vllm:gpu_prefix_cache_hits": "counter",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:num_requests_swapped": "gauge",
    "vllm:cpu_cache_usage_perc": "gauge",
}


def by_name(families: Iterable[Metric]) -> dict[str, Metric]:
    """Without the `_created` gauges, which are when a counter began and no family of vLLM's."""
    return {family.name: family for family in families if not family.name.endswith("_created")}


def read(page: bytes) -> dict[str, Metric]:
    return by_name(read_text(page.decode()))


def value(page: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of that name whose labels include `labels`."""
    found = [s.value for f in page.values() for s in f.samples if s.name == name and labels.items() <= s.labels.items()]
    assert len(found) == 1, (name, labels, found)
    return float(found[0])


def make_metrics(model: str = "tiny", engine: int = 0, **limits: int) -> Metrics:
    return Metrics(model, msgspec.structs.replace(Limits(max_model_len=2048), **limits), engine)


def is_created(sample: Sample) -> bool:
    return sample.name.endswith("_created")


THEIRS = read(RECORDED.read_bytes())
OURS = read(render([(make_metrics(), IDLE)], answers=HttpCounts()))
CLAIMED = sorted(name for name in THEIRS if name in OURS)


def test_every_family_of_vllms_is_on_the_page_but_those_left_out() -> None:
    assert len(THEIRS) > 40
    assert THEIRS.keys() - OURS.keys() == HTTP_SIZES
    assert {name for name in OURS.keys() - THEIRS.keys() if not name.startswith("cadenza_")} == set()


@pytest.mark.parametrize("name", CLAIMED)
def test_type_labels_and_buckets_are_vllms(name: str) -> None:
    assert OURS[name].type == THEIRS[name].type
    ours, theirs = (
        [(s.name, tuple(sorted(s.labels.items()))) for s in page[name].samples if not is_created(s)]
        for page in (OURS, THEIRS)
    )
    if name == "vllm:cache_config_info":
        # Its values are the machine's, and some of its labels have no meaning here.
        assert {key for key, _ in ours[0][1]} <= {key for key, _ in theirs[0][1]}
        return
    # Sample names, label names and label values, le among them, are the same.
    assert sorted(ours) == sorted(theirs)


def test_the_settings_of_the_cache_are_labels() -> None:
    metrics = make_metrics(num_gpu_blocks=7012, engine=1)
    (sample,) = read(render([(metrics, IDLE)]))["vllm:cache_config_info"].samples
    assert sample.labels == {
        "block_size": "16",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": "1",
        "gpu_memory_utilization": "0.92",
        "num_gpu_blocks": "7012",
        "num_gpu_blocks_override": "None",
    }


def test_it_says_that_it_is_simulated() -> None:
    assert value(OURS, "cadenza_simulated") == 1
    assert "simulated" in OURS["cadenza_simulated"].documentation


def test_gauges_are_those_of_the_instant() -> None:
    metrics = make_metrics()
    before = read(render([(metrics, Gauges(3, 4, 0.25, waiting_deferred=1))]))
    after = read(render([(metrics, IDLE)]))
    assert value(before, "vllm:num_requests_running") == 3
    assert value(before, "vllm:num_requests_waiting") == 4
    assert value(before, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(before, "vllm:num_requests_waiting_by_reason", reason="deferred") == 1
    assert value(before, "vllm:kv_cache_usage_perc") == 0.25
    assert value(after, "vllm:num_requests_running") == value(after, "vllm:kv_cache_usage_perc") == 0


def test_counters_and_histograms_reach_the_page() -> None:
    metrics = make_metrics()
    sequence = Sequence(id=1, prompt=range(50), output_tokens=3, cached=16, arrival_ns=10 * MS, scheduled_ns=20 * MS)
    metrics.arrived(sequence)
    metrics.cache_looked_up(50, 16)
    metrics.preempted(2)
    metrics.first_token(sequence, 40 * MS)
    metrics.stepped(Batch(1, 0, 34, 50, 0), {})
    metrics.stepped(Batch(1, 2, 0, 52, 0), {60 * MS: 2})
    sequence.produced, sequence.first_token_ns, sequence.last_token_ns = 3, 40 * MS, 160 * MS
    metrics.ended(sequence, "stop", 170 * MS)
    page = read(render([(metrics, IDLE)]))
    assert value(page, "vllm:prompt_tokens_total") == 50
    assert value(page, "vllm:prompt_tokens_cached_total") == 16
    assert value(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 34
    assert value(page, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 16
    assert value(page, "vllm:prompt_tokens_cached_by_source_total", source="device") == 16
    assert value(page, "vllm:prefix_cache_queries_total") == 50
    assert value(page, "vllm:prefix_cache_hits_total") == 16
    assert value(page, "vllm:generation_tokens_total") == 3
    assert value(page, "vllm:num_preemptions_total") == 2
    assert value(page, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(page, "vllm:request_success_total", finished_reason="abort") == 0
    assert value(page, "vllm:inter_token_latency_seconds_bucket", le="0.05") == 0
    assert value(page, "vllm:inter_token_latency_seconds_bucket", le="0.075") == 2
    assert value(page, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.12)
    assert value(page, "vllm:time_to_first_token_seconds_bucket", le="0.02") == 0
    assert value(page, "vllm:time_to_first_token_seconds_bucket", le="0.04") == 1
    assert value(page, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.16)
    assert value(page, "vllm:iteration_tokens_total_sum") == 34 + 1 + 2
    assert value(page, "cadenza_requests_arrived_total") == 1
    assert value(page, "cadenza_steps_total") == 2
    assert value(page, "cadenza_step_tokens_total", phase="prefill") == 34


def test_models_and_engines_share_a_page() -> None:
    pairs = [(make_metrics(model, engine), Gauges(engine, 0, 0.0)) for model in ("a", "b") for engine in (0, 1)]
    pairs[0][0].rejected("max_num_queued_reqs")
    pairs[1][0].rejected("max_num_queued_reqs")
    text = render(pairs, compat=True)
    page = read(text)
    assert value(page, "vllm:num_requests_running", model_name="b", engine="1") == 1
    assert value(page, "vllm:admission_rejections_total", model_name="a", reason="max_num_queued_reqs") == 2
    series = [line.rpartition(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert text.decode().count("# TYPE vllm:num_requests_running ") == 1


def test_old_names_only_when_asked_for() -> None:
    metrics = make_metrics()
    metrics.cache_looked_up(100, 30)
    metrics.stepped(Batch(2, 2, 0, 9, 0), {40 * MS: 2})
    assert OLD_NAMES.keys() & read(render([(metrics, IDLE)])).keys() == set()
    page = read(render([(metrics, Gauges(1, 0, 0.5))], compat=True))
    assert {name: page[name].type for name in OLD_NAMES} == OLD_NAMES
    assert value(page, "vllm:gpu_cache_usage_perc") == 0.5
    assert value(page, "vllm:gpu_prefix_cache_hits_total") == 30
    assert value(page, "vllm:time_per_output_token_seconds_count") == 2
    assert value(page, "vllm:num_requests_swapped") == 0


def test_speculation_is_on_the_page_where_there_is_any() -> None:
    metrics = make_metrics(num_speculative_tokens=2)
    metrics.speculated(5, 10, [4, 1])
    page = read(render([(metrics, IDLE), (make_metrics("plain"), IDLE)]))
    assert value(page, "vllm:spec_decode_num_drafts_total") == 5
    assert value(page, "vllm:spec_decode_num_draft_tokens_total") == 10
    assert value(page, "vllm:spec_decode_num_accepted_tokens_total") == 5
    assert value(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="1") == 1
    assert not [name for name in OURS if "spec_decode" in name]


def test_http_requests_are_on_the_page_where_they_are_counted() -> None:
    answers = HttpCounts()
    answers.answered("/v1/chat/completions", "POST", 200, 700 * MS)
    page = read(render([(make_metrics(), IDLE)], answers=answers))
    labels = {"handler": "/v1/chat/completions", "method": "POST"}
    assert value(page, "http_requests_total", status="2xx", **labels) == 1
    assert value(page, "http_request_duration_seconds_bucket", le="0.5", **labels) == 0
    assert value(page, "http_request_duration_seconds_bucket", le="1.0", **labels) == 1
    assert value(page, "http_request_duration_highr_seconds_bucket", le="0.75") == 1
    assert not [name for name in read(render([(make_metrics(), IDLE)])) if name.startswith("http_")]


def test_both_formats_say_the_same() -> None:
    metrics = make_metrics(num_speculative_tokens=1)
    metrics.stepped(Batch(2, 2, 0, 9, 0), {40 * MS: 2})
    answers = HttpCounts()
    answers.answered("/v1/models", "GET", 200, MS)
    pairs = [(metrics, Gauges(1, 2, 0.5))]
    text = read(render(pairs, compat=True, answers=answers))
    page = render(pairs, compat=True, openmetrics=True, answers=answers).decode()
    strict = by_name(read_openmetrics(page))  # type: ignore[no-untyped-call]
    assert strict.keys() == text.keys()
    for name, family in strict.items():
        assert sorted(freeze(family)) == sorted(freeze(text[name]))


def freeze(family: Metric) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    return [(s.name, tuple(sorted(s.labels.items())), s.value) for s in family.samples]


def test_a_name_with_quotes_survives() -> None:
    model = 'a"b\\c\nd'
    assert value(read(render([(make_metrics(model), IDLE)])), "vllm:num_requests_running", model_name=model) == 0


@given(
    st.lists(
        st.tuples(st.integers(1, 4000), st.integers(1, 50), st.integers(0, 10**11), st.sampled_from(["stop", "error"])),
        max_size=8,
    )
)
@settings(deadline=None, max_examples=40)
def test_every_histogram_is_cumulative_and_adds_up(lives: list[tuple[int, int, int, str]]) -> None:
    metrics = make_metrics()
    for at, (prompt_tok, produced, gap_ns, reason) in enumerate(lives):
        sequence = Sequence(id=at, prompt=range(prompt_tok), output_tokens=produced, produced=produced)
        sequence.first_token_ns, sequence.last_token_ns = gap_ns, gap_ns * produced
        metrics.first_token(sequence, gap_ns)
        metrics.stepped(Batch(1, 0, 0, 0, 0), {gap_ns: produced - 1} if produced > 1 else {})
        metrics.ended(sequence, "stop" if reason == "stop" else "error", gap_ns * produced)
    page = read(render([(metrics, IDLE)]))
    for family in page.values():
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), value(page, f"{family.name}_count"))
    count = len(lives)
    assert value(page, "vllm:time_to_first_token_seconds_count") == count
    assert value(page, "vllm:e2e_request_latency_seconds_count") == count
    assert value(page, "vllm:request_prompt_tokens_sum") == sum(life[0] for life in lives)
    assert value(page, "vllm:request_generation_tokens_sum") == value(page, "vllm:generation_tokens_total")
    assert value(page, "vllm:request_decode_time_seconds_sum") == pytest.approx(
        value(page, "vllm:inter_token_latency_seconds_sum")
    )


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_promtool_reads_the_page() -> None:
    page = render([(make_metrics(), IDLE)], compat=True, answers=HttpCounts())
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    # 3: it parsed, and promtool has advice on names; vLLM's own are what it advises on.
    assert done.returncode in (0, 3), done.stderr.decode()
