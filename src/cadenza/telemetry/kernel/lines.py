"""The kernel's lines out of bytes: records of /dev/kmsg, what dmesg prints, what the journal holds.

Only the kernel's own messages count: what user space writes into its log is skipped.
"""

import re
from typing import NamedTuple, Protocol

import msgspec

LINE_BYTES = 64 << 10

_PCI_DEVICE = re.compile(r"\+pci:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)


class KernelLine(NamedTuple):
    """A message of the kernel: microseconds since boot (None: unknown), the PCI device that it is about ("": none)."""

    boot_us: int | None
    device: str
    text: str


class Form(Protocol):
    """How a log's bytes, which come in pieces, become lines. `lost` as a source's."""

    @property
    def lost(self) -> int | None: ...

    def begin(self, before: bytes = b"") -> None:
        """A log begins, whose lines in `before` are passed over."""
        ...

    def feed(self, data: bytes) -> list[KernelLine]: ...

    def end(self) -> list[KernelLine]:
        """The line that was held back for more about it. None has come."""
        ...


class KmsgRecords:
    """Records as /dev/kmsg gives them (https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg).

    `priority,sequence,microseconds,flags;text`, where text is escaped (\\x0a), then lines ` KEY=value` about it. A step
    in the sequence numbers is so many records lost. No line comes from records of user space (facility above 0), from
    what is malformed, and from fragments (flag c or +): a text that goes on need not begin with the kernel's own words.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._tail = LineBuffer()
        self._next: int | None = None  # the sequence number that comes next
        self._held: KernelLine | None = None

    def begin(self, before: bytes = b"") -> None:
        """A log begins; of the records in `before` only the last number counts, for what is lost after them."""
        lost = self.lost
        self._tail, self._next, self._held = LineBuffer(), None, None
        self.feed(before)
        self.end()
        self.lost = lost

    def feed(self, data: bytes) -> list[KernelLine]:
        """The lines whose records are over, since another line follows that is not about them."""
        return [line for raw in self._tail.feed(data) for line in self._take(raw)]

    def end(self) -> list[KernelLine]:
        """The last record's line: what comes from here on is not about it."""
        held, self._held = self._held, None
        return [] if held is None else [held]

    def overrun(self) -> None:
        """Records were overwritten: as many as the next sequence number shows, at least one."""
        if self._next is None:
            self.lost += 1

    def _take(self, raw: bytes) -> list[KernelLine]:
        if raw.startswith(b" "):
            device = _PCI_DEVICE.fullmatch(raw[8:].decode("ascii", errors="replace"))
            if self._held and device and raw.startswith(b" DEVICE="):
                self._held = self._held._replace(device=device[1])
            return []
        over = self.end()
        self._held = self._line(raw)
        return over

    def _line(self, raw: bytes) -> KernelLine | None:
        head, semicolon, text = raw.partition(b";")
        fields = head.split(b",", 4)
        numbers = fields[:3]
        if not semicolon or len(numbers) < 3 or not all(number.isdigit() and len(number) < 20 for number in numbers):
            return None
        priority, sequence, boot_us = map(int, numbers)
        if self._next is not None:
            self.lost += max(0, sequence - self._next)
        self._next = sequence + 1
        # facility · 8 + level; 0 is the kernel, which nobody else can write
        if priority > 7 or fields[3:4] in ([b"c"], [b"+"]):
            return None
        plain = re.sub(rb"\\x([0-9a-f]{2})", lambda parsed: bytes.fromhex(parsed[1].decode()), text)
        return KernelLine(boot_us, "", plain.decode("utf-8", errors="replace"))


# "[  812.101001] text", with the level that `dmesg -x` or `-r` puts in front, and the caller that some kernels add.
_DMESG = re.compile(
    r"(?:<(?P<priority>[0-9]{1,3})>|(?P<facility>[a-z0-9]+) *:[a-z]+ *: )?"
    r"\[ *(?P<s>[0-9]{1,12})\.(?P<us>[0-9]{6})\](?:\[ *[TC][0-9]+\])? (?P<text>.*)",
    re.ASCII | re.DOTALL,
)


def parse_dmesg(line: str) -> KernelLine | None:
    """A line as dmesg prints it; None where it has no time stamp, or is not the kernel's by what stands before it."""
    parsed = _DMESG.fullmatch(line)
    if parsed is None or int(parsed["priority"] or 0) > 7 or parsed["facility"] not in (None, "kern"):
        return None
    return KernelLine(int(parsed["s"]) * 1_000_000 + int(parsed["us"]), "", parsed["text"])


class DmesgText:
    """Lines as dmesg prints them. They have no numbers, so lost ones cannot be counted."""

    lost: None = None

    def __init__(self) -> None:
        self._tail = LineBuffer()

    def begin(self, before: bytes = b"") -> None:
        """A log begins, whose lines in `before` are passed over."""
        self._tail = LineBuffer()
        self._tail.feed(before)

    def feed(self, data: bytes) -> list[KernelLine]:
        """The lines that are whole by now."""
        parsed = (parse_dmesg(raw.decode("utf-8", errors="replace")) for raw in self._tail.feed(data))
        return [line for line in parsed if line is not None]

    def end(self) -> list[KernelLine]:
        """Nothing: a line of dmesg stands alone."""
        return []


def parse_journal(line: bytes) -> KernelLine | None:
    """A line of `journalctl -o json`, if it is the kernel's (transport kernel, facility 0).

    MESSAGE is a string, or an array of bytes where it is no UTF-8; times and numbers are strings.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        text = _field(fields, "MESSAGE")
        if text is None or _field(fields, "_TRANSPORT") != "kernel" or _field(fields, "SYSLOG_FACILITY") not in _KERN:
            return None
        device = _PCI_DEVICE.fullmatch(_field(fields, "_KERNEL_DEVICE") or "")
        stamp = _field(fields, "_SOURCE_MONOTONIC_TIMESTAMP") or _field(fields, "__MONOTONIC_TIMESTAMP") or ""
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return None
    known = stamp.isascii() and stamp.isdigit() and len(stamp) < 20
    return KernelLine(int(stamp) if known else None, device[1] if device else "", text)


_KERN = (None, "0")


def _field(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    if name not in fields:
        return None
    value = msgspec.json.decode(fields[name], type=str | list[int] | None)
    return bytes(value).decode("utf-8", errors="replace") if isinstance(value, list) else value


class LineBuffer:
    """Whole lines out of pieces; one that is too long is passed over: it is as if it were empty."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = False

    def feed(self, data: bytes) -> list[bytes]:
        *lines, rest = (self._rest + data).split(b"\n")
        if lines and self._skip:
            lines[0] = b""
            self._skip = False
        self._skip = self._skip or len(rest) > LINE_BYTES
        self._rest = b"" if self._skip else rest
        return [line if len(line) <= LINE_BYTES else b"" for line in lines]
