"""`read_page` on recorded pages, against prometheus_client's parser, and on bytes that are no page."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.telemetry.engine_page import read_page, subtract
from cadenza.telemetry.engine_state import EngineState, Histogram

TESTS = Path(__file__).parents[1]
ENGINES = TESTS / "data" / "telemetry" / "engines"
FULL_PAGE = TESTS / "golden" / "metrics" / "vllm-0.32.txt"
INF = math.inf


def sample(name: str) -> dict[str, EngineState]:
    return read_page((ENGINES / name).read_bytes())


def one(*lines: str) -> EngineState:
    (state,) = read_page("".join(f"{line}\n" for line in lines).encode()).values()
    return state


# Recorded pages. The numbers are those of the files.


def test_vllm_before_v1() -> None:
    assert sample("vllm_v0_0.6.txt") == {
        "acme/tiny": EngineState(
            engine="vllm",
            running=3,
            waiting=1,
            kv_usage=0.4213,
            preemptions_total=2,
            prompt_tokens_total=120034,
            generation_tokens_total=45021,
            requests_total=10,
            ttft_s=Histogram((0.25, INF), (9, 10), 1.25),
            itl_s=Histogram((0.05, INF), (900, 950), 22),
        )
    }


def test_vllm_in_transition_counts_what_has_two_names_once() -> None:
    assert sample("vllm_v1_0.9_transition.txt") == {
        "acme/tiny": EngineState(
            engine="vllm", kv_usage=0.5, prefix_queries_tok=100, itl_s=Histogram((INF,), (0,), 0.0)
        )
    }


def test_vllm_032_sums_its_engines_and_takes_the_fullest_cache() -> None:
    assert sample("vllm_v1_0.32.txt") == {
        "acme/tiny": EngineState(
            engine="vllm",
            running=3 + 2,
            waiting=4 + 0,
            kv_usage=0.9312,
            preemptions_total=2,
            prompt_tokens_total=120034,
            generation_tokens_total=45021,
            requests_total=8 + 2 + 1 + 1 + 0,
            aborted_total=1,
            prefix_queries_tok=50000,
            prefix_hits_tok=20000,
            ttft_s=Histogram((0.25, 2560, INF), (9, 10, 10), 1.25),
            itl_s=Histogram((0.05, INF), (900, 950), 22),
        )
    }


def test_sglang() -> None:
    assert sample("sglang.txt") == {
        "acme/tiny": EngineState(
            engine="sglang",
            running=12,
            waiting=2,
            kv_usage=0.28,
            prompt_tokens_total=8128902,
            generation_tokens_total=7557572,
            prefix_queries_tok=8128902,
            ttft_s=Histogram((0.4, INF), (20, 23), 23.5),
            itl_s=Histogram((0.02, INF), (300, 350), 6.1),
            e2e_s=Histogram((INF,), (23,), 90),
        )
    }


def test_llamacpp_has_no_model_label() -> None:
    assert sample("llamacpp.txt") == {
        "": EngineState(
            engine="llamacpp",
            running=2,
            waiting=0,
            kv_usage=0.25,
            prompt_tokens_total=5120,
            generation_tokens_total=2048,
        )
    }


def test_tgi() -> None:
    """Names of TGI's docs/source/reference/metrics.md; its counters have no _total, its durations are in seconds."""
    assert sample("tgi.txt") == {
        "": EngineState(
            engine="tgi",
            running=4,
            waiting=7,
            prompt_tokens_total=4000,
            generation_tokens_total=900,
            requests_total=20 + 2 + 3,
            tpot_s=Histogram((0.04, INF), (15, 20), 0.75),
            queue_s=Histogram((0.5, INF), (18, 20), 3.5),
            e2e_s=Histogram((2.5, INF), (17, 20), 37.25),
        )
    }


def test_a_full_page_before_the_first_request() -> None:
    """All counters are there and 0; what every histogram should hold follows from the file's own lines."""
    text = FULL_PAGE.read_text(encoding="utf-8")
    (state,) = read_page(text.encode()).values()
    assert list(read_page(text.encode())) == ["tiny"]
    names = {
        "ttft_s": "time_to_first_token_seconds",
        "itl_s": "inter_token_latency_seconds",
        "tpot_s": "request_time_per_output_token_seconds",
        "queue_s": "request_queue_time_seconds",
        "prefill_s": "request_prefill_time_seconds",
        "decode_s": "request_decode_time_seconds",
        "e2e_s": "e2e_request_latency_seconds",
    }
    for field in EngineState.__struct_fields__[1:]:
        if field in names:
            bounds = re.findall(rf'^vllm:{names[field]}_bucket\{{.*?le="([^"]+)"', text, re.MULTILINE)
            assert getattr(state, field) == Histogram(tuple(map(float, bounds)), (0.0,) * len(bounds), 0.0)
            assert len(bounds) >= 20
        else:
            assert getattr(state, field) == 0.0


# One vocabulary.


def test_the_newer_name_wins_where_they_differ() -> None:
    state = one(
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.1',
        'vllm:kv_cache_usage_perc{model_name="m"} 0.2',
        'vllm:gpu_prefix_cache_hits_total{model_name="m"} 5',
        'vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 9',
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 9',
        'vllm:inter_token_latency_seconds_bucket{le="+Inf",model_name="m"} 8',
        'vllm:inter_token_latency_seconds_sum{model_name="m"} 8',
    )
    assert (state.kv_usage, state.prefix_hits_tok, state.itl_s) == (0.2, 5, Histogram((INF,), (8,), 8))


def test_models_are_told_apart() -> None:
    page = b'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
    assert {model: state.running for model, state in read_page(page).items()} == {"a": 1, "b": 2}


def test_of_one_batch_one_rank_counts_and_every_batch_does() -> None:
    """Two pipeline stages of two ranks tell the same; data parallelism (dp_rank) has batches of its own."""
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",engine_type="unified",model_name="m",pp_rank="{pp}",tp_rank="{tp}"}} '
        + str(10 if dp == 0 else 7)
        for dp in (0, 1)
        for pp in (0, 1)
        for tp in (10, 9)
    ]
    assert one(*lines).running == 17
    assert one(*[line.replace('dp_rank="0",', "") for line in lines if 'dp_rank="0"' in line]).running == 10


def test_a_histogram_of_one_batch_is_one_ranks_too() -> None:
    """SGLang's queue time comes from the schedulers: with their metrics on, from every rank of one batch."""
    name = "sglang:queue_time_seconds"
    page = [
        line
        for dp in (0, 1)
        for tp in (0, 1, 2, 3)
        for labels in [f'dp_rank="{dp}",model_name="m",tp_rank="{tp}"']
        for line in (
            f'{name}_bucket{{{labels},le="0.1"}} {10 + dp}',
            f'{name}_bucket{{{labels},le="+Inf"}} {20 + dp}',
            f"{name}_sum{{{labels}}} {3 + dp}",
            f"{name}_count{{{labels}}} {20 + dp}",
        )
    ]
    assert one(*page, 'sglang:num_queue_reqs{model_name="m"} 0').queue_s == Histogram((0.1, INF), (21, 41), 7)


def test_who_waits_for_the_other_side_of_a_split_server_waits() -> None:
    """Prefill for its partner, under two names over time; decode for memory and for the cache. Not what is sent off."""
    queues = {"queue": 1, "grammar_queue": 2, "prefill_bootstrap_queue": 4, "prefill_prealloc_queue": 8}
    queues |= {"decode_prealloc_queue": 16, "decode_transfer_queue": 32, "prefill_inflight_queue": 64}
    lines = [f'sglang:num_{name}_reqs{{model_name="m"}} {count}' for name, count in queues.items()]
    assert one(*lines).waiting == 1 + 2 + 4 + 8 + 16 + 32
    assert one(*lines[:2]).waiting == 3


def test_of_two_ranks_the_lowest_counts() -> None:
    ranks = [f'sglang:token_usage{{model_name="m",tp_rank="{rank}"}} 0.{rank}' for rank in (10, 9)]
    assert one(*ranks).kv_usage == 0.9


def test_sglang_tells_a_total_beside_its_priorities() -> None:
    state = one(
        'sglang:num_queue_reqs{model_name="m",priority=""} 5',
        'sglang:num_queue_reqs{model_name="m",priority="1"} 3',
        'sglang:num_queue_reqs{model_name="m",priority="2"} 2',
        'sglang:num_grammar_queue_reqs{model_name="m",priority=""} 4',
        'sglang:generation_tokens_total{model_name="m",priority="1"} 3',
        'sglang:generation_tokens_total{model_name="m",priority="2"} 2',
        'sglang:cached_tokens_total{cache_source="device",model_name="m"} 30',
        'sglang:cached_tokens_total{cache_source="host",model_name="m"} 2',
    )
    assert (state.waiting, state.generation_tokens_total, state.prefix_hits_tok) == (9, 5, 32)


def test_histograms_of_several_engines_are_merged_over_equal_bounds_only() -> None:
    def series(engine: int, *pairs: tuple[str, int]) -> list[str]:
        name, labels = "vllm:time_to_first_token_seconds", f'engine="{engine}",model_name="m"'
        buckets = [f'{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in pairs]
        return [*buckets, f"{name}_sum{{{labels}}} 1.5"]

    equal = one(*series(0, ("0.5", 1), ("+Inf", 3)), *series(1, ("+Inf", 7), ("0.50", 4)))
    assert equal.ttft_s == Histogram((0.5, INF), (5, 10), 3.0)
    other = one(*series(0, ("0.5", 1), ("+Inf", 3)), *series(1, ("0.25", 1), ("+Inf", 3)), "llamacpp:x 1")
    assert other.ttft_s is None


@pytest.mark.parametrize(
    "lines",
    [
        ['_bucket{le="1"} 3'],  # no infinite bound
        ['_bucket{le="1"} 3', '_bucket{le="+Inf"} 2', "_sum 1"],  # falling
        ['_bucket{le="1"} 3', '_bucket{le="1.0"} 3', '_bucket{le="+Inf"} 4', "_sum 1"],  # a bound twice
        ['_bucket{le="+Inf"} NaN', "_sum 1"],
        ['_bucket{le="+Inf"} +Inf', "_sum 1"],
        ['_bucket{le="+Inf"} -1', "_sum 1"],
        ['_bucket{le="+Inf"} 2'],  # no sum
        ['_bucket{le="+Inf"} 2', "_sum NaN"],
        ['_bucket{le="+Inf"} 2', "_sum +Inf"],  # neither a sum nor a mean follows from it
        ['_bucket{le="+Inf"} 2', "_sum -Inf"],
        ['_bucket{le="much"} 2', '_bucket{le="+Inf"} 2', "_sum 1"],
        ["_bucket 2", "_sum 1"],
    ],
)
def test_a_histogram_that_makes_no_sense_is_none(lines: list[str]) -> None:
    state = one("vllm:num_requests_running 1", *[f"vllm:e2e_request_latency_seconds{line}" for line in lines])
    assert state == EngineState(engine="vllm", running=1)


@pytest.mark.parametrize("value", ["NaN", "nan", "-1", "+Inf", "-Inf", "1e999"])
def test_a_sum_with_a_part_that_is_no_number_is_none(value: str) -> None:
    state = one('vllm:num_requests_running{engine="0"} 1', f'vllm:num_requests_running{{engine="1"}} {value}')
    assert state == EngineState(engine="vllm")
    assert one(f"vllm:kv_cache_usage_perc {value}").kv_usage is None


def test_a_share_above_one_is_none() -> None:
    assert one("vllm:kv_cache_usage_perc 93.12").kv_usage is None
    assert one("vllm:kv_cache_usage_perc 1.0").kv_usage == 1.0


def test_what_is_declared_and_has_no_sample_has_counted_nothing() -> None:
    """prometheus_client makes a labelled series at its first increment: V0 has no counters before its first request."""
    page = [
        'vllm:num_requests_running{model_name="m"} 0',
        "# TYPE vllm:prompt_tokens_total counter",
        "# TYPE vllm:generation_tokens counter",  # OpenMetrics
        "# TYPE vllm:num_requests_waiting gauge",
        "# TYPE vllm:time_to_first_token_seconds histogram",
    ]
    before = one(*page)
    assert before == EngineState(
        engine="vllm", running=0, prompt_tokens_total=0, generation_tokens_total=0, ttft_s=Histogram((), (), 0.0)
    )
    after = one(
        *page,
        'vllm:prompt_tokens_total{model_name="m"} 7',
        'vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 3',
        'vllm:time_to_first_token_seconds_sum{model_name="m"} 6',
    )
    grown = subtract(after, before)
    assert (grown.prompt_tokens_total, grown.generation_tokens_total, grown.aborted_total) == (7, 0, None)
    assert grown.ttft_s == Histogram((INF,), (3,), 6)


# The format.


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running 3",
        "vllm:num_requests_running\t3.0",
        "vllm:num_requests_running  3e0  1700000000000",
        "vllm:num_requests_running{} 3",
        "vllm:num_requests_running {} 3",
        'vllm:num_requests_running{engine="0",} 3',
        'vllm:num_requests_running{ engine = "0" , a="b" } 3',
        'vllm:num_requests_running{a="}"}3',
        'vllm:num_requests_running{a="\\"} 9 # \\\\"} 3',
        'vllm:num_requests_running{a="x"} 3 # {trace_id="y"} 1.0 1700000000.0',
        "vllm:num_requests_running 3\r",
        " \tvllm:num_requests_running 3",
        'vllm:num_requests_running{a=""} 3',
        'vllm:num_requests_running{a="ü 😀"} 3',
    ],
)
def test_a_sample_line(line: str) -> None:
    assert read_page(line.encode()) == read_page(f"# a page\n\n{line}\n".encode())
    assert one(line).running == 3


def test_the_model_name_is_unescaped() -> None:
    assert list(read_page(rb'vllm:num_requests_running{model_name="a\\b\"c\nd\n"} 1' + b"\n")) == ['a\\b"c\nd\n']
    assert list(read_page(b'vllm:num_requests_running{model_name="\xff"} 1\n')) == ["\ufffd"]


def test_a_series_told_twice_counts_once() -> None:
    assert one("vllm:num_requests_running 3", "vllm:num_requests_running 3").running == 3


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html><body>404</body></html>\n",
        b'{"detail":"Not Found"}',
        b"# TYPE vllm:num_requests_running gauge\n",
        b"# HELP vllm:num_requests_running 3\n",
        b"process_cpu_seconds_total 3\n",
        b" vllm:num_requests_running_and_more 3\n",
        b"vllm:num_requests_running\n",
        b"vllm:num_requests_running three\n",
        b"vllm:num_requests_running-3\n",
        b"vllm:num_requests_running 1_0\n",
        b"vllm:num_requests_running 1 2 3\n",
        b'vllm:num_requests_running{a="b} 3\n',
        b'vllm:num_requests_running{a="b" 3\n',
        b"vllm:num_requests_running{a=b} 3\n",
        b'vllm:num_requests_running{a="b"c="d"} 3\n',
        b'vllm:num_requests_running{a="b",a="c"} 3\n',
        b'vllm:num_requests_running{,a="b"} 3\n',
        b'vllm:num_requests_running{a="' + b"x" * 5000 + b'"} 3\n',
        b"".join(b'vllm:num_requests_running{model_name="%d"} 1\n' % i for i in range(300)),
        b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % i for i in range(50_001)),
        b"vllm:num_requests_running 3\n" + b"#" * (8 << 20),
    ],
    ids=range(22),
)
def test_what_is_no_page_or_beyond_the_bounds_gives_nothing(page: bytes) -> None:
    assert read_page(page) == {}


# Any bytes.


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    assert isinstance(read_page(data), dict)
    assert set(read_page(b"vllm:num_requests_running" + data)) <= {""} | {
        text.decode(errors="replace") for text in [data] if b"model_name" in text
    }


@given(st.sampled_from(sorted(ENGINES.iterdir())), st.integers(0, 5000), st.binary(max_size=6))
def test_a_recorded_page_with_a_few_other_bytes_gives_numbers_or_nothing(path: Path, at: int, data: bytes) -> None:
    page = path.read_bytes()
    for state in read_page(page[:at] + data + page[at + len(data) :]).values():
        for field in EngineState.__struct_fields__[1:]:
            value = getattr(state, field)
            if isinstance(value, Histogram):
                assert value.bounds in ((), tuple(sorted(set(value.bounds))))
                assert list(value.cumulative) == sorted(value.cumulative)
            else:
                assert value is None or 0 <= value < INF
