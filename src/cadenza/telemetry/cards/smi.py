"""What rocm-smi and amd-smi have in common: JSON somewhere in a text, and a child process that may never end.

The parsers are `rocm_smi.parse` and `amd_smi.parse`; both are pure and take any text whatever. Running a tool is the
fallback for where sysfs is out of sight: it takes a second, wakes sleeping cards, and hangs with a crashed driver.
"""

import json
import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from cadenza.clock import NS_PER_S, Clock, MonotonicClock
from cadenza.readings import Collected, Collector, Missing, Reading, Reason
from cadenza.record import printable
from cadenza.telemetry.root import UnreadableError, read_bytes

Tool = Literal["rocm_smi", "amd_smi"]
Parse = Callable[[str], Collected]

# 64 partitions of 15 to 25 KB each must fit.
OUTPUT_BYTES = 4 << 20
_LABEL_CHARS = 128
_SAID_BYTES = 4096
_TICK_MS = 100
_LAST_WORDS_TICKS = 10
_FACTS_S = 600.0
_CARDS = 1024
_ROOT_TRIES = 4096
_ALL_ONES = frozenset({2.0**32 - 1, 2.0**64 - 1})
_NUMBER = re.compile(r"[+-]?\d{1,40}(\.\d{1,40})?", re.ASCII)
_ADDRESS = re.compile(r"0{0,4}([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)
_CARD = re.compile(r"card\d{1,4}", re.ASCII)
_ROOT = re.compile(r"^[\[{]", re.MULTILINE)


def find_roots(text: str) -> list[object] | Reason:
    """The JSON objects and lists that begin a line, each where the one before has ended; other lines are passed over.

    Without any: failed where no line begins like JSON, malformed where one does. The work is bounded by the text's
    length, whatever stands in it.
    """
    text = text[:OUTPUT_BYTES]
    decoder = json.JSONDecoder()
    roots: list[object] = []
    at, left, seen = 0, 2 * len(text) + 1024, False
    for _ in range(_ROOT_TRIES):
        start = _ROOT.search(text, at)
        if start is None or left <= 0:
            break
        begin = start.start()
        try:
            value, at = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            left -= error.pos - begin
        except (ValueError, RecursionError):  # a number of 5,000 digits, a thousand brackets
            left -= len(text) - begin
        else:
            if isinstance(value, dict) or (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
                roots.append(value)
            continue
        seen = seen or text.startswith(("{", "[{", "[\n"), begin)
        at = begin + 1
    if roots:
        return roots
    return "malformed" if seen else "failed"


def sniff(text: str) -> Tool | None:
    """Whose text it is, by its shape; None: neither's, or only an error message."""
    roots = find_roots(text)
    if isinstance(roots, str):
        return "rocm_smi" if re.search(r"^device,", text, re.MULTILINE) else None
    for root in roots:
        if isinstance(root, list):
            return "amd_smi" if root else None
        keys = fold(root)
        if any(_CARD.fullmatch(key) for key in keys):
            return "rocm_smi"
        if keys.keys() & {"gpu_data", "gpu", "error"}:
            return "amd_smi"
    return None


def fold(value: object) -> dict[str, object]:
    """By lower-case key without a colon at its end: names changed case over versions, and clocks keep their colon.

    Empty for what is no object.
    """
    if not isinstance(value, dict):
        return {}
    return {key.strip().rstrip(":").lower(): member for key, member in value.items() if isinstance(key, str)}


def number(value: object) -> float | Reason:
    """A finite number, given as one or as decimal text; else why it is none."""
    if value is None:
        return "failed"
    if isinstance(value, str):
        return _number_of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "malformed"
    try:
        parsed = float(value)
    except OverflowError:
        return "out_of_range"
    if not isfinite(parsed):
        return "out_of_range"
    return "not_supported" if parsed in _ALL_ONES else parsed


def _number_of_text(text: str) -> float | Reason:
    if _NUMBER.fullmatch(text):
        return number(float(text))
    word = text[:20].lower()
    if word == "none":  # Python's, where the tool could not read
        return "failed"
    return "not_supported" if not word or word.startswith(("n/a", "unsupported", "not supported")) else "malformed"


def scaled(value: float, scale: float) -> float:
    """`value · scale`; by division where the scale is 1/100 or 1/1000, so that 57 % is 0.57."""
    return value * scale if scale >= 1 else value / round(1 / scale)


def pci_address(value: object) -> str | None:
    """0000:43:00.0 of any spelling (upper case, a domain of eight digits); None where it is no address."""
    match = _ADDRESS.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return None if match is None else "{}:{}:{}.{}".format(*match.groups())


def unique_id(value: object) -> str:
    """Hex digits as the kernel has them, in lower case without 0x; empty where there is none, or 0 for none."""
    digits = label(value).lower().removeprefix("0x")
    return digits if digits.strip("0") else ""


def label(value: object) -> str:
    """A text as a label: one printable line; empty where the tool has none."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
        return str(value)
    if not isinstance(value, str) or value.strip().lower() in ("n/a", "none", "unknown"):
        return ""
    return printable(value, _LABEL_CHARS)


class Finished(NamedTuple):
    """A child that has ended: its exit code (negative: by that signal) and output; `whole` false: there was more."""

    code: int
    stdout: bytes
    stderr: bytes
    whole: bool = True


class ToolChild(Protocol):
    """A tool's process. Neither method blocks for longer than its timeout."""

    def wait(self, timeout_s: float) -> Finished | None:
        """Its output and exit code; None if it has not ended in time."""
        ...

    def kill(self) -> None:
        """Kill it. One that sleeps in a driver (state D) goes when the driver lets it."""
        ...


Launch = Callable[[Sequence[str]], ToolChild]


class Process:
    """`ToolChild` as a process of its own session, read and reaped by a thread: nobody else ever waits for it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()  # between reaping and killing: a process id is used again once it is reaped
        self._ended = threading.Event()
        self._finished: Finished | None = None
        threading.Thread(target=self._follow, name=f"read {Path(command[0]).name}", daemon=True).start()

    def wait(self, timeout_s: float) -> Finished | None:
        self._ended.wait(timeout_s)
        return self._finished

    def kill(self) -> None:
        with self._lock:
            if self._process.returncode is None:
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)  # what it started too, which may hold its output
                except (ProcessLookupError, PermissionError):
                    pass

    def _follow(self) -> None:
        pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        kept = {pipe.fileno(): bytearray() for pipe in pipes}
        open_ = set(kept)
        poll = select.poll()
        for descriptor in kept:
            poll.register(descriptor, select.POLLIN)
        code, whole, ticks = None, True, _LAST_WORDS_TICKS
        # A grandchild may hold the pipes for ever: once the child has ended, one silent tick or ten loud ones will do.
        while code is None or (open_ and ticks):
            ready = poll.poll(_TICK_MS)
            for descriptor, _ in ready:
                data = os.read(descriptor, 1 << 16)
                if not data:
                    poll.unregister(descriptor)
                    open_.discard(descriptor)
                elif len(kept[descriptor]) + len(data) <= OUTPUT_BYTES:
                    kept[descriptor] += data
                elif whole:
                    whole = False
                    self.kill()
            if code is None:
                with self._lock:
                    code = self._process.poll()
            else:
                ticks = ticks - 1 if ready else 0
        stdout, stderr = (bytes(data) for data in kept.values())
        for pipe in pipes:
            pipe.close()
        self._finished = Finished(code, stdout, stderr, whole)
        self._ended.set()


class SmiCollector(Collector):
    """One tool, run at most every `every_s` and read by `parse`; between two runs the last one's values are returned.

    `collect` waits for a run as long as `timeout_s`. Then the child is killed, and until it is really gone every round
    answers at once with a timeout, and no other child is started: `stuck_s` is how long that has lasted. `message`: the
    tool's last error, one line. `facts`: a second command (amd-smi static), run first and then every ten
    minutes; its text is put before the other's. A card that was there and is not in a text any more is reported as
    down, until it comes back.
    """

    def __init__(
        self,
        command: Sequence[str],
        parse: Parse,
        *,
        name: str,
        facts: Sequence[str] | None = None,
        timeout_s: float = 20.0,
        every_s: float = 5.0,
        clock: Clock | None = None,
        launch: Launch = Process,
    ) -> None:
        self.name = name
        self.message = ""
        self._command = tuple(command)
        self._facts = None if facts is None else tuple(facts)
        self._parse = parse
        self._timeout_s = timeout_s
        self._every_s = every_s
        self._clock = clock or MonotonicClock()
        self._launch = launch
        self._child: ToolChild | None = None  # one that was killed and is not gone yet
        self._began_ns = 0
        self._latest = Collected([], [])
        self._latest_ns: int | None = None
        self._facts_text = ""
        self._facts_ns: int | None = None
        self._seen: dict[str, None] = {}

    @property
    def stuck_s(self) -> float | None:
        """Since the start of a child that was killed and is still there; None: there is none."""
        return None if self._child is None else self._since_s(self._began_ns)

    def collect(self) -> Collected:
        if self._child is not None and self._child.wait(0.0) is None:
            return self._fail("timeout")
        self._child = None
        if self._latest_ns is None or self._since_s(self._latest_ns) >= self._every_s:
            self._latest = self._refresh()
            self._latest_ns = self._clock.now_ns()
        return self._latest

    def _refresh(self) -> Collected:
        try:
            self._refresh_facts()
            text = None if self._child is not None else self._run(self._command)
        except FileNotFoundError:
            return self._fail("absent")
        except PermissionError:
            return self._fail("denied")
        except OSError:
            return self._fail("failed")
        if text is None:
            return self._fail("malformed" if self._child is None else "timeout")
        collected = self._parse(f"{self._facts_text}\n{text}")
        # Facts alone, which are up to ten minutes old, are no sign of a working tool.
        if not any(reading.name == "gpu_up" for reading in collected.readings):
            if "permission denied" in self.message.lower():
                return self._fail("denied")
            return Collected([], collected.missing) if collected.missing else self._fail("failed")
        return self._add_lost(collected)

    def _refresh_facts(self) -> None:
        if self._facts is None or (self._facts_ns is not None and self._since_s(self._facts_ns) < _FACTS_S):
            return
        self._facts_ns = self._clock.now_ns()
        facts = self._run(self._facts)
        if facts is not None and isinstance(find_roots(facts), list):
            self._facts_text = facts

    def _run(self, command: Sequence[str]) -> str | None:
        """What one run wrote; None: it was killed (and is `_child` until it is gone), or wrote too much.

        The exit code decides nothing: rocm-smi's is 0 when it fails, amd-smi's may not be where one card of many does.
        """
        self._began_ns = self._clock.now_ns()
        child = self._launch(command)
        finished = child.wait(self._timeout_s)
        if finished is None:
            child.kill()
            self._child = child
            self.message = f"no answer within {self._timeout_s:g} s"
            return None
        words = finished.stderr.decode(errors="replace").strip() or finished.stdout[:_SAID_BYTES].decode(
            errors="replace"
        )
        self.message = printable(words.strip().rpartition("\n")[2]) if finished.code or finished.stderr else ""
        return finished.stdout.decode(errors="replace") if finished.whole else None

    def _add_lost(self, collected: Collected) -> Collected:
        """`collected`, with `gpu_up` 0 for cards that were up before and are not in this text."""
        up = [reading.labels[0][1] for reading in collected.readings if reading.name == "gpu_up"]
        there = {*up, *(missing.gpu for missing in collected.missing if missing.reason != "absent")}
        down = [Reading("gpu_up", (("gpu", gpu), ("vendor", "amd")), 0.0) for gpu in self._seen if gpu not in there]
        self._seen.update(dict.fromkeys(up[: max(0, _CARDS - len(self._seen))]))
        return Collected([*collected.readings, *down], collected.missing)

    def _fail(self, reason: Reason) -> Collected:
        return Collected([], [Missing(self.name, "", reason)])

    def _since_s(self, ns: int) -> float:
        return (self._clock.now_ns() - ns) / NS_PER_S


class TextCollector(Collector):
    """A text that somebody else writes (`--smi-json FILE`), read anew each round, by its tool's parser."""

    def __init__(self, path: Path, parsers: Mapping[Tool, Parse]) -> None:
        self.name = "smi"
        self._path = path
        self._parsers = parsers

    def collect(self) -> Collected:
        try:
            text = read_bytes(self._path, OUTPUT_BYTES).decode(errors="replace")
        except UnreadableError as error:
            return Collected([], [Missing(self.name, "", error.reason)])
        tool = sniff(text)
        if tool is None:
            return Collected([], [Missing(self.name, "", "malformed" if text.strip() else "failed")])
        return self._parsers[tool](text)
