"""The KV cache's blocks: who holds them, which are free, and which still carry a prefix worth finding.

Semantics of vLLM 0.32 (v1/core/block_pool.py, kv_cache_manager.py): block 0 is nobody's. A block with a hash stays
findable after its last holder has left, until somebody else needs the space: free blocks are a queue, those without
a hash are put at its head, those with one at its tail.
"""

from collections import OrderedDict
from collections.abc import Sequence as Items

from cadenza.errors import CadenzaError


class Blocks:
    """`count` blocks, the null block included; `caching`: full blocks are kept findable by their hash."""

    def __init__(self, count: int, caching: bool) -> None:
        if count < 2:
            raise CadenzaError(f"a KV cache of {count} blocks holds nothing: it takes two, one of them the null block")
        self.count = count
        self._caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, count))
        self._holders = [0] * count
        self._hash_of: list[int | None] = [None] * count
        # Equal blocks are not merged: one hash may have several, and the first is found.
        self._by_hash: dict[int, dict[int, None]] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds, those with a findable prefix included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks in somebody's hands, 0 to 1."""
        return 1.0 - len(self._free) / (self.count - 1)

    def find(self, hashes: Items[int]) -> list[int]:
        """Blocks with these hashes, in order, up to the first that is not there."""
        found = []
        for key in hashes:
            blocks = self._by_hash.get(key)
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def idle(self, blocks: Items[int]) -> int:
        """How many of these nobody holds: taking them takes from the free."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def share(self, blocks: Items[int]) -> None:
        """One more holder for each of these."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks from the head of the queue; what they carried is found no more. There must be as many."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
            self._forget(block)
        return taken

    def register(self, block: int, key: int) -> None:
        """A block has become full, and is found by `key` from now on."""
        if self._caching:
            self._hash_of[block] = key
            self._by_hash.setdefault(key, {})[block] = None

    def give_back(self, blocks: Items[int]) -> None:
        """One holder less for each of a sequence's blocks, given in order of position.

        Its last blocks are the first to be used again: a prefix is worth more the shorter it is.
        """
        bare: list[int] = []
        cached: list[int] = []
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                (bare if self._hash_of[block] is None else cached).append(block)
        for block in reversed(bare):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        for block in cached:
            self._free[block] = None

    def reset(self) -> bool:
        """Forget every prefix. Only while nobody holds a block; says whether it was done."""
        if len(self._free) != self.count - 1:
            return False
        self._by_hash.clear()
        self._hash_of = [None] * self.count
        return True

    def _forget(self, block: int) -> None:
        key = self._hash_of[block]
        if key is not None:
            self._hash_of[block] = None
            blocks = self._by_hash[key]
            del blocks[block]
            if not blocks:
                del self._by_hash[key]
