import itertools
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import IDLE, Activity, load
from cadenza.engine.board.faults import BoardFault, parse_fault
from cadenza.errors import UsageError

SECOND = 10**9
# When the six lines of a ring timeout are due, in seconds.
LINES = (0, 0.000039, 0.000054, 0.439, 0.959, 1.809)
PAIR = ["mi50-32gb", "rx6900xt"]


def pair(start_ns: int = 0) -> Board:
    board = Board.for_devices(PAIR, seed=1)
    board.advance(start_ns, [IDLE] * 2)
    return board


def steady(board: Board) -> list[Activity]:
    return [card.working(1.0, 14 << 30) for card in board.cards]


def test_the_published_soak_at_four_looks_a_second() -> None:
    """Four hours at 4 Hz would take a while; from the first hour on nothing moves, so the rest is one step."""
    board = pair()
    work = steady(board)
    for quarter in range(1, 4 * 1200 + 1):
        board.advance(quarter * SECOND // 4, work)
    board.advance(4 * 3600 * SECOND, work)
    mi50, rx = board.read()
    assert (mi50.edge_c, mi50.junction_c, mi50.memory_c) == pytest.approx((68.4, 76.1, 64.2), abs=0.5)
    assert (rx.edge_c, rx.junction_c) == pytest.approx((72.1, 88.6), abs=0.5)
    assert rx.pwm == pytest.approx(0.68, abs=0.005)
    assert [(state.throttle_events, state.throttle_s, state.speed) for state in (mi50, rx)] == [(0, 0, 1)] * 2
    assert mi50.energy_j == pytest.approx(181 * 4 * 3600)


def test_the_clock_begins_where_the_first_look_says() -> None:
    """A host's monotonic clock may stand at days: none of them are simulated, and the log carries them."""
    start_ns = 30 * 86400 * SECOND + 123_456_000
    board = pair(start_ns)
    assert [state.energy_j for state in board.read()] == [0, 0]
    assert board.log == ("[2592000.123456] [drm] amdgpu kernel modesetting enabled.",)
    board.advance(start_ns + SECOND, [IDLE] * 2)
    assert board.read()[0].energy_j == pytest.approx(21)


def test_time_never_goes_back() -> None:
    board = pair()
    board.advance(10 * SECOND, steady(board))
    before = board.read()
    board.advance(5 * SECOND, [IDLE] * 2)
    assert board.read() == before


def test_the_number_of_activities_must_fit() -> None:
    with pytest.raises(ValueError, match="1 activities for 2 cards"):
        pair().advance(SECOND, [IDLE])


@pytest.mark.parametrize("count", [0, 9])
def test_a_board_has_one_to_eight_cards(count: int) -> None:
    with pytest.raises(UsageError, match="1 to 8 cards"):
        Board.for_devices(["mi300x"] * count, seed=1)


def test_eight_cards_are_eight_slots() -> None:
    board = Board.for_devices(["mi300x"] * 8, seed=1)
    assert len({state.slot for state in board.read()}) == 8


def test_a_card_whose_files_nobody_fills_is_a_usage_error() -> None:
    card = load("mi50-32gb")
    odd = msgspec.structs.replace(card, files=msgspec.structs.replace(card.files, live=("gpu_mood",)))
    with pytest.raises(UsageError, match="gpu_mood"):
        Board([odd], seed=1)


def test_a_fault_waits_for_its_time_and_splits_the_interval_there() -> None:
    board, other = pair(), pair()
    for each in (board, other):
        each.inject(parse_fault("overheat:0@60s"), 0)
    board.advance(90 * SECOND, steady(board))
    for second in range(1, 91):
        other.advance(second * SECOND, steady(other))
    assert board.read()[0].edge_c == pytest.approx(other.read()[0].edge_c, abs=1e-9)
    plain = pair()
    plain.advance(90 * SECOND, steady(plain))
    assert board.read()[0].edge_c > plain.read()[0].edge_c + 3
    assert board.read()[1].edge_c == pytest.approx(plain.read()[1].edge_c, abs=1e-9)


def test_an_overheated_mi50_throttles_and_ends_lost_with_the_kernels_words() -> None:
    board = pair()
    board.advance(3600 * SECOND, steady(board))
    board.inject(BoardFault("overheat", 0), 3600 * SECOND)
    throttled_s = 0
    for second in range(3601, 3600 + 1200):
        board.advance(second * SECOND, steady(board))
        throttled_s += board.read()[0].speed < 1 and board.read()[0].status == "ok"
    mi50, rx = board.read()
    assert throttled_s > 5
    assert (mi50.status, mi50.power_w, mi50.busy) == ("lost", 0, 0)
    assert rx.status == "ok"
    assert [line.split("] ", 1)[1] for line in board.log[1:]] == [
        "amdgpu 0000:03:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
        "amdgpu 0000:03:00.0: amdgpu: ERROR: System is going to shutdown due to GPU SW CTF!",
    ]


def test_an_overheated_rx_warns_of_throttling_once_a_minute_at_most() -> None:
    board = pair()
    board.advance(3600 * SECOND, steady(board))
    board.inject(BoardFault("overheat", 1), 3600 * SECOND)
    for second in range(3601, 3600 + 1800):  # full load until it throttles, rest until it no longer does
        work = [IDLE] * 2 if board.read()[1].throttling else [Activity(1.0, 0.4, 0)] * 2
        board.advance(second * SECOND, work)
    warned = [float(re.findall(r"[\d.]+", line)[0]) for line in board.log if "thermal throttling" in line]
    assert warned
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(warned))
    assert 3600 < warned[0] < 4000
    state = board.read()[1]
    assert (state.status, state.fan_rpm) == ("ok", 0)
    assert state.throttle_events > len(warned) > 1


def test_a_ring_timeout_resets_the_card_and_it_comes_back() -> None:
    board = pair()
    board.inject(parse_fault("ring-timeout:1@10s"), 0)
    board.advance(11 * SECOND, steady(board))
    mi50, rx = board.read()
    assert (mi50.status, mi50.busy) == ("ok", 1)
    assert (rx.status, rx.busy, rx.power_w) == ("resetting", 0, 26)
    assert [line for line in board.log if "succeeded" in line] == [
        "[   10.959000] amdgpu 0000:43:00.0: amdgpu: GPU reset succeeded, trying to resume"
    ]
    board.advance(12 * SECOND, steady(board))
    assert (board.read()[1].status, board.read()[1].busy) == ("ok", 1)
    assert board.log[1] == (
        "[   10.000000] amdgpu 0000:43:00.0: amdgpu: ring comp_1.0.1 timeout, signaled seq=1204, emitted seq=1206"
    )
    assert board.log[-1] == "[   11.809000] amdgpu 0000:43:00.0: amdgpu: GPU reset(1) succeeded!"
    assert len(board.log) == 7


def test_lines_of_two_cards_stand_in_the_order_of_time() -> None:
    board = pair()
    for text in ("ring-timeout:0@10", "ring-timeout:1@10.2"):
        board.inject(parse_fault(text), 0)
    for tenth in range(1, 140):
        board.advance(tenth * SECOND // 10, steady(board))
        stamps = [float(re.findall(r"[\d.]+", line)[0]) for line in board.log]
        assert stamps == sorted(stamps)
        assert len(stamps) == 1 + sum(10 + at <= tenth / 10 for at in LINES) + sum(
            10.2 + at <= tenth / 10 for at in LINES
        )


def test_a_fallen_card_is_lost_for_good_and_nothing_more_befalls_it() -> None:
    board = pair()
    for text in ("fallen-off:0@5", "ring-timeout:0@6", "overheat:0@7"):
        board.inject(parse_fault(text), 0)
    board.advance(60 * SECOND, steady(board))
    assert board.read()[0].status == "lost"
    assert "type=Inaccessible" in board.log[2]
    assert board.log[-1] == "[    6.000000] amdgpu 0000:03:00.0: amdgpu: GPU Recovery Failed: -19"


def test_a_fault_needs_a_card() -> None:
    with pytest.raises(UsageError, match="no card 2; the last one is 1"):
        pair().inject(BoardFault("overheat", 2), 0)


def test_the_log_file_is_the_log_and_grows(tmp_path: Path) -> None:
    board = pair()
    board.write(tmp_path)
    board.inject(BoardFault("kfd-oom"), SECOND)
    board.advance(2 * SECOND, [IDLE] * 2)
    board.write(tmp_path)
    board.write(tmp_path)
    assert (tmp_path / "kernel.log").read_text().splitlines() == list(board.log)
    assert board.log[-1] == "[    1.000000] amdgpu: Failed to allocate kfd ring buffer: -12"


# Documentation/ABI/testing/dev-kmsg: priority (facility 0 · 8 + level), sequence, microseconds, flags; its device.
RECORDS = """\
6,0,0,-;[drm] amdgpu kernel modesetting enabled.
3,1,1000000,-;amdgpu: Failed to allocate kfd ring buffer: -12
6,102,2000000,-;pcieport 0000:00:01.1: AER: Multiple Corrected error message received from 0000:00:01.1
 SUBSYSTEM=pci
 DEVICE=+pci:0000:00:01.1
3,103,3000000,-;amdgpu 0000:43:00.0: amdgpu: ring comp_1.0.1 timeout, signaled seq=1204, emitted seq=1206
 SUBSYSTEM=pci
 DEVICE=+pci:0000:43:00.0
3,104,3000039,-;amdgpu 0000:43:00.0: amdgpu: Process information: process cadenza pid 4321 thread cadenza pid 4321
 SUBSYSTEM=pci
 DEVICE=+pci:0000:43:00.0
6,105,3000054,-;amdgpu 0000:43:00.0: amdgpu: GPU reset begin!
 SUBSYSTEM=pci
 DEVICE=+pci:0000:43:00.0
6,106,3439000,-;amdgpu 0000:43:00.0: amdgpu: MODE1 reset
 SUBSYSTEM=pci
 DEVICE=+pci:0000:43:00.0
6,107,3959000,-;amdgpu 0000:43:00.0: amdgpu: GPU reset succeeded, trying to resume
 SUBSYSTEM=pci
 DEVICE=+pci:0000:43:00.0
6,108,4809000,-;amdgpu 0000:43:00.0: amdgpu: GPU reset(1) succeeded!
 SUBSYSTEM=pci
 DEVICE=+pci:0000:43:00.0
"""


def test_the_records_are_those_of_the_kernel_and_the_same_lines_as_the_text(tmp_path: Path) -> None:
    board = pair()
    for text in ("kfd-oom@1", "log-overrun@2", "ring-timeout:1@3"):
        board.inject(parse_fault(text), 0)
    for half in range(12):
        board.advance(half * SECOND // 2, [IDLE] * 2)
        board.write(tmp_path)
    assert (tmp_path / "dev" / "kmsg").read_text() == RECORDS
    texts = [line.partition(";")[2] for line in RECORDS.splitlines() if not line.startswith(" ")]
    lines = (tmp_path / "kernel.log").read_text().splitlines()
    assert [line.partition("] ")[2] for line in lines] == texts


def test_the_log_goes_round_whatever_became_of_the_cards(tmp_path: Path) -> None:
    board = pair()
    for text in ("fallen-off:0@1", "fallen-off:1@1", "log-overrun@5", "log-overrun@6"):
        board.inject(parse_fault(text), 0)
    board.advance(7 * SECOND, [IDLE] * 2)
    board.write(tmp_path)
    numbers = [
        int(line.split(",")[1]) for line in (tmp_path / "dev" / "kmsg").read_text().splitlines() if line[0] != " "
    ]
    assert numbers == [*range(11), 10 + 101, 10 + 202]


def test_a_new_boards_records_are_another_file(tmp_path: Path) -> None:
    pair().write(tmp_path)
    kmsg = tmp_path / "dev" / "kmsg"
    with kmsg.open("rb") as old:
        pair(5 * SECOND).write(tmp_path)
        assert old.read() == b"6,0,0,-;[drm] amdgpu kernel modesetting enabled.\n"
    assert kmsg.read_bytes() == b"6,0,5000000,-;[drm] amdgpu kernel modesetting enabled.\n"


def test_another_folders_records_are_not_begun_anew_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kmsg").write_text("mine")
    root = tmp_path / "board"
    pair().write(root)
    shutil.rmtree(root / "dev")
    (root / "dev").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="link"):
        pair().write(root)
    assert (tmp_path / "elsewhere" / "kmsg").read_text() == "mine"


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 20 * SECOND), max_size=15),
    kinds=st.lists(st.sampled_from(["overheat", "ring-timeout", "fallen-off", "kfd-oom", "log-overrun"]), max_size=3),
    at_ns=st.integers(0, 15 * SECOND),
)
def test_states_and_log_do_not_depend_on_how_often_one_looks(cuts: list[int], kinds: list[str], at_ns: int) -> None:
    boards = [pair(), pair()]
    for board in boards:
        for card, kind in enumerate(kinds):
            board.inject(BoardFault(kind, card % 2, at_ns + card * SECOND), 0)  # type: ignore[arg-type]
    for cut in sorted(cuts):
        boards[0].advance(cut, steady(boards[0]))
    for board in boards:
        board.advance(21 * SECOND, steady(board))
    assert boards[0].log == boards[1].log
    assert boards[0]._log == boards[1]._log
    for one, other in zip(boards[0].read(), boards[1].read(), strict=True):
        assert (one.edge_c, one.junction_c, one.memory_c) == pytest.approx(
            (other.edge_c, other.junction_c, other.memory_c), abs=1e-9
        )
        assert (one.status, one.throttling, one.busy) == (other.status, other.throttling, other.busy)
