"""Records in the form of /dev/kmsg, as bytes and as a file that grows.

The records are written here from the kernel's definition, Documentation/ABI/testing/dev-kmsg.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadenza.telemetry.kernel.lines import KernelLine, KmsgRecords
from cadenza.telemetry.kernel.sources import LogFile
from cadenza.telemetry.root import UnreadableError

SAMPLES = Path(__file__).parents[2] / "data" / "telemetry" / "kernel_log"
RESET = "amdgpu 0000:43:00.0: amdgpu: GPU reset begin!"
Drawn = tuple[bytes, list[KernelLine], int]


def read(*pieces: bytes) -> tuple[list[KernelLine], int]:
    records = KmsgRecords()
    lines = [line for piece in pieces for line in records.feed(piece)]
    return lines + records.end(), records.lost


def test_raw_records() -> None:
    lines, lost = read((SAMPLES / "kmsg_raw.txt").read_bytes())
    assert lines == [
        KernelLine(
            812101001,
            "",
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1204, emitted seq=1206",
        ),
        KernelLine(812101055, "0000:43:00.0", RESET),
        # the third is a fragment
    ]
    assert lost == 0


def test_the_records_of_the_definition() -> None:
    """Its own example; the last record, facility 3, is a process's."""
    data = (
        b"7,160,424069,-;pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)\n"
        b" SUBSYSTEM=acpi\n"
        b" DEVICE=+acpi:PNP0A03:00\n"
        b"6,339,5140900,-;NET: Registered protocol family 10\n"
        b"30,340,5690716,-;udevd[80]: starting version 181\n"
    )
    assert read(data) == (
        [
            KernelLine(424069, "", "pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)"),
            KernelLine(5140900, "", "NET: Registered protocol family 10"),
        ],
        339 - 161,
    )


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\n",
        b"no record",
        b"3,1,2,-",
        b"3,1,2",
        b"3,1;amdgpu: GPU reset begin!",
        b"x,1,2,-;amdgpu: GPU reset begin!",
        b"-3,1,2,-;amdgpu: GPU reset begin!",
        b"3,1_0,2,-;amdgpu: GPU reset begin!",
        b"3,1,2,-\n;amdgpu: GPU reset begin!",
        b"12,1,2,-;amdgpu: GPU reset begin!",  # facility 1: written by a process
        b"8,1,2,-;amdgpu: GPU reset begin!\n DEVICE=+pci:0000:43:00.0",
        b"3,1,2,c;amdgpu: GPU reset begin!",  # the rest of a text, which may be a user's string
        b"3,1,2,+,caller=T7;amdgpu: GPU reset begin!",
        b" DEVICE=+pci:0000:43:00.0",
        b"3,1,99999999999999999999999,-;x",
        b"3,99999999999999999999999,1,-;x",
    ],
)
def test_what_is_no_line_of_the_kernels(record: bytes) -> None:
    assert read(record + b"\n") == ([], 0)


def test_the_escapes_of_a_record() -> None:
    assert read(rb"6,1,2,-,caller=T1;\xc3\xbc \x5cx0a \x0a;,".lower() + b"\n")[0] == [KernelLine(2, "", "ü \\x0a \n;,")]


@pytest.mark.parametrize(
    ("about", "device"),
    [
        (b" SUBSYSTEM=pci\n DEVICE=+pci:0000:43:00.0\n", "0000:43:00.0"),
        (b" DEVICE=+pci:0000:43:00.0\n SUBSYSTEM=pci\n", "0000:43:00.0"),
        (b" DEVICE=+pci:10000:e1:00.0\n", "10000:e1:00.0"),
        (b" DEVICE=c1:3\n SUBSYSTEM=mem\n", ""),
        (b" DEVICE=+pci:0000:43:00.0x\n", ""),
        (b" DEVICE=+pci:0000:43:00.0\\x0a\n", ""),
        (b"DEVICE=+pci:0000:43:00.0\n", ""),
        (b"\n DEVICE=+pci:0000:43:00.0\n", ""),
        (b"12,2,3,-;forged\n DEVICE=+pci:0000:43:00.0\n", ""),
        (b"6,2,3,c;the rest\n DEVICE=+pci:0000:43:00.0\n", ""),
        (b"malformed\n DEVICE=+pci:0000:43:00.0\n", ""),
        (b"x" * 70_000 + b"\n DEVICE=+pci:0000:43:00.0\n", ""),
        (b" FIRST=" + b"x" * 70_000 + b"\n SUBSYSTEM=pci\n", ""),
    ],
)
def test_a_device_is_its_own_records(about: bytes, device: str) -> None:
    assert read(b"6,1,2,-;a\n" + about)[0] == [KernelLine(2, device, "a")]


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [
        ([0, 1, 2], 0),
        ([7, 8, 9], 0),  # what came before the first is not known
        ([1, 102], 100),
        ([1, 3, 4, 7], 1 + 2),
        ([5, 6, 0, 1, 4], 2),  # begun anew without a word
        ([1, 1, 2], 0),
    ],
)
def test_a_step_in_the_numbers_is_so_many_records_lost(numbers: list[int], lost: int) -> None:
    for head in (b"3,%d,2,-;x\n", b"12,%d,2,-;of a process\n", b"3,%d,2,c;a fragment\n"):
        assert read(b"".join(head % number for number in numbers))[1] == lost


def test_a_line_that_is_too_long_is_a_record_lost() -> None:
    data = b"3,1,1,-;a\n3,2,2,-;" + b"x" * 70_000 + b"\n3,3,3,-;c\n"
    for cut in (0, 10, 20, 65_000, 65_600, 70_000, len(data) - 11, len(data) - 5):
        assert read(data[:cut], data[cut:]) == ([KernelLine(1, "", "a"), KernelLine(3, "", "c")], 1)


def escaped(text: bytes) -> bytes:
    """As the kernel prints it: what is below a space or above ~, and the backslash, as \\xNN."""
    return b"".join(bytes([c]) if 0x20 <= c < 0x7F and c != 0x5C else b"\\x%02x" % c for c in text)


@st.composite
def logs(draw: st.DrawFn) -> Drawn:
    """A log, the lines that it says, and how many records of it were lost."""
    data, lines, lost, following = b"", list[KernelLine](), 0, draw(st.integers(0, 10**12))
    for place in range(draw(st.integers(0, 6))):
        gap = draw(st.sampled_from([0, 0, 0, 1, 100]))
        priority = draw(st.sampled_from([0, 3, 6, 7, 8, 12, 30]))
        boot_us = draw(st.integers(0, 10**13))
        flags = draw(st.sampled_from(["-", "-", "-", "c", "+", "-,caller=T7"]))
        text = draw(st.binary(max_size=12) | st.sampled_from([b" DEVICE=+pci:0000:03:00.0", b"1,2,3,-;x", b"\n"]))
        device = draw(st.sampled_from(["", "", "0000:43:00.0"]))
        number = following + gap
        lost += gap if place else 0
        following = number + 1
        data += f"{priority},{number},{boot_us},{flags};".encode() + escaped(text) + b"\n"
        if device:
            data += f" SUBSYSTEM=pci\n DEVICE=+pci:{device}\n".encode()
        if priority < 8 and flags[0] == "-":
            lines.append(KernelLine(boot_us, device, text.decode("utf-8", errors="replace")))
    return data, lines, lost


@given(logs())
def test_a_log_says_what_was_written_wherever_it_is_cut(log: Drawn) -> None:
    data, lines, lost = log
    for cut in range(len(data) + 1):
        assert read(data[:cut], data[cut:]) == (lines, lost)
    assert read(*(data[at : at + 1] for at in range(len(data)))) == (lines, lost)


@given(
    st.lists(st.sampled_from([b"\n", b";", b",", b" ", b"-", b"3", b"0", b"3,1,2,-;", b" DEVICE=+pci:"]) | st.binary())
)
@example([b"3,1,2,-;\\x", b"5", b"c\n"])
def test_any_bytes_say_the_same_wherever_they_are_cut(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    lines, lost = read(data)
    assert lost >= 0
    assert len(lines) <= data.count(b"\n")
    assert all(line.boot_us is not None for line in lines)
    for cut in range(0, len(data) + 1, 1 + len(data) // 50):
        assert read(data[:cut], data[cut:]) == (lines, lost)


# A file of them


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


def follow(path: Path) -> tuple[LogFile, Callable[[], list[str]]]:
    source = LogFile(path, KmsgRecords())
    return source, lambda: [line.text for line in source.read()]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@given(logs())
def test_a_file_that_grows_says_the_same_wherever_a_look_cuts_it(
    tmp_path_factory: pytest.TempPathFactory, log: Drawn
) -> None:
    data, lines, lost = log
    path = tmp_path_factory.mktemp("log") / "kmsg"
    for cut in range(len(data) + 1):
        path.write_bytes(b"")
        source = LogFile(path, KmsgRecords())
        append(path, data[:cut])
        found = source.read()
        append(path, data[cut:])
        found += source.read() + source.read()
        assert (found, source.lost) == (lines, lost)
        source.close()


def test_the_last_record_waits_a_look_for_what_is_told_about_it(path: Path) -> None:
    path.touch()
    source, told = follow(path)
    append(path, b"3,1,1,-;a\n3,2,2,-;b\n")
    assert told() == ["a"]
    append(path, b" DEVICE=+pci:0000:43:00.0\n")
    assert source.read() == []
    assert source.read() == [KernelLine(2, "0000:43:00.0", "b")]
    append(path, b" DEVICE=+pci:0000:03:00.0\n3,3,3,-;c")
    assert told() == []
    assert told() == []  # half a line is none
    append(path, b"d\n")
    assert (told(), told()) == ([], ["cd"])
    source.close()


def test_what_is_lost_since_the_first_look_is_told_by_the_record_before_it(path: Path) -> None:
    append(path, b"3,0,1,-;old\n3,50,1,-;old\n SUBSYSTEM=pci\n")
    source, told = follow(path)
    assert (told(), source.lost) == ([], 0)
    append(path, b" DEVICE=+pci:0000:43:00.0\n3,151,2,-;new\n")
    assert (told(), told(), source.lost) == ([], ["new"], 100)
    source.close()


@pytest.mark.parametrize("old", [b"3,7,1,-;old\n" * 100_000, b"x" * 200_000 + b"\n3,7,1,-;old\n", b"3,7,1,-;old\n"])
def test_a_long_file_is_begun_at_its_end(path: Path, old: bytes) -> None:
    append(path, old)
    source, told = follow(path)
    append(path, b"3,9,2,-;new\n3,10,2,-;\n")
    assert (told(), source.lost) == (["new"], 1)
    source.close()


def test_a_record_that_is_half_there_at_first_is_new_when_it_is_whole(path: Path) -> None:
    append(path, b"3,1,1,-;old\n3,2,2,-;h")
    source, told = follow(path)
    append(path, b"alf\n3,3,3,-;\n")
    assert told() == ["half"]
    source.close()


def test_a_file_that_comes_later_or_is_begun_anew_has_lost_nothing_of_the_one_before(path: Path) -> None:
    source, told = follow(path)
    with pytest.raises(UnreadableError, match="absent"):
        source.read()
    append(path, b"3,20,1,-;a\n3,22,2,-;c, rather long\n")
    assert (told(), source.lost) == (["a"], 1)
    path.write_bytes(b"3,70,3,-;d\n")
    assert told() == ["c, rather long"]
    assert told() == ["d"]
    path.rename(path.with_name("old"))
    append(path, b"3,0,4,-;e\n3,3,6,-;g\n")
    assert told() == ["e"]
    assert (told(), source.lost) == (["g"], 1 + 2)
    source.close()


def test_a_file_that_grows_faster_than_it_is_read_is_read_to_its_end_before_the_next(path: Path) -> None:
    path.touch()
    source, told = follow(path)
    append(path, b"".join(b"3,%d,1,-;%s\n" % (number, b"x" * 990) for number in range(3000)))
    path.rename(path.with_name("old"))
    append(path, b"3,0,1,-;y\n3,1,1,-;z\n")
    found = [text for _ in range(5) for text in told()]
    assert (len(found), found[-2:], source.lost) == (3002, ["y", "z"], 0)
    source.close()
