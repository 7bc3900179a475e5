"""Counters of a card that wrap, restart or jump, made into ones that only grow."""

from pathlib import Path

from cadenza.clock import NS_PER_S
from cadenza.readings import Reason
from cadenza.telemetry.cards.drm import read_bad_pages, read_ras
from cadenza.telemetry.findings import Findings
from cadenza.telemetry.root import UnreadableError

_WRAP_J = 65_536.0  # 32 bits of 2⁻¹⁶ J: four minutes of a card at 254 W
_WRAP_MAX_W = 600.0  # no card that counts in 32 bits draws more
RAS_PERIOD_S = 10
# A suspended card has answered a query with 1048560 errors; no card that still runs has made a million in 10 s.
_JUMP = 1_000_000


class EnergyCounter:
    """Joules since the driver was loaded, unwrapped from 32 bits where a wrap explains a fall, and kept on where not.

    SMU11 and some SMU13 firmwares count in 32 bits (kernel `EnergyAccumulator`), which the driver widens as they are.
    """

    def __init__(self) -> None:
        self._offset_j = 0.0
        self._before: tuple[float, float] | None = None
        self._rested = False

    def rest(self) -> None:
        """The card sleeps, and draws next to nothing: a count that is lower afterwards did not wrap, but begin anew."""
        self._rested = True

    def add(self, joules: float, clock_s: float | None) -> float:
        """The whole count, `joules` being the chip's counter and `clock_s` the driver's clock at that value.

        A fall is a wrap if it then took less than 600 W since the last call, and no rest; else the chip began anew.
        """
        if self._before is not None and joules < self._before[0]:
            before_j, before_s = self._before
            grown_j = _WRAP_J - before_j + joules
            elapsed_s = 0.0 if clock_s is None else clock_s - before_s
            wrapped = not self._rested and before_j < _WRAP_J and grown_j <= _WRAP_MAX_W * elapsed_s
            self._offset_j += _WRAP_J if wrapped else before_j
        self._before, self._rested = (joules, clock_s if clock_s is not None else 0.0), False
        return self._offset_j + joules


class ErrorCounters:
    """RAS errors and bad pages of one card, read every 10 s: each query interrupts the chip.

    A count that jumps by a million is implausible: the jump is out_of_range, and subtracted from then on.
    """

    def __init__(self) -> None:
        self._due_ns: int | None = None
        self._before: dict[tuple[str, str], int] = {}
        self._excess: dict[tuple[str, str], int] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._lacks: dict[str, Reason] = {}
        self._findings = Findings("", "amd")

    def read(self, device: Path, now_ns: int, findings: Findings) -> None:
        """Add the latest values, which are read again after 10 s."""
        if self._due_ns is None or now_ns >= self._due_ns:
            self._due_ns = now_ns + RAS_PERIOD_S * NS_PER_S
            self._findings = Findings(findings.gpu, "amd")
            self._ask(device, self._findings)
        findings.include(self._findings)

    def _ask(self, device: Path, findings: Findings) -> None:
        self._counts, self._lacks = {}, {}
        for block, errors in read_ras(device).items():
            if isinstance(errors, UnreadableError):
                self._lacks[block] = errors.reason
                continue
            for severity, count in errors.items():
                self._count((block, severity), count)
        for (block, severity), count in self._counts.items():
            findings.give("gpu_ras_errors_total", count, block, severity)
        for block, reason in self._lacks.items():
            findings.lack("gpu_ras_errors_total", reason, block, "")
        try:
            for state, pages in read_bad_pages(device).items():
                findings.give("gpu_bad_pages", pages, state)
        except UnreadableError as error:
            findings.lack("gpu_bad_pages", error.reason)

    def _count(self, key: tuple[str, str], count: int) -> None:
        before = self._before.get(key, 0)
        self._before[key] = count
        if count < before:
            self._excess.pop(key, None)
        elif count - before >= _JUMP:
            self._excess[key] = self._excess.get(key, 0) + count - before
            self._lacks[key[0]] = "out_of_range"
            return
        self._counts[key] = count - self._excess.get(key, 0)
