"""The servers as child processes: none outlives the command, and the relevant lines of their logs are passed on."""

import ctypes
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, NamedTuple

from cadenza.errors import CadenzaError

_STOP_S = 15.0
_JOIN_S = 1.0
# logfmt: key=value key="value with \\" in it"
_FIELD = re.compile(r'(\w+)=("(?:\\.|[^"\\])*"|\S*)')
_ESCAPED = re.compile(r"\\(.)")
_READY = {"prometheus": "Server is ready to receive web requests", "alertmanager": "Listening"}
# Logged for our own SIGTERM by Prometheus 2 and 3.
_SIGNALLED = ("Received SIGTERM", "Received an OS signal")
_PR_SET_PDEATHSIG = 1

Report = Callable[[str], None]


class ServerCommand(NamedTuple):
    """The command line of a server, its name and its URL."""

    name: str
    arguments: list[str]
    url: str


def start(server: ServerCommand) -> "subprocess.Popen[str]":
    """Start the process. CadenzaError: it cannot be started."""
    try:
        return subprocess.Popen(
            server.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C reaches this process only, which passes it on once.
            start_new_session=True,
            preexec_fn=_end_with_us(),
        )
    except OSError as error:
        raise CadenzaError(f"{server.arguments[0]} could not be started: {error.strerror}") from None


def _end_with_us() -> Callable[[], None] | None:
    """Runs in the child: SIGTERM it when this process ends, killed or with its terminal. Linux only."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def request_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return request_signal


def end(processes: list["subprocess.Popen[str]"]) -> None:
    """Send SIGTERM to all, wait up to 15 s for them to save their data, then SIGKILL those left; a second Ctrl-C does
    so at once."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + _STOP_S
    try:
        for process in processes:
            process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


class Log:
    """Reads a server's stderr to its end on a thread of its own, so that the pipe never fills."""

    def __init__(self, server: ServerCommand, lines: IO[str] | None, report: Report) -> None:
        self._server, self._lines, self._report = server, lines, report
        self._messages: deque[str] = deque(maxlen=50)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has been read to its end, at most 1 s."""
        self._thread.join(_JOIN_S)

    def explain(self) -> str:
        """The most likely cause of an unexpected exit."""
        text = "\n".join(self._messages)
        if "address already in use" in text:
            address = self._server.url.removeprefix("http://")
            return (
                f"{address} is in use by another {self._server.name} (Debian's package starts one: "
                f"`sudo systemctl disable --now prometheus prometheus-alertmanager`) or another program. Stop that, "
                f"or take another address: `cadenza observe init DIR --{self._server.name} 127.0.0.1:PORT`"
            )
        if "lock DB directory" in text:
            return "another Prometheus has its data folder open: stop that one first"
        if re.search("config|rule", text, re.IGNORECASE):
            return "its messages are above; `cadenza observe check DIR` finds configuration errors"
        return "its messages are above" if text else "it logged no error"

    def _read(self) -> None:
        if self._lines is None:
            return
        with self._lines:
            for line in self._lines:
                if (message := log_message(self._server, line)) is not None:
                    self._messages.append(message)
                    self._report(message)


def log_message(server: ServerCommand, line: str) -> str | None:
    """What to pass on of a line of a server's log: warnings, errors, readiness, lines in no log format; else None."""
    fields = {key: _unquote(value) for key, value in _FIELD.findall(line)}
    if "level" not in fields:
        return f"{server.name}: {line.strip()}" if line.strip() else None
    level, message = fields["level"].lower(), fields.get("msg", "")
    if level in ("warn", "error") and not message.startswith(_SIGNALLED):
        where = fields.get("scrape_pool") or fields.get("component")
        parts = [f"{message} ({where})" if where else message, fields.get("err") or fields.get("error") or ""]
        return f"{server.name}: {level}: " + ": ".join(part.strip() for part in parts if part.strip())
    if message.startswith(_READY[server.name]):
        return f"{server.name} is ready at {server.url}"
    return None


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    return _ESCAPED.sub(lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), value[1:-1])
