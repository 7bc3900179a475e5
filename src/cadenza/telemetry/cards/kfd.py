"""ROCm's view below `sys/class/kfd/kfd`: which node is which card, and what each process holds on it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cadenza.readings import Missing, Reason
from cadenza.telemetry.findings import Findings
from cadenza.telemetry.root import UnreadableError, read_integer, read_text

_LINE = re.compile(r"([a-z][a-z0-9_]{0,63}) ([0-9]{1,20})", re.ASCII)
_PER_CARD = re.compile(r"(vram|sdma)_([0-9]{1,10})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_MICROSECONDS = 1_000_000
# A page with a series a process has to end somewhere; no machine we know runs so many on one card.
_MAX_PROCESSES = 1024


class Node(NamedTuple):
    """A GPU of the topology, which is a whole card or one partition of it.

    number      of the folder, as ROCm counts agents, CPUs included
    gpu         PCI address of the card; partitions of one card share it
    gpu_id      what process files are named after
    gfx         gfx906, gfx1030, … ; empty if unknown
    vram_bytes  of the first memory bank; None if unknown
    """

    number: int
    gpu: str
    gpu_id: int
    gfx: str
    vram_bytes: int | None


class ComputeProcess(NamedTuple):
    """What process `pid` (the host's number) has on one GPU: VRAM, and the time of its copies; None if unknown."""

    pid: str
    gpu_id: int
    vram_bytes: int | None
    sdma_s: float | None


def parse_properties(text: str) -> dict[str, int]:
    """Lines of a key and a decimal number; whatever else there is, is left out."""
    return {key: int(value) for key, value in (m.groups() for m in map(_LINE.fullmatch, text.splitlines()) if m)}


def pci_address(location_id: int, domain: int) -> str:
    """`location_id` is bus << 8 | device << 3 | function; newer kernels put a partition's number above bit 27."""
    return f"{domain:04x}:{location_id >> 8 & 0xFF:02x}:{location_id >> 3 & 0x1F:02x}.{location_id & 7:x}"


def gfx_name(gfx_target_version: int) -> str:
    """90006 is gfx906, 90010 gfx90a, 100300 gfx1030: major, then minor and stepping in hex; empty for 0."""
    if not 0 < gfx_target_version < 1_000_000:
        return ""
    major, rest = divmod(gfx_target_version, 10_000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}"


class Topology:
    """The GPU nodes; read again when `generation_id` changes, or where there is none."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "sys/class/kfd/kfd/topology"
        self._generation: int | None = None
        self._nodes: list[Node] = []
        self._missing: list[Missing] = []

    def read(self) -> tuple[list[Node], list[Missing]]:
        """Nodes in their order; nodes that could not be read are missing, under `gpu_info` and no card.

        A topology that is not there at all (no ROCm driver) is no nodes, and nothing missing: the cards still are.
        """
        try:
            generation: int | None = read_integer(f"{self._folder}/generation_id")
        except UnreadableError:
            generation = None
        if generation is None or generation != self._generation:
            self._nodes, self._missing = [], []
            for number in _numbers(self._folder / "nodes"):
                self._read_node(number)
            # one that is asleep or denied now may be readable in the next round
            self._generation = generation if not self._missing else None
        return self._nodes, self._missing

    def _read_node(self, number: int) -> None:
        folder = self._folder / "nodes" / str(number)
        try:
            gpu_id = read_integer(folder / "gpu_id")
            if gpu_id == 0:  # a CPU
                return
            properties = parse_properties(read_text(folder / "properties"))
        except UnreadableError as error:
            # The device cgroup answers EPERM here; a suspended card has its topology all the same.
            reason: Reason = "denied" if error.reason == "asleep" else error.reason
            self._missing.append(Missing("gpu_info", "", reason))
            return
        if "location_id" not in properties:
            self._missing.append(Missing("gpu_info", "", "malformed"))
            return
        try:
            bank = parse_properties(read_text(folder / "mem_banks/0/properties"))
        except UnreadableError:
            bank = {}
        gpu = pci_address(properties["location_id"], properties.get("domain", 0))
        gfx = gfx_name(properties.get("gfx_target_version", 0))
        self._nodes.append(Node(number, gpu, gpu_id, gfx, bank.get("size_in_bytes")))


def read_processes(root: Path, gpu_ids: frozenset[int]) -> Iterator[ComputeProcess]:
    """Compute processes with files of those GPUs, the lowest pids first; at most 1024 processes are looked at.

    `cu_occupancy` is never read: the answer stalls the compute units' counters, and is all ones where there is none.
    """
    folder = root / "sys/class/kfd/kfd/proc"
    for pid in _numbers(folder)[:_MAX_PROCESSES]:
        found: dict[int, dict[str, int]] = {}
        for name in _names(folder / str(pid)):
            match = _PER_CARD.fullmatch(name)
            if match is None or int(match[2]) not in gpu_ids:
                continue
            try:
                value = read_integer(folder / str(pid) / name)
            except UnreadableError:  # it ended meanwhile
                continue
            if 0 <= value < 1 << 63:
                found.setdefault(int(match[2]), {})[match[1]] = value
        for gpu_id, values in sorted(found.items()):
            sdma_us = values.get("sdma")
            sdma_s = None if sdma_us is None else sdma_us / _MICROSECONDS
            yield ComputeProcess(str(pid), gpu_id, values.get("vram"), sdma_s)


def add_processes(findings: dict[str, Findings], nodes: list[Node], root: Path) -> None:
    """To each card's findings what processes hold on it; of a partitioned card, on all its partitions together."""
    cards = {node.gpu_id: node.gpu for node in nodes if node.gpu in findings}
    vram: dict[tuple[str, str], int] = {}
    sdma: dict[tuple[str, str], float] = {}
    for process in read_processes(root, frozenset(cards)):
        key = (cards[process.gpu_id], process.pid)
        if process.vram_bytes is not None:
            vram[key] = vram.get(key, 0) + process.vram_bytes
        if process.sdma_s is not None:
            sdma[key] = sdma.get(key, 0.0) + process.sdma_s
    for (gpu, pid), used_bytes in vram.items():
        findings[gpu].give("gpu_process_memory_bytes", used_bytes, pid)
    for (gpu, pid), seconds in sdma.items():
        findings[gpu].give("gpu_process_sdma_seconds_total", seconds, pid)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _numbers(folder: Path) -> list[int]:
    """Entries that are numbers, ascending."""
    return sorted(int(name) for name in _names(folder) if _NUMBER.fullmatch(name))
