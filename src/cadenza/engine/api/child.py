"""The embedded engine in a process of its own, so that serving takes no time from whoever measures it."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from cadenza.errors import CadenzaError
from cadenza.record import printable

_UP_WITHIN_S = 15.0
_DOWN_WITHIN_S = 5.0
_LAUNCH: tuple[str, ...] = (sys.executable, "-m", "cadenza")


class Child(NamedTuple):
    """A running engine: where it listens, and its process."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def start(profile: str, speed: float = 1.0, timing: str | None = None) -> Iterator[Child]:
    """An engine on a free loopback port, stopped at the end of the block; `timing` names its law, None: its own choice.

    It watches its standard input and ends with it, so it outlives nobody, not even a parent that is killed.
    CadenzaError, with the engine's own last words, where it is not up within 15 s.
    """
    command = [*_LAUNCH, "engine", profile, "--port", "0", "--speed", repr(speed), "--exit-with-parent"]
    if timing is not None:
        command += ["--timing", timing]
    # The caller's key is for servers out there; this one is ours alone.
    environment = {name: value for name, value in os.environ.items() if name != "CADENZA_ENGINE_API_KEY"}
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the caller, who still wants answers for the report
        )
        try:
            yield Child(_url(process, complaints), process)
        finally:
            _end(process)


def _url(process: subprocess.Popen[bytes], complaints: IO[bytes]) -> str:
    line = _first_line(process)
    if line is not None:
        try:
            return str(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError):
            pass
    process.kill()
    process.wait()
    complaints.seek(0)
    words = complaints.read().decode(errors="replace").strip().splitlines()
    reason = printable(words[-1]) if words else "no error message"
    raise CadenzaError(f"the embedded engine did not come up within {_UP_WITHIN_S:.0f} s: {reason}")


def _first_line(process: subprocess.Popen[bytes]) -> bytes | None:
    """The first line of its output; None where it ends, or the time is up, without one."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + _UP_WITHIN_S
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            data = os.read(descriptor, 4096)
            if not data:
                return None
            line += data
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    for stop in (process.terminate, process.kill):
        try:
            process.wait(_DOWN_WITHIN_S)
            break
        except subprocess.TimeoutExpired:
            stop()
    process.wait()
    process.stdout.close()
