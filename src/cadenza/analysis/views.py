"""The one reader of telemetry: which series are a card's, the host's, the engine's and the kernel log's, and what they
mean. `machine` takes their means and peaks over a window, `snapshot` their values at an instant."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cadenza.analysis.tracks import Track, Tracks, find, growth, pick_model
from cadenza.clock import NS_PER_S
from cadenza.readings import Series

_CARD = "gpu_"
_HOST = "cadenza_host_"
KERNEL_EVENTS = "cadenza_kernel_events_total"
# Of several clocks that a card reports, the one of the compute units.
_CORE_CLOCKS = ("sclk", "sm", "graphics")
_LOOPBACK = "lo"


class CardView(NamedTuple):
    """One card by PCI address, with its series. A quantity is None, or an empty dict, where it could not be read."""

    gpu: str
    tracks: Tracks

    def one(self, name: str, **labels: str) -> Track | None:
        """The series `gpu_NAME` with these labels; the first, where there are several."""
        return next((one for _, one in find(self.tracks, _CARD + name, **labels)), None)

    def by(self, label: str, name: str, **labels: str) -> dict[str, Track]:
        """The series `gpu_NAME` by the text of `label`."""
        return {series.label(label): one for series, one in find(self.tracks, _CARD + name, **labels)}

    @property
    def product(self) -> str | None:
        """The product name that the driver reports."""
        names = (series.label("product") for series, _ in find(self.tracks, "gpu_info"))
        return next((name for name in names if name), None)

    @property
    def power(self) -> Track | None:
        """Watts: the average where the chip has it, else the instantaneous value."""
        kinds = (self.one("power_watts", type=kind) for kind in ("average", "instant"))
        return next((one for one in kinds if one is not None), None)

    @property
    def clock(self) -> Track | None:
        """Hertz of the compute units."""
        domains = self.by("domain", "clock_hertz")
        return next((domains[name] for name in _CORE_CLOCKS if name in domains), None)

    @property
    def temperatures(self) -> dict[str, Track]:
        """Degrees Celsius by sensor."""
        return self.by("sensor", "temperature_celsius")

    @property
    def limits(self) -> dict[str, Track]:
        """Degrees Celsius by sensor, at which the driver lowers the clock."""
        return self.by("sensor", "temperature_limit_celsius", limit="crit")

    @property
    def throttled(self) -> dict[str, Track]:
        """1 while the clock is lowered, by reason."""
        return self.by("reason", "throttled")

    @property
    def state(self) -> str:
        """At the latest instant: up, asleep or gone."""
        up, suspended = self.one("up"), self.one("suspended")
        if up is not None and up.last == 0:
            return "gone"
        return "asleep" if suspended is not None and suspended.last else "up"


class HostView(NamedTuple):
    """The host's series. cpu: shares of all cores' time by mode, 0 to 1."""

    cpu: dict[str, Track]
    tracks: Tracks

    def one(self, name: str) -> Track | None:
        """The series `cadenza_host_NAME`."""
        return next((one for _, one in find(self.tracks, _HOST + name)), None)

    def network_per_s(self, name: str) -> float | None:
        """Bytes per second of the counter `cadenza_host_network_NAME_bytes_total`, without the loopback device."""
        counters = find(self.tracks, f"{_HOST}network_{name}_bytes_total")
        rates = [rate(one) for series, one in counters if series.label("device") != _LOOPBACK]
        known = [one for one in rates if one is not None]
        return sum(known) if known else None


class EngineView(NamedTuple):
    """One model's series of the engine, over all base URLs. edges: the first and last reading of its counters."""

    model: str
    tracks: Tracks
    edges: Sequence[Tracks]

    def gauge(self, name: str) -> Track | None:
        """At each instant the sum over base URLs; of `kv_usage` the highest."""
        instants: dict[int, float] = {}
        for _, one in find(self.tracks, name):
            for at_ns, value in zip(one.at_ns.tolist(), one.values.tolist(), strict=True):
                before = instants.get(at_ns, 0.0)
                instants[at_ns] = max(before, value) if name == "kv_usage" else before + value
        if not instants:
            return None
        return Track(np.array(list(instants), dtype=np.int64), np.array(list(instants.values())))

    def grown(self, name: str) -> float | None:
        """By how much a counter grew between the edges; None: no counter, or it fell."""
        return growth(self.edges, self.model, name)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Prompt tokens served from the prefix cache over those looked up, between the edges; None: none looked up."""
        queries, hits = self.grown("prefix_queries_tok"), self.grown("prefix_hits_tok")
        return hits / queries if queries and hits is not None else None


def card_views(tracks: Tracks) -> list[CardView]:
    """Every card, by PCI address."""
    cards: dict[str, dict[Series, Track]] = {}
    for series, one in tracks.items():
        gpu = series.label("gpu")
        if gpu and series.name.startswith(_CARD):
            cards.setdefault(gpu, {})[series] = one
    return [CardView(gpu, cards[gpu]) for gpu in sorted(cards)]


def host_view(tracks: Tracks) -> HostView:
    """The host's series among others."""
    host = {series: one for series, one in tracks.items() if series.name.startswith(_HOST)}
    return HostView({series.label("mode"): one for series, one in find(host, f"{_HOST}cpu_ratio")}, host)


def engine_view(tracks: Tracks, model: str, edges: Sequence[Tracks]) -> EngineView:
    """The engine's series of `model` (`tracks.pick_model`)."""
    return EngineView(model, pick_model(tracks, model), edges)


def kernel_events(tracks: Tracks) -> dict[str, Track]:
    """Counters of the kernel log's events, by kind and card."""
    return {
        f"{series.label('event')} {series.label('gpu')}".strip(): one for series, one in find(tracks, KERNEL_EVENTS)
    }


def busy_share(idle: float | None, iowait: float | None) -> float | None:
    """Share of processor time spent neither idle nor waiting for a disk; None where idle is not known."""
    return None if idle is None else max(0.0, 1 - idle - (iowait or 0.0))


def rate(counter: Track | None) -> float | None:
    """A counter's growth per second over the track; None: it spans no time, or the counter fell."""
    if counter is None or counter.at_ns[-1] == counter.at_ns[0] or counter.values[-1] < counter.values[0]:
        return None
    return float(counter.values[-1] - counter.values[0]) / (int(counter.at_ns[-1] - counter.at_ns[0]) / NS_PER_S)
