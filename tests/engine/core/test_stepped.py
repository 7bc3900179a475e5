"""An engine that computes everything in steps, against timelines worked out by hand, and against queueing theory."""

import random

import pytest

from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.outbox import Token
from cadenza.engine.core.sequence import Limits
from cadenza.hardware.batch import Batch

MS = 1_000_000


class PerToken:
    """A step of 10 ms, and 1 ms for each prompt token in it; `request_ms` before the scheduler knows of a request."""

    def __init__(self, request_ms: int = 0) -> None:
        self._request_ms = request_ms

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return (10 + batch.prefill_tok) * MS

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> None:
        return None

    def request_ns(self) -> int:
        return self._request_ms * MS


def core_of(request_ms: int = 0, **limits: object) -> Core:
    return Core({"m": Instance("m", PerToken(request_ms), Limits(**limits))})  # type: ignore[arg-type]


def drain(core: Core) -> dict[int, list[float]]:
    """Times in ms of each request's tokens."""
    times: dict[int, list[float]] = {}
    while (due := core.next_ns()) is not None:
        for token in core.advance(due):
            times.setdefault(token.request_id, []).append(token.at_ns / MS)
    return times


def test_one_request_is_its_prefill_and_then_steps() -> None:
    core = core_of()
    core.submit(1, "m", range(20), 4, now_ns=5 * MS)
    assert drain(core)[1] == [35, 45, 55, 65]


def test_a_prompt_stalls_those_who_decode_for_the_length_of_its_step() -> None:
    core = core_of(async_scheduling=False)
    core.submit(1, "m", range(10), 6, now_ns=0)
    core.submit(2, "m", range(100, 150), 2, now_ns=25 * MS)
    # 20: first token of 1. Steps end at 30; then comes the mixed step, 60 ms, with a token for both at its end.
    assert drain(core) == {1: [20, 30, 90, 100, 110, 120], 2: [90, 100]}


def test_asynchronously_an_arrival_during_step_k_takes_part_in_k_plus_2() -> None:
    core = core_of(async_scheduling=True)
    core.submit(1, "m", range(10), 6, now_ns=0)
    core.submit(2, "m", range(100, 150), 2, now_ns=25 * MS)
    # During 20 to 30 the step 30 to 40 is decided already: the prompt is in the one from 40 to 100.
    assert drain(core) == {1: [20, 30, 40, 100, 110, 120], 2: [100, 110]}


def test_a_long_prompt_is_cut_by_the_budget_and_the_decodes_go_first() -> None:
    core = core_of(async_scheduling=False, max_num_batched_tokens=33, max_num_seqs=4)
    core.submit(1, "m", range(10), 5, now_ns=0)
    core.submit(2, "m", range(100, 164), 1, now_ns=1 * MS)
    # 32 of the 33 tokens of a step are the prompt's, one is the decode's: 42 ms, twice.
    assert drain(core) == {1: [20, 62, 104, 114, 124], 2: [104]}


def test_a_request_is_on_its_way_before_it_is_scheduled_and_can_be_aborted_there() -> None:
    core = core_of(request_ms=15)
    core.submit(1, "m", range(10), 2, now_ns=0)
    core.submit(2, "m", range(10), 2, now_ns=2 * MS)
    assert core.in_system("m") == 2
    core.abort(2, 3 * MS)
    assert core.in_system("m") == 1
    assert drain(core) == {1: [35, 45]}


def test_speculated_tokens_come_together_and_none_is_too_many() -> None:
    core = core_of(num_speculative_tokens=3, acceptance=1.0)
    core.submit(1, "m", range(10), 10, now_ns=0)
    events: list[Token] = []
    while (due := core.next_ns()) is not None:
        events += core.advance(due)
    # The prefill gives one; then each step the three that were proposed and the one after them.
    seen = [(token.n, token.tokens, token.at_ns // MS) for token in events]
    assert seen == [(1, 1, 20), (5, 4, 30), (9, 4, 40), (10, 1, 50)]


def test_a_step_gains_what_a_geometric_law_says_of_independent_acceptance() -> None:
    core = core_of(num_speculative_tokens=4, acceptance=0.6, max_model_len=60_000, num_gpu_blocks=4_000)
    core.submit(1, "m", range(10), 50_000, now_ns=0)
    steps = 0
    while (due := core.next_ns()) is not None:
        steps += len(core.advance(due))
    # Mean tokens a step: 1 + p + p² + p³ + p⁴ = (1 - p⁵) / (1 - p).
    assert 50_000 / steps == pytest.approx((1 - 0.6**5) / 0.4, rel=0.02)


def test_aborting_the_last_one_stops_the_clock() -> None:
    core = core_of()
    core.submit(1, "m", range(10), 1_000, now_ns=0)
    core.advance(100 * MS)
    core.abort(1, 105 * MS)
    core.advance(10_000 * MS)
    assert core.next_ns() is None
    assert core.instances["m"].scheduler.kv_usage == 0


class Served:
    """One request a step, each for `service_ns`: a queue with one server and deterministic service."""

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return 10 * MS

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> None:
        return None

    def request_ns(self) -> int:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_single_token_requests_one_at_a_time_are_m_d_1(load: float) -> None:
    """Pollaczek-Khinchine for M/D/1: mean wait = ρ / (2 (1 - ρ)) services."""
    limits = Limits(max_num_seqs=1, async_scheduling=False)
    core = Core({"m": Instance("m", Served(), limits)})
    draw = random.Random(11)
    arrivals: dict[int, int] = {}
    at = 0.0
    waits: list[int] = []
    for request_id in range(60_000):
        at += draw.expovariate(load) * 10 * MS
        arrivals[request_id] = round(at)
        waits += [token.at_ns - arrivals[token.request_id] - 10 * MS for token in core.advance(round(at) - 1)]
        core.submit(request_id, "m", range(1), 1, round(at))
    assert len(waits) > 50_000
    # One in ten thousand seeds would be further off: five standard errors of the autocorrelated mean at ρ = 0.8.
    assert sum(waits) / len(waits) / (10 * MS) == pytest.approx(load / (2 * (1 - load)), rel=0.06)


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits in M/M/c."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


@pytest.mark.slow
def test_geometric_answers_in_few_slots_are_m_m_c() -> None:
    """Outputs of geometric length in `c` slots of many short steps: Erlang C, in the limit of short steps."""
    servers, mean_steps, load = 4, 200, 0.75
    limits = Limits(max_num_seqs=servers, async_scheduling=False, max_model_len=32_768)
    core = Core({"m": Instance("m", Served(), limits)})
    draw = random.Random(5)
    arrivals: dict[int, int] = {}
    waits: list[int] = []
    at = 0.0
    for request_id in range(40_000):
        at += draw.expovariate(servers * load / mean_steps) * 10 * MS
        arrivals[request_id] = round(at)
        firsts = [token for token in core.advance(round(at)) if token.n == 1]
        waits += [token.at_ns - arrivals[token.request_id] for token in firsts]
        length = 1 + int(draw.expovariate(1 / mean_steps))
        core.submit(request_id, "m", range(1), min(length, 30_000), round(at))
    service = mean_steps * 10 * MS
    expected = erlang_c(servers, servers * load) / (servers * (1 - load)) * service
    # ParallelPrefill the queue, half a step to the next boundary and the step itself.
    assert sum(waits) / len(waits) == pytest.approx(expected + 15 * MS, rel=0.08)
