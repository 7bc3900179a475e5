"""A file that is rewritten: all or nothing, whatever happens meanwhile."""

import contextlib
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """A reader, or a crash, sees the old file or the new one. Raises OSError, with nothing left lying about."""
    fresh = path.with_suffix(".tmp")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
