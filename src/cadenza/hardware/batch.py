"""What one forward pass works on: the scheduler's side of the contract with whoever says how long it takes."""

from typing import NamedTuple


class Batch(NamedTuple):
    """Sums over the sequences of one pass.

    sequences    sequences in it; in a calibrated engine, whose prefill runs beside the steps, all that are admitted
    decode_tok   tokens of sequences that decode: one each, or 1 + k where k are speculated
    prefill_tok  prompt tokens computed
    context_tok  KV-cache tokens read: the context of every sequence at the end of the pass
    pairs        query-key pairs of attention: Σ over sequences of Σ over their new tokens of that token's context
    """

    sequences: int
    decode_tok: int
    prefill_tok: int
    context_tok: int
    pairs: int
