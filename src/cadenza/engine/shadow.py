"""The board that shows what the engine does: its cards work as long as its steps last."""

from pathlib import Path

from cadenza.engine.board.boards import Board
from cadenza.engine.core import Core


class Shadow:
    """Lets `board` follow `core`; with a `root`, its files too. All cards are ranks of one engine: they step together.

    A card at work does what it did in its published soak (`Card.working`). vLLM takes its share of the memory when it
    starts, whatever it then holds: `vram_share` is --gpu-memory-utilization.
    """

    def __init__(self, core: Core, board: Board, vram_share: float, root: Path | None = None) -> None:
        self._core = core
        self._board = board
        self._vram_share = vram_share
        self._root = root
        self._seen_ns = 0
        self._busy_ns = 0

    def tick(self, now_ns: int) -> None:
        """Bring board and files to `now_ns`; UsageError where they cannot be written."""
        busy_ns = self._core.busy_ns(now_ns)
        passed_ns = now_ns - self._seen_ns
        share = min(1.0, (busy_ns - self._busy_ns) / passed_ns) if passed_ns > 0 else 0.0
        self._seen_ns, self._busy_ns = now_ns, busy_ns
        self._board.advance(
            now_ns, [card.working(share, round(self._vram_share * card.vram_bytes)) for card in self._board.cards]
        )
        if self._root is not None:
            self._board.write(self._root)
