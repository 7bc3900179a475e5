"""AMD cards from the files of their driver: sysfs, hwmon, gpu_metrics, RAS, and KFD for what ROCm calls them."""

from collections.abc import Sequence
from pathlib import Path

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.readings import Collected, Collector, Missing, Reading
from cadenza.telemetry.cards.counters import EnergyCounter, ErrorCounters
from cadenza.telemetry.cards.drm import CardPath, KnownCards, find_cards, plan_device, read_asleep, read_fact
from cadenza.telemetry.cards.gpu_metrics import GpuMetrics, parse
from cadenza.telemetry.cards.hwmon import Hwmon
from cadenza.telemetry.cards.kfd import Node, Topology, add_processes
from cadenza.telemetry.cards.products import name_product
from cadenza.telemetry.cards.throttling import Residency, decode
from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.findings import Findings, Known
from cadenza.telemetry.root import UnreadableError, read_bytes

_METRICS_BYTES = 64 << 10
_MAX_KNOWN = 4096
SELDOM_S = 2
# Read by other collectors, or on request.
_NOT_OURS = frozenset(
    {
        *("gpu_pcie_received_bytes_per_second", "gpu_pcie_sent_bytes_per_second"),
        *("gpu_process_memory_bytes", "gpu_process_sdma_seconds_total"),
    }
)
_FAMILIES = [name for name in FAMILIES if name.startswith("gpu_") and name not in _NOT_OURS]
# What only the chip itself can answer. A card that fell off the bus may keep its files, and the driver its own counts.
_OF_THE_CHIP = (
    *("gpu_busy_ratio", "gpu_temperature_celsius", "gpu_power_watts", "gpu_clock_hertz"),
    "gpu_throttled",
)
_ONLY_METRICS = ("gpu_energy_joules_total", "gpu_throttled", "gpu_throttle_seconds_total")


class AmdgpuCollector(Collector):
    """All cards below `root` (which stands for /) that the amdgpu driver runs, by PCI address.

    A card that was there and is gone is `gpu_up` 0 until it is back. A suspended one is not woken.
    Busy, power and temperatures belong to the whole card also where it is partitioned; the memory of its partitions is
    reported under the pools xcp0, xcp1, …. `processes`: also the memory of each process.

    Busy shares, VRAM in use, temperatures, power, clocks, voltages, energy and throttling are read in every round, and
    a card that is gone is gone at the next. Other pools in use, sizes, limits, power cap, fan, PCIe link and replays,
    and the partition are under 2 s old; RAS errors and bad pages under 10 s. What failed for a reason that may pass is
    read again in the next round.
    """

    name = "amdgpu"

    def __init__(self, root: Path, processes: bool = False, clock: Clock | None = None) -> None:
        self._root = root
        self._processes = processes
        self._clock = clock or MonotonicClock()
        self._topology = Topology(root)
        self._cards: dict[str, _Card | None] = {}  # every one that was ever seen; None: gone
        self._known: KnownCards = {}
        self._paths: dict[str, CardPath] = {}

    def collect(self) -> Collected:
        """Read every card; `amdgpu` itself is missing (absent) where there never was one."""
        paths = {path.gpu: path for path in find_cards(self._root, self._known)}
        if paths != self._paths:
            # KFD numbers its changes anew when the driver is loaded again.
            self._paths, self._topology = paths, Topology(self._root)
        for gpu in self._cards.keys() - paths.keys():
            self._cards[gpu] = None
        nodes, missing = self._topology.read()
        nodes_of: dict[str, list[Node]] = {}
        for node in nodes:
            nodes_of.setdefault(node.gpu, []).append(node)
        now_ns = self._clock.now_ns()
        readings: list[Reading] = []
        missing = list(missing)
        awake: dict[str, Findings] = {}
        findings: list[Findings] = []
        for gpu, path in paths.items():
            card = self._cards.get(gpu)
            if card is None or card.path != path:
                card = self._cards[gpu] = _Card(path, _read_driver(self._root))
            if len(card.readings) > _MAX_KNOWN:  # processes come and go
                card.readings.clear()
            card_findings = Findings(gpu, "amd", card.readings)
            if card.read(nodes_of.get(gpu, []), now_ns, card_findings):
                awake[gpu] = card_findings
            findings.append(card_findings)
        if self._processes:
            add_processes(awake, nodes, self._root)
        for card_findings in findings:
            collected = card_findings.collect(_FAMILIES)
            readings += collected.readings
            missing += collected.missing
        readings += [
            Reading("gpu_up", (("gpu", gpu), ("vendor", "amd")), 0.0)
            for gpu, card in self._cards.items()
            if card is None
        ]
        if not self._cards:
            missing.append(Missing(self.name, "", "absent"))
        return Collected(readings, missing)


class _Card:
    """One card while one driver has it: what never changes, and the state of the round before."""

    def __init__(self, path: CardPath, driver: str) -> None:
        self.path = path
        self.readings: Known = {}
        self._driver = driver
        self._facts: dict[str, str] = {}
        self._known = False  # once the chip has answered, so have the files with its facts
        self._plan = plan_device(path.device)
        self._seldom = Findings(path.gpu, "amd")
        self._due_ns: int | None = None
        self._hwmon = Hwmon(path.device)
        self._energy = EnergyCounter()
        self._residency = Residency()
        self._errors = ErrorCounters()

    def read(self, nodes: Sequence[Node], now_ns: int, findings: Findings) -> bool:
        """Read the card into `findings`. False if it is suspended, or if that is unknown."""
        device = self.path.device
        try:
            asleep = read_asleep(device)
        except UnreadableError as error:
            findings.lack("gpu_suspended", error.reason)
            asleep = True
        else:
            findings.give("gpu_suspended", asleep)
        is_due = not asleep and (self._due_ns is None or now_ns >= self._due_ns)
        gfx = self._read_facts(nodes, asleep, is_due, findings)
        if asleep:
            self._energy.rest()
            findings.give("gpu_up", 1)
            for name in _FAMILIES:
                if name not in ("gpu_info", "gpu_up", "gpu_suspended"):
                    findings.lack(name, "asleep")
            return False
        sensors = self._hwmon.plan()
        if is_due:
            self._seldom = Findings(self.path.gpu, "amd")
            for name, read, labels in (*self._plan.seldom, *sensors.seldom):
                self._seldom.attempt(name, read, *labels)
            self._due_ns = None if self._seldom.hopes() else now_ns + SELDOM_S * NS_PER_S
        for name, read, labels in (*self._plan.often, *sensors.often):
            findings.attempt(name, read, *labels)
        findings.include(self._seldom)
        self._read_metrics(gfx, findings)
        self._errors.read(device, now_ns, findings)
        _add_partitions(nodes, findings)
        answered = findings.answered(_OF_THE_CHIP)
        self._known = self._known or answered
        findings.give("gpu_up", answered or not findings.failed(_OF_THE_CHIP))
        return True

    def _read_facts(self, nodes: Sequence[Node], asleep: bool, is_due: bool, findings: Findings) -> str:
        """`gpu_info`; of a card that sleeps, what was known. The gfx name."""
        device, facts = self.path.device, self._facts
        if not self._known and not asleep:
            product, gfx = name_product(read_fact(device / "device"), read_fact(device / "revision"))
            facts["product"] = read_fact(device / "product_name") or product
            facts["gfx"] = gfx
            facts |= {name: read_fact(device / name) for name in ("unique_id", "serial_number", "vbios_version")}
        if is_due:
            facts["partition"] = read_fact(device / "current_compute_partition")
        node = nodes[0] if nodes else None
        gfx = (node.gfx if node else "") or facts.get("gfx", "")
        findings.give(
            "gpu_info",
            1,
            self.path.card,
            str(node.number) if node else "",
            gfx,
            facts.get("product", ""),
            self._driver,
            facts.get("unique_id", ""),
            facts.get("serial_number", ""),
            facts.get("vbios_version", ""),
            facts.get("partition", ""),
            "",  # uuid
        )
        return gfx

    def _read_metrics(self, gfx: str, findings: Findings) -> None:
        try:
            metrics = parse(read_bytes(f"{self.path.device}/gpu_metrics", _METRICS_BYTES))
        except UnreadableError as error:
            for name in _ONLY_METRICS:
                findings.lack(name, error.reason)
            return
        _add_metrics(metrics, findings)
        if metrics.energy_joules is not None:
            findings.give("gpu_energy_joules_total", self._energy.add(metrics.energy_joules, metrics.clock_s))
        elif metrics.version > (1, 0):  # where the field exists and is all ones
            findings.lack("gpu_energy_joules_total", "not_supported")
        throttled = decode(metrics, gfx)
        if metrics.cycles is not None:
            self._residency.add(metrics)
            for reason, seconds in self._residency.seconds.items():
                findings.give("gpu_throttle_seconds_total", seconds, reason)
            # v1_6 has no bits: a reason holds if its counter has grown since the last round; none in the first
            throttled = {reason: share > 0 for reason, share in self._residency.shares.items()}
            findings.excuse("gpu_throttled")
        for reason, holds in throttled.items():
            findings.give("gpu_throttled", holds, reason)


def _add_metrics(metrics: GpuMetrics, findings: Findings) -> None:
    """What the text files do not have. Not the fan: on a card without one it reads 0."""
    findings.give("gpu_busy_ratio", metrics.busy_ratio)
    findings.give("gpu_memory_busy_ratio", metrics.memory_busy_ratio)
    for sensor, celsius in metrics.temperatures_celsius.items():
        findings.give("gpu_temperature_celsius", celsius, sensor)
    findings.give("gpu_power_watts", metrics.average_power_watts, "average")
    findings.give("gpu_power_watts", metrics.instant_power_watts, "instant")
    for domain, hertz in metrics.clocks_hertz.items():
        findings.give("gpu_clock_hertz", hertz, domain)
    for rail, volts in metrics.voltages_volts.items():
        findings.give("gpu_voltage_volts", volts, rail)
    speed = metrics.link_speed_transfers_per_second
    findings.give("gpu_pcie_link_speed_transfers_per_second", speed, "current")
    findings.give("gpu_pcie_link_width_lanes", metrics.link_width_lanes, "current")
    findings.give("gpu_pcie_replays_total", metrics.replays_total)


def _add_partitions(nodes: Sequence[Node], findings: Findings) -> None:
    """Memory of each partition, by its place among the card's KFD nodes; the driver does not show how much is used."""
    if len(nodes) < 2:
        return
    for place, node in enumerate(nodes):
        findings.give("gpu_memory_size_bytes", node.vram_bytes, f"xcp{place}")
        findings.lack("gpu_memory_used_bytes", "not_supported", f"xcp{place}")


def _read_driver(root: Path) -> str:
    """The driver's version, which is the kernel's for the one that comes with it."""
    return read_fact(root / "sys/module/amdgpu/version") or read_fact(root / "proc/sys/kernel/osrelease")
