"""PCIe traffic of the cards that count it, a thread a card: every read of `pcie_bw` blocks for a second.

The driver zeroes the counters, sleeps and reads them, so two readers spoil each other's numbers. Vega and MI50 to MI200
have the file; Navi and MI300 do not.
"""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.readings import Collected, Collector, Missing, Reading, Reason
from cadenza.telemetry.cards.drm import KnownCards, find_cards, read_asleep
from cadenza.telemetry.findings import Findings
from cadenza.telemetry.root import UnreadableError, read_text

_FAMILIES = ("gpu_pcie_received_bytes_per_second", "gpu_pcie_sent_bytes_per_second")
_MESSAGES = re.compile(r"([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,5})", re.ASCII)
_MAX_PAYLOAD = 4096  # of PCIe
STALE_S = 5.0
# A driver that has the file and nothing to put into it will not change its mind soon.
_PAUSE_S, _LONG_PAUSE_S = 1.0, 60.0
_STOP_S, _CLOSE_S = 1.5, 0.5

# Device folders that a thread of this process reads, also one that a stopped collector left stuck in the kernel.
_taken: set[Path] = set()
_taking = threading.Lock()


class Traffic(NamedTuple):
    """Bytes a second in the second before `age_s`: upper bounds, each message taken for the largest."""

    received_bytes_per_s: float
    sent_bytes_per_s: float
    age_s: float


def parse_messages(text: str) -> tuple[float, float]:
    """(received, sent) bytes/s of `RECEIVED SENT PAYLOAD`: messages in one second, and the largest payload in bytes.

    UnreadableError: malformed, or out_of_range for a payload that PCIe does not have.
    """
    match = _MESSAGES.fullmatch(text)
    if match is None:
        raise UnreadableError("malformed")
    received, sent, payload = (int(part) for part in match.groups())
    if not 0 < payload <= _MAX_PAYLOAD:
        raise UnreadableError("out_of_range")
    return float(received * payload), float(sent * payload)


class Watch:
    """The one reader of one card: `read_once` is a round of its thread."""

    def __init__(self, device: Path, read: Callable[[Path], str], clock: Clock) -> None:
        self.device = device
        self._read = read
        self._clock = clock
        self.began_ns = clock.now_ns()
        self.read_began_ns: int | None = None
        self.result: tuple[int, tuple[float, float] | Reason] | None = None
        self.left = threading.Event()

    def read_once(self) -> float:
        """Read and keep the result; the seconds until the next read. A suspended card is not read."""
        began_ns = self.read_began_ns = self._clock.now_ns()
        result: tuple[float, float] | Reason
        try:
            if read_asleep(self.device):
                raise UnreadableError("asleep")
            result = parse_messages(self._read(self.device / "pcie_bw"))
        except UnreadableError as error:
            result = error.reason
        except Exception:  # whatever a thread dies of, nobody would hear of
            result = "failed"
        now_ns = self._clock.now_ns()
        self.result = (now_ns, result)
        self.read_began_ns = None
        if result == "not_supported":
            return _LONG_PAUSE_S
        return max(0.0, _PAUSE_S - (now_ns - began_ns) / NS_PER_S)

    def run(self, key: Path) -> None:
        """Until it is left; a read that never returns keeps the card taken."""
        try:
            while not self.left.is_set() and not self.left.wait(self.read_once()):
                pass
        finally:
            with _taking:
                _taken.discard(key)


class PcieBandwidth(Collector):
    """A collector of the latest result of each thread. They begin with the first `collect`, and end with `stop`.

    `read` reads a `pcie_bw`; it may block, which delays nobody.
    """

    name = "pcie"

    def __init__(self, root: Path, read: Callable[[Path], str] = read_text, clock: Clock | None = None) -> None:
        self._root = root
        self._read = read
        self._clock = clock or MonotonicClock()
        self._watches: dict[str, Watch] = {}
        self._known: KnownCards = {}
        self._threads: dict[str, threading.Thread] = {}
        self._stopped = False

    def collect(self) -> Collected:
        """The latest value of each card; timeout once it is older than 5 s, or the first takes longer than that."""
        readings: list[Reading] = []
        missing: list[Missing] = []
        cards = {path.gpu: path.device for path in find_cards(self._root, self._known)}
        for gpu in self._watches.keys() - cards.keys():
            self._watches.pop(gpu).left.set()
        for gpu, device in cards.items():
            findings = Findings(gpu, "amd")
            reason = self._tell(gpu, device, findings)
            if reason is not None:
                for name in _FAMILIES:
                    findings.lack(name, reason)
            collected = findings.collect(())
            readings += collected.readings
            missing += collected.missing
        if not cards:
            missing.append(Missing(self.name, "", "absent"))
        return Collected(readings, missing)

    def close(self) -> None:
        """End the threads; a read that is blocked in the kernel is left behind."""
        self.stop(_CLOSE_S)

    def latest(self, gpu: str) -> Traffic | None:
        """The latest value of that card, however old; None if the last round had none."""
        watch = self._watches.get(gpu)
        result = None if watch is None else watch.result
        if result is None or not isinstance(result[1], tuple):
            return None
        return Traffic(*result[1], (self._clock.now_ns() - result[0]) / NS_PER_S)

    def stop(self, within_s: float = _STOP_S) -> list[str]:
        """End the threads; the cards whose read was still stuck after `within_s`. They are left to the kernel."""
        self._stopped = True
        for watch in self._watches.values():
            watch.left.set()
        until_s = time.monotonic() + within_s
        for thread in self._threads.values():
            thread.join(max(0.0, until_s - time.monotonic()))
        return sorted(gpu for gpu, thread in self._threads.items() if thread.is_alive())

    def _tell(self, gpu: str, device: Path, findings: Findings) -> Reason | None:
        """Readings of one card, or why there are none; neither in its first seconds."""
        watch = self._watches.get(gpu)
        if watch is None or watch.device != device:
            if not (device / "pcie_bw").exists():
                return "absent"
            watch = self._start(gpu, device)
            if watch is None:
                return "failed"
        now_ns, stale_ns = self._clock.now_ns(), STALE_S * NS_PER_S
        read_began_ns, result = watch.read_began_ns, watch.result
        if read_began_ns is not None and now_ns - read_began_ns > stale_ns:
            return "timeout"
        if result is None:
            return "timeout" if now_ns - watch.began_ns > stale_ns else None
        at_ns, value = result
        if not isinstance(value, tuple):
            return value
        if now_ns - at_ns > stale_ns:
            return "timeout"
        for name, per_s in zip(_FAMILIES, value, strict=True):
            findings.give(name, per_s)
        return None

    def _start(self, gpu: str, device: Path) -> Watch | None:
        """A thread for the card, if no other has it."""
        old = self._watches.pop(gpu, None)
        if old is not None:
            old.left.set()
        key = device.resolve()
        with _taking:
            if self._stopped or key in _taken:
                return None
            _taken.add(key)
        watch = self._watches[gpu] = Watch(device, self._read, self._clock)
        # A daemon: a read that hangs in a dead driver must not keep the process from ending.
        thread = threading.Thread(target=watch.run, args=(key,), name=f"pcie {gpu}", daemon=True)
        self._threads[gpu] = thread
        thread.start()
        return watch
