"""The board that shows what the engine does: its cards work as long as its steps last."""

from fractions import Fraction
from pathlib import Path

from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import Activity
from cadenza.engine.core.core import Core
from cadenza.engine.core.pace import FULL, STOPPED


class Shadow:
    """Lets `board` follow `core`; with a `root`, its files too. All cards are ranks of one engine: they step together.

    A card at work does what it did in its steady state (`CardModel.working`); where the engine hangs it spins: busy to
    every tool, at little power. vLLM takes its share of the memory when it starts, whatever it then holds:
    `vram_share` is --gpu-memory-utilization.

    And the engine follows the board: the slowest card sets the pace of all. A step takes as much longer as the core
    clock is lower, which overstates it where the memory's bandwidth bounds the step. While a card is reset the
    collective waits for it, and for one that is lost it waits for ever. What passes between two ticks is not seen.
    """

    def __init__(self, core: Core, board: Board, vram_share: float, root: Path | None = None) -> None:
        self._core = core
        self._board = board
        self._vram_share = vram_share
        self._root = root
        self._seen_ns = 0
        self._busy_ns = 0
        self._speed = FULL

    def tick(self, now_ns: int) -> None:
        """Bring board and files to `now_ns`; UsageError where they cannot be written."""
        busy_ns = self._core.busy_ns(now_ns)
        passed_ns = now_ns - self._seen_ns
        share = min(1.0, (busy_ns - self._busy_ns) / passed_ns) if passed_ns > 0 else 0.0
        self._seen_ns, self._busy_ns = now_ns, busy_ns
        hangs = self._core.pace.at(now_ns) == STOPPED
        activities = []
        for card in self._board.cards:
            taken = round(self._vram_share * card.vram_bytes)
            activities.append(Activity(0.0, 0.0, taken, share) if hangs else card.working(share, taken))
        self._board.advance(now_ns, activities)
        speed = min(Fraction(card.speed) if card.status == "ok" else STOPPED for card in self._board.read())
        if speed != self._speed:
            self._speed = speed
            self._core.limit_pace(speed, now_ns)
        if self._root is not None:
            self._board.write(self._root)
