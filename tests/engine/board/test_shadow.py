"""A board in the shadow of an engine: the published steady state's temperatures, from an engine that never rests."""

from fractions import Fraction
from pathlib import Path

import pytest

from cadenza.clock import NS_PER_S
from cadenza.engine.board.boards import Board
from cadenza.engine.board.faults import BoardFault
from cadenza.engine.board.shadow import Shadow
from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.pace import STOPPED, Pace, Stretch
from cadenza.engine.core.sequence import Limits
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


def tokens(core: Core, now_ns: int) -> list[float]:
    """When the tokens came that nobody has asked for yet, in s."""
    return [token.at_ns / NS_PER_S for token in core.advance(now_ns)]


def test_the_slowest_card_sets_the_pace() -> None:
    board = Board.for_devices(("mi50-32gb", "rx6900xt"), seed=0)
    board.inject(BoardFault("overheat", 0), 0)
    core = core_with(15_000)
    shadow = Shadow(core, board, vram_share=0.9)
    speeds, done = [], Fraction(0)
    for second in range(260):
        shadow.tick(second * NS_PER_S)
        speeds.append(min(card.speed for card in board.read()))
        done += Fraction(speeds[-1])
    # A step is a second of work, and each second gave as much of it as the slower clock told at its beginning.
    assert len(tokens(core, 260 * NS_PER_S)) == pytest.approx(float(done), abs=1)
    assert speeds[:200] == [1.0] * 200
    assert 0.5 < speeds[-1] < 0.6
    assert all(card.status == "ok" for card in board.read())


def test_a_reset_stops_the_engine_until_it_is_over() -> None:
    board = Board.for_devices(("mi50-32gb", "rx6900xt"), seed=0)
    board.inject(BoardFault("ring-timeout", 1, 10 * NS_PER_S), 0)
    core = core_with(15)
    shadow = Shadow(core, board, vram_share=0.9)
    for half in range(41):
        shadow.tick(half * NS_PER_S // 2)
    # 1.8 s of reset, seen from 10 to 12; the ten steps before it and the five after it take a second each.
    assert tokens(core, 20 * NS_PER_S) == [*range(1, 11), *range(13, 18)]


def test_a_card_that_is_lost_hangs_the_engine_for_good() -> None:
    board = Board.for_devices(("mi50-32gb", "rx6900xt"), seed=0)
    board.inject(BoardFault("fallen-off", 0, 10 * NS_PER_S), 0)
    core = core_with(15_000)
    shadow = Shadow(core, board, vram_share=0.9)
    for second in range(61):
        shadow.tick(second * NS_PER_S)
    assert tokens(core, 60 * NS_PER_S) == list(range(1, 11))
    assert core.next_ns() is None
    assert core.busy_ns(60 * NS_PER_S) == 60 * NS_PER_S
    lost, other = board.read()
    assert (lost.status, other.status, other.busy) == ("lost", "ok", 1.0)
    assert [metrics.model for metrics, _ in core.read(60 * NS_PER_S)]


def test_the_cards_of_an_engine_that_hangs_are_busy_at_little_power() -> None:
    board = Board.for_devices(("mi50-32gb",), seed=0)
    core = core_with(15_000)
    core.set_pace(Pace([Stretch(100 * NS_PER_S, 200 * NS_PER_S, STOPPED)]))
    shadow = Shadow(core, board, vram_share=0.9)
    seen = {}
    for second in range(0, 301, 10):
        shadow.tick(second * NS_PER_S)
        (card,) = board.read()
        seen[second] = (card.busy, card.power_w)
    assert [seen[at][0] for at in (100, 150, 200, 300)] == [1.0] * 4
    # Nothing but the core's spinning is left above idle.
    power = board.cards[0].power
    assert seen[150][1] == pytest.approx(power.idle_w + power.spinning * power.core_w)
    assert seen[90][1] == seen[300][1] > 3 * seen[150][1]
