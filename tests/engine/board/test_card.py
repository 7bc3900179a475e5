from pathlib import Path

import pytest

from cadenza.engine.board import card as module
from cadenza.engine.board.card import Activity, load, names
from cadenza.errors import UsageError

CARDS = Path(module.__file__).parent / "cards"


def test_the_cards_that_come_with_the_package() -> None:
    assert names() == ["mi300x", "mi50-32gb", "rx6900xt"]
    assert [load(name).name for name in names()] == names()


@pytest.mark.parametrize(
    ("name", "vram_gib", "compute_units"), [("mi50-32gb", 32, 60), ("rx6900xt", 16, 80), ("mi300x", 192, 304)]
)
def test_a_card_is_what_its_maker_says(name: str, vram_gib: int, compute_units: int) -> None:
    card = load(name)
    assert card.vram_bytes / 2**30 == pytest.approx(vram_gib, rel=0.01)
    properties = card.kfd.properties
    assert properties["simd_count"] // properties["simd_per_cu"] == compute_units
    assert properties["vendor_id"] == 0x1002
    assert card.files.fixed["device"] == f"0x{properties['device_id']:04x}"


@pytest.mark.parametrize("name", names())
def test_every_number_says_where_it_comes_from(name: str) -> None:
    marks = ("steady", "tree", "dump", "metrics", "assumed", "calibrated")
    section = ""
    for line in (CARDS / f"{name}.toml").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]").split("]")[0]
        number = line.partition("=")[2].strip()[:1].isdigit() and section in {"power", "clock", "cooler"}
        if number and "levels_mhz" not in line:
            assert any(mark in line for mark in marks), line


def test_work_is_a_share_of_the_soak() -> None:
    assert load("rx6900xt").working(0.5, 123) == Activity(0.395, 0.09, 123, waiting=0.105)
    assert load("mi50-32gb").working(0.0, 7) == Activity(0.0, 0.0, 7)


@pytest.mark.parametrize("name", ["h100", "", "../mi50-32gb"])
def test_an_unknown_card_is_a_usage_error_that_names_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"mi300x, mi50-32gb, rx6900xt, or a \.toml file"):
        load(name)


def test_a_card_of_ones_own_comes_from_a_file(tmp_path: Path) -> None:
    text = (CARDS / "mi50-32gb.toml").read_text()
    own = tmp_path / "own.toml"
    own.write_text(text.replace('name = "mi50-32gb"', 'name = "own"'))
    assert load(str(own)).name == "own"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[duct]", "[duckt]", "duckt"),
        ("idle_w = 21 ", "idle_w = 'x' ", "idle_w"),
        ("sink_c = 60 ", "sink_c = 20 ", "no heat would flow"),
        ("idle_mhz = 930 ", "idle_mhz = 1930 ", "idle_mhz"),
        ("[power]", "[power", "TOML|Expected|Invalid"),
    ],
)
def test_a_broken_file_is_a_usage_error_that_says_where(tmp_path: Path, old: str, new: str, says: str) -> None:
    own = tmp_path / "own.toml"
    text = (CARDS / "mi50-32gb.toml").read_text()
    assert old in text
    own.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=r"own\.toml") as caught:
        load(str(own))
    assert caught.match(says)


def test_a_card_has_a_fan_or_a_duct(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    duct = "\n[duct]\nairflow_m3_h = 1\nsoak_airflow_m3_h = 1\n"
    own.write_text((CARDS / "rx6900xt.toml").read_text() + duct)
    with pytest.raises(UsageError, match="either a"):
        load(str(own))


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml"):
        load(str(tmp_path / "none.toml"))
