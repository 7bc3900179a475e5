"""One accelerator, as its data sheet describes it. Data: `devices/*.toml`, every number with its source."""

from typing import Annotated

import msgspec

# The upper bounds keep infinities out; no such device exists.
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model needs to know of a card.

    target                 compiler target or architecture: gfx906, gfx942, sm_90
    vram_bytes             memory on the card; a card sold as "16 GB" has 16 GiB
    bandwidth_bytes_per_s  peak of its memory
    fp16_flop_per_s        dense peak, matrix units where it has them, without sparsity
    tdp_w                  board power
    link                   link between two cards of this kind, by the catalogue's name
    bus                    link to a card of another kind
    bandwidth_efficiency   share of the peak that a decode step's reads reach. 0.75 is common for weight streams; BLIS
                           stretches its weight reads by 1.4 (b3), which says 0.71
    compute_efficiency     share of the peak that its matrix products reach. 0.4 lies in the usual 0.35 to 0.5; BLIS
                           takes 0.45 for prefill and 0.30 for decode on an H100
    dispatch_s_per_layer   time in which a layer's kernels get launched and nothing is read. It belongs to the host and
                           its software: default `system.HostOverhead`, unless it was measured on this card
    """

    name: str
    title: str
    target: str
    vram_bytes: Annotated[int, msgspec.Meta(gt=0, le=1 << 50)]
    bandwidth_bytes_per_s: Positive
    fp16_flop_per_s: Positive
    tdp_w: Positive
    link: str = "pcie4-x16"
    bus: str = "pcie4-x16"
    bandwidth_efficiency: Share = 0.75
    compute_efficiency: Share = 0.4
    dispatch_s_per_layer: Annotated[float, msgspec.Meta(ge=0, le=10)] | None = None
