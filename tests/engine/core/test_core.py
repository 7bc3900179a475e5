"""The core with prefill beside the steps, against closed forms worked out without it."""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.engine.build import build_core
from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.outbox import Token
from cadenza.engine.core.sequence import Limits
from cadenza.engine.laws.calibrated import Calibrated
from cadenza.engine.laws.timing import TimingLaw
from cadenza.engine.profile import load
from cadenza.hardware.batch import Batch

PROFILE = load("mi50-rx6900xt")
MODELS = tuple(model.name for model in PROFILE.models)
QWEN3, QWEN25, GEMMA = MODELS
MS = 1_000_000


def quiet(model: str) -> Calibrated:
    """The model's law without its spread."""
    fit = PROFILE.model(model).calibrated
    assert fit is not None
    return Calibrated(fit, PROFILE.model(model).rows, noise=False)


def ttft_ns(model: str, in_system: int) -> int:
    return quiet(model).prefill_ns(1, in_system, 0.5)


def step_ns(model: str, in_system: int) -> int:
    return quiet(model).step_ns(Batch(in_system, in_system, 0, 0, 0), 0.5)


def quiet_core() -> Core:
    return Core({model: Instance(model, quiet(model), Limits()) for model in MODELS})


def core_of(law: TimingLaw, limits: Limits | None = None) -> Core:
    return Core({"m": Instance("m", law, limits or Limits())})


class Linear:
    """TTFT 100 ms and a step of 10 ms for one, each growing by its own with every further request."""

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int | None:
        return 100 * MS * in_system

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return 10 * MS * batch.sequences

    def request_ns(self) -> int:
        return 0


def drain(core: Core) -> dict[int, list[Token]]:
    tokens: dict[int, list[Token]] = defaultdict(list)
    while (due := core.next_ns()) is not None:
        for token in core.advance(due):
            tokens[token.request_id].append(token)
    return tokens


def test_a_single_stream_is_ttft_and_then_steps() -> None:
    core = quiet_core()
    core.submit(1, QWEN3, range(10), 5, now_ns=1000)
    ttft, step = ttft_ns(QWEN3, 1), step_ns(QWEN3, 1)
    assert core.next_ns() == 1000 + ttft
    assert drain(core)[1] == [Token(1, n, n == 5, 1000 + ttft + (n - 1) * step) for n in range(1, 6)]
    assert core.in_system(QWEN3) == 0


def test_sixteen_at_once_all_get_the_ttft_of_sixteen() -> None:
    core = quiet_core()
    for request_id in range(16):
        core.submit(request_id, GEMMA, range(10), 3, now_ns=0)
    ttft, step = ttft_ns(GEMMA, 16), step_ns(GEMMA, 16)
    for tokens in drain(core).values():
        assert [token.at_ns for token in tokens] == [ttft, ttft + step, ttft + 2 * step]


def test_prefill_is_shared_and_what_is_left_stretches_when_another_comes() -> None:
    core = core_of(Linear())
    core.submit(1, "m", range(1), 1, now_ns=0)
    core.submit(2, "m", range(1), 1, now_ns=50 * MS)
    # Half done alone; the other half takes 100 ms at two. Then the second has half left, and takes 50 ms alone.
    tokens = drain(core)
    assert tokens[1] == [Token(1, 1, True, 150 * MS)]
    assert tokens[2] == [Token(2, 1, True, 200 * MS)]


def test_a_step_keeps_the_length_it_began_with() -> None:
    core = core_of(Linear())
    core.submit(1, "m", range(1), 4, now_ns=0)
    assert [token.at_ns for token in core.advance(100 * MS)] == [100 * MS]
    core.submit(2, "m", range(1), 1, now_ns=104 * MS)
    assert [token.at_ns for token in core.advance(130 * MS)] == [110 * MS, 130 * MS]


@pytest.mark.parametrize(("first_ms", "second_ms"), [(105, 110), (106, 120), (110, 120), (101, 110)])
def test_a_request_joins_at_the_first_boundary_half_a_step_or_more_after_its_first_token(
    first_ms: int, second_ms: int
) -> None:
    class Flat:
        def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> int | None:
            return 100 * MS

        def step_ns(self, batch: Batch, quantile: float) -> int:
            return 10 * MS

        def request_ns(self) -> int:
            return 0

    core = core_of(Flat())
    core.submit(1, "m", range(1), 9, now_ns=0)
    core.submit(2, "m", range(1), 2, now_ns=(first_ms - 100) * MS)
    assert [token.at_ns for token in drain(core)[2]] == [first_ms * MS, second_ms * MS]


def test_the_clock_stops_when_nobody_decodes_and_starts_anew() -> None:
    core = core_of(Linear())
    core.submit(1, "m", range(1), 2, now_ns=0)
    core.submit(2, "m", range(1), 1, now_ns=500 * MS)
    core.submit(3, "m", range(1), 2, now_ns=1003 * MS)
    assert [token.at_ns // MS for tokens in drain(core).values() for token in tokens] == [100, 110, 600, 1103, 1113]


def test_models_have_clocks_of_their_own() -> None:
    core = quiet_core()
    core.submit(1, QWEN3, range(1), 50, now_ns=0)
    core.submit(2, GEMMA, range(1), 50, now_ns=0)
    alone = quiet_core()
    alone.submit(2, GEMMA, range(1), 50, now_ns=0)
    assert drain(core)[2] == drain(alone)[2]


def test_a_late_caller_gets_the_tokens_with_their_own_times() -> None:
    core = core_of(Linear())
    core.submit(1, "m", range(1), 3, now_ns=0)
    core.submit(2, "m", range(1), 1, now_ns=115 * MS)
    assert core.next_ns() == 100 * MS
    assert [token.at_ns // MS for token in core.advance(116 * MS)] == [100, 110]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("concurrency", [1, 2, 8, 16])
def test_a_closed_loop_shows_the_laws_means(model: str, concurrency: int) -> None:
    core = build_core(PROFILE, seed=3)
    lengths = random.Random(5)
    sent: dict[int, int] = {}
    first: dict[int, int] = {}
    wanted: dict[int, int] = {}
    ttfts: list[int] = []
    tpots: list[float] = []

    def submit(now_ns: int) -> None:
        request_id = len(sent)
        sent[request_id] = now_ns
        wanted[request_id] = lengths.randint(128, 256)
        core.submit(request_id, model, range(20), wanted[request_id], now_ns)

    for _ in range(concurrency):
        submit(0)
    while len(tpots) < 32 * concurrency:
        due = core.next_ns()
        assert due is not None
        for token in core.advance(due):
            if token.n == 1:
                first[token.request_id] = token.at_ns
                ttfts.append(token.at_ns - sent[token.request_id])
            if token.is_last:
                tpots.append((token.at_ns - first[token.request_id]) / (wanted[token.request_id] - 1))
                submit(due)
    assert sum(ttfts) / len(ttfts) == pytest.approx(ttft_ns(model, concurrency), rel=0.005)
    assert sum(tpots) / len(tpots) == pytest.approx(step_ns(model, concurrency), rel=0.005)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(1, 12), st.sampled_from(MODELS[:2]), st.integers(0, 4_000)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(requests=REQUESTS, seed=st.integers(0, 5))
def test_tokens_share_boundaries_counts_are_exact_and_all_end(
    requests: list[tuple[int, int, str, int]], seed: int
) -> None:
    core = build_core(PROFILE, seed=seed)
    for request_id, (at_ms, length, model, _) in enumerate(sorted(requests)):
        core.submit(request_id, model, range(1), length, at_ms * MS)
    tokens = drain(core)
    for model in MODELS[:2]:
        mine = [tokens[i] for i, request in enumerate(sorted(requests)) if request[2] == model]
        boundaries = sorted({token.at_ns for stream in mine for token in stream[1:]})
        for stream in mine:
            inside = [at for at in boundaries if stream[-1].at_ns >= at > stream[0].at_ns]
            decoded = [token.at_ns for token in stream[1:]]
            # Once in, at every boundary: the last ones there are, none skipped.
            assert decoded == inside[len(inside) - len(decoded) :]
            assert len(inside) - len(decoded) <= 1
    for request_id, (_, length, _, _) in enumerate(sorted(requests)):
        assert [token.n for token in tokens[request_id]] == list(range(1, length + 1))
        assert [token.is_last for token in tokens[request_id]] == [False] * (length - 1) + [True]
    assert [core.in_system(model) for model in MODELS] == [0, 0, 0]


@settings(deadline=None)
@given(requests=REQUESTS)
def test_abort_leaves_nothing_behind(requests: list[tuple[int, int, str, int]]) -> None:
    core = build_core(PROFILE)
    events = [(at, 0, i, length, model) for i, (at, length, model, _) in enumerate(requests)]
    events += [(at + after, 1, i, 0, model) for i, (at, _, model, after) in enumerate(requests)]
    gone: set[int] = set()
    for at_ms, is_abort, request_id, length, model in sorted(events):
        if is_abort:
            core.abort(request_id, at_ms * MS)
            gone.add(request_id)
        else:
            core.submit(request_id, model, range(1), length, at_ms * MS)
        assert not gone & {token.request_id for token in core.advance(at_ms * MS)}
    assert core.next_ns() is None
    assert [core.in_system(model) for model in MODELS] == [0, 0, 0]


def test_abort_of_the_unknown_is_no_error_and_stops_an_idle_clock() -> None:
    core = core_of(Linear())
    core.abort(5, 0)
    core.submit(1, "m", range(1), 100, now_ns=0)
    core.advance(150 * MS)
    core.abort(1, 151 * MS)
    core.abort(1, 152 * MS)
    assert core.next_ns() is None


def test_one_seed_one_course() -> None:
    def course(seed: int) -> dict[int, list[Token]]:
        core = build_core(PROFILE, seed=seed)
        for request_id in range(8):
            core.submit(request_id, QWEN25, range(1), 40, now_ns=request_id * 37 * MS)
        return drain(core)

    assert course(1) == course(1)
    assert course(1) != course(2)


def test_who_finds_no_room_waits_and_its_ttft_begins_with_its_admission() -> None:
    core = core_of(Linear(), Limits(max_num_seqs=1))
    core.submit(1, "m", range(1), 3, now_ns=0)
    core.submit(2, "m", range(1), 1, now_ns=0)
    tokens = drain(core)
    # Alone each time: 100 ms to the first token, 10 ms a step; the second comes in when the first has left.
    assert [token.at_ns // MS for token in tokens[1]] == [100, 110, 120]
    assert [token.at_ns // MS for token in tokens[2]] == [220]


def test_for_want_of_blocks_the_newest_starts_over_and_says_nothing_twice() -> None:
    limits = Limits(block_size=8, num_gpu_blocks=8, max_model_len=56, enable_prefix_caching=False)
    core = core_of(Linear(), limits)
    core.submit(1, "m", range(16), 40, now_ns=0)
    core.submit(2, "m", range(16), 30, now_ns=0)
    tokens = drain(core)
    assert [token.n for token in tokens[1]] == list(range(1, 41))
    assert [token.n for token in tokens[2]] == list(range(1, 31))
    assert core.instances["m"].scheduler.lookup.preemptions == 1
    # Seven blocks of 8: both grow to 24 tokens, then to 32, which takes one block too many. The second pays for it.
    gaps = [later.at_ns - earlier.at_ns for earlier, later in zip(tokens[2], tokens[2][1:], strict=False)]
    assert sum(gap > 20 * MS for gap in gaps) == 1
    assert all(later.at_ns - earlier.at_ns <= 20 * MS for earlier, later in zip(tokens[1], tokens[1][1:], strict=False))


def test_a_stream_interval_gathers_tokens_and_keeps_the_first_and_the_last() -> None:
    core = core_of(Linear(), Limits(stream_interval=4))
    core.submit(1, "m", range(1), 10, now_ns=0)
    events = drain(core)[1]
    assert [(token.n, token.tokens) for token in events] == [(1, 1), (5, 4), (9, 4), (10, 1)]
    assert [token.at_ns // MS for token in events] == [100, 140, 180, 190]


def test_an_engine_is_busy_from_the_first_prefill_to_the_last_token() -> None:
    core = core_of(Linear())
    core.submit(1, "m", range(1), 3, now_ns=50 * MS)
    core.submit(2, "m", range(1), 1, now_ns=500 * MS)
    drain(core)
    # 100 ms of prefill and two steps of 10; then another prefill.
    assert [core.busy_ns(at_ms * MS) // MS for at_ms in (1_000, 2_000)] == [220, 220]
