"""Where the kernel's lines come from: /dev/kmsg, a file that grows, or the journal."""

import contextlib
import errno
import os
import select
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from cadenza.readings import Reason
from cadenza.telemetry.kernel.lines import (
    LINE_BYTES,
    DmesgText,
    Form,
    KernelLine,
    KmsgRecords,
    LineBuffer,
    parse_journal,
)
from cadenza.telemetry.root import UnreadableError

# A kernel record has 8 KiB at most. One round takes no more than this; what is left waits for the next.
_RECORD_BYTES = 16 << 10
_RECORDS = 4096
_ROUND_BYTES = 1 << 20
_STOP_S = 2.0
_FIRST_LINE_S = 1.0
# Where it is /dev/kmsg: https://docs.kernel.org/admin-guide/devices.html. Containers put other things in its place.
_KMSG = os.makedev(1, 11)
# Neither a FIFO without a writer nor a terminal may hold us up, or take us for its own.
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Source(Protocol):
    """Where lines come from. `lost`: records overwritten before they were read; None: unknown."""

    @property
    def lost(self) -> int | None: ...

    def read(self) -> list[KernelLine]:
        """What came since the last call, without waiting. UnreadableError: nothing can come, and why."""
        ...

    def close(self) -> None: ...


class Kmsg:
    """The character device /dev/kmsg below `root`, opened at the first read, from its end on. A read is a record."""

    def __init__(self, root: Path, read: Callable[[int, int], bytes] = os.read) -> None:
        self._path = root / "dev" / "kmsg"
        self._read = read
        self._file = -1
        self._records = KmsgRecords()

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""
        return self._records.lost

    def read(self) -> list[KernelLine]:
        lines: list[KernelLine] = []
        try:
            if self._file < 0:
                self._file = os.open(self._path, _OPEN)
                os.lseek(self._file, 0, os.SEEK_END)
            for _ in range(_RECORDS):
                try:
                    record = self._read(self._file, _RECORD_BYTES)
                except BrokenPipeError:  # EPIPE: the log went round; the next record is the oldest that is left
                    self._records.overrun()
                    continue
                if not record:
                    break
                lines += self._records.feed(record + b"\n") + self._records.end()
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            raise UnreadableError(_why(error)) from None
        return lines

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class LogFile:
    """A file that grows: dmesg's text, or of the form `form`.

    From its end on; one that comes later, or is begun anew, from its beginning. Only a regular file is one: anything
    else is not_supported, and is not waited for. It is as trustworthy as whoever writes it.
    """

    def __init__(self, path: Path, form: Form | None = None) -> None:
        self._path = path
        self._file = -1
        self._form: Form = DmesgText() if form is None else form
        with contextlib.suppress(OSError):
            self._open()
            size = os.lseek(self._file, 0, os.SEEK_END)
            os.lseek(self._file, max(0, size - LINE_BYTES - 1), os.SEEK_SET)
            self._form.begin(os.read(self._file, min(size, LINE_BYTES + 1)))

    @property
    def lost(self) -> int | None:
        """Records lost by their sequence numbers; None where the form has none."""
        return self._form.lost

    def read(self) -> list[KernelLine]:
        lines: list[KernelLine] = []
        try:
            if self._file < 0:
                self._open()
            lines += self._rest()
            now, opened = self._path.stat(), os.fstat(self._file)
            is_read = os.lseek(self._file, 0, os.SEEK_CUR) >= opened.st_size
            if is_read and (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino):
                lines += self._form.end()
                self.close()
                self._open()
                lines += self._rest()
        except OSError as error:
            if not lines:
                raise UnreadableError(_why(error)) from None
        return lines

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        file = os.open(self._path, _OPEN)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EOPNOTSUPP, "no regular file")
        self._file = file
        self._form.begin()

    def _rest(self) -> list[KernelLine]:
        lines: list[KernelLine] = []
        if os.fstat(self._file).st_size < os.lseek(self._file, 0, os.SEEK_CUR):
            lines += self._form.end()
            self._form.begin()
            os.lseek(self._file, 0, os.SEEK_SET)
        data = os.read(self._file, _ROUND_BYTES)
        # A record may have been read before its continuation lines are written. It waits for one round at most.
        return lines + (self._form.feed(data) if data else self._form.end())


_JOURNALCTL = ("journalctl", "-k", "-f", "-n", "1", "-o", "json", "--no-pager")


class Journal:
    """`journalctl` following the kernel's messages, in a child process that `close` ends; started at the first read.

    Its first line is an old one, and shows that there is something to read: who has no rights hears nothing, for ever.
    The first read waits for it, a second at most.
    """

    lost: int | None = None

    def __init__(self, command: Sequence[str] = _JOURNALCTL) -> None:
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._tail = LineBuffer()
        self._speaks = False

    def read(self) -> list[KernelLine]:
        try:
            if self._child is None:
                self._start()
            data = os.read(self._output, _ROUND_BYTES)
        except BlockingIOError:
            if self._speaks:
                return []
            raise UnreadableError("denied") from None
        except OSError as error:
            raise UnreadableError(_why(error)) from None
        if not data:  # it has ended: no journal, or none that we may read
            raise UnreadableError("failed")
        lines = self._tail.feed(data)
        if lines and not self._speaks:
            self._speaks = True
            del lines[0]
        parsed = (parse_journal(raw) for raw in lines)
        return [line for line in parsed if line is not None]

    def close(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()

    def _start(self) -> None:
        null = subprocess.DEVNULL
        self._child = subprocess.Popen(self._command, stdin=null, stdout=subprocess.PIPE, stderr=null)
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        os.set_blocking(self._output, False)
        first = select.poll()
        first.register(self._output, select.POLLIN)
        first.poll(1000 * _FIRST_LINE_S)


def _why(error: OSError) -> Reason:
    if isinstance(error, PermissionError):
        return "denied"
    if error.errno == errno.EOPNOTSUPP:
        return "not_supported"
    return "absent" if isinstance(error, FileNotFoundError | NotADirectoryError) else "failed"


def find_log(root: Path) -> Source:
    """What there is below `root`: dev/kmsg, the device or a file of its records as a simulated board writes it.

    In its place the journal, where `root` is this machine's own and the device may not be read, or the kernel.log of
    a board that has no dev/kmsg. What is not there yet is waited for as a file.
    """
    path = root / "dev" / "kmsg"
    try:
        status = path.stat()
    except OSError:
        with contextlib.suppress(OSError):  # a root that may not be entered
            if (root / "SIMULATED").is_file() and (root / "kernel.log").is_file():
                return LogFile(root / "kernel.log")
        return LogFile(path, KmsgRecords())
    if not (stat.S_ISCHR(status.st_mode) and status.st_rdev == _KMSG):
        return LogFile(path, KmsgRecords())
    kmsg = Kmsg(root)
    try:
        kmsg.read()
    except UnreadableError as error:
        if error.reason == "denied" and root.resolve() == Path("/"):
            return Journal()
    return kmsg
