"""How long a forward pass takes: the slowest rank, the collectives, the host (simulation notes 2.6).

    t_r  = max( (W_r + K_r) / (e_bw BW_r),  FLOP_r / (e_f F_r) ) + o_r
    step = max_r t_r + collectives + host

W_r its part of the weights read, K_r its part of the KV read, o_r launching its kernels. Nothing overlaps across ranks:
two all-reduces a layer make the fast ranks wait for the slow one.
"""

from typing import Literal

import msgspec

from cadenza.hardware.architecture import Architecture
from cadenza.hardware.batch import Batch
from cadenza.hardware.system import System

Bottleneck = Literal["memory", "compute", "launch", "link", "host"]


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's pass. `stall_share` is the part of every layer in which it waits for the slowest: 1 − t_r / max t."""

    device: str
    share: float
    memory_s: float
    compute_s: float
    overhead_s: float
    total_s: float
    stall_share: float


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One pass. `link_share` = collectives / total; `bottleneck`: the largest part, the slowest rank's or beside it."""

    ranks: tuple[RankTime, ...]
    collectives_s: float
    host_s: float
    total_s: float
    link_share: float
    bottleneck: Bottleneck

    @property
    def slowest(self) -> RankTime:
        """The rank that the others wait for."""
        return max(self.ranks, key=lambda rank: rank.total_s)


class StepModel:
    """A system and a model with all that does not depend on the batch worked out: `seconds` takes microseconds."""

    def __init__(self, system: System, architecture: Architecture) -> None:
        """Raises UsageError where the model cannot be cut into these ranks."""
        system.check(architecture)
        host, ranks = system.host, system.ranks
        self._system = system
        self._ranks = tuple(_rank(system, architecture, index) for index in range(ranks))
        # Ranks that are alike take equally long: one of each is enough for the total.
        self._unlike = tuple(dict.fromkeys(self._ranks))
        self._common_bytes = architecture.common_read_bytes
        self._experts = architecture.experts
        self._missed = 1 - architecture.active_experts / architecture.experts if architecture.experts else 0.0
        self._expert_bytes = architecture.mixture_layers * architecture.expert_bytes
        self._step_s, self._sequence_s = host.step_s, host.sequence_s
        self._fixed_link_s = self._token_s = self._row_s = 0.0
        if system.link is not None:
            reduces, link = 2 * architecture.layers, system.link
            # One all-reduce of nothing is its latency; what one byte adds is the rest.
            self._fixed_link_s = (reduces + 1) * link.latency_s
            byte_s = link.all_reduce_s(1, ranks) - link.latency_s
            self._token_s = reduces * byte_s * architecture.hidden * 2
            self._row_s = (link.all_gather_s(1, ranks) - link.latency_s) * architecture.vocab * 2

    def seconds(self, batch: Batch) -> float:
        """`time(batch).total_s`, to the last bit."""
        tokens = batch.decode_tok + batch.prefill_tok
        weights = self._weights(tokens)
        slowest = 0.0
        for read_s, kv_s, token_s, pair_s, fixed_s in self._unlike:
            memory = weights * read_s + batch.context_tok * kv_s
            compute = tokens * token_s + batch.pairs * pair_s
            total = (memory if memory > compute else compute) + fixed_s
            if total > slowest:
                slowest = total
        return slowest + self._collectives(batch, tokens) + (self._step_s + self._sequence_s * batch.sequences)

    def time(self, batch: Batch) -> StepTime:
        """The pass with its parts."""
        tokens = batch.decode_tok + batch.prefill_tok
        weights = self._weights(tokens)
        parts = []
        for read_s, kv_s, token_s, pair_s, fixed_s in self._ranks:
            memory = weights * read_s + batch.context_tok * kv_s
            compute = tokens * token_s + batch.pairs * pair_s
            parts.append((memory, compute, fixed_s, max(memory, compute) + fixed_s))
        slowest = max(parts, key=lambda part: part[3])
        collectives = self._collectives(batch, tokens)
        host = self._step_s + self._sequence_s * batch.sequences
        total = slowest[3] + collectives + host
        memory, compute, fixed, _ = slowest
        shares: dict[Bottleneck, float] = {
            "memory": memory if memory >= compute else 0.0,
            "compute": compute if compute > memory else 0.0,
            "launch": fixed,
            "link": collectives,
            "host": host,
        }
        return StepTime(
            ranks=tuple(
                RankTime(
                    device=device.title,
                    share=share,
                    memory_s=part[0],
                    compute_s=part[1],
                    overhead_s=part[2],
                    total_s=part[3],
                    stall_share=1 - part[3] / slowest[3],
                )
                for device, share, part in zip(self._system.devices, self._system.shares, parts, strict=True)
            ),
            collectives_s=collectives,
            host_s=host,
            total_s=total,
            link_share=collectives / total,
            bottleneck=max(shares, key=lambda name: shares[name]),
        )

    def _weights(self, tokens: int) -> float:
        """Bytes of weights that all ranks together read."""
        if not self._experts:
            return self._common_bytes
        return self._common_bytes + self._expert_bytes * (self._experts * (1 - self._missed**tokens))

    def _collectives(self, batch: Batch, tokens: int) -> float:
        """Two all-reduces a layer over the hidden states, and one all-gather of a row of logits a sequence."""
        return self._fixed_link_s + tokens * self._token_s + max(batch.sequences, batch.decode_tok) * self._row_s


def step_time(system: System, architecture: Architecture, batch: Batch) -> StepTime:
    """How long `batch` takes, with its parts. Raises UsageError where the model cannot be cut into these ranks.

    FLOP are 2 a weight that a token meets, output head included, also for prompt tokens, whose logits vLLM leaves out:
    a prefill is up to 8 % dearer here (Qwen3 8B) than it need be.
    """
    return StepModel(system, architecture).time(batch)


def decode_batch(sequences: int, context_tok: float) -> Batch:
    """A pass in which `sequences` sequences of `context_tok` tokens each make their next token."""
    context = round(sequences * context_tok)
    return Batch(sequences, sequences, 0, context, context)


def prefill_batch(tokens: int, start_tok: int = 0) -> Batch:
    """A pass over prompt tokens `start_tok` … `start_tok + tokens − 1` of one sequence alone."""
    end = start_tok + tokens
    return Batch(1, 0, tokens, end, (end * (end + 1) - start_tok * (start_tok + 1)) // 2)


def _rank(system: System, architecture: Architecture, index: int) -> tuple[float, float, float, float, float]:
    """A rank's seconds for a byte of all weights, a token of context, a token, a query-key pair, and for nothing."""
    device, share, host = system.devices[index], system.shares[index], system.host
    bandwidth = device.bandwidth_efficiency * device.bandwidth_bytes_per_s
    flop = device.compute_efficiency * device.fp16_flop_per_s
    dispatch = host.dispatch_s_per_layer if device.dispatch_s_per_layer is None else device.dispatch_s_per_layer
    return (
        share / bandwidth,
        architecture.kv_bytes_per_tok * architecture.kv_share(share) / bandwidth,
        architecture.flop_per_tok * share / flop,
        architecture.flop_per_pair * share / flop,
        architecture.layers * dispatch + architecture.mixture_layers * host.route_s_per_moe_layer,
    )
