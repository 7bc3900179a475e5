"""A board in the shadow of an engine: the published soak's temperatures, from an engine that never rests."""

from pathlib import Path

import pytest

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.core import Core, Instance
from cadenza.engine.sequence import Limits
from cadenza.engine.shadow import Shadow
from cadenza.hardware.batch import Batch


class Slow:
    """One step a second."""

    def step_ns(self, batch: Batch, quantile: float) -> int:
        return NS_PER_S

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> None:
        return None

    def request_ns(self) -> int:
        return 0


def core_with(output_tokens: int) -> Core:
    core = Core({"m": Instance("m", Slow(), Limits(max_model_len=20_000, num_gpu_blocks=1_300))})
    core.submit(1, "m", range(10), output_tokens, 0)
    return core


def test_four_hours_at_work_are_the_published_soak() -> None:
    board = Board.for_devices(("mi50-32gb", "rx6900xt"), seed=0)
    shadow = Shadow(core_with(15_000), board, vram_share=0.9)
    for second in range(0, 4 * 3600 + 1, 10):
        shadow.tick(second * NS_PER_S)
    mi50, rx = board.read()
    # As published after 240 minutes, within half a degree; no throttling.
    assert (mi50.edge_c, mi50.junction_c, mi50.memory_c) == pytest.approx((68.4, 76.1, 64.2), abs=0.5)
    assert (rx.edge_c, rx.junction_c) == pytest.approx((72.1, 88.6), abs=0.5)
    assert rx.pwm == pytest.approx(0.68, abs=0.01)
    assert (mi50.throttle_events, rx.throttle_events) == (0, 0)


def test_busy_is_the_share_of_time_in_which_steps_ran(tmp_path: Path) -> None:
    core = core_with(3)
    board = Board.for_devices(("mi50-32gb",), seed=0)
    shadow = Shadow(core, board, vram_share=0.5, root=tmp_path / "board")
    shadow.tick(0)
    # Three tokens, three steps: 3 s of these 4, and none of the next.
    shadow.tick(4 * NS_PER_S)
    (card,) = board.read()
    assert card.busy == pytest.approx(0.75)
    assert card.vram_used_bytes == pytest.approx(0.5 * 34_342_961_152, rel=1e-6)
    (busy,) = (tmp_path / "board" / "sys").glob("class/drm/card*/device/gpu_busy_percent")
    assert busy.read_text() == "75\n"
    shadow.tick(8 * NS_PER_S)
    assert busy.read_text() == "0\n"
