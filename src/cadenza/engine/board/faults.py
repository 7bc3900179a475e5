"""Faults that can be injected into a board, and the kernel lines that go with what befalls a card."""

import math
import re
from typing import Literal, NamedTuple, get_args

from cadenza.engine.board.kfd import PID
from cadenza.engine.board.state import CardIdentity
from cadenza.errors import UsageError

Kind = Literal["overheat", "fallen-off", "ring-timeout", "kfd-oom", "log-overrun"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# From the first line of a ring timeout to the last of its reset, as in the sample log.
RESET_US = 1_809_000
# Records that vanish when the kernel's ring buffer goes round.
OVERRUN = 100

# A fault comes within thirty years.
_LONGEST_S = 1e9

# Levels of printk.
_EMERG, _ERR, _WARNING, _INFO = 0, 3, 4, 6
_PORT = "pcieport 0000:00:01.1"


class BoardFault(NamedTuple):
    """`kind` befalls the card at index `card`, `after_ns` after it was injected."""

    kind: Kind
    card: int = 0
    after_ns: int = 0


class KernelLine(NamedTuple):
    """A kernel line, `after_us` microseconds after the event; `vanished` records before it were overwritten."""

    after_us: int
    text: str
    level: int = _INFO
    vanished: int = 0


class Message(NamedTuple):
    """A kernel line at its place in the ring buffer."""

    at_ns: int
    sequence: int
    level: int
    text: str


def parse_fault(text: str) -> BoardFault:
    """`KIND[:CARD][@SECONDS]`, as in "overheat:0@600s"; card 0 and at once by default, the s may be left out.

    A `log-overrun` is no card's. UsageError says which part is wrong.
    """
    head, at, seconds = text.partition("@")
    kind, colon, card = head.partition(":")
    if kind not in KINDS:
        raise UsageError(f"board fault '{text}': no fault is called '{kind}'; there are: {', '.join(KINDS)}")
    if colon and kind == "log-overrun":
        raise UsageError(f"board fault '{text}': the log is no card's; leave ':{card}' out")
    if colon and not (card.isascii() and card.isdigit() and len(card) < 10):
        raise UsageError(f"board fault '{text}': the card is a number from 0 on, not '{card}'")
    try:
        after_s = float(seconds.removesuffix("s")) if at else 0.0
    except ValueError:
        after_s = math.nan
    if not 0 <= after_s <= _LONGEST_S:
        raise UsageError(f"board fault '{text}': after @ stands a time in seconds, as in @600s, not '{seconds}'")
    return BoardFault(kind, int(card) if colon else 0, round(after_s * 1e9))


def stamp(at_ns: int, text: str) -> str:
    """A line as dmesg prints it: seconds and microseconds since boot, which is zero of the engine's clock."""
    return f"[{at_ns // 10**9:5d}.{at_ns // 1000 % 10**6:06d}] {text}"


# Who speaks, as dev_printk puts it before the text: the driver and its device.
_SPEAKER = re.compile(r"\w+ ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ", re.ASCII)
_UNPRINTABLE = re.compile(rb"[^ -~]|\\")


def record(message: Message) -> bytes:
    """A line as /dev/kmsg gives it: the record of the kernel (facility 0), and the device that a driver speaks of.

    Form: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg; what is no printable ASCII, and the backslash,
    is escaped byte by byte, \\x0a.
    """
    text = _UNPRINTABLE.sub(lambda found: b"\\x%02x" % found[0][0], message.text.encode())
    speaker = _SPEAKER.match(message.text)
    about = b"" if speaker is None else b" SUBSYSTEM=pci\n DEVICE=+pci:%s\n" % speaker[1].encode()
    return b"%d,%d,%d,-;%s\n%s" % (message.level, message.sequence, message.at_ns // 1000, text, about)


def fall_off(identity: CardIdentity, device_id: int) -> list[KernelLine]:
    """The card no longer answers on the bus, and cannot be brought back (-19 is ENODEV)."""
    pci, amdgpu = f"amdgpu {identity.slot}:", f"amdgpu {identity.slot}: amdgpu:"
    bus_error = "PCIe Bus Error: severity=Uncorrectable (Fatal)"
    return [
        KernelLine(
            0, f"pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from {identity.slot}", _ERR
        ),
        KernelLine(1, f"{pci} {bus_error}, type=Inaccessible, (Unregistered Agent ID)", _ERR),
        KernelLine(2, f"{pci}   device [1002:{device_id:04x}] error status/mask=ffffffff/ffffffff", _ERR),
        KernelLine(3, f"{amdgpu} GPU reset begin!"),
        KernelLine(1_000_000, f"{amdgpu} GPU Recovery Failed: -19", _ERR),
    ]


def time_out(identity: CardIdentity, resets: int) -> list[KernelLine]:
    """A compute ring hangs, and the whole card is reset for it; `resets` counts them, this one included."""
    amdgpu = f"amdgpu {identity.slot}: amdgpu:"
    signaled = 1200 + 4 * resets
    return [
        KernelLine(0, f"{amdgpu} ring comp_1.0.1 timeout, signaled seq={signaled}, emitted seq={signaled + 2}", _ERR),
        KernelLine(39, f"{amdgpu} Process information: process cadenza pid {PID} thread cadenza pid {PID}", _ERR),
        KernelLine(54, f"{amdgpu} GPU reset begin!"),
        KernelLine(439_000, f"{amdgpu} MODE1 reset"),
        KernelLine(959_000, f"{amdgpu} GPU reset succeeded, trying to resume"),
        KernelLine(RESET_US, f"{amdgpu} GPU reset({resets}) succeeded!"),
    ]


def run_out() -> list[KernelLine]:
    """The line of one published report; no kernel source we know prints it (-12 is ENOMEM)."""
    return [KernelLine(0, "amdgpu: Failed to allocate kfd ring buffer: -12", _ERR)]


def throttle(identity: CardIdentity, text: str) -> list[KernelLine]:
    """The driver's own warning, where it has one."""
    return [KernelLine(0, f"amdgpu {identity.slot}: amdgpu: {text}", _WARNING)]


def shut_down(identity: CardIdentity) -> list[KernelLine]:
    """A sensor reached its last limit. The real driver then powers the whole host off; here the card is lost."""
    amdgpu = f"amdgpu {identity.slot}: amdgpu: ERROR:"
    return [
        KernelLine(0, f"{amdgpu} GPU over temperature range(SW CTF) detected!", _EMERG),
        KernelLine(1, f"{amdgpu} System is going to shutdown due to GPU SW CTF!", _EMERG),
    ]


def overrun() -> list[KernelLine]:
    """A flood of corrected link errors outruns whoever reads; its last line is still there."""
    port = "0000:00:01.1"
    return [
        KernelLine(0, f"pcieport {port}: AER: Multiple Corrected error message received from {port}", vanished=OVERRUN)
    ]
