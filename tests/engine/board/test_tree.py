"""The files against the sample trees: same names, same forms; and how they are written."""

import os
import re
import threading
from pathlib import Path

import pytest

from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import IDLE, Activity
from cadenza.engine.board.faults import BoardFault
from cadenza.errors import UsageError

DATA = Path(__file__).parents[2] / "data" / "sysfs"
SECOND = 10**9
PAIR = ["mi50-32gb", "rx6900xt"]


def show(board: Board, root: Path) -> dict[str, bytes]:
    board.write(root)
    return files(root / "sys")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def working(*names: str) -> Board:
    board = Board.for_devices(names, seed=1)
    board.advance(0, [IDLE] * len(names))
    board.advance(600 * SECOND, [card.working(1.0, 14 << 30) for card in board.cards])
    return board


def kind(name: str) -> str:
    """A path without the numbers that are a card's own: gpu ids, and the BMC's, which is not modelled."""
    return re.sub(r"(vram|sdma|stats)_\d+", r"\1_ID", name)


def form(text: bytes) -> list[str]:
    """KernelLine by line with every number as N, so that values may differ and forms may not."""
    return [re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f]*\b", "N", line) for line in text.decode().splitlines()]


@pytest.mark.parametrize(
    ("names", "sample", "skip"),
    [(PAIR, "mixed_mi50_rx6900xt", "proc/5000"), (["mi300x", "mi300x"], "mi300x_spx", "card0|card9|/proc/|render")],
)
def test_the_files_are_those_of_the_sample_tree(tmp_path: Path, names: list[str], sample: str, skip: str) -> None:
    ours = {kind(name) for name in show(working(*names), tmp_path / "board")}
    theirs = {kind(name) for name in files(DATA / sample)}
    # the sample's second process has a queue on one card alone; hwmon numbers differ from boot to boot
    ours = {name for name in ours if "queues/1" not in name}
    ours, theirs = (
        {re.sub(r"hwmon\d", "hwmonN", n) for n in side if not re.search(skip, n)} for side in (ours, theirs)
    )
    if sample == "mi300x_spx":
        extra = {"class/kfd/kfd/topology/generation_id", "class/kfd/kfd/topology/system_properties"}
        ours = {name for name in ours if "card2/" not in name} - extra
    assert ours == theirs


def test_every_text_has_the_form_of_the_samples(tmp_path: Path) -> None:
    ours, theirs = show(working(*PAIR), tmp_path / "board"), files(DATA / "mixed_mi50_rx6900xt")
    shared = [n for n in ours if n in theirs and not n.endswith("gpu_metrics")]
    assert len(shared) > 130
    star = re.compile(r" \*$")
    for name in shared:
        if name.endswith(("gpu_vram_bad_pages", "card0/device/uevent")):  # no bad page; the sample's BMC has AMD's id
            continue
        mine, sample = ([star.sub("", line) for line in form(side[name])] for side in (ours, theirs))
        assert mine == sample, name
        assert ours[name].endswith(b"\n") or ours[name] == b""


@pytest.mark.parametrize("node", [1, 2])
def test_kfd_properties_are_the_samples_line_by_line_but_for_the_ids(tmp_path: Path, node: int) -> None:
    path = f"class/kfd/kfd/topology/nodes/{node}/properties"
    ours, theirs = show(working(*PAIR), tmp_path / "board")[path], files(DATA / "mixed_mi50_rx6900xt")[path]
    pairs = [line.split() for line in ours.decode().splitlines()]
    sample = [line.split() for line in theirs.decode().splitlines()]
    assert [key for key, _ in pairs] == [key for key, _ in sample]
    assert [p for p in pairs if p[0] != "unique_id"] == [p for p in sample if p[0] != "unique_id"]


def test_the_two_names_of_a_card_join(tmp_path: Path) -> None:
    """KFD's location is the PCI slot, its decimal unique id DRM's hexadecimal one; the RX has none."""
    found = show(working(*PAIR), tmp_path / "board")
    for node in (1, 2):
        lines = found[f"class/kfd/kfd/topology/nodes/{node}/properties"].decode().splitlines()
        properties = {key: int(value) for key, value in (line.split() for line in lines)}
        slot = re.search(rb"PCI_SLOT_NAME=0000:(..):00\.0\n", found[f"class/drm/card{node}/device/uevent"])
        assert slot is not None
        assert int(slot[1], 16) << 8 == properties["location_id"]
        assert f"class/drm/renderD{properties['drm_render_minor']}/.keep" in found
        unique = found.get(f"class/drm/card{node}/device/unique_id")
        assert properties["unique_id"] == (int(unique, 16) if unique else 0)


def test_values_follow_the_board(tmp_path: Path) -> None:
    board = Board.for_devices(PAIR, seed=1)
    board.advance(0, [IDLE] * 2)
    idle = show(board, tmp_path / "board")
    work = [Activity(0.5, 0.25, 1 << 30), Activity(0.79, 0.18, 2 << 30, 0.21)]
    board.advance(600 * SECOND, work)
    busy = show(board, tmp_path / "board")
    mi50, rx = "class/drm/card1/device/", "class/drm/card2/device/"
    expected = {
        mi50 + "gpu_busy_percent": (b"0\n", b"50\n"),
        rx + "gpu_busy_percent": (b"0\n", b"100\n"),
        mi50 + "mem_busy_percent": (b"0\n", b"25\n"),
        mi50 + "mem_info_vram_used": (b"0\n", b"1073741824\n"),
        mi50 + "mem_info_vis_vram_used": (b"0\n", b"1073741824\n"),
        rx + "mem_info_vram_used": (b"0\n", b"2147483648\n"),
        mi50 + "pp_dpm_sclk": (b"0: 930Mhz *\n1: 1000Mhz\n2: 1725Mhz\n", b"0: 930Mhz\n1: 1000Mhz\n2: 1725Mhz *\n"),
        rx + "pp_dpm_sclk": (b"0: 500Mhz *\n1: 1580Mhz\n2: 2660Mhz\n", b"0: 500Mhz\n1: 2312Mhz *\n2: 2660Mhz\n"),
        mi50 + "pp_dpm_mclk": (b"0: 350Mhz *\n1: 800Mhz\n2: 1000Mhz\n", b"0: 350Mhz\n1: 800Mhz\n2: 1000Mhz *\n"),
        mi50 + "current_link_speed": (b"2.5 GT/s PCIe\n", b"16.0 GT/s PCIe\n"),
        mi50 + "hwmon/hwmon4/power1_average": (b"21000000\n", b"111000000\n"),  # 21 + 0.5 · 155 + 0.25 · 50
        mi50 + "hwmon/hwmon4/freq1_input": (b"930000000\n", b"1725000000\n"),
        rx + "hwmon/hwmon5/pwm1": (b"35\n", b"173\n"),  # 68 % of 255
        rx + "hwmon/hwmon5/temp1_input": (b"37300\n", b"72100\n"),
        rx + "hwmon/hwmon5/temp2_input": (b"39200\n", b"88600\n"),
        f"class/kfd/kfd/proc/4321/vram_{gpu_id(busy, 1)}": (b"0\n", b"1073741824\n"),
        f"class/kfd/kfd/proc/4321/stats_{gpu_id(busy, 1)}/cu_occupancy": (b"0\n", b"30\n"),
    }
    board.advance(4 * 3600 * SECOND, work)
    settled = show(board, tmp_path / "board")
    for name, (before, after) in expected.items():
        late = "temp" in name or "pwm" in name
        assert (idle[name], (settled if late else busy)[name]) == (before, after), name


def gpu_id(found: dict[str, bytes], node: int) -> int:
    return int(found[f"class/kfd/kfd/topology/nodes/{node}/gpu_id"])


def test_used_memory_never_exceeds_what_there_is(tmp_path: Path) -> None:
    board = Board.for_devices(["rx6900xt"], seed=1)
    board.advance(0, [IDLE])
    board.advance(SECOND, [Activity(1.0, 0.0, 1 << 40)])
    device = "class/drm/card1/device/"
    found = show(board, tmp_path / "board")
    assert found[device + "mem_info_vram_used"] == found[device + "mem_info_vram_total"] == b"17163091968\n"


def test_only_files_whose_text_changed_are_written(tmp_path: Path) -> None:
    board = working(*PAIR)
    board.write(tmp_path / "board")
    sys = tmp_path / "board" / "sys"
    before = {name: (sys / name).stat().st_ino for name in files(sys)}
    board.write(tmp_path / "board")
    assert {name: (sys / name).stat().st_ino for name in files(sys)} == before
    texts = files(sys)
    board.advance(601 * SECOND, [card.working(0.5, 14 << 30) for card in board.cards])
    board.write(tmp_path / "board")
    now = files(sys)
    changed = {name for name in now if now[name] != texts[name]}
    assert {name for name in now if (sys / name).stat().st_ino != before[name]} == changed
    assert "class/drm/card1/device/gpu_busy_percent" in changed
    assert "class/drm/card1/device/vendor" not in changed


@pytest.mark.slow
def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    board = working("mi50-32gb")
    board.write(tmp_path / "board")
    device = tmp_path / "board" / "sys" / "class" / "drm" / "card1" / "device"
    seen: set[bytes] = set()
    sizes: set[int] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add((device / "mem_info_vram_used").read_bytes())
            sizes.add(len((device / "gpu_metrics").read_bytes()))

    reader = threading.Thread(target=read)
    reader.start()
    written = {b"15032385536\n"}
    try:
        for step in range(1, 1500):
            used = 1 if step % 2 else 10**10
            written.add(b"%d\n" % used)
            board.advance(600 * SECOND + step * SECOND // 4, [Activity(1.0, 0.1, used)])
            board.write(tmp_path / "board")
    finally:
        over.set()
        reader.join()
    assert seen <= written
    assert len(seen) > 1
    assert sizes == {80}


def test_the_folder_says_that_it_is_simulated(tmp_path: Path) -> None:
    working("mi50-32gb").write(tmp_path / "board")
    root = tmp_path / "board"
    assert "SIMULATED" in (root / "SIMULATED").read_text()
    assert {path.name for path in root.iterdir() if not path.name.startswith(".")} == {
        *("SIMULATED", "sys", "dev", "kernel.log")
    }
    assert [path.name for path in (root / "dev").iterdir()] == ["kmsg"]


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="holds something else"):
        working("mi50-32gb").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(UsageError, match="cannot be written"):
        working("mi50-32gb").write(tmp_path / "mine.txt")


@pytest.mark.parametrize("name", ["sys", "kernel.log", ".fresh"])
def test_a_link_in_an_earlier_boards_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    board, mine = tmp_path / "board", tmp_path / "mine"
    working("mi50-32gb").write(board)
    if name == "sys":
        mine.mkdir()
    else:
        mine.write_text("x")
    (board / "earlier").mkdir()
    for entry in (board / "sys", board / "kernel.log"):
        entry.rename(board / "earlier" / entry.name)
    (board / name).symlink_to(mine)
    with pytest.raises(UsageError, match=f"{name} is a link"):
        working("mi50-32gb").write(board)
    assert list(mine.iterdir()) == [] if name == "sys" else mine.read_text() == "x"


def test_what_a_user_put_beside_the_board_stays(tmp_path: Path) -> None:
    show(working("mi50-32gb"), tmp_path)
    (tmp_path / "proc").symlink_to("/proc")
    show(working("mi50-32gb"), tmp_path)
    assert (tmp_path / "proc").is_symlink()


def test_a_text_that_the_disk_takes_half_of_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = working("mi50-32gb")
    before = show(board, tmp_path)
    board.advance(900 * SECOND, [IDLE])
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(UsageError, match="No space left"):
        board.write(tmp_path)
    assert files(tmp_path / "sys") == before


def test_an_earlier_boards_folder_is_taken_over_whole(tmp_path: Path) -> None:
    show(working(*PAIR), tmp_path)
    board = working("mi300x")
    first = show(board, tmp_path)
    assert not any("card2/" in name for name in first)
    assert first == show(working("mi300x"), tmp_path / "fresh")
    assert (tmp_path / "kernel.log").read_text().count("\n") == len(board.log)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ids(tmp_path: Path) -> None:
    def tree(seed: int, folder: str) -> dict[str, bytes]:
        board = Board.for_devices(PAIR, seed)
        board.advance(0, [IDLE] * 2)
        return show(board, tmp_path / folder)

    first = tree(1, "a")
    assert tree(1, "b") == first
    assert gpu_id(tree(2, "c"), 1) != gpu_id(first, 1)


def test_a_fallen_card_takes_all_its_folders_along_and_nodes_close_the_gap(tmp_path: Path) -> None:
    board = working(*PAIR)
    before = show(board, tmp_path / "board")
    board.inject(BoardFault("fallen-off", card=0), 600 * SECOND)
    board.advance(601 * SECOND, [IDLE] * 2)
    after = show(board, tmp_path / "board")
    sys = tmp_path / "board" / "sys" / "class"
    assert sorted(path.name for path in (sys / "drm").iterdir()) == ["card0", "card2", "card2-DP-1", "renderD129"]
    assert sorted(path.name for path in (sys / "kfd/kfd/topology/nodes").iterdir()) == ["0", "1"]
    assert after["class/kfd/kfd/topology/nodes/1/name"] == b"sienna_cichlid\n"
    assert gpu_id(after, 1) == gpu_id(before, 2)
    assert b"\nio_links_count 1\n" in after["class/kfd/kfd/topology/nodes/0/properties"]
    assert b"\np2p_links_count 0\n" in after["class/kfd/kfd/topology/nodes/1/properties"]
    assert (before["class/kfd/kfd/topology/generation_id"], after["class/kfd/kfd/topology/generation_id"]) == (
        b"1\n",
        b"2\n",
    )
    assert not list((tmp_path / "board").rglob(".gone"))
