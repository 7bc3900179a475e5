"""The reader of pcie_bw in its thread: one a card, never in the caller's way, never a stale number."""

import contextlib
import queue
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.clock import ManualClock
from cadenza.readings import Missing, Reading, Reason
from cadenza.telemetry.cards.pcie import PcieBandwidth, Traffic, Watch, parse_messages
from cadenza.telemetry.root import UnreadableError

MIXED = Path(__file__).parents[2] / "data/sysfs/mixed_mi50_rx6900xt"
MI50, RX = "0000:03:00.0", "0000:43:00.0"
RECEIVED, SENT = "gpu_pcie_received_bytes_per_second", "gpu_pcie_sent_bytes_per_second"
SECOND = 10**9
PATIENCE_S = 30


class Driver:
    """A pcie_bw whose every read takes a second of `clock`, and as long as the test wants of ours."""

    def __init__(self, clock: ManualClock) -> None:
        self.asked: queue.Queue[Path] = queue.Queue()
        self.answers: queue.Queue[str | Reason] = queue.Queue()
        self._clock = clock

    def read(self, path: Path) -> str:
        self.asked.put(path)
        answer = self.answers.get(timeout=PATIENCE_S)
        self._clock.advance_to(self._clock.now_ns() + SECOND)
        return answer

    def answer(self, text: str) -> None:
        """Let the read that is on return, and wait for the next, which begins once the answer is kept."""
        self.answers.put(text)
        self.asked.get(timeout=PATIENCE_S)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(MIXED, tmp_path / "sys")
    return tmp_path


def missing_of(gpu: str, reason: Reason) -> list[Missing]:
    return [Missing(name, gpu, reason) for name in (RECEIVED, SENT)]


def finish(driver: Driver) -> None:
    """Let the stuck reads return, so that their threads end."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("pcie ")]
    for _ in threads:
        driver.answers.put("0 0 256")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def test_received_comes_first_and_messages_are_taken_for_the_largest() -> None:
    assert parse_messages("1204113 988231 256") == (1204113 * 256, 988231 * 256)
    assert parse_messages("0 0 128") == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(("1 2", "malformed"), ("1 2 3 4", "malformed"), ("-1 2 256", "malformed"), ("N/A", "malformed")),
        *(("1 2 0", "out_of_range"), ("1 2 65535", "out_of_range"), ("1 2 -1", "malformed")),
    ],
)
def test_what_is_no_count(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_messages(text)
    assert caught.value.reason == reason


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        assert min(parse_messages(text)) >= 0


def test_collect_never_waits_and_tells_what_came_last(root: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    bandwidth = PcieBandwidth(root, driver.read, clock)
    try:
        first = bandwidth.collect()  # returns while the read blocks
        assert first.readings == []
        assert first.missing == missing_of(RX, "absent")
        assert driver.asked.get(timeout=PATIENCE_S).name == "pcie_bw"
        driver.answer("1204113 988231 256")
        second = bandwidth.collect()
        labels = (("gpu", MI50), ("vendor", "amd"))
        assert second.readings == [Reading(RECEIVED, labels, 308252928.0), Reading(SENT, labels, 252987136.0)]
        clock.advance_to(clock.now_ns() + 2 * SECOND)
        assert bandwidth.latest(MI50) == Traffic(308252928.0, 252987136.0, 2.0)
        driver.answer("0 0 256")
        assert [reading.value for reading in bandwidth.collect().readings] == [0.0, 0.0]
        assert bandwidth.latest(RX) is None
    finally:
        bandwidth.stop(0)
        finish(driver)


def test_a_value_older_than_five_seconds_is_a_timeout(root: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    bandwidth = PcieBandwidth(root, driver.read, clock)
    try:
        bandwidth.collect()
        driver.asked.get(timeout=PATIENCE_S)
        driver.answer("5 6 256")
        told_ns = clock.now_ns()
        clock.advance_to(told_ns + 5 * SECOND)
        assert len(bandwidth.collect().readings) == 2
        clock.advance_to(told_ns + 5 * SECOND + 1)
        stuck = bandwidth.collect()
        assert stuck.readings == []
        assert stuck.missing == missing_of(MI50, "timeout") + missing_of(RX, "absent")
        driver.answer("7 8 256")
        assert [reading.value for reading in bandwidth.collect().readings] == [7 * 256.0, 8 * 256.0]
    finally:
        bandwidth.stop(0)
        finish(driver)


def test_a_read_that_is_stuck_after_one_that_failed_is_a_timeout(root: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    bandwidth = PcieBandwidth(root, driver.read, clock)
    try:
        bandwidth.collect()
        driver.asked.get(timeout=PATIENCE_S)
        driver.answer("nonsense")
        assert bandwidth.collect().missing == missing_of(MI50, "malformed") + missing_of(RX, "absent")
        clock.advance_to(clock.now_ns() + 5 * SECOND + 1)
        assert bandwidth.collect().missing == missing_of(MI50, "timeout") + missing_of(RX, "absent")
    finally:
        bandwidth.stop(0)
        finish(driver)


def test_a_first_read_that_never_returns_is_a_timeout_and_does_not_hold_up_the_end(root: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    bandwidth = PcieBandwidth(root, driver.read, clock)
    bandwidth.collect()
    driver.asked.get(timeout=PATIENCE_S)
    clock.advance_to(5 * SECOND + 1)
    assert bandwidth.collect().missing == missing_of(MI50, "timeout") + missing_of(RX, "absent")
    assert bandwidth.stop(0) == [MI50]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("pcie "))
    finish(driver)
    assert bandwidth.stop(0) == []
    assert driver.asked.empty()


def test_a_card_has_one_reader_whoever_asks(root: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    first, second = PcieBandwidth(root, driver.read, clock), PcieBandwidth(root, driver.read, clock)
    first.collect()
    driver.asked.get(timeout=PATIENCE_S)
    for _ in range(3):
        first.collect()
        assert second.collect().missing == missing_of(MI50, "failed") + missing_of(RX, "absent")
    assert driver.asked.empty()
    first.stop(0)
    assert second.collect().missing[0] == Missing(RECEIVED, MI50, "failed")  # still stuck in the kernel
    finish(driver)
    second.collect()
    driver.asked.get(timeout=PATIENCE_S)
    second.stop(0)
    finish(driver)


def test_a_card_that_goes_takes_its_reader_along_and_gets_one_again(root: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    bandwidth = PcieBandwidth(root, driver.read, clock)
    card = root / "sys/class/drm/card1"
    try:
        bandwidth.collect()
        driver.asked.get(timeout=PATIENCE_S)
        card.rename(tmp_path / "gone")
        assert bandwidth.collect().missing == missing_of(RX, "absent")
        finish(driver)
        (tmp_path / "gone").rename(card)
        bandwidth.collect()
        driver.asked.get(timeout=PATIENCE_S)
        driver.answer("1 1 256")
        assert [reading.value for reading in bandwidth.collect().readings] == [256.0, 256.0]
    finally:
        bandwidth.stop(0)
        finish(driver)


def test_after_stop_no_thread_begins(root: Path) -> None:
    driver = Driver(ManualClock())
    bandwidth = PcieBandwidth(root, driver.read, ManualClock())
    assert bandwidth.stop() == []
    assert bandwidth.collect().missing[0] == Missing(RECEIVED, MI50, "failed")
    assert driver.asked.empty()


def test_no_card_at_all_is_told_of_the_collector(tmp_path: Path) -> None:
    assert PcieBandwidth(tmp_path).collect() == ([], [Missing("pcie", "", "absent")])


def refuse(reason: Reason) -> str:
    raise UnreadableError(reason)


@pytest.mark.parametrize(
    ("reason", "pause_s"), [("not_supported", 60.0), ("asleep", 1.0), ("absent", 1.0), ("failed", 1.0)]
)
def test_a_read_that_fails_at_once_is_not_repeated_at_once(root: Path, reason: Reason, pause_s: float) -> None:
    watch = Watch(root / "sys/class/drm/card1/device", lambda path: refuse(reason), ManualClock())
    assert watch.read_once() == pause_s
    assert watch.result == (0, reason)
    assert watch.read_began_ns is None


def test_a_read_that_took_its_second_is_followed_by_the_next(root: Path) -> None:
    clock = ManualClock()

    def read(path: Path) -> str:
        clock.advance_to(clock.now_ns() + SECOND // 4)
        return "1 1 256"

    watch = Watch(root / "sys/class/drm/card1/device", read, clock)
    assert watch.read_once() == 0.75
    assert watch.result == (SECOND // 4, (256.0, 256.0))


def test_a_card_that_sleeps_is_not_asked(root: Path) -> None:
    device = root / "sys/class/drm/card1/device"
    (device / "power/runtime_status").write_text("suspended\n", encoding="ascii")
    asked: list[Path] = []

    def read(path: Path) -> str:
        asked.append(path)
        return "1 1 256"

    watch = Watch(device, read, ManualClock())
    assert watch.read_once() == 1.0
    assert watch.result == (0, "asleep")
    assert asked == []


def test_a_reader_that_breaks_has_failed(root: Path) -> None:
    def read(path: Path) -> str:
        raise ZeroDivisionError

    watch = Watch(root / "sys/class/drm/card1/device", read, ManualClock())
    assert watch.read_once() == 1.0
    assert watch.result == (0, "failed")


def test_more_than_a_bus_can_carry_is_out_of_range(root: Path) -> None:
    clock = ManualClock()
    driver = Driver(clock)
    bandwidth = PcieBandwidth(root, driver.read, clock)
    try:
        bandwidth.collect()
        driver.asked.get(timeout=PATIENCE_S)
        driver.answer("18446744073709551615 7 256")
        collected = bandwidth.collect()
        assert [reading.name for reading in collected.readings] == [SENT]
        assert collected.missing[0] == Missing(RECEIVED, MI50, "out_of_range")
    finally:
        bandwidth.stop(0)
        finish(driver)
