"""Sampling in virtual time: on the grid, the numbers of the engine's own page, and cards read as a machine's are."""

import json
import os
from pathlib import Path

import pytest

from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.board.card import load as load_card
from cadenza.load.fetch import Page
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import IN_PROCESS
from cadenza.load.transport import Origin
from cadenza.readings import ReadingTable, Sample, Series
from cadenza.store.telemetry import Header, TelemetryFile, read_telemetry
from cadenza.watch.machine import scrape
from cadenza.watch.virtual import CARDS_EVERY_S, VirtualSampler

S = 1_000_000_000
MODEL = "Qwen/Qwen3-8B"
NAME = "mi50-rx6900xt"


class Watched:
    """An engine in memory with a sampler, and the file that it writes."""

    def __init__(self, folder: Path, interval_s: float = 0.5, *, cards: bool = True) -> None:
        found = profile.load(NAME)
        self.folder = folder
        api = HttpApi(found)
        self.core = api.core
        self.transport = MemoryTransport(api)
        self.file = TelemetryFile(folder, Header())
        if not cards:
            found = profile.Profile(found.name, found.hardware, found.models)
        self.sampler = VirtualSampler(self.transport, api.core, found, interval_s, self.file)

    def ask(self, tokens: int) -> None:
        """A request for so many tokens, by whoever; its answer is not listened to."""
        origin = Origin("engine", ("127.0.0.1", 1))
        body = json.dumps({"model": MODEL, "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        connection = self.transport.connect(origin)
        self.transport.send(connection, head.encode() + b"content-type: application/json\r\n\r\n" + body)

    def pass_to(self, until_ns: int) -> None:
        while self.transport.clock.now_ns() < until_ns:
            self.transport.poll(until_ns)

    def log(self) -> ReadingTable:
        found = read_telemetry(self.folder)
        assert found is not None
        return found

    def of(self, source: str) -> list[Sample]:
        return [sample for sample in self.log().samples if sample.source == source]


def values(sample: Sample) -> dict[Series, float]:
    return dict(zip(sample.series, sample.values, strict=True))


def of_engine(name: str) -> Series:
    return Series(name, (("engine", "vllm"), ("target", "0"), ("model", MODEL)))


def of_card(sample: Sample, gpu: str, name: str) -> float:
    (value,) = (v for s, v in values(sample).items() if s.name == f"gpu_{name}" and s.label("gpu") == gpu)
    return value


def test_samples_are_on_the_grid_whether_something_happens_or_not(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.sampler.start() == "sampled every 0.5 s of virtual time; simulated cards (2) every 20 s"
    watched.ask(40)  # some 80 ms each
    watched.pass_to(10 * S)
    assert [sample.at_ns for sample in watched.of("engine")] == [n * S // 2 for n in range(21)]
    watched.sampler.end()
    watched.pass_to(20 * S)
    assert len(watched.of("engine")) == 21


def test_a_sample_has_the_numbers_of_the_engines_page(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.sampler.start()
    for _ in range(3):
        watched.ask(400)
    watched.pass_to(20 * S)
    last = watched.of("engine")[-1]
    assert last.at_ns == watched.transport.clock.now_ns() == 20 * S
    page = scrape(watched.transport, [Page(IN_PROCESS, "/metrics", ())], whole=False).readings
    plain = {one.series: one.value for one in page if not one.name.endswith(("_s_count", "_s_sum"))}
    assert values(last) == plain
    assert values(last)[of_engine("running")] == 3
    assert values(last)[of_engine("generation_tokens_total")] > 100
    watched.sampler.end()


def test_a_model_that_comes_to_rest_is_seen_to_rest(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.sampler.start()
    watched.ask(10)
    watched.pass_to(30 * S)
    running = [values(sample)[of_engine("running")] for sample in watched.of("engine")]
    assert running[1] == 1  # at 0.5 s ten tokens of 80 ms are not done
    assert set(running[4:]) == {0}
    assert values(watched.of("engine")[-1])[of_engine("requests_total")] == 1
    watched.sampler.end()


def test_cards_are_read_from_files_and_their_busy_share_is_of_all_the_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.sampler.start()
    watched.ask(600)
    watched.pass_to(round(2 * CARDS_EVERY_S) * S)
    seen = watched.of("amdgpu")
    assert [sample.at_ns for sample in seen] == [round(n * CARDS_EVERY_S) * S for n in range(3)]
    for gpu, name in (("0000:03:00.0", "mi50-32gb"), ("0000:43:00.0", "rx6900xt")):
        card = load_card(name)
        # At work all the time it does what it did in its published soak; the driver tells whole per cent.
        busy = min(1.0, card.steady.busy + card.steady.waiting)
        assert of_card(seen[-1], gpu, "busy_ratio") == pytest.approx(busy, abs=0.01)
        taken = profile.load(NAME).limits.gpu_memory_utilization * card.vram_bytes
        used = (v for s, v in values(seen[-1]).items() if (s.label("gpu"), s.label("pool")) == (gpu, "vram"))
        assert pytest.approx(taken, rel=1e-6) in list(used)
        assert of_card(seen[0], gpu, "busy_ratio") == 0
    watched.sampler.end()


def test_an_edge_between_two_looks_has_the_share_of_the_time_in_between(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.sampler.start()
    watched.ask(10)  # less than a second
    watched.pass_to(10 * S)
    busy_s = watched.core.busy_ns(10 * S) / S
    assert 0.5 < busy_s < 1.5
    watched.sampler.poll(10 * S)
    watched.sampler.poll(10 * S)  # the next point begins where this one ends
    _, seen = watched.of("amdgpu")
    assert seen.at_ns == 10 * S
    card = load_card("rx6900xt")
    busy = busy_s / 10 * min(1.0, card.steady.busy + card.steady.waiting)
    assert of_card(seen, "0000:43:00.0", "busy_ratio") == pytest.approx(busy, abs=0.01)
    watched.pass_to(20 * S)
    watched.sampler.poll(20 * S)
    assert of_card(watched.of("amdgpu")[-1], "0000:43:00.0", "busy_ratio") == 0
    watched.sampler.end()


def test_a_stretch_without_end_costs_a_bounded_number_of_samples(tmp_path: Path) -> None:
    watched = Watched(tmp_path, cards=False)
    watched.sampler.start()
    watched.pass_to(1_000_000 * S)
    stamps = [sample.at_ns for sample in watched.of("engine")]
    assert len(stamps) <= 1001
    assert stamps[-1] > 990_000 * S
    assert all(stamp % (S // 2) == 0 for stamp in stamps)
    watched.ask(10)
    watched.pass_to(1_000_010 * S)
    assert sum(sample.at_ns > 1_000_000 * S for sample in watched.of("engine")) >= 19  # and then as before
    watched.sampler.end()


def test_cards_are_looked_at_no_more_often_than_the_engine(tmp_path: Path) -> None:
    watched = Watched(tmp_path, interval_s=60)
    assert watched.sampler.start() == "sampled every 60 s of virtual time; simulated cards (2) every 60 s"
    watched.pass_to(130 * S)
    assert [sample.at_ns // S for sample in watched.of("amdgpu")] == [0, 60, 120]
    watched.sampler.end()


def test_a_profile_that_names_no_cards_says_so(tmp_path: Path) -> None:
    watched = Watched(tmp_path, cards=False)
    assert watched.sampler.start() == "sampled every 0.5 s of virtual time; no cards"
    watched.pass_to(60 * S)
    watched.sampler.poll(60 * S)
    watched.sampler.end()
    assert watched.of("amdgpu") == []
    assert [(gap.source, gap.reason) for gap in watched.log().missing] == [("amdgpu", "absent")]


def test_a_folder_that_is_lost_costs_the_cards_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # nor in memory
    watched = Watched(tmp_path)
    watched.sampler.start()
    (folder,) = tmp_path.glob("cadenza-board-*")
    folder.rename(tmp_path / "gone")
    watched.ask(100)
    watched.pass_to(60 * S)
    assert len(watched.of("engine")) == 121
    assert len(watched.of("amdgpu")) == 1
    assert ("amdgpu", "amdgpu", "failed") in {(gap.source, gap.name, gap.reason) for gap in watched.log().missing}
    watched.sampler.end()


def test_folders_of_runs_that_were_killed_go_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    lives = Watched(tmp_path)
    lives.sampler.start()
    (living,) = tmp_path.glob("cadenza-board-*")
    left, young, mine = (tmp_path / name for name in ("cadenza-board-left", "cadenza-board-young", "mine"))
    for folder in (left, young, mine):
        (folder / "sys").mkdir(parents=True)
    (tmp_path / "cadenza-board-link").symlink_to(mine)
    for folder in (left, living, mine):
        os.utime(folder, (0, 0))  # an old one
    other = Watched(tmp_path)
    other.sampler.start()
    (made,) = set(tmp_path.glob("cadenza-board-*")) - {living, left, young, tmp_path / "cadenza-board-link"}
    assert [folder.exists() for folder in (left, living, young, mine / "sys", made)] == [False, True, True, True, True]
    lives.sampler.end()
    other.sampler.end()
    assert not living.exists()
    assert not made.exists()


def test_the_boards_folder_is_private_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    watched = Watched(tmp_path)
    watched.sampler.start()
    (folder,) = tmp_path.glob("cadenza-board-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "SIMULATED").exists()
    watched.sampler.end()
    assert not folder.exists()
