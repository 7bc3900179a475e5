"""The collector on the simulated board's tree: what it reads is the board's own state, within a file's rounding."""

from pathlib import Path

import pytest

from cadenza.clock import ManualClock
from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import IDLE
from cadenza.engine.board.faults import BoardFault
from cadenza.engine.board.state import CardState
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from support.amdgpu_trees import told

SECOND = 10**9
NAMES = ["mi50-32gb", "rx6900xt", "mi300x"]
GIB = 1 << 30
# The board's reasons under the names of each chip's bits; Vega 20's are not known, so it has one for all.
REASONS = {
    "mi50-32gb": dict.fromkeys(("edge", "junction", "memory", "ppt"), "any"),
    "rx6900xt": {"edge": "temp_edge", "junction": "temp_hotspot", "memory": "temp_mem", "ppt": "ppt0"},
    "mi300x": {"junction": "thermal_socket", "memory": "thermal_hbm", "ppt": "ppt"},
}


def check(values: dict[str, float], state: CardState) -> None:
    """Every number of `state` that the card's files can tell, to half of the last digit that they have."""
    assert values["up"] == 1
    assert values["busy_ratio"] == pytest.approx(state.busy, abs=0.005)
    assert values["memory_busy_ratio"] == pytest.approx(state.memory_busy, abs=0.005)
    assert values["memory_used_bytes.vram"] == state.vram_used_bytes
    power = values.get("power_watts.average", values.get("power_watts.instant"))
    assert power == pytest.approx(state.power_w, abs=0.5)
    assert values["clock_hertz.sclk"] == pytest.approx(state.sclk_mhz * 1e6, abs=0.5e6)
    assert values["clock_hertz.mclk"] == state.mclk_mhz * 1e6
    assert values["temperature_celsius.junction"] == pytest.approx(state.junction_c, abs=0.0501)
    assert values["temperature_celsius.mem"] == pytest.approx(state.memory_c, abs=0.0501)
    if state.name == "mi300x":
        assert "temperature_celsius.edge" not in values
    else:
        assert values["temperature_celsius.edge"] == pytest.approx(state.edge_c, abs=0.0501)
        assert values["voltage_volts.vddgfx"] == pytest.approx(state.core_mv / 1000, abs=0.0005)
    if state.name == "rx6900xt":
        assert values["fan_speed_rpm"] == pytest.approx(state.fan_rpm, abs=0.5)
        assert values["fan_ratio"] == pytest.approx(state.pwm, abs=0.5 / 255)
    else:
        assert "fan_speed_rpm" not in values
    if state.name == "mi50-32gb":
        assert "energy_joules_total" not in values
    else:
        assert values["energy_joules_total"] == pytest.approx(state.energy_j, abs=2**-17)
    throttled = {key for key, value in values.items() if key.startswith("throttled.") and value}
    assert throttled == {f"throttled.{REASONS[state.name][reason]}" for reason in state.throttling}


class Watched:
    """A board under a collector."""

    def __init__(self, root: Path) -> None:
        self.board = Board.for_devices(NAMES, seed=5)
        self.board.advance(0, [IDLE] * len(NAMES))
        self.root = root
        self.clock = ManualClock()
        self.collector = AmdgpuCollector(root, processes=True, clock=self.clock)

    def look(self, at_s: float, share: float) -> list[tuple[CardState, dict[str, float]]]:
        activities = [card.working(share, (3 + place) * GIB) for place, card in enumerate(self.board.cards)]
        self.board.advance(round(at_s * SECOND), activities)
        self.board.write(self.root)
        self.clock.advance_to(round(at_s * SECOND))
        collected = self.collector.collect()
        return [(state, told(collected, state.slot)) for state in self.board.read()]


def test_a_board_at_rest_and_at_work_is_read_as_it_is(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "board")
    for step in range(1, 80):
        share = 0.0 if step < 5 else (0.4, 0.7, 1.0)[step % 3]
        for state, values in watched.look(2.5 * step, share):
            check(values, state)
            assert values["process_memory_bytes.4321"] == state.vram_used_bytes
    assert max(state.junction_c for state in watched.board.read()) > 60  # it did heat up


def test_links_are_slow_at_rest(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "board")
    speeds = "pcie_link_speed_transfers_per_second"
    for share in (0.0, 1.0):
        for (_, values), card in zip(watched.look(10 + 2 * share, share), watched.board.cards, strict=True):
            text = card.link.speed if share else card.link.idle_speed
            assert values[f"{speeds}.current"] == float(text.split()[0]) * 1e9
            assert values["pcie_link_width_lanes.current"] == card.link.width
            assert values[f"{speeds}.max"] == float(card.link.speed.split()[0]) * 1e9


def test_throttling_is_read_with_its_reasons_and_an_overheated_card_is_lost(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "board")
    for card in range(len(NAMES)):
        watched.board.inject(BoardFault("overheat", card), SECOND)
    hot: set[str] = set()
    for step in range(1, 400):
        for state, values in watched.look(5.0 * step, 1.0):
            if state.status == "lost":
                assert values == {"up": 0}
                continue
            check(values, state)
            if {"edge", "junction", "memory"} & set(state.throttling):
                hot.add(state.name)
    assert hot == set(NAMES)


def test_a_card_that_falls_off_is_down_and_the_others_go_on(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "board")
    watched.look(10, 1.0)
    watched.board.inject(BoardFault("fallen-off", 1), 10 * SECOND)
    for at_s in (11, 12):
        (mi50, mi50_values), (rx, rx_values), (mi300x, mi300x_values) = watched.look(at_s, 1.0)
        assert rx.status == "lost"
        assert rx_values == {"up": 0}
        check(mi50_values, mi50)
        check(mi300x_values, mi300x)


def test_who_the_boards_cards_are(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "board")
    watched.look(1, 0.0)
    infos = [dict(r.labels) for r in watched.collector.collect().readings if r.name == "gpu_info"]
    assert [(info["gpu"], info["card"], info["kfd_node"], info["gfx"]) for info in infos] == [
        ("0000:03:00.0", "card1", "1", "gfx906"),
        ("0000:43:00.0", "card2", "2", "gfx1030"),
        ("0000:23:00.0", "card3", "3", "gfx942"),
    ]
