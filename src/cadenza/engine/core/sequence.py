"""One request inside the engine, and the limits it lives under. Shared by the scheduler, the core and the metrics."""

from collections.abc import Sequence as Tokens
from typing import Literal

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine's flags as vLLM 0.32 spells them, with its defaults for a GPU below 70 GiB.

    num_gpu_blocks          KV-cache blocks, the null block included; None: as many as the hardware's memory holds
    scheduling_policy       fcfs | priority (the lowest `priority` first, then the earliest)
    long_prefill_token_threshold  a prompt is computed at most this many tokens a step, unless alone; 0: no limit
    async_scheduling        step k+1 is decided while k runs: an arrival during k joins k+2
    num_speculative_tokens  tokens proposed for each sequence a step, of which the leading run of accepted ones counts
    acceptance              probability that a proposed token is accepted, given that the one before it was
    stream_interval         tokens between two events of a stream; the first and the last token always make one
    watermark               share of the blocks that an admission leaves free
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    block_size: int = 16
    num_gpu_blocks: int | None = None
    gpu_memory_utilization: float = 0.92
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = True
    num_speculative_tokens: int = 0
    acceptance: float = 0.7
    stream_interval: int = 1
    watermark: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1")
        for name in ("long_prefill_token_threshold", "num_speculative_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative")
        for name in ("acceptance", "watermark"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} lies between 0 and 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError("gpu_memory_utilization lies above 0 and is 1 at most")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}): each sequence needs a token a step"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_model_len "
                f"({self.max_model_len}), and without chunked prefill a prompt has to fit into one step"
            )


class Sequence(msgspec.Struct, kw_only=True, eq=False):
    """A request's state. Times are engine nanoseconds; 0 until they have happened.

    prompt          token ids
    output_tokens   how many it will produce, known beforehand: the engine has no end-of-sequence of its own
    max_tokens      what the client asked for at most, for the metrics; None: it did not say
    computed        tokens whose KV is in the cache, or will be once the steps under way are done
    produced        tokens it has produced; kept through a preemption, recomputed after it
    pending         tokens that the steps under way will produce (vLLM's output placeholders)
    drafts          speculated tokens that its next step verifies
    in_flight       tokens that steps under way work on; stale: those among them from before a preemption
    mid_prompt      its latest step left some of its known tokens uncomputed
    held            it is admitted, but takes no part in steps: its prefill runs beside them
    blocks          ids of the blocks it holds, in order of position
    registered      how many of them, from the first, the prefix cache knows
    hashes          chained hashes of its full blocks, as far as its tokens are known
    cached          prompt tokens that the prefix cache spared it at its first admission
    accounted_tok, streamed  tokens that have been stamped, and that its stream has been given
    arrival_ns → scheduled_ns (first time) → first_token_ns → last_token_ns
    """

    id: int
    prompt: Tokens[int]
    output_tokens: int
    arrival_ns: int = 0
    priority: int = 0
    max_tokens: int | None = None
    computed: int = 0
    produced: int = 0
    pending: int = 0
    drafts: int = 0
    in_flight: int = 0
    stale: int = 0
    mid_prompt: bool = False
    held: bool = False
    running: bool = False
    blocks: list[int] = []
    registered: int = 0
    hashes: list[int] = []
    cached: int = 0
    preemptions: int = 0
    accounted_tok: int = 0
    streamed: int = 0
    scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def tokens(self) -> int:
        """Tokens it has by now: its prompt and what it has produced."""
        return len(self.prompt) + self.produced

    @property
    def ended(self) -> bool:
        return self.produced >= self.output_tokens
