"""Kernel messages that report a GPU fault. One fault, one event, as far as the lines allow.

Every pattern begins where the kernel's own words begin: strings that users choose (process names, product names of USB
devices) stand inside messages, never in front. Lines that only go with another (who was running, the faulting
address, "trying to resume", "error message received from") and running totals are no events of their own; neither is
what the driver logs in normal operation. Texts: drivers/gpu/drm/amd and drivers/pci/pcie/aer.c of Linux 5.4 to 6.18,
which have one message in up to three forms; Xid numbers: https://docs.nvidia.com/deploy/xid-errors/.
"""

import re
from typing import Literal, NamedTuple, get_args

# ring_timeout      a job did not end, whether or not a soft recovery followed
# gpu_reset         the whole card is being reset
# reset_failed      of a card or of a ring
# queue_preemption  compute queues could not be stopped: the card is likely to be reset
# queue_eviction    compute queues were stopped, for want of memory or for a reset; information
# kfd_allocation    memory for compute queues; one of its texts is known from a single report only
# mes_hang          the scheduler firmware (gfx11 and later) does not answer
# ras_*             memory or logic errors: corrected, not corrected, not corrected and not yet used
# vm_fault          an access to an address that is not mapped. Rate limited: counts are lower bounds
# aer, aer_correctable   errors on the PCIe link. The second is repaired by the link, and rate limited
# off_the_bus       the card does not answer any more
# thermal           beyond a temperature at which the card is switched off
# throttled         the driver warns that the card has lowered its clocks
# smu               the power management firmware does not answer or refuses
# xid               any other error that NVIDIA's driver reports
Kind = Literal[
    "ring_timeout",
    "gpu_reset",
    "reset_failed",
    "queue_preemption",
    "queue_eviction",
    "kfd_allocation",
    "mes_hang",
    "ras_uncorrectable",
    "ras_correctable",
    "ras_deferred",
    "vm_fault",
    "aer",
    "aer_correctable",
    "off_the_bus",
    "thermal",
    "throttled",
    "smu",
    "xid",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"


class GpuFault(NamedTuple):
    """`gpu` is the PCI address (0000:43:00.0), "" where the line has none."""

    kind: Kind
    gpu: str


# What stands before the driver's words: who speaks, then the tags of DRM, of its error macro and of RAS event numbers.
_AMDGPU = re.compile(
    rf"(?:amdgpu (?P<gpu>{_PCI}): (?:amdgpu: )?|(?:kfd kfd: )?amdgpu: |(?=\[drm))"
    r"(?:\[drm(?::\w+ \[amdgpu\])?\] )?(?:\*ERROR\* )?(?:\{[0-9]+\})?",
    re.ASCII,
)
_SOCKET = r"(?:socket: [0-9]+, die: [0-9]+, (?:\w+: [0-9]+, )?)?"
_COUNT = r"0*[1-9][0-9]* (?:new )?"
_AMDGPU_TEXTS: tuple[tuple[str, Kind], ...] = (
    (r"ring [\w.]+ timeout, ", "ring_timeout"),
    (r"GPU reset begin!", "gpu_reset"),
    (r"GPU Recovery Failed: -?[0-9]+", "reset_failed"),
    (r"GPU reset\([0-9]+\) failed", "reset_failed"),
    (r"Ring [\w.]+ reset failed", "reset_failed"),
    (r"qcm fence wait loop timeout expired", "queue_preemption"),
    (r"The cp might be in an unrecoverable state due to an unsuccessful queues preemption", "queue_preemption"),
    (r"HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out", "queue_preemption"),
    (r"Failed to (?:evict (?:queue [0-9]|process queues)|quiesce KFD|suspend process )", "queue_preemption"),
    (r"Evicting PASID 0x[0-9a-f]+ queues", "queue_eviction"),
    (r"Failed to (?:allocate kfd ring buffer|init pq queues size )", "kfd_allocation"),
    (r"MES(?:\([0-9, ]+\))? failed to respond to msg=", "mes_hang"),
    (r"failed to (?:remove hardware queue from|add hardware queue to) MES, doorbell=", "mes_hang"),
    (r"MES might be in unrecoverable state, issue a GPU reset", "mes_hang"),
    (rf"{_SOCKET}{_COUNT}uncorrectable hardware errors detected in (?!total )", "ras_uncorrectable"),
    (rf"{_SOCKET}{_COUNT}correctable hardware errors detected in (?!total )", "ras_correctable"),
    (rf"{_SOCKET}{_COUNT}deferred hardware errors detected in (?!total )", "ras_deferred"),
    (r"RAS event of type \w+ detected!", "ras_uncorrectable"),
    (r"[Uu]ncorrectable hardware error ?\(\w+\) detected!", "ras_uncorrectable"),
    (r"\[(?:gfx|mm)hub[0-9]*\] (?:VMC |no-retry |retry )?page fault \(", "vm_fault"),
    (r"ERROR: GPU over temperature range\(SW CTF\) detected!", "thermal"),
    (r"ERROR: GPU HW Critical Temperature Fault\(aka CTF\) detected!", "thermal"),
    (r"WARN: GPU (?:thermal throttling temperature reached|is throttled), expect performance decrease", "throttled"),
    (r"\[powerplay\] Failed to send message 0x", "smu"),
    (r"SMU: (?:I'm not done with your previous command|response:0x)", "smu"),
    (r"device lost from bus!", "off_the_bus"),
)
_AMDGPU_TEXT = re.compile("|".join(f"({text})" for text, _ in _AMDGPU_TEXTS), re.ASCII)

_AER = re.compile(
    rf"(?:amdgpu|nvidia) (?P<gpu>{_PCI}): (?:AER: )?(?:PCIe |CXL )?Bus Error: "
    r"severity=(?P<severity>Correct|Uncorrect)(?:ed|able)(?: \((?:Non-)?Fatal\))?, type=(?P<type>[\w ]+), ",
    re.ASCII,
)
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\): (?P<xid>[0-9]{1,4}), ")
_XIDS: dict[int, Kind] = {
    31: "vm_fault",
    48: "ras_uncorrectable",
    79: "off_the_bus",
    92: "ras_correctable",
    94: "ras_uncorrectable",
    95: "ras_uncorrectable",
}


def match(text: str) -> GpuFault | None:
    """The fault that the kernel message `text` (without time stamp and priority) reports, or None. Never raises."""
    head = _AMDGPU.match(text)
    matched = head and _AMDGPU_TEXT.match(text, head.end())
    if head and matched:
        return GpuFault(_AMDGPU_TEXTS[(matched.lastindex or 1) - 1][1], (head["gpu"] or "").lower())
    if aer := _AER.match(text):
        if aer["type"] == "Inaccessible":
            return GpuFault("off_the_bus", aer["gpu"].lower())
        return GpuFault("aer" if aer["severity"] == "Uncorrect" else "aer_correctable", aer["gpu"].lower())
    if xid := _XID.match(text):
        # The driver leaves out the function, which is 0 for every GPU.
        return GpuFault(_XIDS.get(int(xid["xid"]), "xid"), f"{xid['gpu'].lower()}.0")
    return None
