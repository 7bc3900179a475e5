"""`read_page` against prometheus_client, and what follows from two scrapes: differences, means, quantiles."""

import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cadenza.telemetry.engine_page import mean, quantile, read_page, restarted, subtract
from cadenza.telemetry.engine_state import EngineState, Histogram

TESTS = Path(__file__).parents[1]
ENGINES = TESTS / "data" / "telemetry" / "engines"
FULL_PAGE = TESTS / "golden" / "metrics" / "vllm-0.32.txt"
INF = math.inf

# Against prometheus_client: its exposition, its parser.

LABEL = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNT = st.integers(0, 10**9).map(float)


@given(
    st.dictionaries(st.tuples(LABEL, st.sampled_from("01")), COUNT, min_size=1, max_size=5),
    st.dictionaries(LABEL, st.lists(st.floats(0, 100), max_size=9), max_size=3),
    st.booleans(),
)
def test_what_prometheus_client_exposes_is_read_back(
    counts: dict[tuple[str, str], float], times: dict[str, list[float]], openmetrics: bool
) -> None:
    registry = CollectorRegistry()
    running = Gauge("vllm:num_requests_running", "", ["model_name", "engine"], registry=registry)
    tokens = Counter("vllm:prompt_tokens", "a\nb", ["engine", "model_name"], registry=registry)
    name = "vllm:time_to_first_token_seconds"
    ttft = PrometheusHistogram(name, "", ["model_name"], registry=registry, buckets=[0.1, 1, 10])
    for (model, engine), count in counts.items():
        running.labels(model, engine).set(count)
        tokens.labels(engine, model).inc(count)
    for model, seen in times.items():
        for value in seen:
            ttft.labels(model).observe(value)
    page = generate_openmetrics(registry, ALLOWUTF8) if openmetrics else generate_latest(registry)  # type: ignore[no-untyped-call]
    states = read_page(page)
    assert states.keys() == {model for model, _ in counts} | {model for model, seen in times.items() if seen}
    for model, state in states.items():
        whole = sum(count for (has, _), count in counts.items() if has == model)
        told = model in {has for has, _ in counts}
        assert (state.running, state.prompt_tokens_total) == (whole if told else None, whole)
        seen = times.get(model, [])
        assert state.ttft_s is not None
        assert state.ttft_s.count == len(seen)
        if seen:
            assert state.ttft_s.cumulative == tuple(sum(v <= le for v in seen) for le in (0.1, 1, 10, INF))
            assert state.ttft_s.sum == pytest.approx(sum(seen))


LABELS = ['engine="0"', 'engine="1"', 'le="\\""', 'x="a,b"', 'y="}"']
LINE = st.builds(
    lambda name, labels, value: name + ("{" + ",".join(labels) + "}" if labels is not None else "") + f" {value}",
    st.sampled_from(["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "other_total"]),
    st.none() | st.lists(st.sampled_from(LABELS), min_size=1, unique=True),
    st.integers(0, 99) | st.just("1e3") | st.just("+2.5"),
)


@given(st.lists(LINE, max_size=9, unique_by=lambda line: line.rpartition(" ")[0]))
def test_it_sums_the_samples_that_prometheus_clients_parser_sees(lines: list[str]) -> None:
    page = "".join(f"{line}\n" for line in lines)
    try:
        families = list(text_string_to_metric_families(page))
    except ValueError:
        families = []
        assume(False)
    sums: dict[str, float] = {}
    for family in families:
        for found in family.samples:
            sums[found.name] = sums.get(found.name, 0) + found.value
    state = read_page(page.encode()).get("", EngineState(engine="vllm"))
    assert state.prompt_tokens_total == sums.get("vllm:prompt_tokens_total")
    assert state.generation_tokens_total == sums.get("vllm:generation_tokens_total")


@pytest.mark.parametrize("path", [*sorted(ENGINES.iterdir()), FULL_PAGE], ids=lambda path: path.name)
def test_every_counter_of_a_recorded_page_is_what_prometheus_clients_parser_sees(path: Path) -> None:
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
        for found in family.samples:
            sums[found.name] = sums.get(found.name, 0.0) + found.value
    (state,) = read_page(path.read_bytes()).values()
    names = {
        "vllm": ("vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        "sglang": ("sglang:num_running_reqs", "sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        "tgi": ("tgi_batch_current_size", "tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"),
        "llamacpp": ("llamacpp:requests_processing", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    }[state.engine]
    told = (state.running, state.prompt_tokens_total, state.generation_tokens_total)
    assert told == tuple(sums.get(name) for name in names)


# Two scrapes.


def counted(n: float, *cumulative: float) -> EngineState:
    return EngineState(
        engine="vllm",
        running=n,
        prompt_tokens_total=n,
        ttft_s=Histogram((1.0, INF), cumulative, 2 * n) if cumulative else None,
    )


def test_counters_and_histograms_are_differences_and_gauges_the_laters() -> None:
    later, earlier = counted(9, 5, 8), counted(4, 1, 3)
    assert not restarted(later, earlier)
    assert subtract(later, earlier) == EngineState(
        engine="vllm", running=9, prompt_tokens_total=5, ttft_s=Histogram((1.0, INF), (4, 5), 10)
    )


def test_what_one_scrape_does_not_say_has_no_difference() -> None:
    assert subtract(counted(9, 5, 8), counted(4)).ttft_s is None
    assert subtract(counted(9), counted(4, 1, 3)).ttft_s is None
    assert subtract(counted(9), EngineState(engine="vllm")).prompt_tokens_total is None


@pytest.mark.parametrize(
    ("later", "earlier"),
    [
        (counted(3), counted(4)),
        (counted(9, 0, 3), counted(9, 1, 3)),
        (EngineState(engine="sglang", prompt_tokens_total=9), counted(4)),
        (EngineState(engine="vllm", ttft_s=Histogram((2.0, INF), (5, 8), 1)), counted(4, 1, 3)),
        (EngineState(engine="vllm", ttft_s=Histogram((), (), 0)), counted(4, 1, 3)),
    ],
)
def test_an_engine_that_began_anew_has_counted_since_then(later: EngineState, earlier: EngineState) -> None:
    assert restarted(later, earlier)
    assert subtract(later, earlier) == later


# Histograms.

# The example of Prometheus's own tests of histogram_quantile (promql testdata, histograms.test), its first minutes.
POSITIVE = Histogram((0.1, 0.2, 1.0, INF), (50, 70, 110, 120), 1.0)
NEGATIVE = Histogram((-0.2, -0.1, 0.3, INF), (10, 20, 20, 30), 1.0)


@pytest.mark.parametrize(
    ("histogram", "q", "value"),
    [
        (POSITIVE, 0.0, 0.0),
        (POSITIVE, 0.2, 24 / 50 * 0.1),
        (POSITIVE, 0.5, 0.1 + 0.1 * 10 / 20),
        (POSITIVE, 0.8, 0.2 + 0.8 * 26 / 40),
        (POSITIVE, 110 / 120, 1.0),
        (POSITIVE, 0.99, 1.0),  # in the infinite bucket: the bound below it
        (POSITIVE, 1.0, 1.0),
        (NEGATIVE, 0.2, -0.2),  # the first bucket's bound is not above 0
        (NEGATIVE, 0.5, -0.15),
        (Histogram((1.0, 2.0, INF), (0, 4, 4), 6), 0.0, 1.0),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(histogram: Histogram, q: float, value: float) -> None:
    assert quantile(histogram, q) == pytest.approx(value)


@pytest.mark.parametrize("empty", [Histogram((), (), 0), Histogram((INF,), (4,), 8), Histogram((1.0, INF), (0, 0), 0)])
def test_a_quantile_of_nothing_is_none(empty: Histogram) -> None:
    assert quantile(empty, 0.5) is None


@pytest.mark.parametrize("q", [-0.01, 1.01, math.nan])
def test_a_quantile_outside_its_range_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile(POSITIVE, q)


@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=50), st.integers(1, 20), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_observation_of_that_rank(
    seen: list[float], buckets: int, q: float
) -> None:
    bounds = tuple((i + 1) / buckets for i in range(buckets))
    counts = tuple(float(sum(value <= bound for value in seen)) for bound in bounds)
    found = quantile(Histogram((*bounds, INF), (*counts, float(len(seen))), sum(seen)), q)
    true = sorted(seen)[max(0, math.ceil(q * len(seen)) - 1)]
    low, high = next(
        (low, high) for low, high in zip((0.0, *bounds), bounds, strict=False) if low < true <= high or true == low == 0
    )
    assert found is not None
    assert low <= found <= high * (1 + 1e-12)


def test_the_mean_is_exact() -> None:
    assert mean(Histogram((1.0, INF), (3, 4), 10)) == 2.5
    assert mean(Histogram((1.0, INF), (0, 0), 0)) is None
    assert mean(Histogram((), (), 0)) is None
