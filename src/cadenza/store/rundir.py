"""The files of one run: written so that a kill loses nothing that was measured, read back so that nothing is missed.

manifest.json    rewritten whole (through a rename) whenever a point begins or ends
records.jsonl    line 1 the schema, then a record a line, each handed to the kernel as the request ends
records-1.jsonl  the same of worker 1, records-2.jsonl of worker 2, …, where the load came from several processes
telemetry.jsonl  what was seen of the machine meanwhile (`store.telemetry`)
summary.json     rebuilt from those above at any time, byte for byte
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cadenza.errors import StoreError, UsageError
from cadenza.record import SCHEMA, PointStatus, Record
from cadenza.store.files import replace_file
from cadenza.store.manifest import Manifest, RunStatus

_RESERVE, _RESERVE_BYTES = ".room-for-the-end", 32 << 10
MANIFEST, RECORDS, SUMMARY = "manifest.json", "records.jsonl", "summary.json"


class _Header(msgspec.Struct):
    schema: int
    kind: str = "cadenza-records"


class RecordFile:
    """One worker's records, appended; a context manager. Raises StoreError, with what to do, if the disk refuses."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._path = folder / (RECORDS if worker == 0 else f"records-{worker}.jsonl")
        self._encoder = msgspec.json.Encoder()
        try:
            self.fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{folder}: cannot write: {error.strerror}") from None
        if os.fstat(self.fd).st_size == 0:
            self._write_line(self._encoder.encode(_Header(SCHEMA)))

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    def append(self, record: Record) -> None:
        """Hand one record to the kernel."""
        self._write_line(self._encoder.encode(record))

    def _write_line(self, line: bytes) -> None:
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError as error:
            raise StoreError(_no_room(self._path, error)) from None


Mark = dict[str, int]


class RunWriter:
    """A run being written. Holds a lock on its records for as long as it lives, which readers can see."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._encoder = msgspec.json.Encoder()
        self._records = RecordFile(path, 0)
        with contextlib.suppress(OSError):
            (path / _RESERVE).write_bytes(bytes(_RESERVE_BYTES))
        fcntl.flock(self._records.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.save_manifest()

    def append(self, record: Record) -> None:
        """Write one record. Raises StoreError, with what to do, where the disk does not take it."""
        self._records.append(record)

    def open_share(self, worker: int) -> RecordFile:
        """The record file of one worker, for that worker's process."""
        return RecordFile(self.path, worker)

    def mark(self) -> Mark:
        """Where the record files end now."""
        return {file.name: file.stat().st_size for file in _record_files(self.path)}

    def read_since(self, mark: Mark) -> Iterator[Record]:
        """What has been written after `mark`; a line that a full disk or a killed worker cut off is left out."""
        decoder = msgspec.json.Decoder(Record)
        for file in _record_files(self.path):
            with file.open("rb") as lines:
                lines.seek(mark.get(file.name, 0))
                if file.name not in mark:
                    next(lines, b"")
                for line in lines:
                    with contextlib.suppress(msgspec.MsgspecError):
                        yield decoder.decode(line)

    def save_manifest(self) -> None:
        """Replace the manifest by the present one."""
        _replace(self.path / MANIFEST, _pretty(self._encoder.encode(self.manifest)))

    def save_summary(self, data: bytes) -> None:
        """Replace the summary."""
        _replace(self.path / SUMMARY, data)

    def close(self, status: RunStatus) -> None:
        """The run is over, in this way. On a full disk too: the room for saying so was taken at the start."""
        self.manifest.status = status
        with contextlib.suppress(OSError):
            (self.path / _RESERVE).unlink()
        try:
            self.save_manifest()
        finally:
            self._records.__exit__()


class Run:
    """A run read back. `broken_lines` counts lines that are no record: at most the last one, after a kill."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.broken_lines = 0

    def records(self) -> Iterator[Record]:
        """The records, worker after worker, of each in the order in which the requests ended."""
        decoder = msgspec.json.Decoder(Record)
        self.broken_lines = 0
        for file in _record_files(self.path):
            with file.open("rb") as lines:
                if not (head := next(lines, b"")):
                    continue  # made, and killed before the first line
                _check_header(self.path, head)
                for line in lines:
                    try:
                        yield decoder.decode(line)
                    except msgspec.MsgspecError:
                        self.broken_lines += 1


def _record_files(folder: Path) -> list[Path]:
    return [folder / RECORDS, *sorted(folder.glob("records-*.jsonl"))]


def create_run(path: Path, manifest: Manifest) -> RunWriter:
    """Make the directory and begin to write. A directory with anything in it is refused (UsageError), never reused."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        taken = any(path.iterdir())
    except FileExistsError:
        raise UsageError(f"--out {path} is a file: name a folder that is new or empty") from None
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}: name a folder that can be written") from None
    if taken:
        raise UsageError(f"--out {path} is not empty, and nothing is overwritten: name another folder, or remove it")
    return RunWriter(path, manifest)


def read_run(path: Path) -> Run:
    """Open a run, whole or broken off. A run that says `running`, but that nobody writes, is marked interrupted."""
    try:
        data = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path} is not a run: there is no {MANIFEST} in it (`cadenza ls` lists runs)") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        if (schema := msgspec.json.decode(data, type=_Header).schema) > SCHEMA:
            raise StoreError(f"{path} was written by a newer cadenza (schema {schema}, this one reads {SCHEMA})")
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path / MANIFEST} is damaged: {error}") from None
    if manifest.status is RunStatus.RUNNING and not _is_written(path):
        manifest.status = RunStatus.INTERRUPTED
        for point in manifest.points:
            if point.status is PointStatus.RUNNING:
                point.status = PointStatus.INTERRUPTED
    return Run(path, manifest)


def list_runs(folder: Path) -> list[Path]:
    """Directories below `folder` that hold a manifest, by name (which begins with the date)."""
    return sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))


def _is_written(path: Path) -> bool:
    """Whether a living process holds the lock of `RunWriter`: the kernel drops it even after kill -9."""
    with contextlib.suppress(OSError), (path / RECORDS).open("rb") as records:
        try:
            fcntl.flock(records, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _check_header(path: Path, line: bytes) -> None:
    try:
        schema = msgspec.json.decode(line, type=_Header).schema
    except msgspec.MsgspecError:
        raise StoreError(f"{path / RECORDS} does not begin with a schema line: it is not a record file") from None
    if schema > SCHEMA:
        raise StoreError(f"{path} was written by a newer cadenza (schema {schema}, this one reads {SCHEMA})")


def _replace(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        raise StoreError(_no_room(path, error)) from None


def _no_room(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror}. What was measured until now is kept there; make room and run again"


def _pretty(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=1) + b"\n"
