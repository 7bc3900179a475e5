"""A run that is being written, read as it grows: a bounded piece at a time, and nothing kept."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cadenza.readings import Sample
from cadenza.record import Record
from cadenza.store.rundir import RECORDS
from cadenza.store.telemetry import TELEMETRY, Header, Lines

PIECE_BYTES = 4 << 20
_LINE_BYTES = 16 << 20  # the longest record that we know of has 2 MB


class Tail:
    """The whole lines of one file that is appended to. A line that is cut off waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self._skips = False

    def read(self, limit: int = PIECE_BYTES) -> tuple[list[bytes], bool]:
        """The next lines, out of `limit` bytes at most, and whether there was more. None where there is no file.

        A line of more than 16 MiB is no line of ours and is left out.
        """
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._at)
                data = file.read(limit)
        except OSError:
            return [], False
        self._at += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        if self._skips and lines:
            self._skips = False
            del lines[0]
        if self._skips or len(rest) > _LINE_BYTES:
            self._skips, rest = True, b""
        self._rest = rest
        return lines, len(data) == limit


class Fresh(NamedTuple):
    """What has been added since the last read. `behind`: there is more already."""

    records: list[Record]
    samples: list[Sample]
    behind: bool


class RunTail:
    """Records of all workers, and telemetry, of the run in `folder`, from their beginning. Lines that are none of ours,
    or cut off by a kill, are left out."""

    def __init__(self, folder: Path) -> None:
        self.telemetry = Header()
        self._folder = folder
        self._at_header = True
        self._records: dict[str, Tail] = {}
        self._samples = Tail(folder / TELEMETRY)
        self._lines = Lines()
        self._record = msgspec.json.Decoder(Record)

    def read(self) -> Fresh:
        """The next piece of each file."""
        behind = False
        records: list[Record] = []
        for name in (RECORDS, *sorted(path.name for path in self._folder.glob("records-*.jsonl"))):
            lines, more = self._records.setdefault(name, Tail(self._folder / name)).read()
            behind |= more
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError, UnicodeError):  # the first line is the schema's
                    records.append(self._record.decode(line))
        lines, more = self._samples.read()
        return Fresh(records, list(self._decode(lines)), behind or more)

    def _decode(self, lines: list[bytes]) -> Iterator[Sample]:
        for line in lines:
            if self._at_header:
                self._at_header = False
                with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
                    self.telemetry = msgspec.json.decode(line, type=Header)
            else:
                yield from self._lines.decode(line)[0]
