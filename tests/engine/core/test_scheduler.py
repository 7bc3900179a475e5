"""The scheduler's promises, checked from outside at every step: blocks, budget, order, and that every request ends."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.engine.core.scheduler import Scheduler, Step
from cadenza.engine.core.sequence import Limits, Sequence

TINY = Limits(max_num_seqs=4, max_num_batched_tokens=48, max_model_len=160, block_size=8, num_gpu_blocks=28)


class Driven:
    """A scheduler in the hands of a random client, and an auditor that knows only what a scheduler must not do."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.random = random.Random(seed)
        self.under_way: deque[Step] = deque()
        self.alive: dict[int, Sequence] = {}
        self.first_admissions: list[int] = []
        self.ended = self.aborted = self.count = 0

    def step(self, more: bool = True) -> None:
        draw = self.random.random
        if more and len(self.scheduler.waiting) < 6 and draw() < 0.5:
            self._arrive()
        if more and self.alive and draw() < 0.01:
            victim = self.random.choice(list(self.alive))
            assert self.scheduler.abort(victim) is self.alive.pop(victim)
            self.aborted += 1
        preempted_before = {id: s.preemptions for id, s in self.alive.items()}
        step = self.scheduler.schedule()
        if step is not None:
            self._audit_step(step, preempted_before)
            if step.works:
                self.under_way.append(step)
        depth = 2 if self.limits.async_scheduling else 1
        if self.under_way and (len(self.under_way) >= depth or step is None or not step.works):
            self._finish(self.under_way.popleft())
        self._audit_blocks()

    def _arrive(self) -> None:
        self.count += 1
        prompt = [self.random.randrange(2) for _ in range(self.random.randint(1, 100))]
        sequence = Sequence(
            id=self.count,
            prompt=prompt,
            output_tokens=self.random.randint(1, 60),
            arrival_ns=self.count,
            priority=self.random.randrange(3),
        )
        self.alive[sequence.id] = sequence
        self.scheduler.add(sequence)

    def _finish(self, step: Step) -> None:
        accepted = {work.sequence.id: self.random.randint(0, work.drafts) for work in step.works}
        before = {work.sequence.id: work.sequence.produced for work in step.works}
        for sequence in self.scheduler.update(step, accepted):
            assert before[sequence.id] < sequence.produced <= sequence.output_tokens
            if sequence.ended:
                assert self.alive.pop(sequence.id) is sequence
                assert sequence.blocks == []
                self.ended += 1

    def _audit_step(self, step: Step, preempted_before: dict[int, int]) -> None:
        limits = self.limits
        assert sum(work.tokens for work in step.works) <= limits.max_num_batched_tokens
        assert all(work.tokens > 0 for work in step.works)
        assert len({work.sequence.id for work in step.works}) == len(step.works)
        assert len(self.scheduler.running) <= limits.max_num_seqs
        assert not (step.preempted and step.admitted)
        for sequence in step.preempted:
            assert sequence.preemptions == preempted_before[sequence.id] + 1
            assert sequence.blocks == []
            assert sequence.computed == 0
        for work in step.works:
            held = len(work.sequence.blocks) * limits.block_size
            assert work.start + work.tokens <= min(held, limits.max_model_len)
        self.first_admissions += [sequence.id for sequence in step.admitted if not sequence.preemptions]

    def _audit_blocks(self) -> None:
        """Every block is free, or held: by whoever has it in a list, and by nobody else."""
        holders = Counter(block for sequence in self.alive.values() for block in sequence.blocks)
        total = self.limits.num_gpu_blocks
        assert total is not None
        assert 0 not in holders
        assert len(holders) + self.scheduler.blocks.free == total - 1
        if not self.limits.enable_prefix_caching:
            assert all(count == 1 for count in holders.values())
        for sequence in self.scheduler.waiting:
            assert sequence.blocks == []


VARIANTS = [
    {},
    {"async_scheduling": False},
    {"scheduling_policy": "priority"},
    {"enable_prefix_caching": False},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 160},
    {"num_speculative_tokens": 3},
    {"num_speculative_tokens": 2, "async_scheduling": False, "scheduling_policy": "priority"},
    {"long_prefill_token_threshold": 16, "watermark": 0.1},
]


def limits_with(variant: dict[str, object]) -> Limits:
    values = {name: getattr(TINY, name) for name in TINY.__struct_fields__} | variant
    return Limits(**values)


def keep_promises(variant: dict[str, object], seed: int, steps: int) -> Driven:
    driven = Driven(limits_with(variant), seed)
    for _ in range(steps):
        driven.step()
    for _ in range(20_000):
        if not driven.alive:
            break
        driven.step(more=False)
    assert not driven.alive, "a request never ended"
    assert driven.ended + driven.aborted == driven.count
    assert driven.scheduler.kv_usage == 0
    if driven.limits.scheduling_policy == "fcfs" and not driven.aborted:
        assert driven.first_admissions == sorted(driven.first_admissions)
    return driven


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), variant=st.sampled_from(VARIANTS))
def test_promises_hold_for_a_while_from_any_seed(seed: int, variant: dict[str, object]) -> None:
    assert keep_promises(variant, seed, 300).ended > 10


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_promises_hold_over_a_million_steps(variant: dict[str, object]) -> None:
    """125,000 steps of each of eight variants."""
    driven = keep_promises(variant, seed=7, steps=125_000)
    assert driven.ended > 5_000
    assert driven.scheduler.lookup.preemptions > 500


def test_first_come_is_first_admitted_unless_it_left() -> None:
    driven = Driven(TINY, seed=3)
    for _ in range(3_000):
        driven.step()
    assert driven.first_admissions == sorted(driven.first_admissions)
    assert len(driven.first_admissions) > 100


def run_alone(limits: Limits, prompt: list[int], output: int) -> list[int]:
    """Tokens that each step computes of a single request."""
    scheduler = Scheduler(limits)
    scheduler.add(Sequence(id=1, prompt=prompt, output_tokens=output))
    tokens = []
    while (step := scheduler.schedule()) is not None:
        tokens.append(step.works[0].tokens)
        scheduler.update(step)
    return tokens


def test_a_prompt_is_cut_into_chunks_of_the_budget_and_then_decodes_by_one() -> None:
    limits = limits_with({"async_scheduling": False})
    # 100 = 48 + 48 + 4; the step that computes the prompt's last token yields the first output token.
    assert run_alone(limits, list(range(100)), 4) == [48, 48, 4, 1, 1, 1]


def test_the_last_block_of_a_repeated_prompt_is_computed_again() -> None:
    scheduler = Scheduler(limits_with({"async_scheduling": False}))
    for id, prompt in ((1, list(range(32))), (2, list(range(32))), (3, list(range(33)))):
        scheduler.add(Sequence(id=id, prompt=prompt, output_tokens=1))
        step = scheduler.schedule()
        assert step is not None
        scheduler.update(step)
        computed = step.works[0].tokens
        # Blocks of 8: of 32 equal tokens three blocks are a hit, as the last token has to be computed; of 33, four.
        assert computed == {1: 32, 2: 8, 3: 1}[id]
    assert scheduler.lookup == (32 + 32 + 33, 0 + 24 + 32, 0)


def test_the_newest_gives_way_and_comes_back_first() -> None:
    limits = limits_with({"async_scheduling": False, "num_gpu_blocks": 21, "enable_prefix_caching": False})
    scheduler = Scheduler(limits)
    for id in (1, 2, 3):
        scheduler.add(Sequence(id=id, prompt=[0] * (8 * 6), output_tokens=24))
    seen: list[tuple[list[int], list[int]]] = []
    while (step := scheduler.schedule()) is not None:
        if step.preempted or step.admitted:
            seen.append(([s.id for s in step.admitted], [s.id for s in step.preempted]))
        scheduler.update(step)
    # 20 blocks: three prompts take 18, each with a token more 21: 3 has to go. It fits again once 1 has ended.
    assert seen == [([1], []), ([2], []), ([3], []), ([], [3]), ([3], [])]
