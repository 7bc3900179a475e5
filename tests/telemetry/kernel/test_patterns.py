"""Kernel lines: what each known one tells, and what the benign and the forged ones do not."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.engine.board import faults
from cadenza.engine.board.state import identify
from cadenza.telemetry.kernel import patterns as kernel_patterns
from cadenza.telemetry.kernel.patterns import KINDS, GpuFault, Kind, match

SAMPLES = Path(__file__).parents[2] / "data" / "telemetry" / "kernel_log"


def texts(name: str) -> list[str]:
    lines = (SAMPLES / name).read_text(encoding="utf-8").splitlines()
    return [line.split("] ", 1)[1] for line in lines]


# One for each line of amdgpu_events.txt, in its order; None goes with a line before it, or is information.
EXPECTED: list[tuple[Kind, str] | None] = [
    ("ring_timeout", ""),
    None,  # process information
    ("gpu_reset", "43"),
    None,  # MODE1 reset
    None,  # trying to resume
    None,  # succeeded
    ("ring_timeout", "43"),
    None,  # process
    None,  # starting the ring's reset
    None,  # succeeded
    None,  # wedged, but recovered
    ("gpu_reset", "43"),
    ("reset_failed", "43"),
    ("ring_timeout", "43"),  # soft recovered
    ("queue_preemption", "03"),
    ("queue_preemption", "03"),
    ("queue_preemption", "03"),
    ("queue_preemption", ""),
    ("queue_preemption", "03"),
    ("mes_hang", "c4"),
    ("mes_hang", "c4"),
    ("mes_hang", "c4"),
    ("ras_correctable", "03"),
    ("ras_uncorrectable", "03"),
    ("ras_uncorrectable", "0c"),
    None,  # the running total
    ("ras_deferred", "0c"),
    ("ras_uncorrectable", "0c"),
    ("vm_fault", "03"),
    None,  # page
    None,  # status
    None,  # client
    ("vm_fault", "43"),
    None,
    None,
    ("thermal", "03"),
    ("thermal", "43"),
    ("throttled", "0c"),
    ("throttled", "43"),
    None,  # the port's own line
    ("aer_correctable", "03"),
    None,  # its details
    ("off_the_bus", "03"),
    ("smu", ""),
    ("queue_eviction", ""),
]


def test_every_known_line_tells_its_event() -> None:
    lines = texts("amdgpu_events.txt")
    assert len(lines) == len(EXPECTED)
    for text, expected in zip(lines, EXPECTED, strict=True):
        event = None if expected is None else GpuFault(expected[0], expected[1] and f"0000:{expected[1]}:00.0")
        assert (text, match(text)) == (text, event)


def test_benign_and_forged_lines_tell_nothing() -> None:
    lines = texts("benign_and_spoof.txt")
    assert len(lines) == 7
    assert {text: match(text) for text in lines} == dict.fromkeys(lines)


# Other forms of the same messages, which kernels before and after those of the samples print.
@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("amdgpu 0000:06:00.0: GPU reset begin!", GpuFault("gpu_reset", "0000:06:00.0")),
        ("[drm] GPU reset begin!", GpuFault("gpu_reset", "")),
        ("amdgpu 0000:43:00.0: amdgpu: GPU reset(3) failed", GpuFault("reset_failed", "0000:43:00.0")),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* GPU Recovery Failed: -22", GpuFault("reset_failed", "")),
        (
            "amdgpu 0000:03:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1, x",
            GpuFault("ring_timeout", "0000:03:00.0"),
        ),
        (
            "amdgpu 0000:03:00.0: [drm] *ERROR* ring gfx timeout, but x",
            GpuFault("ring_timeout", "0000:03:00.0"),
        ),
        (
            "amdgpu 0000:c4:00.0: amdgpu: MES(1) failed to respond to msg=MISC (WAIT)",
            GpuFault("mes_hang", "0000:c4:00.0"),
        ),
        ("amdgpu 0000:c4:00.0: amdgpu: MES(0, 1) failed to respond to msg=14", GpuFault("mes_hang", "0000:c4:00.0")),
        (
            "amdgpu 0000:0C:00.0: amdgpu: {12}socket: 0, die: 1, 2 new correctable hardware errors detected in umc",
            GpuFault("ras_correctable", "0000:0c:00.0"),
        ),
        (
            "amdgpu 0000:dd:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            GpuFault("ras_uncorrectable", "0000:dd:00.0"),
        ),
        (
            "amdgpu 0000:43:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012",
            GpuFault("smu", "0000:43:00.0"),
        ),
        ("amdgpu 0000:43:00.0: amdgpu: SMU: response:0xFFFFFFFF for index:18", GpuFault("smu", "0000:43:00.0")),
        ("amdgpu 0000:43:00.0: amdgpu: device lost from bus!", GpuFault("off_the_bus", "0000:43:00.0")),
        ("amdgpu 0000:43:00.0: amdgpu: [mmhub] VMC page fault (src_id:0", GpuFault("vm_fault", "0000:43:00.0")),
        ("amdgpu: Failed to evict queue 3", GpuFault("queue_preemption", "")),
        ("amdgpu: Failed to suspend process 0x8001", GpuFault("queue_preemption", "")),
        ("kfd kfd: amdgpu: Failed to init pq queues size 65536", GpuFault("kfd_allocation", "")),
        ("amdgpu: Failed to allocate kfd ring buffer: -12", GpuFault("kfd_allocation", "")),
        (
            "amdgpu 0000:03:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            GpuFault("aer_correctable", "0000:03:00.0"),
        ),
        (
            "nvidia 0000:03:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Req",
            GpuFault("aer", "0000:03:00.0"),
        ),
        (
            "NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', GPU has fallen off",
            GpuFault("off_the_bus", "0000:3b:00.0"),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, Graphics Exception", GpuFault("xid", "0000:3b:00.0")),
    ],
)
def test_other_forms(text: str, event: GpuFault) -> None:
    assert match(text) == event


@pytest.mark.parametrize(
    "text",
    [
        "",
        "amdgpu 0000:43:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:43:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
        "amdgpu 0000:43:00.0: amdgpu: GPU reset succeeded, trying to resume",
        "amdgpu 0000:43:00: amdgpu: GPU reset begin!",
        "amdgpu GPU reset begin!",
        "GPU reset begin!",
        "[drm:intel_thing [i915]] *ERROR* GPU reset begin!",
        "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        " amdgpu: GPU reset begin!",
        "x\namdgpu: GPU reset begin!",
        "python3[7]: segfault at 0 ip 0 sp 0 error 4 in amdgpu: GPU reset begin!",
    ],
)
def test_what_is_no_event(text: str) -> None:
    assert match(text) is None


def test_a_process_name_in_front_of_a_message_is_too_short_to_forge_one() -> None:
    """The kernel names a process by 15 bytes at most, as in `comm[pid]: segfault at …`."""
    known = [text for text in texts("amdgpu_events.txt") if match(text)]
    known += [text.partition(": amdgpu: ")[2] for text in known] + [
        "[drm] GPU reset begin!",
        "amdgpu: device lost from bus!",
    ]
    assert not any(match(f"{text[:15]}[999]: segfault at 0") for text in known)


@pytest.mark.parametrize("place", [0, 1])
def test_the_simulated_boards_lines(place: int) -> None:
    card = identify(place, 1)

    def told(lines: list[faults.KernelLine]) -> list[GpuFault]:
        return [event for line in lines if (event := match(line.text))]

    reset = GpuFault("gpu_reset", card.slot)
    assert told(faults.time_out(card, 1)) == [GpuFault("ring_timeout", card.slot), reset]
    assert told(faults.fall_off(card, 0x66A1)) == [
        GpuFault("off_the_bus", card.slot),
        reset,
        GpuFault("reset_failed", card.slot),
    ]
    assert told(faults.shut_down(card)) == [GpuFault("thermal", card.slot)]
    assert told(faults.run_out()) == [GpuFault("kfd_allocation", "")]


@given(st.text(max_size=200), st.integers(0, 44))
def test_any_text(text: str, at: int) -> None:
    event = match(text)
    assert event is None or event.kind in KINDS
    known = texts("amdgpu_events.txt")[at]
    assert match(known + "\n" + text) == match(known)
    assert match(known + " " + text) in (match(known), match(known + " "))


def test_every_kind_is_explained_in_the_table() -> None:
    text = Path(kernel_patterns.__file__).read_text(encoding="utf-8")
    table = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"^# ([a-z_, *]+)  ", text, re.MULTILINE))))
    assert {kind for kind in KINDS if not kind.startswith("ras_")} | {"ras_"} == table
