"""The engine itself, on virtual nanoseconds: requests in, tokens out. No sockets, no wall time, integers only.

A model is served by an `Instance`: a scheduler with its KV blocks, a timing law, and one of two clocks. `Stepped`
computes every token in steps; `ParallelPrefill` has the prefill beside them, for laws that were published that way.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from fractions import Fraction

import msgspec

from cadenza.engine.core.metrics import Gauges, Metrics
from cadenza.engine.core.outbox import Outbox, Token
from cadenza.engine.core.pace import Pace
from cadenza.engine.core.parallel_prefill import ParallelPrefill
from cadenza.engine.core.scheduler import Scheduler, Step
from cadenza.engine.core.sequence import Limits, Sequence
from cadenza.engine.core.stepped import Stepped
from cadenza.engine.laws.timing import TimingLaw
from cadenza.errors import UsageError


class Instance:
    """One model's engine.

    limits         with `num_gpu_blocks` None there is always a block: `max_num_seqs` of the longest sequences fit
    output_token   see `scheduler.Scheduler`
    trace          is shown every decision, in order
    """

    def __init__(
        self,
        model: str,
        law: TimingLaw,
        limits: Limits,
        seed: int = 0,
        output_token: Callable[[Sequence, int], int] = lambda sequence, n: n,
        trace: Callable[[Step], None] | None = None,
    ) -> None:
        self.limits = limits = _settle(limits)
        self.metrics = Metrics(model, limits)
        self.scheduler = Scheduler(limits, output_token, trace)
        self._counted = self.scheduler.lookup
        self.outbox = Outbox(limits.stream_interval, self.metrics)
        clock = Stepped if law.prefill_ns(1, 1, 0.5) is None else ParallelPrefill
        self.clock: Stepped | ParallelPrefill = clock(law, self.scheduler, self.outbox, f"{seed} {model}")

    @property
    def in_system(self) -> int:
        """Requests on their way, waiting, or running."""
        return self.clock.coming + len(self.scheduler.running) + len(self.scheduler.waiting)

    def read(self) -> tuple[Metrics, Gauges]:
        """What a metrics page shows of it."""
        lookup = self.scheduler.lookup
        queries, hits, preemptions = (now - before for now, before in zip(lookup, self._counted, strict=True))
        self._counted = lookup
        self.metrics.cache_looked_up(queries, hits)
        self.metrics.preempted(preemptions)
        gauges = Gauges(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_cache_usage=self.scheduler.kv_usage,
        )
        return self.metrics, gauges


def _settle(limits: Limits) -> Limits:
    """The limits with a number of blocks; UsageError where one sequence at its longest would not fit."""
    longest = -(-limits.max_model_len // limits.block_size)
    if limits.num_gpu_blocks is None:
        return msgspec.structs.replace(limits, num_gpu_blocks=limits.max_num_seqs * longest + 1)
    if limits.num_gpu_blocks - 1 < longest:
        tokens = max(0, limits.num_gpu_blocks - 1) * limits.block_size
        raise UsageError(
            f"the KV cache holds {tokens} tokens, one sequence may need {limits.max_model_len}: lower max_model_len, "
            "or give the cache more memory (gpu_memory_utilization)"
        )
    return limits


class Core:
    """Engines by the names of their models, as one, all at one `pace`. Request ids are the caller's, and unique."""

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self.instances = dict(instances)
        self.pace = Pace()
        self._owners: dict[int, tuple[Instance, Sequence]] = {}
        self._ended: list[int] = []

    def submit(
        self,
        request_id: int,
        model: str,
        prompt: Tokens[int],
        output_tokens: int,
        now_ns: int,
        priority: int = 0,
        max_tokens: int | None = None,
        fails: bool = False,
    ) -> None:
        """A request arrives with its prompt's token ids (≥ 1), and will produce exactly `output_tokens` (≥ 1).

        Prompt and output together must be within `max_model_len`. One that `fails` dies in the pass of the last of
        them: that `Token` is sent, and counted as the request's end by an error.
        """
        instance = self.instances[model]
        sequence = Sequence(
            id=request_id,
            prompt=prompt,
            output_tokens=output_tokens,
            arrival_ns=now_ns,
            priority=priority,
            max_tokens=max_tokens,
        )
        self._owners[request_id] = (instance, sequence)
        if fails:
            instance.outbox.failing.add(request_id)
        instance.metrics.arrived(sequence)
        instance.clock.submit(sequence, now_ns)

    def abort(self, request_id: int, now_ns: int) -> None:
        """Forget a request; tokens not yet taken are lost. One that has ended, or never was, is no error."""
        owner = self._owners.pop(request_id, None)
        if owner is not None and owner[0].clock.abort(request_id, now_ns) is not None:
            owner[0].metrics.ended(owner[1], "abort", now_ns)

    def in_system(self, model: str | None = None) -> int:
        """Requests of a model, or of all, that wait, are in prefill or decode."""
        if model is None:
            return sum(instance.in_system for instance in self.instances.values())
        return self.instances[model].in_system

    def cached_tokens(self, request_id: int) -> int:
        """Prompt tokens the prefix cache spared a request, from its admission until the `advance` after its end."""
        owner = self._owners.get(request_id)
        return 0 if owner is None else owner[1].cached

    def next_ns(self) -> int | None:
        """When something happens next, None: nothing runs."""
        next_ns: int | None = None
        for instance in self.instances.values():
            events = instance.outbox.events
            due = events[0].at_ns if events else instance.clock.next_ns()
            if due is not None and (next_ns is None or due < next_ns):
                next_ns = due
        return next_ns

    def advance(self, now_ns: int) -> list[Token]:
        """All tokens up to and at `now_ns` that have not been taken yet, in order of time."""
        for request_id in self._ended:
            self._owners.pop(request_id, None)
        tokens: list[Token] = []
        for instance in self.instances.values():
            instance.clock.run(now_ns)
            tokens += instance.outbox.take()
        tokens.sort(key=lambda token: token.at_ns)
        self._ended = [token.request_id for token in tokens if token.is_last]
        return tokens

    def busy_ns(self, now_ns: int) -> int:
        """For how long forward passes have run by `now_ns`, those of all engines added up."""
        return sum(instance.clock.busy_ns(now_ns) for instance in self.instances.values())

    def set_pace(self, pace: Pace, now_ns: int = 0) -> None:
        """All work from `now_ns` on, where `pace` begins, goes at that pace; what is under way, too."""
        for instance in self.instances.values():
            instance.clock.run(now_ns)
            instance.clock.set_pace(pace)
        self.pace = pace

    def limit_pace(self, limit: Fraction, now_ns: int) -> None:
        """No work goes faster than `limit` from `now_ns` on, or from where the engine already is if that is later."""
        at_ns = max(now_ns, *(instance.clock.now_ns for instance in self.instances.values()))
        self.set_pace(self.pace.limited(limit, at_ns), at_ns)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False, and nothing done, where some of them are in use."""
        done = [instance.scheduler.blocks.reset() for instance in self.instances.values()]
        return all(done)

    def read(self, now_ns: int) -> list[tuple[Metrics, Gauges]]:
        """Counters and gauges of every instance as of `now_ns`."""
        for instance in self.instances.values():
            instance.clock.run(now_ns)
        return [instance.read() for instance in self.instances.values()]
