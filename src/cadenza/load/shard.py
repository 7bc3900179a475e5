"""One point's load from several processes, where one core cannot make it.

They share a plan that was made before they were: worker w of W takes the requests w, w + W, w + 2 W, …, so that the
same seed gives the same requests at the same times however many there are. Each has a client and a record file of its
own. Between them and the parent goes nothing but a few numbers in shared memory, and at the end one word how it was.
"""

import contextlib
import mmap
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from cadenza.errors import CadenzaError
from cadenza.record import WorkerHealth

_LOOK_S = 0.1
_LAST_WORDS_S = 5.0
# One word for all to stop, one that enough is measured; of each worker a tally of four, and whether it has finished.
_HEAD, _FIELDS = 2, 5


class Share(NamedTuple):
    """The part of a plan that one worker takes: indices `worker`, `worker + of`, …"""

    worker: int = 0
    of: int = 1

    def slots(self, concurrency: int) -> int:
        """Its part of so many slots; the first workers take what does not divide."""
        return concurrency // self.of + (self.worker < concurrency % self.of)


class Tally(NamedTuple):
    """Measured requests that have ended, those of them that failed, tokens of all answers, and when the last came."""

    ended: int
    failed: int
    tokens: int
    last_ns: int


class Board:
    """Shared memory: one tally a worker, whether its measured requests are all in, and the words to stop."""

    def __init__(self, workers: int) -> None:
        self._cells = memoryview(mmap.mmap(-1, 8 * (_HEAD + _FIELDS * workers))).cast("q")
        self._workers = workers

    def count(self, worker: int, *, measured: bool, failed: bool, tokens: int, now_ns: int) -> None:
        """One more answer of `worker`; only that worker writes there."""
        cells, at = self._cells, _HEAD + _FIELDS * worker
        cells[at] += measured
        cells[at + 1] += measured and failed
        cells[at + 2] += tokens
        cells[at + 3] = now_ns

    def total(self) -> Tally:
        """Of all workers."""
        rows = [self._cells[_HEAD + _FIELDS * worker :][:4].tolist() for worker in range(self._workers)]
        ended, failed, tokens, last_ns = zip(*rows, strict=True)
        return Tally(sum(ended), sum(failed), sum(tokens), max(last_ns))

    @property
    def enough(self) -> bool:
        """No worker measures any further request."""
        return self._cells[1] != 0

    def say_enough(self) -> None:
        self._cells[1] = 1

    def finish(self, worker: int) -> None:
        """Nothing measured of `worker` is out any more."""
        self._cells[_HEAD + _FIELDS * worker + 4] = 1

    @property
    def all_finished(self) -> bool:
        return all(self._cells[_HEAD + _FIELDS * worker + 4] for worker in range(self._workers))

    @property
    def stopped(self) -> bool:
        return self._cells[0] != 0

    def stop(self) -> None:
        self._cells[0] = 1


Work = Callable[[Share, Callable[[], bool]], WorkerHealth]
Watch = Callable[[Tally], None]


def run_shards(workers: int, work: Work, board: Board, watch: Watch, stop: Callable[[], bool]) -> list[WorkerHealth]:
    """Do `work(share, stop)` in `workers` processes at once and give their healths, in order.

    `watch` hears the tally ten times a second. When `stop` turns true, or a worker fails, the others stop, too.
    Raises CadenzaError with the first failure: what a worker reported, or how it died without a report.
    """
    context = multiprocessing.get_context("fork")
    children: list[tuple[BaseProcess, Connection]] = []
    try:
        for worker in range(workers):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (work, Share(worker, workers), board, theirs)
            child: BaseProcess = context.Process(target=_be_worker, args=arguments, daemon=True)
            with warnings.catch_warnings():
                # numpy's idle threads make Python warn; none of them holds a lock that a worker takes.
                warnings.simplefilter("ignore", DeprecationWarning)
                child.start()
            theirs.close()
            children.append((child, mine))
        _supervise([child for child, _ in children], board, watch, stop)
        return [_last_word(worker, child, mine) for worker, (child, mine) in enumerate(children)]
    finally:
        board.stop()
        for child, mine in children:
            child.join(_LAST_WORDS_S)
            if child.is_alive():
                child.kill()
                child.join()
            mine.close()


def _supervise(children: list[BaseProcess], board: Board, watch: Watch, stop: Callable[[], bool]) -> None:
    running = list(children)
    while running:
        wait([child.sentinel for child in running], _LOOK_S)
        watch(board.total())
        running = [child for child in running if child.exitcode is None]
        if stop() or any(child.exitcode for child in children):
            board.stop()


def _last_word(worker: int, child: BaseProcess, mine: Connection) -> WorkerHealth:
    result = None
    with contextlib.suppress(EOFError, OSError):
        result = mine.recv() if mine.poll() else None
    if isinstance(result, WorkerHealth):
        return result
    if isinstance(result, CadenzaError):
        raise result
    code = child.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"broke off ({result or f'exit code {code}'})"
    hint = "; was memory short?" if code == -signal.SIGKILL else ""
    raise CadenzaError(f"worker {worker} of the client {how}{hint}")


def _be_worker(work: Work, share: Share, board: Board, theirs: Connection) -> None:
    """In the child. An interrupt is the parent's to answer, who then says stop; so is the parent's end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _take_core(share)
    parent = os.getppid()
    try:
        theirs.send(work(share, lambda: board.stopped or os.getppid() != parent))
    except CadenzaError as error:
        theirs.send(error)
        os._exit(1)
    except Exception as error:  # a bug: the parent tells it in one line
        theirs.send(f"{type(error).__name__}: {error}")
        os._exit(1)


def _take_core(share: Share) -> None:
    """A core for each worker where there are enough: what it keeps in its caches stays warm."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if share.of <= len(cores):
            os.sched_setaffinity(0, {cores[-1 - share.worker]})


def wait_until(now_ns: Callable[[], int], at_ns: int) -> None:
    """For the common start."""
    while now_ns() < at_ns:
        time.sleep(0.001)
