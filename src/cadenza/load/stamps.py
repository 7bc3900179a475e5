"""When bytes arrived, by the kernel's own stamp: how busy the client is no longer moves a token's time.

Linux stamps a packet on its way in (SO_TIMESTAMPNS, socket(7)), loopback included, and gives that of the last packet
that a read took. Its clock is the calendar's, CLOCK_REALTIME, which may step; the run's clock never does. So the
offset between the two is read anew at every look at the sockets, and a jump of it is counted.
"""

import socket
import struct
import sys
import time
from collections.abc import Callable

from cadenza.clock import NS_PER_S

# asm-generic/socket.h, SO_TIMESTAMPNS_OLD: its value is a timespec of two native longs. Python has no name for it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_unpack, _TIMESPEC_BYTES = _TIMESPEC.unpack, _TIMESPEC.size
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
# Two readings of one instant agree within this, unless the process was interrupted between them, or the clock stepped.
_READS_APART_NS = 5_000
_TRIES = 5
# A step of the calendar clock smaller than this is followed without a word: it moves a stamp by no more than that.
_STEP_NS = 200_000

Ancillary = list[tuple[int, int, bytes]]


def ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives; False where it does not know how."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class ArrivalClock:
    """Puts the kernel's calendar stamps on CLOCK_MONOTONIC, and notices where the calendar clock has jumped."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._stepped = False
        self._offset_ns = self._read_offset()

    def look(self) -> bool:
        """Read the offset again, once before the reads of each look at the sockets; whether the clock has jumped."""
        offset_ns = self._read_offset()
        self._stepped = abs(offset_ns - self._offset_ns) > _STEP_NS
        self._offset_ns = offset_ns
        return self._stepped

    def arrival_ns(self, ancillary: Ancillary, read_ns: int) -> int | None:
        """When the last packet of a read arrived, on the clock of `read_ns`; None where that is not known.

        Not known: no stamp came (the kernel turns stamping on a moment after the first socket asks), or the calendar
        clock has stepped, so that the stamp may be from before.
        """
        if not ancillary or self._stepped:
            return None
        _, kind, data = ancillary[0]
        if kind != _SO_TIMESTAMPNS or len(data) != _TIMESPEC_BYTES:
            return None
        seconds, nanoseconds = _unpack(data)
        stamp_ns: int = seconds * NS_PER_S + nanoseconds - self._offset_ns
        if stamp_ns > read_ns:  # by the width of two clock reads, or by a step since the look
            return read_ns if stamp_ns - read_ns < _READS_APART_NS else None
        return stamp_ns

    def _read_offset(self) -> int:
        """Calendar − monotonic. A reading with an interruption in it is made again, and the closest one counts."""
        closest_ns, offset_ns = 1 << 62, 0
        for _ in range(_TRIES):
            before_ns = self._monotonic_ns()
            wall_ns = self._wall_ns()
            after_ns = self._monotonic_ns()
            if after_ns - before_ns < closest_ns:
                closest_ns, offset_ns = after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2
            if closest_ns <= _READS_APART_NS:
                break
        return offset_ns
