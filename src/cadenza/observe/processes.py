"""The servers as processes of ours: none outlives us, and of their logs is told what matters."""

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
# Of the signal that we sent: Prometheus 2's words, and 3's.
_ASKED = ("Received SIGTERM", "Received an OS signal")
_PR_SET_PDEATHSIG = 1

Say = Callable[[str], None]


class Server(NamedTuple):
    """A program to start, what it is called, and where it will be."""

    name: str
    arguments: list[str]
    url: str


def start(server: Server) -> "subprocess.Popen[str]":
    """Start it. CadenzaError: it cannot be."""
    try:
        return subprocess.Popen(
            server.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is ours to pass on, once.
            start_new_session=True,
            preexec_fn=_end_with_us(),
        )
    except OSError as error:
        raise CadenzaError(f"{server.arguments[0]} could not be started: {error.strerror}") from None


def _end_with_us() -> Callable[[], None] | None:
    """For the child to do: SIGTERM when we have gone, killed or with the terminal. Only Linux has that."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask


def end(processes: list["subprocess.Popen[str]"]) -> None:
    """Ask all to end, give them time to write their data down, and end those by force that have not, or when Ctrl-C is
    pressed once more."""
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
    """What a server says on stderr, read on a thread of its own to the end, whether or not anybody listens."""

    def __init__(self, server: Server, lines: IO[str] | None, say: Say) -> None:
        self._server, self._lines, self._say = server, lines, say
        self._told: deque[str] = deque(maxlen=50)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Until it has been read to its end, or a second."""
        self._thread.join(_JOIN_S)

    def explain(self) -> str:
        """What an end by itself most often means."""
        told = "\n".join(self._told)
        if "address already in use" in told:
            address = self._server.url.removeprefix("http://")
            return (
                f"{address} is taken, by another {self._server.name} (Debian's package starts one: "
                f"`sudo systemctl disable --now prometheus prometheus-alertmanager`) or another program. Stop that, "
                f"or take another address: `cadenza observe init DIR --{self._server.name} 127.0.0.1:PORT`"
            )
        if "lock DB directory" in told:
            return "another Prometheus has its data folder open: stop that one first"
        if re.search("config|rule", told, re.IGNORECASE):
            return "what it said stands above; `cadenza observe check DIR` finds such mistakes"
        return "what it said stands above" if told else "it said nothing"

    def _read(self) -> None:
        if self._lines is None:
            return
        with self._lines:
            for line in self._lines:
                if (told := tell(self._server, line)) is not None:
                    self._told.append(told)
                    self._say(told)


def tell(server: Server, line: str) -> str | None:
    """A line of a server's log as it is told: warnings and errors, that it is ready, and what is no log line."""
    fields = {key: _unquote(value) for key, value in _FIELD.findall(line)}
    if "level" not in fields:
        return f"{server.name}: {line.strip()}" if line.strip() else None
    level, message = fields["level"].lower(), fields.get("msg", "")
    if level in ("warn", "error") and not message.startswith(_ASKED):
        where = fields.get("scrape_pool") or fields.get("component")
        parts = [f"{message} ({where})" if where else message, fields.get("err") or fields.get("error") or ""]
        return f"{server.name}: {level}: " + ": ".join(part.strip() for part in parts if part.strip())
    if message.startswith(_READY[server.name]):
        return f"{server.name} is ready at {server.url}"
    return None


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    return _ESCAPED.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), value[1:-1])
