"""Faults that can be injected into a board, and the kernel lines that go with what befalls a card."""

import math
from typing import Literal, NamedTuple, get_args

from cadenza.engine.board.kfd import PID
from cadenza.engine.board.state import Seat
from cadenza.errors import UsageError

Kind = Literal["overheat", "fallen-off", "ring-timeout", "kfd-oom"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# From the first line of a ring timeout to the last of its reset, as in the sample log.
RESET_US = 1_809_000


class Fault(NamedTuple):
    """`kind` befalls the card at index `card`, `after_ns` after it was injected."""

    kind: Kind
    card: int = 0
    after_ns: int = 0


class Line(NamedTuple):
    """A kernel line, `after_us` microseconds after the event."""

    after_us: int
    text: str


def parse_fault(text: str) -> Fault:
    """`KIND[:CARD][@SECONDS]`, as in "overheat:0@600s"; card 0 and at once if not said, the s may be left out.

    UsageError says which part is wrong.
    """
    head, at, seconds = text.partition("@")
    kind, colon, card = head.partition(":")
    if kind not in KINDS:
        raise UsageError(f"board fault '{text}': no fault is called '{kind}'; there are: {', '.join(KINDS)}")
    if colon and not (card.isascii() and card.isdigit()):
        raise UsageError(f"board fault '{text}': the card is a number from 0 on, not '{card}'")
    try:
        after_s = float(seconds.removesuffix("s")) if at else 0.0
    except ValueError:
        after_s = math.nan
    if not 0 <= after_s < math.inf:
        raise UsageError(f"board fault '{text}': after @ stands a time in seconds, as in @600s, not '{seconds}'")
    return Fault(kind, int(card) if colon else 0, round(after_s * 1e9))


def stamp(at_ns: int, text: str) -> str:
    """A line as dmesg prints it: seconds and microseconds since boot, which is zero of the engine's clock."""
    return f"[{at_ns // 10**9:5d}.{at_ns // 1000 % 10**6:06d}] {text}"


def fall_off(seat: Seat, device_id: int) -> list[Line]:
    """The card no longer answers on the bus, and cannot be brought back (-19 is ENODEV)."""
    pci, amdgpu = f"amdgpu {seat.slot}:", f"amdgpu {seat.slot}: amdgpu:"
    return [
        Line(0, f"pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from {seat.slot}"),
        Line(1, f"{pci} PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)"),
        Line(2, f"{pci}   device [1002:{device_id:04x}] error status/mask=ffffffff/ffffffff"),
        Line(3, f"{amdgpu} GPU reset begin!"),
        Line(1_000_000, f"{amdgpu} GPU Recovery Failed: -19"),
    ]


def time_out(seat: Seat, resets: int) -> list[Line]:
    """A compute ring hangs, and the whole card is reset for it; `resets` counts them, this one included."""
    amdgpu = f"amdgpu {seat.slot}: amdgpu:"
    signaled = 1200 + 4 * resets
    return [
        Line(0, f"{amdgpu} ring comp_1.0.1 timeout, signaled seq={signaled}, emitted seq={signaled + 2}"),
        Line(39, f"{amdgpu} Process information: process cadenza pid {PID} thread cadenza pid {PID}"),
        Line(54, f"{amdgpu} GPU reset begin!"),
        Line(439_000, f"{amdgpu} MODE1 reset"),
        Line(959_000, f"{amdgpu} GPU reset succeeded, trying to resume"),
        Line(RESET_US, f"{amdgpu} GPU reset({resets}) succeeded!"),
    ]


def run_out() -> list[Line]:
    """The line of one published report; no kernel source we know prints it (-12 is ENOMEM)."""
    return [Line(0, "amdgpu: Failed to allocate kfd ring buffer: -12")]


def throttle(seat: Seat, text: str) -> list[Line]:
    """The driver's own warning, where it has one."""
    return [Line(0, f"amdgpu {seat.slot}: amdgpu: {text}")]


def shut_down(seat: Seat) -> list[Line]:
    """A sensor reached its last limit. The real driver then powers the whole host off; here the card is lost."""
    amdgpu = f"amdgpu {seat.slot}: amdgpu: ERROR:"
    return [
        Line(0, f"{amdgpu} GPU over temperature range(SW CTF) detected!"),
        Line(1, f"{amdgpu} System is going to shutdown due to GPU SW CTF!"),
    ]
