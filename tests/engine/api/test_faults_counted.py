"""What the engine itself shows of faults: how requests end, in vLLM's terms, and its pages while it hangs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from cadenza.clock import NS_PER_S
from cadenza.engine.api.faults import Faults
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.text import output_token
from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.sequence import Limits
from cadenza.hardware.batch import Batch
from support.engine import PROFILE, QWEN25, STEP_NS, TTFT_NS, Client, answers, converse, get, post, steady_core

TOKENS = 10
MIDDLE = 5  # tokens before a fault that a header asks for
S = 1 / NS_PER_S


class Steps:
    """10 ms a step, prompts and all: the prefill is in the steps."""

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return STEP_NS

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> None:
        return None

    def request_ns(self) -> int:
        return 0


def stepped_core(**limits: object) -> Core:
    return Core({QWEN25: Instance(QWEN25, Steps(), Limits(**limits), output_token=output_token)})  # type: ignore[arg-type]


def ask(kind: str | None, stream: bool = True, tokens: int = TOKENS) -> bytes:
    body = {"model": QWEN25, "prompt": "a b c", "max_tokens": tokens, "stream": stream}
    return post("/v1/completions", body, *([] if kind is None else [f"X-Cadenza-Fault: {kind}"]))


def page(api: HttpApi, now_ns: int, number: int = 99) -> dict[str, float]:
    """The samples of `QWEN25` and of no model, as a client reads them at `now_ns`, by name and all other labels."""
    api.receive(number, get("/metrics"), now_ns)
    client = Client()
    for connection, data in api.take(now_ns):
        if connection == number:
            client.hear(now_ns, data)
    ((status, body),) = client.answers
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            if sample.labels.get("model_name", QWEN25) == QWEN25:
                others = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
                found[" ".join([sample.name, *others])] = sample.value
    return found


def endings(seen: dict[str, float]) -> dict[str, float]:
    """How requests have ended, those that did."""
    prefix = "vllm:request_success_total "
    return {name.removeprefix(prefix): n for name, n in seen.items() if name.startswith(prefix) and n}


def suffer(core: Core, *requests: bytes) -> dict[str, float]:
    """The page at the end of a conversation of its own for each request."""
    api = HttpApi(PROFILE, core=core)
    converse(api, {number: [data] for number, data in enumerate(requests, 1)})
    return page(api, 60 * NS_PER_S)


@pytest.mark.parametrize(
    ("kind", "streamed", "whole"),
    [
        ("error-event", "error", "error"),
        ("reset", "abort", "abort"),
        ("stall", "abort", "abort"),
        # The other half of the body is missing when all of it has been produced.
        ("truncation", "abort", "length"),
        ("malformed", "length", "length"),
        ("stall:3", "length", "length"),
        ("slow-first-token:3", "length", "length"),
        ("http-429", None, None),
        ("http-500", None, None),
    ],
)
def test_a_fault_ends_a_request_as_vllm_would_count_it(kind: str, streamed: str | None, whole: str | None) -> None:
    for stream, ending in ((True, streamed), (False, whole)):
        expected = {} if ending is None else {ending: 1}
        assert endings(suffer(steady_core(), ask(kind, stream))) == expected


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_has_the_latencies_and_tokens_that_vllm_observes(stream: bool) -> None:
    seen = suffer(steady_core(), ask("error-event", stream))
    # update_from_output and update_from_finished_request of vLLM's IterationStats: the output that says it has no
    # token, but is a gap, and the last thing that happened to the request.
    died_ns = TTFT_NS + MIDDLE * STEP_NS
    assert {name: seen[f"vllm:{name}"] for name in ("prompt_tokens_total", "generation_tokens_total")} == {
        "prompt_tokens_total": 3,
        "generation_tokens_total": MIDDLE,
    }
    observed = {
        "time_to_first_token_seconds": (1, TTFT_NS * S),
        "inter_token_latency_seconds": (MIDDLE, MIDDLE * STEP_NS * S),
        "e2e_request_latency_seconds": (1, died_ns * S),
        "request_decode_time_seconds": (1, MIDDLE * STEP_NS * S),
        "request_inference_time_seconds": (1, died_ns * S),
        "request_time_per_output_token_seconds": (1, MIDDLE * STEP_NS * S / (MIDDLE - 1)),
        "request_generation_tokens": (1, MIDDLE),
        "request_params_max_tokens": (1, TOKENS),
        "request_prompt_tokens": (1, 3),
    }
    assert {name: seen[f"vllm:{name}_count"] for name in observed} == {name: n for name, (n, _) in observed.items()}
    sums = {name: total for name, (_, total) in observed.items()}
    assert {name: seen[f"vllm:{name}_sum"] for name in observed} == pytest.approx(sums)
    assert seen["vllm:num_requests_running"] == seen["vllm:kv_cache_usage_perc"] == 0


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([{}, {"num_speculative_tokens": 3}, {"stream_interval": 4}]),
    st.booleans(),
)
def test_errors_are_counted_wherever_they_strike(
    requests: list[tuple[int, bool]], limits: dict[str, int], beside: bool
) -> None:
    core = steady_core(**limits) if beside else stepped_core(**limits)
    seen = suffer(core, *(ask("error-event" if fails else None, tokens=tokens) for tokens, fails in requests))
    failed = sum(fails for _, fails in requests)
    assert endings(seen) == {reason: n for reason, n in (("error", failed), ("length", len(requests) - failed)) if n}
    # A header's fault strikes in the middle: one token and half of the others come before it, but never the last.
    told = [min(1 + (tokens - 1) // 2, tokens - 1) if fails else tokens for tokens, fails in requests]
    assert seen["vllm:generation_tokens_total"] == sum(told) == seen["vllm:request_generation_tokens_sum"]
    assert all(not instance.outbox.failing for instance in core.instances.values())


def test_an_error_is_one_however_late_the_shell_is() -> None:
    api = HttpApi(PROFILE, core=steady_core())
    api.receive(1, ask("error-event"), 0)
    client = Client()
    for _, data in api.take(10 * NS_PER_S):
        client.hear(10 * NS_PER_S, data)
    assert client.answers[0][1].endswith(b"data: [DONE]\n\n")
    seen = page(api, 10 * NS_PER_S)
    assert endings(seen) == {"error": 1}
    assert seen["vllm:generation_tokens_total"] == MIDDLE


def test_a_client_that_leaves_before_the_error_is_an_abort() -> None:
    core = steady_core()
    api = HttpApi(PROFILE, core=core)
    api.receive(1, ask("error-event"), 0)
    api.take(TTFT_NS + STEP_NS)
    api.receive(1, b"", TTFT_NS + STEP_NS + 1)
    assert endings(page(api, NS_PER_S)) == {"abort": 1}
    assert core.instances[QWEN25].outbox.failing == set()


def test_an_engine_that_hangs_still_answers_and_queues() -> None:
    """From 125 ms to 5.125 s: after the first token and two steps, in the middle of the third."""
    core = stepped_core(max_num_seqs=2)
    api = HttpApi(PROFILE, core=core, faults=Faults.parse(["hang:5@0.125"]))
    healthy = HttpApi(PROFILE, core=stepped_core(max_num_seqs=2))
    for each in (api, healthy):
        each.receive(1, ask(None, tokens=40), 0)
        each.receive(2, ask(None, tokens=30), 0)
    said = dict.fromkeys((1, 2), 0)

    def hear(until_ns: int) -> None:
        while (due := api.next_ns()) is not None and due <= until_ns:
            for connection, _ in api.take(due):
                said[connection] = said.get(connection, 0) + 1

    hear(125_000_000)
    before, heard = page(api, 125_000_000), dict(said)
    api.receive(3, ask(None, tokens=20), NS_PER_S)
    hear(4 * NS_PER_S)
    during = page(api, 4 * NS_PER_S)
    assert (said[1], said[2]) == (heard[1], heard[2])
    assert during["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"] == 24
    assert (during["vllm:num_requests_running"], during["vllm:num_requests_waiting"]) == (2, 1)
    assert core.busy_ns(4 * NS_PER_S) - core.busy_ns(NS_PER_S) == 3 * NS_PER_S
    for path in ("/health", "/v1/models"):
        assert _at_once(api, get(path), 4 * NS_PER_S) == 200
    hear(60 * NS_PER_S)
    after = page(api, 60 * NS_PER_S)
    converse(healthy, {3: [ask(None, tokens=20)]}, 126_000_000)
    well = page(healthy, 60 * NS_PER_S)
    totals = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:request_success_total length")
    assert {name: after[name] for name in totals} == {name: well[name] for name in totals}
    assert endings(after) == {"length": 3}
    # The gap of the step under way, for both that ran: all else is as it was.
    assert after["vllm:inter_token_latency_seconds_sum"] == pytest.approx(
        well["vllm:inter_token_latency_seconds_sum"] + 2 * 5
    )


def _at_once(api: HttpApi, data: bytes, now_ns: int) -> int:
    api.receive(77, data, now_ns)
    assert api.next_ns() == now_ns
    client = Client()
    for _, piece in api.take(now_ns):
        client.hear(now_ns, piece)
    return client.answers[0][0]


def test_a_slow_stretch_stretches_prefill_and_steps() -> None:
    api = HttpApi(PROFILE, core=steady_core(), faults=Faults.parse(["slow:1@0x20"]))
    client = converse(api, {1: [ask(None)]})[1]
    # 1 s at a twentieth is 50 ms of the 100 to the first token.
    assert [at for at, _ in client.stamps[1:]] == [1_050_000_000 + n * STEP_NS for n in range(TOKENS)]
    api = HttpApi(PROFILE, core=steady_core(), faults=Faults.parse(["slow:60@0.1x2.5"]))
    client = converse(api, {1: [ask(None)]})[1]
    assert [at for at, _ in client.stamps[1:]] == [TTFT_NS + n * STEP_NS * 5 // 2 for n in range(TOKENS)]


def test_without_its_statistics_the_page_has_what_is_no_engines() -> None:
    api = HttpApi(PROFILE, core=steady_core(), log_stats=False)
    assert [status for status, _ in answers(ask(None) + get("/health"), api)] == [200, 200]
    names = {name.partition(" ")[0] for name in page(api, NS_PER_S)}
    assert {name for name in names if not name.startswith("http_request")} == {"cadenza_simulated"}
    assert "http_requests_total" in names
