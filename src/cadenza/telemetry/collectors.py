"""The collectors of one machine, for a run, for `top` and for the exporter."""

import importlib.util
from pathlib import Path

from cadenza.readings import Collector
from cadenza.telemetry.cards import amd_smi, rocm_smi
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.cards.drm import find_cards
from cadenza.telemetry.cards.nvml import NvmlCollector
from cadenza.telemetry.cards.pcie import PcieBandwidth
from cadenza.telemetry.cards.smi import TextCollector
from cadenza.telemetry.host import HostCollector
from cadenza.telemetry.kernel.log import KernelLog
from cadenza.telemetry.kernel.sources import LogFile, find_log

AUTO, NO_LOG = "auto", "none"


def find_collectors(
    root: Path,
    *,
    embedded: bool = False,
    lasting: bool = False,
    processes: bool = False,
    smi_json: Path | None = None,
    kernel_log: str = AUTO,
) -> list[Collector]:
    """The collectors for the machine below `root`; the caller closes them.

    embedded     the engine is the embedded one: no cards below / serve it, and none are read
    lasting      for a service that cards may appear under: also collectors that need a card
    processes    memory and copies of each compute process
    smi_json     the output of rocm-smi or amd-smi, read instead of running them
    kernel_log   a file as dmesg writes it, `auto` or `none`
    """
    here = root.resolve() == Path("/")
    cards = find_cards(root)
    collectors: list[Collector] = []
    if not (embedded and here):
        # The tools take a second and wake cards that are suspended: only where no driver's files are visible, as in a
        # container.
        tool = None if cards or not here or smi_json else rocm_smi.collector() or amd_smi.collector()
        collectors.append(tool or AmdgpuCollector(root, processes=processes))
        if (lasting and not cards) or any((card.device / "pcie_bw").exists() for card in cards):
            collectors.append(PcieBandwidth(root))
        if smi_json is not None:
            collectors.append(TextCollector(smi_json, {"rocm_smi": rocm_smi.parse, "amd_smi": amd_smi.parse}))
        if here and importlib.util.find_spec("pynvml") is not None:
            collectors.append(NvmlCollector())
    if kernel_log != NO_LOG:
        log = find_log(root) if kernel_log == AUTO else LogFile(Path(kernel_log))
        collectors.append(KernelLog(log, [card.gpu for card in cards]))
    collectors.append(HostCollector(root))
    return collectors
