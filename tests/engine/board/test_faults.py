import re
from pathlib import Path

import pytest

from cadenza.engine.board.faults import (
    BoardFault,
    KernelLine,
    Message,
    fall_off,
    overrun,
    parse_fault,
    record,
    run_out,
    shut_down,
    stamp,
    throttle,
    time_out,
)
from cadenza.engine.board.state import identify
from cadenza.errors import UsageError

LOG = Path(__file__).parents[2] / "data" / "sysfs" / "kernel_log" / "amdgpu_events.txt"
SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("overheat", BoardFault("overheat", 0, 0)),
        ("overheat:0@600s", BoardFault("overheat", 0, 600 * SECOND)),
        ("fallen-off:1", BoardFault("fallen-off", 1, 0)),
        ("ring-timeout@1.5", BoardFault("ring-timeout", 0, 1_500_000_000)),
        ("kfd-oom:7@0s", BoardFault("kfd-oom", 7, 0)),
        ("log-overrun@2", BoardFault("log-overrun", 0, 2 * SECOND)),
    ],
)
def test_a_fault_is_read(text: str, fault: BoardFault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no fault is called ''"),
        ("melt:0", "no fault is called 'melt'; there are: overheat, fallen-off, ring-timeout, kfd-oom, log-overrun"),
        ("overheat:", "the card is a number from 0 on, not ''"),
        ("overheat:-1", "not '-1'"),
        ("overheat:x@5", "not 'x'"),
        ("overheat:٣", "not '٣'"),
        ("overheat@", "a time in seconds, as in @600s, not ''"),
        ("overheat@soon", "not 'soon'"),
        ("overheat@-1s", "not '-1s'"),
        ("overheat@nan", "not 'nan'"),
        ("overheat@inf", "not 'inf'"),
        ("overheat@1e300", "not '1e300'"),
        ("overheat:" + 5000 * "9", "the card is a number from 0 on"),
        ("log-overrun:1", "the log is no card's; leave ':1' out"),
        ("log-overrun:@5", "leave ':' out"),
    ],
)
def test_a_fault_that_makes_no_sense_is_a_usage_error_that_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        parse_fault(text)
    assert f"'{text}'" in str(caught.value)


def test_a_stamp_is_dmesgs() -> None:
    assert stamp(812_101_001_000, "x") == "[  812.101001] x"
    assert stamp(123_456 * SECOND + 999, "x") == "[123456.000000] x"


def test_a_record_is_the_kernels() -> None:
    """Documentation/ABI/testing/dev-kmsg: its own second example, then what is escaped and whom a driver speaks of."""
    assert record(Message(5_140_900_999, 339, 6, "NET: Registered protocol family 10")) == (
        b"6,339,5140900,-;NET: Registered protocol family 10\n"
    )
    assert record(Message(0, 0, 4, "a\n \\\x7fü~")) == b"4,0,0,-;a\\x0a \\x5c\\x7f\\xc3\\xbc~\n"
    assert record(Message(1000, 1, 3, "amdgpu 0000:43:00.0: amdgpu: x")) == (
        b"3,1,1,-;amdgpu 0000:43:00.0: amdgpu: x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:43:00.0\n"
    )


def shape(text: str) -> str:
    """A line without its numbers, addresses and process names."""
    text = re.sub(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]\b", "SLOT", text)
    text = re.sub(r"process \S+ pid \d+ thread \S+ pid \d+", "PROCESS", text)
    text = re.sub(r"(comp|gfx)_\d\.\d\.\d", "RING", text)
    return re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{8}\b|\b66a1\b|-?\d+", "N", text)


@pytest.mark.parametrize(
    "lines",
    [
        fall_off(identify(0, 1), 0x66A1),
        time_out(identify(1, 1), 2),
        shut_down(identify(0, 1)),
        throttle(identify(1, 1), "WARN: GPU is throttled, expect performance decrease. thermal."),
    ],
)
def test_every_line_has_the_form_of_one_in_the_sample_log(lines: list[KernelLine]) -> None:
    sample = {shape(line.split("] ", 1)[1]) for line in LOG.read_text().splitlines()}
    # Of these, which the sample shows with another prefix or severity, telemetry notes give the wording.
    known = {
        "amdgpu SLOT: amdgpu: Process information: PROCESS",
        "pcieport SLOT: AER: Uncorrectable (Fatal) error message received from SLOT",
        "amdgpu SLOT: amdgpu: ERROR: System is going to shutdown due to GPU SW CTF!",
    }
    assert {shape(line.text) for line in lines} <= sample | known
    assert [line.after_us for line in lines] == sorted(line.after_us for line in lines)


def test_the_reports_line_of_the_ring_buffer_is_there_word_for_word() -> None:
    (line,) = run_out()
    assert line.text.endswith("Failed to allocate kfd ring buffer: -12")


def test_a_ring_buffer_that_goes_round_leaves_the_line_after_those_that_are_gone() -> None:
    (line,) = overrun()
    assert shape(line.text) == "pcieport SLOT: AER: Multiple Corrected error message received from SLOT"
    assert line.vanished == 100
