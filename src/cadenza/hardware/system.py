"""A tensor-parallel group: which cards, which part of the model each holds, what joins them, and their host."""

import math
from collections.abc import Sequence

import msgspec

from cadenza.errors import UsageError
from cadenza.hardware import catalogue
from cadenza.hardware.architecture import Architecture
from cadenza.hardware.device import Device
from cadenza.hardware.link import Link
from cadenza.record import printable


class HostOverhead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a step costs beside the cards' own work. The defaults are BLIS's fit of vLLM on NVIDIA with graphs
    (inference-sim, latency model "trained-physics"), the only published ones.

    dispatch_s_per_layer   launching a layer's kernels, where the device has no figure of its own (b5)
    step_s, sequence_s     scheduler, sampler and input preparation: a step (b7), and for each sequence in it (b6)
    route_s_per_moe_layer  choosing and permuting for experts. 0: BLIS charges only stacks that mix dense and MoE layers
    request_s              HTTP, tokenising and queueing of a request, once, before its first token (alpha0)
    """

    name: str = "graph"
    dispatch_s_per_layer: float = 32e-6
    step_s: float = 126e-6
    sequence_s: float = 4e-6
    route_s_per_moe_layer: float = 0.0
    request_s: float = 15.6e-3


GRAPH = HostOverhead()
# Without graphs Python launches each kernel: Qwen2.5-Omni-7B (28 layers) on an A800 steps in 22 to 23 ms instead of 13
# (vllm-omni#7960), so 0.34 ms a layer more; MoE routing 0.1 to 0.2 ms a layer (vllm-xpu-kernels#509).
EAGER = HostOverhead(name="eager", dispatch_s_per_layer=372e-6, route_s_per_moe_layer=1e-4)
# Nothing but the cards and the link: what rooflines in data sheets' terms are compared with.
IDEAL = HostOverhead(name="ideal", dispatch_s_per_layer=0.0, step_s=0.0, sequence_s=0.0, request_s=0.0)


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in order. `shares` are the ranks' parts of the weights and sum to 1; `link` is None for a single rank."""

    devices: tuple[Device, ...]
    shares: tuple[float, ...]
    link: Link | None = None
    host: HostOverhead = GRAPH

    @property
    def ranks(self) -> int:
        return len(self.devices)

    @property
    def even(self) -> bool:
        """Whether all ranks hold the same part: the only split that vLLM has."""
        return all(abs(share * self.ranks - 1) < 1e-9 for share in self.shares)

    @property
    def title(self) -> str:
        """`2x H100 SXM5 80 GB`, or the cards joined by +, with the split where it is uneven."""
        counts = {device.title: 0 for device in self.devices}
        for device in self.devices:
            counts[device.title] += 1
        cards = " + ".join(f"{n}x {title}" if n > 1 else title for title, n in counts.items())
        return cards if self.even else f"{cards}, split {split_text(self.shares)}"

    def check(self, architecture: Architecture) -> None:
        """UsageError where the model cannot be cut into these ranks.

        An even split as vLLM cuts: heads a multiple of the ranks, KV heads a multiple of them or the ranks a multiple
        of the KV heads, which are then replicated. An uneven one: a head for each rank at least.
        """
        heads, kv_heads, ranks = architecture.heads, architecture.kv_heads, self.ranks
        if self.even and (heads % ranks or (kv_heads % ranks and ranks % kv_heads)):
            ways = [n for n in range(1, 17) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
            raise UsageError(
                f"{architecture.name} has {heads} heads and {kv_heads} KV heads, which do not divide among {ranks} "
                f"ranks: use a tensor-parallel size of {', '.join(map(str, ways))}"
            )
        if min(self.shares) * heads < 1:
            raise UsageError(f"split {split_text(self.shares)}: one of {heads} heads at least goes to each rank")


def system(
    devices: str | Sequence[Device | str],
    *,
    tp: int | None = None,
    split: str | Sequence[float] | None = None,
    link: Link | str | None = None,
    host: HostOverhead = GRAPH,
) -> System:
    """A system from names or devices (`"mi50-32gb,rx6900xt"`). Raises UsageError.

    tp     ranks; default: as many as devices are named. One device alone stands for all of them.
    split  parts of the weights by rank: `"2:1"`, numbers, `"best"` (by memory bandwidth); default: even
    link   default: what joins cards of that kind, or for unlike cards the slowest of their buses
    """
    named = devices.split(",") if isinstance(devices, str) else devices
    cards = [catalogue.device(card) if isinstance(card, str) else card for card in named]
    ranks = len(cards) if tp is None else tp
    if ranks < 1:
        raise UsageError(f"a tensor-parallel size of {ranks} makes no sense: it is the number of cards, from 1 up")
    if len(cards) == 1:
        cards *= ranks
    if len(cards) != ranks:
        raise UsageError(
            f"{len(cards)} devices are named for a tensor-parallel size of {ranks}: name one for each rank"
        )
    joined = catalogue.link(link) if isinstance(link, str) else link
    if ranks > 1 and joined is None:
        joined = _default_link(cards)
    return System(devices=tuple(cards), shares=_shares(split, cards), link=joined if ranks > 1 else None, host=host)


def best_shares(devices: Sequence[Device]) -> tuple[float, ...]:
    """Parts of the weights by which all ranks read equally long: BW_r / Σ BW (simulation notes 2.6)."""
    rates = [device.bandwidth_bytes_per_s * device.bandwidth_efficiency for device in devices]
    return tuple(rate / sum(rates) for rate in rates)


def split_text(shares: Sequence[float]) -> str:
    """`2:1`: shares over the smallest of them."""
    return ":".join(f"{share / min(shares):.3g}" for share in shares)


def _default_link(cards: Sequence[Device]) -> Link:
    if len({card.name for card in cards}) == 1:
        return catalogue.link(cards[0].link)
    return min((catalogue.link(card.bus) for card in cards), key=lambda bus: bus.bandwidth_bytes_per_s)


def _shares(split: str | Sequence[float] | None, cards: Sequence[Device]) -> tuple[float, ...]:
    if split is None:
        return (1 / len(cards),) * len(cards)
    if split == "best":
        return best_shares(cards)
    try:
        parts = [float(part) for part in (split.split(":") if isinstance(split, str) else split)]
    except ValueError:
        parts = []
    if not parts or not all(0 < part < math.inf for part in parts):
        raise UsageError(f"split {printable(str(split), 40)!r} is not a part for each rank, like 2:1, nor 'best'")
    if len(parts) != len(cards):
        raise UsageError(f"split {printable(str(split), 40)} has {len(parts)} parts for {len(cards)} ranks")
    return tuple(part / sum(parts) for part in parts)
