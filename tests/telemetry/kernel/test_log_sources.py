"""/dev/kmsg and a file in dmesg's form: cut anywhere, overwritten, rotated, forged and malformed; which one is read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Missing
from cadenza.telemetry.kernel.lines import KernelLine, parse_dmesg
from cadenza.telemetry.kernel.log import KernelLog
from cadenza.telemetry.kernel.sources import Kmsg, LogFile, find_log
from cadenza.telemetry.root import UnreadableError

SAMPLES = Path(__file__).parents[2] / "data" / "telemetry" / "kernel_log"
# /dev/kmsg


class Records:
    """What successive reads of the device give; then there is nothing more."""

    def __init__(self, *given: bytes | int) -> None:
        self.given = list(given)

    def __call__(self, file: int, size: int) -> bytes:
        assert os.get_blocking(file) is False or size > 0
        following = self.given.pop(0) if self.given else errno.EAGAIN
        if isinstance(following, int):
            raise OSError(following, os.strerror(following))
        return following


def device(root: Path, read: Callable[[int, int], bytes]) -> Kmsg:
    (root / "dev").mkdir()
    (root / "dev" / "kmsg").write_bytes(b"3,0,0,-;amdgpu: GPU reset begin!\n")
    return Kmsg(root, read)


def test_records_one_a_read(tmp_path: Path) -> None:
    read = Records(b"3,7,1,-;a\n", b"12,8,2,-;forged\n", b"4,9,3,-;b\n DEVICE=+pci:0000:43:00.0\n")
    source = device(tmp_path, read)
    assert source.read() == [KernelLine(1, "", "a"), KernelLine(3, "0000:43:00.0", "b")]
    assert source.read() == []
    read.given = [b"3,10,4,-;c\n"]
    assert (source.read(), source.lost) == ([KernelLine(4, "", "c")], 0)
    source.close()


def test_overwritten_records_are_counted(tmp_path: Path) -> None:
    """EPIPE tells that some are gone, the next number how many; kernels 5.10 and 5.11 left gaps without telling."""
    read = Records(b"3,7,1,-;a\n", errno.EPIPE, errno.EPIPE, b"3,20,2,-;b\n")
    source = device(tmp_path, read)
    assert len(source.read()) == 2
    assert source.lost == 20 - 8
    read.given = [b"12,30,3,-;of a process\n"]
    assert source.read() == []
    assert source.lost == 20 - 8 + 30 - 21
    source.close()


def test_what_was_written_while_the_device_could_not_be_read_is_lost(tmp_path: Path) -> None:
    read = Records(b"3,7,1,-;a\n", errno.EIO)
    source = device(tmp_path, read)
    with pytest.raises(UnreadableError, match="failed"):
        source.read()
    read.given = [b"3,10,2,-;d\n"]
    assert (source.read(), source.lost) == ([KernelLine(2, "", "d")], 2)
    source.close()


def test_an_overrun_before_the_first_record_counts_one(tmp_path: Path) -> None:
    source = device(tmp_path, Records(errno.EPIPE, b"3,20,2,-;b\n"))
    assert (len(source.read()), source.lost) == (1, 1)
    source.close()


def test_the_device_is_read_from_its_end_on(tmp_path: Path) -> None:
    source = device(tmp_path, os.read)
    assert source.read() == []
    with (tmp_path / "dev" / "kmsg").open("ab") as file:
        file.write(b"3,1,5,-;new\n")
    assert source.read() == [KernelLine(5, "", "new")]
    source.close()


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EPERM, "denied"), (errno.EACCES, "denied"), (errno.EIO, "failed")]
)
def test_a_device_that_cannot_be_read(tmp_path: Path, number: int, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        device(tmp_path, Records(number)).read()


def test_a_flood_waits_for_the_next_round(tmp_path: Path) -> None:
    source = device(tmp_path, Records(*[b"3,%d,1,-;x\n" % number for number in range(5000)]))
    assert [len(source.read()) for _ in range(3)] == [4096, 904, 0]
    source.close()


# A file


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[  812.101055] amdgpu: x", KernelLine(812101055, "", "amdgpu: x")),
        ("[2592000.123456] x", KernelLine(2592000123456, "", "x")),
        ("[    0.000000] ", KernelLine(0, "", "")),
        ("<3>[    1.000002] x", KernelLine(1000002, "", "x")),
        ("<12>[    1.000002] x", None),
        ("kern  :err   : [    1.000002] x", KernelLine(1000002, "", "x")),
        ("user  :warn  : [    1.000002] x", None),
        ("[    1.000002][ T123] x", KernelLine(1000002, "", "x")),
        ("[    1.000002]x", None),
        ("amdgpu: GPU reset begin!", None),
        ("[Mon Nov 30 10:00:00 2026] x", None),
        ("", None),
    ],
)
def test_a_line_as_dmesg_prints_it(text: str, line: KernelLine | None) -> None:
    assert parse_dmesg(text) == line


@given(st.text(max_size=200))
def test_any_line_of_a_file(text: str) -> None:
    found = parse_dmesg(text)
    assert found is None or (found.boot_us is not None and text.endswith(found.text))
    assert parse_dmesg(f"[   12.000034] {text}") == KernelLine(12000034, "", text)


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def told(source: LogFile) -> list[str]:
    return [line.text for line in source.read()]


def test_a_file_is_followed_from_its_end_on(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "[    1.000000] old\n")
    source = LogFile(path)
    assert told(source) == []
    append(path, "[    2.000000] a\n[    3.000000] b")
    assert told(source) == ["a"]
    append(path, "c\nno time stamp\n[    4.000000] d\n")
    assert told(source) == ["bc", "d"]
    source.close()


def test_a_file_that_comes_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    source = LogFile(path)
    with pytest.raises(UnreadableError, match="absent"):
        source.read()
    append(path, "[    1.000000] a\n")
    assert told(source) == ["a"]
    source.close()


def test_a_file_that_is_moved_away_is_read_to_its_end_and_the_new_one_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "[    1.000000] old\n")
    source = LogFile(path)
    append(path, "[    2.000000] last\n[    2.000000] unfinished")
    path.rename(tmp_path / "kernel.log.1")
    append(path, "[    3.000000] first\n")
    assert told(source) == ["last", "first"]
    source.close()


def test_a_file_that_is_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "[    1.000000] old and rather long\n")
    source = LogFile(path)
    path.write_text("[    0.000000] a\n", encoding="utf-8")
    assert told(source) == ["a"]
    source.close()


def test_a_file_that_is_gone_is_absent_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    append(path, "[    1.000000] old\n")
    source = LogFile(path)
    path.unlink()
    with pytest.raises(UnreadableError, match="absent"):
        source.read()
    append(path, "[    2.000000] a\n")
    assert told(source) == ["a"]
    source.close()


def test_an_endless_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    source = LogFile(path)
    append(path, "[    1.000000] " + "x" * 100_000)
    assert told(source) == []
    append(path, "y" * 100_000)
    assert told(source) == []
    append(path, "z\n[    2.000000] a\n[    3.000000] " + "x" * 100_000 + "\n[    4.000000] b\n")
    assert told(source) == ["a", "b"]
    source.close()


@given(st.lists(st.integers(0, 400), max_size=6))
def test_a_file_cut_anywhere_gives_the_same_lines(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    path = tmp_path_factory.mktemp("log") / "kernel.log"
    source = LogFile(path)
    whole = (SAMPLES / "amdgpu_events.txt").read_text(encoding="utf-8")[:400].rpartition("\n")[0] + "\n"
    found = []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
        append(path, whole[begin:end])
        found += told(source)
    assert found == [line.split("] ", 1)[1] for line in whole.splitlines()]
    source.close()


# Which of them is read


def put(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_records_are_preferred_to_the_text_beside_them(tmp_path: Path) -> None:
    put(tmp_path, "SIMULATED")
    log, kmsg = put(tmp_path, "kernel.log"), put(tmp_path, "dev/kmsg")
    source = find_log(tmp_path)
    append(log, "[    1.000000] text\n")
    append(kmsg, "3,0,1000000,-;record\n")
    assert source.read() + source.read() == [KernelLine(1_000_000, "", "record")]
    assert source.lost == 0
    source.close()


def test_a_board_of_an_older_version_has_the_text_alone(tmp_path: Path) -> None:
    put(tmp_path, "SIMULATED")
    log = put(tmp_path, "kernel.log")
    source = find_log(tmp_path)
    append(log, "[    1.000000] text\n")
    assert source.read() == [KernelLine(1_000_000, "", "text")]
    assert source.lost is None
    source.close()


def test_a_text_without_a_notice_is_some_file(tmp_path: Path) -> None:
    put(tmp_path, "kernel.log")
    with pytest.raises(UnreadableError, match="absent"):
        find_log(tmp_path).read()


def test_records_that_come_later_are_read_from_the_first(tmp_path: Path) -> None:
    log = KernelLog(find_log(tmp_path))
    assert log.collect() == ([], [Missing("cadenza_kernel_events_total", "", "absent")])
    put(tmp_path, "dev/kmsg", "3,0,1000000,-;amdgpu: device lost from bus!\n")
    log.collect()
    log.collect()
    assert [event.kind for event in log.events()] == ["off_the_bus"]
    log.close()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def null(path: Path) -> None:
    """What some containers have there: a device, but another one."""
    path.symlink_to("/dev/null")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def nowhere(path: Path) -> None:
    path.symlink_to("nothing")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "not_supported"),
        (folder, "not_supported"),
        (null, "not_supported"),
        (loop, "failed"),
        (nowhere, "absent"),
    ],
)
def test_what_is_no_log_is_told_at_once(tmp_path: Path, make: Callable[[Path], None], reason: str) -> None:
    (tmp_path / "dev").mkdir()
    make(tmp_path / "dev" / "kmsg")
    source = find_log(tmp_path)
    for _ in range(2):
        with pytest.raises(UnreadableError, match=reason):
            source.read()
    source.close()


def test_a_file_in_whose_place_a_fifo_comes_is_told(tmp_path: Path) -> None:
    path = put(tmp_path, "dev/kmsg")
    source = find_log(tmp_path)
    assert source.read() == []
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UnreadableError, match="not_supported"):
        source.read()
    source.close()


def test_a_link_to_records_is_followed(tmp_path: Path) -> None:
    real = put(tmp_path, "records")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kmsg").symlink_to(real)
    source = find_log(tmp_path)
    append(real, "3,0,5,-;a\n3,1,6,-;b\n")
    assert source.read() == [KernelLine(5, "", "a")]
    source.close()


def test_the_kernels_own_device_is_known_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Character device 1, 11: Documentation/admin-guide/devices.txt. Here /dev/null, 1, 3, is taken for it."""
    monkeypatch.setattr("cadenza.telemetry.kernel.sources._KMSG", os.makedev(1, 3))
    (tmp_path / "dev").mkdir()
    null(tmp_path / "dev" / "kmsg")
    source = find_log(tmp_path)
    assert isinstance(source, Kmsg)
    assert (source.read(), source.lost) == ([], 0)
    source.close()
