"""What joins the ranks of a tensor-parallel group. Data: `links/*.toml`, every number with its source."""

from typing import Annotated

import msgspec

from cadenza.hardware.device import Positive


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's way to the others.

    bandwidth_bytes_per_s  in one direction, to all other ranks together, as programs reach it
    latency_s              time of one all-reduce of a few KiB, the library's launch included
    per_peer_bytes_per_s   in one direction to one other rank, where every pair has a link of its own
    """

    name: str
    title: str
    bandwidth_bytes_per_s: Positive
    latency_s: Annotated[float, msgspec.Meta(ge=0, le=10)]
    per_peer_bytes_per_s: Positive | None = None

    def bandwidth(self, ranks: int) -> float:
        """Bytes/s in one direction that a rank reaches in a group of `ranks`."""
        if self.per_peer_bytes_per_s is None:
            return self.bandwidth_bytes_per_s
        return min(self.bandwidth_bytes_per_s, self.per_peer_bytes_per_s * max(1, ranks - 1))

    def all_reduce_s(self, nbytes: float, ranks: int) -> float:
        """Time of one ring all-reduce of `nbytes`: latency + 2 (n−1)/n · bytes / bandwidth (simulation notes 2.6)."""
        return self.latency_s + 2 * (ranks - 1) / ranks * nbytes / self.bandwidth(ranks)

    def all_gather_s(self, nbytes: float, ranks: int) -> float:
        """Time of one ring all-gather whose result has `nbytes`: latency + (n−1)/n · bytes / bandwidth."""
        return self.latency_s + (ranks - 1) / ranks * nbytes / self.bandwidth(ranks)
