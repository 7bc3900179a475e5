"""Which cards there are, and the forms of their files."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.telemetry.cards.drm import (
    KnownCards,
    clean,
    find_cards,
    parse_bad_pages,
    parse_link_speed,
    parse_ras_counts,
    parse_uevent,
    read_asleep,
    read_bad_pages,
    scaled,
)
from cadenza.telemetry.root import UnreadableError

SYSFS = Path(__file__).parents[2] / "data/sysfs"
PARTITIONED = Path(__file__).parents[2] / "data/telemetry/sysfs/mi300x_cpx"


def stand(tree: Path, root: Path) -> Path:
    """A root whose sys is `tree`."""
    root.mkdir(exist_ok=True)
    (root / "sys").symlink_to(tree)
    return root


def add_card(root: Path, name: str, driver: str = "amdgpu", slot: str = "0000:03:00.0", vendor: str = "0x1002") -> Path:
    device = root / "sys/class/drm" / name / "device"
    device.mkdir(parents=True)
    (device / "uevent").write_text(f"DRIVER={driver}\nPCI_SLOT_NAME={slot}\n", encoding="ascii")
    (device / "vendor").write_text(f"{vendor}\n", encoding="ascii")
    return device


@pytest.mark.parametrize(
    ("tree", "cards"),
    [
        (SYSFS / "mixed_mi50_rx6900xt", [("0000:03:00.0", "card1"), ("0000:43:00.0", "card2")]),
        (SYSFS / "mi300x_spx", [("0000:0c:00.0", "card1"), ("0000:22:00.0", "card9")]),
        (PARTITIONED, [("0000:0c:00.0", "card1")]),
    ],
)
def test_cards_of_the_samples(tmp_path: Path, tree: Path, cards: list[tuple[str, str]]) -> None:
    """card0 is a server's own display, card2-DP-1 a connector, and the other cards of the MI300X its partitions."""
    assert [(path.gpu, path.card) for path in find_cards(stand(tree, tmp_path))] == cards


@pytest.mark.parametrize(
    ("name", "driver", "slot", "vendor"),
    [
        ("renderD128", "amdgpu", "0000:03:00.0", "0x1002"),
        ("card1-DP-1", "amdgpu", "0000:03:00.0", "0x1002"),
        ("cardx", "amdgpu", "0000:03:00.0", "0x1002"),
        ("card1", "vfio-pci", "0000:03:00.0", "0x1002"),
        ("card1", "amdgpu", "0000:03:00.0", "0x1a03"),
        ("card1", "amdgpu", "0000:03:00.0", "AMD"),
        ("card1", "amdgpu", "../../etc", "0x1002"),
        ("card1", "amdgpu", "", "0x1002"),
    ],
)
def test_what_is_no_card_of_ours(tmp_path: Path, name: str, driver: str, slot: str, vendor: str) -> None:
    add_card(tmp_path, "card7", slot="0000:43:00.0")
    add_card(tmp_path, name, driver, slot, vendor)
    assert [path.card for path in find_cards(tmp_path)] == ["card7"]


def test_cards_come_by_number_and_their_address_in_lower_case(tmp_path: Path) -> None:
    for number in (10, 2):
        add_card(tmp_path, f"card{number}", slot=f"0000:{number:02X}:00.0")
    assert [(path.card, path.gpu) for path in find_cards(tmp_path)] == [
        ("card2", "0000:02:00.0"),
        ("card10", "0000:0a:00.0"),
    ]


def test_who_a_card_is_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_card(tmp_path, "card1")
    add_card(tmp_path, "card2", driver="vfio-pci", slot="0000:43:00.0")
    known: KnownCards = {}
    before = find_cards(tmp_path, known)
    assert [path.gpu for path in before] == ["0000:03:00.0"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: pytest.fail("a file was opened"))
        assert find_cards(tmp_path, known) == before
    (tmp_path / "sys/class/drm/card1").rename(tmp_path / "aside")
    assert find_cards(tmp_path, known) == []
    assert known.keys() == {"card2"}
    add_card(tmp_path, "card1", slot="0000:04:00.0")
    fresh = tmp_path / "fresh"
    fresh.write_text("DRIVER=amdgpu\nPCI_SLOT_NAME=0000:44:00.0\n", encoding="ascii")
    fresh.rename(tmp_path / "sys/class/drm/card2/device/uevent")
    assert [(path.card, path.gpu) for path in find_cards(tmp_path, known)] == [
        ("card1", "0000:04:00.0"),
        ("card2", "0000:44:00.0"),
    ]


def test_a_card_that_was_taken_anew_has_another_life(tmp_path: Path) -> None:
    """Its folder is another; the bus's `uevent` stays, but the driver that it names may be another too."""
    device = add_card(tmp_path, "card1")
    known: KnownCards = {}
    (before,) = find_cards(tmp_path, known)
    assert find_cards(tmp_path, known) == [before]
    card = tmp_path / "sys/class/drm/card1"
    card.rename(tmp_path / "before")
    add_card(tmp_path, "card1")
    (after,) = find_cards(tmp_path, known)
    assert after.life != before.life
    assert after._replace(life=before.life) == before
    stamp = (device / "uevent").stat()
    (device / "uevent").write_text("DRIVER=radeon\nPCI_SLOT_NAME=0000:03:00.0\n", encoding="ascii")
    os.utime(device / "uevent", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    card.rename(tmp_path / "amdgpu's")
    card.mkdir()
    (tmp_path / "amdgpu's/device").rename(card / "device")
    assert find_cards(tmp_path, known) == []


def add_node(root: Path, device: Path, node: str) -> None:
    """A render node as sysfs has it; not the device file."""
    (device / "drm" / node).mkdir(parents=True)
    (root / "sys/class/drm" / node).mkdir()


@pytest.mark.parametrize(
    ("nodes", "cards"),
    [
        (None, ["card1", "card2", "card3"]),  # sysfs alone
        ([], ["card1", "card2", "card3"]),
        (["card1", "card2", "by-path"], ["card1", "card2", "card3"]),
        (["renderD128", "renderD129", "card1", "card2"], ["card1", "card2", "card3"]),  # a host: all are there
        (["renderD129"], ["card2", "card3"]),
        (["renderD128", "card1"], ["card1", "card3"]),
        (["renderD200"], ["card3"]),  # of a card that is gone: its neighbours are still not ours
        (["renderD129", "renderD200"], ["card2", "card3"]),
        (["renderD129", "renderD130"], ["card1", "card2", "card3"]),  # a partition, or another maker's
        (["renderD130"], ["card1", "card2", "card3"]),
    ],
)
def test_in_a_container_only_the_cards_that_were_passed_in(
    tmp_path: Path, nodes: list[str] | None, cards: list[str]
) -> None:
    """Of the third card the files do not tell the node: it stays."""
    add_node(tmp_path, add_card(tmp_path, "card1", slot="0000:03:00.0"), "renderD128")
    add_node(tmp_path, add_card(tmp_path, "card2", slot="0000:43:00.0"), "renderD129")
    add_card(tmp_path, "card3", slot="0000:83:00.0")
    (tmp_path / "sys/class/drm/renderD130").mkdir()
    if nodes is not None:
        (tmp_path / "dev/dri").mkdir(parents=True)
    for node in nodes or []:
        (tmp_path / "dev/dri" / node).touch()
    assert [path.card for path in find_cards(tmp_path)] == cards


def test_no_tree_is_no_cards(tmp_path: Path) -> None:
    assert find_cards(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("status", "asleep"),
    [
        *(("suspended", True), ("suspending", True)),
        *(("active", False), ("resuming", False), ("unsupported", False), ("error", False)),
    ],
)
def test_who_sleeps(tmp_path: Path, status: str, asleep: bool) -> None:
    (tmp_path / "power").mkdir()
    (tmp_path / "power/runtime_status").write_text(f"{status}\n", encoding="ascii")
    assert read_asleep(tmp_path) is asleep


def test_a_card_without_the_file_cannot_sleep_and_one_that_says_nonsense_is_left_alone(tmp_path: Path) -> None:
    assert read_asleep(tmp_path) is False
    (tmp_path / "power").mkdir()
    (tmp_path / "power/runtime_status").write_text("dreaming\n", encoding="ascii")
    with pytest.raises(UnreadableError) as caught:
        read_asleep(tmp_path)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize(
    ("text", "transfers_per_s"),
    [
        *(("16.0 GT/s PCIe", 16e9), ("8 GT/s", 8e9), ("2.5 GT/s PCIe", 2.5e9), ("32.0 GT/s PCIe", 32e9)),
        ("64.0 GT/s PCIe", 64e9),
    ],
)
def test_link_speeds(text: str, transfers_per_s: float) -> None:
    assert parse_link_speed(text) == transfers_per_s


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(("Unknown", "not_supported"), ("Unknown speed", "not_supported")),
        *(("16.0 MT/s", "malformed"), ("GT/s", "malformed"), ("-8 GT/s", "malformed"), ("1e9 GT/s", "malformed")),
        *(("16.0 GT/s PCIe\n8.0 GT/s PCIe", "malformed"), ("٣ GT/s", "malformed")),
    ],
)
def test_what_is_no_link_speed(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_link_speed(text)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("ue: 0\nce: 3", {"uncorrectable": 0, "correctable": 3}),
        ("ue: 1\nce: 2\nde: 3", {"uncorrectable": 1, "correctable": 2, "deferred": 3}),
        ("ue: 1\nxe: 9\nce: -2", {"uncorrectable": 1}),
    ],
)
def test_ras_counts(text: str, counts: dict[str, int]) -> None:
    assert parse_ras_counts(text) == counts


@pytest.mark.parametrize(
    ("text", "reason"), [("Query currently inaccessible", "asleep"), ("ue 0", "malformed"), ("ue: N/A", "malformed")]
)
def test_what_is_no_ras_count(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_ras_counts(text)
    assert caught.value.reason == reason


def test_bad_pages_by_state() -> None:
    text = "gpu pfn : gpu page size : flags\n0x00abcd12 : 0x00001000 : R\n0x1 : 0x1000 : P\n0x2 : 0x1000 : R\nnonsense"
    assert parse_bad_pages(text) == {"retired": 2, "pending": 1, "failed": 0}
    assert parse_bad_pages("") == {"retired": 0, "pending": 0, "failed": 0}
    assert parse_bad_pages("gpu pfn: gpu page size : flags\n") == {"retired": 0, "pending": 0, "failed": 0}


@pytest.mark.parametrize(
    ("text", "reason"), [("N/A\n", "malformed"), ("Query currently inaccessible\n", "asleep"), ("0\n", "malformed")]
)
def test_what_is_no_list_of_bad_pages_is_not_three_zeros(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_bad_pages(text)
    assert caught.value.reason == reason


def test_bad_pages_beyond_one_page_of_text(tmp_path: Path) -> None:
    (tmp_path / "ras").mkdir()
    lines = [f"0x{page:08x} : 0x00001000 : {'RPF'[page % 3]}\n" for page in range(3000)]
    (tmp_path / "ras/gpu_vram_bad_pages").write_text("".join(lines), encoding="ascii")
    assert read_bad_pages(tmp_path) == {"retired": 1000, "pending": 1000, "failed": 1000}


def test_bad_pages_without_end_are_out_of_range(tmp_path: Path) -> None:
    (tmp_path / "ras").mkdir()
    (tmp_path / "ras/gpu_vram_bad_pages").write_bytes(b"x" * (1 << 20) + b"y")
    with pytest.raises(UnreadableError) as caught:
        read_bad_pages(tmp_path)
    assert caught.value.reason == "out_of_range"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("113-D1631700-111", "113-D1631700-111"), ("N/A", ""), ("n/a", ""), ("None", ""), ("a\nb", "")),
        *(("\x1b[31mred", ""), ("x" * 97, ""), ("x" * 96, "x" * 96), ("�", "")),
    ],
)
def test_facts_can_be_label_values(text: str, value: str) -> None:
    assert clean(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(("", "not_supported"), ("\n", "not_supported"), ("N/A", "malformed"), ("1.5", "malformed")),
        *(("9" * 40, "out_of_range"), ("-" + "9" * 40, "out_of_range"), ("9" * 5000, "malformed")),
    ],
)
def test_a_number_that_is_none(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "file").write_text(text, encoding="ascii")
    with pytest.raises(UnreadableError) as caught:
        scaled(tmp_path / "file", 1000)()
    assert caught.value.reason == reason


def test_a_number_is_scaled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("58250\n", encoding="ascii")
    assert scaled(tmp_path / "file", 1000)() == 58.25


@given(st.text(max_size=300))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert all(isinstance(value, str) for value in parse_uevent(text).values())
    assert len(clean(text)) <= 96
    for parse in (parse_link_speed, parse_ras_counts, parse_bad_pages):
        with contextlib.suppress(UnreadableError):
            assert parse(text)
