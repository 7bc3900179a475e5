"""Small files below a folder that stands for `/`: read whole, bounded, and with a reason where there is nothing."""

import errno
import os
import re
from pathlib import Path

from cadenza.readings import Reason

_TEXT_BYTES = 64 << 10
# As the kernel prints them: `int` alone would also take 1_000, other scripts' digits, and a megabyte of them.
_INTEGER = re.compile(r"-?[0-9]{1,64}")

_REASONS: dict[int, Reason] = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.ENODEV: "absent",
    errno.ENXIO: "absent",
    errno.ENODATA: "not_supported",
    errno.EOPNOTSUPP: "not_supported",
    errno.EINVAL: "not_supported",
    # amdgpu answers EPERM while a card is suspended or resetting; a file mode that forbids reading is EACCES.
    errno.EPERM: "asleep",
    errno.EBUSY: "asleep",
    errno.EACCES: "denied",
    errno.ETIMEDOUT: "timeout",
}


class UnreadableError(Exception):
    """A file could not be read; `reason` is why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def read_bytes(path: Path | str, limit: int = _TEXT_BYTES) -> bytes:
    """The file's content, `limit` bytes at most, in one read as sysfs wants it. UnreadableError if there is none."""
    try:
        # Dozens of files a card, twice a second: without file objects they cost half. Kept open they would cost a
        # fifth, but fifty cards need more of them than a process may have, and a file that was replaced, by a driver
        # that was loaded anew or by the simulated board, would go on showing the old values.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnreadableError(_REASONS.get(error.errno or 0, "failed")) from None


def read_text(path: Path | str) -> str:
    """The file's text without surrounding white space. UnreadableError: unreadable, or empty (not_supported)."""
    text = read_bytes(path).decode("utf-8", errors="replace").strip()
    if not text:
        raise UnreadableError("not_supported")
    return text


def read_integer(path: Path | str) -> int:
    """The file's one integer, decimal. UnreadableError (malformed) where it is something else."""
    text = read_text(path)
    if not _INTEGER.fullmatch(text):
        raise UnreadableError("malformed")
    return int(text)
