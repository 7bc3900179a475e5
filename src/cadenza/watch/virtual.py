"""Sampling in virtual time: the embedded engine and its simulated board, on the clock of the run itself.

No process: time passes only where the transport moves it, and between two events of the engine nothing changes. So
the samples of that stretch are taken right before it is passed, from the engine core itself; its page of metrics has
the same numbers, and would take longer than the sweep. The cards are read as a machine's are: the board writes the
driver's files into a private folder, and the collector for real cards reads them there.

Whoever watches changes nothing: unlike in `engine.board.shadow`, a hot card does not slow the engine down.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.core.core import Core, Instance
from cadenza.engine.profile import Profile
from cadenza.errors import UsageError
from cadenza.load.memory import MemoryTransport
from cadenza.readings import Reading
from cadenza.store.telemetry import TelemetryFile
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.sampler import Sampler
from cadenza.watch.machine import engine_labels
from cadenza.watch.realtime import Kept

# Files of two cards, written and read, take a millisecond; the engine's gauges a tenth of that.
CARDS_EVERY_S = 20.0
# A stretch in which nothing happens has nothing to show, however long it is.
_SAMPLES_A_STRETCH = 1000
_ENGINE = "engine"
_FOLDER = "cadenza-board-"
# Whoever has just made such a folder may not have locked it yet.
_LEFT_AFTER_S = 60.0
# Of `telemetry.engine_state.EngineState`.
_NAMES = (
    *("running", "waiting", "kv_usage", "preemptions_total", "prompt_tokens_total", "generation_tokens_total"),
    *("requests_total", "aborted_total", "prefix_queries_tok", "prefix_hits_tok"),
)


class VirtualSampler:
    """`watch.Sampling` in virtual time, of what is behind `transport`.

    interval_s   between two samples of the engine; cards are sampled every `CARDS_EVERY_S`, if that is longer, and
                 at the edges of points. Their busy share covers the time since their last sample
    """

    def __init__(
        self, transport: MemoryTransport, core: Core, profile: Profile, interval_s: float, file: TelemetryFile
    ) -> None:
        self._transport = transport
        self._engine = [_ModelState(instance) for instance in core.instances.values()]
        self._core = core
        self._profile = profile
        self._interval_ns = round(interval_s * NS_PER_S)
        self._cards_every_ns = max(self._interval_ns, round(CARDS_EVERY_S * NS_PER_S))
        self._file = file
        self._now_ns = 0
        self._due_ns = 0
        self._cards: _Cards | None = None

    def now_ns(self) -> int:
        """The instant of the sample that is being taken."""
        return self._now_ns

    def start(self) -> str:
        """Begin sampling; what is sampled, in words."""
        self._now_ns = self._due_ns = self._transport.clock.now_ns()
        cards = "no cards"
        try:
            self._cards = _Cards(self._core, self._profile, self, self._file)
            cards = f"simulated cards ({self._cards.count}) every {self._cards_every_ns / NS_PER_S:g} s"
        except UsageError:
            self._write_missing("absent")
        except OSError:
            self._write_missing("failed")
        self._pass(self._now_ns)
        self._transport.meanwhile = self._pass
        return f"sampled every {self._interval_ns / NS_PER_S:g} s of virtual time; {cards}"

    def poll(self, now_ns: int) -> None:
        """Sample the cards, so that a point that is shorter than their interval has one."""
        self._now_ns = now_ns
        self._poll_cards(0)

    def end(self) -> None:
        """Stop sampling and remove the board's folder."""
        self._transport.meanwhile = None
        self._leave_cards()

    def _pass(self, until_ns: int) -> None:
        """Time is about to pass to `until_ns`, and until then nothing happens."""
        due = until_ns - self._due_ns
        if due < 0:
            return
        stride_ns = self._interval_ns * -(-(due // self._interval_ns + 1) // _SAMPLES_A_STRETCH)
        while self._due_ns <= until_ns:
            self._now_ns = self._due_ns
            self._due_ns += stride_ns
            with contextlib.suppress(OSError):  # a full disk is reported where records are written
                self._file.sample(_ENGINE, self._read_engine(), self.now_ns)
            self._poll_cards(self._cards_every_ns)

    def _read_engine(self) -> list[Reading]:
        return [reading for model in self._engine for reading in model.read(self._now_ns)]

    def _poll_cards(self, every_ns: int) -> None:
        cards = self._cards
        if cards is None or not cards.is_due(self._now_ns, every_ns):
            return
        try:
            cards.poll(self._now_ns)
        except (OSError, UsageError):  # no room for its files
            self._leave_cards()
            self._write_missing("failed")

    def _leave_cards(self) -> None:
        if self._cards is not None:
            self._cards.close()
            self._cards = None

    def _write_missing(self, why: str) -> None:
        with contextlib.suppress(OSError):
            self._file.missing(AmdgpuCollector.name, [(AmdgpuCollector.name, "", why, 1)], self.now_ns)


class _ModelState:
    """One model's engine, as the series that its page of metrics has (`watch.machine.read_state`), no histograms."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._labels = engine_labels("vllm", 0, instance.metrics.model)
        self._readings: list[Reading] = []
        self._arrivals = -1

    def read(self, now_ns: int) -> list[Reading]:
        """As of `now_ns`. An engine that has been idle since the last call has the readings of then."""
        instance, arrivals = self._instance, self._instance.metrics.arrivals
        if arrivals == self._arrivals:
            return self._readings
        instance.clock.run(now_ns)
        metrics, gauges = instance.read()
        values = (
            *(gauges.running, gauges.waiting, gauges.kv_cache_usage, metrics.preemptions),
            *(metrics.prompt_tok, metrics.generated_tok),
            *(sum(metrics.endings.values()), metrics.endings["abort"]),
            *(metrics.cache_queries_tok, metrics.cache_hits_tok),
        )
        self._readings = [Reading(name, self._labels, value) for name, value in zip(_NAMES, values, strict=True)]
        self._arrivals = -1 if instance.in_system else arrivals
        return self._readings


class _Cards:
    """The profile's cards on a board that follows the engine, read out of a private folder."""

    def __init__(self, core: Core, profile: Profile, clock: VirtualSampler, file: TelemetryFile) -> None:
        """UsageError: the profile names no cards, or one that the board does not know. OSError: no folder."""
        if profile.system is None:
            raise UsageError(f"the profile {profile.name} names no cards")
        self._core = core
        self._board = Board.for_devices(profile.system.devices, 0)
        self._vram_bytes = [
            round(profile.limits.gpu_memory_utilization * card.vram_bytes) for card in self._board.cards
        ]
        self.count = len(self._vram_bytes)
        # In memory where there is such a folder: renamed files on a disk cost ten times as much.
        memory = Path("/dev/shm")
        within = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
        _remove_left(within)
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER, dir=within)
        self._root = Path(self._folder.name)
        self._lock = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._collector = Kept(AmdgpuCollector(self._root, clock=clock), file, clock.now_ns)
        self._sampler = Sampler([self._collector], 0, clock)
        self._seen_ns: int | None = None
        self._busy_ns = 0

    def is_due(self, now_ns: int, every_ns: int) -> bool:
        """Whether the last sample is that long ago; two at one instant have no time in between."""
        return self._seen_ns is None or now_ns - self._seen_ns >= max(1, every_ns)

    def poll(self, now_ns: int) -> None:
        """Let the board catch up with the engine and read it; OSError, UsageError: its files cannot be written."""
        busy_ns = self._core.busy_ns(now_ns)
        share = 0.0 if self._seen_ns is None else min(1.0, (busy_ns - self._busy_ns) / (now_ns - self._seen_ns))
        self._seen_ns, self._busy_ns = now_ns, busy_ns
        activities = [card.working(share, used) for card, used in zip(self._board.cards, self._vram_bytes, strict=True)]
        self._board.advance(now_ns, activities)
        self._board.write(self._root)
        self._sampler.poll()

    def close(self) -> None:
        for last in (self._collector.sum_up, self._folder.cleanup):
            with contextlib.suppress(OSError):
                last()
        os.close(self._lock)


def _remove_left(within: Path) -> None:
    """Remove the folders of runs that were killed: those that are old and not locked."""
    for folder in within.glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                status = os.fstat(lock)
                if status.st_uid == os.getuid() and time.time() - status.st_mtime > _LEFT_AFTER_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(lock)
