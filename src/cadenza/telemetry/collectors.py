"""The collectors of one machine."""

from pathlib import Path

from cadenza.readings import Collector
from cadenza.telemetry.cards import amd_smi, rocm_smi
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.cards.drm import find_cards
from cadenza.telemetry.cards.nvml import NvmlCollector
from cadenza.telemetry.cards.pcie import PcieBandwidth
from cadenza.telemetry.host import HostCollector
from cadenza.telemetry.kernel.log import KernelLog
from cadenza.telemetry.kernel.sources import find_log


def find_collectors(root: Path, *, embedded: bool) -> list[Collector]:
    """Those for the machine below `root`. `embedded`: the cards of this machine serve nobody and are left alone."""
    here = root == Path("/")
    cards = find_cards(root)
    found: list[Collector] = [HostCollector(root), KernelLog(find_log(root), [card.gpu for card in cards])]
    if embedded and here:
        return found
    # The tools take a second and wake cards that sleep: only where the files are out of sight, as in a container.
    tool = None if cards or not here else rocm_smi.collector() or amd_smi.collector()
    found.append(tool or AmdgpuCollector(root))
    if any((card.device / "pcie_bw").exists() for card in cards):
        found.append(PcieBandwidth(root))
    if here:
        found.append(NvmlCollector())
    return found
