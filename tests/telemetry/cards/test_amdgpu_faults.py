"""AMD cards that sleep, fail, fall off and come back, and files with anything in them."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cadenza.clock import ManualClock
from cadenza.readings import Missing
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.findings import RANGES
from support.amdgpu_trees import (
    MI50,
    MI50_TOLD,
    MIXED,
    PATHS,
    RX,
    RX_TOLD,
    device,
    info,
    missing,
    stand,
    told,
    write,
)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return stand(MIXED, tmp_path)


def opened_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files below `folder` that are opened from now on."""
    names: list[str] = []
    real = os.open

    def note(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if Path(path).is_relative_to(folder):
            names.append(str(Path(path).relative_to(folder)))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", note)
    return names


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_card_that_sleeps_is_left_alone(mixed: Path, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    write(device(mixed) / "power/runtime_status", f"{status}\n")
    names = opened_below(device(mixed), monkeypatch)
    collected = AmdgpuCollector(mixed, processes=True).collect()
    assert set(names) == {"uevent", "vendor", "power/runtime_status"}  # what the PCI core knows by itself
    assert told(collected, MI50) == {"suspended": 1, "up": 1}
    families = {name for name in FAMILIES if name.startswith("gpu_") and "process" not in name}
    others = families - {"gpu_pcie_received_bytes_per_second", "gpu_pcie_sent_bytes_per_second"}
    assert missing(collected, MI50) == {
        (name.removeprefix("gpu_"), "asleep") for name in others - {"gpu_info", "gpu_up", "gpu_suspended"}
    }
    assert told(collected, RX)["busy_ratio"] == 1.0


def test_a_card_that_falls_asleep_keeps_its_name_and_wakes_up(mixed: Path) -> None:
    collector = AmdgpuCollector(mixed)
    awake = info(collector.collect(), MI50)
    write(device(mixed) / "power/runtime_status", "suspended\n")
    assert info(collector.collect(), MI50) == awake
    write(device(mixed) / "power/runtime_status", "active\n")
    assert told(collector.collect(), MI50) == pytest.approx(MI50_TOLD)


def test_a_card_that_fell_asleep_between_two_looks_is_not_woken(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for what is due either: limits and links after 2 s, errors after 10."""
    clock = ManualClock()
    collector = AmdgpuCollector(mixed, processes=True, clock=clock)
    collector.collect()
    write(device(mixed) / "power/runtime_status", "suspended\n")
    names = opened_below(device(mixed), monkeypatch)
    for at_s in (1, 2, 60):
        clock.advance_to(at_s * 10**9)
        assert told(collector.collect(), MI50) == {"suspended": 1, "up": 1}
    assert set(names) == {"power/runtime_status"}
    write(device(mixed) / "power/runtime_status", "active\n")
    write(device(mixed) / "hwmon/hwmon4/power1_cap", "200000000\n")
    assert told(collector.collect(), MI50)["power_cap_watts"] == 200


def test_a_card_whose_folder_is_gone_but_not_its_name_is_down_at_the_next_look(mixed: Path) -> None:
    collector = AmdgpuCollector(mixed)
    collector.collect()
    shutil.rmtree(device(mixed))
    assert told(collector.collect(), MI50) == {"up": 0}


def test_another_card_under_the_same_name_is_another_card(mixed: Path) -> None:
    collector = AmdgpuCollector(mixed)
    collector.collect()
    other = "0000:09:00.0"
    uevent = device(mixed) / "uevent"
    write(uevent, uevent.read_text(encoding="ascii").replace(MI50, other))
    collected = collector.collect()
    assert told(collected, MI50) == {"up": 0}
    assert told(collected, other)["busy_ratio"] == 0.97


def exchange(card: Path, aside: Path) -> None:
    """A copy of the card in its place: a driver took it anew."""
    card.rename(aside)
    shutil.copytree(aside, card)


def test_another_card_at_the_same_address_is_another_card_at_once(mixed: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    collector = AmdgpuCollector(mixed, clock=clock)
    collector.collect()
    exchange(mixed / "sys/class/drm/card1", tmp_path / "aside")
    write(device(mixed) / "serial_number", "fedcba987654\n")
    write(device(mixed) / "hwmon/hwmon4/power1_cap", "150000000\n")
    write(device(mixed) / "ras/umc_err_count", "ue: 0\nce: 0\n")
    clock.advance_to(10**8)
    collected = collector.collect()
    assert info(collected, MI50)["serial"] == "fedcba987654"
    now = {"power_cap_watts": 150, "ras_errors_total.umc.correctable": 0}
    assert told(collected, MI50) == pytest.approx(MI50_TOLD | now)


def test_a_driver_that_was_loaded_anew_is_told_by_its_version(mixed: Path, tmp_path: Path) -> None:
    """Also one that comes only after the collector: until then the kernel's version would stand for it."""
    (mixed / "proc/sys/kernel").mkdir(parents=True)
    write(mixed / "proc/sys/kernel/osrelease", "6.11.0\n")
    card, aside = mixed / "sys/class/drm/card1", tmp_path / "aside"
    card.rename(aside)
    collector = AmdgpuCollector(mixed)
    assert info(collector.collect(), RX)["driver"] == "6.11.0"
    (mixed / "sys/module/amdgpu").mkdir(parents=True)
    write(mixed / "sys/module/amdgpu/version", "6.10.5\n")
    aside.rename(card)
    assert info(collector.collect(), MI50)["driver"] == "6.10.5"
    write(mixed / "sys/module/amdgpu/version", "6.12.12\n")
    exchange(card, aside)
    assert info(collector.collect(), MI50)["driver"] == "6.12.12"


def test_kfd_may_count_its_changes_to_the_same_number_again(mixed: Path, tmp_path: Path) -> None:
    collector = AmdgpuCollector(mixed)
    assert info(collector.collect(), MI50)["kfd_node"] == "1"
    nodes = mixed / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "1").rename(nodes / "7")
    exchange(mixed / "sys/class/drm/card1", tmp_path / "aside")
    assert info(collector.collect(), MI50)["kfd_node"] == "7"


def test_a_card_that_was_not_passed_in_is_not_told(mixed: Path) -> None:
    for card, node in (("card1", "renderD128"), ("card2", "renderD129")):
        (device(mixed, card) / "drm" / node).mkdir(parents=True)
    (mixed / "dev/dri").mkdir(parents=True)
    write(mixed / "dev/dri/renderD129", "")
    collector = AmdgpuCollector(mixed)
    collected = collector.collect()
    assert {dict(reading.labels)["gpu"] for reading in collected.readings} == {RX}
    assert told(collected, RX) == pytest.approx(RX_TOLD)
    shutil.rmtree(mixed / "sys/class/drm/card2")
    shutil.rmtree(mixed / "sys/class/drm/renderD129")
    assert [(dict(r.labels)["gpu"], r.value) for r in collector.collect().readings] == [(RX, 0.0)]


def test_a_state_that_cannot_be_told_is_not_tried_out(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(device(mixed) / "power/runtime_status", "dreaming\n")
    names = opened_below(device(mixed), monkeypatch)
    collected = AmdgpuCollector(mixed).collect()
    assert "gpu_busy_percent" not in names
    assert ("suspended", "malformed") in missing(collected, MI50)
    assert told(collected, MI50) == {"up": 1}


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path, code: int, *spared: str) -> None:
    """Opening any file below `folder` but those fails with `code`."""
    real = os.open

    def fail(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if Path(path).is_relative_to(folder) and Path(path).name not in spared:
            raise OSError(code, "refused")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", fail)


KNOWN_TO_PCI = ("uevent", "vendor", "device", "revision", "runtime_status", "name")


@pytest.mark.parametrize(
    ("code", "reason", "up"),
    [
        (errno.EPERM, "asleep", 1),  # resetting, or it fell asleep meanwhile
        (errno.EACCES, "denied", 1),
        (errno.ENODATA, "not_supported", 1),
        (errno.EIO, "failed", 0),  # it fell off the bus, and the driver still shows its files
        (errno.ETIMEDOUT, "timeout", 0),
    ],
)
def test_a_card_whose_files_all_fail(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str, up: int
) -> None:
    refuse(monkeypatch, device(mixed), code, *KNOWN_TO_PCI)
    collected = AmdgpuCollector(mixed).collect()
    assert told(collected, MI50) == {"suspended": 0, "up": up}
    assert {"busy_ratio", "temperature_celsius", "power_watts", "throttled", "bad_pages"} <= {
        name for name, why in missing(collected, MI50) if why == reason
    }
    assert told(collected, RX) == pytest.approx(RX_TOLD)


def test_a_card_that_was_resetting_at_first_sight_is_named_later(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = AmdgpuCollector(mixed)
    with monkeypatch.context() as patched:
        refuse(patched, device(mixed), errno.EPERM, *KNOWN_TO_PCI)
        assert info(collector.collect(), MI50)["serial"] == ""
    assert info(collector.collect(), MI50)["serial"] == "0123456789ab"


def test_a_card_that_is_gone_is_down_until_it_is_back(mixed: Path, tmp_path: Path) -> None:
    collector = AmdgpuCollector(mixed)
    collector.collect()
    card, aside = mixed / "sys/class/drm/card1", tmp_path / "aside"
    card.rename(aside)
    for _ in range(3):
        gone = collector.collect()
        assert told(gone, MI50) == {"up": 0}
        assert missing(gone, MI50) == set()
        assert told(gone, RX) == pytest.approx(RX_TOLD)
    aside.rename(mixed / "sys/class/drm/card3")  # under another number, as after a rescan
    back = collector.collect()
    assert told(back, MI50) == pytest.approx(MI50_TOLD)
    assert info(back, MI50)["card"] == "card3"


def test_a_card_that_got_another_number_between_two_looks_is_the_same(mixed: Path) -> None:
    collector = AmdgpuCollector(mixed)
    collector.collect()
    (mixed / "sys/class/drm/card1").rename(mixed / "sys/class/drm/card3")
    collected = collector.collect()
    assert told(collected, MI50) == pytest.approx(MI50_TOLD)
    assert info(collected, MI50)["card"] == "card3"


def test_all_cards_gone_is_not_no_card(mixed: Path) -> None:
    collector = AmdgpuCollector(mixed)
    collector.collect()
    shutil.rmtree(mixed / "sys/class/drm")
    assert [(dict(r.labels)["gpu"], r.value) for r in collector.collect().readings] == [(MI50, 0.0), (RX, 0.0)]
    assert AmdgpuCollector(mixed).collect() == ([], [Missing("amdgpu", "", "absent")])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(choice=st.integers(0, 10**6), data=st.one_of(st.binary(max_size=200), st.from_regex(rb"-?[0-9]{1,30}\n?")))
def test_any_bytes_in_any_file_break_nothing_else(mixed: Path, choice: int, data: bytes) -> None:
    files = [path for path in PATHS if "card2" not in path.parts]
    path = mixed / "sys" / files[choice % len(files)]
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        collected = AmdgpuCollector(mixed, processes=True).collect()
    finally:
        path.write_bytes(before)
    for name, labels, value in collected.readings:
        low, high = RANGES.get(name, (0, 2.0**64))
        assert low <= value <= high
        assert tuple(label for label, _ in labels) == FAMILIES[name].labels
        assert all(text.isprintable() for _, text in labels)
    assert {key: value for key, value in told(collected, RX).items() if "process" not in key} == pytest.approx(RX_TOLD)
