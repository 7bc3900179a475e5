"""The seam to the network: a reactor with one blocking verb. Real sockets and virtual time both stand behind it.

`load.sockets` is the real one, `load.memory` its twin, which drives an in-process peer on a `ManualClock`.
"""

from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from cadenza.clock import Clock


class Origin(NamedTuple):
    """Where to connect: what the user named, the address it resolved to (port included), and whether TLS is spoken."""

    host: str
    address: tuple[str, int]
    tls: bool = False


class Opened(Enum):
    """The connection is ready for bytes (TLS handshake done)."""

    OPENED = "opened"


class Closed(NamedTuple):
    """The connection is gone: `clean` by the peer's FIN, otherwise `reason` says how it broke."""

    clean: bool
    reason: str


Payload = bytes | Opened | Closed
OPENED = Opened.OPENED


# (connection, stamp in ns, payload, lag in ns): what happened on a connection, when, and how long it had lain in the
# kernel when it was read. Lag None: the stamp is the read's own, and nobody knows. A plain tuple, made once an event.
Arrival = tuple[int, int, Payload, int | None]


class Counters(msgspec.Struct):
    """How the client itself fares; whoever reads it may set it back to zero.

    reads         reads that brought bytes
    away_ns       the longest time from the end of one `poll` to the beginning of the next: the loop's own lag
    clock_steps   jumps of the calendar clock, which make kernel stamps uncertain
    left_ns       when the last `poll` ended; 0: there was none
    """

    reads: int = 0
    away_ns: int = 0
    clock_steps: int = 0
    left_ns: int = 0


class Transport(Protocol):
    """Connections are integers, never used twice. After `Closed`, or `close`, a connection is silent."""

    @property
    def clock(self) -> Clock: ...

    @property
    def counters(self) -> Counters | None:
        """None in virtual time, where no client can be late."""
        ...

    def connect(self, origin: Origin) -> int:
        """Begin to connect, without waiting. `OPENED` or `Closed` follows from `poll`."""
        ...

    def send(self, connection: int, data: bytes) -> None:
        """Hand over bytes, without waiting; before `OPENED` they are kept and leave as soon as they can."""
        ...

    def poll(self, until_ns: int) -> list[Arrival]:
        """Wait for anything to happen, at the latest until `until_ns`; an empty list means that the time is up."""
        ...

    def close(self, connection: int) -> None:
        """Drop the connection now. Closing one that is gone already does nothing."""
        ...
