"""Dataset files on disk: read once, with every failure as a sentence that names the file, the line and the remedy."""

import hashlib
import json
import stat
from pathlib import Path

from cadenza.errors import UsageError

MAX_FILE_BYTES = 2 << 30


def read_dataset(path: Path) -> bytes:
    """The file's bytes, a byte-order mark removed, known to be UTF-8. Raises `UsageError`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a regular file: give the path of a dataset file")
        if status.st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} has {status.st_size:,} bytes, more than {MAX_FILE_BYTES:,}: cut it to a sample")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from None
    except ValueError:  # a NUL in the path
        raise UsageError(f"{str(path)!r} is not a path") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        # Checked here, once: a decoder's own complaint would not say where.
        if not data.isascii():
            data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = line_of(data, error.start)
        raise UsageError(f"{path}, line {line}: not UTF-8 text: convert it, e.g. with iconv") from None
    if not data.strip():
        raise UsageError(f"{path} is empty: give a file with at least one prompt")
    return data


def line_of(data: bytes, offset: int) -> int:
    """The 1-based number of the line that holds byte `offset`."""
    return data.count(b"\n", 0, offset) + 1


def mend_surrogates(data: bytes) -> bytes | None:
    """JSON in which half a surrogate pair (a cut emoji) becomes `?`; None where it is not JSON even so.

    Published scrapes may hold such halves; Python's own decoder lets them pass, strict ones rightly do not.
    """
    try:
        return json.dumps(json.loads(data), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None


def hash_dataset(path: Path) -> str:
    """SHA-256 of the file, in hex, so that a manifest says which dataset it was. Raises `UsageError`."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from None
