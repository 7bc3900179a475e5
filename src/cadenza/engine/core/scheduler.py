"""vLLM's v1 scheduler, as a state machine without time: which sequence computes how many tokens in the next step.

Semantics of vLLM 0.32 (v1/core/sched/scheduler.py, async_scheduler.py), held against it step by step in
tests/engine/test_scheduler_vllm.py. There is no prefill and no decode phase: every sequence has tokens, of which some
are computed, and each step lets those of some sequences catch up. Running sequences come first, in the order of
their admission; for want of a block the newest (or the least urgent) is preempted: its blocks are given back and all
its tokens are computed again later. Only a step that preempted nobody admits from the queue.

With `async_scheduling` a step may be scheduled before the one before it has been taken in (`update`): tokens under
way are then `pending`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cadenza.engine.core.blocks import Blocks
from cadenza.engine.core.sequence import Limits, Sequence
from cadenza.engine.core.waiting import FirstCome, MostUrgent, urgency
from cadenza.hardware.batch import Batch


class Work(NamedTuple):
    """One sequence's part in a step: `tokens` to compute, the last `drafts` of them speculated.

    yields   the step ends with a new token of this sequence: its known tokens are then all computed
    start    tokens computed before it
    padded   its drafts only fill the row of an admission that needs one token: none is right
    """

    sequence: Sequence
    tokens: int
    drafts: int
    yields: bool
    start: int
    padded: bool = False


class Step(NamedTuple):
    """A decision. `admitted` and `preempted` are in the order in which it happened."""

    works: list[Work]
    admitted: list[Sequence]
    preempted: list[Sequence]

    @property
    def scheduled(self) -> list[tuple[Sequence, int]]:
        """Sequence and tokens, running ones first."""
        return [(work.sequence, work.tokens) for work in self.works]

    def batch(self) -> Batch:
        """What the forward pass has to do."""
        decode = prefill = context = pairs = 0
        for sequence, tokens, _, _, start, _ in self.works:
            end = start + tokens
            context += end
            if start < len(sequence.prompt):
                prefill += tokens
                pairs += (start + end + 1) * tokens // 2
            else:
                decode += tokens
                pairs += end if tokens == 1 else (start + end + 1) * tokens // 2
        return Batch(len(self.works), decode, prefill, context, pairs)


class Lookup(NamedTuple):
    """What the prefix cache was asked and had at first admissions, in tokens, and preemptions: since the beginning."""

    queries_tok: int
    hits_tok: int
    preemptions: int


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


class Scheduler:
    """One engine's queues and KV blocks. `limits.num_gpu_blocks` must be set.

    output_token   token id of the n-th (from 1) token that a sequence produces: for the hashes of generated blocks
    trace          is shown every decision as it is made
    """

    def __init__(
        self,
        limits: Limits,
        output_token: Callable[[Sequence, int], int] = lambda sequence, n: n,
        trace: Callable[[Step], None] | None = None,
    ) -> None:
        assert limits.num_gpu_blocks is not None
        self.limits = limits
        self.running: list[Sequence] = []
        self.waiting: FirstCome | MostUrgent = FirstCome() if limits.scheduling_policy == "fcfs" else MostUrgent()
        self.blocks = Blocks(limits.num_gpu_blocks, limits.enable_prefix_caching)
        self._output_token = output_token
        self._trace = trace
        self._by_id: dict[int, Sequence] = {}
        self._watermark = int(limits.watermark * limits.num_gpu_blocks)
        self._prompt_goes_on = False
        self._threshold = 0
        self._queries_tok = 0
        self._hits_tok = 0
        self._preemptions = 0

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self.blocks.usage

    @property
    def lookup(self) -> Lookup:
        """Counts since the beginning."""
        return Lookup(self._queries_tok, self._hits_tok, self._preemptions)

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits. Its length is cut to what `max_model_len` leaves room for."""
        room = self.limits.max_model_len - len(sequence.prompt)
        sequence.output_tokens = min(sequence.output_tokens, room)
        self._by_id[sequence.id] = sequence
        if self.limits.enable_prefix_caching:
            self._hash(sequence)
        self.waiting.add(sequence)

    def abort(self, sequence_id: int) -> Sequence | None:
        """Take a sequence out, wherever it is; what steps under way produce for it is lost. None: not here."""
        sequence = self._by_id.pop(sequence_id, None)
        if sequence is not None:
            (self.running if sequence.running else self.waiting).remove(sequence)
            self._release(sequence)
        return sequence

    def schedule(self, admit: bool = True) -> Step | None:
        """Decide the next step; None: there is nothing to compute. `admit` false leaves the queue alone."""
        step = Step([], [], [])
        budget = self._schedule_running(step, self.limits.max_num_batched_tokens)
        if admit and not step.preempted:
            self._admit(step, budget)
        for work in step.works:
            sequence = work.sequence
            sequence.computed += work.tokens
            sequence.in_flight += work.tokens
            if work.yields:
                sequence.pending += 1 + work.drafts
                sequence.drafts = self.limits.num_speculative_tokens
        if not step.works and not step.preempted:
            return None
        if self._trace is not None:
            self._trace(step)
        return step

    def admit_beside(self) -> list[Sequence]:
        """Admit while there is room, prompts and all, without a step: for engines whose prefill runs beside them.

        Whoever is admitted is `held`, and takes part in steps once the caller has taken that back.
        """
        step = Step([], [], [])
        self._admit(step, None)
        for sequence, tokens, *_ in step.works:
            sequence.computed += tokens
            sequence.held = True
        if step.works and self._trace is not None:
            self._trace(step)
        return step.admitted

    def update(self, step: Step, accepted: Mapping[int, int] | None = None) -> list[Sequence]:
        """The step is done: tokens become known. Returns the sequences that have new ones, ended or not.

        accepted   by sequence id, how many of its drafts were right; none by default
        """
        updated = []
        for sequence, tokens, drafts, yields, _, padded in step.works:
            if sequence.id not in self._by_id:
                continue
            is_stale = sequence.stale > 0
            sequence.in_flight -= tokens
            if is_stale:
                sequence.stale -= tokens
            if not yields:
                continue
            right = accepted.get(sequence.id, 0) if accepted and drafts and not padded else 0
            count = min(1 + right, sequence.output_tokens - sequence.produced)
            if not is_stale:
                sequence.computed -= drafts - right
                sequence.pending -= drafts - right + count
            self.produce(sequence, count)
            updated.append(sequence)
        return updated

    def produce(self, sequence: Sequence, count: int) -> None:
        """`count` more tokens of `sequence` are known; its last one releases it."""
        sequence.produced += count
        if self.limits.enable_prefix_caching:
            if len(sequence.prompt) + sequence.produced >= (len(sequence.hashes) + 1) * self.limits.block_size:
                self._hash(sequence)
            # Only the asynchronous scheduler does so here; the other registers with the next allocation.
            if sequence.running and self.limits.async_scheduling:
                self._register(sequence, sequence.computed - sequence.pending)
        if sequence.produced >= sequence.output_tokens:
            del self._by_id[sequence.id]
            (self.running if sequence.running else self.waiting).remove(sequence)
            self._release(sequence)

    def _schedule_running(self, step: Step, budget: int) -> int:
        limits = self.limits
        threshold = self._threshold = self._prompt_threshold()
        self._prompt_goes_on = False
        at, size, works = 0, limits.block_size, step.works
        while at < len(self.running) and budget > 0:
            sequence = self.running[at]
            known = len(sequence.prompt) + sequence.produced
            start = sequence.computed
            tokens = known + sequence.drafts + sequence.pending - start
            if (
                tokens == 1
                and not sequence.pending
                and not sequence.mid_prompt
                and not sequence.held
                and start < len(sequence.blocks) * size
                and known < (sequence.registered + 1) * size
            ):
                # What nearly every step is: one token of a sequence whose last block has room. No more than it needs.
                works.append(Work(sequence, 1, 0, True, start))
                budget -= 1
                at += 1
                continue
            if tokens > 1:
                if 0 < threshold < tokens:
                    tokens = threshold
                tokens = min(tokens, budget, limits.max_model_len - sequence.computed - 1)
            if tokens <= 0 or sequence.held or self._is_on_its_way_out(sequence):
                at += 1
                continue
            while not self._allocate(sequence, tokens):
                victim, at, budget = self._preempt(step, at, budget)
                if victim is sequence:
                    return budget
            self._prompt_goes_on |= sequence.mid_prompt
            works.append(self._work(sequence, tokens))
            budget -= tokens
            at += 1
        return budget

    def _prompt_threshold(self) -> int:
        threshold = self.limits.long_prefill_token_threshold
        return threshold if threshold and len(self.running) + len(self.waiting) > 1 else 0

    def _is_on_its_way_out(self, sequence: Sequence) -> bool:
        """The steps under way are sure to produce its last token."""
        if not sequence.pending:
            return False
        least = sequence.computed + 2 - sequence.pending
        return least >= len(sequence.prompt) + sequence.output_tokens

    def _work(self, sequence: Sequence, tokens: int, padded: bool = False) -> Work:
        start = sequence.computed
        known = len(sequence.prompt) + sequence.produced + sequence.pending
        drafts = max(0, start + tokens - known)
        yields = start + tokens >= known
        sequence.drafts = 0
        sequence.mid_prompt = not yields
        return Work(sequence, tokens, drafts, yields, start, padded)

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for `tokens` more of a running sequence; False: there are not enough."""
        end = min(sequence.computed + tokens, self.limits.max_model_len)
        missing = _cdiv(end, self.limits.block_size) - len(sequence.blocks)
        if missing > 0:
            if missing > self.blocks.free:
                return False
            sequence.blocks += self.blocks.take(missing)
        if self.limits.enable_prefix_caching:
            self._register(sequence, min(end, sequence.tokens))
        return True

    def _preempt(self, step: Step, at: int, budget: int) -> tuple[Sequence, int, int]:
        """Make room by the policy's victim; the place in the running list, and the budget, as they are after that."""
        if self.limits.scheduling_policy == "fcfs":
            victim = self.running.pop()
        else:
            victim = max(self.running, key=urgency)
            place = self.running.index(victim)
            del self.running[place]
            if place < at:
                at -= 1
            for index, work in enumerate(step.works):
                if work.sequence is victim:
                    budget += work.tokens
                    del step.works[index]
                    break
        self._release(victim)
        victim.running = False
        victim.computed = victim.pending = victim.drafts = 0
        victim.stale = victim.in_flight
        victim.preemptions += 1
        self._preemptions += 1
        self.waiting.put_back([victim])
        step.preempted.append(victim)
        return victim, at, budget

    def _admit(self, step: Step, budget: int | None) -> None:
        """From the queue, in its order, up to the first that does not fit; `budget` None: no bound on tokens."""
        limits = self.limits
        runs = bool(step.works)
        skipped: list[Sequence] = []
        while (budget is None or budget > 0) and self.waiting and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting.head()
            if sequence.stale:
                # Tokens from before its preemption are still to come: it waits for them, others do not.
                skipped.append(self.waiting.pop())
                continue
            found = self._find(sequence)
            cached = len(found) * limits.block_size
            tokens = sequence.tokens - cached
            padded = False
            if budget is not None:
                padded = tokens == 1 and (runs or cached > 0) and self._pads(cached)
                tokens = self._cut(1 + limits.num_speculative_tokens if padded else tokens, padded, budget)
                if not tokens:
                    break
                budget -= tokens
            if not self._allocate_anew(sequence, found, cached + tokens):
                break
            self._take_in(sequence, found, tokens)
            step.works.append(self._work(sequence, tokens, padded))
            step.admitted.append(sequence)
        self.waiting.put_back(skipped)

    def _pads(self, cached: int) -> bool:
        """An admission that needs one token takes as many as those that speculate, where no prompt is under way."""
        drafts = self.limits.num_speculative_tokens
        return drafts > 0 and not self._prompt_goes_on and cached + drafts + 2 <= self.limits.max_model_len

    def _cut(self, tokens: int, padded: bool, budget: int) -> int:
        """What of `tokens` an admission computes in this step; 0: it has to wait."""
        if padded and tokens > budget:
            return 0
        if 0 < self._threshold < tokens:
            tokens = self._threshold
        if tokens > budget and not self.limits.enable_chunked_prefill:
            return 0
        return min(tokens, budget)

    def _find(self, sequence: Sequence) -> list[int]:
        """The blocks with the longest prefix that is cached; never all of its tokens: the last one is computed."""
        if not self.limits.enable_prefix_caching:
            return []
        return self.blocks.find(sequence.hashes[: (sequence.tokens - 1) // self.limits.block_size])

    def _allocate_anew(self, sequence: Sequence, found: list[int], end: int) -> bool:
        """Room for all its tokens is asked for, so that prompts under way cannot starve each other."""
        missing = _cdiv(max(sequence.tokens, end), self.limits.block_size) - len(found)
        reserve = self._watermark if self.running else 0
        return missing + self.blocks.idle(found) + reserve <= self.blocks.free

    def _take_in(self, sequence: Sequence, found: list[int], tokens: int) -> None:
        size = self.limits.block_size
        self.waiting.pop()
        self.running.append(sequence)
        sequence.running = True
        self.blocks.share(found)
        sequence.computed = len(found) * size
        sequence.blocks = [*found, *self.blocks.take(_cdiv(sequence.computed + tokens, size) - len(found))]
        sequence.registered = len(found)
        if self.limits.enable_prefix_caching:
            if not sequence.preemptions:
                sequence.cached = sequence.computed
                self._queries_tok += sequence.tokens
                self._hits_tok += sequence.computed
            self._register(sequence, sequence.computed + tokens)

    def _release(self, sequence: Sequence) -> None:
        self.blocks.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.registered = 0

    def _register(self, sequence: Sequence, computed: int) -> None:
        full = computed // self.limits.block_size
        for at in range(sequence.registered, full):
            self.blocks.register(sequence.blocks[at], sequence.hashes[at])
        if full > sequence.registered:
            sequence.registered = full

    def _hash(self, sequence: Sequence) -> None:
        """Extend the chain of hashes over every full block of tokens known by now."""
        size, prompt = self.limits.block_size, len(sequence.prompt)
        hashes = sequence.hashes
        while (len(hashes) + 1) * size <= sequence.tokens:
            start = len(hashes) * size
            ids = list(sequence.prompt[start : start + size])
            first = max(start, prompt) - prompt
            ids += [self._output_token(sequence, n) for n in range(first + 1, start + size - prompt + 1)]
            hashes.append(hash((hashes[-1] if hashes else 0, *ids)))
