"""Hours of a board whose cards vanish, return, are exchanged, sleep, wake and reset, against what befell them."""

import errno
import gc
import os
import random
import shutil
import struct
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from cadenza.clock import NS_PER_S, ManualClock
from cadenza.readings import Reason
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.exposition import Kept, Table, render, tabulate
from cadenza.telemetry.sampler import Sampler
from support.amdgpu_trees import SYSFS

METRICS = (SYSFS / "gpu_metrics/rx6900xt_v1_3.bin").read_bytes()
ENERGY_AT = 24  # of v1_3, and behind it the driver's clock
UNITS_PER_J = 1 << 16
MOST_UNITS = 150 * UNITS_PER_J  # half a second at 300 W
STEP_NS = NS_PER_S // 2
LOOKS_IN_2_S = 4
AFTER = {
    "awake": ("gone", "asleep", "asleep", "resetting", "exchanged"),
    "asleep": ("awake", "awake", "awake", "gone", "exchanged"),
    "resetting": ("awake",),
    "gone": ("awake", "exchanged"),
}


class Slot:
    """A place on the bus, the files of the card in it, and what must be told of that card.

    Energy counts in 2⁻¹⁶ J and in 32 bits. One that sleeps may lose its count, and then has drawn next to nothing.
    """

    def __init__(self, root: Path, number: int, dice: random.Random) -> None:
        self.gpu = f"0000:{number:02x}:00.0"
        self.folder, self.aside = root / f"sys/class/drm/card{number}", root / f"aside{number}"
        self.dice = dice
        self.state, self.cards, self.units = "gone", 0, 0
        self.turn("exchanged")

    def turn(self, state: str) -> None:
        before, self.state = self.state, "awake" if state == "exchanged" else state
        if state == "exchanged" or before == "gone":
            self.come(is_new=state == "exchanged", was_there=before != "gone")
        elif state == "gone":
            self.folder.rename(self.aside)
        elif "asleep" in (before, state):
            self.rested = True
            if state == "awake" and self.dice.random() < 0.5 and self.units > 2 * MOST_UNITS:
                self.units = 0
        if state != "gone":
            self.write("power/runtime_status", "suspended\n" if state == "asleep" else "active\n")

    def come(self, *, is_new: bool, was_there: bool) -> None:
        """A new card's folder is made while the old one still has its number; of an old one no wrap is remembered."""
        if is_new:
            shutil.rmtree(self.aside, ignore_errors=True)
            if was_there:
                self.folder.rename(self.aside)
            (self.folder / "device/power").mkdir(parents=True)
            self.cards += 1
            self.write("uevent", f"DRIVER=amdgpu\nPCI_SLOT_NAME={self.gpu}\n")
            self.write("vendor", "0x1002\n")
            self.write("serial_number", f"no. {self.cards}\n")
            shutil.rmtree(self.aside, ignore_errors=True)
            self.units = self.dice.randrange(1, 2**32 - 1)
            self.replays = deque([0], maxlen=LOOKS_IN_2_S)
        else:
            self.aside.rename(self.folder)
            self.replays = deque([self.replays[-1]], maxlen=LOOKS_IN_2_S)
        self.joules, self.rested, self.known = 0.0, False, False

    def work(self, now_ns: int) -> None:
        drawn = 1 if self.rested else self.dice.randint(1, MOST_UNITS)
        if (self.units + drawn) % 2**32 in (0, 2**32 - 1):  # which mean that there is no counter
            drawn += 2
        self.units = (self.units + drawn) % 2**32
        self.joules = self.joules + drawn / UNITS_PER_J if self.known else self.units / UNITS_PER_J
        self.replays.append(self.replays[-1] + self.dice.randint(0, 1))
        self.busy = self.dice.randint(0, 100)
        fields = struct.pack("<QQ", self.units, now_ns)
        self.write("gpu_metrics", METRICS[:ENERGY_AT] + fields + METRICS[ENERGY_AT + len(fields) :])
        self.write("gpu_busy_percent", f"{self.busy}\n")
        self.write("pcie_replay_count", f"{self.replays[-1]}\n")

    def check(self, series: dict[str, float], infos: list[dict[str, str]]) -> None:
        """`series` and `infos` are all that is told of this place."""
        assert series.pop("gpu_up") == (self.state != "gone")
        if self.state == "gone":
            assert (series, infos) == ({}, [])
            return
        (info,) = infos
        self.known = self.known or self.state == "awake"
        assert info["serial"] == (f"no. {self.cards}" if self.known else "")
        assert series.pop("gpu_suspended") == (self.state == "asleep")
        if self.state == "asleep":
            assert series == {}
        elif self.state == "resetting":
            assert not series.keys() & {"gpu_busy_ratio", "gpu_energy_joules_total"}
        else:
            assert series["gpu_busy_ratio"] == self.busy / 100
            assert series["gpu_energy_joules_total"] == pytest.approx(self.joules, rel=1e-12)
            assert series["gpu_pcie_replays_total"] in self.replays
            self.rested = False

    def write(self, name: str, data: str | bytes) -> None:
        (self.folder / "device" / name).write_bytes(data.encode() if isinstance(data, str) else data)


def refuse_while_resetting(slots: list[Slot], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then every file answers EPERM, but those that the bus has an answer to."""
    real = os.open

    def open_(path: Any, *rest: Any, **named: Any) -> int:
        resets = any(slot.state == "resetting" and str(path).startswith(f"{slot.folder}/") for slot in slots)
        if resets and not str(path).endswith(("uevent", "vendor", "runtime_status")):
            raise OSError(errno.EPERM, "resetting")
        return real(path, *rest, **named)

    monkeypatch.setattr("cadenza.telemetry.root.os.open", open_)


def of_each_card(table: Table) -> tuple[dict[str, dict[str, float]], dict[str, list[dict[str, str]]]]:
    """By address: series without other labels, or the families of those that have some; and the facts."""
    series: dict[str, dict[str, float]] = {}
    infos: dict[str, list[dict[str, str]]] = {}
    for name, family in table.items():
        for labels, value in family.items():
            gpu = dict(labels).get("gpu", "")
            if name == "gpu_info":
                infos.setdefault(gpu, []).append(dict(labels))
            else:
                series.setdefault(gpu, {})[name] = value
    return series, infos


@pytest.mark.parametrize("rounds", [400, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_whatever_befalls_cards_the_page_says_what_is_so(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, clock = random.Random(5), ManualClock()
    slots = [Slot(tmp_path, number, dice) for number in (1, 2, 3)]
    refuse_while_resetting(slots, monkeypatch)
    sampler = Sampler([AmdgpuCollector(tmp_path, clock=clock)], clock=clock)
    kept: Kept = {}
    counted: dict[Reason, int] = {}
    blocks: list[int] = []
    turns = 0
    for number in range(rounds):
        for slot in slots:
            if number and dice.random() < 0.03:
                slot.turn(dice.choice(AFTER[slot.state]))
                turns += 1
            if slot.state in ("awake", "resetting"):
                slot.work(clock.now_ns())
        sampler.poll()
        clock.advance_to(clock.now_ns() + STEP_NS)
        (state,) = sampler.states()
        assert state.age_s == 0.5
        assert all(state.missing[reason] >= count for reason, count in counted.items())
        counted = state.missing
        table = tabulate([state], "0", number)
        series, infos = of_each_card(table)
        for slot in slots:
            slot.check(series[slot.gpu], infos.get(slot.gpu, []))
        if number % 7 == 0:
            for openmetrics in (False, True):
                assert render(table, openmetrics, kept) == render(table, openmetrics)
        if number % 100 == 0:
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert turns > rounds // 20
    half = len(blocks) // 2
    assert max(blocks[half:]) < max(blocks[:half]) + 3000
