"""A server whose every token time is known, for as long as a `with` block lasts. Linux, and a C compiler.

    with TruthServer(ttft_ms=20, itl_ms=10, tokens=128, core=0) as server:
        ...                                   # drive server.url
        print(server.truth().ttft_ms.mean)    # what really happened

By hand: `python bench/truth_server.py PORT [TTFT_MS ITL_MS TOKENS]` stays until interrupted; without PORT it starts
one, asks it for one answer, prints what the server says of it and ends. How the server works: bench/truth/README.md.
"""

import hashlib
import http.client
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "bench" / "truth" / "truthserver.c"
BUILD = ROOT / "build"
UP_WITHIN_S = 5.0
# Taken once: a process that has pinned itself would see no core but its own.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Distribution(msgspec.Struct, frozen=True):
    """Summary of `n` measured times, ms; percentiles by linear interpolation."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Truth(msgspec.Struct, frozen=True):
    """What the server did since it started or was reset, by its own clock (GET /truth).

    ttft_ms: first token handed to the kernel - request read, per request. itl_ms: gaps between the tokens of a request,
    pooled. late_ms: token handed to the kernel - its due time: where this is large the server was the bottleneck and a
    comparison says nothing. None where there is no sample. chunks: token events. max_concurrent: greatest number of
    requests in flight. span_s: first request to last token. cpu_s: the server's CPU time since it started.
    """

    requests: int
    done: int
    aborted: int
    chunks: int
    max_concurrent: int
    span_s: float
    cpu_s: float
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    late_ms: Distribution | None


def core_number(nth: int) -> int | None:
    """The number of the nth core this process may use, counted round where there are fewer; None off Linux."""
    return CORES[nth % len(CORES)] if CORES else None


def pin(core: int) -> None:
    """Keep this process, and what it starts, on the nth core it may use."""
    number = core_number(core)
    if number is not None:
        os.sched_setaffinity(0, {number})


def pinned(core: int | None) -> Callable[[], None] | None:
    """`preexec_fn` that pins a child to the nth core; None pins nothing."""
    return None if core is None else lambda: pin(core)


def cpu_s() -> float:
    """User and system CPU time of this process so far, s."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def compiled() -> Path:
    """The server's program, compiled into build/ once. Exits with a sentence where that cannot be done."""
    if not sys.platform.startswith("linux"):
        sys.exit("the truth server runs on Linux only: it waits by epoll, to the nanosecond")
    source = SOURCE.read_bytes()
    program = BUILD / f"truthserver-{hashlib.sha256(source).hexdigest()[:12]}"
    if program.exists():
        return program
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        sys.exit("the truth server is a C program and this machine has no C compiler: install one (cc, gcc or clang)")
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        made = Path(folder) / "truthserver"
        told = subprocess.run([compiler, "-O2", "-o", made, SOURCE, "-lm"], capture_output=True, text=True)
        if told.returncode:
            sys.exit(f"{compiler} could not compile {SOURCE.relative_to(ROOT)}:\n{told.stderr.strip()}")
        made.replace(program)  # whole or not at all, whoever else compiles it now
    return program


class TruthServer:
    """The server, from entering the `with` block to leaving it.

    ttft_ms, itl_ms: the schedule of each answer (itl_ms 0: as fast as the socket takes it). tokens: answer length where
    a request names none. core: nth core to pin it to; None for any. jitter: 0..1, spread of each wait about its mean.
    words_per_event: tokens in an event. max_running: streams at once, the others wait their turn; 0 for no limit.
    """

    def __init__(
        self,
        ttft_ms: float = 20.0,
        itl_ms: float = 10.0,
        tokens: int = 128,
        *,
        core: int | None = 0,
        jitter: float = 0.0,
        words_per_event: int = 1,
        max_running: int = 0,
    ) -> None:
        self.port = 0
        self._settings = [str(s) for s in (ttft_ms, itl_ms, tokens, jitter, words_per_event, max_running)]
        self._core = core
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = compiled()
        with socket.socket() as probe:  # the server wants a number; this one was free a moment ago
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [str(program), str(self.port), *self._settings]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=pinned(self._core))
        try:
            self._wait_until_up()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def url(self) -> str:
        """Base URL, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def truth(self) -> Truth:
        """What happened since the start or the last reset."""
        return msgspec.json.decode(self._get("/truth"), type=Truth)

    def reset(self) -> None:
        """Forget what happened so far."""
        self._get("/reset")

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10.0)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            if self._process.poll() is not None:
                sys.exit(f"the truth server ended at once with exit code {self._process.returncode}")
            try:
                self._get("/health")
                return
            except OSError:
                if time.monotonic() > deadline:
                    sys.exit(f"the truth server did not answer within {UP_WITHIN_S:g} s")
                time.sleep(0.01)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # it holds nothing that needs putting away
            self._process.wait()
            self._process = None


def ask_once(server: TruthServer) -> None:
    """One streamed answer, read to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10.0)
    try:
        connection.request("POST", "/v1/completions", b'{"prompt":"hi","stream":true}')
        connection.getresponse().read()
    finally:
        connection.close()


def main() -> int:
    arguments = sys.argv[1:]
    if arguments:
        settings = arguments[1:] or ["20", "10", "128"]
        program = compiled()
        print(f"http://127.0.0.1:{arguments[0]}  truth at /truth, Ctrl-C to stop", file=sys.stderr, flush=True)
        os.execv(program, [str(program), arguments[0], *settings])
    with TruthServer(ttft_ms=20, itl_ms=10, tokens=64) as server:
        ask_once(server)
        told = server.truth()
    if told.ttft_ms is None or told.itl_ms is None or told.late_ms is None:
        return 1
    print(
        f"TTFT {told.ttft_ms.mean:.3f} ms (asked 20)  ITL p50 {told.itl_ms.p50:.3f} ms (asked 10)  "
        f"late p99 {told.late_ms.p99:.3f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
