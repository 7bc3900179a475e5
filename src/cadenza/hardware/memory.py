"""What fits: weights, working memory and KV cache on each rank, and the KV blocks that all ranks can hold."""

import math

import msgspec

from cadenza.hardware.architecture import Architecture
from cadenza.hardware.system import System

GIB = 1 << 30
# The driver's context, library workspaces, buffers of the collectives, captured graphs. A rule of thumb, not a
# measurement: allow one GiB more or less before you trust a configuration that only just fits.
RUNTIME_BYTES = GIB
_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 8  # FP32, and the sampler's sorted copy


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, in bytes. `budget` is utilisation x VRAM; `kv` is what it leaves, negative where it lacks."""

    device: str
    budget: float
    weights: float
    working: float
    kv: float
    blocks: int


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks` is the smallest of the ranks', the null block included, as vLLM counts; `kv_tok` = blocks x block size.

    fits    every rank holds its weights, its working memory and at least two blocks (one is vLLM's null block)
    reason  empty, or which rank lacks how much
    """

    fits: bool
    reason: str
    utilisation: float
    block_size: int
    blocks: int
    kv_tok: int
    ranks: tuple[RankMemory, ...]

    def sequences(self, context_tok: int) -> int:
        """Sequences of `context_tok` tokens that the blocks hold at once."""
        return max(0, self.blocks - 1) // math.ceil(context_tok / self.block_size) if context_tok else 0


def working_bytes(architecture: Architecture, share: float, batched_tok: int, sequences: int) -> float:
    """Memory beside weights and KV: RUNTIME_BYTES, one layer's activations of a full step, the logits of a full batch.

    Activations: residual, normed input, attention in and out (4 x hidden) and gate and up (2 x width x share) in 16
    bits, for `batched_tok` tokens; a token of a mixture has as many rows as it meets experts, so their widths add.
    Logits: `sequences` x vocabulary in FP32, twice.
    """
    mixture = architecture.active_experts * architecture.expert_ffn + architecture.shared_ffn
    width = max(architecture.ffn, mixture if architecture.experts else 0)
    activations = batched_tok * (4 * architecture.hidden + 2 * width * share) * _ACTIVATION_BYTES
    return RUNTIME_BYTES + activations + sequences * architecture.vocab * _LOGIT_BYTES


def room(
    system: System,
    architecture: Architecture,
    utilisation: float = 0.92,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
) -> MemoryPlan:
    """Plan the memory of each rank as vLLM does: KV gets what utilisation x VRAM leaves. Raises UsageError by `check`.

    A rank's KV block has block_size x KV bytes a token x its part of the KV heads, which are replicated where there are
    fewer of them than ranks.
    """
    system.check(architecture)
    ranks = []
    for device, share in zip(system.devices, system.shares, strict=True):
        weights = share * architecture.weight_bytes
        working = working_bytes(architecture, share, max_num_batched_tokens, max_num_seqs)
        kv = utilisation * device.vram_bytes - weights - working
        block_bytes = block_size * architecture.kv_bytes_per_tok * architecture.kv_share(share)
        ranks.append(
            RankMemory(
                device=device.title,
                budget=utilisation * device.vram_bytes,
                weights=weights,
                working=working,
                kv=kv,
                blocks=max(0, math.floor(kv / block_bytes)),
            )
        )
    blocks = min(rank.blocks for rank in ranks)
    return MemoryPlan(
        fits=blocks >= 2,
        reason="" if blocks >= 2 else _say_lack(ranks, utilisation),
        utilisation=utilisation,
        block_size=block_size,
        blocks=blocks,
        kv_tok=blocks * block_size,
        ranks=tuple(ranks),
    )


def _say_lack(ranks: list[RankMemory], utilisation: float) -> str:
    number, worst = min(enumerate(ranks), key=lambda pair: pair[1].kv)
    need = f"weights {worst.weights / GIB:.2f} GiB and {worst.working / GIB:.2f} GiB of working memory"
    have = f"{utilisation:g} of its {worst.budget / utilisation / GIB:g} GiB is {worst.budget / GIB:.2f} GiB"
    lack = f"{-worst.kv / GIB:.2f} GiB are lacking" if worst.kv < 0 else "no room for KV is left"
    return f"{worst.device} (rank {number}): {need}, and {have}: {lack}"
