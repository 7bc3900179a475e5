"""The kernel log of a simulated board, read as a machine's is."""

from pathlib import Path

from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import IDLE
from cadenza.engine.board.faults import parse_fault
from cadenza.readings import Missing
from cadenza.telemetry.kernel.log import KernelLog
from cadenza.telemetry.kernel.sources import find_log

SECOND = 10**9


class Watched:
    """A board and the collector of its log, who look once a second, the one right after the other."""

    def __init__(self, root: Path, *faults: str) -> None:
        self.root = root
        self.board = Board.for_devices(["mi50-32gb", "rx6900xt"], seed=1)
        for fault in faults:
            self.board.inject(parse_fault(fault), 0)
        self.show(0)
        self.log = KernelLog(find_log(root), ["0000:03:00.0", "0000:43:00.0"])

    def show(self, now_s: int) -> None:
        self.board.advance(now_s * SECOND, [IDLE] * 2)
        self.board.write(self.root)

    def look(self, from_s: int, to_s: int) -> dict[str, float]:
        """After the last look: the lines lost, and every kind of event there was."""
        for now_s in range(from_s, to_s):
            self.show(now_s)
            found = self.log.collect()
            assert found.missing == []
        values: dict[str, float] = {}
        for reading in found.readings:
            labels = dict(reading.labels)
            if reading.value or not labels:
                values[" ".join(labels.values()) or reading.name.removeprefix("cadenza_kernel_log_")] = reading.value
        return values


def test_lines_that_are_lost_are_counted_and_events_around_them_seen(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "log-overrun@3", "ring-timeout:1@5", "log-overrun@8", "fallen-off:0@10")
    assert watched.look(1, 3) == {"lost_total": 0}
    assert watched.look(3, 5) == {"lost_total": 100}
    rx = {"ring_timeout 0000:43:00.0": 1, "gpu_reset 0000:43:00.0": 1}
    assert watched.look(5, 8) == {"lost_total": 100} | rx
    assert watched.look(8, 10) == {"lost_total": 200} | rx
    mi50 = {"off_the_bus 0000:03:00.0": 1, "gpu_reset 0000:03:00.0": 1, "reset_failed 0000:03:00.0": 1}
    assert watched.look(10, 14) == {"lost_total": 200} | rx | mi50
    assert [(event.kind, event.gpu, event.boot_us) for event in watched.log.events()] == [
        ("ring_timeout", "0000:43:00.0", 5_000_000),
        ("gpu_reset", "0000:43:00.0", 5_000_054),
        ("off_the_bus", "0000:03:00.0", 10_000_001),
        ("gpu_reset", "0000:03:00.0", 10_000_003),
        ("reset_failed", "0000:03:00.0", 11_000_000),
    ]
    watched.log.close()


def test_a_board_that_comes_later_and_its_successor_are_read_from_their_first_line(tmp_path: Path) -> None:
    log = KernelLog(find_log(tmp_path))
    assert log.collect().missing == [Missing("cadenza_kernel_events_total", "", "absent")]
    for _ in range(2):
        watched = Watched(tmp_path, "kfd-oom@1", "log-overrun@2")
        for now_s in range(1, 5):
            watched.show(now_s)
            log.collect()
        watched.log.close()
    log.collect()
    assert [(event.kind, event.boot_us) for event in log.events()] == [("kfd_allocation", 1_000_000)] * 2
    (lost,) = [reading.value for reading in log.collect().readings if reading.name.endswith("lost_total")]
    assert lost == 200
    log.close()
