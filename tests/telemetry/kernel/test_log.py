"""The collector over kernel lines, and the journal as their source."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Missing, Reading
from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.kernel.lines import KernelLine, parse_journal
from cadenza.telemetry.kernel.log import KernelEvent, KernelLog
from cadenza.telemetry.kernel.patterns import KINDS, match
from cadenza.telemetry.kernel.sources import Journal, find_log
from cadenza.telemetry.root import UnreadableError

SAMPLES = Path(__file__).parents[2] / "data" / "telemetry" / "kernel_log"
RESET = "amdgpu 0000:43:00.0: amdgpu: GPU reset begin!"


def texts(name: str) -> list[str]:
    lines = (SAMPLES / name).read_text(encoding="utf-8").splitlines()
    return [line.split("] ", 1)[1] for line in lines]


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


# The journal


def test_journal_lines() -> None:
    ours, forged = (SAMPLES / "journalctl_json.txt").read_bytes().splitlines()
    line = parse_journal(ours)
    assert line == KernelLine(
        None, "0000:43:00.0", "amdgpu 0000:43:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1204, emitted seq=1206"
    )
    assert parse_journal(forged) is None


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, KernelLine(5, "", RESET)),
        ({"MESSAGE": list(b"\xff a")}, KernelLine(5, "", "\ufffd a")),
        ({"SYSLOG_FACILITY": "0"}, KernelLine(5, "", RESET)),
        ({"_SOURCE_MONOTONIC_TIMESTAMP": "3"}, KernelLine(3, "", RESET)),
        ({"__MONOTONIC_TIMESTAMP": "soon"}, KernelLine(None, "", RESET)),
        ({"_KERNEL_DEVICE": "n2"}, KernelLine(5, "", RESET)),
        ({"SYSLOG_FACILITY": "1"}, None),  # what a process wrote into the kernel's log
        ({"_TRANSPORT": "journal"}, None),
        ({"_TRANSPORT": ["kernel", "kernel"]}, None),
        ({"MESSAGE": None}, None),
        ({"MESSAGE": 7}, None),
        ({"MESSAGE": [300]}, None),
    ],
)
def test_a_journal_line(changes: dict[str, object], line: KernelLine | None) -> None:
    fields: dict[str, object] = {"MESSAGE": RESET, "_TRANSPORT": "kernel", "__MONOTONIC_TIMESTAMP": "5", "OTHER": {}}
    assert parse_journal(msgspec.json.encode(fields | changes)) == line


@given(st.binary(max_size=200))
def test_any_journal_line(data: bytes) -> None:
    assert parse_journal(data) is None
    nested = b'{"_TRANSPORT":"kernel","MESSAGE":' + b"[" * 5000 + data
    assert parse_journal(nested) is None


@pytest.mark.slow
def test_a_child_process_gives_the_journals_lines_and_ends_when_told() -> None:
    sample = SAMPLES / "journalctl_json.txt"
    # What is there already comes first, and is passed over.
    script = f"""
import time
lines = open({str(sample)!r}).read()
print(lines.splitlines()[0], flush=True)
time.sleep(0.5)
print(lines, flush=True)
time.sleep(60)
"""
    source = Journal([sys.executable, "-c", script])
    lines = _wait(source.read)
    assert [line.device for line in lines] == ["0000:43:00.0"]
    assert source.read() == []
    began = time.monotonic()
    source.close()
    source.close()
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_a_journal_that_says_nothing_at_all_is_denied_and_counts_nothing() -> None:
    log = KernelLog(Journal([sys.executable, "-c", "import time; time.sleep(60)"]), ["0000:43:00.0"])
    for _ in range(2):
        assert log.collect() == ([], [Missing("cadenza_kernel_events_total", "", "denied")])
    log.close()


@pytest.mark.slow
def test_a_child_that_ends_at_once_has_failed_and_a_missing_program_is_absent() -> None:
    source = Journal([sys.executable, "-c", ""])
    with pytest.raises(UnreadableError, match="failed"):
        _wait(source.read)
    source.close()
    with pytest.raises(UnreadableError, match="absent"):
        Journal(["/nonexistent/journalctl"]).read()


def _wait(read: Callable[[], list[KernelLine]]) -> list[KernelLine]:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if lines := read():
                return lines
        except UnreadableError as error:
            if error.reason != "denied":  # it has not begun to speak
                raise
        time.sleep(0.01)
    return []


# The collector


class Told:
    """A source that gives what it was told to give."""

    def __init__(self, lost: int | None = None) -> None:
        self.lost = lost
        self.next: list[KernelLine] | UnreadableError = []
        self.closed = False

    def read(self) -> list[KernelLine]:
        if isinstance(self.next, UnreadableError):
            raise self.next
        lines, self.next = self.next, []
        return lines

    def close(self) -> None:
        self.closed = True


def counters(log: KernelLog) -> dict[tuple[str, str], float]:
    found = log.collect().readings
    for reading in found:
        assert tuple(name for name, _ in reading.labels) == FAMILIES[reading.name].labels
    return {
        (dict(reading.labels)["event"], dict(reading.labels)["gpu"]): reading.value
        for reading in found
        if reading.name == "cadenza_kernel_events_total" and reading.value
    }


def test_events_are_counted_by_card_and_kept() -> None:
    source = Told()
    log = KernelLog(source)
    assert counters(log) == {}
    source.next = [
        KernelLine(7, "", RESET),
        KernelLine(8, "", RESET),
        KernelLine(9, "0000:03:00.0", "amdgpu: device lost from bus!"),
    ]
    assert counters(log) == {("gpu_reset", "0000:43:00.0"): 2, ("off_the_bus", "0000:03:00.0"): 1}
    source.next = [KernelLine(10, "", "[drm] GPU reset begin!"), KernelLine(11, "", "nothing")]
    assert counters(log) == {("gpu_reset", "0000:43:00.0"): 2, ("off_the_bus", "0000:03:00.0"): 1, ("gpu_reset", ""): 1}
    assert [event.boot_us for event in log.events()] == [7, 8, 9, 10]
    assert log.events() == []
    log.close()
    assert source.closed


def test_known_cards_have_counters_before_their_first_event() -> None:
    found = KernelLog(Told(), ["0000:43:00.0"]).collect().readings
    assert {reading.labels for reading in found} == {
        (("event", kind), ("gpu", gpu)) for kind in KINDS for gpu in ("", "0000:43:00.0")
    }
    assert {reading.value for reading in found} == {0.0}


def test_lost_records_are_told_where_the_source_can_tell() -> None:
    assert Reading("cadenza_kernel_log_lost_total", (), 12.0) in KernelLog(Told(12)).collect().readings
    assert all(reading.name != "cadenza_kernel_log_lost_total" for reading in KernelLog(Told()).collect().readings)


def test_a_log_that_was_never_readable_has_no_counters() -> None:
    source = Told(0)
    source.next = UnreadableError("denied")
    log = KernelLog(source, ["0000:43:00.0"])
    assert log.collect() == ([], [Missing("cadenza_kernel_events_total", "", "denied")])
    source.next = [KernelLine(7, "", RESET)]
    assert counters(log) == {("gpu_reset", "0000:43:00.0"): 1}
    source.next = UnreadableError("failed")
    assert counters(log) == {("gpu_reset", "0000:43:00.0"): 1}


def test_an_events_text_is_printable_and_bounded() -> None:
    source = Told()
    log = KernelLog(source)
    source.next = [KernelLine(None, "", RESET + "\x1b[31m\n" + "x" * 10_000)]
    log.collect()
    (event,) = log.events()
    assert event[:3] == ("gpu_reset", "0000:43:00.0", None)
    assert event.text.isprintable()
    assert len(event.text) == 300


def test_a_flood_is_bounded() -> None:
    source = Told()
    log = KernelLog(source)
    source.next = [KernelLine(n, "", f"amdgpu {n:04x}:43:00.0: amdgpu: GPU reset begin!") for n in range(3000)]
    found = counters(log)
    assert sum(found.values()) == 3000
    assert len(found) <= 2000
    assert [event.boot_us for event in log.events()] == list(range(2000, 3000))


def test_the_log_of_a_board_without_records_is_found_and_followed(tmp_path: Path) -> None:
    (tmp_path / "SIMULATED").write_text("", encoding="utf-8")
    append(tmp_path / "kernel.log", "[    0.000000] [drm] amdgpu kernel modesetting enabled.\n")
    log = KernelLog(find_log(tmp_path))
    append(tmp_path / "kernel.log", (SAMPLES / "amdgpu_events.txt").read_text(encoding="utf-8"))
    expected = [event for text in texts("amdgpu_events.txt") if (event := match(text))]
    assert sum(counters(log).values()) == len(expected) == 29
    events = log.events()
    assert [(event.kind, event.gpu) for event in events] == expected
    assert events[0] == KernelEvent("ring_timeout", "", 812101001, texts("amdgpu_events.txt")[0])
    log.close()
