"""A transformer's shape, and what follows from it: parameters, bytes, FLOP. Data: `models/*.toml`."""

from typing import Annotated

import msgspec

from cadenza.hardware.device import Positive

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 44)]

# Embeddings, output head and norms stay in 16 bits where the layers are quantised (GPTQ, AWQ, FP8 checkpoints).
_HALF_BYTES = 2.0


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder with grouped-query attention and gated (three-matrix) feed-forward layers, dense or mixture of experts.

    ffn               width of the feed-forward of dense layers; 0 where all layers are mixtures
    tied              the output head is the embedding table
    qkv_bias, qk_norm whether the projections have biases, and whether queries and keys are normalised per head
    experts           experts a mixture layer, of which each token meets `active_experts` of width `expert_ffn`;
    shared_ffn        width of what all tokens meet beside them
    moe_layers        layers that are mixtures; None: all, where there are experts
    bytes_per_weight  of the layers' matrices: 2 FP16 or BF16, 1 FP8, 0.5 INT4 (scales left out)
    kv_bytes_per_element  2, or 1 for an FP8 cache
    given_params, given_read_params, given_kv_elements
                      for a model whose layers differ: all its weights, those that a step reads, KV elements a token.
                      They replace what the shape would give
    """

    name: str
    hf_name: str
    title: str = ""
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: Amount
    vocab: Count
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: Amount = 0
    active_experts: Amount = 0
    expert_ffn: Amount = 0
    shared_ffn: Amount = 0
    moe_layers: Amount | None = None
    bytes_per_weight: Annotated[float, msgspec.Meta(gt=0, le=8)] = 2.0
    kv_bytes_per_element: Positive = 2.0
    given_params: Amount | None = None
    given_read_params: Amount | None = None
    given_kv_elements: Amount | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is no multiple of kv_heads ({self.kv_heads})")
        if self.experts and not (1 <= self.active_experts <= self.experts and self.expert_ffn):
            raise ValueError("a mixture needs active_experts from 1 to experts, and expert_ffn")
        if not 0 <= self.mixture_layers <= self.layers:
            raise ValueError(f"moe_layers is not from 0 to layers ({self.layers})")
        if self.mixture_layers and not self.experts:
            raise ValueError("moe_layers needs experts")
        if self.mixture_layers < self.layers and not self.ffn:
            raise ValueError("layers that are no mixtures need ffn")

    @property
    def mixture_layers(self) -> int:
        """Layers with experts."""
        if self.moe_layers is not None:
            return self.moe_layers
        return self.layers if self.experts else 0

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention and its two norms."""
        kept = 2 * self.hidden * self.heads * self.head_dim + 2 * self.hidden * self.kv_heads * self.head_dim
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        return kept + bias + (2 * self.head_dim if self.qk_norm else 0) + 2 * self.hidden

    @property
    def expert_params(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.expert_ffn

    @property
    def common_params(self) -> int:
        """Weights of all layers that every token meets: all but the experts."""
        dense = (self.layers - self.mixture_layers) * 3 * self.hidden * self.ffn
        mixture = self.mixture_layers * (self.hidden * self.experts + 3 * self.hidden * self.shared_ffn)
        return self.layers * self.attention_params + dense + mixture

    @property
    def embedding_params(self) -> int:
        """Weights of the embedding table; the output head has as many, and is the same table where tied."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All weights."""
        if self.given_params is not None:
            return self.given_params
        mixture = self.mixture_layers * self.experts * self.expert_params
        return self.common_params + mixture + self.hidden + self.embedding_params * (1 if self.tied else 2)

    @property
    def weight_bytes(self) -> float:
        """Size of all weights as stored."""
        if self.given_params is not None:
            return self.given_params * self.bytes_per_weight
        half = self.hidden + self.embedding_params * (1 if self.tied else 2)
        return (self.params - half) * self.bytes_per_weight + half * _HALF_BYTES

    @property
    def common_read_bytes(self) -> float:
        """What a step reads whatever its tokens: all layers but the experts, and the output head."""
        if self.given_read_params is not None:
            return self.given_read_params * self.bytes_per_weight
        return self.common_params * self.bytes_per_weight + (self.embedding_params + self.hidden) * _HALF_BYTES

    @property
    def expert_bytes(self) -> float:
        """One expert as stored."""
        return self.expert_params * self.bytes_per_weight

    def distinct_experts(self, tokens: int) -> float:
        """Experts of one layer that `tokens` tokens meet, expected: E (1 − (1 − k/E)^tokens), if each is as likely."""
        if not self.experts:
            return 0.0
        return self.experts * (1 - (1 - self.active_experts / self.experts) ** tokens)

    def read_bytes_per_step(self, tokens: int) -> float:
        """Weights read by a step over `tokens` tokens: all but the embedding table; experts as far as they are met."""
        return self.common_read_bytes + self.mixture_layers * self.distinct_experts(tokens) * self.expert_bytes

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with."""
        if self.given_read_params is not None:
            return self.given_read_params
        mixture = self.mixture_layers * self.active_experts * self.expert_params
        return self.common_params + mixture + self.embedding_params + self.hidden

    @property
    def flop_per_tok(self) -> float:
        """2 FLOP a weight that the token meets; attention comes on top by query-key pairs."""
        return 2.0 * self.active_params

    @property
    def flop_per_pair(self) -> float:
        """Attention over one query-key pair in all layers: 4 · layers · heads · head_dim (QKᵀ and the weighted sum)."""
        return 4.0 * self.layers * self.heads * self.head_dim

    @property
    def kv_bytes_per_tok(self) -> float:
        """KV cache of one token in all layers."""
        elements = 2 * self.layers * self.kv_heads * self.head_dim
        if self.given_kv_elements is not None:
            elements = self.given_kv_elements
        return elements * self.kv_bytes_per_element

    def kv_share(self, share: float) -> float:
        """Part of the KV cache that a rank with `share` of the weights holds: no less than one head, replicated."""
        return max(share, 1 / self.kv_heads)
